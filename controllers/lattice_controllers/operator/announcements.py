"""Kubernetes Events: what happened to an object, told to people; never a part of the state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError
from lattice.kube.cluster import Cluster
from lattice.kube.resources import EVENTS, Resource
from lattice.units import format_time
from lattice.views import Metadata

log = logging.getLogger(__name__)

CONTROLLER = "lattice.dev/operator"
NOTE_LIMIT = 1024


@dataclass(frozen=True)
class Announcer:
    """Writes Events; one that cannot be written is logged and dropped."""

    cluster: Cluster
    clock: Clock
    identity: str

    async def announce(self, resource: Resource, metadata: Metadata, reason: str, note: str, *, action: str, warning: bool = False) -> None:
        """Tell that something happened to an object; events of cluster objects stand in `default`."""
        namespace = metadata.namespace or "default"
        regarding = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": metadata.name,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        } | ({"namespace": metadata.namespace} if metadata.namespace else {})
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"generateName": f"{metadata.name[:200]}-", "namespace": namespace},
            "eventTime": format_time(self.clock.now(), micro=True),
            "reportingController": CONTROLLER,
            "reportingInstance": self.identity[:128],
            "action": action,
            "reason": reason,
            "regarding": regarding,
            "note": note[:NOTE_LIMIT],
            "type": "Warning" if warning else "Normal",
        }
        try:
            await self.cluster.create(EVENTS, body, namespace)
        except LatticeError as error:
            event(log, "EventNotWritten", logging.WARNING, object=metadata.key, reason=error.reason, message=error.message)
