"""The reconciler of allocations: nothing is decided of one whose claim the ledger has not answered yet."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Accepted, Proposal, Verdict
from lattice.scheduling.cluster.machine import Machine
from lattice.scheduling.state.scene import Scene
from lattice.views import Allocation
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.allocations import Allocations
from lattice_controllers.scheduler.committer import Committer
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes

BODY: dict[str, Any] = {
    "apiVersion": "lattice.dev/v1alpha1",
    "kind": "Allocation",
    "metadata": {"name": "job", "namespace": "physics", "finalizers": ["lattice.dev/release"]},
    "spec": {
        "tenant": "physics", "user": "alice", "vcluster": "hpc", "entrypoint": "hostname", "resources": {"nodes": 1},
        "lifecycle": {"type": "Bounded", "walltime": "1h", "gracePeriod": "1s"}, "cancel": {"reason": "enough"},
    },
}  # fmt: skip


def nothing(*_: Any) -> Any:
    return None


async def accepted(_: Proposal) -> Verdict:
    return Accepted()


async def reconciler(cluster: FakeCluster, clock: ManualClock) -> tuple[Allocations, Loop]:
    """A reconciler that knows of one cancelled allocation and of an empty ledger, and its loop."""
    metrics, book = SchedulerMetrics(), Book.empty("term", "commit")
    committer = Committer(cluster, clock, book, "1", identity="me", new_id=lambda: "x", metrics=metrics, on_change=nothing)
    nodes = Nodes(cluster, clock, touched=nothing, woken=nothing, replan=nothing, heard=nothing)
    numbers = AllocationNumbers(1, accepted)
    found = Allocations(
        cluster, clock, committer.stored, nodes, metrics, propose=nothing, numbers=numbers, vcluster=nothing, config=nothing,
        stopped=lambda: False,
    )  # fmt: skip
    loop = found.loop = Loop(
        clock, Scene(Machine()), metrics, ready=nothing, propose=nothing, allocation=found.get, explained=nothing,
        placed=found.queue.add, confirmed=nothing, stopped=lambda: False,
    )  # fmt: skip
    made = await cluster.create(ALLOCATIONS, BODY, "physics", type=Allocation)
    found.on_allocation(Change("physics/job", None, made))
    found.all_rows()
    return found, loop


@pytest.mark.parametrize("claiming", [True, False])
async def test_what_is_cancelled_while_its_claim_is_under_way_ends_only_once_the_ledger_has_answered(claiming: bool) -> None:
    cluster, clock = FakeCluster(ManualClock()), ManualClock()
    found, loop = await reconciler(cluster, clock)
    (uid,) = found.objects
    if claiming:
        loop.claiming.add(uid)
    await found.reconcile(uid)
    stands = await cluster.get(ALLOCATIONS, "job", "physics", type=Allocation)
    assert (stands.status.phase == "Cancelled") is not claiming
