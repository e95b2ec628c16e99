"""Renews the node's Lease on time, and at once when its report holds something that the scheduler waits for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, LatticeError, NotFound, Stale
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.objects import UNMANAGED
from lattice.kube.resources import LEASES, NODE_LEASE_NAMESPACE
from lattice.ledger.reports import ANNOTATION
from lattice.units import format_time
from lattice.views.cluster import Lease
from lattice.views.meta import Written
from lattice_agent.attempts import Seen
from lattice_agent.cluster import reports
from lattice_agent.metrics import AgentMetrics

log = logging.getLogger(__name__)

LONGEST_RETRY = 1.0


class Heartbeat:
    """Renews one node's Lease, with the node's report as annotation.

    `count` numbers the heartbeats of this process, from 1; `acknowledged` is True after the first that the API server took.
    """

    def __init__(
        self,
        node: str,
        cluster: Cluster,
        clock: Clock,
        identity: reports.NodeIdentity,
        metrics: AgentMetrics,
        *,
        seconds: Callable[[], float],
    ) -> None:
        self.node = node
        self.count = 0
        self.acknowledged = False
        self.acknowledged_at = 0.0
        """When the API server took the last heartbeat, seconds since the epoch; 0: it took none."""
        self._cluster = cluster
        self._clock = clock
        self._identity = identity
        self._metrics = metrics
        self._seconds = seconds
        self._said = reports.ReportContent()
        self._failing = False
        self._version = ""
        """The Lease's resourceVersion after this process's last write; empty: unknown, or somebody else has written since."""

    def wants(self, said: reports.ReportContent) -> bool:
        """Tells whether a report must not wait for the next heartbeat: the scheduler waits for something that is new in it."""
        return reports.is_urgent(self._said, said)

    async def beat(self, seen: Seen, said: reports.ReportContent) -> float:
        """Renews the Lease with this report; returns the seconds until the next heartbeat, fewer after an error, which is logged."""
        self.count += 1
        before, self._said = self._said, said
        begun = self._clock.monotonic()
        try:
            await self._renew(reports.annotation(self._identity, self.count, seen, said))
        except LatticeError as error:
            self._said = before
            if not self._failing:
                event(log, "HeartbeatFailed", logging.WARNING, node=self.node, reason=error.reason, message=error.message)
            self._failing = True
            return min(LONGEST_RETRY, self._seconds())
        if self._failing:
            event(log, "HeartbeatBack", node=self.node)
        self._failing = False
        self.acknowledged = True
        took = self._clock.monotonic() - begun
        self._metrics.heartbeat_latency.observe(took)
        self.acknowledged_at = self._clock.now()
        self._metrics.last_heartbeat.set(self.acknowledged_at)
        return max(0.05, self._seconds() - took)

    async def _renew(self, text: str) -> None:
        """Writes the Lease with this report as its annotation, made anew where it is missing; raises errors of the API server."""
        seconds = max(1, round(3 * self._seconds()))
        body: dict[str, Any] = {
            "metadata": {"annotations": {ANNOTATION: text}, **UNMANAGED},
            "spec": {
                "holderIdentity": self._identity.instance,
                "leaseDurationSeconds": seconds,
                "renewTime": format_time(self._clock.now(), micro=True),
            },
        }
        if not await self._replace(body):
            await self._patch(body)

    async def _replace(self, body: dict[str, Any]) -> bool:
        """Replaces the Lease at the version that this process wrote last, which costs the API server less than a patch.

        Returns False where no version is known or somebody else has written: then it must be patched.
        """
        version, self._version = self._version, ""
        if not version:
            return False
        whole = {**body, "metadata": {**body["metadata"], "name": self.node, "resourceVersion": version}}
        try:
            written = await self._cluster.replace(LEASES, self.node, whole, NODE_LEASE_NAMESPACE, type=Written, metadata_only=True)
        except (Stale, NotFound):
            return False
        self._version = written.metadata.resource_version
        return True

    async def _patch(self, body: dict[str, Any]) -> None:
        """Patches the Lease whatever its version, or creates it where there is none; one that was created meanwhile is left to the next
        heartbeat.
        """
        try:
            written = await self._cluster.patch(LEASES, self.node, body, NODE_LEASE_NAMESPACE, type=Lease)
        except NotFound:
            body["metadata"]["name"] = self.node
            with contextlib.suppress(AlreadyExists):  # made in this moment; the next beat renews it
                await self._cluster.create(LEASES, body, NODE_LEASE_NAMESPACE, type=Lease)
        else:
            self._version = written.metadata.resource_version
