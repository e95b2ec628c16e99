"""The quota tree: an object with one owner, changed only by named events, which divides again where a figure has changed.

Requests sum up towards the root: a group's request, cut at its max, is its parent's demand, and a change stops where the cut hides
it. Runtime is divided downwards: each set of siblings divides its parent's runtime. A changed set is marked, and divided when a
question needs a group below it, so that one change and one question cost the path to the root and not the tree. The figures stand
in columns (`lattice.quota.columns`). The groups of a tree stay the same: other groups are another tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import sub
from typing import NamedTuple

from lattice.errors import Corrupt, NotFound, Rejected
from lattice.quota.columns import Column, TreeColumns
from lattice.quota.descent import divide_all, divide_path
from lattice.quota.gates import Borrower, Level
from lattice.quota.groups import BUILT_IN, ROOT, Group, Options, Resources

Own = tuple[dict[str, int], dict[str, int], dict[str, int]]
"""The demand of a group's own work: request, used, and used by non-preemptible work."""


class Figures(NamedTuple):
    """The figures of one resource of one group at the moment of the question."""

    used: int
    non_preemptible_used: int
    request: int
    runtime: int
    min: int
    effective_min: int


class QuotaTree:
    """One quota tree: its groups, the demand of their work, and the runtime (what each group may use now) that follows."""

    def __init__(self, total: Resources, options: Options, groups: Iterable[Group] = ()) -> None:
        self.options = options
        self._total = dict(total)
        self._groups: dict[str, Group] = {}
        self._children: dict[str, dict[str, None]] = {ROOT: {}}
        self._own: dict[str, Own] = {}
        """The demand of each group's own work, by name, where it has ever had any."""
        self._columns: TreeColumns | None = None
        self._borrowed: dict[tuple[str, str], Level] = {}
        """By (parent, resource): the loans among its children, kept until a figure changes."""
        self._plant(list(groups))

    # Events

    def total_changed(self, total: Resources) -> None:
        """Replaces the capacity that the tree divides."""
        self._borrowed.clear()
        if total.keys() - self._total.keys() or any(amount >= 2**62 for amount in total.values()):
            self._columns = None
        self._total = dict(total)
        self._fill_root()

    def built_in_used_changed(self, system: Resources, default: Resources) -> None:
        """Replaces what the system and the default group use, which is taken from the total."""
        self._borrowed.clear()
        self.options = replace(self.options, system_used=dict(system), default_used=dict(default))
        self._fill_root()

    def demand_added(self, name: str, request: Resources, used: Resources, non_preemptible_used: Resources) -> None:
        """Adds amounts (negative: subtracts) to the demand of the work bound to a group; no sum goes below 0.

        Raises NotFound for an unknown group and Rejected for the root.
        """
        self._borrowed.clear()
        group = self._group(name)
        own = self._demand(group)
        changed: dict[str, list[int]] = {}
        for at, more in enumerate((request, used, non_preemptible_used)):
            sums = own[at]
            for key, amount in more.items():
                before = sums.get(key, 0)
                new = sums[key] = max(0, before + amount)
                if new != before:
                    if key not in changed:
                        changed[key] = [0, 0, 0]
                    changed[key][at] = new - before
        self._book(group, changed)

    @contextmanager
    def supposed(self, name: str, request: Resources) -> Iterator[None]:
        """Adds amounts (negative: subtracts) to the request of a group while the block runs; cached answers are valid again afterwards.

        No sum goes below 0: of a larger amount as much is subtracted as the group requests.
        """
        own = self._demand(self._group(name))[0]
        added = {key: max(amount, -own.get(key, 0)) for key, amount in request.items()}
        found, self._borrowed = self._borrowed, {}
        self.demand_added(name, added, {}, {})
        try:
            yield
        finally:
            self.demand_added(name, {key: -amount for key, amount in added.items()}, {}, {})
            self._borrowed = found

    # Questions

    def runtime(self, name: str) -> dict[str, int]:
        """Returns by resource how much a group may use now; for the root, the amounts that the tree divides. NotFound: an unknown group."""
        columns = self._divided(name)
        return self._managed(columns, name, columns.runtime)

    def effective_min(self, name: str) -> dict[str, int]:
        """Returns by resource the part of its min that is guaranteed to a group now; for the root, its runtime. Raises NotFound for an
        unknown group.
        """
        columns = self._divided(name)
        return self._managed(columns, name, columns.effective if name != ROOT else columns.runtime)

    def request(self, name: str) -> dict[str, int]:
        """Returns the request of a group's own work and of the groups below it, each of these cut at its max, by resource.

        It is at least the part of min that the group does not lend, and is not cut at the group's own max.
        """
        self._known(name)
        columns = self._ready()
        slot = columns.slots[name]
        ats = [(key, k * columns.width + slot) for k, key in enumerate(columns.keys)]
        found = {key: max(columns.asked[at], columns.kept[at]) for key, at in ats}
        return {key: amount for key, amount in found.items() if amount}

    def child_request(self, name: str) -> dict[str, int]:
        """Returns the request of a group before it is raised to the part of min that the group does not lend; resources without any are
        left out.
        """
        return self._some(name, self._ready().asked)

    def used(self, name: str) -> dict[str, int]:
        """Returns the amounts that the work of a group, and of all groups below it, holds, for the root of all; resources without any are
        left out.
        """
        return self._some(name, self._ready().used)

    def non_preemptible_used(self, name: str) -> dict[str, int]:
        """Returns the part of a group's use that non-preemptible work holds."""
        return self._some(name, self._ready().fixed)

    def guaranteed(self, name: str) -> dict[str, int]:
        """Returns the amounts that are never taken back from a group; empty where the tree does not guarantee use."""
        return self._some(name, self._ready().guaranteed)

    def levels(self, name: str, keys: Sequence[str]) -> Iterator[tuple[Group, list[Figures | None]]]:
        """Yields a group and all above it, itself first, each with its figures of these resources (None: it does not manage the
        resource).
        """
        columns = self._divided(name)
        slot = columns.slots[name]
        while slot:
            group = columns.groups[slot]
            yield group, [_figures(columns, columns.index[key] * columns.width + slot) if key in group.max else None for key in keys]
            slot = columns.parent[slot]

    def fits(self, name: str, amounts: Resources) -> bool:
        """Tells whether `amounts` more use stays within the runtime and the max of a group and of all above it.

        A resource that a group does not manage, and an amount of 0 or less, is not compared there.
        """
        columns = self._divided(name)
        used, runtime, most = columns.used, columns.runtime, columns.most
        slot = columns.slots[name]
        asked = [(columns.index[key] * columns.width, key, amount) for key, amount in amounts.items() if key in columns.index]
        while slot:
            for base, key, amount in asked:
                at = base + slot
                new = used[at] + amount
                if amount > 0 and (new > runtime[at] or new > most[at]) and key in columns.groups[slot].max:
                    return False
            slot = columns.parent[slot]
        return True

    def borrowed(self, parent: str, key: str) -> Level:
        """Returns the loans of a resource among the groups directly below a parent (use above the effective min); kept until a figure
        changes.
        """
        found = self._borrowed.get((parent, key))
        if found is None:
            found = self._borrowed[parent, key] = self._level(parent, key)
        return found

    def is_wanted(self, name: str, key: str) -> bool:
        """Tells whether a group beside this one, or beside one above it, may use more of a resource than it uses."""
        columns = self._divided(name)
        slot, base = columns.slots[name], columns.index[key] * columns.width
        while slot:
            p = columns.parent[slot]
            beside = range(base + columns.first[p], base + columns.last[p])
            if any(columns.used[at] < columns.runtime[at] for at in beside if at != base + slot):
                return True
            slot = p
        return False

    def overused(self) -> list[str]:
        """Returns the groups that use more of a managed resource than their runtime and than their min; parents first."""
        self.refresh()
        columns = self._ready()
        found: set[int] = set()
        for k, key in enumerate(columns.keys):
            row = slice(k * columns.width + 1, (k + 1) * columns.width - 1)
            rows = zip(columns.used[row], columns.runtime[row], columns.least[row], strict=True)
            over = [slot for slot, (used, runtime, least) in enumerate(rows, start=1) if used > runtime and used > least]
            found.update(slot for slot in over if key in columns.groups[slot].max)
        return [columns.names[slot] for slot in sorted(found)]

    def path(self, name: str) -> list[str]:
        """Returns a group and all above it, itself first, without the root."""
        self._known(name)
        return list(self._upwards(name))[:-1]

    def refresh(self) -> None:
        """Divides every marked set at once, which is cheaper than a question for every group when many are marked."""
        divide_all(self._ready())

    def group(self, name: str) -> Group:
        """Returns a group as it is configured, with the present demand of its own work."""
        group, own = self._group(name), self._own.get(name)
        if own is None:
            return group
        request, used, fixed = ({key: amount for key, amount in sums.items() if amount} for sums in own)
        return replace(group, request=request, used=used, non_preemptible_used=fixed)

    def demands(self) -> Iterator[tuple[str, Own]]:
        """Yields (name, own demand) of every group whose own work has any; absent resources are 0."""
        for name in sorted(self._own):
            request, used, fixed = ({key: amount for key, amount in sums.items() if amount} for sums in self._own[name])
            if request or used or fixed:
                yield name, (request, used, fixed)

    def limits(self, name: str) -> Group:
        """Returns a group as it is configured; the demand in it is that of its creation, not the present one."""
        return self._group(name)

    def children(self, name: str) -> list[str]:
        """Returns the groups directly below one, in the order in which they were given."""
        self._known(name)
        return list(self._children[name])

    def names(self) -> list[str]:
        """Returns the names of all groups, parents first, without the root."""
        found: list[str] = []
        waiting = [ROOT]
        while waiting:
            found.append(waiting.pop())
            waiting.extend(reversed(self._children[found[-1]]))
        return found[1:]

    def depth(self, name: str) -> int:
        """Returns how many groups stand above one; 0 on the first level."""
        self._known(name)
        return sum(1 for _ in self._upwards(name)) - 2

    def validate(self) -> None:
        """Builds the tree again from its groups and compares every figure; raises Corrupt on a difference."""
        again = QuotaTree(self._total, self.options, [self.group(name) for name in self.names()])
        again.refresh()
        questions = ("request", "child_request", "used", "non_preemptible_used", "guaranteed", "runtime", "effective_min")
        for name in (ROOT, *self._groups):
            for question in questions:
                ours, fresh = getattr(self, question)(name), getattr(again, question)(name)
                if ours != fresh:
                    sentence = f'quota "{name}": its {question} is {ours}, and its groups make {fresh}'
                    raise Corrupt(sentence, reason="QuotaTreeDiffers")

    # Structure

    def _plant(self, groups: list[Group]) -> None:
        """Adds all groups, in any order.

        Raises Rejected for a name that is taken or built in, and for a group that no parents connect with the root; groups added by then
        stay.
        """
        below: dict[str, list[Group]] = {}
        for group in groups:
            below.setdefault(group.parent, []).append(group)
        waiting = [ROOT]
        for parent in waiting:
            for group in below.pop(parent, ()):
                if group.name in self._groups or group.name in BUILT_IN:
                    raise Rejected(f'quota "{group.name}": the name is taken', reason="DuplicateName")
                self._put(group)
                waiting.append(group.name)
        if below:
            lost = sorted(group.name for rest in below.values() for group in rest)
            raise Rejected(f"no way leads from {', '.join(lost[:5])} to the root", reason="ParentUnknown")

    def _put(self, group: Group) -> None:
        """Adds a group, and what its own work asks for and uses, below its parent, which must be in the tree."""
        self._groups[group.name] = group
        if group.request or group.used or group.non_preemptible_used:
            self._demand(group)
        self._children[group.parent][group.name] = None
        self._children[group.name] = {}

    def _known(self, name: str) -> None:
        """Raises NotFound where a group is not in the tree; the root is always known."""
        if name != ROOT and name not in self._groups:
            raise NotFound(f'quota "{name}" is not in the tree', reason="QuotaUnknown")

    def _group(self, name: str) -> Group:
        """Returns a group by its name. Raises Rejected for the root, NotFound for an unknown name."""
        if name == ROOT:
            raise Rejected(f"{ROOT} is the root: its total changes, it does not", reason="BuiltInGroup")
        self._known(name)
        return self._groups[name]

    def _demand(self, group: Group) -> Own:
        """Returns the requested, used and non-preemptibly used amounts of a group's own work, which the caller may change; at the first
        call they are copied from the group.
        """
        own = self._own.get(group.name)
        if own is None:
            own = self._own[group.name] = (dict(group.request), dict(group.used), dict(group.non_preemptible_used))
        return own

    def _upwards(self, name: str) -> Iterator[str]:
        """Yields the name of a group and of all above it, the root last."""
        while name:
            yield name
            name = self._groups[name].parent if name != ROOT else ""

    # Figures

    def _ready(self) -> TreeColumns:
        """Returns the tree's columns, which are made again after groups or options have changed; divides nothing."""
        if self._columns is None:
            groups = {name: self.group(name) for name in self._groups}
            self._columns = TreeColumns(self._total, self.options, groups, self._children)
            self._fill_root()
        return self._columns

    def _divided(self, name: str) -> TreeColumns:
        """Returns the tree's columns, with the runtime of a group, and of all groups above it, up to date.

        Raises NotFound for an unknown name.
        """
        self._known(name)
        columns = self._ready()
        divide_path(columns, columns.slots[name])
        return columns

    def _book(self, group: Group, changed: dict[str, list[int]]) -> None:
        """Adds a change of a group's own demand to the columns; drops these where they must be made again."""
        columns = self._columns
        if columns is None:
            return
        slot = columns.slots[group.name]
        for key, more in changed.items():
            booked = key in group.max or group.keeps_unmanaged
            if booked and (key not in columns.index or not columns.book(slot, key, *more)):
                self._columns = None  # made again, for the new resource or for sums of any size
                return

    def _fill_root(self) -> None:
        """Sets the amounts to divide: the total without what the built-in groups use."""
        columns = self._columns
        if columns is None:
            return
        system, default = self.options.system_used, self.options.default_used
        for k, key in enumerate(columns.keys):
            amount = self._total.get(key, 0) - system.get(key, 0) - default.get(key, 0)
            columns.runtime[k * columns.width] = max(0, amount)
        if self._total.keys() != columns.counted:
            columns.counted = set(self._total)
            columns.stale[:] = b"\1" * len(columns.stale)  # mins of a resource that nobody counts do not shrink

    def _managed(self, columns: TreeColumns, name: str, column: Column) -> dict[str, int]:
        """Returns a group's entries of a column, by resource: for the resources that its max names, or that the total names for the
        root.
        """
        slot = columns.slots[name]
        keys = self._total if name == ROOT else self._groups[name].max
        return {key: column[columns.index[key] * columns.width + slot] for key in keys}

    def _level(self, parent: str, key: str) -> Level:
        """Returns which children of a parent use more of a resource than their effective min, those that use most more first, with the sum.

        Divides the children first where a figure has changed.
        """
        columns = self._divided(parent)
        p, base = columns.slots[parent], columns.index[key] * columns.width
        if columns.last[p] > columns.first[p]:
            divide_path(columns, columns.first[p])
        first, last = columns.first[p], columns.last[p]
        more = map(sub, columns.used[base + first : base + last], columns.effective[base + first : base + last])
        above = sorted((-each, name) for each, name in zip(more, columns.names[first:last], strict=True) if each > 0)
        return Level(tuple(Borrower(name, -each) for each, name in above), -sum(each for each, _ in above))

    def _some(self, name: str, column: Column) -> dict[str, int]:
        """Returns a group's entries of a column that are not 0, by resource. Raises NotFound for an unknown name."""
        self._known(name)
        columns = self._ready()
        slot = columns.slots[name]
        return {key: amount for k, key in enumerate(columns.keys) if (amount := column[k * columns.width + slot])}


def _figures(columns: TreeColumns, at: int) -> Figures:
    """Returns use, request, runtime and mins of one group and resource, at position `at` of all columns; the request is at least what the
    group keeps.
    """
    request = max(columns.asked[at], columns.kept[at])
    return Figures(columns.used[at], columns.fixed[at], request, columns.runtime[at], columns.least[at], columns.effective[at])
