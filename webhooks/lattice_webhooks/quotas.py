"""Gathers facts about quota trees: from caches for submitted work, fresh from the server for a change of a tree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lattice.admission import Request
from lattice.admission.facts import QuotaFacts
from lattice.admission.leaves import leaf_of, named_leaf
from lattice.admission.quotas import PROFILE, QUOTA_KINDS, read_quota
from lattice.admission.submission import part, read_submission
from lattice.admission.verdicts import Refused
from lattice.errors import NotFound, Rejected
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS, ELASTIC_QUOTAS, KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS, Resource
from lattice.lifecycle.settle import is_final
from lattice.quota.declared import (
    NAME_LABEL,
    Declared,
)
from lattice.quota.selection import traits_of
from lattice.scheduling.conversion.candidates import need_of
from lattice.scheduling.conversion.facts import facts_of
from lattice.scheduling.model.hardware import Hardware
from lattice.scheduling.state.node_amounts import node_amounts
from lattice.units import parse_node_count
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota, Metadata, Node, View
from lattice.views.allocation import AllocationStatus, Resources, Tasks
from lattice_webhooks.groups import Declarations, GroupReader, Objects, Published, laid_out

JUDGED = frozenset((*QUOTA_KINDS, PROFILE))


class WorkSpec(View, frozen=True):
    """The fields of an Allocation that decide its leaf."""

    tenant: str = ""
    vcluster: str = ""
    quota: str = ""


class CountedWork(View, frozen=True):
    """The fields of an Allocation that are needed to count it for its leaf."""

    metadata: Metadata
    spec: WorkSpec = WorkSpec()
    status: AllocationStatus = AllocationStatus()


@dataclass(frozen=True)
class QuotaCaches:
    """The caches of objects that declare groups; Koordinator's kinds may be absent."""

    ours: Informer[ElasticQuota]
    koordinators: Informer[KoordinatorQuota]
    profiles: Informer[KoordinatorProfile]
    declarations: Declarations

    @classmethod
    def of_cluster(cls, cluster: Cluster, clock: Clock) -> QuotaCaches:
        """Returns the caches of a cluster, not running."""
        declarations = Declarations()
        heard = declarations.on_change
        return cls(
            ours=Informer(cluster, ELASTIC_QUOTAS, type=ElasticQuota, clock=clock, on_change=heard),
            koordinators=Informer(cluster, KOORDINATOR_QUOTAS, type=KoordinatorQuota, clock=clock, on_change=heard),
            profiles=Informer(cluster, KOORDINATOR_PROFILES, type=KoordinatorProfile, clock=clock, on_change=heard),
            declarations=declarations,
        )


class Inventory:
    """Counts the nodes of each class of hardware, as nodes appear, change and vanish."""

    def __init__(self) -> None:
        self.classes: dict[Hardware, int] = {}

    def on_node(self, change: Change[Node]) -> None:
        """Counts a node that appeared, changed or vanished in `classes`."""
        for node, more in ((change.old, -1), (change.new, 1)):
            if node is None:
                continue
            kind = _hardware(node)
            count = self.classes.get(kind, 0) + more
            if count:
                self.classes[kind] = count
            else:
                del self.classes[kind]

    def capacity(self) -> dict[str, int] | None:
        """Returns the sum of all nodes' amounts by resource; None: there are no nodes."""
        total: dict[str, int] = {}
        for kind, count in self.classes.items():
            for resource, amount in _amounts(kind).items():
                total[resource] = total.get(resource, 0) + amount * count
        return total or None

    def charge(self, resources: Resources, tasks: Tasks) -> dict[str, int] | None:
        """Returns the least that work can ask for, by resource: its least number of nodes of the plainest class that fits.

        None: no class fits, or the request does not read.
        """
        try:
            need, (least, _) = need_of(tasks.raise_resources(resources), {}), parse_node_count(resources.nodes)
        except Rejected:
            return None  # another check says so
        fitting = [kind for kind in self.classes if need.admits(kind)]
        if not fitting:
            return None
        return {resource: amount * least for resource, amount in _amounts(min(fitting, key=lambda kind: kind.worth)).items()}


class QuotaGatherer:
    """Gathers the facts about quota trees that a review needs; it only reads."""

    def __init__(self, cluster: Cluster, caches: QuotaCaches, nodes: Mapping[str, Node], inventory: Inventory) -> None:
        self._cluster = cluster
        self._caches = caches
        self._nodes = nodes
        self._inventory = inventory
        self._reader = GroupReader()
        self._turn = asyncio.Lock()
        self._begun = 0
        self._latest: tuple[int, QuotaFacts] | None = None
        """The newest reading from the server, and its number; None: none yet."""
        self._known: tuple[int, QuotaFacts] | None = None
        """The caches laid out, and the version of declarations that they show; None: not laid out yet."""

    async def of_tree(self, request: Request) -> QuotaFacts:
        """Returns the facts by which a group or profile is judged: all others as the server has them now, not as the caches do.

        Nodes are among them only where the object chooses some, work only where the verdict depends on it.
        """
        quotas = await self._fresh()
        has_nodes = request.kind == PROFILE or "tree" in part(request.obj, "spec")
        nodes = tuple(traits_of(node) for node in self._nodes.values()) if has_nodes else None
        facts = replace(quotas, capacity=self._inventory.capacity(), nodes=nodes)
        return replace(facts, work=await self._work(laid_out(quotas))) if _needs_work(request) else facts

    async def of_submission(self, request: Request) -> QuotaFacts | None:
        """Returns the facts by which the leaf of an Allocation is judged, from caches; None where the Allocation does not parse.

        Where it names a leaf that the caches do not know, the groups are read from the server.
        """
        asked = read_submission(request.obj)
        if isinstance(asked, Refused):
            return None
        quotas = self._cached()
        name, _ = named_leaf(asked)
        if name and quotas.bindings.named(name) is None:
            quotas = laid_out(await self._fresh())  # it may be new
        leaf = quotas.groups.get(leaf_of(asked, quotas))
        charge = self._inventory.charge(asked.spec.resources, asked.spec.tasks) if leaf is not None else None
        return replace(quotas, charge=charge)

    def _cached(self) -> QuotaFacts:
        """Returns the quota trees from the caches, laid out again after a declaration changed, with the amounts published last."""
        caches, version = self._caches, self._caches.declarations.version
        if self._known is None or self._known[0] != version:
            theirs, profiles = list(caches.koordinators.objects.values()), list(caches.profiles.objects.values())
            facts = self._reader.declared(Objects(list(caches.ours.objects.values()), theirs, profiles))
            self._known = (version, laid_out(facts))
        objects = caches.ours.objects, {each.metadata.name: each for each in caches.koordinators.objects.values()}
        return replace(self._known[1], used=Published(*objects, "used"), requested=Published(*objects, "childRequest"))

    async def _fresh(self) -> QuotaFacts:
        """Returns the groups from a reading of the server that began after this call; callers during a reading share the next one."""
        begun = self._begun
        async with self._turn:
            if self._latest is None or self._latest[0] <= begun:
                self._begun += 1
                number = self._begun
                ours, theirs, profiles = await asyncio.gather(
                    self._list(ELASTIC_QUOTAS, ElasticQuota),
                    self._list(KOORDINATOR_QUOTAS, KoordinatorQuota),
                    self._list(KOORDINATOR_PROFILES, KoordinatorProfile),
                )
                self._reader.keep_only(frozenset(each.metadata.uid for each in (*ours, *theirs, *profiles)))
                self._latest = (number, self._reader.declared(Objects(ours, theirs, profiles)))
            return self._latest[1]

    async def _list(self, resource: Resource, type_: type[Any]) -> list[Any]:
        """Returns all objects of a kind; none where the kind is not served here."""
        try:
            return list((await self._cluster.list(resource, type=type_)).items)
        except NotFound:
            return []  # the kind is not served here

    async def _work(self, quotas: QuotaFacts) -> dict[str, int]:
        """Returns how many allocations that have not ended belong to each leaf, by its name."""
        counts: dict[str, int] = {}
        for work in (await self._cluster.list(ALLOCATIONS, type=CountedWork)).items:
            if not is_final(work.status):
                spec, metadata = work.spec, work.metadata
                label = metadata.labels.get(NAME_LABEL, "")
                leaf = quotas.bindings.leaf(spec.quota, label, spec.tenant, spec.vcluster, metadata.namespace)
                counts[leaf] = counts.get(leaf, 0) + 1
        return counts


def _needs_work(request: Request) -> bool:
    """Tells whether the verdict depends on work in the group: it is deleted, moved, or becomes another kind of group."""
    if request.kind not in QUOTA_KINDS:
        return False
    if request.operation == "DELETE":
        return True
    before, after = read_quota(request.kind, request.old), read_quota(request.kind, request.obj)
    if request.operation == "CREATE" or not isinstance(before, Declared) or not isinstance(after, Declared):
        return False
    return (before.parent, before.is_parent, before.tree is None) != (after.parent, after.is_parent, after.tree is None)


def _amounts(kind: Hardware) -> Mapping[str, int]:
    """Returns the amounts of resources that a node of this hardware has."""
    return node_amounts(kind.cpus, kind.memory, kind.gpus, kind.gpu_type)


def _hardware(node: Node) -> Hardware:
    """Returns a node's hardware."""
    had = facts_of(node, 0, usable=True, state="", homes={})
    return Hardware(
        had.cpus,
        had.memory,
        had.gpus,
        had.features,
        had.hollow,
        had.cxl_memory,
        had.gpu_type,
        had.gpu_memory,
        had.unified,
        had.watts,
        had.scratch,
    )
