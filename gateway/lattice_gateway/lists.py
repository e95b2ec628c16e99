"""The rows of `lattice status` and `lattice nodes` from caches, for readers who may list the objects at the API server.

A reader who may not is denied here and asks the API server, whose answer counts. Rows of Allocations come from the leading scheduler, those
of nodes and their home vclusters from this gateway's own cache. No answer is older than the version that the reader has seen.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

import msgspec
from aiohttp import web

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Denied, Rejected
from lattice.kube.informer import Informer
from lattice.kube.resources import ALLOCATIONS, NODES, VCLUSTERS
from lattice.scheduling.queries.node_rows import NODES_SCHEMA, NodeRow, NodeRows, homes, node_row
from lattice.views import Node, VCluster
from lattice_gateway.identity import Identity
from lattice_gateway.memory import Kept
from lattice_gateway.rights import Action, Rights
from lattice_gateway.scheduler import Scheduler, TaggedAnswer

log = logging.getLogger(__name__)

STATUS: Final = "/status"
NODE_LIST: Final = "/nodes"
ANSWER_SECONDS: Final = 3.0
"""How long the scheduler may take; after that the reader is better served by the API server."""
_PASSED: Final = ("namespace", "states", "vcluster", "after", "version", "wide", "numbers")
_KNOWN: Final = frozenset({*_PASSED, "user", "mine"})
KEPT_SECONDS: Final = 600.0
KEPT_BYTES: Final = 8 * 1024 * 1024
"""How long answers are kept at most, and how large all of them may be; each is the scheduler's to call the same as now."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_VERSION: Final = re.compile(r"[0-9]{0,20}", re.ASCII)


class Lists:
    """Answers the questions for rows of an identified reader; the caches are run by the `Gateway`."""

    def __init__(
        self, rights: Rights, scheduler: Scheduler, nodes: Informer[Node], vclusters: Informer[VCluster], clock: Clock
    ) -> None:  # fmt: skip
        self._rights = rights
        self._scheduler = scheduler
        self._nodes = nodes
        self._vclusters = vclusters
        self._rows: dict[str, tuple[Node, NodeRow]] = {}
        self._answers: Kept[tuple[tuple[str, str], ...], TaggedAnswer] = Kept(
            clock, KEPT_SECONDS, KEPT_BYTES, lambda answer: len(answer.body)
        )  # fmt: skip

    async def status(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the rows of Allocations of a namespace, or of all, for a reader who may list them, as the scheduler gives them.

        Raises Denied where he may not, Rejected for a bad parameter, Retry where no scheduler answers within 3 s.
        """
        query = _query(request, _KNOWN)
        namespace = query.get("namespace", "")
        if namespace and not _NAMESPACE.fullmatch(namespace):
            raise Rejected(f"the parameter namespace is {namespace!r}, which is no namespace's name", reason="ParameterInvalid")
        await self._may_list(identity, ALLOCATIONS.plural, namespace)
        event(log, "StatusAsked", namespace=namespace, user=identity.user)
        asked = {key: query[key] for key in _PASSED if query.get(key)}
        of = identity.user if query.get("mine") == "true" else query.get("user", "")
        asked = {**asked, "user": identity.user, **({"of": of} if of else {})}
        key = tuple(sorted((name, value) for name, value in asked.items() if name not in ("version", "after")))
        known = self._answers.get(key)
        answer = await self._scheduler.ask_unless(known, ("v1", "status"), asked, seconds=ANSWER_SECONDS)
        if answer is not known and answer.tag and "numbers" not in asked:
            self._answers.keep(key, answer)
        return _answer(answer.body)

    async def nodes(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the rows of all nodes for a reader who may list them; with their home vclusters if he may list those.

        Raises Denied where he may not, Rejected for a bad parameter, Retry where a cache is not as new as he asks.
        """
        query = _query(request, frozenset({"version", "vclusters"}))
        await self._may_list(identity, NODES.plural)
        version = await self._nodes.reach(_version(query, "version"))
        home: dict[str, str] = {}
        if await self._rights.may(identity, Action("list", VCLUSTERS.plural, "")):
            await self._vclusters.reach(_version(query, "vclusters"))
            home = homes(list(self._vclusters.objects.values()))
        event(log, "NodesAsked", user=identity.user)
        held = list(self._nodes.objects.values())
        return _answer(await asyncio.to_thread(lambda: self._encoded(held, home, version)))

    def _encoded(self, held: list[Node], home: dict[str, str], version: str) -> bytes:
        """Returns the answer as JSON; each row is made once a version of its node. Several threads may call it at a time."""
        rows = {}
        for node in held:
            known = self._rows.get(node.metadata.name)
            rows[node.metadata.name] = known if known is not None and known[0] is node else (node, node_row(node))
        self._rows = rows
        return msgspec.json.encode(NodeRows(schema=NODES_SCHEMA, version=version, homes=home, rows=[row for _, row in rows.values()]))

    async def _may_list(self, identity: Identity, resource: str, namespace: str = "") -> None:
        """Raises Denied where a caller may not list a kind of objects, in a namespace or (empty) in all."""
        if not await self._rights.may(identity, Action("list", resource, "", namespace)):
            where = f' in namespace "{namespace}"' if namespace else ""
            raise Denied(f'"{identity.user}" may not list {resource}{where}: ask the API server what it may read', reason="ListForbidden")


def _query(request: web.Request, known: frozenset[str]) -> dict[str, str]:
    """Returns the parameters of a request. Raises Rejected for one that is not known."""
    unknown = sorted(set(request.query) - known)
    if unknown:
        raise Rejected(f"the parameter {unknown[0]} is not known; known are {', '.join(sorted(known))}", reason="ParameterInvalid")
    return dict(request.query)


def _version(query: dict[str, str], name: str) -> str:
    """Returns a parameter that is a resource version; empty where it is absent. Raises Rejected where it is none."""
    version = query.get(name, "")
    if not _VERSION.fullmatch(version):
        raise Rejected(f"the parameter {name} is {version!r}: a resourceVersion", reason="ParameterInvalid")
    return version


def _answer(body: bytes) -> web.Response:
    """Returns the answer with this body of JSON, which nobody may keep."""
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})
