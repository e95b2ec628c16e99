"""The quota trees of the running scheduler: read from the objects that declare them, put into the cluster state with their capacity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import ELASTIC_QUOTAS, KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS, Resource
from lattice.quota.declared import NAME_LABEL, Bindings
from lattice.quota.forest import DEFAULT_TREE, Forest
from lattice.quota.layout import Layout, Origin, capacities, layout, origin_of, text_of
from lattice.quota.publication import PUBLISHED
from lattice.quota.selection import Shares, share_out, traits_of
from lattice.scheduling.queries.quota_answers import LeftOut
from lattice.scheduling.queries.quota_view import Remarks
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.counted import CountedNodes
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota, Node
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, QuotaTreeOptions

log = logging.getLogger(__name__)

ABSENT_SECONDS: Final = 30.0
"""Time between two checks whether Koordinator's kinds, absent so far, have been installed."""
FOREIGN: Final[tuple[tuple[Resource, Any], ...]] = ((KOORDINATOR_QUOTAS, KoordinatorQuota), (KOORDINATOR_PROFILES, KoordinatorProfile))
_ALL_DEFAULT: Final = Shares({}, {}, ())


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The outcome of bringing the quota trees up to date before a cycle."""

    due: float | None
    """When time alone changes the trees next, seconds since the epoch; None: never."""
    rebound: bool
    """True where allocations may belong to other leaves now, or their trees divide other nodes."""


class Quotas:
    """The quota trees of one term, from ElasticQuotas and Koordinator's quotas and profiles; sets
    `cycle_due` when a cycle may find more.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, state: ClusterState, *, nodes: Mapping[str, Node], config: LastKnown[Config],
        cycle_due: asyncio.Event,
    ) -> None:  # fmt: skip
        self.layout = Layout()
        self.shares = _ALL_DEFAULT
        """Which tree divides which node."""
        self.ours: Informer[ElasticQuota] = Informer(cluster, ELASTIC_QUOTAS, type=ElasticQuota, clock=clock, on_change=self._on_change)
        self.working = False
        self._foreign: dict[str, Informer[Any]] = {}
        self._absent = dict(FOREIGN)
        self._cluster = cluster
        self._clock = clock
        self._state = state
        self._nodes = nodes
        self._config = config
        self._cycle_due = cycle_due
        self._counted = CountedNodes(state.node_cache)
        self._dirty = True
        self._masks: dict[str, int] = {}
        self._options: QuotaTreeOptions | None = None
        self._good = _DEFAULTS
        self._traits_news = -1

    # -- what informers tell ------------------------------------------------------------------------

    async def load(self) -> list[Informer[Any]]:
        """Finds out which of Koordinator's kinds the cluster has and lets be read; returns a new informer, not running, for each."""
        await asyncio.gather(*(self._find(resource, kind) for resource, kind in FOREIGN))
        return list(self._foreign.values())

    async def run(self) -> None:
        """Looks every 30 s for the Koordinator kinds that the cluster lacked so far, and follows each that has come, until cancelled.

        Ends at once where none is lacking. Where the API server fails, which is logged, the next look tells.
        """
        async with asyncio.TaskGroup() as group:
            while self._absent:
                await self._clock.sleep(ABSENT_SECONDS)
                for resource, kind in list(self._absent.items()):
                    try:
                        found = await self._find(resource, kind)
                    except LatticeError as error:
                        event(log, "QuotaKindUnknown", resource=resource.name, reason=error.reason, message=error.message)
                        continue
                    if found is not None:
                        group.create_task(found.run())

    async def _find(self, resource: Resource, kind: Any) -> Informer[Any] | None:
        """Returns a new informer, not running, of a kind; None where the cluster does not have it, or, which is logged, does not let it be
        read.

        Other errors of the API server are raised.
        """
        try:
            await self._cluster.list(resource)
        except NotFound:
            return None
        except Denied as error:
            event(log, "QuotaKindDenied", resource=resource.name, reason=error.reason, message=error.message)
            return None
        found: Informer[Any] = Informer(self._cluster, resource, type=kind, clock=self._clock, on_change=self._on_change)
        self._foreign[resource.name] = found
        del self._absent[resource]
        return found

    def _on_change(self, change: Change[Any]) -> None:
        """Notes that the trees must be built anew, unless only that has changed in the object which Lattice itself publishes in it."""
        if change.old is None or change.new is None or _declares(change.old) != _declares(change.new):
            self.changed()

    def changed(self) -> None:
        """Notes that the quota trees must be built anew, from the objects that declare groups, before the next cycle."""
        self._dirty = True
        if self.working:
            self._cycle_due.set()

    def node_changed(self, change: Change[Node]) -> None:
        """Has the nodes divided among the trees anew, before the next cycle, where a changed node may be selected by another tree now; sets
        `cycle_due` for that once `working`.
        """
        if self.layout.selections and (change.old is None or change.new is None or traits_of(change.old) != traits_of(change.new)):
            self._traits_news = -1
            if self.working:
                self._cycle_due.set()

    def started(self) -> None:
        """Sets `working`, from which on changes of the trees set `cycle_due`; called once the informers have listed everything."""
        self.working = True
        self._dirty = True

    # -- before a cycle -----------------------------------------------------------------------------

    def refresh_for_cycle(self, now: float) -> Refreshed:
        """Brings the trees in the cluster state, and their capacity, up to date with objects, options and nodes.

        Returns when time alone changes them next, and whether allocations may belong to other leaves now.
        """
        options, declared = self._config_options(), False
        if self._dirty or options != self._options:
            self._dirty, self._options = False, options
            declared = self._declare(options)
        quota_usage = self._state.quota_usage
        if quota_usage is None:
            return Refreshed(None, declared)
        moved = self._share_nodes()
        news = self._counted.look(self.shares.tree_of, now)
        if news.hardware:
            quota_usage.nodes_changed(news.hardware)
        if news.capacity or moved:
            self._give_capacity(quota_usage.forest)
            quota_usage.capacity_changed()
        return Refreshed(news.due, declared or moved)

    def _declare(self, options: QuotaTreeOptions) -> bool:
        """Puts the trees that the objects declare into the cluster state; returns whether there is, or was, any group."""
        before, state = self.layout, self._state
        self.layout = self._laid_out(options)
        if not self.layout.groups:
            state.plant(None)
        elif state.quota_usage is None:
            forest = Forest(self.layout.trees)
            self._traits_news = -1
            self._share_nodes()
            self._counted.look(self.shares.tree_of, self._clock.now())
            self._give_capacity(forest)
            state.plant(forest)
        else:
            state.quota_usage.forest.declare(self.layout.trees)
            self._traits_news = -1
            self._share_nodes()
            self._give_capacity(state.quota_usage.forest)
            state.quota_usage.changed()
        if before.groups or self.layout.groups:
            event(log, "Quota trees", groups=len(self.layout.groups), trees=len(self.layout.trees), left_out=len(self.layout.faults))
        return bool(before.groups or self.layout.groups)

    def _laid_out(self, options: QuotaTreeOptions) -> Layout:
        """Returns the layout that the objects declare, with options that read noted as the last good ones; where the options do not read,
        the layout by the last good ones.
        """
        given = self.ours.objects.values(), self.quotas().values(), self._profiles().values()
        try:
            found = layout(*given, options)
        except Rejected as error:
            event(log, "QuotaOptionsRefused", logging.WARNING, reason=error.reason, message=error.message)
            return layout(*given, self._good)
        self._good = options
        return found

    def _share_nodes(self) -> bool:
        """Divides the nodes among the trees that select some; returns whether any node changed its tree.

        Does nothing where no node has changed since the last time; without such trees all nodes are the default tree's.
        """
        node_cache = self._state.node_cache
        if not self.layout.selections:
            moved, self.shares = bool(self._masks), _ALL_DEFAULT
            self._masks = {}
            return moved
        if self._traits_news == node_cache.news:
            return False
        self._traits_news = node_cache.news
        found = share_out(self.layout.selections, (traits_of(node) for node in self._nodes.values()))
        masks = {name: 0 for name, _ in self.layout.selections}
        for name, tree in found.tree_of.items():
            index = node_cache.by_name.get(name)
            if tree and index is not None:
                masks[tree] |= 1 << index
        moved = masks != self._masks or found.tree_of != self.shares.tree_of
        if moved:
            self.shares, self._masks = found, masks
        return moved

    def _give_capacity(self, forest: Forest) -> None:
        """Sets the capacity of each tree of the forest to the sum of its counted nodes; trees that the forest lacks are passed over."""
        known = set(forest.trees())
        for tree, amounts in capacities(self.layout, self._counted.sums).items():
            if tree in known:
                forest.capacity(tree, amounts)

    def _config_options(self) -> QuotaTreeOptions:
        """Returns the options of the quota tree in the LatticeConfig; the defaults without one."""
        config = self._config.object
        return config.spec.quota_tree if config is not None else _DEFAULTS

    # -- what others ask ----------------------------------------------------------------------------

    @property
    def bindings(self) -> Bindings:
        """Returns the rules that give each allocation its leaf of the quota trees."""
        return self.layout.bindings

    def leaf(self, allocation: Allocation) -> str:
        """Returns the name of the leaf that an allocation belongs to; empty where no group is declared."""
        if not self.layout.groups:
            return ""
        spec, meta = allocation.spec, allocation.metadata
        return self.layout.bindings.leaf(spec.quota, meta.labels.get(NAME_LABEL, ""), spec.tenant, spec.vcluster, meta.namespace)

    def within(self, leaf: str) -> int | None:
        """Returns the nodes that the tree of a leaf divides, as a bit set of node indices; None: any node.

        None for the default tree, and where no tree selects nodes.
        """
        quota_usage = self._state.quota_usage
        if quota_usage is None or not self._masks:
            return None
        tree = quota_usage.forest.tree_of(leaf)
        return self._masks.get(tree) if tree != DEFAULT_TREE else None

    def quotas(self) -> Mapping[str, KoordinatorQuota]:
        """Returns Koordinator's quotas by namespace/name; empty where the cluster has no such kind."""
        informer = self._foreign.get(KOORDINATOR_QUOTAS.name)
        return informer.objects if informer is not None else {}

    def over_since(self) -> dict[str, str]:
        """Returns, by name of each group whose ElasticQuota shows that it uses more than it may, since when it does (RFC 3339)."""
        return {name: since for name, quota in self.ours.objects.items() if (since := quota.status.over_since) is not None}

    def seen(self, written: ElasticQuota) -> None:
        """Keeps an ElasticQuota as a write has returned it, unless the informer has a newer version, or does not have it any more."""
        known = self.ours.objects.get(written.metadata.name)
        if known is not None and int(known.metadata.resource_version) < int(written.metadata.resource_version):
            self.ours.objects[written.metadata.name] = written

    def faults(self) -> Iterator[tuple[Origin, tuple[str, str]]]:
        """Yields (object, (reason, sentence)) for each fault of an object that declares groups; the later of two for one object is the
        graver.

        First breached rules of the tree, then objects that were left out of it, then trees that select no node or another tree's nodes.
        """
        for name, breach in self.layout.breaches.items():
            yield self._origin(name), breach
        yield from self.layout.faults.items()
        for name in self.shares.empty:
            yield self._origin(name), ("NodesMissing", "its tree selects no node: it divides nothing until one fits spec.tree.nodes")
        for name, lost in self.shares.contested.items():
            others = ", ".join(f'{count} by "{other}"' for other, count in sorted(lost.items()))
            yield self._origin(name), ("NodesShared", f"nodes that its tree selects are divided by trees declared earlier: {others}")

    def remarks(self) -> Remarks:
        """Returns the faults for readers of the quota trees: those of groups by name, and the objects that were left out."""
        faults, left_out = dict(self.faults()), self.layout.faults
        named = {name: faults[origin] for name in self.layout.groups if (origin := self._origin(name)) in faults}
        lost = tuple(
            LeftOut(object=text_of(origin), reason=reason, message=message) for origin, (reason, message) in sorted(left_out.items())
        )
        return Remarks(named, lost)

    def _origin(self, name: str) -> Origin:
        """Returns the object that declares a group, by the group's name; an origin with that name alone where none declares it."""
        declared = self.layout.groups.get(name)
        return origin_of(declared.source) if declared is not None else ("", "", name)

    def _profiles(self) -> Mapping[str, KoordinatorProfile]:
        """Returns Koordinator's profiles by namespace/name; empty where the cluster has no such kind."""
        informer = self._foreign.get(KOORDINATOR_PROFILES.name)
        return informer.objects if informer is not None else {}


def _declares(view: Any) -> tuple[object, ...]:
    """Returns the parts of an object that declare a group: everything except the annotations that Lattice publishes in it."""
    meta = view.metadata
    notes = {name: text for name, text in meta.annotations.items() if name not in PUBLISHED}
    return meta.uid, view.spec, meta.labels, notes


_DEFAULTS: Final = QuotaTreeOptions()
