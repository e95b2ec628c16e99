"""Settlement against an API server in memory: ten thousand allocations, leaders killed at any point, answers lost, objects deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

from lattice.accounting.charges import Charge
from lattice.accounting.records import Records, month_of, rows_text
from lattice.daemon.clock import ManualClock
from lattice.errors import Retry, Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS, EVENTS, TENANTS, USAGE_RECORDS
from lattice.views import Allocation
from lattice.views.usage import UsageRecord
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.running import Running
from lattice_controllers.operator.settlement import Settlement
from tests.unit.accounting.lives import Life, live
from tests.unit.operator.test_operator import World

START = 1_790_000_000


class Site:
    """A cluster in memory and one leader after the other."""

    def __init__(self, seed: int) -> None:
        self.roll = Random(seed)
        self.clock = ManualClock(START + 10_000_000)
        self.cluster = FakeCluster(self.clock)

    async def show(self, life: Life) -> None:
        """The object as its life has left it."""
        metadata = {key: value for key, value in life.obj["metadata"].items() if key not in ("resourceVersion", "namespace")}
        body: dict[str, Any] = {"metadata": metadata, "spec": life.obj["spec"]}
        made = await self.cluster.create(ALLOCATIONS, body, life.tenant)
        life.obj["metadata"] = made["metadata"]
        await self.cluster.patch(ALLOCATIONS, metadata["name"], {"status": life.obj["status"]}, life.tenant, subresource="status")

    async def lead(self, seconds: float) -> Settlement:
        """A leader that is killed after so many seconds."""
        async with self.leading() as settlement:
            await self.clock.run_for(seconds)
        return settlement

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[Settlement]:
        """A leader that is killed at the end."""
        informer: Informer[Allocation] = Informer(
            self.cluster, ALLOCATIONS, type=Allocation, clock=self.clock, on_change=lambda change: settlement.on_allocation(change)
        )
        settlement = Settlement(self.cluster, self.clock, informer.objects, OperatorMetrics(), Running(self.clock))
        tasks = [asyncio.ensure_future(work()) for work in (informer.run, settlement.informer.run, settlement.run)]
        yield settlement
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)

    def records(self) -> Records:
        """What stands on the server, read from the start."""
        records = Records()
        for obj in self.cluster.snapshot(USAGE_RECORDS).values():
            records.put(msgspec.convert(obj, UsageRecord))
        records.validate()
        return records


def sums(lives: list[Life]) -> tuple[int, int]:
    return sum(life.node_seconds for life in lives), sum(life.gpu_seconds for life in lives)


def recorded(records: Records) -> tuple[int, int]:
    rows = list(records.all_rows())
    return sum(row.node_seconds for row in rows), sum(row.gpu_seconds for row in rows)


async def test_hours_of_ten_thousand_allocations_equal_an_independent_sum_whoever_is_killed_when() -> None:
    site = Site(1)
    models = [live(number, site.roll, START + site.roll.randint(0, 90) * 86400) for number in range(500)]
    lives = [model.again(number) for number, model in enumerate(models * 20, 1)]
    for chunk in range(0, len(lives), 5000):
        for life in lives[chunk : chunk + 5000]:
            await site.show(life)
        site.cluster.fail(Retry("busy", reason="Busy"), resource=USAGE_RECORDS, times=site.roll.randint(0, 2))
        site.cluster.lose_answer("create", USAGE_RECORDS)
        site.cluster.lose_answer("patch", USAGE_RECORDS)
        await site.lead(site.roll.choice((0.5, 5.5, 6.0, 7.0)))
    await site.lead(300.0)
    records = site.records()
    assert recorded(records) == sums(lives)
    assert sum(row.attempt - row.first + 1 for row in records.all_rows() if row.attempt) == sum(life.attempts for life in lives) + len(
        [life for life in lives if life.attempts and life.cancelled]
    )
    assert len(records.pages) < 10_000 / 50


async def test_two_leaders_at_once_write_each_attempt_once() -> None:
    site = Site(2)
    lives = [live(number, site.roll, START) for number in range(1, 61)]
    for life in lives:
        await site.show(life)
    for _ in range(3):
        await asyncio.gather(site.lead(7.0), site.lead(6.0))
    assert recorded(site.records()) == sums(lives)


async def test_many_ends_share_a_write_and_nothing_is_written_twice() -> None:
    site = Site(3)
    lives = [live(number, site.roll, START, most=9) for number in range(1, 201)]
    for life in lives:
        await site.show(life)
    site.cluster.written.clear()
    await site.lead(30.0)
    written = len(site.cluster.writes(USAGE_RECORDS))
    months = {(page.tenant, page.month) for page in site.records().pages.values()}
    assert written <= 2 * len(site.records().pages)
    assert len(months) <= written
    await site.lead(30.0)
    assert len(site.cluster.writes(USAGE_RECORDS)) == written


async def test_a_final_allocation_is_settled_only_once_its_rows_are_acknowledged() -> None:
    site = Site(4)
    life = live(1, site.roll, START)
    await site.show(life)
    site.cluster.fail(Stale("changed", reason="Conflict"), resource=USAGE_RECORDS, verb="create", times=100)
    assert not (await site.lead(8.0)).is_settled(life.view)
    site.cluster.heal()
    assert (await site.lead(8.0)).is_settled(life.view)


@pytest.mark.parametrize("records_gone", [False, True])
async def test_a_leader_that_lives_through_a_restore_writes_again_what_the_snapshot_does_not_hold(records_gone: bool) -> None:
    site = Site(11)
    lives = [live(number, site.roll, START) for number in range(1, 41)]
    for life in lives[:20]:
        await site.show(life)
    await site.lead(30.0)
    snapshot = {} if records_gone else site.cluster.snapshot(USAGE_RECORDS)
    async with site.leading() as settlement:
        for life in lives[20:]:
            await site.show(life)
        await site.clock.run_for(30.0)
        assert recorded(site.records()) == sums(lives)
        assert all(settlement.is_settled(life.view) for life in lives)
        for _ in range(2):  # two restores in a row, to the same snapshot
            site.cluster.fail(Retry("connection refused", reason="Unreachable"), resource=USAGE_RECORDS, times=3)
            site.cluster.restore(USAGE_RECORDS, snapshot)
            await site.clock.run_for(0.1)
            assert not any(settlement.is_settled(life.view) for life in lives[20:]), "nothing may go while nothing is heard of the records"
            await site.clock.run_for(60.0)
            assert recorded(site.records()) == sums(lives)
            settlement.records.validate()
            assert all(settlement.is_settled(life.view) for life in lives)


async def test_an_older_version_that_is_heard_late_is_no_restore() -> None:
    site = Site(12)
    life = live(1, site.roll, START)
    await site.show(life)
    async with site.leading() as settlement:
        await site.clock.run_for(30.0)
        (record,) = (msgspec.convert(obj, UsageRecord) for obj in site.cluster.snapshot(USAGE_RECORDS).values())
        older = msgspec.structs.replace(
            record,
            metadata=msgspec.structs.replace(record.metadata, resource_version="1"),
            spec=msgspec.structs.replace(record.spec, rows=""),
        )
        settlement._on_record(Change(record.metadata.name, older, older))
        site.cluster.sent.clear()
        await site.clock.run_for(30.0)
        assert settlement.is_settled(life.view)
        assert [sent for sent in site.cluster.sent if sent.resource == USAGE_RECORDS] == []
        assert settlement.records.restarts == 0


@pytest.mark.parametrize("replaced", [False, True])
async def test_hours_of_an_object_that_is_removed_by_force_are_written_before_anything_else_can_be_lost(replaced: bool) -> None:
    site = Site(7)
    life = Life(1, "physics", "alice", "", site.roll)
    begin = int(site.clock.now()) - 100
    life.attempt(begin, begin + 3600, again=False)
    status = {**life.obj["status"], "endTime": None, "phase": "Running"}
    status["conditions"] = [one for one in status["conditions"] if one["type"] in ("Scheduled", "Started")]
    life.obj["status"], life.obj["metadata"]["finalizers"] = status, []
    await site.show(life)

    async def remove() -> None:
        await site.clock.sleep(10)
        await site.cluster.delete(ALLOCATIONS, "job-1", life.tenant)
        if replaced:
            await site.cluster.create(ALLOCATIONS, {"metadata": {"name": "job-1"}, "spec": life.obj["spec"]}, life.tenant)

    removing = asyncio.ensure_future(remove())
    await site.lead(13)
    await removing
    await site.lead(20)
    (row,) = site.records().all_rows()
    assert (row.uid, row.state, row.reason, row.ended - row.committed) == (life.view.metadata.uid, "Cancelled", "Removed", 110)
    assert row.node_seconds == 110 * row.nodes > 0


@pytest.mark.parametrize("deleted", [True, False])
async def test_what_is_being_deleted_is_settled_within_two_seconds_other_work_waits_for_company(deleted: bool) -> None:
    site = Site(5)
    life = live(1, site.roll, START)
    await site.show(life)
    if deleted:
        await site.cluster.delete(ALLOCATIONS, "job-1", life.tenant)
    await site.lead(2.5)
    assert bool(site.cluster.writes(USAGE_RECORDS)) is deleted


async def record(world: World, ended: int) -> None:
    """A record of nine hours of one node with four GPUs that ended then."""
    charge = Charge(
        "00000000-0000-4000-8000-000000000001", 1, 1, 1, "physics", "physics", "past", "", "bob", "lhc", "hpc", 1, 4, ended - 9 * 3600,
        ended - 9 * 3600, ended - 9 * 3600, ended, "Completed", "Completed", 0, 9 * 3600, 36 * 3600, 5,
    )  # fmt: skip
    month = month_of(ended)
    spec = {"tenant": "physics", "month": month, "part": 0, "rows": rows_text([charge])}
    await world.cluster.create(USAGE_RECORDS, {"metadata": {"name": f"physics-{month}"}, "spec": spec})


async def test_a_name_that_is_used_again_by_another_tenant_holds_nothing_up() -> None:
    site = Site(6)
    first, second = (Life(number, tenant, "alice", "", site.roll) for number, tenant in ((1, "physics"), (2, "ml-team")))
    for life in (first, second):
        life.attempt(START, START + 3600, again=False)
        life.obj["metadata"] |= {"name": "job", "namespace": "shared", "finalizers": []}
    informer: Informer[Allocation] = Informer(
        site.cluster, ALLOCATIONS, type=Allocation, clock=site.clock, on_change=lambda change: settlement.on_allocation(change)
    )
    settlement = Settlement(site.cluster, site.clock, informer.objects, OperatorMetrics(), Running(site.clock))
    tasks = [asyncio.ensure_future(work()) for work in (informer.run, settlement.informer.run, settlement.run)]
    for life in (first, second):
        body: dict[str, Any] = {"metadata": {"name": "job", "uid": life.obj["metadata"]["uid"]}, "spec": life.obj["spec"]}
        await site.cluster.create(ALLOCATIONS, body, "shared")
        await site.cluster.patch(ALLOCATIONS, "job", {"status": life.obj["status"]}, "shared", subresource="status")
        await site.clock.run_for(2.0)
        if life is first:
            await site.cluster.delete(ALLOCATIONS, "job", "shared")
    await site.clock.run_for(8.0)
    assert settlement.backlog == 0
    assert sorted(page.tenant for page in site.records().pages.values()) == ["ml-team", "physics"]
    assert recorded(site.records()) == sums([first, second]), "also of the one that was gone before it was settled"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_hours_of_a_tenant_without_a_budget_are_mirrored_also_after_a_restart() -> None:
    world = World()
    await record(world, int(world.clock.now()) - 3600)
    await world.add(TENANTS, "physics", {})
    for _ in range(2):
        async with world.running():
            await world.clock.run_for(40)
        assert world.status(TENANTS, "physics")["usage"]["nodeHours"] == "9"


async def test_a_budget_is_mirrored_and_each_mark_told_once_also_after_a_restart() -> None:
    world = World()
    await record(world, int(world.clock.now()) - 3600)
    await world.add(TENANTS, "physics", {"budget": {"nodeHours": 10, "projects": [{"name": "lhc", "gpuHours": 36}]}})
    for _ in range(2):
        async with world.running():
            await world.clock.run_for(40)
    usage = world.status(TENANTS, "physics")["usage"]
    assert (usage["nodeHours"], usage["gpuHours"]) == ("9", "36")
    assert [(one["key"], one["fraction"], one["told"]) for one in usage["budgets"]] == [
        ("Tenant", "900m", 80),
        ("Project/lhc", "1000m", 100),
    ]
    events = world.cluster.snapshot(EVENTS).values()
    assert sorted((event["reason"], event["metadata"]["namespace"]) for event in events) == [
        ("BudgetExhausted", "physics"), ("BudgetNearlyExhausted", "physics"),
    ]  # fmt: skip
    await world.cluster.patch(TENANTS, "physics", {"spec": {"budget": {"nodeHours": 8}}})
    async with world.running():
        await world.clock.run_for(40)
    assert sorted(event["reason"] for event in world.cluster.snapshot(EVENTS).values()).count("BudgetExhausted") == 2
