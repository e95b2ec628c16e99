"""Choice of nodes: free nodes by fingerprint and group, and the choice among them.

The rule, in this order: one fingerprint with the fewest groups, else the fewest fingerprints merged; adjacent groups
where more than one is needed; the largest groups first, the last one best fit; the plainest hardware that allows the
same; whole switches; the lowest indices. Equal machines give equal places, however they came about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lattice.scheduling.cluster.free_counts import FreeCounts, on_switches_of_their_own
from lattice.scheduling.cluster.group_counts import GroupCounts, Groups, fewest_first, spread, tight
from lattice.scheduling.cluster.node_cache import Bucket
from lattice.scheduling.model.hardware import Key
from lattice.scheduling.model.work import IGNORED, REQUIRED

Counts = list[tuple[Bucket, int]]
"""How many nodes of which bucket."""

Prefer = Callable[[Bucket], tuple[object, ...]]
"""A sort key of the buckets of one group; its first item is the tier, and a tier is taken wholly before the next."""


class Found(NamedTuple):
    """The part of a pool to take nodes from: `fingerprints` (None: any), `kinds` (how many fingerprints that is), `span` (groups
    needed).
    """

    part: Groups
    fingerprints: frozenset[str] | None
    kinds: int
    span: int


@dataclass(frozen=True, slots=True)
class Ask:
    """The relation that the nodes of one allocation must have to each other.

    `conformance`: PREFERRED, REQUIRED or IGNORED equal fingerprints. `limit`: gives the most groups that so many nodes may take
    (TIGHT); None: no limit. `spread`: take as many groups as possible.
    """

    conformance: str
    limit: Callable[[int], int] | None = None
    spread: bool = False
    usable: Callable[[int], int] | None = None
    """Gives the usable nodes, free or held, of a group by rank; with it, of the groups that suffice the one filled most is taken.

    None: best fit.
    """


def find(pool: FreeCounts, nodes: int, ask: Ask, pressure: Callable[[str], float] | None = None) -> Found | None:
    """Returns the part of a pool to take `nodes` nodes from, with the groups that it takes; None where no part satisfies `ask`.

    Where fingerprints matter, the one with the fewest groups is chosen, of equal ones that of least `pressure` (demand, by its name). Where
    none has enough, and `ask` does not require one, the fewest fingerprints that have are merged. A choice of more groups than `ask.limit`
    allows gives way to all fingerprints together, unless one is required or these take too many too.
    """
    whole = pool.whole
    if nodes == 1 or ask.conformance == IGNORED:
        span = whole.fewest(nodes)
        if not span:
            return None
        found = Found(whole, None, 1, span)
    else:
        one = _one_fingerprint(pool, nodes, ask, pressure)
        if one is None:
            if ask.conformance == REQUIRED or whole.total < nodes:
                return None
            one = _merged(pool, nodes)
        found = one
    if ask.limit is not None and found.span > (limit := ask.limit(nodes)):
        if ask.conformance == REQUIRED or (span := whole.fewest(nodes)) > limit:
            return None
        return Found(whole, None, sum(1 for part in pool.parts.values() if part.total), span)
    return found


def _one_fingerprint(pool: FreeCounts, nodes: int, ask: Ask, pressure: Callable[[str], float] | None) -> Found | None:
    """Returns the part of the known fingerprint that holds `nodes` in the fewest groups, the least pressed of equals; None: none does.

    With `ask.spread` the least pressed of those that spread widest.
    """
    parts = _spread_widest(pool, nodes) if ask.spread else pool.parts
    best: tuple[int, float, str] | None = None
    chosen: Found | None = None
    for name, part in parts.items():
        span = part.fewest(nodes) if name else 0
        if span and (ask.spread or best is None or span <= best[0]):
            rank = (0 if ask.spread else span, pressure(name) if pressure is not None else 0.0, name)
            if best is None or rank < best:
                best, chosen = rank, Found(part, frozenset((name,)), 1, span)
    return chosen


def _spread_widest(pool: FreeCounts, nodes: int) -> dict[str, Groups]:
    """Returns the parts of known fingerprint that hold `nodes` and reach most groups, or as many as there are nodes."""
    fits = {name: part for name, part in pool.parts.items() if name and part.fewest(nodes)}
    widths = {name: len(part.groups) for name, part in fits.items()}
    enough = min(nodes, max(widths.values(), default=0))
    return {name: part for name, part in fits.items() if widths[name] >= enough}


def _merged(pool: FreeCounts, nodes: int) -> Found:
    """Merges the fewest fingerprints that hold `nodes`: the largest first, nodes of unknown fingerprint last, each counted as one
    of its own.
    """
    groups: dict[int, int] = {}
    names: list[str] = []
    kinds, reached = 0, 0
    for name, part in sorted(pool.parts.items(), key=lambda entry: (not entry[0], -entry[1].total, entry[0])):
        if reached >= nodes or not part.total:
            continue
        names.append(name)
        kinds += 1 if name else nodes - reached
        reached += part.total
        for rank, count in part.groups.items():
            groups[rank] = groups.get(rank, 0) + count
    merged = GroupCounts(groups)
    return Found(merged, frozenset(names), kinds, merged.fewest(nodes))


def counts_of(pool: FreeCounts, found: Found, nodes: int, ask: Ask, prefer: Prefer) -> Counts:
    """Returns how many nodes of which bucket to take for `nodes` nodes, from the part of the pool that `find` returned for them.

    `prefer` is the sort key of the buckets of one group; its first item is the tier, and a tier is taken wholly before the next.
    """
    shares = spread(found.part, nodes) if ask.spread else tight(found.part, nodes, found.span, ask.usable)
    if len(shares) == 1:
        return inside(pool, found.fingerprints, *shares[0], prefer)
    return [entry for rank, count in shares for entry in inside(pool, found.fingerprints, rank, count, prefer)]


def inside(pool: FreeCounts, names: frozenset[str] | None, rank: int, nodes: int, prefer: Prefer) -> Counts:
    """Returns how many nodes of which bucket to take for `nodes` nodes of one group (its rank) with these fingerprints (None: any); the
    group must have them.

    In a pool of one home, buckets that each have a switch of their own are taken by size alone, best fit; else the first tier of `prefer`
    is taken, then whole switches, then preferred buckets.
    """
    buckets, apart = pool.inside(rank, names)
    caps = pool.caps
    if apart and caps is None and (bucket := _best_fit(buckets, nodes)) is not None:
        return [(bucket, nodes)]
    if caps is None:
        sizes = [len(bucket.free) for bucket in buckets]
    else:
        sizes = [caps[bucket] if bucket in caps else len(bucket.free) for bucket in buckets]
    if not apart and 0 in sizes:
        buckets = [bucket for bucket, size in zip(buckets, sizes, strict=True) if size]
        sizes = [size for size in sizes if size]
        apart = not pool.mixed and on_switches_of_their_own(buckets)
    if len(buckets) == 1:
        return [(buckets[0], nodes)]
    if apart:
        fitting = [size for size in sizes if size >= nodes]
        if fitting:
            return [(buckets[sizes.index(min(fitting))], nodes)]
        return [(buckets[place], count) for place, count in fewest_first(sizes, nodes)]
    tiers: dict[object, list[Bucket]] = {}
    for bucket in buckets:
        tiers.setdefault(prefer(bucket)[0], []).append(bucket)
    chosen: Counts = []
    for tier in sorted(tiers):  # type: ignore[type-var]
        part = min(nodes, sum(pool.cap(bucket) for bucket in tiers[tier]))
        if part:
            chosen += _switches(pool, tiers[tier], part, prefer)
            nodes -= part
    return chosen


def _best_fit(buckets: list[Bucket], nodes: int) -> Bucket | None:
    """Returns the first bucket of those with the fewest free nodes that hold `nodes`; None: none does."""
    found: Bucket | None = None
    least = 0
    for bucket in buckets:
        free = len(bucket.free)
        if free >= nodes and (found is None or free < least):
            found, least = bucket, free
    return found


def _switches(pool: FreeCounts, buckets: list[Bucket], nodes: int, prefer: Prefer) -> Iterator[tuple[Bucket, int]]:
    """Yields how many nodes of which bucket to take for `nodes` nodes of one tier: from as few switches as possible, best fit last.

    Within a switch the buckets are taken in the order of `prefer`; the buckets must have so many nodes.
    """
    first = {bucket.key.switch: bucket.order for bucket in reversed(buckets)}
    names = sorted(first, key=lambda name: first[name])
    sizes = [sum(pool.cap(one) for one in buckets if one.key.switch == name) for name in names]
    for place, count in fewest_first(sizes, nodes):
        left = count
        for bucket in sorted((one for one in buckets if one.key.switch == names[place]), key=prefer):
            part = min(left, pool.cap(bucket))
            if part:
                yield bucket, part
                left -= part


def nodes_of(counts: Counts, pool: FreeCounts, *, split: bool) -> tuple[int, ...]:
    """Returns the indices to take, ascending: the lowest free ones of the counted buckets.

    `split`: node sets have split buckets; the nodes are then the lowest of all buckets that differ only in their node sets.
    """
    if not split and len(counts) == 1:
        bucket, count = counts[0]
        return tuple(bucket.free[:count])
    chosen: list[int] = []
    alike: dict[Key, int] = {}
    for bucket, count in counts:
        if split:
            plain = bucket.key.plain
            alike[plain] = alike.get(plain, 0) + count
        else:
            chosen.extend(bucket.free[:count])
    if alike:
        kin: dict[Key, list[Bucket]] = {}
        for bucket in pool.buckets:
            kin.setdefault(bucket.key.plain, []).append(bucket)
        for plain, count in alike.items():
            chosen.extend(_lowest(pool, kin[plain], count))
    return tuple(sorted(chosen))


def _lowest(pool: FreeCounts, buckets: list[Bucket], nodes: int) -> list[int]:
    """Returns the lowest `nodes` indices among the free nodes that the pool may give of these buckets, ascending."""
    return sorted(index for bucket in buckets for index in bucket.free[: pool.cap(bucket)])[:nodes]
