"""The groups that lie closest together and hold enough nodes: the shortest stretch of ranks, the first of equally short ones.

A group is known by its rank: its place in the order of names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress, count, islice
from operator import add, sub
from typing import Final

_FEW: Final = 4
"""Up to so many groups their counts are added up as far as they are looked at; for more, sums from the first group on are cheaper."""


class Line:
    """Groups by rank, ascending (`ranks`), and how many nodes each has (`counts`, same order; some may be 0)."""

    __slots__ = ("_closest", "_places", "counts", "ranks")

    def __init__(self, ranks: list[int], counts: Sequence[int]) -> None:
        self.ranks = ranks
        self.counts = counts
        self._places: dict[int, int] | None = None
        self._closest: dict[int, int] = {}

    def copy(self) -> Line:
        """Returns a copy with counts of its own; the ranks are shared."""
        line = Line(self.ranks, list(self.counts))
        line._places, line._closest = self._placed(), self._closest
        return line

    def put(self, rank: int, count: int) -> bool:
        """Sets the nodes of a group; returns False, without a change, where the group is not in the line."""
        place = self._placed().get(rank)
        if place is None:
            return False
        self.counts[place] = count  # type: ignore[index]  # a line that is changed has a list
        return True

    def _placed(self) -> dict[int, int]:
        """Returns the place in the line of each group, by rank."""
        if self._places is None:
            self._places = {each: place for place, each in enumerate(self.ranks)}
        return self._places

    def closest(self, groups: int) -> int:
        """Returns the least distance in ranks between the first and the last of `groups` groups; the line must have so many."""
        found = self._closest.get(groups)
        if found is None:
            found = self._closest[groups] = min(map(sub, self.ranks[groups - 1 :], self.ranks))
        return found


def neighbours(line: Line, nodes: int, groups: int, least: int) -> list[tuple[int, int]]:
    """Returns (rank, nodes), by rank, of the groups of at least `least` nodes in the shortest stretch of ranks, the first of equally short
    ones, in which `groups` groups hold `nodes` together; more than `groups` may lie in it.

    `groups` must be the fewest that hold them. Groups of fewer than `least` nodes cannot be among these: with them, the largest others do
    not suffice.
    """
    place = _side_by_side(line, nodes, groups)
    if place is not None:
        return list(zip(line.ranks[place : place + groups], line.counts[place : place + groups], strict=True))
    enough = list(map(least.__le__, line.counts))
    ranks, counts = list(compress(line.ranks, enough)), list(compress(line.counts, enough))
    first, last = _between(ranks, counts, nodes, groups) if groups <= 3 else _stretch(ranks, counts, nodes, groups)
    inside = slice(bisect_left(ranks, first), bisect_right(ranks, last))
    return list(zip(ranks[inside], counts[inside], strict=True))


def _side_by_side(line: Line, nodes: int, groups: int) -> int | None:
    """Returns the place in the line of the first of `groups` consecutive groups that hold `nodes`, among those that lie closest of all.

    None: none of the closest do; others, farther apart, still may.
    """
    ranks, counts = line.ranks, line.counts
    if groups <= _FEW:
        sums: Iterable[int] = counts
        for apart in range(1, groups):
            sums = map(add, sums, islice(counts, apart, None))
    else:
        reached = list(accumulate(counts, initial=0))
        sums = map(sub, reached[groups:], reached)
    closest = line.closest(groups)
    for place in compress(count(), map(nodes.__le__, sums)):
        if ranks[place + groups - 1] - ranks[place] == closest:
            return place
    return None


def _between(ranks: list[int], counts: list[int], nodes: int, groups: int) -> tuple[int, int]:
    """Returns the first and the last rank of the shortest stretch, the first of equally short ones, in which 2 or 3 groups (`groups`) hold
    `nodes`; all groups together must.

    With three groups these are the two ends and the largest group between them.
    """
    step = min(map(sub, ranks[1:], ranks))
    inner = [0] * len(counts)
    best: tuple[int, int, int] | None = None
    for apart in range(groups - 1, len(counts)):
        if best is not None and best[0] < apart * step:
            break
        sums = map(add, counts, islice(counts, apart, None))
        if groups == 3:
            inner = list(map(max, inner, islice(counts, apart - 1, None)))
            sums = map(add, sums, inner)
        for place in compress(count(), map(nodes.__le__, sums)):
            found = ranks[place + apart] - ranks[place], ranks[place], ranks[place + apart]
            best = found if best is None or found < best else best
    assert best is not None, "all groups together hold it"  # noqa: S101
    return best[1], best[2]


def _stretch(ranks: list[int], counts: list[int], nodes: int, groups: int) -> tuple[int, int]:
    """Returns the first and the last rank of the shortest stretch, the first of equally short ones, in which the `groups` largest groups
    hold `nodes`; all groups together must.
    """
    best: tuple[int, int, int] | None = None
    inside: list[int] = []  # the counts of the stretch, ascending
    total, end = 0, 0
    for rank, size in zip(ranks, counts, strict=True):
        while (len(inside) < groups or _top(inside, groups, total) < nodes) and end < len(ranks):
            insort(inside, counts[end])
            total += counts[end]
            end += 1
        if len(inside) < groups or _top(inside, groups, total) < nodes:
            break
        last = ranks[end - 1]
        if best is None or (last - rank, rank) < best[:2]:
            best = (last - rank, rank, last)
        del inside[bisect_left(inside, size)]
        total -= size
    assert best is not None, "all groups together hold it"  # noqa: S101
    return best[1], best[2]


def _top(inside: list[int], groups: int, total: int) -> int:
    """Returns how many nodes the `groups` largest of the counts `inside` (ascending) hold together; `total`: the sum of them all."""
    return total if len(inside) <= groups else sum(inside[-groups:])
