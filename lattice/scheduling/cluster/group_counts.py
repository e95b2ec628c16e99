"""Counts of nodes by group, and the search for the fewest groups that hold so many nodes.

A group is known by its rank: its place in the order of names. Neighbours in that order are adjacent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_not, itemgetter
from typing import Final, Protocol

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


class GroupSizes(Protocol):
    """Nodes by group as one ascending list of numbers."""

    __slots__ = ()

    @property
    def total(self) -> int:
        """Returns how many nodes all groups have together."""
        ...

    def sizes(self) -> list[int]:
        """Returns for each group one number, count shifted left beside the rank, ascending."""
        ...


class SizedGroups(GroupSizes):
    """Answers about nodes by group that follow from their sizes; subclasses keep or compute these."""

    __slots__ = ()

    @property
    def ordered(self) -> list[tuple[int, int]]:
        """Returns (nodes, rank) of each group, ascending."""
        return [(size >> _BITS, size & _RANK) for size in self.sizes()]

    def holding(self, nodes: int) -> int | None:
        """Returns the rank of the smallest group that holds at least `nodes`; None if none does."""
        sizes = self.sizes()
        at = bisect_left(sizes, nodes << _BITS)
        return sizes[at] & _RANK if at < len(sizes) else None

    def at_least(self, nodes: int) -> Iterator[tuple[int, int]]:
        """Yields (nodes, rank) of every group with at least `nodes`, ascending."""
        sizes = self.sizes()
        return ((size >> _BITS, size & _RANK) for size in sizes[bisect_left(sizes, nodes << _BITS) :])

    def fewest(self, nodes: int) -> int:
        """Returns the fewest groups that hold `nodes`, at least 1, together; 0: all groups together do not."""
        if self.total < nodes:
            return 0
        sizes = self.sizes()
        return 1 if sizes[-1] >> _BITS >= nodes else _fewest(sizes, nodes)

    def largest(self, groups: int) -> int:
        """Returns how many nodes the `groups` largest groups hold together."""
        return sum([size >> _BITS for size in self.sizes()[-groups:]]) if groups > 0 else 0


class GroupCounts(SizedGroups):
    """Counts of the nodes of each group (by rank), and the groups in order of that number; of one fingerprint or of several.

    Changes are only noted, and counted in when a group is asked about: the next change often takes them back.
    """

    __slots__ = ("_groups", "_line", "_sizes", "noted", "total", "version")

    total: int
    _groups: dict[int, int]
    _sizes: list[int]
    noted: dict[int, int]
    """Changes by group that are not counted in yet; whoever adds one changes `total` too."""
    _line: Line | None
    """The groups in order of rank; None: made when it is next asked for."""
    version: int
    """Grows when noted changes are counted in."""

    def __init__(self, groups: Mapping[int, int]) -> None:
        self._groups = {rank: count for rank, count in groups.items() if count > 0}
        self._sizes = sorted([count << _BITS | rank for rank, count in self._groups.items()])
        self.noted = {}
        self._line = None
        self.total = sum(self._groups.values())
        self.version = 0

    def count_change(self, rank: int, by: int) -> None:
        """Counts `by` more nodes of a group (fewer if negative): in `total` at once, in the groups when they are next asked about."""
        noted = self.noted
        noted[rank] = noted.get(rank, 0) + by
        self.total += by  # pyright: ignore[reportIncompatibleMethodOverride] - an attribute is read as a property, and quicker

    @property
    def groups(self) -> dict[int, int]:
        """Returns how many nodes each group has, by rank; groups without any are left out."""
        if self.noted:
            self._settle()
        return self._groups

    def line(self) -> Line:
        """Returns the groups in order of rank with how many nodes each has; some may have none.

        The line is changed with the counts: a copy stays.
        """
        groups, line = self.groups, self._line
        if line is None:
            ranks = sorted(groups)
            line = self._line = Line(ranks, [groups[rank] for rank in ranks])
        return line

    def sizes(self) -> list[int]:
        """Returns for each group one number, count shifted left beside the rank, ascending."""
        if self.noted:
            self._settle()
        return self._sizes

    def _settle(self) -> None:
        """Counts the noted changes in, one group at a time, or all at once where more than a quarter of the groups changed."""
        self.version += 1
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
        """Counts the noted changes in and sorts the groups once, which is cheaper than moving each where many changed."""
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


class AdjustedGroups(SizedGroups):
    """Other counts with more, or fewer, nodes in some groups; they follow those counts, and are made when a group is asked about."""

    __slots__ = ("_by", "_extra", "_groups", "_made_of", "_of", "_sizes")

    def __init__(self, of: GroupCounts, by: dict[int, int]) -> None:
        """Adjusts the counts `of`; `by`: by rank, how many nodes more (fewer if negative) a group has."""
        self._of = of
        self._by = by
        self._extra = sum(by.values())
        self._made_of = -1
        """The version of the counts that `_groups` and `_sizes` were made of; −1: they are to be made anew."""
        self._groups: dict[int, int] = {}
        self._sizes: list[int] = []

    @property
    def total(self) -> int:
        """Returns how many nodes all groups have together."""
        return self._of.total + self._extra

    def adjust(self, rank: int, by: int) -> None:
        """Gives a group `by` more nodes (fewer if negative) beside those that its own count changes by."""
        self._by[rank] = self._by.get(rank, 0) + by
        self._extra += by
        self._made_of = -1

    @property
    def groups(self) -> dict[int, int]:
        """Returns how many nodes each group has, by rank; groups without any are left out."""
        self.sizes()
        return self._groups

    def line(self) -> Line:
        """Returns the groups in order of rank with how many nodes each has; some may have none."""
        groups, line = self.groups, self._of.line().copy()
        if not all(line.put(rank, groups.get(rank, 0)) for rank in self._by):
            ranks = sorted(groups)
            line = Line(ranks, [groups[rank] for rank in ranks])
        return line

    def sizes(self) -> list[int]:
        """Returns for each group one number, count shifted left beside the rank, ascending."""
        own = self._of.groups
        if self._made_of != self._of.version:
            self._made_of = self._of.version
            groups = own.copy()
            for rank, by in self._by.items():
                groups[rank] = groups.get(rank, 0) + by
            self._groups = {rank: count for rank, count in groups.items() if count}
            self._sizes = sorted([count << _BITS | rank for rank, count in self._groups.items()])
        return self._sizes


class JoinedCounts(SizedGroups):
    """Several counts that have no group in common, read as one; it stores no counts, so that many pools may share a part."""

    __slots__ = ("_line", "parts")

    def __init__(self, parts: Sequence[GroupCounts | AdjustedGroups]) -> None:
        self.parts = parts
        self._line: tuple[list[list[int]], Line, Callable[[list[int]], Sequence[int]]] | None = None
        """The line made last, with the ranks of each part that it was made of, and a function that puts the parts' counts in its order."""

    @property
    def total(self) -> int:
        """Returns how many nodes all groups have together."""
        total = 0
        for part in self.parts:
            total += part.total
        return total

    def sizes(self) -> list[int]:
        """Returns for each group one number, count shifted left beside the rank, ascending."""
        return self._top()

    @property
    def groups(self) -> dict[int, int]:
        """Returns how many nodes each group has, by rank; groups without any are left out."""
        groups: dict[int, int] = {}
        for part in self.parts:
            groups |= part.groups
        return groups

    def joined_of(self, parts: Sequence[AdjustedGroups]) -> JoinedCounts:
        """Returns a JoinedCounts of other parts, each of which counts the groups of the part in the same place here."""
        joined = JoinedCounts(parts)
        if self._line is not None:
            ranks, line, ordered = self._line
            joined._line = ranks, line.copy(), ordered
        return joined

    def holding(self, nodes: int) -> int | None:
        """Returns the rank of the smallest group that holds at least `nodes`; None if none does."""
        least, asked = _MOST, nodes << _BITS
        for part in self.parts:
            sizes = part.sizes()
            if sizes and sizes[-1] >= asked and (size := sizes[bisect_left(sizes, asked)]) < least:
                least = size
        return least & _RANK if least < _MOST else None

    def fewest(self, nodes: int) -> int:
        """Returns the fewest groups that hold `nodes`, at least 1, together; 0: all groups together do not."""
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
        """Returns how many nodes the `groups` largest groups hold together."""
        return sum([size >> _BITS for size in self._top(groups)[-groups:]]) if groups > 0 else 0

    def line(self) -> Line:
        """Returns the groups in order of rank with how many nodes each has; some may have none."""
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
        """Returns count and rank in one number of the largest `groups` groups of each part (0: of all groups), ascending."""
        sizes: list[int] = []
        for part in self.parts:
            sizes += part.sizes()[-groups:]
        sizes.sort()
        return sizes


Groups = GroupCounts | AdjustedGroups | JoinedCounts
"""Nodes by group: counted in itself, adjusted from other counts, or joined of parts."""


def _fewest(sizes: Sequence[int], nodes: int) -> int:
    """Returns how many of the largest groups hold `nodes` together; 0: all together do not.

    `sizes`: count and rank in one number, ascending.
    """
    reached = 0
    for groups, size in enumerate(reversed(sizes), start=1):
        reached += size >> _BITS
        if reached >= nodes:
            return groups
    return 0


def tight(part: Groups, nodes: int, groups: int, usable: Callable[[int], int] | None = None) -> list[tuple[int, int]]:
    """Returns (rank, nodes) of the `groups` groups to take `nodes` from; `groups` is the fewest that hold them.

    One group: the smallest that holds them or, with `usable` (usable nodes of a group), the one that they fill most. Several: the
    groups closest together, the largest taken whole first, the last the smallest that holds the rest.
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
    """Returns (place, nodes) of the sizes to take `nodes` from, which must suffice together: the largest whole, the last a best fit.

    The last is the smallest that holds the rest. Among equal sizes the first place is taken.
    """
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
    """Returns (rank, nodes) to take from as many groups as possible, as evenly as their sizes allow; the groups must hold `nodes`.

    A remainder goes to the groups of lowest rank that have nodes left. Groups of which none is taken are left out.
    """
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
