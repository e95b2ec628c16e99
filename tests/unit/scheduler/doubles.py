"""Doubles of the scheduler's parts: a ledger that answers at once, counted wakes, a LatticeConfig that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lattice.errors import Retry
from lattice.kube.lasting import LastKnown
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Accepted, Proposal, Verdict
from lattice.ledger.stored import Stored
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config


class Wakes(asyncio.Event):
    """The event that a cycle is due, which counts how often it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def set(self) -> None:
        """Sets the event, and counts."""
        self.count += 1
        super().set()


class AllocationsHeld:
    """A cache of allocations whose watch lives, or is lost."""

    def __init__(self, objects: Mapping[str, Allocation], version: str = "7") -> None:
        self.objects = objects
        self.version = version
        self.lists = 1
        self.lost = False

    async def reach(self, version: str) -> str:
        """Returns its version, unless it is lost or behind."""
        if self.lost or int(version or 0) > int(self.version):
            raise Retry("it cannot be told how old the cache is", reason="WatchLost" if self.lost else "CacheBehind")
        return self.version


class FakeLedger:
    """A ledger whose every proposal is kept, and accepted at once unless `answers` are collected by hand."""

    def __init__(self, book: Book | None = None, *, by_hand: bool = False) -> None:
        self.book = book if book is not None else Book.empty("term", "commit")
        self.stored = Stored(self.book)
        self.paused = ""
        self.proposed: list[Proposal] = []
        self.answers: list[asyncio.Future[Verdict]] = []
        self._by_hand = by_hand

    def propose(self, proposal: Proposal) -> asyncio.Future[Verdict]:
        """Keeps the proposal; the future is the verdict."""
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.proposed.append(proposal)
        self.answers.append(answer)
        if not self._by_hand:
            answer.set_result(Accepted())
        return answer


def known(config: Config | None) -> LastKnown[Config]:
    """The LatticeConfig as a term knows it; None: it has never been seen."""
    found: LastKnown[Config] = LastKnown("lattice")
    found.object = config
    return found
