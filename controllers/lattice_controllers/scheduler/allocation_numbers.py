"""Numbers of allocations: unique and growing, from blocks that the ledger has reserved."""

from __future__ import annotations

import asyncio

from lattice.errors import Stale
from lattice.ledger.proposals import Accepted, Numbers
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.committer import LedgerAccess

BLOCK = 1000


class AllocationNumbers:
    """Gives numbers below what the ledger has reserved; a crash wastes the rest of a block, never gives one twice."""

    def __init__(self, first: int, ledger: LedgerAccess) -> None:
        self._next = first
        self._limit = first
        self._ledger = ledger
        self._given: dict[str, int] = {}
        self._refill = asyncio.Lock()

    async def ensure_reserved(self) -> None:
        """Waits until at least half a block is reserved."""
        if self._limit - self._next > BLOCK // 2:
            return
        async with self._refill:
            if self._limit - self._next > BLOCK // 2:
                return
            wanted = max(self._limit, self._next) + BLOCK
            if not isinstance(await self._ledger.propose(Numbers(wanted)), Accepted):
                raise Stale("no numbers could be reserved in the ledger", reason="Deposed")
            self._limit = wanted

    def assign(self, uid: str) -> int:
        """Returns the number of this allocation: the same each time until it is forgotten."""
        number = self._given.get(uid)
        if number is None:
            number = self._given[uid] = self._next
            self._next += 1
        return number

    def number_of(self, allocation: Allocation) -> int:
        """Returns the number that an allocation has or gets."""
        return allocation.status.number or self.assign(allocation.metadata.uid)

    def release(self, uid: str) -> None:
        """Releases what is kept of an allocation that is gone, or carries its number."""
        self._given.pop(uid, None)
