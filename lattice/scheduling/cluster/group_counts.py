"""Counts of nodes by group, and how many groups a set of nodes takes of them.

A group is known by its rank: its place in the order of names. Neighbours in that order are adjacent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_not, itemgetter
from typing import Final

from lattice.scheduling.cluster.stretches import Line, neighbours

_BITS: Final = 24
_RANK: Final = (1 << _BITS) - 1
"""Count and rank in one number that orders as the pair does: numbers are compared much faster than pairs."""
_FEW: Final = 8
"""So many of the largest groups are looked at before all of them are."""
_MANY: Final = 4
"""Groups are ordered anew where one in so many has changed."""
_MOST: Final = 1 << 62
"""More than any count and rank."""


class GroupCounts:
    """Nodes of one fingerprint, or of several: how many in each group (by rank), and the groups in order of that number.

    Changes are noted, and counted in when a group is asked about: the next change often takes them back.
    """

    __slots__ = ("_groups", "_line", "_sizes", "noted", "total")

    total: int
    _groups: dict[int, int]
    _sizes: list[int]
    noted: dict[int, int]
    """Changes by group that are not counted in yet; whoever adds one changes `total` too."""
    _line: Line | None
    """None: to be made when it is asked for."""

    def __init__(self, groups: Mapping[int, int]) -> None:
        self._groups = {rank: count for rank, count in groups.items() if count > 0}
        self._sizes = sorted([count << _BITS | rank for rank, count in self._groups.items()])
        self.noted = {}
        self._line = None
        self.total = sum(self._groups.values())

    def copy(self) -> GroupCounts:
        """Returns a copy that may be changed apart."""
        part = GroupCounts.__new__(GroupCounts)
        part._groups, part._sizes, part.noted, part.total = self._groups.copy(), self._sizes.copy(), self.noted.copy(), self.total
        part._line = None if self._line is None else self._line.copy()
        return part

    def count_change(self, rank: int, by: int) -> None:
        """Counts more nodes of a group, or fewer."""
        noted = self.noted
        noted[rank] = noted.get(rank, 0) + by
        self.total += by

    @property
    def groups(self) -> dict[int, int]:
        """Returns how many nodes each group has, if any."""
        if self.noted:
            self._settle()
        return self._groups

    @property
    def ordered(self) -> list[tuple[int, int]]:
        """Returns (nodes, group), ascending."""
        return [(size >> _BITS, size & _RANK) for size in self.sizes()]

    def holding(self, nodes: int) -> int | None:
        """Returns the smallest group that holds so many; None if none does."""
        sizes = self.sizes()
        at = bisect_left(sizes, nodes << _BITS)
        return sizes[at] & _RANK if at < len(sizes) else None

    def at_least(self, nodes: int) -> Iterator[tuple[int, int]]:
        """Yields (nodes, group) of every group of at least so many, ascending."""
        sizes = self.sizes()
        return ((size >> _BITS, size & _RANK) for size in sizes[bisect_left(sizes, nodes << _BITS) :])

    def fewest(self, nodes: int) -> int:
        """Returns the fewest groups that hold so many nodes; 0: all of them do not."""
        if self.total < nodes:
            return 0
        sizes = self._sizes if not self.noted else self.sizes()
        return 1 if sizes[-1] >> _BITS >= nodes else _fewest(sizes, nodes)

    def largest(self, groups: int) -> int:
        """Returns how many nodes so many groups hold at most."""
        return sum([size >> _BITS for size in self.sizes()[-groups:]]) if groups > 0 else 0

    def line(self) -> Line:
        """Returns the groups in order of their names, with how many nodes each has; some may have none."""
        groups, line = self.groups, self._line
        if line is None:
            ranks = sorted(groups)
            line = self._line = Line(ranks, [groups[rank] for rank in ranks])
        return line

    def sizes(self) -> list[int]:
        """Returns count and rank of each group in one number, ascending."""
        if self.noted:
            self._settle()
        return self._sizes

    def _settle(self) -> None:
        if _MANY * len(self.noted) > len(self._sizes):
            self._settle_many()
            return
        groups, sizes = self._groups, self._sizes
        for rank, by in self.noted.items():
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
            if self._line is not None and not self._line.put(rank, after):
                self._line = None
        self.noted.clear()

    def _settle_many(self) -> None:
        """Counts the changes in and orders the groups once, which is cheaper than to move each."""
        groups = self._groups
        for rank, by in self.noted.items():
            if not by:
                continue
            after = groups.get(rank, 0) + by
            if after:
                groups[rank] = after
            else:
                del groups[rank]
            if self._line is not None and not self._line.put(rank, after):
                self._line = None
        self._sizes = sorted([count << _BITS | rank for rank, count in groups.items()])
        self.noted.clear()


class JoinedCounts:
    """Parts that have no group in common, as one: it counts nothing of its own, so that many may share a part."""

    __slots__ = ("_home", "_line", "parts")

    def __init__(self, parts: Sequence[GroupCounts], home: Mapping[int, int]) -> None:
        """Joins these parts; `home` has the place of the part that a group belongs to, by rank."""
        self.parts = parts
        self._home = home
        self._line: tuple[list[list[int]], Line, Callable[[list[int]], Sequence[int]]] | None = None
        """Of which ranks of the parts the line was made, the line, and the counts of the parts in its order."""

    @property
    def total(self) -> int:
        """Returns how many nodes there are."""
        return sum([part.total for part in self.parts])

    @property
    def groups(self) -> dict[int, int]:
        """Returns how many nodes each group has, if any."""
        groups: dict[int, int] = {}
        for part in self.parts:
            groups |= part.groups
        return groups

    @property
    def ordered(self) -> list[tuple[int, int]]:
        """Returns (nodes, group), ascending."""
        return [(size >> _BITS, size & _RANK) for size in self._top()]

    def copy(self) -> JoinedCounts:
        """Returns a copy that may be changed apart."""
        joined = JoinedCounts([part.copy() for part in self.parts], self._home)
        if self._line is not None:
            ranks, line, ordered = self._line
            joined._line = ranks, line.copy(), ordered
        return joined

    def count_change(self, rank: int, by: int) -> None:
        """Counts more nodes of a group, or fewer."""
        self.parts[self._home[rank]].count_change(rank, by)

    def holding(self, nodes: int) -> int | None:
        """Returns the smallest group that holds so many; None if none does."""
        least, asked = _MOST, nodes << _BITS
        for part in self.parts:
            sizes = part.sizes()
            if sizes and sizes[-1] >= asked and (size := sizes[bisect_left(sizes, asked)]) < least:
                least = size
        return least & _RANK if least < _MOST else None

    def at_least(self, nodes: int) -> Iterator[tuple[int, int]]:
        """Yields (nodes, group) of every group of at least so many, ascending."""
        sizes = self._top()
        return ((size >> _BITS, size & _RANK) for size in sizes[bisect_left(sizes, nodes << _BITS) :])

    def fewest(self, nodes: int) -> int:
        """Returns the fewest groups that hold so many nodes; needs `nodes` ≤ `total`."""
        asked, total = nodes << _BITS, 0
        for part in self.parts:
            sizes = part.sizes()
            if sizes and sizes[-1] >= asked:
                return 1
            total += part.total
        if total < nodes:
            return 0
        return _fewest(self._top(_FEW)[-_FEW:], nodes) or _fewest(self._top(), nodes)

    def largest(self, groups: int) -> int:
        """Returns how many nodes so many groups hold at most."""
        return sum([size >> _BITS for size in self._top(groups)[-groups:]]) if groups > 0 else 0

    def line(self) -> Line:
        """Returns the groups in order of their names, with how many nodes each has; some may have none."""
        lines = [part.line() for part in self.parts]
        made_of = [line.ranks for line in lines]
        if self._line is None or any(map(is_not, self._line[0], made_of)):
            ranks = list(chain.from_iterable(made_of))
            order = sorted(range(len(ranks)), key=ranks.__getitem__)
            line = Line([ranks[place] for place in order], ())
            self._line = made_of, line, itemgetter(*order) if len(order) > 1 else list
        _, line, ordered = self._line
        line.counts = ordered(list(chain.from_iterable([each.counts for each in lines])))
        return line

    def _top(self, groups: int = 0) -> list[int]:
        """Returns count and rank of the largest groups, so many of each part (0: all), ascending."""
        sizes: list[int] = []
        for part in self.parts:
            sizes += part.sizes()[-groups:]
        sizes.sort()
        return sizes


Groups = GroupCounts | JoinedCounts
"""Nodes by group, and the groups in order of that number."""


def _fewest(sizes: Sequence[int], nodes: int) -> int:
    reached = 0
    for groups, size in enumerate(reversed(sizes), start=1):
        reached += size >> _BITS
        if reached >= nodes:
            return groups
    return 0


def tight(part: Groups, nodes: int, groups: int, usable: Callable[[int], int] | None = None) -> list[tuple[int, int]]:
    """Returns (group, nodes) with so many groups, the fewest: best fit for one; else the closest neighbours.

    Of these the largest come first, and the last is a best fit.
    """
    if groups == 1:
        one = part.holding(nodes)
        assert one is not None, "one group holds it"  # noqa: S101
        if usable is not None:
            _, _, one = min((count / usable(rank), count, rank) for count, rank in part.at_least(nodes))
        return [(one, nodes)]
    near = neighbours(part.line(), nodes, groups, nodes - part.largest(groups - 1))
    return [(near[place][0], count) for place, count in fewest_first([count for _, count in near], nodes)]


def fewest_first(sizes: Sequence[int], nodes: int) -> list[tuple[int, int]]:
    """Returns (place, nodes) of sizes that hold so many: the largest whole, then the smallest that holds the rest; ties by place."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    chosen: list[tuple[int, int]] = []
    for at, place in enumerate(order):
        size = sizes[place]
        if size >= nodes:
            for other in order[at + 1 :]:
                if sizes[other] < nodes:
                    break
                if sizes[other] < size:
                    place, size = other, sizes[other]
            chosen.append((place, nodes))
            return chosen
        chosen.append((place, size))
        nodes -= size
    return chosen


def spread(part: Groups, nodes: int) -> list[tuple[int, int]]:
    """Returns (group, nodes) over as many groups as can be, as evenly as they allow; the rest goes to the first in order."""
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
