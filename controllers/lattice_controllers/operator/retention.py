"""Deletes final allocations once their usage is settled and their tenant's `finishedRetention` has passed.

Beyond `submission.maxFinishedPerTenant` the oldest are deleted earlier, so that submitting and cancelling in a loop does not fill etcd.
"""

from __future__ import annotations

import logging

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Rejected, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.resources import ALLOCATIONS
from lattice.units import parse_duration
from lattice.views import Allocation
from lattice_controllers.operator.configs import Configs
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.settlement import Settlement
from lattice_controllers.operator.tenants import Tenants
from lattice_controllers.operator.usage import Usage

log = logging.getLogger(__name__)

DEFAULT_RETENTION = "7d"
SWEEP_SECONDS = 30.0
MOST_A_SWEEP = 200
PAUSE_SECONDS = 2.0
"""Pause between two sweeps while more is due than one sweep deletes."""


class Retention:
    """Sweeps final allocations every 30 s; a deletion names uid and resourceVersion, so that an object that changed meanwhile stays."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        allocations: Informer[Allocation],
        usage: Usage,
        configs: Configs,
        tenants: Tenants,
        settlement: Settlement,
        measured: OperatorMetrics,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._allocations = allocations
        self._usage = usage
        self._configs = configs
        self._tenants = tenants
        self._settlement = settlement
        self._measured = measured

    async def run(self) -> None:
        """Deletes what is due every 30 s, once all allocations are listed, until cancelled; sooner again while a sweep was full."""
        await self._allocations.synced.wait()
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            while await self.sweep() == MOST_A_SWEEP:
                await self._clock.sleep(PAUSE_SECONDS)

    async def sweep(self) -> int:
        """Deletes allocations that are due, at most 200, in the order of their ends; returns how many it deleted.

        Errors of the API server are logged, not raised: the next sweep tries again.
        """
        deleted = 0
        for allocation in self._due()[:MOST_A_SWEEP]:
            deleted += await self._delete(allocation)
        return deleted

    def _due(self) -> list[Allocation]:
        """Returns the final and settled allocations whose retention has passed, or that are the oldest of too many of their tenant, by end.

        Those that a GitOps tool tracks, that are being deleted, or whose end is unknown are left out.
        """
        now = self._clock.now()
        finished: dict[str, list[tuple[float, Allocation]]] = {}
        for key, ended in self._usage.ended.items():
            allocation = self._allocations.objects.get(key)
            if allocation is not None:
                finished.setdefault(allocation.spec.tenant, []).append((ended, allocation))
        found: list[tuple[float, Allocation]] = []
        for tenant, entries in finished.items():
            entries.sort(key=lambda entry: entry[0])
            surplus = max(0, len(entries) - self._configs.in_force.submission.max_finished_per_tenant)
            until = now - self._seconds(tenant)
            found += [entry for place, entry in enumerate(entries) if place < surplus or entry[0] <= until]
        found.sort(key=lambda entry: entry[0])
        return [allocation for _, allocation in found if self._settlement.is_settled(allocation)]

    def _seconds(self, tenant: str) -> float:
        """Returns for how many seconds a tenant's final allocations are kept; 7 days where it sets none, or the text does not parse."""
        try:
            return parse_duration(self._tenants.retention_of(tenant) or DEFAULT_RETENTION)
        except Rejected:
            return parse_duration(DEFAULT_RETENTION)

    async def _delete(self, allocation: Allocation) -> bool:
        """Deletes an allocation at the version that was judged; returns False where it is gone, has changed, or the API server fails, which
        is logged.
        """
        metadata = allocation.metadata
        try:
            await self._cluster.delete(
                ALLOCATIONS, metadata.name, metadata.namespace, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except (NotFound, Stale):
            return False  # gone already, or changed: the next sweep looks again
        except LatticeError as error:
            event(log, "ExpiryFailed", logging.WARNING, allocation=metadata.key, reason=error.reason, message=error.message)
            return False
        self._measured.deleted.inc()
        event(log, "Expired", allocation=metadata.key, tenant=allocation.spec.tenant)
        return True
