"""The waiting jobs of the counts-only engine, in the order in which a backfill pass asks them, in blocks that a pass can skip.

A job is known by its rank: its place in that order among all jobs of the workload. Each block knows the fewest nodes and the
shortest estimate of its jobs, so a pass over a long queue reads only blocks in which a job may fit; where there are many blocks,
also the shortest estimate of the jobs of each size, in powers of two. When the job that had the least goes, the least is unknown
until a pass has read a long block for nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from lattice.errors import Corrupt

BLOCK: Final = 128
"""Jobs in a new block; a block of twice as many is halved."""
_NEVER: Final = 1 << 62
UNKNOWN: Final = 0
"""Stands for a least that is not known: fewer nodes, and shorter, than any job's."""
LONG: Final = 32
"""In a block of at least so many jobs an unknown least is computed again."""
FEW: Final = 4
"""Up to so many blocks, reading a block is cheaper than looking at the sizes of its jobs first."""


class WaitingJobs:
    """The ranks of the waiting jobs in ascending order; `nodes` and `estimate` (seconds) are given by rank."""

    __slots__ = ("_estimate", "_lasts", "_least", "_nodes", "_ranks", "_shortest", "_sizes", "_top")

    def __init__(self, nodes: Sequence[int], estimate: Sequence[int]) -> None:
        self._nodes = nodes
        self._estimate = estimate
        self._ranks: list[list[int]] = []
        self._lasts: list[int] = []
        self._least: list[int] = []
        self._shortest: list[int] = []
        self._sizes: list[list[int] | None] = []
        """By block: the shortest estimate of jobs of fewer than 2, 4, 8… nodes; None: to be computed after a change."""
        self._top = max(nodes, default=0).bit_length()

    def push(self, rank: int) -> None:
        """Adds the rank of a job that begins to wait."""
        lasts, least, shortest = self._lasts, self._least, self._shortest
        if not lasts or (rank > lasts[-1] and len(self._ranks[-1]) >= BLOCK):
            self._insert(len(lasts), [rank])
            return
        if rank > lasts[-1]:
            at = len(lasts) - 1
            lasts[at] = rank
            ranks = self._ranks[at]
            ranks.append(rank)
        else:
            at = bisect_left(lasts, rank)
            ranks = self._ranks[at]
            insort(ranks, rank)
        self._sizes[at] = None
        if self._nodes[rank] < least[at]:
            least[at] = self._nodes[rank]
        if self._estimate[rank] < shortest[at]:
            shortest[at] = self._estimate[rank]
        if len(ranks) >= 2 * BLOCK:
            self._drop(at)
            self._insert(at, ranks[BLOCK:])
            self._insert(at, ranks[:BLOCK])

    def remove(self, rank: int) -> None:
        """Removes the rank of a job that waits no more; it must be there."""
        self._remove(bisect_left(self._lasts, rank), rank)

    def _remove(self, at: int, rank: int) -> None:
        """Removes a rank from block `at`, and the block with its last rank; what is no longer known of the block is marked as unknown."""
        ranks = self._ranks[at]
        del ranks[bisect_left(ranks, rank)]
        if not ranks:
            self._drop(at)
            return
        self._lasts[at], self._sizes[at] = ranks[-1], None
        if self._nodes[rank] == self._least[at]:
            self._least[at] = UNKNOWN
        if self._estimate[rank] == self._shortest[at]:
            self._shortest[at] = UNKNOWN

    def pop_fitting(self, free: int, slack: int, extra: int) -> list[int]:
        """Removes and returns the ranks of the jobs that start now, each asked once and in order.

        A job starts if it fits into the `free` nodes that earlier ones left and either its estimate ends within `slack` seconds or it takes
        no more than the `extra` nodes, which it then uses up.
        """
        taken: list[int] = []
        nodes, estimate, at = self._nodes, self._estimate, 0
        while at < len(self._ranks):
            least = self._least[at]
            if least > free or (least > extra and self._shortest[at] > slack):
                at += 1
                continue
            if least > extra and len(self._ranks) > FEW and self._shortest_below(at, free.bit_length()) > slack:
                at += 1
                continue
            found: list[int] = []
            for rank in self._ranks[at]:
                need = nodes[rank]
                if need <= free:
                    if estimate[rank] <= slack:
                        free -= need
                        found.append(rank)
                    elif need <= extra:
                        free -= need
                        extra -= need
                        found.append(rank)
            if not found:
                if len(self._ranks[at]) >= LONG:
                    self._sum_up(at)
                at += 1
                continue
            at = self._without(at, found)
            taken += found
            if not free:
                break
        return taken

    def _shortest_below(self, at: int, bits: int) -> int:
        """Returns the shortest estimate among the jobs of a block that have fewer than 2^bits nodes."""
        row = self._sizes[at]
        if row is None:
            row = [_NEVER] * (self._top + 1)
            for rank in self._ranks[at]:
                size = self._nodes[rank].bit_length()
                row[size] = min(row[size], self._estimate[rank])
            row = self._sizes[at] = list(accumulate(row, min))
        return row[min(bits, self._top)]

    def _without(self, at: int, found: list[int]) -> int:
        """Removes jobs from a block, and joins it with the block before when both are small; returns the place of the next block to
        read.
        """
        blocks = len(self._ranks)
        if len(found) == 1:
            self._remove(at, found[0])
        else:
            gone = set(found)
            left = [rank for rank in self._ranks[at] if rank not in gone]
            self._drop(at)
            if left:
                self._insert(at, left)
        if len(self._ranks) < blocks:
            return at
        if at and len(self._ranks[at - 1]) + len(self._ranks[at]) <= BLOCK:
            joined = self._ranks[at - 1] + self._ranks[at]
            self._drop(at)
            self._drop(at - 1)
            self._insert(at - 1, joined)
            return at
        return at + 1

    def _sum_up(self, at: int) -> None:
        """Computes the fewest nodes and the shortest estimate of a block where they are unknown."""
        if self._least[at] == UNKNOWN:
            self._least[at] = min(map(self._nodes.__getitem__, self._ranks[at]))
        if self._shortest[at] == UNKNOWN:
            self._shortest[at] = min(map(self._estimate.__getitem__, self._ranks[at]))

    def _insert(self, at: int, ranks: list[int]) -> None:
        """Inserts a block of these ranks, ascending, before block `at`."""
        self._ranks.insert(at, ranks)
        self._lasts.insert(at, ranks[-1])
        self._least.insert(at, min(map(self._nodes.__getitem__, ranks)))
        self._shortest.insert(at, min(map(self._estimate.__getitem__, ranks)))
        self._sizes.insert(at, None)

    def _drop(self, at: int) -> None:
        """Removes block `at`."""
        del self._ranks[at], self._lasts[at], self._least[at], self._shortest[at], self._sizes[at]

    def __iter__(self) -> Iterator[int]:
        return (rank for ranks in self._ranks for rank in ranks)

    def validate(self) -> None:
        """Rebuilds the summaries of all blocks and compares; raises Corrupt on a difference."""
        ranks = list(self)
        lasts = [block[-1] for block in self._ranks]
        least = [min(self._nodes[rank] for rank in block) for block in self._ranks]
        shortest = [min(self._estimate[rank] for rank in block) for block in self._ranks]
        known = [(kept, found) for kept, found in zip((*self._least, *self._shortest), (*least, *shortest), strict=True) if kept != UNKNOWN]
        if ranks != sorted(set(ranks)) or lasts != self._lasts or any(kept != found for kept, found in known):
            raise Corrupt(f"the blocks of {len(ranks)} waiting jobs differ from their summaries")
        for block, row in zip(self._ranks, self._sizes, strict=True):
            for bits, kept in enumerate(row or ()):
                if kept != min((self._estimate[rank] for rank in block if self._nodes[rank] < 1 << bits), default=_NEVER):
                    raise Corrupt(f"a block of {len(block)} jobs has another shortest estimate below {1 << bits} nodes than {kept}")
