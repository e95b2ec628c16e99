"""The eligible nodes of a pending allocation by fingerprint and group, and the cheapest set of victims that clears enough of them.

A cell is (fingerprint, group). The levels are the candidate's preferences, strictest first: one group and one fingerprint, one group,
one fingerprint, anywhere. A requirement leaves levels out; the last level is the loosest that the candidate accepts, and the cost of a
set there is the measure for sets of stricter levels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.work import IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate
from lattice.scheduling.preemption.cover import Cover, Item, cheapest_cover

MOST_COMBINATIONS: Final = 512
"""Most sets of groups tried where TIGHT allows several groups; beyond it, groups that could give the fewest nodes are left out."""

Cell = tuple[str, str]
Region = tuple[str | None, str | None]
"""A fingerprint and a group in which the candidate's nodes must lie; None: any."""


class VictimSlot(NamedTuple):
    """One possible victim: the nodes (indices) that its end would free together, its cost (an integer above 0), its number of nodes."""

    nodes: tuple[int, ...]
    cost: int
    size: int


class ClearedNodes(NamedTuple):
    """The cheapest way to make room for a candidate.

    `chosen`: places of the victims in the given slots, ascending. `nodes`: the candidate's nodes then. `span`: the groups they
    take.
    """

    chosen: tuple[int, ...]
    nodes: tuple[int, ...]
    span: int
    cost: int


@dataclass(frozen=True, slots=True)
class _Level:
    by_fingerprint: bool
    by_group: bool

    def region(self, cell: Cell) -> Region:
        """Returns the region of this level that a cell lies in: its fingerprint, its group, both or neither."""
        return (cell[0] if self.by_fingerprint else None, cell[1] if self.by_group else None)


_BOTH, _GROUP, _FINGERPRINT, _ANYWHERE = _Level(True, True), _Level(False, True), _Level(True, False), _Level(False, False)


class PreemptionDomain:
    """The eligible nodes of one candidate by fingerprint and group; finds the cheapest victims that clear enough of them.

    Valid while the given nodes and free nodes stay as they are. `preemption` makes one for each question.
    """

    def __init__(self, candidate: Candidate, nodes: Mapping[int, NodeFacts], eligible: Collection[int], free: Collection[int]) -> None:
        self.wanted = candidate.minimum
        alike = candidate.conformance if candidate.minimum > 1 else IGNORED
        self._cells: dict[int, Cell] = {
            index: (nodes[index].fingerprint, nodes[index].group)
            for index in eligible
            if index in nodes and (alike != REQUIRED or nodes[index].fingerprint)  # an unknown fingerprint equals no other
        }
        self._free = sorted(index for index in set(free) if index in self._cells)
        self.most_groups = self._least_groups(alike == REQUIRED) if candidate.topology == TIGHT else None
        self._levels = self._accepted(alike, candidate.topology)

    @property
    def capacity(self) -> int:
        """Returns how many eligible nodes the candidate could have if all work were gone: in one group or of one fingerprint, where it
        requires that.
        """
        return max(self._by_region(self._cells).values(), default=0)

    @property
    def free(self) -> int:
        """Returns how many eligible nodes are free."""
        return len(self._free)

    def fits(self) -> bool:
        """Tells whether the candidate fits on free nodes, with the groups and fingerprints that it requires, so that nothing need end."""
        regions: dict[Region, list[int]] = {}
        for index in self._free:
            regions.setdefault(self._levels[-1].region(self._cells[index]), []).append(index)
        return any(self._pick(members) is not None for members in regions.values())

    def count(self, nodes: Iterable[int]) -> int:
        """Returns how many of these node indices are eligible."""
        return sum(index in self._cells for index in nodes)

    def cheapest(self, slots: Sequence[VictimSlot], most: int, premium: float) -> ClearedNodes | None:
        """Returns the victims to end and the nodes that they clear; None: no set of at most `most` slots suffices. `fits` must be False.

        Takes the strictest level (of groups and fingerprints) whose cheapest set costs at most `premium` times that of the loosest
        level. Equal costs: fewest, then largest, then first in `slots`.
        """
        frees = [Counter(self._cells[index] for index in slot.nodes if index in self._cells) for slot in slots]
        loosest = self._solve(self._levels[-1], slots, frees, most)
        if loosest is None:
            return None
        for level in self._levels[:-1]:
            found = self._solve(level, slots, frees, most)
            if found is not None and found[0].cost <= premium * loosest[0].cost:
                return self._cleared(found, slots)
        return self._cleared(loosest, slots)

    def _accepted(self, alike: str, topology: str) -> tuple[_Level, ...]:
        """Returns the levels that the candidate accepts, the strictest first; needs `most_groups` to be set. `alike`: its conformance."""
        levels = [_BOTH, _GROUP, _FINGERPRINT, _ANYWHERE]
        if alike == REQUIRED:
            levels = [_BOTH, _FINGERPRINT]
        elif alike != PREFERRED:
            levels = [_GROUP, _ANYWHERE]
        if topology == SPREAD:
            levels = [level for level in levels if not level.by_group]
        if self.most_groups is not None:
            levels = [level for level in levels if level.by_group == (self.most_groups == 1)]
        return tuple(levels)

    def _least_groups(self, alike: bool) -> int:
        """Returns how many groups the candidate would take on an empty machine; `alike`: on nodes of one fingerprint.

        Too few nodes give one more than there are groups.
        """
        sizes: dict[str | None, Counter[str]] = {}
        for fingerprint, group in self._cells.values():
            sizes.setdefault(fingerprint if alike else None, Counter())[group] += 1
        return min((_groups_for(self.wanted, each.values()) for each in sizes.values()), default=1)

    def _by_region(self, indices: Iterable[int]) -> Counter[Region]:
        """Counts these eligible nodes (indices) by region of the loosest level that the candidate accepts."""
        level = self._levels[-1]
        return Counter(level.region(self._cells[index]) for index in indices)

    def _pick(self, indices: Iterable[int]) -> list[list[int]] | None:
        """Chooses the candidate's nodes of these, by group: the fullest group first, the last a best fit; None: too few, or too
        many groups.
        """
        groups: dict[str, list[int]] = {}
        for index in indices:
            groups.setdefault(self._cells[index][1], []).append(index)
        left, taken = self.wanted, list[list[int]]()
        while left and groups:
            enough = [(len(members), name) for name, members in groups.items() if len(members) >= left]
            name = min(enough)[1] if enough else min((-len(members), name) for name, members in groups.items())[1]
            taken.append(groups.pop(name)[:left])
            left -= len(taken[-1])
        return None if left or (self.most_groups is not None and len(taken) > self.most_groups) else taken

    def _cleared(self, found: tuple[Cover, Region], slots: Sequence[VictimSlot]) -> ClearedNodes:
        """Returns the answer for a cover in a region: its slots, and the candidate's nodes among those that it frees and those that are
        free.
        """
        cover, region = found
        freed = {index for number in cover.idents for index in slots[number].nodes if index in self._cells}
        groups = self._pick(index for index in sorted(freed.union(self._free)) if _within(region, self._cells[index])) or []
        return ClearedNodes(cover.idents, tuple(sorted(index for group in groups for index in group)), len(groups), cover.cost)

    def _solve(self, level: _Level, slots: Sequence[VictimSlot], frees: Sequence[Counter[Cell]], most: int) -> tuple[Cover, Region] | None:
        """Returns the best cover in any region of a level, with the region (its name breaks ties); None: none suffices."""
        free = Counter(level.region(self._cells[index]) for index in self._free)
        items: dict[Region, list[Item]] = {}
        for number, (slot, cells) in enumerate(zip(slots, frees, strict=True)):
            for region, count in _summed(cells, level).items():
                items.setdefault(region, []).append(Item(count, slot.cost, slot.size, number))
        best: tuple[Cover, Region] | None = None
        for region in sorted(items, key=_named):
            if region[0] == "":
                continue  # an unknown fingerprint equals no other
            if self.most_groups is not None and self.most_groups > 1:
                cover = self._cover_of_few_groups(region, slots, frees, most)
            else:
                cover = cheapest_cover(items[region], self.wanted - free[region], most)
            if cover is not None and (best is None or cover < best[0]):
                best = cover, region
        return best

    def _cover_of_few_groups(self, region: Region, slots: Sequence[VictimSlot], frees: Sequence[Counter[Cell]], most: int) -> Cover | None:
        """Returns the best cover with which the candidate fits in at most `most_groups` groups of the region; None: none suffices."""
        free = Counter(self._cells[index][1] for index in self._free if _within(region, self._cells[index]))
        freed: dict[str, dict[int, int]] = {group: {} for group in free}
        for number, cells in enumerate(frees):
            for cell, count in cells.items():
                if _within(region, cell):
                    counts = freed.setdefault(cell[1], {})
                    counts[number] = counts.get(number, 0) + count
        best: Cover | None = None
        for groups in self._sets_of_groups(free, freed, most):
            together: Counter[int] = Counter()
            for group in groups:
                together.update(freed[group])
            items = (Item(count, slots[number].cost, slots[number].size, number) for number, count in together.items())
            wanted = self.wanted - sum(free[group] for group in groups)
            cover = cheapest_cover(items, wanted, most, None if best is None else best.cost)
            if cover is not None and (best is None or cover < best):
                best = cover
        return best

    def _sets_of_groups(self, free: Counter[str], freed: Mapping[str, Mapping[int, int]], most: int) -> Iterator[tuple[str, ...]]:
        """Yields the sets of `most_groups` groups that could hold the candidate if `most` slots were freed; where more than 512 sets exist,
        without the groups that could give the fewest nodes.
        """
        could = {group: free[group] + sum(sorted(counts.values(), reverse=True)[:most]) for group, counts in freed.items()}
        many = self.most_groups or 1
        rest = self.wanted - sum(sorted(could.values(), reverse=True)[: many - 1])
        groups = sorted((group for group in could if could[group] >= rest), key=lambda group: (-could[group], group))
        while math.comb(len(groups), many) > MOST_COMBINATIONS:
            groups.pop()
        for chosen in combinations(groups, many):
            if sum(could[group] for group in chosen) >= self.wanted:
                yield chosen


def _summed(cells: Mapping[Cell, int], level: _Level) -> dict[Region, int]:
    """Returns the counts of cells added up by the regions of a level."""
    counts: dict[Region, int] = {}
    for cell, count in cells.items():
        region = level.region(cell)
        counts[region] = counts.get(region, 0) + count
    return counts


def _groups_for(wanted: int, sizes: Iterable[int]) -> int:
    """Returns the fewest of these group sizes that hold `wanted` nodes; one more than there are if all hold fewer."""
    groups = 0
    for size in sorted(sizes, reverse=True):
        if wanted <= 0:
            break
        wanted -= size
        groups += 1
    return groups if wanted <= 0 else groups + 1


def _within(region: Region, cell: Cell) -> bool:
    """Tells whether a cell has the fingerprint and the group of a region; None in the region admits any."""
    return region[0] in (None, cell[0]) and region[1] in (None, cell[1])


def _named(region: Region) -> tuple[str, str]:
    """Returns the sort key of a region; None sorts as an empty name."""
    return (region[0] or "", region[1] or "")
