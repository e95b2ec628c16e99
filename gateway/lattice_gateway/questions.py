"""Passes people's questions about the queue on to the scheduler, with the reader and his rights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from lattice.daemon.logs import event
from lattice.errors import Denied, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS, ELASTIC_QUOTAS, LEDGERS, TENANTS
from lattice.views import Allocation
from lattice_gateway.identity import Identity
from lattice_gateway.image_names import ImageNames
from lattice_gateway.rights import Action, Rights
from lattice_gateway.scheduler import Scheduler

log = logging.getLogger(__name__)

WHY: Final = "/why/{namespace}/{name}"
QUEUE: Final = "/queue"
QUEUE_OF_ONE: Final = "/queue/{vcluster}"
PLAN: Final = "/plan"
CYCLES: Final = "/cycles"
CYCLE: Final = "/cycles/{cycle}"
QUOTA: Final = "/quota"
QUOTA_EXPLAINED: Final = "/quota/explain/{namespace}/{name}"
LARGEST_PLAN: Final = 8 * 1024 * 1024
MOST_PLANNED: Final = 64
"""Most allocations in one plan question."""
MOST_NAMESPACES: Final = 16


class PlanQuestion(msgspec.Struct, frozen=True):
    """The body of a plan question: complete Allocations, as a server-side dry run returns them."""

    allocations: list[dict[str, Any]]
    optimal: bool = False


@dataclass(frozen=True)
class Questions:
    """Answers `why`, `queue`, `plan`, `quota` and recorded cycles for an identified reader, by asking the leading scheduler."""

    cluster: Cluster
    rights: Rights
    scheduler: Scheduler
    images: ImageNames

    async def why(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers why an allocation waits, to a reader who may get it: by a cache no older than the object as it is now.

        Raises Denied where he may not, NotFound where it is gone or not pending, Retry where no scheduler answers.
        """
        allocation = await self._readable(request, identity)
        event(log, "WhyAsked", allocation=allocation.metadata.key, user=identity.user)
        reader = await self._reader(identity, (allocation.metadata.namespace,))
        asked = {**reader, "version": allocation.metadata.resource_version}
        return _answer(await self.scheduler.ask("GET", ("v1", "why", allocation.metadata.uid), asked))

    async def queue(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with one vcluster's queue, or all, for any identified reader, no older than the version that he names.

        Raises Rejected for a bad parameter, NotFound for an unknown vcluster, Retry where no scheduler answers.
        """
        unknown = sorted(set(request.query) - {"namespaces", "limit", "version"})
        if unknown:
            raise Rejected(f"the parameter {unknown[0]} is not known; known are namespaces, limit, version", reason="ParameterInvalid")
        query = {**await self._reader(identity, _namespaces(request)), **{key: request.query.get(key, "") for key in ("limit", "version")}}
        vcluster = request.match_info.get("vcluster", "")
        event(log, "QueueAsked", vcluster=vcluster, user=identity.user)
        path = ("v1", "queue", vcluster) if vcluster else ("v1", "queue")
        return _answer(await self.scheduler.ask("GET", path, {key: value for key, value in query.items() if value}))

    async def plan(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the plan for Allocations that are not submitted, for a reader who may submit them.

        Registries are asked for its images first. Raises Denied where he may not, Rejected for a body that is no such question, Retry where
        no scheduler answers.
        """
        asked = await _asked(request)
        namespaces = []
        for document in asked.allocations:
            namespace = await self._may_submit(identity, document)
            namespaces.append(namespace)
        event(log, "PlanAsked", count=len(asked.allocations), user=identity.user)
        reader = await self._reader(identity, tuple(dict.fromkeys(namespaces)))
        images = await self.images.planned(asked.allocations)
        body = msgspec.json.encode({"allocations": asked.allocations, "optimal": asked.optimal, "images": images})
        return _answer(await self.scheduler.ask("POST", ("v1", "plan"), reader, body))

    async def cycles(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers which cycles are recorded, or with the log of the one that the path names, to a reader who may get `ledgers/cycles`.

        Raises Denied where he may not, NotFound for a cycle that is not recorded.
        """
        if not await self.rights.may(identity, Action("get", LEDGERS.plural, "lattice", subresource="cycles")):
            sentence = (
                f'"{identity.user}" may not read recorded cycles, which hold the work of every tenant: the verb get on ledgers/cycles '
                "is missing; system admins have it"
            )
            raise Denied(sentence, reason="CyclesForbidden")
        cycle = request.match_info.get("cycle", "")
        event(log, "CyclesAsked", cycle=cycle, user=identity.user)
        return _answer(await self.scheduler.ask("GET", ("v1", "cycles", cycle) if cycle else ("v1", "cycles"), {}))

    async def quota(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the quota trees for any identified reader: his leaves and the groups above them; of other groups sums, unless he may
        list ElasticQuotas.

        Raises Rejected for a parameter that is not known, Retry where no scheduler answers.
        """
        unknown = sorted(set(request.query) - {"namespaces"})
        if unknown:
            raise Rejected(f"the parameter {unknown[0]} is not known; known is namespaces", reason="ParameterInvalid")
        event(log, "QuotaAsked", user=identity.user)
        reader = await self._quota_reader(identity, _namespaces(request))
        return _answer(await self.scheduler.ask("GET", ("v1", "quota"), reader))

    async def quota_explained(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the result of every gate for an allocation, to a reader who may get it; else raises Denied.

        Raises NotFound where the allocation is gone, or neither waits nor holds nodes.
        """
        allocation = await self._readable(request, identity)
        event(log, "QuotaExplained", allocation=allocation.metadata.key, user=identity.user)
        reader = await self._quota_reader(identity, (allocation.metadata.namespace,))
        return _answer(await self.scheduler.ask("GET", ("v1", "quota", "explain", allocation.metadata.uid), reader))

    async def _readable(self, request: web.Request, identity: Identity) -> Allocation:
        """Returns the allocation that the path names; raises Denied where the reader may not get it, NotFound where it is gone."""
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if not await self.rights.may(identity, Action("get", ALLOCATIONS.plural, name, namespace)):
            sentence = f'"{identity.user}" may not read the allocation "{name}" in namespace "{namespace}": ask an admin of the tenant'
            raise Denied(sentence, reason="AllocationForbidden")
        return await self.cluster.get(ALLOCATIONS, name, namespace, type=Allocation)

    async def _quota_reader(self, identity: Identity, namespaces: tuple[str, ...]) -> Mapping[str, str]:
        """Returns the reader as parameters for the scheduler, with the namespaces in which he may list Allocations (all of them: `all`),
        and with `groups` where he may see all quota groups.
        """
        reader = await self._reader(identity, namespaces)
        may_list = await self.rights.may(identity, Action("list", ELASTIC_QUOTAS.plural, ""))
        return {**reader, "groups": "true"} if may_list else reader

    async def _may_submit(self, identity: Identity, document: dict[str, Any]) -> str:
        """Returns a document's namespace; raises Denied unless the reader may create it there, as himself or by the verb `runas`.

        Writes the reader into `spec.user` where the document names nobody. Raises Rejected where it lacks a namespace or spec.
        """
        metadata, spec = document.get("metadata"), document.get("spec")
        if not isinstance(metadata, dict) or not isinstance(spec, dict) or not metadata.get("namespace"):
            raise Rejected("each allocation of a plan has metadata.namespace and spec", reason="PlanInvalid", fields=("allocations",))
        namespace, tenant = str(metadata["namespace"]), str(spec.get("tenant") or "")
        if not await self.rights.may(identity, Action("create", ALLOCATIONS.plural, "", namespace)):
            raise Denied(f'"{identity.user}" may not submit to namespace "{namespace}"', reason="SubmissionForbidden")
        user = spec.setdefault("user", identity.user)
        if user != identity.user and not await self.rights.may(identity, Action("runas", TENANTS.plural, tenant)):
            raise Denied(
                f'"{identity.user}" may not plan for another user: the verb runas on the tenant is missing', reason="RunasForbidden"
            )
        return namespace

    async def _reader(self, identity: Identity, namespaces: tuple[str, ...]) -> Mapping[str, str]:
        """Returns the reader as parameters for the scheduler: that he may list all Allocations, with all these namespaces; else those of
        the namespaces in which he may list them.
        """
        if await self.rights.may(identity, Action("list", ALLOCATIONS.plural, "")):
            return {"user": identity.user, "all": "true", "namespaces": ",".join(namespaces)}
        seen = [name for name in namespaces if await self.rights.may(identity, Action("list", ALLOCATIONS.plural, "", name))]
        return {"user": identity.user, "namespaces": ",".join(seen)}


def _namespaces(request: web.Request) -> tuple[str, ...]:
    """Returns the namespaces that the request asks about, the first 16; further ones are left out."""
    return tuple(part for part in request.query.get("namespaces", "").split(",") if part)[:MOST_NAMESPACES]


async def _asked(request: web.Request) -> PlanQuestion:
    """Returns what a plan asks for, from a request's body.

    Raises Rejected where it is too large, does not parse, or has no or too many allocations.
    """
    body = await request.content.read(LARGEST_PLAN + 1)
    while len(body) <= LARGEST_PLAN and (more := await request.content.read(LARGEST_PLAN + 1)):
        body += more
    if len(body) > LARGEST_PLAN:
        raise Rejected(f"a plan of more than {LARGEST_PLAN} bytes is not read", reason="PlanTooLarge")
    try:
        asked = msgspec.json.decode(body, type=PlanQuestion)
    except msgspec.DecodeError as error:
        raise Rejected(f"the body of a plan is no list of allocations: {error}", reason="PlanInvalid") from error
    if not 1 <= len(asked.allocations) <= MOST_PLANNED:
        raise Rejected(f"a plan is for 1 to {MOST_PLANNED} allocations, and {len(asked.allocations)} are given", reason="PlanInvalid")
    return asked


def _answer(body: bytes) -> web.Response:
    """Returns the answer with this body of JSON, which nobody may keep."""
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})
