"""The figures of a quota tree in columns: one number for each resource and group, the children of one parent side by side.

The sums over the groups below are kept here: a change of demand adds its difference on the way to the root and stops where a max
hides it. Columns are 64-bit integers while every sum is sure to fit, so that many sets can be divided at once
(`lattice.quota.sweep`); else they are integers of any size.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Final

from lattice.quota.groups import ROOT, Group, Options, Resources

FITS: Final = 2**62
"""Below this every sum, and every difference of two sums, is a 64-bit integer."""
LIGHT: Final = 2**53
"""If the weights of one set sum to less, they convert to floating point exactly."""
NO_CUT: Final = 2**63 - 1

Column = MutableSequence[int]


class TreeColumns:
    """All figures of one quota tree; `QuotaTree` makes it of its groups, and `descent` divides in it.

    Slot 0 is the root; the children of slot p are the slots `first[p]` to `last[p]`, by name. A column holds the resource k of slot
    i at k × `width` + i.
    """

    def __init__(self, total: Resources, options: Options, groups: Mapping[str, Group], children: Mapping[str, Iterable[str]]) -> None:
        self.names = [ROOT]
        self.parent = [0]
        self.first: list[int] = []
        self.last: list[int] = []
        for at, name in enumerate(self.names):  # grows while it is walked
            self.first.append(len(self.names))
            self.names += sorted(children.get(name, ()))
            self.parent += [at] * (len(self.names) - len(self.parent))
            self.last.append(len(self.names))
        self.slots = {name: at for at, name in enumerate(self.names)}
        self.groups = [Group(ROOT, parent="", is_parent=True), *(groups[name] for name in self.names[1:])]
        booked = [[group.booked(amounts) for amounts in (group.request, group.used, group.non_preemptible_used)] for group in self.groups]
        resources = (
            amounts for group, own in zip(self.groups, booked, strict=True) for amounts in (group.max, group.min, group.floor, *own)
        )
        self.keys = list(dict.fromkeys([*total, *(key for amounts in resources for key in amounts)]))
        self.index = {key: at for at, key in enumerate(self.keys)}
        self.width = len(self.names) + 1
        """One more than the number of slots; the extra slot is always empty."""
        self.lends = [group.lends for group in self.groups]
        self.scales = [options.scale_min if group.scales is None else group.scales for group in self.groups]
        self.guarantees = [options.guarantee_used if group.guarantees is None else group.guarantees for group in self.groups]
        self.counted = set(total)
        """The resources of the tree's total; the mins of other resources do not shrink."""
        self.guaranteeing = any(self.guarantees[1:]) or any(group.floor for group in self.groups)
        self.literal = options.raw_weight
        parts = [[group.min, group.floor, *own] for group, own in zip(self.groups, booked, strict=True)]
        self.bound = [sum(amounts.get(key, 0) for each in parts for amounts in each) for key in self.keys]
        """By resource: the most that the demand of all groups together can add to a sum."""
        self.exact = any(bound >= FITS for bound in self.bound) or any(amount >= FITS for amount in total.values())
        self._fill(booked)

    def _fill(self, booked: Sequence[Sequence[Resources]]) -> None:
        """Fills all columns from the groups and from what their work asks for and uses (`booked`), and marks every parent as to be divided.

        Sums up what children ask for, use and are guaranteed.
        """
        groups, size = self.groups, len(self.keys) * self.width
        self.least = self._column([group.min for group in groups])
        self.most = self._column([group.max for group in groups], absent=1 << 400 if self.exact else NO_CUT)
        self.floor = self._column([group.floor for group in groups])
        self.kept = self._column(
            [
                group.min if guarantees else {key: group.kept(key) for key in group.min} if group.lend_limit or not group.lends else {}
                for group, guarantees in zip(groups, self.guarantees, strict=True)
            ]
        )
        self.asked, self.used, self.fixed = (self._column([own[at] for own in booked]) for at in range(3))
        self.allocated = self._of(self.used)
        self.limit, self.secured, self.guaranteed, self.effective, self.runtime, self.given = (self._of([0] * size) for _ in range(6))
        self.level = array("d", [0.0]) * size
        """By slot: the water level at which its children were divided last, from which the next search starts."""
        self.vectors: object = None
        """The columns as matrices, kept by `lattice.quota.sweep`; None: not made yet."""
        self.stale = bytearray(b"\1") * len(self.names)
        """By slot: whether its children must be divided again."""
        self._weigh()
        for k in range(len(self.keys)):
            self._sum_up(k * self.width)

    def _column(self, rows: Sequence[Resources], *, absent: int = 0) -> Column:
        """Returns a column of the amounts of each slot; `absent`: for resources that a slot lacks. The extra slot has nothing."""
        return self._of([amounts.get(key, absent) for key in self.keys for amounts in (*rows, {})])

    def _of(self, amounts: Sequence[int]) -> Column:
        """Returns a column of these amounts: a list where amounts may exceed 64 bits (`exact`), else an array of 64-bit integers."""
        return list(amounts) if self.exact else array("q", amounts)

    def store(self, column: Column, start: int, amounts: Sequence[int]) -> None:
        """Writes amounts into a column, into consecutive places from `start` on."""
        column[start : start + len(amounts)] = amounts if self.exact else array("q", amounts)

    def _weigh(self) -> None:
        """Reduces the weights of each set of siblings by their common divisor, which changes no share."""
        weights = [group.weight(literal=self.literal) for group in self.groups]
        flat = [weight.get(key, 0) for key in self.keys for weight in (*weights, {})]
        self.heavy: set[tuple[int, int]] = set()
        """(resource, parent) of the sets whose weights are too large for floating-point numbers."""
        for p, (first, last) in enumerate(zip(self.first, self.last, strict=True)):
            for k in range(len(self.keys)) if last > first else ():
                start, end = k * self.width + first, k * self.width + last
                common = math.gcd(*flat[start:end])
                if common > 1:
                    flat[start:end] = [weight // common for weight in flat[start:end]]
                if sum(flat[start:end]) >= LIGHT:
                    self.heavy.add((k, p))
        self.weight = self._of(flat)

    def _sum_up(self, base: int) -> None:
        """Computes and stores the sums of one resource from the own demand of the groups, from the leaves up."""
        asked, limit, used, fixed = self.asked, self.limit, self.used, self.fixed
        for i in range(len(self.names) - 1, 0, -1):
            at, above = base + i, base + self.parent[i]
            limit[at] = min(max(asked[at], self.kept[at]), self.most[at])
            asked[above] += limit[at]
            used[above] += used[at]
            fixed[above] += fixed[at]
        for i in range(len(self.names) - 1, 0, -1) if self.guaranteeing else ():
            at, above = base + i, base + self.parent[i]
            self.guaranteed[at] = self._guaranteed(i, at)
            self.allocated[above] += max(self.guaranteed[at], used[at])
            self.secured[above] += self.guaranteed[at]

    def _guaranteed(self, i: int, at: int) -> int:
        """Returns the amount that is never taken back from a slot.

        Where the group guarantees its use: the use below it, at least min; else the guarantees of its children.
        """
        return max(self.allocated[at], self.least[at]) if self.guarantees[i] else self.secured[at]

    def book(self, slot: int, key: str, request: int, used: int, fixed: int) -> bool:
        """Adds (negative: subtracts) demand of a resource at a slot and in the sums above it.

        Returns False, with nothing added, when the sums may no longer fit into 64 bits; the caller then makes new columns.
        """
        k = self.index[key]
        base = k * self.width
        self.bound[k] += request + used + fixed
        if self.bound[k] >= FITS and not self.exact:
            return False
        if request:
            self._ask(base, slot, request)
        if used:
            if self.guaranteeing:
                self._allocate(base, slot, used)
            else:
                self._climb(self.used, base, slot, used)
        if fixed:
            self._climb(self.fixed, base, slot, fixed)
        return True

    def _ask(self, base: int, i: int, more: int) -> None:
        """Adds to the requests of a slot and of those above it, up to the level at which a max hides the change.

        Where a sibling gets less than it asks for, before and after, no share changes: its set stays as it is.
        """
        asked, limit, runtime = self.asked, self.limit, self.runtime
        while True:
            at = base + i
            asked[at] += more
            if not i:
                return
            new = min(max(asked[at], self.kept[at]), self.most[at])
            old = limit[at]
            more = new - old
            if not more:
                return
            limit[at] = new
            i = self.parent[i]
            if runtime[at] >= old or runtime[at] >= new:
                self.stale[i] = 1

    def _climb(self, column: Column, base: int, i: int, more: int) -> None:
        """Adds an amount to the entry of group `i` and to those of all its ancestors, in the part of the column that begins at `base`."""
        column[base + i] += more
        while i:
            i = self.parent[i]
            column[base + i] += more

    def _allocate(self, base: int, i: int, more: int) -> None:
        """Adds to the use of a slot and of those above it, and to the guarantees that follow from it."""
        booked, secured = more, 0
        while True:
            at = base + i
            before = max(self.guaranteed[at], self.used[at])
            self.used[at] += more
            self.allocated[at] += booked
            self.secured[at] += secured
            if not i:
                return
            new = self._guaranteed(i, at)
            secured = new - self.guaranteed[at]
            self.guaranteed[at] = new
            booked = max(new, self.used[at]) - before
            i = self.parent[i]
            if secured:
                self.stale[i] = 1

    def path(self, slot: int) -> list[int]:
        """Returns the slots above a slot, the root first."""
        way = []
        while slot:
            slot = self.parent[slot]
            way.append(slot)
        way.reverse()
        return way

    def counts(self, k: int, p: int) -> bool:
        """Tells whether a resource is counted at parent slot p, so that the mins below it shrink to the amount that it has."""
        if not p:
            return self.keys[k] in self.counted
        key, above = self.keys[k], self.parent[p]
        start, end = self.first[above], self.last[above]
        if any(key in self.groups[i].max for i in range(start, end)):
            return True
        return any(self.limit[k * self.width + start : k * self.width + end])
