"""Counts of nodes by group, and how many groups a set of nodes takes of them.

A group is known by its rank: its place in the order of names. Neighbours in that order are adjacent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import sub
from typing import Final

_BITS: Final = 24
_RANK: Final = (1 << _BITS) - 1
"""Count and rank in one number that orders as the pair does: numbers are compared much faster than pairs."""
_MOST: Final = 1 << 62
"""More than any count and rank."""


class Part:
    """Nodes of one fingerprint, or of several: how many in each group (by rank), and the groups in order of that number.

    Changes are noted, and counted in when a group is asked about: the next change often takes them back.
    """

    __slots__ = ("_groups", "_noted", "_sizes", "total")

    total: int
    _groups: dict[int, int]
    _sizes: list[int]
    _noted: dict[int, int]

    def __init__(self, groups: Mapping[int, int]) -> None:
        self._groups = {rank: count for rank, count in groups.items() if count > 0}
        self._sizes = sorted([count << _BITS | rank for rank, count in self._groups.items()])
        self._noted = {}
        self.total = sum(self._groups.values())

    def copy(self) -> Part:
        """One that may be changed apart."""
        part = Part.__new__(Part)
        part._groups, part._sizes, part._noted, part.total = self._groups.copy(), self._sizes.copy(), self._noted.copy(), self.total
        return part

    def note(self, rank: int, by: int) -> None:
        """A group has more nodes, or fewer."""
        noted = self._noted
        noted[rank] = noted.get(rank, 0) + by
        self.total += by

    @property
    def groups(self) -> dict[int, int]:
        """How many nodes each group has, if any."""
        if self._noted:
            self._settle()
        return self._groups

    @property
    def ordered(self) -> list[tuple[int, int]]:
        """(nodes, group), ascending."""
        return [(size >> _BITS, size & _RANK) for size in self.sizes()]

    def holding(self, nodes: int) -> int | None:
        """The smallest group that holds so many; None if none does."""
        sizes = self.sizes()
        at = bisect_left(sizes, nodes << _BITS)
        return sizes[at] & _RANK if at < len(sizes) else None

    def at_least(self, nodes: int) -> Iterator[tuple[int, int]]:
        """(nodes, group) of every group of so many, ascending."""
        sizes = self.sizes()
        return ((size >> _BITS, size & _RANK) for size in sizes[bisect_left(sizes, nodes << _BITS) :])

    def fewest(self, nodes: int) -> int:
        """The fewest groups that hold so many nodes; needs `nodes` ≤ `total`."""
        return _fewest(self.sizes(), nodes)

    def largest(self, groups: int) -> int:
        """How many nodes so many groups hold at most."""
        return sum([size >> _BITS for size in self.sizes()[-groups:]]) if groups > 0 else 0

    def sizes(self) -> list[int]:
        """Count and rank of each group in one number, ascending."""
        if self._noted:
            self._settle()
        return self._sizes

    def _settle(self) -> None:
        groups, sizes = self._groups, self._sizes
        for rank, by in self._noted.items():
            if not by:
                continue
            before = groups.get(rank, 0)
            after = before + by
            if before:
                del sizes[bisect_left(sizes, before << _BITS | rank)]
            if after:
                groups[rank] = after
                insort(sizes, after << _BITS | rank)
            else:
                del groups[rank]
        self._noted.clear()


class Joined:
    """Parts that have no group in common, as one: it counts nothing of its own, so that many may share a part."""

    __slots__ = ("_home", "parts")

    def __init__(self, parts: Sequence[Part], home: Mapping[int, int]) -> None:
        """`home`: the place of the part that a group belongs to, by rank."""
        self.parts = parts
        self._home = home

    @property
    def total(self) -> int:
        """How many nodes."""
        return sum([part.total for part in self.parts])

    @property
    def groups(self) -> dict[int, int]:
        """How many nodes each group has, if any."""
        groups: dict[int, int] = {}
        for part in self.parts:
            groups |= part.groups
        return groups

    @property
    def ordered(self) -> list[tuple[int, int]]:
        """(nodes, group), ascending."""
        return [(size >> _BITS, size & _RANK) for size in self._sizes()]

    def copy(self) -> Joined:
        """One that may be changed apart."""
        return Joined([part.copy() for part in self.parts], self._home)

    def note(self, rank: int, by: int) -> None:
        """A group has more nodes, or fewer."""
        self.parts[self._home[rank]].note(rank, by)

    def holding(self, nodes: int) -> int | None:
        """The smallest group that holds so many; None if none does."""
        least, asked = _MOST, nodes << _BITS
        for part in self.parts:
            sizes = part.sizes()
            if sizes and sizes[-1] >= asked and (size := sizes[bisect_left(sizes, asked)]) < least:
                least = size
        return least & _RANK if least < _MOST else None

    def at_least(self, nodes: int) -> Iterator[tuple[int, int]]:
        """(nodes, group) of every group of so many, ascending."""
        sizes = self._sizes()
        return ((size >> _BITS, size & _RANK) for size in sizes[bisect_left(sizes, nodes << _BITS) :])

    def fewest(self, nodes: int) -> int:
        """The fewest groups that hold so many nodes; needs `nodes` ≤ `total`."""
        asked = nodes << _BITS
        for part in self.parts:
            sizes = part.sizes()
            if sizes and sizes[-1] >= asked:
                return 1
        return _fewest(self._sizes(), nodes)

    def largest(self, groups: int) -> int:
        """How many nodes so many groups hold at most."""
        return sum([size >> _BITS for size in self._sizes()[-groups:]]) if groups > 0 else 0

    def _sizes(self) -> list[int]:
        sizes: list[int] = []
        for part in self.parts:
            sizes += part.sizes()
        sizes.sort()
        return sizes


Groups = Part | Joined
"""Nodes by group, and the groups in order of that number."""


def _fewest(sizes: Sequence[int], nodes: int) -> int:
    if sizes and sizes[-1] >> _BITS >= nodes:
        return 1
    reached = 0
    for groups, size in enumerate(reversed(sizes), start=1):
        reached += size >> _BITS
        if reached >= nodes:
            return groups
    return len(sizes) + 1


def tight(part: Groups, nodes: int, usable: Callable[[int], int] | None = None) -> list[tuple[int, int]]:
    """(group, nodes) with the fewest groups: best fit for one; else the closest neighbours, the largest first, the last best fit."""
    one = part.holding(nodes)
    if one is not None:
        if usable is not None:
            _, _, one = min((count / usable(rank), count, rank) for count, rank in part.at_least(nodes))
        return [(one, nodes)]
    return fewest_first(sorted((count, rank) for rank, count in _neighbours(part, nodes, part.fewest(nodes))), nodes)


def fewest_first(ordered: Sequence[tuple[int, int]], nodes: int) -> list[tuple[int, int]]:
    """(name, nodes) from (count, name) ascending: the largest whole, then the smallest that holds the rest; ties by name."""
    by_size = sorted(ordered, key=lambda entry: (-entry[0], entry[1]))
    chosen: list[tuple[int, int]] = []
    for place, (count, name) in enumerate(by_size):
        if count >= nodes:
            rest = by_size[place:]
            _, name = min((size, name) for size, name in rest if size >= nodes)
            return [*chosen, (name, nodes)]
        chosen.append((name, count))
        nodes -= count
    return chosen


def spread(part: Groups, nodes: int) -> list[tuple[int, int]]:
    """(group, nodes) over as many groups as can be, as evenly as they allow; the rest goes to the first in order."""
    given: dict[int, int] = {}
    left = nodes
    level: int | None = None
    ordered = part.ordered
    for place, (count, rank) in enumerate(ordered):  # the small ones first: they are filled, the others get the same each
        if level is None and count * (len(ordered) - place) > left:
            level = left // (len(ordered) - place)
        given[rank] = count if level is None else level
        left -= given[rank]
    for rank in sorted(given):
        if left and part.groups[rank] > given[rank]:
            given[rank] += 1
            left -= 1
    return [(rank, count) for rank, count in sorted(given.items()) if count]


def _neighbours(part: Groups, nodes: int, groups: int) -> list[tuple[int, int]]:
    """(group, nodes) of the shortest stretch in which so many groups hold so many nodes, the first of equal ones.

    Where groups as close as any hold it, no stretch is shorter. Else a group that does not reach `nodes` together with the largest
    others is of no use: it only lies between.
    """
    counts = part.groups
    ranks = sorted(counts)
    lasts = ranks[groups - 1 :]
    shortest = min(map(sub, lasts, ranks))
    total = sum([counts[rank] for rank in ranks[: groups - 1]])
    for place, last in enumerate(lasts):
        first = ranks[place]
        total += counts[last]
        if total >= nodes and last - first == shortest:
            return [(rank, counts[rank]) for rank in ranks[place : place + groups]]
        total -= counts[first]
    least = nodes - part.largest(groups - 1)
    line = sorted((rank, count) for count, rank in part.at_least(least))
    first, last = _stretch(line, nodes, groups)
    return [entry for entry in line if first <= entry[0] <= last]


def _stretch(line: Sequence[tuple[int, int]], nodes: int, groups: int) -> tuple[int, int]:
    """The shortest stretch in which so many groups hold so many."""
    best: tuple[int, int, int] | None = None
    inside: list[int] = []  # the counts of the stretch, ascending
    total, end = 0, 0
    for rank, count in line:
        while (len(inside) < groups or _top(inside, groups, total) < nodes) and end < len(line):
            insort(inside, line[end][1])
            total += line[end][1]
            end += 1
        if len(inside) < groups or _top(inside, groups, total) < nodes:
            break
        last = line[end - 1][0]
        if best is None or (last - rank, rank) < best[:2]:
            best = (last - rank, rank, last)
        del inside[bisect_left(inside, count)]
        total -= count
    assert best is not None, "all groups together hold it"  # noqa: S101
    return best[1], best[2]


def _top(inside: list[int], groups: int, total: int) -> int:
    return total if len(inside) <= groups else sum(inside[-groups:])
