"""Keeps the bindings that admit agents: an agent's user is a subject of one of 16 bindings, until its node is forgotten.

A user is added when its LatticeNode exists, whoever made that, and removed when the node's name is in the ConfigMap of forgotten nodes. A
LatticeNode that was merely deleted takes no right away: its living agent makes it again. Policies keep an agent from making the LatticeNode
of a forgotten name, so that one which exists again was made by an administrator.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from typing import Any, Final

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.node_certificates import AGENT
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import CLUSTER_ROLE_BINDINGS, CONFIG_MAPS, NODE_LEASE_NAMESPACE, NODES, ROLE_BINDINGS, Resource
from lattice.units import fold_nodes
from lattice.views import Node
from lattice_controllers.operator.access import OPERATOR_LABEL, RBAC

log = logging.getLogger(__name__)

SHARDS: Final = 16
"""The number of bindings over which users are spread: a change writes about 1,000 of 16,384 users, far below the largest object."""
PREFIX: Final = "lattice-agents-"
ROLE: Final = "lattice-agent"
FORGOTTEN, NAMESPACE = "lattice-forgotten-nodes", "lattice-system"
FORGET: Final = "lattice.dev/forget"
BINDINGS: Final = ((CLUSTER_ROLE_BINDINGS, "", "ClusterRole"), (ROLE_BINDINGS, NODE_LEASE_NAMESPACE, "Role"))
"""Resource, namespace and kind of role of the two bindings of a shard: one for Lattice's objects, one for heartbeats."""
SETTLE_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 60.0
"""Time within which a binding that somebody has changed is corrected."""


class Agents:
    """Reconciles the bindings of agents' users, shard by shard; `nodes` is a live view of the LatticeNodes by name."""

    def __init__(self, cluster: Cluster, clock: Clock, nodes: Mapping[str, Node]) -> None:
        self.queue = KeyedQueue(self.reconcile, clock, workers=4, name="agents")
        self.forgotten: Informer[dict[str, Any]] = Informer(
            cluster, CONFIG_MAPS, clock=clock, namespace=NAMESPACE, fields=f"metadata.name={FORGOTTEN}", on_change=self._on_forgotten
        )
        self._cluster = cluster
        self._nodes = nodes

    async def run(self) -> None:
        """Reconciles all shards once the forgotten names are listed, and then each that changes or is due, until cancelled.

        The LatticeNodes must have been listed before.
        """
        await self.forgotten.synced.wait()
        for shard in range(SHARDS):
            self.queue.add(str(shard))
        await self.queue.run()

    def came_or_went(self, node: str) -> None:
        """Enqueues, 0.1 s later, the shard of a node, by name, whose LatticeNode was made or deleted."""
        self.queue.add(str(shard_of(node)), SETTLE_SECONDS)

    def is_forgotten(self, node: str) -> bool:
        """Tells whether a node's name is in the ConfigMap of forgotten nodes."""
        return any(node in _names(found) for found in self.forgotten.objects.values())

    def _on_forgotten(self, change: Change[dict[str, Any]]) -> None:
        """Enqueues the shards of the names that came into, or went out of, the ConfigMap of forgotten nodes."""
        before, after = _names(change.old), _names(change.new)
        for name in before ^ after:
            self.queue.add(str(shard_of(name)))

    async def reconcile(self, shard: str) -> float | None:
        """Adds the users of one shard's LatticeNodes (its number, 0 to 15, as text) to both of its role bindings, and removes forgotten
        ones; those of nodes that were merely deleted stay.

        A forgotten node whose LatticeNode an administrator has made again is bound, and its name is removed from the ConfigMap. Returns
        the seconds until the next check.
        """
        remembered = frozenset[str]().union(*(_names(found) for found in self.forgotten.objects.values()))
        ours = {name for name in list(self._nodes) if str(shard_of(name)) == shard}
        back = {name for name in sorted(ours & remembered) if await self._is_back(name)}
        for resource, namespace, role in BINDINGS:
            await self._bind(resource, f"{PREFIX}{int(shard):02d}", namespace, role, ours, remembered - back)
        for name in sorted(back):
            await self._cluster.patch(CONFIG_MAPS, FORGOTTEN, {"data": {name: None}}, NAMESPACE)
            event(log, "NodeTakenBack", node=name)
        return LOOK_SECONDS

    async def _is_back(self, name: str) -> bool:
        """Tells whether a forgotten node's LatticeNode was made again: it exists, is not being deleted and does not carry the mark to be
        forgotten.

        Asks the server, since the cache may be late.
        """
        try:
            node = await self._cluster.get(NODES, name, type=Node)
        except NotFound:
            return False
        return FORGET not in node.metadata.annotations and not node.metadata.deletion_timestamp

    async def _bind(self, resource: Resource, name: str, namespace: str, role: str, nodes: set[str], out: frozenset[str]) -> None:
        """Makes the users of these nodes subjects of a role binding, and removes those of the nodes in `out`; others stay.

        Makes the binding where it is missing and needed, writes nothing where it is right.
        """
        try:
            standing = await self._cluster.get(resource, name, namespace)
        except NotFound:
            standing = None
        bound = frozenset(_bound(standing))
        wanted = (bound | nodes) - out
        if wanted == bound and (standing is not None or not wanted):
            return
        subjects = [{"apiGroup": RBAC, "kind": "User", "name": AGENT + node} for node in sorted(wanted)]
        if standing is None:
            reference = {"apiGroup": RBAC, "kind": role, "name": ROLE}
            metadata = {"name": name, "labels": OPERATOR_LABEL | {"app.kubernetes.io/part-of": "lattice"}}
            body = {"apiVersion": f"{RBAC}/v1", "kind": resource.kind, "metadata": metadata, "roleRef": reference, "subjects": subjects}
            await self._cluster.create(resource, body, namespace)
        else:
            patch = {"metadata": {"resourceVersion": standing["metadata"]["resourceVersion"]}, "subjects": subjects}
            await self._cluster.patch(resource, name, patch, namespace)
        added, removed = fold_nodes(sorted(wanted - bound)), fold_nodes(sorted(bound - wanted))
        event(log, "AgentsBound", binding=name, kind=resource.kind, added=added or None, removed=removed or None, users=len(wanted))


def shard_of(node: str) -> int:
    """Returns the number, 0 to 15, of the shard whose bindings hold a node's user."""
    return zlib.crc32(node.encode()) % SHARDS


def _bound(standing: Mapping[str, Any] | None) -> list[str]:
    """Returns the names of the nodes whose users are subjects of a role binding; empty where there is no binding (None)."""
    subjects = (standing or {}).get("subjects") or ()
    return [one["name"].removeprefix(AGENT) for one in subjects if one["kind"] == "User" and one["name"].startswith(AGENT)]


def _names(found: Mapping[str, Any] | None) -> frozenset[str]:
    """Returns the names in the ConfigMap of forgotten nodes; empty where there is no ConfigMap (None)."""
    return frozenset((found or {}).get("data") or ())
