"""Reconciles VClusters: shows policy and state in force, and how many nodes are its own and Ready; delays deletion while in use."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from decimal import Decimal

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import VCLUSTERS
from lattice.lifecycle.conditions import TRUE, with_condition, without_conditions
from lattice.lifecycle.node import READY
from lattice.scheduling.conversion.facts import home_groups
from lattice.scheduling.conversion.policies import given_weights
from lattice.scheduling.model.policy import BACKFILL
from lattice.units import fold_nodes, format_time
from lattice.views import Condition, Node, VCluster
from lattice_controllers.operator import statuses
from lattice_controllers.operator.ledger import LedgerMirror
from lattice_controllers.operator.usage import Usage

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.5
HOME_CONFLICT = "HomeConflict"
WEIGHTS_CHANGED = "WeightsChanged"
"""The condition that the weights in force are not those written in the spec."""


def group_of(node: Node) -> str:
    """Returns the topology group of a node; the node's own name where it has none."""
    return node.spec.group or node.metadata.name


def at_home(vcluster: VCluster, nodes: Iterable[Node]) -> list[Node]:
    """Returns the nodes, of these, whose group the vcluster's selector names; none without a selector."""
    selector = vcluster.spec.nodes.selector
    return [node for node in nodes if selector is not None and group_of(node) in selector.group]


def own_nodes(vcluster: VCluster, others: Iterable[VCluster], nodes: Iterable[Node]) -> list[Node]:
    """Returns the nodes, of these, that a vcluster's work uses without borrowing: those at home in it; a group that several name is home to
    one.

    For a vcluster without home groups these are the nodes that are at home in no vcluster. `others` are all other vclusters.
    """
    homes = home_groups({other.metadata.name: other for other in (*others, vcluster)}.values())
    selector = vcluster.spec.nodes.selector
    mine = vcluster.metadata.name if selector is not None and selector.group else ""
    return [node for node in nodes if homes.get(group_of(node), "") == mine]


def shared_homes(vcluster: VCluster, others: Iterable[VCluster], nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Returns, by the name of another vcluster, the nodes that the selectors of both name; empty where this one has no selector."""
    if vcluster.spec.nodes.selector is None:
        return {}
    own = at_home(vcluster, nodes)
    shared = {
        other.metadata.name: [node.metadata.name for node in at_home(other, own)]
        for other in others
        if other.spec.nodes.selector is not None and other.metadata.name != vcluster.metadata.name
    }
    return {name: sorted(names) for name, names in shared.items() if names}


def weights_notice(vcluster: VCluster) -> tuple[str, str] | None:
    """Returns reason and sentence where the weights in force differ from the written ones; None where they are the same, or none are
    written.
    """
    spec = vcluster.spec
    if spec.weights is None:
        return None
    total = sum(given_weights(spec), Decimal(0))
    if not total:
        return "WeightsIgnored", "spec.weights are all 0: the balanced weights are in force; give at least one above 0"
    if total == 1:
        return None
    shown = f"{total.normalize():f}"
    return "WeightsNormalised", f"spec.weights sum to {shown}: each is divided by {shown}, so that they sum to 1"


class VClusters:
    """Reconciles one VCluster at a time, by name; `known` holds those that exist, as last read; `nodes` is a live view by name."""

    def __init__(self, cluster: Cluster, clock: Clock, ledger: LedgerMirror, usage: Usage, nodes: Mapping[str, Node]) -> None:
        self.known: dict[str, VCluster] = {}
        self.queue = KeyedQueue(self.reconcile, clock, workers=2, name="vclusters")
        self._cluster = cluster
        self._clock = clock
        self._ledger = ledger
        self._usage = usage
        self._nodes = nodes

    def nodes_changed(self) -> None:
        """Enqueues all vclusters, half a second later, to count their nodes again."""
        for name in self.known:
            self.queue.add(name, DEBOUNCE_SECONDS)

    async def reconcile(self, name: str) -> float | None:
        """Writes the status of one vcluster from its spec and nodes, and sets its finalizer; where its nodes changed or it is gone,
        enqueues all others.

        A deleted vcluster loses the finalizer once none of its work is left. Returns the seconds until the next check; None: it is gone.
        """
        before = self.known.get(name)
        try:
            vcluster = await self._cluster.get(VCLUSTERS, name, type=VCluster)
        except NotFound:
            self.known.pop(name, None)
            self._tell_others(name)
            return None
        self.known[name] = vcluster
        if before is None or before.spec.nodes != vcluster.spec.nodes:
            self._tell_others(name)
        if vcluster.metadata.deletion_timestamp:
            return await self._leave(vcluster)
        if statuses.IN_USE_FINALIZER not in vcluster.metadata.finalizers:
            finalizers = (*vcluster.metadata.finalizers, statuses.IN_USE_FINALIZER)
            await statuses.set_finalizers(self._cluster, VCLUSTERS, vcluster.metadata, finalizers)
            vcluster = self.known[name] = await self._cluster.get(VCLUSTERS, name, type=VCluster)
        await self._publish(vcluster)
        return statuses.RESYNC_SECONDS

    def _tell_others(self, name: str) -> None:
        """Enqueues all vclusters but this one, half a second later: homes that it shares or leaves may change them."""
        for other in self.known:
            if other != name:
                self.queue.add(other, DEBOUNCE_SECONDS)

    async def _publish(self, vcluster: VCluster) -> None:
        """Writes a vcluster's conditions (Ready, shared homes, changed weights, InUse) and counts of nodes, as far as they changed."""
        metadata, now = vcluster.metadata, format_time(self._clock.now())
        in_use = self._usage.open_of_vcluster(metadata.name) > 0
        conditions = statuses.ready(vcluster.status.conditions, metadata.generation, now)
        conditions = _with_notice(vcluster, self._with_conflict(vcluster, conditions, now), now)
        conditions = statuses.used(conditions, in_use, metadata.generation, now)
        await self._write(vcluster, conditions)

    def _with_conflict(self, vcluster: VCluster, conditions: tuple[Condition, ...], now: str) -> tuple[Condition, ...]:
        """Returns the conditions with HomeConflict where other vclusters name nodes of this one too, else without it."""
        shared = shared_homes(vcluster, self.known.values(), self._nodes.values())
        if not shared:
            return without_conditions(conditions, [HOME_CONFLICT])
        parts = [f"{fold_nodes(names)} ({len(names)} nodes) also in {other}" for other, names in sorted(shared.items())]
        message = "; ".join(parts) + ": give each group to one vcluster"
        return with_condition(conditions, HOME_CONFLICT, TRUE, "NodesShared", message, generation=vcluster.metadata.generation, now=now)

    async def _write(self, vcluster: VCluster, conditions: tuple[Condition, ...]) -> None:
        """Writes conditions, policy, state and the number of own and Ready nodes into a vcluster's status, as far as they changed."""
        home, before = own_nodes(vcluster, self.known.values(), self._nodes.values()), vcluster.status
        former = {
            "observedGeneration": before.observed_generation,
            "nodes": before.nodes,
            "ready": before.ready,
            "policy": before.policy,
            "state": before.state,
        }
        former = former if before.observed_generation else {}  # the first write says zero, too
        ready = sum(node.status.state == READY for node in home)
        latter = {
            "observedGeneration": vcluster.metadata.generation,
            "nodes": len(home),
            "ready": ready,
            "policy": vcluster.spec.policy or BACKFILL,
            "state": vcluster.spec.state,
        }
        await statuses.write(self._cluster, VCLUSTERS, vcluster.metadata, statuses.changes(before.conditions, conditions, former, latter))

    async def _leave(self, vcluster: VCluster) -> float | None:
        """Removes the finalizer of a deleted vcluster once none of its work is left, and shows until then what is.

        Returns the seconds until the next check; None: done.
        """
        metadata, name = vcluster.metadata, vcluster.metadata.name
        if statuses.IN_USE_FINALIZER not in metadata.finalizers:
            return None
        await self._ledger.read()
        pending, rows = self._usage.open_of_vcluster(name), await self._ledger.holders_of_vcluster(name)
        if pending or rows != 0:
            now = format_time(self._clock.now())
            message = statuses.use_sentence(pending, rows)
            conditions = statuses.waiting(vcluster.status.conditions, "DeletionWaits", message, metadata.generation, now)
            await self._write(vcluster, statuses.used(conditions, True, metadata.generation, now))
            return statuses.DELETION_AGAIN_SECONDS
        kept = tuple(entry for entry in metadata.finalizers if entry != statuses.IN_USE_FINALIZER)
        await statuses.set_finalizers(self._cluster, VCLUSTERS, metadata, kept)
        event(log, "VClusterGone", vcluster=name)
        return None


def _with_notice(vcluster: VCluster, conditions: tuple[Condition, ...], now: str) -> tuple[Condition, ...]:
    """Returns the conditions with WeightsChanged where the weights in force differ from the written ones, else without it."""
    notice = weights_notice(vcluster)
    if notice is None:
        return without_conditions(conditions, [WEIGHTS_CHANGED])
    return with_condition(conditions, WEIGHTS_CHANGED, TRUE, *notice, generation=vcluster.metadata.generation, now=now)
