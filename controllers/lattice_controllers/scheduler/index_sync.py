"""The index sync: gives every node an index, frees those of nodes that are gone, and tells the ledger how many nodes there are."""

from __future__ import annotations

import asyncio
import logging

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError
from lattice_controllers.scheduler.committer import Committer, Deposed
from lattice_controllers.scheduler.nodes import Nodes

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
AGAIN_SECONDS = 1.0


class IndexSync:
    """Keeps the NodeIndex equal to the nodes that exist, and writes the ledger in the newest format that every node's agent reads."""

    def __init__(self, clock: Clock, committer: Committer, nodes: Nodes) -> None:
        self._clock = clock
        self._committer = committer
        self._nodes = nodes
        self._dirty = asyncio.Event()

    def nodes_changed(self) -> None:
        """Notes that nodes came, went or changed; `run` then settles the indices, 50 ms later."""
        self._dirty.set()

    async def run(self) -> None:
        """Settles the indices and the ledger's format after each change, until cancelled.

        Raises Deposed; after any other error it tries again, a second later.
        """
        while True:
            await self._dirty.wait()
            await self._clock.sleep(SETTLE_SECONDS)
            self._dirty.clear()
            self._committer.book.write_format(self._nodes.lowest_format())
            try:
                await self._nodes.settle_indices(self._committer)
            except Deposed:
                raise
            except LatticeError as error:
                event(log, "Trying again", reason=error.reason, message=error.message)
                await self._clock.sleep(AGAIN_SECONDS)
                self._dirty.set()
