"""Writes Kubernetes Events: what happened to an object, for people; nothing reads them back as state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, LatticeError
from lattice.kube.cluster import Cluster
from lattice.kube.resources import EVENTS, Resource
from lattice.units import format_time
from lattice.views import Metadata

log = logging.getLogger(__name__)

NOTE_LIMIT = 1024


@dataclass(frozen=True)
class Announcer:
    """Writes Events in the name of one controller; an Event that cannot be written is logged and dropped."""

    cluster: Cluster
    clock: Clock
    identity: str
    controller: str = "lattice.dev/operator"

    async def announce(
        self, resource: Resource, metadata: Metadata, reason: str, note: str, *, action: str, warning: bool = False, name: str = "",
        namespace: str = "",
    ) -> None:  # fmt: skip
        """Writes an Event about an object, into its namespace; about a cluster object into `namespace`, or `default`. A note is cut at
        1,024 characters.

        With a `name` it is written once: where an Event of that name exists, nothing is. A failed write is logged, and raises nothing.
        """
        shown_in = metadata.namespace or namespace
        namespace = shown_in or "default"
        regarding = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": metadata.name,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        } | ({"namespace": shown_in} if shown_in else {})
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {**({"name": name} if name else {"generateName": f"{metadata.name[:200]}-"}), "namespace": namespace},
            "eventTime": format_time(self.clock.now(), micro=True),
            "reportingController": self.controller,
            "reportingInstance": self.identity[:128],
            "action": action,
            "reason": reason,
            "regarding": regarding,
            "note": note[:NOTE_LIMIT],
            "type": "Warning" if warning else "Normal",
        }
        try:
            await self.cluster.create(EVENTS, body, namespace)
        except AlreadyExists:
            return  # told before
        except LatticeError as error:
            event(log, "EventNotWritten", logging.WARNING, object=metadata.key, reason=error.reason, message=error.message)
