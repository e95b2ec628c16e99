"""Nodes' image caches for operators: the gateway resolves the image, checks the right, asks the agents, and passes on how far they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import ClientConnectionError, web

from lattice.daemon.logs import event
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import NODES
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.software.answers import CacheOrder, CacheRecord, CacheRow
from lattice.software.labels import digits_of
from lattice.units import count_nodes, expand_nodes
from lattice.views import Node
from lattice_gateway.agents import Agents
from lattice_gateway.bodies import read_order
from lattice_gateway.identity import Identity
from lattice_gateway.image_names import ImageNames
from lattice_gateway.rights import Action, Rights

log = logging.getLogger(__name__)

CACHE: Final = "/cache"
AT_ONCE: Final = 16
"""Nodes that pull at a time for one order: the registry serves them all."""
MOST_NODES: Final = 4096
LARGEST_ORDER: Final = 64 * 1024
_ACTIONS: Final = {"status": pb.LIST_IMAGES, "warm": pb.WARM_IMAGE, "evict": pb.EVICT_IMAGE}
_DEEDS: Final = {"status": "see image caches", "warm": "warm image caches", "evict": "evict images from caches"}


class CacheDesk:
    """Answers orders about image caches; `nodes` is a live view of the LatticeNodes by name."""

    def __init__(self, rights: Rights, agents: Agents, nodes: Mapping[str, Node], images: ImageNames) -> None:
        self._rights = rights
        self._agents = agents
        self._nodes = nodes
        self._images = images

    async def answer(self, request: web.Request, identity: Identity) -> web.StreamResponse:
        """Carries out an order on the image caches of the nodes that it names, and answers with lines of JSON: what each node reports.

        Raises Denied where the caller may not, Rejected or NotFound for a bad order, before the answer begins; failures of nodes are lines.
        """
        order = await _order(request)
        await self._check(identity, order)
        nodes = self._chosen(order)
        image = pb.CacheImage() if order.action == "status" else await self._image(order)
        event(log, "CacheAsked", action=order.action, user=identity.user, image=image.digest, nodes=len(nodes))
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await response.prepare(request)
        turn, writing = asyncio.Semaphore(AT_ONCE), asyncio.Lock()

        async def serve(node: str) -> None:
            """Writes the records of one node into the answer as they come, a line each."""
            async with turn, aclosing(self._reports(node, order, image)) as records:
                async for record in records:
                    async with writing:
                        await response.write(msgspec.json.encode(record) + b"\n")

        with contextlib.suppress(ClientConnectionError):  # the reader has left
            try:
                async with asyncio.TaskGroup() as group:
                    for node in nodes:
                        group.create_task(serve(node))
            except* ClientConnectionError as left:
                raise left.exceptions[0] from None
            await response.write_eof()
        return response

    async def _check(self, identity: Identity, order: CacheOrder) -> None:
        """Raises Denied where a caller may not do with image caches what an order asks for."""
        verb = "get" if order.action == "status" else "update"
        if not await self._rights.may(identity, Action(verb, NODES.plural, "", subresource="cache")):
            said = f'"{identity.user}" may not {_DEEDS[order.action]}: the verb {verb} on latticenodes/cache is missing'
            raise Denied(f"{said}; operators have it", reason="CacheForbidden")

    def _chosen(self, order: CacheOrder) -> list[str]:
        """Returns the names of an order's nodes, each once; of a group without hollow ones.

        Raises Rejected where it names none, too many, or both nodes and a group; NotFound where a node, or any of the group, is missing.
        """
        if bool(order.nodes) == bool(order.group):
            raise Rejected("name the nodes: either --nodes, or --group", reason="ParameterInvalid")
        if order.group:
            found = sorted(name for name, node in self._nodes.items() if node.spec.group == order.group and not node.status.hollow)
            if not found:
                raise NotFound(
                    f"no node stands in group {order.group}. Hint: `lattice nodes -o wide` shows the groups", reason="NodeUnknown"
                )
            return found
        if count_nodes(order.nodes) > MOST_NODES:
            raise Rejected(f"more than {MOST_NODES} nodes are named: use --group, or several orders", reason="ParameterInvalid")
        named = list(dict.fromkeys(expand_nodes(order.nodes)))
        if missing := [name for name in named if name not in self._nodes]:
            raise NotFound(f"there is no node {missing[0]}. Hint: `lattice nodes` lists them", reason="NodeUnknown")
        return named

    async def _image(self, order: CacheOrder) -> pb.CacheImage:
        """Returns the image of an order, resolved in its registry; to evict one by its id or digest no registry is asked.

        Raises Rejected where the order names no image, one that does not read, or several, NotFound where there is none.
        """
        if not order.image:
            raise Rejected("name the image: --image", reason="ParameterInvalid")
        if order.action == "evict" and (digits := digits_of(order.image)):
            return pb.CacheImage(digest=digits)
        found = await self._images.find(order.image)
        return pb.CacheImage(
            source=order.image, digest=found.digest, size=found.size, repository=found.repository, layer=found.layer, sticky=order.sticky,
            metadata=found.metadata, kind=found.kind, registry=found.registry,
        )  # fmt: skip

    async def _reports(self, node: str, order: CacheOrder, image: pb.CacheImage) -> AsyncGenerator[CacheRecord, None]:
        """Yields what one node reports of the order; a node that cannot be asked, or stops early, is a record with a reason, too."""
        ended = False
        try:
            async with aclosing(self._agents.serve_cache(node, pb.CacheRequest(action=_ACTIONS[order.action], image=image))) as reports:
                async for report in reports:
                    ended = report.done or bool(report.reason)
                    yield _record(node, report, image)
            if not ended:
                yield CacheRecord(node, reason="AgentLost", message=f"node {node} ended its answer before it was done")
        except LatticeError as error:
            yield CacheRecord(node, reason=error.reason, message=error.message)


def _record(node: str, report: pb.CacheReport, image: pb.CacheImage) -> CacheRecord:
    """Returns a node's report on its cache as a record of the answer, a row for each image of which the layer is known."""
    rows = [
        CacheRow(
            one.digest, one.size, one.repository, one.used, sticky=one.sticky, in_use=one.in_use, kind=one.kind, registry=one.registry,
            names=list(one.names),
        )
        for one in report.images
        if one.layer
    ]  # fmt: skip
    return CacheRecord(
        node, done=report.done, reason=report.reason, message=report.message, image=image.digest, pulled=report.pulled_bytes,
        size=image.size, images=rows, total=report.total_bytes, free=report.free_bytes,
    )  # fmt: skip


async def _order(request: web.Request) -> CacheOrder:
    """Returns the order of a request's body. Raises Rejected where it is too large, does not parse, or asks for an unknown action."""
    order = await read_order(request, CacheOrder, "order about caches", most_bytes=LARGEST_ORDER)
    if order.action not in _ACTIONS:
        raise Rejected(f"the action {order.action!r} is not known; known are {', '.join(_ACTIONS)}", reason="ParameterInvalid")
    return order
