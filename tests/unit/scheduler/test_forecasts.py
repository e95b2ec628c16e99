"""Forecasts are made beside the cycles: one that fails ends nothing and is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from lattice.daemon.clock import ManualClock
from lattice.scheduling.forecast.forecaster import Expected
from lattice_controllers.scheduler.forecasts import FORECAST_SECONDS, Forecasts
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from tests.unit.scheduling.moments import NOW, holding, moment, pending


async def test_a_forecast_that_fails_is_made_again_and_stops_nothing() -> None:
    situation, clock, metrics = moment(4, (holding(1, (0, 1, 2)),)), ManualClock(NOW), SchedulerMetrics()
    taken = list[Mapping[str, Expected]]()
    tries = 0

    def nothing(*_: Any) -> Any:
        return None

    def take(found: Mapping[str, Expected]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ZeroDivisionError
        taken.append(found)

    loop = Loop(
        clock, situation.scene, metrics, ready=nothing, propose=nothing, allocation=nothing, explained=nothing, placed=nothing,
        confirmed=nothing, stopped=lambda: False,
    )  # fmt: skip
    waits = pending(2, nodes=4)
    loop.enqueue(waits)
    forecasts = Forecasts(clock, loop, metrics, candidate=nothing, took=take, stopped=lambda: False)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(loop.run()), group.create_task(forecasts.run())]
        while not taken:
            loop.wake()
            await clock.run_for(FORECAST_SECONDS / 4)
            await asyncio.sleep(0.01)
        for task in running:
            task.cancel()
    assert tries == 2
    assert set(taken[0]) == {waits.uid}
