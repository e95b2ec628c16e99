"""Reconciles Tenants: makes namespaces, roles and bindings, shows use and limits from the Ledger, and delays deletion while in use."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import AlreadyExists, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, ROLE_BINDINGS, TENANTS, Resource
from lattice.units import format_time
from lattice.views import Condition, Reservation, Tenant, TenantAccount
from lattice.views.cluster import TenantUse
from lattice_controllers.operator import access, statuses
from lattice_controllers.operator.ledger import LedgerMirror
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.usage import Usage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """The reason why a tenant is not in force: a word of the documented list and a sentence."""

    reason: str
    message: str


class Tenants:
    """The reconciler of Tenants, one at a time by name: writes the conditions and sums of use in its status, and keeps its finalizer.

    `known` holds the Tenants that exist, as last read.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, ledger: LedgerMirror, usage: Usage, announcer: Announcer, measured: OperatorMetrics,
        reservations: Mapping[str, Reservation],
    ) -> None:  # fmt: skip
        self.known: dict[str, Tenant] = {}
        self.queue = KeyedQueue(self.reconcile, clock, workers=4, name="tenants")
        self._cluster = cluster
        self._clock = clock
        self._ledger = ledger
        self._usage = usage
        self._announcer = announcer
        self._measured = measured
        self._reservations = reservations

    def on_reservation(self, change: Change[Reservation]) -> None:
        """Enqueues all tenants when a Reservation appeared, vanished or changed its spec, since it may concern their people."""
        if change.old is None or change.new is None or change.old.spec != change.new.spec:
            for name in self.known:
                self.queue.add(name)

    def retention_of(self, name: str) -> str:
        """Returns the `finishedRetention` of a tenant, by name, a duration as written; empty when the tenant is unknown or sets none."""
        tenant = self.known.get(name)
        return tenant.spec.finished_retention if tenant is not None else ""

    async def reconcile(self, name: str) -> float | None:
        """Makes namespaces, roles, bindings and status of one tenant agree with its spec, and sets its finalizer; a name that somebody
        else's object has is left alone and makes the tenant Stalled.

        A deleted tenant loses the finalizer once none of its work is left. Returns the seconds until the next check; None: it is gone.
        """
        try:
            tenant = await self._cluster.get(TENANTS, name, type=Tenant)
        except NotFound:
            self.known.pop(name, None)
            self._measured.tenants.set(len(self.known))
            return None
        self.known[name] = tenant
        self._measured.tenants.set(len(self.known))
        if tenant.metadata.deletion_timestamp:
            return await self._leave(tenant)
        if statuses.IN_USE_FINALIZER not in tenant.metadata.finalizers:
            finalizers = (*tenant.metadata.finalizers, statuses.IN_USE_FINALIZER)
            await statuses.set_finalizers(self._cluster, TENANTS, tenant.metadata, finalizers)
            tenant = await self._cluster.get(TENANTS, name, type=Tenant)
        wanted = access.access_of(tenant, self._reservations.values())
        taken = await self._settle_namespaces(tenant, wanted)
        problems = [*taken.values(), *await self._settle_roles(name, wanted.without(taken))]
        await self._publish(tenant, problems)
        return statuses.RESYNC_SECONDS

    async def _settle_namespaces(self, tenant: Tenant, wanted: access.Access) -> dict[str, Problem]:
        """Makes the tenant's namespaces, and removes its label from those that its spec no longer names.

        Returns, by namespace, the problem of each that the tenant cannot have, since it exists and does not carry the tenant's label.
        """
        name = tenant.metadata.name
        claims = {namespace: await self._claim(namespace, tenant) for namespace in wanted.namespaces}
        labelled = await self._cluster.list(NAMESPACES, labels=f"{access.TENANT_LABEL}={name}")
        for namespace in labelled.items:
            metadata = namespace["metadata"]
            if metadata["name"] in wanted.namespaces:
                continue
            patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "labels": {access.TENANT_LABEL: None}}}
            await self._cluster.patch(NAMESPACES, metadata["name"], patch)
            event(log, "NamespaceReleased", tenant=name, namespace=metadata["name"])
        return {namespace: problem for namespace, problem in claims.items() if problem is not None}

    async def _claim(self, namespace: str, tenant: Tenant) -> Problem | None:
        """Makes a namespace for a tenant where there is none; returns None when the tenant has it, else the problem.

        A namespace that exists already must carry the tenant's label.
        """
        name = tenant.metadata.name
        try:
            standing = await self._cluster.get(NAMESPACES, namespace)
        except NotFound:
            annotations = {access.OWNER_ANNOTATION: tenant.metadata.uid}
            body = {"metadata": {"name": namespace, "labels": {access.TENANT_LABEL: name}, "annotations": annotations}}
            try:
                await self._cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", **body})
            except AlreadyExists:
                return await self._claim(namespace, tenant)
            event(log, "NamespaceMade", tenant=name, namespace=namespace)
            return None
        owner = (standing["metadata"].get("labels") or {}).get(access.TENANT_LABEL)
        if owner == name:
            return None
        if owner:
            return Problem("NamespaceTaken", f'namespace "{namespace}" belongs to tenant "{owner}": name another one in spec.namespaces')
        hint = f"kubectl label namespace {namespace} {access.TENANT_LABEL}={name}"
        return Problem("NamespaceTaken", f'namespace "{namespace}" stands there and is not of this tenant; if it is meant: {hint}')

    async def _settle_roles(self, name: str, wanted: access.Access) -> list[Problem]:
        """Makes roles and bindings of a tenant, by name, the wanted ones; returns a problem for each name that somebody else's
        object has.
        """
        problems: list[Problem] = []
        for resource, objects in wanted.wanted():
            problems += await self._align(resource, name, objects)
        return problems

    async def _align(self, resource: Resource, tenant: str, wanted: Mapping[access.Key, access.Plain]) -> list[Problem]:
        """Makes, changes and deletes the tenant's objects of one resource until they are the wanted ones.

        Returns a problem for each whose name an object that is not the operator's has taken.
        """
        selector = ",".join(f"{key}={value}" for key, value in access.labels_of(tenant).items())
        listing = await self._cluster.list(resource, labels=selector)
        standing: dict[access.Key, dict[str, Any]] = {
            (item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in listing.items
        }
        for (namespace, name), item in standing.items():
            if (namespace, name) not in wanted:
                await self._drop(resource, name, namespace, item)
        problems = []
        for (namespace, name), body in wanted.items():
            if not await self._ensure(resource, name, namespace, body, standing.get((namespace, name))):
                where = f' in namespace "{namespace}"' if namespace else ""
                problems.append(
                    Problem("NameTaken", f'{resource.kind} "{name}"{where} stands there and is not the operator\'s: delete or rename it')
                )
        return problems

    async def _ensure(self, resource: Resource, name: str, namespace: str, body: access.Plain, standing: Mapping[str, Any] | None) -> bool:
        """Makes or changes one object, or drops it and makes it again where its roleRef differs; returns False where another object, not
        the operator's, has its name.

        Returns True, and makes nothing, where the namespace is gone.
        """
        if standing is not None:
            parts = list(access.differs(standing, body))
            if not parts:
                return True
            if "roleRef" not in parts:
                patch = {"metadata": {"resourceVersion": standing["metadata"]["resourceVersion"]}, **{part: body[part] for part in parts}}
                await self._cluster.patch(resource, name, patch, namespace)
                return True
            await self._drop(resource, name, namespace, standing)  # a roleRef never changes
        try:
            await self._cluster.create(resource, body, namespace)
        except AlreadyExists:
            return False
        except NotFound:
            pass  # the namespace is going: _claim has said so, or says so next time
        return True

    async def _drop(self, resource: Resource, name: str, namespace: str, standing: Mapping[str, Any]) -> None:
        """Deletes an object as it was read; one that is gone is passed over."""
        with contextlib.suppress(NotFound):  # gone already
            await self._cluster.delete(resource, name, namespace, uid=standing["metadata"]["uid"])

    async def _publish(self, tenant: Tenant, problems: list[Problem]) -> None:
        """Writes a tenant's conditions, use and limits: Ready, or Stalled with the first problem's reason; an Event tells of a reason that
        is new.
        """
        metadata, now = tenant.metadata, format_time(self._clock.now())
        before = tenant.status.conditions
        if problems:
            message = "; ".join(problem.message for problem in problems)
            after = statuses.stalled(before, problems[0].reason, message, metadata.generation, now)
        else:
            after = statuses.ready(before, metadata.generation, now)
        await self._write(tenant, after, now, in_use=self._in_use(metadata.name))
        if problems and not any(entry.reason == problems[0].reason for entry in before):
            await self._announcer.announce(TENANTS, metadata, problems[0].reason, problems[0].message, action="Reconcile", warning=True)

    async def _write(self, tenant: Tenant, conditions: tuple[Condition, ...], now: str, *, in_use: bool) -> None:
        """Writes conditions, InUse among them (`in_use`), and use and limits from the ledger into a tenant's status, as far as they
        changed.

        Without an account in the ledger the use shown stays.
        """
        metadata, before = tenant.metadata, tenant.status
        conditions = statuses.used(conditions, in_use, metadata.generation, now)
        account = self._ledger.accounts.get(metadata.name)
        former: dict[str, Any] = {"observedGeneration": before.observed_generation, "use": _use(before.use)}
        latter: dict[str, Any] = {"observedGeneration": metadata.generation}
        if account is not None:
            latter["use"] = _use(account)
        changed = statuses.changes(before.conditions, conditions, former, latter)
        if "use" in changed:
            changed["updated"] = now
        await statuses.write(self._cluster, TENANTS, metadata, changed)

    def _in_use(self, name: str) -> bool:
        """Tells whether a tenant, by name, has allocations that are not final, or that the ledger counts."""
        account = self._ledger.accounts.get(name)
        return self._usage.open_of_tenant(name) > 0 or (account is not None and account.used_allocations > 0)

    async def _leave(self, tenant: Tenant) -> float | None:
        """Removes the finalizer of a deleted tenant once none of its work is left; its roles and bindings go first, its namespaces stay.

        Returns the seconds until the next check; None: done.
        """
        metadata, name = tenant.metadata, tenant.metadata.name
        if statuses.IN_USE_FINALIZER not in metadata.finalizers:
            return None
        await self._ledger.read()
        pending, rows = self._usage.open_of_tenant(name), await self._ledger.holders_of_tenant(name)
        if pending or rows != 0:
            now = format_time(self._clock.now())
            message = statuses.use_sentence(pending, rows)
            conditions = statuses.waiting(tenant.status.conditions, "DeletionWaits", message, metadata.generation, now)
            await self._write(tenant, conditions, now, in_use=True)
            return statuses.DELETION_AGAIN_SECONDS
        for resource in (ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES):
            await self._align(resource, name, {})
        kept = tuple(entry for entry in metadata.finalizers if entry != statuses.IN_USE_FINALIZER)
        await statuses.set_finalizers(self._cluster, TENANTS, metadata, kept)
        event(log, "TenantGone", tenant=name)
        return None


def _use(account: TenantUse | TenantAccount | None) -> dict[str, int | None] | None:
    """Returns limits and use for a merge patch; an absent limit is None, so that the patch removes a former one."""
    if account is None:
        return None
    return {
        "maxNodes": account.max_nodes,
        "usedNodes": account.used_nodes,
        "maxAllocations": account.max_allocations,
        "usedAllocations": account.used_allocations,
    }
