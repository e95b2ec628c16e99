"""Decides whether a caller may do something, by SubjectAccessReviews and by ownership of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lattice.errors import Denied
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS, SUBJECT_ACCESS_REVIEWS, TENANTS
from lattice.views import Allocation
from lattice_gateway.identity import Identity
from lattice_gateway.memory import Memory

CACHE_SECONDS: Final = 10.0
Extra = tuple[tuple[str, tuple[str, ...]], ...]
"""The parts of an identity beside user and groups, such as the scopes of a token."""
ACTING_FOR_OTHERS: Final = ("runas", "manage")
"""Verbs on a Tenant, each of which lets its holder read the output of everybody's work there."""


@dataclass(frozen=True)
class Action:
    """A verb on an object, or on all objects of a kind where `name` is empty; an empty namespace means all."""

    verb: str
    resource: str
    name: str
    namespace: str = ""
    subresource: str = ""


class Rights:
    """Asks the API server's authorisers; its answers are kept for ten seconds."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._answers: Memory[tuple[Action, str, tuple[str, ...], str, Extra], bool] = Memory(clock, CACHE_SECONDS)

    async def may_read_logs(self, identity: Identity, namespace: str, name: str) -> None:
        """Raises Denied unless the caller may get the subresource `logs` of the allocation of this name."""
        if not await self.may(identity, Action("get", ALLOCATIONS.plural, name, namespace, "logs")):
            raise Denied(
                f'"{identity.user}" may not read logs in namespace "{namespace}": the verb get on allocations/logs is missing; '
                "ask an admin of the tenant",
                reason="LogsForbidden",
            )

    async def may_see_work_of(self, identity: Identity, allocation: Allocation) -> None:
        """Raises Denied unless the allocation is the caller's own, or he has the verb `runas` or `manage` on its tenant."""
        if await self._answers_for(identity, allocation):
            return
        tenant = allocation.spec.tenant
        raise Denied(
            f'{allocation.metadata.key} is not the work of "{identity.user}": its output is read by its owner and by the admins of '
            f'tenant "{tenant}" (verbs {" or ".join(ACTING_FOR_OTHERS)})',
            reason="NotYourWork",
        )

    async def may_cancel(self, identity: Identity, namespace: str, name: str) -> None:
        """Raises Denied unless the caller may patch the allocation of this name, as a cancel does."""
        if not await self.may(identity, Action("patch", ALLOCATIONS.plural, name, namespace)):
            raise Denied(f'"{identity.user}" may not cancel work in namespace "{namespace}"', reason="CancelForbidden")

    async def may_end_launches_of(self, identity: Identity, allocation: Allocation) -> None:
        """Raises Denied unless the allocation is the caller's own, or he has the verb `runas` or `manage` on its tenant."""
        if not await self._answers_for(identity, allocation):
            raise Denied(
                f'{allocation.metadata.key} is not the work of "{identity.user}": its launches are ended by its owner and by the admins of '
                f'tenant "{allocation.spec.tenant}" (verbs {" or ".join(ACTING_FOR_OTHERS)})',
                reason="NotYourWork",
            )

    async def _answers_for(self, identity: Identity, allocation: Allocation) -> bool:
        """Tells whether the allocation is the caller's own, or he has the verb `runas` or `manage` on its tenant."""
        owner, tenant = allocation.spec.user, allocation.spec.tenant
        if owner and owner == identity.user:
            return True
        for verb in ACTING_FOR_OTHERS:
            if tenant and await self.may(identity, Action(verb, TENANTS.plural, tenant)):
                return True
        return False

    async def may(self, identity: Identity, action: Action) -> bool:
        """Tells whether the cluster's authorisers allow the caller an action; an answer is kept for ten seconds."""
        extra = tuple(sorted((name, tuple(values)) for name, values in identity.extra.items()))
        key = (action, identity.user, identity.groups, identity.uid, extra)
        known = self._answers.get(key)
        return known[0] if known else self._answers.keep(key, await self._review(identity, action))

    async def _review(self, identity: Identity, action: Action) -> bool:
        """Tells whether the server allows a caller an action, by a SubjectAccessReview."""
        review = {
            "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {
                "user": identity.user,
                "groups": list(identity.groups),
                "uid": identity.uid,
                "extra": dict(identity.extra),
                "resourceAttributes": {
                    "group": ALLOCATIONS.group,
                    "resource": action.resource,
                    "subresource": action.subresource,
                    "verb": action.verb,
                    "name": action.name,
                    "namespace": action.namespace,
                },
            },
        }
        status = (await self._cluster.create(SUBJECT_ACCESS_REVIEWS, review)).get("status") or {}
        return bool(status.get("allowed"))
