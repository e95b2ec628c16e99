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
from lattice_controllers.scheduler.allocations import Allocations
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
