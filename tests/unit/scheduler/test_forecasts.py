"""Forecasts are made beside the cycles: one that fails ends nothing and is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lattice.daemon.clock import ManualClock
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.context import Expected
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.forecasts import FORECAST_SECONDS, Forecasts
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork
from tests.unit.scheduler.doubles import FakeLedger
from tests.unit.scheduling.moments import NOW, holding, moment, pending


class Breaking:
    """What shows forecasts, and breaks at the first one."""

    def __init__(self) -> None:
        self.tries = 0
        self.taken: list[Mapping[str, Expected]] = []
        self.found: Mapping[str, Expected] = {}

    def accept_forecast(self, found: Mapping[str, Expected]) -> int:
        """Raises at first, then keeps what is found."""
        self.tries += 1
        if self.tries == 1:
            raise ZeroDivisionError
        self.taken.append(found)
        return 0


class Candidates:
    """No allocation is asked for."""

    def candidate(self, allocation: Allocation) -> Candidate:
        raise AssertionError(allocation.metadata.name)


class Still:
    """Nothing changes beside the loop."""

    def refresh_for_cycle(self, now: float) -> float | None:
        del now
        return None

    def add(self, key: str, after: float = 0.0, *, late: bool = False) -> None:
        """Nothing is reconciled."""


async def test_a_forecast_that_fails_is_made_again_and_stops_nothing() -> None:
    context, clock, metrics = moment(4, (holding(1, (0, 1, 2)),)), ManualClock(NOW), SchedulerMetrics()
    shown, due, ledger = Breaking(), asyncio.Event(), FakeLedger()
    waiting = PendingWork(clock, context.state, metrics, due)
    loop = Loop(clock, context.state, waiting, metrics, due, refresher=Still(), ledger=ledger, allocations={}, queue=Still())
    waits = pending(2, nodes=4)
    waiting.enqueue(waits)
    forecasts = Forecasts(clock, context.state, waiting, metrics, ledger=ledger, candidates=Candidates(), expectations=shown)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(loop.run()), group.create_task(forecasts.run())]
        while not shown.taken:
            due.set()
            await clock.run_for(FORECAST_SECONDS / 4)
            await asyncio.sleep(0.01)
        for task in running:
            task.cancel()
    assert shown.tries == 2
    assert set(shown.taken[0]) == {waits.uid}
