"""Gives allocations their numbers: unique and growing, from blocks of 1,000 that the ledger has reserved."""

from __future__ import annotations

import asyncio

from lattice.errors import Stale
from lattice.ledger.proposals import Accepted, Numbers
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.committer import LedgerAccess

BLOCK = 1000


class AllocationNumbers:
    """Gives each allocation a number below the limit that the ledger has reserved.

    A crash wastes the rest of a block; no number is given twice.
    """

    def __init__(self, first: int, ledger: LedgerAccess) -> None:
        self._next = first
        self._limit = first
        self._ledger = ledger
        self._given: dict[str, int] = {}
        self._refill = asyncio.Lock()

    async def ensure_reserved(self) -> None:
        """Reserves the next 1,000 numbers in the ledger, and waits for its verdict, where 500 or fewer are left; else returns at once.

        Raises Stale when the ledger refuses. `assign` does not wait for it: who needs a reserved number calls it before.
        """
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
        """Returns the number of an allocation: the first call draws the next one, later calls repeat it until `release`.

        Whether the ledger has reserved that number is not checked: `ensure_reserved` sees to it.
        """
        number = self._given.get(uid)
        if number is None:
            number = self._given[uid] = self._next
            self._next += 1
        return number

    def number_of(self, allocation: Allocation) -> int:
        """Returns the number that the allocation's status shows; where it shows none, the one that `assign` gives."""
        return allocation.status.number or self.assign(allocation.metadata.uid)

    def release(self, uid: str) -> None:
        """Drops the number kept for an allocation, by uid; called when its object is gone. The number is not given to another one."""
        self._given.pop(uid, None)
