"""Asks nodes for their journals in a recovery: the question is in `LatticeNode.status.recovery`, the answers are NodeHistory objects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lattice.daemon.logs import event
from lattice.errors import Corrupt, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import NODE_HISTORIES, NODES
from lattice.ledger.history import HistoryRow, parse_page
from lattice.views.cluster import Node
from lattice.views.history import NodeHistory

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Nodes whose status is patched at a time, to ask them or to take the question back."""


@dataclass(frozen=True)
class NodeHistoryAnswer:
    """The complete answer of one node: the rows of its journal, and when its state directory was made, seconds since the epoch."""

    rows: Sequence[HistoryRow]
    made: float


class Histories:
    """Asks nodes for their journals, reads the answers and removes them; `Recovery` uses it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ask(self, nodes: Iterable[Node], recovery: str, since: int) -> None:
        """Asks these nodes for their journals, except those that were asked in this recovery (its id) before.

        Their answers leave out attempts settled up to seq `since` of the ledger. It does not wait for them (`answers`). A node that is gone
        is passed over.
        """
        owed = [node for node in nodes if node.status.recovery is None or node.status.recovery.id != recovery]
        await self._each([node.metadata.name for node in owed], {"id": recovery, "since": since})

    async def answers(self, recovery: str) -> dict[str, NodeHistoryAnswer]:
        """Returns, by node, the answers to this recovery (its id) of which all pages are there and can be read."""
        pages: dict[str, dict[int, NodeHistory]] = {}
        for page in (await self._cluster.list(NODE_HISTORIES, type=NodeHistory)).items:
            if page.spec.recovery == recovery:
                pages.setdefault(page.spec.node, {})[page.spec.page] = page
        joined = {node: _joined(node, found) for node, found in pages.items() if _is_whole(found)}
        return {node: answer for node, answer in joined.items() if answer is not None}

    async def close(self, nodes: Collection[Node]) -> None:
        """Removes the request for journals from these nodes' statuses, and deletes their NodeHistory objects."""
        names = {node.metadata.name for node in nodes}
        await self._each([node.metadata.name for node in nodes if node.status.recovery is not None], None)
        for page in (await self._cluster.list(NODE_HISTORIES, type=NodeHistory)).items:
            if page.spec.node in names:
                with contextlib.suppress(NotFound):
                    await self._cluster.delete(NODE_HISTORIES, page.metadata.name)

    async def _each(self, names: Sequence[str], recovery: dict[str, str | int] | None) -> None:
        """Puts the question, or None to take it back, into the statuses of these nodes, 32 at a time."""
        for begin in range(0, len(names), AT_ONCE):
            await asyncio.gather(*(self._put(name, recovery) for name in names[begin : begin + AT_ONCE]))

    async def _put(self, name: str, recovery: dict[str, str | int] | None) -> None:
        """Puts the question, or None to take it back, into the status of one node; a node that is gone is passed over."""
        with contextlib.suppress(NotFound):  # it has gone meanwhile
            await self._cluster.patch(NODES, name, {"status": {"recovery": recovery}}, subresource="status")


def _is_whole(pages: dict[int, NodeHistory]) -> bool:
    """Tells whether all pages of one node's answer are there, and agree on their number; there must be a page."""
    wanted = next(iter(pages.values())).spec.pages
    return all(pages[number].spec.pages == wanted for number in pages) and all(number in pages for number in range(wanted))


def _joined(node: str, pages: dict[int, NodeHistory]) -> NodeHistoryAnswer | None:
    """Joins the pages of one node to its answer; None, and a warning in the log, where a page cannot be read."""
    ordered = [pages[number].spec for number in range(next(iter(pages.values())).spec.pages)]
    try:
        return NodeHistoryAnswer([row for page in ordered for row in parse_page(page.rows)], ordered[0].made)
    except Corrupt as error:
        event(log, "A node's history cannot be read", logging.WARNING, node=node, reason=error.reason, message=error.message)
        return None
