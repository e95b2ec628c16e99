"""Several quota trees over one cluster, with the built-in groups: one object with one owner, changed by named events.

Each tree has nodes of its own and divides their capacity. Work whose group is in no tree belongs to the default group, which has a
ceiling of its own and no share; its use and that of the system group is taken from the default tree's capacity once. A question
divides only the sets of siblings on the way to its group that have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lattice.errors import NotFound, Rejected
from lattice.quota.declared import DEFAULT, SYSTEM
from lattice.quota.gates import MAX, MIN, NOBODY, RUNTIME, Blocked, Gate, Level, Limited
from lattice.quota.groups import ROOT, Group, Options, Resources
from lattice.quota.tree import Figures, QuotaTree

DEFAULT_TREE: Final = ""
"""The tree of all nodes that no other tree claims."""
ALIASES: Final = {"koordinator-default-quota": DEFAULT, "koordinator-system-quota": SYSTEM}
"""Koordinator's names of the built-in groups."""


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """One tree as it is declared: its groups, without demand, and its options.

    A group of the default tree that has a built-in group's name sets that group's max.
    """

    name: str = DEFAULT_TREE
    groups: tuple[Group, ...] = ()
    options: Options = field(default_factory=lambda: Options(scale_min=True))


@dataclass(frozen=True, slots=True)
class Demand:
    """The amounts that the work bound to one group asks for and holds."""

    request: Resources = field(default_factory=dict)
    """Asked for by pending and running work."""
    used: Resources = field(default_factory=dict)
    non_preemptible_used: Resources = field(default_factory=dict)

    def parts(self) -> tuple[Resources, Resources, Resources]:
        """Returns request, used, and used by non-preemptible work."""
        return self.request, self.used, self.non_preemptible_used

    def plus(self, request: Resources, used: Resources, non_preemptible_used: Resources) -> Demand:
        """Returns this demand with these amounts added (negative: subtracted), no amount below 0."""
        return Demand(_sum(self.request, request), _sum(self.used, used), _sum(self.non_preemptible_used, non_preemptible_used))


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of one group at the moment of the question, as `quota tree` and the status show it; amounts in whole units."""

    name: str
    tree: str
    parent: str
    """Empty on the first level."""
    depth: int
    is_parent: bool
    lends: bool
    min: Resources
    max: Resources
    weight: Resources
    effective_min: Resources
    child_request: Resources
    """The request of its own work and of its children, each child's cut at its max."""
    request: Resources
    """`child_request`, raised to the part of min that the group does not lend."""
    used: Resources
    non_preemptible_used: Resources
    runtime: Resources

    @property
    def borrowed(self) -> dict[str, int]:
        """Returns by resource the use above the effective min; resources without any are left out."""
        return {key: more for key in self.max if (more := self.used.get(key, 0) - self.effective_min.get(key, 0)) > 0}


@dataclass(frozen=True, slots=True)
class Overuse:
    """A group that uses more than it may: by resource what it uses, and what it is allowed (never less than its min)."""

    name: str
    tree: str
    used: Resources
    allowed: Resources
    by_demand: bool
    """Whether other groups want the excess back; False: only the capacity, or the group's own limits, have shrunk."""


class Forest:
    """All quota trees with their capacity and the demand of all work; the cluster state keeps one in `QuotaUsage`."""

    def __init__(self, trees: Iterable[TreeSpec] = ()) -> None:
        self._specs: dict[str, TreeSpec] = {}
        self._trees: dict[str, QuotaTree] = {}
        self._tree_of: dict[str, str] = {}
        self._capacity: dict[str, dict[str, int]] = {}
        self._before: dict[str, dict[str, int]] = {}
        self._strays: dict[str, Demand] = {}
        self._default_max: dict[str, int] = {}
        self._declared_data: list[dict[str, Any]] | None = None
        self.declare(trees)

    # Events

    def declare(self, trees: Iterable[TreeSpec]) -> None:
        """Replaces all trees; demand, and the capacity of trees that stay, are kept.

        Raises Rejected, with nothing changed, where a name stands in two trees or the groups of one make no tree.
        """
        specs = {spec.name: spec for spec in trees}
        specs.setdefault(DEFAULT_TREE, TreeSpec())
        tree_of: dict[str, str] = {}
        for spec in specs.values():
            for group in spec.groups:
                if tree_of.setdefault(group.name, spec.name) != spec.name:
                    raise Rejected(f'quota "{group.name}" stands in two trees', reason="DuplicateName")
        tree_of = {name: tree for name, tree in tree_of.items() if not _built_in(name)}
        demand = dict(self._demands())
        planted = {name: self._planted(spec, demand) for name, spec in specs.items()}
        default = [group for group in specs[DEFAULT_TREE].groups if ALIASES.get(group.name, group.name) == DEFAULT]
        self._specs, self._trees, self._tree_of, self._declared_data = specs, planted, tree_of, None
        self._default_max = dict(default[0].max) if default else {}
        self._strays = {name: booked for name, booked in demand.items() if name not in tree_of}
        self._capacity = {name: self._capacity.get(name, {}) for name in specs}
        self._before = {name: self._before.get(name, {}) for name in specs}
        self._built_in_used()

    def capacity(self, tree: str, amounts: Resources) -> None:
        """Sets the capacity of a tree: the sum of the resources of its counted nodes; raises NotFound for an unknown tree.

        The largest amounts are remembered until `settled` drops them: overuse is judged by them.
        """
        self._known(tree)
        before = self._before[tree]
        for key, amount in amounts.items():
            before[key] = max(before.get(key, 0), amount)
        self._capacity[tree] = dict(amounts)
        self._trees[tree].total_changed(_total(self._specs[tree], amounts))

    def demand(
        self, leaf: str, request: Resources | None = None, used: Resources | None = None, non_preemptible_used: Resources | None = None
    ) -> None:
        """Adds amounts (negative: subtracts) to the demand of the work bound to a group; no sum goes below 0.

        A name in no tree counts as the default group, unless it is the system group's.
        """
        more = (request or {}, used or {}, non_preemptible_used or {})
        tree = self._tree_of.get(leaf)
        if tree is not None:
            self._trees[tree].demand_added(leaf, *more)
            return
        leaf = ALIASES.get(leaf, leaf)
        self._strays[leaf] = self._strays.get(leaf, Demand()).plus(*more)
        if not any(self._strays[leaf].parts()):
            del self._strays[leaf]
        if more[1]:
            self._built_in_used()

    @contextmanager
    def supposed(self, leaf: str, request: Resources) -> Iterator[None]:
        """Adds amounts (negative: subtracts) to the request of the work bound to a group while the block runs.

        No sum goes below 0: of a larger amount as much is subtracted as the group requests.
        """
        tree = self._tree_of.get(leaf)
        if tree is not None:
            with self._trees[tree].supposed(leaf, request):
                yield
            return
        own = self._strays.get(ALIASES.get(leaf, leaf), Demand()).request
        added = {key: max(amount, -own.get(key, 0)) for key, amount in request.items()}
        self.demand(leaf, added)
        try:
            yield
        finally:
            self.demand(leaf, {key: -amount for key, amount in added.items()})

    def settled(self) -> None:
        """Drops the remembered larger capacity of each tree in which no group uses more than it may any longer.

        Until then overuse is judged by the capacity of before it shrank (`overused`).
        """
        for tree in self._trees:
            if self._shrunk(tree) and not any(True for _ in self._over(tree, {})):
                self._before[tree] = dict(self._capacity[tree])

    # Questions

    def trees(self) -> tuple[str, ...]:
        """Returns the names of all trees."""
        return tuple(self._trees)

    def names(self, tree: str = DEFAULT_TREE) -> list[str]:
        """Returns the groups of a tree, parents first; raises NotFound for an unknown tree."""
        self._known(tree)
        return self._trees[tree].names()

    def __contains__(self, name: object) -> bool:
        """Tells whether a group of this name is declared in any tree."""
        return name in self._tree_of

    def children(self, parent: str, tree: str = DEFAULT_TREE) -> list[str]:
        """Returns the groups directly below `parent` in a tree, "" for its first level; raises NotFound for an unknown tree or group."""
        self._known(tree)
        return self._trees[tree].children(parent or ROOT)

    def tree_of(self, name: str) -> str:
        """Returns the tree of a group; the default tree for a built-in group and for a name in no tree."""
        return self._tree_of.get(name, DEFAULT_TREE)

    def managed(self, leaf: str) -> frozenset[str]:
        """Returns the resources that a group or any above it manages, which alone bound its use; for a name in no tree, those of the
        default group's max.
        """
        tree = self._tree_of.get(leaf)
        if tree is None:
            return frozenset(self._default_max)
        return frozenset(key for name in self._trees[tree].path(leaf) for key in self._trees[tree].limits(name).max)

    def path(self, leaf: str) -> tuple[str, ...]:
        """Returns a group and all above it, itself first; for a name in no tree, the default (or the system) group alone."""
        tree = self._tree_of.get(leaf)
        if tree is None:
            return (SYSTEM if ALIASES.get(leaf, leaf) == SYSTEM else DEFAULT,)
        return tuple(self._trees[tree].path(leaf))

    def total(self, tree: str = DEFAULT_TREE) -> dict[str, int]:
        """Returns the amounts that a tree divides: its capacity less what built-in groups use; raises NotFound for an unknown tree."""
        self._known(tree)
        return self._trees[tree].runtime(ROOT)

    def scarce(self, tree: str = DEFAULT_TREE) -> frozenset[str]:
        """Returns the resources of which the mins of a tree's first level exceed what the tree divides."""
        total, sums = self.total(tree), dict[str, int]()
        for name in self.children("", tree):
            for key, amount in self._trees[tree].limits(name).min.items():
                sums[key] = sums.get(key, 0) + amount
        return frozenset(key for key, amount in sums.items() if amount > total.get(key, 0))

    def booked(self, leaf: str) -> Demand:
        """Returns the demand of the work bound to one group itself, without that of groups below it."""
        tree = self._tree_of.get(leaf)
        return self._strays.get(ALIASES.get(leaf, leaf), Demand()) if tree is None else _demand_of(self._trees[tree].group(leaf))

    def admits(self, leaf: str, amounts: Resources, *, non_preemptible: bool = False) -> Blocked | None:
        """Returns the first level and resource that does not allow `amounts` more use at a leaf; None: all levels allow it.

        A resource that a group does not manage is not compared there. `non_preemptible`: the leaf's min bounds such use as well.
        """
        tree = self._tree_of.get(leaf)
        if tree is not None and not non_preemptible and self._trees[tree].fits(leaf, amounts):
            return None
        for gate in self._gates(leaf, amounts, non_preemptible=non_preemptible):
            if not gate.passes:
                return self.blocked(gate)
        return None

    def blocked(self, gate: Gate) -> Blocked:
        """Returns the verdict for a comparison that does not pass, with the groups that borrow the missing resource."""
        return Blocked(gate, self._level(gate))

    def gates(self, leaf: str, amounts: Resources, *, non_preemptible: bool = False) -> tuple[Gate, ...]:
        """Returns every comparison that more use of `amounts` meets, from the leaf up to the first level; a resource that a group does not
        manage is not compared there.

        A name in no tree meets the max of the default group only, the system group nothing; `non_preemptible`: the leaf's min, too.
        """
        return tuple(self._gates(leaf, amounts, non_preemptible=non_preemptible))

    def standing(self, name: str) -> GroupState:
        """Returns the present state of a group; raises NotFound for an unknown one."""
        if _built_in(name):
            return self._built_in_standing(ALIASES.get(name, name))
        tree = self._tree_of.get(name)
        if tree is None:
            raise NotFound(f'quota "{name}" is in no tree', reason="QuotaUnknown")
        return self._standing(tree, name)

    def standings(self, tree: str = DEFAULT_TREE) -> Iterator[GroupState]:
        """Yields the present state of every group of a tree, parents first."""
        names = self.names(tree)
        self._trees[tree].refresh()
        for name in names:
            yield self._standing(tree, name)

    def overused(self, *, on_shrink: bool = False, leaving: Iterable[tuple[str, Resources]] = ()) -> tuple[Overuse, ...]:
        """Returns the groups that use more than they may and whose excess other groups want back; with `on_shrink`, all that use
        more.

        Others want it back while one beside the group, or beside one above it, may use more than it does. While capacity has shrunk
        since no group was over, a group is judged by the capacity as it was. `leaving` is work that is ending, as leaf and amounts:
        it is still booked as used, and does not count.
        """
        gone: dict[str, dict[str, int]] = {}
        for leaf, amounts in leaving:
            for name in self.path(leaf):
                gone[name] = _sum(gone.get(name, {}), amounts)
        return tuple(over for tree in self._trees for over in self._over(tree, gone) if over.by_demand or on_shrink)

    def snapshot(self) -> dict[str, Any]:
        """Returns the trees, capacities and demands as plain data, of which `restored` makes an equal forest; the caller must not
        change it.
        """
        if self._declared_data is None:
            self._declared_data = [_spec_data(spec) for spec in self._specs.values()]
        return {
            "trees": self._declared_data,
            "capacity": {tree: dict(amounts) for tree, amounts in self._capacity.items()},
            "before": {tree: dict(amounts) for tree, amounts in self._before.items()},
            "demand": {name: [dict(part) for part in demand.parts()] for name, demand in self._demands()},
        }

    @classmethod
    def restored(cls, data: Mapping[str, Any]) -> Forest:
        """Returns a forest equal to the one of a snapshot."""
        forest = cls(_spec_of(entry) for entry in data["trees"])
        for amounts_by_tree in (data["before"], data["capacity"]):
            for tree, amounts in amounts_by_tree.items():
                forest.capacity(tree, amounts)
        for name, (request, used, non_preemptible) in data["demand"].items():
            forest.demand(name, request, used, non_preemptible)
        return forest

    def validate(self) -> None:
        """Compares every tree with one built from scratch; raises Corrupt on a difference."""
        for tree in self._trees.values():
            tree.validate()

    # Parts of events

    def _planted(self, spec: TreeSpec, demand: Mapping[str, Demand]) -> QuotaTree:
        """Returns the quota tree of a specification, charged with this demand by group.

        The present tree is returned where its specification is unchanged and none of its groups is charged outside a tree.
        """
        if self._specs.get(spec.name) == spec and not any(group.name in self._strays for group in spec.groups):
            return self._trees[spec.name]
        groups = [_with(group, demand.get(group.name, Demand())) for group in spec.groups if not _built_in(group.name)]
        return QuotaTree(_total(spec, self._capacity.get(spec.name, {})), spec.options, groups)

    def _demands(self) -> Iterator[tuple[str, Demand]]:
        """Yields (group, demand) of all work, groups without any left out."""
        for tree in self._trees.values():
            for name, parts in tree.demands():
                yield name, Demand(*parts)
        yield from self._strays.items()

    def _built_in_used(self) -> None:
        """Subtracts what the default and the system group use from the amounts that the default tree divides."""
        default, system = self._stray(DEFAULT), self._stray(SYSTEM)
        self._trees[DEFAULT_TREE].built_in_used_changed(system.used, default.used)

    def _stray(self, name: str) -> Demand:
        """Returns the demand of the default or the system group; work that belongs to no other group counts as the default's."""
        found = Demand()
        for leaf, demand in self._strays.items():
            if (leaf == SYSTEM) == (name == SYSTEM):
                found = found.plus(*demand.parts())
        return found

    def _known(self, tree: str) -> None:
        """Raises NotFound where there is no quota tree of this name."""
        if tree not in self._trees:
            raise NotFound(f'there is no quota tree "{tree}"', reason="QuotaUnknown")

    # Parts of questions

    def _gates(self, leaf: str, amounts: Resources, *, non_preemptible: bool) -> Iterator[Gate]:
        """Yields the limits that a request of a leaf meets on its way up, for each group and resource that the group bounds.

        A request that is non-preemptible also meets the leaf's min; a leaf outside all trees meets the maximum of the default group only,
        or, for the system group, nothing.
        """
        asked = sorted((key, amount) for key, amount in amounts.items() if amount > 0)
        tree = self._tree_of.get(leaf)
        if tree is None:
            yield from self._default_gates(asked) if ALIASES.get(leaf, leaf) != SYSTEM else ()
            return
        for at, (group, figures) in enumerate(self._trees[tree].levels(leaf, [key for key, _ in asked])):
            for (key, amount), seen in zip(asked, figures, strict=True):
                if seen is None:
                    continue  # a resource that a group does not manage is not bounded there
                most = group.max[key]
                if at == 0 and non_preemptible:
                    yield _gate(group.name, key, amount, MIN, seen.non_preemptible_used, seen.min, seen, most)
                if most <= seen.runtime:
                    yield _gate(group.name, key, amount, MAX, seen.used, most, seen, most)
                else:
                    yield _gate(group.name, key, amount, RUNTIME, seen.used, seen.runtime, seen, most)

    def _default_gates(self, asked: list[tuple[str, int]]) -> Iterator[Gate]:
        """Yields the limits of the default group for the resources asked for; a resource that its maximum does not name is unbounded."""
        demand = self._stray(DEFAULT)
        for key, amount in asked:
            most = self._default_max.get(key)
            if most is not None:
                used, fixed = demand.used.get(key, 0), demand.non_preemptible_used.get(key, 0)
                seen = Figures(used, fixed, demand.request.get(key, 0), most, 0, 0)
                yield _gate(DEFAULT, key, amount, MAX, used, most, seen, most)

    def _level(self, gate: Gate) -> Level:
        """Returns the loans of the missing resource among the groups of the level that blocks."""
        tree = self._tree_of.get(gate.quota)
        if tree is None or gate.by != RUNTIME:
            return NOBODY
        return self._trees[tree].borrowed(self._trees[tree].limits(gate.quota).parent, gate.resource)

    def _standing(self, tree: str, name: str) -> GroupState:
        """Returns all limits and figures of a group of a tree."""
        grown = self._trees[tree]
        group = grown.limits(name)
        return GroupState(
            name=name,
            tree=tree,
            parent="" if group.parent == ROOT else group.parent,
            depth=grown.depth(name),
            is_parent=group.is_parent,
            lends=group.lends,
            min=group.min,
            max=group.max,
            weight=group.weight(literal=grown.options.raw_weight),
            effective_min=grown.effective_min(name),
            child_request=grown.child_request(name),
            request=grown.request(name),
            used=grown.used(name),
            non_preemptible_used=grown.non_preemptible_used(name),
            runtime=grown.runtime(name),
        )

    def _built_in_standing(self, name: str) -> GroupState:
        """Returns the limits and figures of a built-in group: default or system."""
        most = self._default_max if name == DEFAULT else {}
        demand = self._stray(name)
        return GroupState(
            name=name,
            tree=DEFAULT_TREE,
            parent="",
            depth=0,
            is_parent=False,
            lends=False,
            min={},
            max=most,
            weight={},
            effective_min={},
            child_request=demand.request,
            request=demand.request,
            used=demand.used,
            non_preemptible_used=demand.non_preemptible_used,
            runtime=most,
        )

    def _shrunk(self, tree: str) -> bool:
        """Tells whether a tree's capacity has less of any resource than before the last change."""
        now, before = self._capacity[tree], self._before[tree]
        return any(amount > now.get(key, 0) for key, amount in before.items())

    def _over(self, tree: str, gone: Mapping[str, Resources]) -> Iterator[Overuse]:
        """Yields the groups of a tree that use more than they may, judged by the capacity of before it shrank, else by the present
        one.

        `gone`: by group, the use of work that is ending, which does not count.
        """
        grown = self._trees[tree]
        over = {name: (grown.runtime(name), keys) for name in grown.overused() if (keys := _above(grown, name, gone))}
        shrunk = bool(over) and self._shrunk(tree)
        if shrunk:
            grown.total_changed(_total(self._specs[tree], self._before[tree]))
        wanted: dict[str, tuple[dict[str, int], list[str]]] = {}
        for name in over:
            keys = [key for key in _above(grown, name, gone) if grown.is_wanted(name, key)]
            wanted[name] = grown.runtime(name), keys
        if shrunk:
            grown.total_changed(_total(self._specs[tree], self._capacity[tree]))
        for name, now in over.items():
            runtime, keys = wanted[name] if wanted[name][1] else now
            least, used = grown.limits(name).min, _without(grown.used(name), gone.get(name, {}))
            allowed = {key: max(runtime.get(key, 0), least.get(key, 0)) for key in keys}
            yield Overuse(name, tree, {key: used.get(key, 0) for key in keys}, allowed, by_demand=bool(wanted[name][1]))


def _total(spec: TreeSpec, amounts: Resources) -> dict[str, int]:
    """Returns the capacity of every resource that a group of the tree manages; 0 for one that no node has."""
    return dict.fromkeys((key for group in spec.groups if not _built_in(group.name) for key in group.max), 0) | dict(amounts)


def _above(tree: QuotaTree, name: str, gone: Mapping[str, Resources]) -> list[str]:
    """Returns the resources of which a group uses more than its runtime and than its min, by name."""
    group, runtime, used = tree.limits(name), tree.runtime(name), _without(tree.used(name), gone.get(name, {}))
    return sorted(key for key in group.max if used.get(key, 0) > max(runtime.get(key, 0), group.min.get(key, 0)))


def _gate(quota: str, key: str, asked: int, by: Limited, used: int, limit: int, seen: Figures, most: int) -> Gate:
    """Returns a limit (`by`: which kind of it) that a request for `asked` of a resource meets in a group, with the group's figures."""
    return Gate(quota, key, by, asked, used, limit, seen.request, seen.runtime, seen.min, seen.effective_min, most)


def _without(some: Resources, less: Resources) -> dict[str, int]:
    """Returns the first amounts less the second; a resource missing on one side counts as 0, and the difference may be negative."""
    return _sum(some, {key: -amount for key, amount in less.items()})


def _demand_of(group: Group) -> Demand:
    """Returns copies of what a group's work asks for and uses."""
    return Demand(*(_sum(part, {}) for part in (group.request, group.used, group.non_preemptible_used)))


def _built_in(name: str) -> bool:
    """Tells whether a name, or what it is an alias of, is the default or the system group."""
    return ALIASES.get(name, name) in (DEFAULT, SYSTEM)


def _with(group: Group, demand: Demand) -> Group:
    """Returns a copy of a group with this demand in place of its own."""
    return replace(group, request=demand.request, used=demand.used, non_preemptible_used=demand.non_preemptible_used)


def _sum(some: Resources, more: Resources) -> dict[str, int]:
    """Returns the sums by resource that are above 0."""
    added = dict(some)
    for key, amount in more.items():
        added[key] = added.get(key, 0) + amount
    return {key: amount for key, amount in added.items() if amount > 0}


_OPTION_FIELDS: Final = ("scale_min", "guarantee_used", "raw_weight")
_GROUP_FIELDS: Final = (
    "name",
    "parent",
    "is_parent",
    "min",
    "max",
    "shared_weight",
    "lends",
    "lend_limit",
    "scales",
    "guarantees",
    "floor",
    "keeps_unmanaged",
)


def _spec_data(spec: TreeSpec) -> dict[str, Any]:
    """Returns the specification of a tree as plain data for JSON, the inverse of `_spec_of`."""
    return {
        "name": spec.name,
        "options": {field: getattr(spec.options, field) for field in _OPTION_FIELDS},
        "groups": [{field: getattr(group, field) for field in _GROUP_FIELDS} for group in spec.groups],
    }


def _spec_of(data: Mapping[str, Any]) -> TreeSpec:
    """Returns the specification of a tree from plain data that `_spec_data` made."""
    return TreeSpec(data["name"], tuple(Group(**entry) for entry in data["groups"]), Options(**data["options"]))
