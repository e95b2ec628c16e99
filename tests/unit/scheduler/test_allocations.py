"""The reconciler of allocations: nothing is decided of one whose claim the ledger has not answered yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lattice.accounting.records import Records
from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger.commit import Book
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views import Allocation
from lattice_controllers.scheduler.admission import Admission
from lattice_controllers.scheduler.allocation_cache import AllocationCache
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.allocations import EDGES_SECONDS, IMAGES_SECONDS, Allocations, edges_pause, edges_slot
from lattice_controllers.scheduler.committer import Committer
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.quotas import Quotas
from lattice_controllers.scheduler.recovery import Recovery
from lattice_controllers.scheduler.status_schema import StatusSchema
from tests.unit.scheduler.doubles import FakeLedger, known

BODY: dict[str, Any] = {
    "apiVersion": "lattice.dev/v1alpha1",
    "kind": "Allocation",
    "metadata": {"name": "job", "namespace": "physics", "finalizers": ["lattice.dev/release"]},
    "spec": {
        "tenant": "physics", "user": "alice", "vcluster": "hpc", "entrypoint": "hostname", "resources": {"nodes": 1},
        "lifecycle": {"type": "Bounded", "walltime": "1h", "gracePeriod": "1s"}, "cancel": {"reason": "enough"},
    },
}  # fmt: skip


async def reconciler(cluster: FakeCluster, clock: ManualClock) -> tuple[Allocations, PendingWork]:
    """A reconciler that knows of one cancelled allocation and of an empty ledger, and what waits."""
    metrics, book, due, config, state = (
        SchedulerMetrics(),
        Book.empty("term", "commit"),
        asyncio.Event(),
        known(None),
        ClusterState(NodeCache()),
    )
    committer = Committer(cluster, clock, book, "1", identity="me", new_id=lambda: "x", metrics=metrics)
    nodes = Nodes(cluster, clock, book, due)
    quotas = Quotas(cluster, clock, state, nodes={}, config=config, cycle_due=due)
    waiting = PendingWork(clock, state, metrics, due)
    found = Allocations(
        cluster, clock, state, metrics, cache=AllocationCache(), pending=waiting, ledger=committer, nodes=nodes,
        numbers=AllocationNumbers(1, FakeLedger()), vclusters={}, config=config, records=Records(), quotas=quotas,
        admission=Admission(tenants={}, vclusters={}, config=config, quotas=quotas),
        doubts=Recovery(cluster, clock, nodes, committer, metrics, sent={}, config=config), schema=StatusSchema(cluster, clock),
        reported=lambda: "",
    )  # fmt: skip
    made = await cluster.create(ALLOCATIONS, BODY, "physics", type=Allocation)
    found.on_allocation(Change("physics/job", None, made))
    found.all_rows()
    return found, waiting


@pytest.mark.parametrize("claiming", [True, False])
async def test_what_is_cancelled_while_its_claim_is_under_way_ends_only_once_the_ledger_has_answered(claiming: bool) -> None:
    cluster, clock = FakeCluster(ManualClock()), ManualClock()
    found, waiting = await reconciler(cluster, clock)
    (uid,) = found.objects
    if claiming:
        waiting.claiming.add(uid)
    await found.reconcile(uid)
    stands = await cluster.get(ALLOCATIONS, "job", "physics", type=Allocation)
    assert (stands.status.phase == "Cancelled") is not claiming


async def stored(cluster: FakeCluster, found: Allocations, name: str, **spec: Any) -> Allocation:
    """An allocation of this name, as the informer shows it."""
    body = {**BODY, "metadata": {**BODY["metadata"], "name": name}, "spec": {**BODY["spec"], "cancel": None, **spec}}
    made = await cluster.create(ALLOCATIONS, body, "physics", type=Allocation)
    found.on_allocation(Change(f"physics/{name}", None, made))
    return made


async def ended(cluster: FakeCluster, found: Allocations, name: str, reason: str = "Completed") -> None:
    """The end of an allocation, as the informer shows it."""
    over = [{"type": kind, "status": "True", "reason": reason} for kind in ("Finished", "Ready" if reason == "Completed" else "Stalled")]
    status = {"phase": reason, "conditions": over, "endTime": "2026-01-01T00:00:00Z"}
    before = await cluster.get(ALLOCATIONS, name, "physics", type=Allocation)
    after = await cluster.patch(ALLOCATIONS, name, {"status": status}, "physics", subresource="status", type=Allocation)
    found.on_allocation(Change(f"physics/{name}", before, after))


async def answers(cluster: FakeCluster, name: str) -> list[str]:
    """The answers that a status shows."""
    return [edge.answer for edge in (await cluster.get(ALLOCATIONS, name, "physics", type=Allocation)).status.edges]


async def test_the_answers_of_work_that_still_waits_are_written_now_and_then_and_the_last_one_at_once() -> None:
    cluster, clock = FakeCluster(ManualClock()), ManualClock()
    found, _ = await reconciler(cluster, clock)
    for name in ("a", "b"):
        await stored(cluster, found, name)
    join = await stored(cluster, found, "join", dependsOn=[{"ref": name, "condition": "Success"} for name in ("a", "b")])
    await found.reconcile(join.metadata.uid)
    assert await answers(cluster, "join") == ["", ""]
    await ended(cluster, found, "a")
    again = await found.reconcile(join.metadata.uid)
    assert (await answers(cluster, "join"), again) == (["", ""], EDGES_SECONDS)
    clock.advance(EDGES_SECONDS)
    await found.reconcile(join.metadata.uid)
    assert await answers(cluster, "join") == ["M", ""]
    await ended(cluster, found, "b")
    await found.reconcile(join.metadata.uid)
    assert await answers(cluster, "join") == ["M", "M"]


async def test_the_status_of_held_work_with_many_edges_is_written_as_seldom_as_that_of_work_that_waits() -> None:
    cluster, clock = FakeCluster(ManualClock()), ManualClock()
    found, _ = await reconciler(cluster, clock)
    names, many = ("a", "b", "c"), 200
    for name in names:
        await stored(cluster, found, name)
    edges = [{"ref": names[place % 3], "condition": "Success"} for place in range(many)]
    joins = [await stored(cluster, found, f"join{place}", dependsOn=edges, onUnmet="Hold") for place in range(2)]
    for name in names[:2]:
        for join in joins:
            await found.reconcile(join.metadata.uid)
        await ended(cluster, found, name, "Failed")
    again = [await found.reconcile(join.metadata.uid) for join in joins]
    open_edges = [(await answers(cluster, f"join{place}")).count("") for place in range(2)]
    assert open_edges == [133, 133], "the first failure is shown at once, the second only after a pause"
    assert None not in again
    clock.advance(max(seconds or 0.0 for seconds in again))
    for join in joins:
        await found.reconcile(join.metadata.uid)
    assert (await answers(cluster, "join0")).count("") == 66


def test_a_status_with_many_edges_is_written_less_often_so_that_a_thousand_of_them_fill_no_etcd() -> None:
    assert (edges_pause(2, urgent=False), edges_pause(2, urgent=True)) == (EDGES_SECONDS, 0.0)
    bytes_of_status = 200
    for count in (100, 1000):
        for urgent, limit in ((False, 3e6), (True, 30e6)):
            pause = edges_pause(count, urgent=urgent)
            written = 1000 * count * bytes_of_status / pause if pause else 0.0
            assert written <= limit, f"{written / 1e6:.1f} MB/s by a thousand works of {count} edges"


def test_statuses_with_many_edges_take_turns_however_many_there_are_and_those_with_few_do_not() -> None:
    slot = 0.0
    for _ in range(1000):
        slot = edges_slot(slot, 50.0, 1000)
    assert slot == pytest.approx(250.0), "five a second"
    assert edges_slot(slot, 50.0, 2) == 50.0


async def test_that_images_are_awaited_is_written_only_once_the_operator_has_had_time_to_resolve_them() -> None:
    clock = ManualClock()
    cluster = FakeCluster(clock)
    found, _ = await reconciler(cluster, clock)
    job = await stored(cluster, found, "imaged", environment={"image": "r.example/os:v1"})
    writes = job.metadata.resource_version
    again = await found.reconcile(job.metadata.uid)
    stands = await cluster.get(ALLOCATIONS, "imaged", "physics", type=Allocation)
    assert stands.metadata.resource_version == writes
    assert again is not None
    assert 0 < again <= IMAGES_SECONDS
    clock.advance(IMAGES_SECONDS)
    await found.reconcile(job.metadata.uid)
    stands = await cluster.get(ALLOCATIONS, "imaged", "physics", type=Allocation)
    assert [entry.reason for entry in stands.status.conditions if entry.type == "Scheduled"] == ["WaitingForImages"]


async def test_what_the_operator_says_of_awaited_images_is_written_at_once() -> None:
    clock = ManualClock()
    cluster = FakeCluster(clock)
    found, _ = await reconciler(cluster, clock)
    job = await stored(cluster, found, "imaged", environment={"image": "r.example/os:v1"})
    said = {"type": "SoftwareResolved", "status": "Unknown", "reason": "RegistryAwaited", "message": "it is away"}
    after = await cluster.patch(ALLOCATIONS, "imaged", {"status": {"conditions": [said]}}, "physics", subresource="status", type=Allocation)
    found.on_allocation(Change("physics/imaged", job, after))
    await found.reconcile(job.metadata.uid)
    stands = await cluster.get(ALLOCATIONS, "imaged", "physics", type=Allocation)
    assert [entry.message for entry in stands.status.conditions if entry.type == "Scheduled"] == ["it is away"]
