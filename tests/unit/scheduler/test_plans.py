"""Plans: what the ledger orders, and the roll call of a new leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import msgspec

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import PLANS
from lattice.ledger.commit import Book
from lattice.ledger.format import HELD, Row
from lattice.ledger.plans import parse_plan
from lattice.ledger.proposals import Accepted, Numbers
from lattice.views import Allocation, Node, Plan
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.plans import Plans
from tests.build import uid
from tests.unit.scheduler.doubles import FakeLedger

EPOCH = 7


@asynccontextmanager
async def writing(
    ledger: FakeLedger | None = None, allocations: Mapping[str, Allocation] | None = None
) -> AsyncIterator[tuple[Plans, FakeCluster, ManualClock]]:
    """A writer of plans for a ledger, an empty one unless it is given, at work."""
    clock = ManualClock()
    cluster = FakeCluster(clock)
    ledger = ledger or FakeLedger(Book.empty("t", "c"))
    nodes = Nodes(cluster, clock, ledger.book, asyncio.Event())
    ledger.book.head.epoch = EPOCH
    plans = Plans(
        cluster, clock, ledger, nodes, SchedulerMetrics(), since=1, allocations=allocations or {}, numbers=AllocationNumbers(1, ledger),
    )  # fmt: skip
    task = asyncio.ensure_future(plans.queue.run())
    try:
        yield plans, cluster, clock
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stored(cluster: FakeCluster, name: str) -> Plan | None:
    found = cluster.snapshot(PLANS).get(name)
    return msgspec.convert(found, Plan) if found is not None else None


async def test_a_plan_that_orders_nothing_is_written_only_to_call_the_roll_and_only_once() -> None:
    async with writing() as (plans, cluster, clock):
        plans.enqueue(["group-0000"])
        await clock.run_for(0.1)
        assert stored(cluster, "group-0000") is None
        plans.call_roll("group-0001")
        await clock.run_for(0.1)
        called = stored(cluster, "group-0001")
        assert called is not None
        assert called.spec.call == EPOCH
        plans.call_roll("group-0001")
        await clock.run_for(0.1)
        assert len(cluster.writes(PLANS)) == 1


async def test_a_plan_of_an_earlier_term_with_the_same_orders_is_written_again_for_the_roll_call_alone() -> None:
    async with writing() as (plans, cluster, clock):
        body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "group-0002"}}
        plans.plans["group-0002"] = await cluster.create(
            PLANS, {**body, "spec": {"seq": 0, "text": plans.text("group-0002"), "call": 6}}, type=Plan
        )
        plans.enqueue(["group-0002"])
        await clock.run_for(0.1)
        assert len(cluster.writes(PLANS)) == 1
        plans.call_roll("group-0002")
        await clock.run_for(0.1)
        again = stored(cluster, "group-0002")
        assert again is not None
        assert again.spec.call == EPOCH


def registered(name: str, formats: dict[str, int]) -> Change[Node]:
    node = msgspec.convert({"metadata": {"name": name}, "spec": {}, "status": {"formats": formats}}, Node)
    return Change(name, None, node)


async def test_a_plan_is_written_in_the_format_that_every_agent_of_its_group_reads() -> None:
    async with writing() as (plans, cluster, clock):
        nodes = plans._nodes
        nodes.names, nodes.indices = {0: "old", 1: "new", 64: "other"}, {"old": 0, "new": 1, "other": 64}
        for change in (registered("old", {"plan": 1}), registered("new", {"plan": 2}), registered("other", {"plan": 9})):
            nodes.on_node(change)
        assert (plans.text("group-0000"), plans.text("group-0001"), nodes.lowest_format()) == ("1", "2", 1)
        nodes.on_node(registered("old", {"plan": 2}))
        plans.call_roll("group-0000")
        await clock.run_for(0.1)
        written = stored(cluster, "group-0000")
        assert written is not None
        assert (written.spec.text, written.spec.epoch, written.spec.term, written.spec.since) == ("2", EPOCH, "t", 1)
        assert nodes.lowest_format() == 2
        nodes.on_node(registered("old", {}))
        assert nodes.lowest_format() == 1, "it went back to a version that says nothing"


async def test_who_waits_for_a_plan_hears_of_new_rows_once_it_is_written_and_only_then() -> None:
    class Hearing:
        """Keeps what it heard, and how many plans were written then."""

        def __init__(self) -> None:
            self.heard: list[tuple[set[str], int]] = []

        def plan_written(self, uids: Collection[str]) -> None:
            if uids:
                self.heard.append((set(uids), len(cluster.writes(PLANS))))

    ledger = FakeLedger()
    async with writing(ledger) as (plans, cluster, clock):
        hearing = Hearing()
        plans.observers.append(hearing)
        rows = [Row(uid(number), 1, 1, "alice", "physics", "hpc", "b", HELD, 0, (0,)) for number in (1, 2)]
        for row in rows:
            ledger.stored.rows[row.key] = row
            plans.row_changed(None, row)
        assert hearing.heard == []
        await clock.run_for(0.1)
        assert hearing.heard == [({row.uid for row in rows}, 1)]
        plans.row_changed(rows[0], rows[0])
        await clock.run_for(0.1)
        assert len(hearing.heard) == 1


async def test_who_waits_for_a_plan_hears_of_it_where_the_answer_of_its_write_was_lost() -> None:
    class Hearing:
        def __init__(self) -> None:
            self.heard: set[str] = set()

        def plan_written(self, uids: Collection[str]) -> None:
            self.heard |= set(uids)

    ledger = FakeLedger()
    async with writing(ledger) as (plans, cluster, clock):
        hearing = Hearing()
        plans.observers.append(hearing)
        cluster.lose_answer("create", PLANS)
        row = Row(uid(1), 1, 1, "alice", "physics", "hpc", "b", HELD, 0, (0,))
        ledger.stored.rows[row.key] = row
        plans.row_changed(None, row)
        await clock.run_for(0.01)
        written = stored(cluster, "group-0000")
        assert written is not None
        plans.on_plan(Change("group-0000", None, written))
        await clock.run_for(30)
        assert len(cluster.writes(PLANS)) == 1
        assert hearing.heard == {row.uid}


async def test_no_plan_shows_a_number_that_the_ledger_has_not_reserved() -> None:
    ledger = FakeLedger(by_hand=True)
    row = Row(uid(1), 1, 1, "alice", "physics", "hpc", "b", HELD, 0, (0,))
    fresh = msgspec.convert({"metadata": {"name": "run", "namespace": "physics", "uid": uid(1)}, "spec": {}}, Allocation)
    async with writing(ledger, {row.uid: fresh}) as (plans, cluster, clock):
        ledger.stored.rows[row.key] = row
        plans.row_changed(None, row)
        await clock.run_for(1.0)
        assert cluster.writes(PLANS) == []
        (asked,) = ledger.proposed
        assert isinstance(asked, Numbers)
        ledger.answers[0].set_result(Accepted())
        await clock.run_for(0.1)
        written = stored(cluster, "group-0000")
        assert written is not None
        (shown,) = parse_plan(written.spec.text)
        assert 0 < shown.number < asked.next_number


async def test_a_plan_whose_numbers_stand_reserves_none() -> None:
    ledger = FakeLedger(by_hand=True)
    row = Row(uid(1), 1, 1, "alice", "physics", "hpc", "b", HELD, 0, (0,))
    shown = msgspec.convert(
        {"metadata": {"name": "run", "namespace": "physics", "uid": uid(1)}, "spec": {}, "status": {"number": 7}}, Allocation
    )
    async with writing(ledger, {row.uid: shown}) as (plans, cluster, clock):
        ledger.stored.rows[row.key] = row
        plans.row_changed(None, row)
        await clock.run_for(0.1)
        assert stored(cluster, "group-0000") is not None
        assert ledger.proposed == []


async def test_a_server_that_serves_no_plans_is_asked_with_a_back_off() -> None:
    async with writing() as (plans, cluster, clock):
        for verb in ("create", "get"):
            cluster.fail(NotFound("the server could not find the requested resource"), verb=verb, resource=PLANS, times=1000)
        plans.call_roll("group-0000")
        await clock.run_for(10)
        assert plans.queue.failures("group-0000") >= 3
        cluster.heal()
        await clock.run_for(60)
        assert stored(cluster, "group-0000") is not None
