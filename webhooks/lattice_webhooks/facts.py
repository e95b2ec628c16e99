"""Gathers the facts of a review from caches; the API server is asked only for what the caches cannot know."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lattice.admission import Facts, Request, wanted_rights
from lattice.admission.facts import Occupied, Own, Pending, QuotaFacts, Waits
from lattice.admission.leaves import named_leaf
from lattice.admission.quotas import KOORDINATORS, QUOTA_KINDS, means_the_same
from lattice.admission.submission import read_submission
from lattice.admission.tenants import homes
from lattice.admission.verdicts import Refused
from lattice.errors import NotFound, Rejected
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import (
    ALLOCATIONS,
    CONFIGS,
    ELASTIC_QUOTAS,
    NAMESPACES,
    NODES,
    RESERVATIONS,
    SUBJECT_ACCESS_REVIEWS,
    TENANTS,
    VCLUSTERS,
    Resource,
)
from lattice.lifecycle.grace import grace_seconds
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import PENDING, RUNNING, STAGING
from lattice.units import expand_nodes, parse_duration, parse_time
from lattice.views import Allocation, Config, Metadata, Node, Reservation, Tenant, VCluster, View
from lattice.views.cluster import SubmissionOptions, UserQuota
from lattice.views.sharing import SharedParts
from lattice_webhooks.pending import WAITING, PendingCounts
from lattice_webhooks.predecessors import PredecessorSearch
from lattice_webhooks.quotas import JUDGED, Inventory, QuotaCaches, QuotaGatherer
from lattice_webhooks.reviews import Authenticated

TENANT_LABEL = "lattice.dev/tenant"
MOST_NAMED = 16
"""So many vclusters, and reservations, that a DAG names are looked for on the server where the caches lack them."""


class Named(View, frozen=True):
    """An object of which only the metadata is read."""

    metadata: Metadata


@dataclass(frozen=True)
class Caches:
    """All caches of the webhook, from which the facts of a review come."""

    tenants: Informer[Tenant]
    vclusters: Informer[VCluster]
    namespaces: Informer[Named]
    nodes: Informer[Node]
    reservations: Informer[Reservation]
    inventory: Inventory
    quotas: QuotaCaches
    configs: Informer[Config]
    config: LastKnown[Config]
    pending: PendingCounts

    @classmethod
    def of_cluster(cls, cluster: Cluster, clock: Clock) -> Caches:
        """Returns the caches of a cluster, not running."""
        inventory, config = Inventory(), LastKnown[Config]("lattice")
        return cls(
            tenants=Informer(cluster, TENANTS, type=Tenant, clock=clock),
            vclusters=Informer(cluster, VCLUSTERS, type=VCluster, clock=clock),
            namespaces=Informer(cluster, NAMESPACES, type=Named, clock=clock),
            nodes=Informer(cluster, NODES, type=Node, clock=clock, on_change=inventory.on_node, freeze=True, share=SharedParts().node),
            reservations=Informer(cluster, RESERVATIONS, type=Reservation, clock=clock),
            inventory=inventory,
            quotas=QuotaCaches.of_cluster(cluster, clock),
            configs=Informer(cluster, CONFIGS, type=Config, clock=clock, on_change=config.heard),
            config=config,
            pending=PendingCounts(cluster, clock),
        )

    def all(self) -> tuple[Informer[Any], ...]:
        """Returns the caches that must have been listed before anything is answered; Koordinator's kinds, which may be absent, not."""
        return (self.tenants, self.vclusters, self.namespaces, self.nodes, self.reservations, self.quotas.ours, self.configs)

    def unsynced(self) -> list[str]:
        """Returns the plurals of resources that have not been listed yet."""
        return [cache.resource.plural for cache in self.all() if not cache.synced.is_set()]

    async def synced(self) -> None:
        """Waits until every cache of `all` has been listed once."""
        for cache in self.all():
            await cache.synced.wait()

    async def run(self) -> None:
        """Follows all resources, and counts pending work, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pending.run())
            for cache in (*self.all(), self.quotas.koordinators, self.quotas.profiles):
                group.create_task(cache.run())


class Gatherer:
    """Gathers the facts of one review for `lattice.admission`; it only reads."""

    def __init__(self, cluster: Cluster, clock: Clock, caches: Caches) -> None:
        self._cluster = cluster
        self._clock = clock
        self._caches = caches
        self._quotas = QuotaGatherer(cluster, caches.quotas, caches.nodes.objects, caches.inventory)
        self._predecessors = PredecessorSearch(cluster)

    async def defaults(self, request: Request, identity: Authenticated) -> Facts:
        """Returns the facts that `lattice.admission.fill` reads to fill in defaults; the API server is asked for unknown names.

        Of a quota or profile these are the requester, and for a new quota of Koordinator's the trees as well.
        """
        if request.kind in JUDGED:
            creates = request.kind == KOORDINATORS and request.operation == "CREATE"
            return Facts(identity.requester, quotas=await self._quotas.of_tree(request) if creates else None)
        return await self._known(request, identity)

    async def checks(self, request: Request, identity: Authenticated) -> Facts:
        """Returns the facts that `lattice.admission.judge` reads to judge the object.

        The requester alone where an update leaves the spec as it was; for a deletion how many allocations name the object. The API server
        is asked for rights, counts and new names; its errors are raised.
        """
        if request.kind in JUDGED:
            return await self._of_quota(request, identity)
        if request.operation == "UPDATE" and request.obj.get("spec") == request.old.get("spec"):
            return Facts(identity.requester)
        if request.operation == "DELETE":
            return Facts(identity.requester, holders=await self._holders(request))
        rights = await self._rights(request, identity)
        known = await self._known(request, identity, rights)
        if request.kind == "DAG":
            config = self._caches.config.object
            most = config.spec.scheduling.max_dag_size if config is not None else None
            return replace(known, pending=self._pending(request, known), max_dag_size=most)
        if request.kind == "Allocation" and request.operation == "CREATE":
            quotas = await self._of_submission(request, identity)
            known = replace(known, predecessors=await self._predecessors.predecessors_of(request, known.namespace_tenant))
            waits, own = await self._waits(request, known), await self._own(request, known)
            return replace(known, waits=waits, own=own, pending=self._pending(request, known), quotas=quotas)
        return replace(known, occupied=await self._occupied(request)) if request.kind == "Reservation" else known

    async def _known(self, request: Request, identity: Authenticated, rights: frozenset[str] | None = None) -> Facts:
        """Returns the facts that caches know; for an Allocation, the tenant, vcluster and Reservation that it names are read from the
        server where the caches lack them.

        `rights`: the requester's; None: not asked for.
        """
        namespaces = {name: entry.metadata.labels.get(TENANT_LABEL, "") for name, entry in self._caches.namespaces.objects.items()}
        home = await self._home(request.namespace) if request.kind in ("Allocation", "DAG") else None
        spec = request.obj.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        tenants: Mapping[str, Tenant] = self._caches.tenants.objects
        vclusters: Mapping[str, VCluster] = self._caches.vclusters.objects
        reservations: Mapping[str, Reservation] = self._caches.reservations.objects
        if request.kind == "Allocation":
            tenants = await self._tenants(str(spec.get("tenant") or home or ""))
            vclusters = await self._vclusters(str(spec.get("vcluster") or ""))
            reservations = await self._reservations(str(spec.get("reservation") or ""))
        elif request.kind == "DAG":
            tenants = await self._tenants(str(spec.get("tenant") or home or ""))
            for name in named_by_members(spec, "vcluster"):
                vclusters = {**vclusters, **await self._vclusters(name)}
            for name in named_by_members(spec, "reservation"):
                reservations = {**reservations, **await self._reservations(name)}
        return Facts(
            requester=identity.requester,
            now=self._clock.now(),
            namespace_tenant=home,
            namespaces=namespaces,
            tenants=tenants,
            vclusters=vclusters,
            nodes=len(self._caches.nodes.objects),
            rights=rights,
            reservations=reservations,
            node_names=frozenset(self._caches.nodes.objects) if request.kind == "Reservation" else None,
            groups=self._groups() if request.kind == "VCluster" else None,
        )

    def _groups(self) -> Counter[str]:
        """Returns how many nodes each topology group has, by group; a node without a group is one of its own, by its name."""
        return Counter(node.spec.group or name for name, node in self._caches.nodes.objects.items())

    async def _home(self, namespace: str) -> str:
        """Returns the tenant to which a namespace belongs; empty: to none.

        The API server is asked where the cache names no tenant, since the namespace may be new.
        """
        cached = self._caches.namespaces.objects.get(namespace)
        if cached is not None and cached.metadata.labels.get(TENANT_LABEL):
            return cached.metadata.labels[TENANT_LABEL]
        try:
            entry = await self._cluster.get(NAMESPACES, namespace, type=Named)
        except NotFound:
            return ""
        return entry.metadata.labels.get(TENANT_LABEL, "")

    async def _tenants(self, named: str) -> Mapping[str, Tenant]:
        """Returns the tenants by name, with the named one read from the server where the cache lacks it and it exists."""
        known = self._caches.tenants.objects
        if not named or named in known:
            return known
        try:
            return {**known, named: await self._cluster.get(TENANTS, named, type=Tenant)}
        except NotFound:
            return known

    async def _vclusters(self, named: str) -> Mapping[str, VCluster]:
        """Returns the vclusters by name, with the named one read from the server where the cache lacks it and it exists."""
        known = self._caches.vclusters.objects
        if not named or named in known:
            return known
        try:
            return {**known, named: await self._cluster.get(VCLUSTERS, named, type=VCluster)}
        except NotFound:
            return known

    async def _reservations(self, named: str) -> Mapping[str, Reservation]:
        """Returns the Reservations by name, with the named one read from the server where the cache lacks it and it exists."""
        known = self._caches.reservations.objects
        if not named or named in known:
            return known
        try:
            return {**known, named: await self._cluster.get(RESERVATIONS, named, type=Reservation)}
        except NotFound:
            return known

    async def _occupied(self, request: Request) -> tuple[Occupied, ...]:
        """Returns the work that holds nodes now, as listed from the server, for a new Reservation; empty for other operations."""
        if request.operation != "CREATE":
            return ()
        found: list[Occupied] = []
        for phase in (STAGING, RUNNING):
            listing = await self._cluster.list(ALLOCATIONS, type=Allocation, fields=f"status.phase={phase}")
            found += [occupied(entry, self._clock.now()) for entry in listing.items if entry.status.nodes]
        return tuple(found)

    def _pending(self, request: Request, known: Facts) -> Pending | None:
        """Returns how much work of the tenant and user waits, by the last count; None: the tenant is unknown, or not counted yet."""
        spec = request.obj.get("spec") or {}
        tenant, config = (known.tenants or {}).get(str(spec.get("tenant") or "")), self._caches.config.object
        options = config.spec.submission if config is not None else SubmissionOptions()
        return self._caches.pending.count_of(tenant, str(spec.get("user") or ""), options) if tenant is not None else None

    async def _waits(self, request: Request, known: Facts) -> Waits | None:
        """Returns how many allocations wait in the vcluster, of the user, of the tenant and of all; None: the vcluster is unknown.

        Each is listed from the server only where the vcluster sets that limit, and else None.
        """
        spec = request.obj.get("spec") or {}
        vcluster = (known.vclusters or {}).get(str(spec.get("vcluster") or ""))
        if vcluster is None:
            return None
        limits, here = vcluster.spec.limits, f"spec.vcluster={vcluster.metadata.name}"
        user = None if limits.max_pending_per_user is None else f",spec.user={spec.get('user', '')}"
        tenant = None if limits.max_pending_per_tenant is None else f",spec.tenant={spec.get('tenant', '')}"
        everybody = None if limits.max_pending is None else ""
        return Waits(*[None if whose is None else await self._waiting(here + whose) for whose in (user, tenant, everybody)])

    async def _waiting(self, fields: str) -> int:
        """Returns how many allocations that match the field selector wait."""
        listing = await self._cluster.list(ALLOCATIONS, type=Allocation, fields=fields + WAITING)
        return sum(entry.status.phase in ("", PENDING) for entry in listing.items)

    async def _own(self, request: Request, known: Facts) -> Own | None:
        """Returns the user's nodes, running and waiting allocations in the tenant, listed from the server.

        None where the tenant does not limit its users.
        """
        spec = request.obj.get("spec") or {}
        tenant = (known.tenants or {}).get(str(spec.get("tenant") or ""))
        if tenant is None or tenant.spec.quota.per_user == UserQuota():
            return None
        fields = f"spec.tenant={tenant.metadata.name},spec.user={spec.get('user', '')}"
        listed = [await self._cluster.list(ALLOCATIONS, home, type=Allocation, fields=fields) for home in homes(tenant)]
        theirs = [entry.status for listing in listed for entry in listing.items]
        holding = [status for status in theirs if status.nodes and not is_final(status)]
        waiting = sum(status.phase in ("", PENDING) for status in theirs)
        return Own(sum(status.node_count for status in holding), len(holding), waiting)

    async def _of_quota(self, request: Request, identity: Authenticated) -> Facts:
        """Returns the facts by which a changed quota or profile is judged.

        The requester alone where the change means nothing to a quota tree.
        """
        if request.operation == "UPDATE" and request.kind in QUOTA_KINDS and means_the_same(request.kind, request.old, request.obj):
            return Facts(identity.requester)
        tenants, vclusters = self._caches.tenants.objects, self._caches.vclusters.objects
        return Facts(identity.requester, tenants=tenants, vclusters=vclusters, quotas=await self._quotas.of_tree(request))

    async def _of_submission(self, request: Request, identity: Authenticated) -> QuotaFacts | None:
        """Returns the quota trees for a new Allocation; None where it does not parse.

        Where it names a leaf that is not its default one, the server is asked whether the requester may use that leaf.
        """
        quotas = await self._quotas.of_submission(request)
        asked = read_submission(request.obj)
        if quotas is None or isinstance(asked, Refused):
            return None
        name, _ = named_leaf(asked)
        leaf = quotas.bindings.named(name) if name else None
        if leaf is None or leaf == quotas.bindings.leaf("", "", asked.spec.tenant, asked.spec.vcluster, asked.namespace):
            return quotas
        return replace(quotas, may_use=await self._allowed(identity, ELASTIC_QUOTAS, "use", leaf))

    async def _rights(self, request: Request, identity: Authenticated) -> frozenset[str]:
        """Returns those of the verbs that a request can need which the server says its requester may use on the tenant."""
        tenant, verbs = wanted_rights(request, identity.user)
        return frozenset([verb for verb in sorted(verbs) if await self._may(identity, verb, tenant)])

    async def _may(self, identity: Authenticated, verb: str, tenant: str) -> bool:
        """Tells whether the server allows a requester this verb on a tenant."""
        return await self._allowed(identity, TENANTS, verb, tenant)

    async def _allowed(self, identity: Authenticated, resource: Resource, verb: str, name: str) -> bool:
        """Tells whether the server allows a requester this verb on an object of a kind, by a SubjectAccessReview."""
        review = {
            "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {
                "user": identity.user,
                "uid": identity.uid,
                "groups": list(identity.groups),
                "extra": identity.extra,
                "resourceAttributes": {"group": resource.group, "resource": resource.plural, "name": name, "verb": verb},
            },
        }
        answer = await self._cluster.create(SUBJECT_ACCESS_REVIEWS, review)
        status = answer.get("status")
        return isinstance(status, dict) and bool(status.get("allowed"))

    async def _holders(self, request: Request) -> int | None:
        """Returns how many allocations that have not ended name the Tenant or VCluster to be deleted; None for other kinds.

        They are listed from the API server.
        """
        field = {"Tenant": "spec.tenant", "VCluster": "spec.vcluster"}.get(request.kind)
        name = request.old.get("metadata", {}).get("name", "")
        if field is None or not name:
            return None
        listing = await self._cluster.list(ALLOCATIONS, type=Allocation, fields=f"{field}={name}")
        return sum(not is_final(entry.status) for entry in listing.items)


def named_by_members(spec: Mapping[str, Any], field: str) -> list[str]:
    """Returns the texts that members of a DAG, or its defaults, have in a field of their specs, each once, 16 at most."""
    members = spec.get("members")
    specs = [spec.get("defaults"), *(one.get("spec") for one in members if isinstance(one, dict))] if isinstance(members, list) else []
    found = (one.get(field) for one in specs if isinstance(one, dict))
    return list(dict.fromkeys(value for value in found if isinstance(value, str) and value))[:MOST_NAMED]


def occupied(allocation: Allocation, now: float) -> Occupied:
    """Returns the nodes that an allocation holds, and when they are free at the latest, seconds since the epoch: start, walltime, grace.

    None: no end is known. Without a start it counts from `now`. A status or time that does not read: no nodes, and None.
    """
    spec, status = allocation.spec.lifecycle, allocation.status
    end: float | None = None
    try:
        if spec.type == "Bounded" and spec.walltime is not None:
            start = parse_time(status.start_time) if status.start_time else now
            end = start + parse_duration(spec.walltime) + grace_seconds(spec.grace_period)
        nodes = frozenset(expand_nodes(status.nodes))
    except Rejected:
        return Occupied(allocation.metadata.key, frozenset(), None)
    return Occupied(allocation.metadata.key, nodes, end)
