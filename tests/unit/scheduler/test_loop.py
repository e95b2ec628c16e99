"""The loop brings its scene up to date also while nothing waits: what-ifs read it."""

from __future__ import annotations

import asyncio
from typing import Any

from lattice.daemon.clock import ManualClock
from lattice.scheduling.machine import Machine
from lattice.scheduling.scene import Scene
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics


async def test_a_change_reaches_the_scene_while_nothing_waits() -> None:
    clock, heard = ManualClock(), list[float]()

    def nothing(*_: Any) -> Any:
        return None

    loop = Loop(
        clock, Scene(Machine()), SchedulerMetrics(), ready=heard.append, propose=nothing, allocation=nothing, explained=nothing,
        placed=nothing, confirmed=nothing, stopped=lambda: False,
    )  # fmt: skip
    async with asyncio.TaskGroup() as group:
        running = group.create_task(loop.run())
        await clock.run_for(0.01)
        loop.wake()
        await clock.run_for(0.1)
        running.cancel()
    assert len(heard) == 1
    assert loop.cycles == 0
