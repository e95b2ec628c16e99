"""Events about allocations are coalesced, bounded, and can be turned off."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import EVENTS
from lattice.views import Config
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.occurrences import MOST_WAITING, Occurrences
from tests.build import allocation, condition
from tests.unit.scheduler.doubles import known

NEVER = condition("Scheduled", "False", "NeverFits", message="no node has 2 GPUs")


class World:
    """The events that were written, after what was noted."""

    def __init__(self, events: str = "All") -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.measured = SchedulerMetrics()
        config = msgspec.convert({"metadata": {"name": "lattice"}, "spec": {"scheduling": {"events": events}}}, Config)
        self.noted = Occurrences(self.clock, Announcer(self.cluster, self.clock, "s-1"), self.measured, config=known(config))

    def change(self, number: int, *conditions: Any, **fields: Any) -> None:
        self.noted.on_allocation(Change(str(number), allocation(number), allocation(number, *conditions, **fields)))

    async def written(self, seconds: float) -> list[str]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.noted.run())
            await self.clock.run_for(seconds)
            task.cancel()
        return [str(entry["reason"]) for entry in self.cluster.snapshot(EVENTS).values()]


async def test_what_happens_within_a_second_is_one_event() -> None:
    world = World()
    world.change(1, condition("Scheduled"))
    world.change(1, condition("Scheduled"), condition("Ending"))
    assert await world.written(3) == ["Ending"]


async def test_a_life_that_goes_well_is_one_event_and_a_short_one_none() -> None:
    world = World()
    for number in (1, 2):
        world.change(number, condition("Scheduled"))
    world.change(1, condition("Scheduled"), condition("Finished"), condition("Ready"), status_phase="Completed")
    assert await world.written(3) == ["Scheduled"]
    world.change(2, condition("Scheduled"), condition("Finished"), condition("Ready"), status_phase="Completed")
    assert await world.written(3) == ["Scheduled"]


async def test_a_warning_is_told_though_the_work_has_succeeded_since() -> None:
    world = World()
    world.change(1, NEVER)
    world.change(1, condition("Scheduled"), condition("Finished"), condition("Ready"), status_phase="Completed")
    assert await world.written(3) == ["NeverFits"]


async def test_a_burst_is_written_at_five_a_second_and_what_is_beyond_the_budget_is_dropped_and_counted() -> None:
    world = World()
    for number in range(1, MOST_WAITING + 11):
        world.change(number, NEVER)
    assert len(await world.written(4.5)) == 20
    assert world.measured.events_dropped._value.get() == 10


@pytest.mark.parametrize(("events", "reasons"), [("Off", []), ("Warnings", ["NeverFits"])])
async def test_a_site_takes_fewer_events_or_none(events: str, reasons: list[str]) -> None:
    world = World(events)
    world.change(1, condition("Scheduled"))
    world.change(2, NEVER)
    assert await world.written(3) == reasons
