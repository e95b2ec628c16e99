"""The scheduler's reservations: one status write for a change, none for none, windows that begin and end on time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import RESERVATIONS
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import NodeFacts
from lattice.units import format_time
from lattice.views import Reservation
from lattice_controllers.scheduler.reservations import Reservations
from tests.build import allocation, condition
from tests.unit.scheduler.doubles import FakeLedger, Wakes

HOUR = 3600.0


def facts(index: int, *, usable: bool = True, group: str = "g0") -> NodeFacts:
    return NodeFacts(
        index, f"nid{index + 1:03}", group, 8, 1 << 30, 0, frozenset(), hollow=False, usable=usable, state="Ready" if usable else "Down"
    )


class Site:
    """Four nodes, a cluster, a clock, and the class between them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.node_cache = NodeCache()
        self.wakes = Wakes()
        self.writes = 0
        for index in range(4):
            self.node_cache.put(facts(index))
        self.reservations = self.made()
        for index in range(4):
            self.reservations.node_changed(f"nid{index + 1:03}")
        self.now = self.clock.now()

    def made(self) -> Reservations:
        return Reservations(self.cluster, self.clock, self.node_cache, FakeLedger(), self.wakes)

    async def create(self, name: str, **spec: Any) -> None:
        body = {"nodes": "nid[001-002]", "start": format_time(self.now + HOUR), "duration": "2h", **spec}
        given = {key: value for key, value in body.items() if value is not None}
        await self.cluster.create(RESERVATIONS, {"metadata": {"name": name}, "spec": given})
        await self.seen(name)

    async def seen(self, name: str) -> None:
        """The informer tells of the object as it is now."""
        found = await self.cluster.get(RESERVATIONS, name, type=Reservation)
        self.reservations.on_reservation(Change(name, self.reservations.objects.get(name), found))

    async def reconciled(self, name: str) -> dict[str, Any]:
        """The status after reconciling; counts whether that wrote."""
        before = (await self.cluster.get(RESERVATIONS, name))["metadata"]["resourceVersion"]
        await self.reservations.reconcile(name)
        after = await self.cluster.get(RESERVATIONS, name)
        self.writes += after["metadata"]["resourceVersion"] != before
        status: dict[str, Any] = after.get("status", {})
        return status


@pytest.fixture
def site() -> Site:
    return Site()


def ready(status: dict[str, Any]) -> tuple[str, str]:
    found = {entry["type"]: entry for entry in status["conditions"]}["Ready"]
    return found["status"], found["reason"]


async def test_nothing_is_said_or_held_before_everything_has_been_read(site: Site) -> None:
    await site.create("maint", maintenance=True)
    assert await site.reconciled("maint") == {}
    assert site.reservations.windows(site.now) == ()
    site.reservations.started()
    assert (await site.reconciled("maint"))["state"] == "Planned"
    assert len(site.reservations.windows(site.now)) == 1


async def test_the_status_is_written_once_for_each_change(site: Site) -> None:
    site.reservations.started()
    await site.create("maint", maintenance=True)
    status = await site.reconciled("maint")
    assert (status["state"], status["nodes"], status["nodeCount"], status["observedGeneration"]) == ("Planned", "nid[001-002]", 2, 1)
    assert (status["windowStart"], status["windowEnd"]) == (format_time(site.now + HOUR), format_time(site.now + 3 * HOUR))
    assert ready(status) == ("True", "Planned")
    for _ in range(3):
        await site.seen("maint")
        await site.reconciled("maint")
    assert site.writes == 1


async def test_a_window_begins_and_ends_on_time_and_wakes_the_cycle(site: Site) -> None:
    site.reservations.started()
    await site.create("maint")
    assert await site.reservations.reconcile("maint") == HOUR
    assert site.reservations.wake(site.now) == site.now + HOUR
    for seconds, state in ((HOUR, "Active"), (2 * HOUR, "Ended")):
        woken = site.wakes.count
        site.clock.advance(seconds)
        assert (await site.reconciled("maint"))["state"] == state
        assert site.wakes.count > woken
    assert site.reservations.windows(site.clock.now()) == ()
    assert site.reservations.wake(site.clock.now()) is None


async def test_windows_are_the_same_object_until_something_changes(site: Site) -> None:
    site.reservations.started()
    await site.create("daily", recurrence={"everyDays": 1})
    first = site.reservations.windows(site.now)
    assert site.reservations.windows(site.now + HOUR / 2) is first
    site.node_cache.put(facts(0, usable=False))
    site.reservations.node_changed("nid001")
    assert site.reservations.windows(site.now + HOUR / 2) is first
    await site.create("other", nodes="nid003")
    assert len(site.reservations.windows(site.now)) == len(first) + 1


async def test_chosen_nodes_outlast_a_change_of_leader(site: Site) -> None:
    site.reservations.started()
    await site.create("two", nodes=None, nodeCount=2)
    assert (await site.reconciled("two"))["nodes"] == "nid[001-002]"
    site.node_cache.take([0, 1])
    site.reservations = site.made()
    site.reservations.started()
    await site.seen("two")
    status = await site.reconciled("two")
    assert status["nodes"] == "nid[001-002]"
    assert "work on 2 of them may last longer" in status["conditions"][0]["message"]


async def test_a_node_that_appears_makes_a_reservation_possible(site: Site) -> None:
    site.reservations.started()
    await site.create("five", nodes=None, nodeCount=5)
    status = await site.reconciled("five")
    assert (status["state"], status.get("nodes"), status.get("nodeCount")) == ("Impossible", None, None)
    assert {entry["type"]: entry["reason"] for entry in status["conditions"]} == {"Ready": "NodesMissing", "Stalled": "NodesMissing"}
    site.node_cache.put(facts(4))
    site.reservations.node_changed("nid005")
    status = await site.reconciled("five")
    assert (status["state"], status["nodeCount"], ready(status)) == ("Planned", 5, ("True", "Planned"))
    assert [entry["type"] for entry in status["conditions"]] == ["Ready"]


async def test_a_node_that_goes_gives_its_place_to_another_one_and_its_index_to_none(site: Site) -> None:
    site.reservations.started()
    await site.create("two", nodes=None, nodeCount=2)
    await site.reconciled("two")
    site.node_cache.drop(0)
    site.node_cache.put(NodeFacts(0, "other", "g0", 8, 1 << 30, 0, frozenset(), hollow=False, usable=True, state="Ready"))
    site.reservations.node_changed("nid001")
    site.reservations.node_changed("other")
    assert "nid002" in (await site.reconciled("two"))["nodes"]


async def test_a_deleted_reservation_holds_nothing(site: Site) -> None:
    site.reservations.started()
    await site.create("maint")
    woken = site.wakes.count
    site.reservations.on_reservation(Change("maint", site.reservations.objects["maint"], None))
    assert site.reservations.windows(site.now) == ()
    assert site.wakes.count > woken
    assert await site.reservations.reconcile("maint") is None


async def test_work_that_asks_for_it_is_counted_until_its_end(site: Site) -> None:
    site.reservations.started()
    await site.create("course")
    pending = allocation(1, spec={"reservation": "course"})
    running = allocation(2, spec={"reservation": "course"})
    for one in (pending, running, allocation(3)):
        site.reservations.on_allocation(Change(one.metadata.key, None, one))
    assert (await site.reconciled("course"))["allocations"] == 2
    done = allocation(2, condition("Finished"), condition("Ready"), spec={"reservation": "course"})
    site.reservations.on_allocation(Change(done.metadata.key, running, done))
    site.reservations.on_allocation(Change(pending.metadata.key, pending, None))
    assert (await site.reconciled("course"))["allocations"] == 0


async def test_a_longer_duration_is_shown_at_once(site: Site) -> None:
    site.reservations.started()
    await site.create("course")
    await site.reconciled("course")
    await site.cluster.patch(RESERVATIONS, "course", {"spec": {"duration": "5h"}})
    await site.seen("course")
    status = await site.reconciled("course")
    assert status["windowEnd"] == format_time(site.now + 6 * HOUR)
    assert status["observedGeneration"] == 2


async def test_a_thousand_submissions_are_one_write(site: Site) -> None:
    site.reservations.started()
    await site.create("course")
    await site.reconciled("course")
    written = len(site.cluster.written)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(site.reservations.queue.run())
        await site.clock.run_for(1)
        for number in range(1000):
            one = allocation(number, spec={"reservation": "course"})
            site.reservations.on_allocation(Change(one.metadata.key, None, one))
        await site.clock.run_for(3)
        serving.cancel()
    assert (await site.cluster.get(RESERVATIONS, "course"))["status"]["allocations"] == 1000
    assert len(site.cluster.written) == written + 1
