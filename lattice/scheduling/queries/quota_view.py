"""Shows the quota trees as a reader may see them: his leaves and their ancestors by name, other groups in sums, or all by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lattice.quota.amounts import is_boundless
from lattice.quota.declared import DEFAULT
from lattice.quota.forest import DEFAULT_TREE, Forest, GroupState
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.queries.context import QueryContext
from lattice.scheduling.queries.quota_answers import (
    ABOVE_YOURS,
    OTHERS,
    QUOTA_SCHEMA,
    YOURS,
    Belonging,
    LeftOut,
    QuotaGroup,
    Quotas,
    QuotaTreeShown,
    Share,
    Startable,
    Total,
)
from lattice.scheduling.queries.readers import Reader

A_SLICE: Final = 100
"""Groups that are computed between two pauses: about 3 ms."""
NO_TREE: Final = "no quota tree divides this cluster: no ElasticQuota is declared"
NONE_IN_FORCE: Final = "no quota tree divides this cluster: every object that declares a group is left out"


@dataclass(frozen=True)
class Remarks:
    """The errors in the objects that declare groups, for display beside the tree."""

    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By name of a group that takes part in spite of an error: the reason and the sentence."""
    left_out: Sequence[LeftOut] = ()


NO_REMARKS: Final = Remarks()


def quotas(
    forest: Forest, mine: Collection[str], reader: Reader, at: str, over_since: Mapping[str, str] | None = None,
    remarks: Remarks = NO_REMARKS,
) -> Quotas:  # fmt: skip
    """Returns the document of `quota tree`, computed without pauses; see `slices` for the parameters."""
    *_, answer = slices(forest, mine, reader, at, over_since, remarks)
    assert answer is not None, "the last slice is the answer"  # noqa: S101 - for the type checker
    return answer


def slices(
    forest: Forest, mine: Collection[str], reader: Reader, at: str, over_since: Mapping[str, str] | None = None,
    remarks: Remarks = NO_REMARKS,
) -> Iterator[Quotas | None]:  # fmt: skip
    """Computes the document of `quota tree` in slices: yields None after each, and the document last.

    `mine`: the reader's leaves. `over_since`: since when a group uses more than it may. `remarks`: errors of declaring objects.
    Between two slices the forest may change; each group is shown as of its slice. To compute what could start, the demand of the
    reader's leaves is raised and restored within a slice.
    """
    trees = []
    for tree in forest.trees():
        view = _TreeView(forest, tree, frozenset(mine), reader, over_since or {}, remarks.groups)
        if not view.concerns():
            continue
        groups: list[QuotaGroup] = []
        for found in view.groups("", 0):
            if found is None:
                yield None
            else:
                groups.append(found)
        if tree == DEFAULT_TREE and (DEFAULT in mine or sees_all(reader)):
            groups += _default(forest, yours=DEFAULT in mine)
        hidden = sum(group.count for group in groups if not group.name)
        trees.append(QuotaTreeShown(tree, view.totals(), groups, hidden))
    none = NONE_IN_FORCE if remarks.left_out else NO_TREE
    yield Quotas(QUOTA_SCHEMA, at, trees, "" if trees else none, list(remarks.left_out) if sees_all(reader) else [])


def own_leaves(context: QueryContext, reader: Reader) -> frozenset[str]:
    """Returns the groups to which the reader's own pending and running work is charged; the default group for work bound to none."""
    work: list[Candidate | NodeHolder] = [*context.candidates.values(), *context.holders.values()]
    return frozenset(one.quota or DEFAULT for one in work if one.user == reader.user)


def sees_all(reader: Reader) -> bool:
    """Tells whether the reader may know every group of the quota tree by name."""
    return reader.groups or reader.everything


def startable(forest: Forest, leaf: str) -> list[Startable]:
    """Returns for each resource how much more could start at a leaf now: the least that the leaf and all groups above it leave.

    Raises the leaf's demand in the forest to compute it, and restores it before it returns.
    """
    standing = forest.standing(leaf)
    wish = {key: max(most, 1) for key, most in standing.max.items()}
    forest.demand(leaf, wish)
    try:
        levels = [forest.standing(name) for name in forest.path(leaf)]
    finally:
        forest.demand(leaf, {key: -amount for key, amount in wish.items()})
    return [_room(key, levels, standing) for key in standing.max]


def _room(key: str, levels: Sequence[GroupState], leaf: GroupState) -> Startable:
    """Returns how much of one resource (`key`) could start at a leaf, and the level that leaves least: one at its max first, else the
    highest.

    `levels`: the leaf and the groups above it.
    """
    bounds = [one for one in levels if key in one.max]
    rooms = {one.name: min(one.runtime.get(key, 0), one.max[key]) - one.used.get(key, 0) for one in bounds}
    least = min(rooms.values())
    tightest = [one for one in bounds if rooms[one.name] == least]
    at_max = [one for one in tightest if least == one.max[key] - one.used.get(key, 0)]
    level = at_max[0].name if at_max else tightest[-1].name
    amount = max(0, least)
    fixed = leaf.min.get(key, 0) - leaf.non_preemptible_used.get(key, 0)
    return Startable(key, amount, min(amount, max(0, fixed)), level)


class _TreeView:
    """One quota tree shown to one reader, computed group by group."""

    def __init__(
        self, forest: Forest, tree: str, mine: frozenset[str], reader: Reader, over_since: Mapping[str, str],
        wrong: Mapping[str, tuple[str, str]],
    ) -> None:  # fmt: skip
        self._forest, self._tree, self._mine, self._over_since, self._wrong = forest, tree, mine, over_since, wrong
        self._everything = sees_all(reader)
        self._above = frozenset(name for leaf in mine for name in forest.path(leaf)[1:])
        self._divisible = forest.total(tree)
        self._first: list[GroupState] = []
        self._seen = 0

    def concerns(self) -> bool:
        """Tells whether the tree is shown to the reader: it has groups, and is the default tree or has a group that he may name."""
        if not self._forest.children("", self._tree):
            return False
        return self._everything or self._tree == DEFAULT_TREE or any(self._forest.tree_of(leaf) == self._tree for leaf in self._mine)

    def groups(self, parent: str, depth: int) -> Iterator[QuotaGroup | None]:
        """Yields the groups below `parent` depth first, named ones singly and the others of each parent in one sum; None ends a slice."""
        hidden = _Sum(parent, depth)
        for name in self._forest.children(parent, self._tree) if self._is_there(parent) else ():
            if not self._is_there(name):
                continue  # it went between two slices
            one = self._forest.standing(name)
            if not parent:
                self._first.append(one)
            if self._everything or name in self._mine or name in self._above:
                yield self._named(one)
                yield from self.groups(name, depth + 1)
            else:
                hidden.add(one)
            self._seen += 1
            if self._seen % A_SLICE == 0:
                yield None
        if hidden.count:
            yield hidden.group()

    def totals(self) -> list[Total]:
        """Returns the sums of each resource of the tree over the groups that `groups` has yielded; call it afterwards."""
        managed = dict.fromkeys(key for one in self._first for key in one.max)
        used, request = (
            {key: sum(amounts.get(key, 0) for amounts in each) for key in managed}
            for each in ([one.used for one in self._first], [one.request for one in self._first])
        )
        return [Total(key, self._divisible.get(key, 0), used[key], request[key]) for key in managed]

    def _is_there(self, name: str) -> bool:
        """Tells whether a group of this name is in the tree now; True for the empty name, the root."""
        return not name or (self._forest.tree_of(name) == self._tree and name in self._forest)

    def _named(self, one: GroupState) -> QuotaGroup:
        """Returns a group by name, with its shares; what could start only for the reader's own leaves, the sentence on an error only for
        readers who may know every group.
        """
        whose: Belonging = YOURS if one.name in self._mine else ABOVE_YOURS if one.name in self._above else OTHERS
        reason, message = self._wrong.get(one.name, ("", ""))
        return QuotaGroup(
            whose=whose,
            depth=one.depth,
            name=one.name,
            parent=one.parent,
            leaf=not one.is_parent,
            lends=one.lends,
            over_since=self._over_since.get(one.name),
            reason=reason,
            message=message if self._everything else "",
            shares=[_share(one, key) for key in one.max],
            startable=startable(self._forest, one.name) if whose == YOURS else [],
        )


class _Sum:
    """The sums of those groups below one parent that the reader may not name."""

    def __init__(self, parent: str, depth: int) -> None:
        self._parent, self._depth = parent, depth
        self.count = 0
        self._sums: dict[str, list[int]] = {}

    def add(self, one: GroupState) -> None:
        """Adds the amounts of one group."""
        self.count += 1
        for key in one.max:
            sums = self._sums.setdefault(key, [0] * 6)
            parts = (one.used, one.request, one.min, one.effective_min, one.runtime, one.borrowed)
            self._sums[key] = [total + part.get(key, 0) for total, part in zip(sums, parts, strict=True)]

    def group(self) -> QuotaGroup:
        """Returns the sums as a group without a name."""
        shares = [
            Share(key, used, request, least, effective, runtime, None, borrowed)
            for key, (used, request, least, effective, runtime, borrowed) in self._sums.items()
        ]
        return QuotaGroup(whose=OTHERS, depth=self._depth, parent=self._parent, count=self.count, shares=shares)


def _share(one: GroupState, key: str) -> Share:
    """Returns one resource (`key`) of one group as a row of the document."""
    return Share(
        resource=key,
        used=one.used.get(key, 0),
        request=one.request.get(key, 0),
        runtime=one.runtime.get(key, 0),
        min=one.min.get(key, 0),
        effective_min=one.effective_min.get(key, 0),
        max=None if is_boundless(one.max[key]) else one.max[key],
        borrowed=one.borrowed.get(key, 0),
    )


def _default(forest: Forest, *, yours: bool) -> list[QuotaGroup]:
    """Returns, as a list of one, the group of work that is bound to no group, marked as the reader's own where `yours`; the list is empty
    where there is no such work, no limit is set for it, and the reader has none.
    """
    one = forest.standing(DEFAULT)
    keys = dict.fromkeys([*one.max, *one.request])
    if not keys and not yours:
        return []
    shares = [
        Share(
            resource=key, used=one.used.get(key, 0), request=one.request.get(key, 0), runtime=one.max.get(key), min=0, effective_min=0,
            max=one.max.get(key),
        )
        for key in keys
    ]  # fmt: skip
    return [QuotaGroup(whose=YOURS if yours else OTHERS, depth=0, name=DEFAULT, leaf=True, shares=shares)]
