"""Counts the waiting work of each tenant every few seconds while people submit there, so that no submission waits for the count."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from lattice.admission.facts import Pending
from lattice.daemon.logs import event
from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING
from lattice.views import Tenant, View
from lattice.views.cluster import SubmissionOptions

log = logging.getLogger(__name__)

COUNT_SECONDS: Final = 10.0
WAITING: Final = "".join(f",status.phase!={phase}" for phase in (RUNNING, COMPLETED, FAILED, CANCELLED))


class _Spec(View, frozen=True):
    """The owner of an Allocation's work."""

    user: str = ""


class _Status(View, frozen=True):
    """The phase, which tells whether an Allocation waits."""

    phase: str = ""


class Waiting(View, frozen=True):
    """The fields of an Allocation that are needed to count it."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


class PendingCounts:
    """The last count of waiting work of each tenant; a tenant that is asked about is counted again soon."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asked: set[str] = set()
        self._counts: dict[str, Counter[str]] = {}
        self._admitted: dict[str, Counter[str]] = {}
        """By tenant and user: how many allocations were admitted since the last count began."""

    def count_of(self, tenant: Tenant, user: str, options: SubmissionOptions) -> Pending | None:
        """Returns how much work of a user and of the tenant waits (last count, and admitted since), with the limits of both.

        None: nothing is counted yet. Has the tenant counted within 10 s.
        """
        name, quota = tenant.metadata.name, tenant.spec.quota
        self._asked.add(name)
        counted, since = self._counts.get(name), self._admitted.get(name)
        if counted is None and since is None:
            return None
        users = (counted or Counter()) + (since or Counter())
        return Pending(users[user], users.total(), options.pending_of_user(quota), options.pending_of_tenant(quota))

    def admitted(self, tenant: str, user: str) -> None:
        """Adds one admitted allocation to the count of a tenant and user, until a count from the server replaces it."""
        self._admitted.setdefault(tenant, Counter())[user] += 1

    async def run(self) -> None:
        """Counts, every 10 s until cancelled, the tenants that were asked about since; forgets the counts of all others."""
        while True:
            await self._clock.sleep(COUNT_SECONDS)
            asked, self._asked = self._asked, set()
            self._counts = {name: users for name, users in self._counts.items() if name in asked}
            for name in sorted(asked):
                await self._count(name)

    async def _count(self, name: str) -> None:
        """Counts a tenant's waiting work by user anew, at the server; what was admitted since the last count is counted in it from then on.

        On an error it logs that and keeps both.
        """
        before = self._admitted.pop(name, Counter())
        try:
            listing = await self._cluster.list(ALLOCATIONS, type=Waiting, fields=f"spec.tenant={name}{WAITING}")
        except LatticeError as error:
            event(log, "PendingNotCounted", logging.WARNING, tenant=name, reason=error.reason, message=error.message)
            self._admitted[name] = before + self._admitted.get(name, Counter())
            return
        self._counts[name] = Counter(entry.spec.user for entry in listing.items if entry.status.phase in ("", PENDING))
