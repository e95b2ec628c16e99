"""The quota trees as a reader may see them: his leaves and what is above them by name, the others in sums, or all by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from lattice.quota.forest import DEFAULT, DEFAULT_TREE, Forest, Standing
from lattice.scheduling.quota_answers import (
    ABOVE_YOURS,
    OTHERS,
    QUOTA_SCHEMA,
    YOURS,
    Belonging,
    QuotaGroup,
    Quotas,
    QuotaTreeShown,
    Share,
    Startable,
    Total,
)
from lattice.scheduling.readers import Reader
from lattice.scheduling.situation import Situation

NO_TREE = "no quota tree divides this cluster: no ElasticQuota is declared"


def quotas(forest: Forest, mine: Collection[str], reader: Reader, at: str, over_since: Mapping[str, str] | None = None) -> Quotas:
    """Every tree that concerns the reader, whose leaves are `mine`; `over_since` says since when a group uses too much.

    Asks what could start, which changes the demand of the reader's leaves and puts it back.
    """
    named = _all_of(forest) if sees_all(reader) else frozenset(above for leaf in mine for above in forest.path(leaf))
    trees = []
    for tree in forest.trees():
        standings = list(forest.standings(tree))
        if not standings or (tree != DEFAULT_TREE and not any(one.name in named for one in standings)):
            continue
        groups = list(_groups(forest, standings, frozenset(mine), named, over_since or {}))
        if tree == DEFAULT_TREE and (DEFAULT in mine or sees_all(reader)):
            groups += _default(forest, yours=DEFAULT in mine)
        hidden = sum(group.count for group in groups if not group.name)
        trees.append(QuotaTreeShown(tree, _totals(forest, tree, standings), groups, hidden))
    return Quotas(QUOTA_SCHEMA, at, trees, "" if trees else NO_TREE)


def own_leaves(situation: Situation, reader: Reader) -> frozenset[str]:
    """The groups of the reader's work that waits or holds nodes."""
    work = (*situation.candidates.values(), *situation.holders.values())
    return frozenset(one.quota or DEFAULT for one in work if one.user == reader.user)


def sees_all(reader: Reader) -> bool:
    """Whether the reader may know every group by name."""
    return reader.groups or reader.everything


def startable(forest: Forest, leaf: str) -> list[Startable]:
    """What more could start at a leaf now if it were asked for, of each resource alone: least over the leaf and all above it."""
    standing = forest.standing(leaf)
    wish = {key: max(most, 1) for key, most in standing.max.items()}
    forest.demand(leaf, wish)
    try:
        levels = [forest.standing(name) for name in forest.path(leaf)]
    finally:
        forest.demand(leaf, {key: -amount for key, amount in wish.items()})
    return [_room(key, levels, standing) for key in standing.max]


def _room(key: str, levels: Sequence[Standing], leaf: Standing) -> Startable:
    bounds = [one for one in levels if key in one.max]
    rooms = {one.name: min(one.runtime.get(key, 0), one.max[key]) - one.used.get(key, 0) for one in bounds}
    least = min(rooms.values())
    tightest = [one for one in bounds if rooms[one.name] == least]
    at_max = [one for one in tightest if least == one.max[key] - one.used.get(key, 0)]
    level = at_max[0].name if at_max else tightest[-1].name
    amount = max(0, least)
    fixed = leaf.min.get(key, 0) - leaf.non_preemptible_used.get(key, 0)
    return Startable(key, amount, min(amount, max(0, fixed)), level)


def _groups(
    forest: Forest, standings: Sequence[Standing], mine: frozenset[str], named: frozenset[str], over_since: Mapping[str, str]
) -> Iterator[QuotaGroup]:
    """Depth first: the groups with names, and below each parent that has one the sum of those without."""
    below: dict[str, list[Standing]] = {}
    for one in standings:
        below.setdefault(one.parent, []).append(one)

    def under(parent: str, depth: int) -> Iterator[QuotaGroup]:
        children = below.get(parent, [])
        for one in children:
            if one.name in named:
                yield _named(forest, one, mine, above=forest_above(forest, mine), since=over_since.get(one.name))
                yield from under(one.name, depth + 1)
        hidden = [one for one in children if one.name not in named]
        if hidden:
            yield _sum(hidden, parent, depth)

    yield from under("", 0)


def forest_above(forest: Forest, mine: Iterable[str]) -> frozenset[str]:
    """What is above these leaves."""
    return frozenset(name for leaf in mine for name in forest.path(leaf)[1:])


def _named(forest: Forest, one: Standing, mine: frozenset[str], *, above: frozenset[str], since: str | None) -> QuotaGroup:
    whose: Belonging = YOURS if one.name in mine else ABOVE_YOURS if one.name in above else OTHERS
    return QuotaGroup(
        whose=whose,
        depth=one.depth,
        name=one.name,
        parent=one.parent,
        leaf=not one.is_parent,
        lends=one.lends,
        over_since=since,
        shares=[_share(one, key) for key in one.max],
        startable=startable(forest, one.name) if whose == YOURS else [],
    )


def _share(one: Standing, key: str) -> Share:
    return Share(
        resource=key,
        used=one.used.get(key, 0),
        request=one.request.get(key, 0),
        runtime=one.runtime.get(key, 0),
        min=one.min.get(key, 0),
        effective_min=one.effective_min.get(key, 0),
        max=one.max[key],
        borrowed=one.borrowed.get(key, 0),
    )


def _sum(hidden: Sequence[Standing], parent: str, depth: int) -> QuotaGroup:
    """Several groups below one parent, in sums."""
    shares = []
    for key in dict.fromkeys(key for one in hidden for key in one.max):
        those = [_share(one, key) for one in hidden if key in one.max]
        shares.append(
            Share(
                resource=key,
                used=sum(one.used for one in those),
                request=sum(one.request for one in those),
                runtime=sum(one.runtime or 0 for one in those),
                min=sum(one.min for one in those),
                effective_min=sum(one.effective_min for one in those),
                borrowed=sum(one.borrowed for one in those),
            )
        )
    return QuotaGroup(whose=OTHERS, depth=depth, parent=parent, count=len(hidden), shares=shares)


def _default(forest: Forest, *, yours: bool) -> list[QuotaGroup]:
    """The group of work without a group, where there is such work or it is the reader's."""
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


def _totals(forest: Forest, tree: str, standings: Sequence[Standing]) -> list[Total]:
    divisible, first = forest.total(tree), [one for one in standings if not one.parent]
    managed = dict.fromkeys(key for one in standings for key in one.max)
    return [
        Total(key, divisible.get(key, 0), sum(one.used.get(key, 0) for one in first), sum(one.request.get(key, 0) for one in first))
        for key in managed
    ]


def _all_of(forest: Forest) -> frozenset[str]:
    return frozenset(name for tree in forest.trees() for name in forest.names(tree))
