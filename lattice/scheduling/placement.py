"""Where it goes: free nodes by fingerprint and group, and the choice among them.

The rule, in this order: one fingerprint with the fewest groups, else the fewest fingerprints merged; adjacent groups
where more than one is needed; the largest groups first, the last one best fit; the plainest hardware that allows the
same; whole switches; the lowest indices. Equal machines give equal places, however they came about.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lattice.scheduling.machine import Bucket, Hardware, Key, Machine, Need
from lattice.scheduling.work import IGNORED, REQUIRED

Counts = list[tuple[Bucket, int]]
"""How many nodes of which bucket."""

Prefer = Callable[[Bucket], tuple[object, ...]]
"""The order in which buckets of one group are taken; its first item is the tier, taken wholly before the next."""


class Part:
    """Nodes of one fingerprint, or of several: how many in each group (by rank), and the groups in order of that number."""

    __slots__ = ("groups", "ordered", "total")

    def __init__(self, groups: Mapping[int, int]) -> None:
        self.groups = {rank: count for rank, count in groups.items() if count > 0}
        self.ordered = sorted((count, rank) for rank, count in self.groups.items())
        self.total = sum(self.groups.values())

    def note(self, rank: int, by: int) -> None:
        """A group has more nodes, or fewer."""
        before = self.groups.get(rank, 0)
        after = before + by
        self.total += by
        if before:
            del self.ordered[bisect_left(self.ordered, (before, rank))]
        if after:
            self.groups[rank] = after
            insort(self.ordered, (after, rank))
        else:
            del self.groups[rank]

    def fewest(self, nodes: int) -> int:
        """The fewest groups that hold so many nodes; needs `nodes` ≤ `total`."""
        reached = 0
        for groups, (count, _) in enumerate(reversed(self.ordered), start=1):
            reached += count
            if reached >= nodes:
                return groups
        return len(self.ordered) + 1

    def largest(self, groups: int) -> int:
        """How many nodes so many groups hold at most."""
        return sum(count for count, _ in self.ordered[-groups:]) if groups > 0 else 0


class Pool:
    """The nodes that an eligibility set has free, or may have: counts, kept up to date by the machine's log."""

    __slots__ = ("_at", "_machine", "_shape", "buckets", "by_group", "caps", "members", "parts", "whole")

    whole: Part
    parts: dict[str, Part]
    """By fingerprint."""
    _at: int
    _shape: int

    def __init__(self, machine: Machine, buckets: Sequence[Bucket]) -> None:
        """Of the free nodes of these buckets."""
        self._machine = machine
        self.buckets = buckets
        self.caps: Mapping[Bucket, int] | None = None
        self.members = {bucket: machine.rank(bucket.key.group) for bucket in buckets}
        self.by_group: dict[int, list[Bucket]] = {}
        for bucket, rank in self.members.items():
            self.by_group.setdefault(rank, []).append(bucket)
        self._count()

    def capped(self, caps: Mapping[Bucket, int]) -> Pool:
        """The same buckets with so many nodes of each, whatever the machine does."""
        pool = Pool.__new__(Pool)
        pool._machine, pool.buckets, pool.members, pool.by_group = self._machine, self.buckets, self.members, self.by_group
        pool.caps = caps
        pool._count()
        return pool

    def sync(self) -> None:
        """Take in what has changed since."""
        machine = self._machine
        log = machine.log
        if self.caps is not None or (self._at == len(log) and self._shape == machine.shape):
            return
        if self._shape != machine.shape or len(log) - self._at > 4 * len(self.buckets):
            self._count()
            return
        alone, members = len(self.parts) == 1, self.members
        changes: dict[Bucket, int] = {}
        for bucket, by in log[self._at :]:
            if bucket in members:
                changes[bucket] = changes.get(bucket, 0) + by
        self._at = len(log)
        for bucket, by in changes.items():
            if by:
                self.whole.note(members[bucket], by)
                if not alone:
                    self.parts[bucket.key.fingerprint].note(members[bucket], by)

    def _count(self) -> None:
        self._at, self._shape = len(self._machine.log), self._machine.shape
        caps = self.caps
        parts: dict[str, dict[int, int]] = {}
        for bucket, rank in self.members.items():
            part = parts.get(bucket.key.fingerprint)
            if part is None:
                part = parts[bucket.key.fingerprint] = {}
            count = len(bucket.free) if caps is None else caps[bucket]
            if count:
                part[rank] = part.get(rank, 0) + count
        if len(parts) <= 1:
            self.whole = Part(next(iter(parts.values()), {}))
            self.parts = dict.fromkeys(parts, self.whole)
            return
        whole: dict[int, int] = {}
        for groups in parts.values():
            for rank, count in groups.items():
                whole[rank] = whole.get(rank, 0) + count
        self.whole = Part(whole)
        self.parts = {name: Part(groups) for name, groups in parts.items()}

    def cap(self, bucket: Bucket) -> int:
        """How many nodes of a bucket it may give."""
        return len(bucket.free) if self.caps is None else self.caps[bucket]

    def largest_equal(self) -> int:
        """The largest set of nodes of one fingerprint; an unknown one is unlike every other."""
        return max((part.total if name else min(1, part.total) for name, part in self.parts.items()), default=0)


class Pools:
    """The pools that cycles asked for, kept from cycle to cycle."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._shape = -1
        self._pools: dict[tuple[object, ...], Pool] = {}

    def of(self, need: Need, home: str, *, known: bool = False, classes: frozenset[Hardware] | None = None) -> Pool:
        """The free nodes at home in `home` that admit a need; `known`: of known fingerprint; `classes`: of this hardware only."""
        if self._shape != self._machine.shape or len(self._pools) > 2_000:
            self._pools.clear()
            self._shape = self._machine.shape
        key = (need, home, known, classes)
        pool = self._pools.get(key)
        if pool is None:
            buckets = [
                bucket
                for bucket in self._machine.admitted(need)
                if bucket.key.home == home and (bucket.key.fingerprint or not known) and (classes is None or bucket.key.hardware in classes)
            ]
            pool = self._pools[key] = Pool(self._machine, buckets)
        pool.sync()
        return pool


@dataclass(frozen=True, slots=True)
class Found:
    """A part of a pool that holds enough: its fingerprints (None: whatever they are), how many, and the groups needed."""

    part: Part
    fingerprints: frozenset[str] | None
    kinds: int
    span: int


@dataclass(frozen=True, slots=True)
class Ask:
    """How the nodes of a set must relate: `limit` is the most groups (TIGHT), `spread` wants as many as can be."""

    conformance: str
    limit: Callable[[int], int] | None = None
    spread: bool = False
    usable: Callable[[int], int] | None = None
    """How many nodes of a group (by rank) may be used at all: given, the group with the largest share in use is filled first."""


def find(pool: Pool, nodes: int, ask: Ask, pressure: Callable[[str], float] | None = None) -> Found | None:
    """The part of a pool to take so many nodes from, or None; among equals the fingerprint under the least pressure."""
    whole = pool.whole
    if whole.total < nodes:
        return None
    if nodes == 1 or ask.conformance == IGNORED:
        found = Found(whole, None, 1, whole.fewest(nodes))
    else:
        one = _one_fingerprint(pool, nodes, ask, pressure)
        if one is None and ask.conformance == REQUIRED:
            return None
        found = one or _merged(pool, nodes)
    if ask.limit is not None and found.span > (limit := ask.limit(nodes)):
        if ask.conformance == REQUIRED or (span := whole.fewest(nodes)) > limit:
            return None
        return Found(whole, None, sum(1 for part in pool.parts.values() if part.total), span)
    return found


def _one_fingerprint(pool: Pool, nodes: int, ask: Ask, pressure: Callable[[str], float] | None) -> Found | None:
    fits = [(name, part, part.fewest(nodes)) for name, part in pool.parts.items() if name and part.total >= nodes]
    if not fits:
        return None
    if ask.spread:
        widest = max(len(part.ordered) for _, part, _ in fits)
        fits = [fit for fit in fits if len(fit[1].ordered) >= min(nodes, widest)]
    else:
        least = min(span for _, _, span in fits)
        fits = [fit for fit in fits if fit[2] == least]
    name, part, span = fits[0]
    if len(fits) > 1:
        name, part, span = min(fits, key=lambda fit: (pressure(fit[0]) if pressure is not None else 0.0, fit[0]))
    return Found(part, frozenset((name,)), 1, span)


def _merged(pool: Pool, nodes: int) -> Found:
    """The fewest fingerprints that hold it together: the largest; nodes of unknown fingerprint come last, each one of its own."""
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
    merged = Part(groups)
    return Found(merged, frozenset(names), kinds, merged.fewest(nodes))


def counts_of(pool: Pool, found: Found, nodes: int, ask: Ask, prefer: Prefer) -> Counts:
    """How many nodes of which bucket; `prefer` orders the buckets of one group where it does not take them all."""
    shares = spread(found.part, nodes) if ask.spread else tight(found.part, nodes, ask.usable)
    return [entry for rank, count in shares for entry in _inside(pool, found, rank, count, prefer)]


def tight(part: Part, nodes: int, usable: Callable[[int], int] | None = None) -> list[tuple[int, int]]:
    """(group, nodes) with the fewest groups: best fit for one; else the closest neighbours, the largest first, the last best fit."""
    at = bisect_left(part.ordered, (nodes, -1))
    if at < len(part.ordered):
        if usable is None:
            return [(part.ordered[at][1], nodes)]
        _, _, rank = min((count / usable(rank), count, rank) for count, rank in part.ordered[at:])
        return [(rank, nodes)]
    first, last = _neighbours(part, nodes, part.fewest(nodes))
    return fewest_first([entry for entry in part.ordered if first <= entry[1] <= last], nodes)


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


def spread(part: Part, nodes: int) -> list[tuple[int, int]]:
    """(group, nodes) over as many groups as can be, as evenly as they allow; the rest goes to the first in order."""
    given: dict[int, int] = {}
    left = nodes
    level: int | None = None
    for place, (count, rank) in enumerate(part.ordered):  # the small ones first: they are filled, the others get the same each
        if level is None and count * (len(part.ordered) - place) > left:
            level = left // (len(part.ordered) - place)
        given[rank] = count if level is None else level
        left -= given[rank]
    for rank in sorted(given):
        if left and part.groups[rank] > given[rank]:
            given[rank] += 1
            left -= 1
    return [(rank, count) for rank, count in sorted(given.items()) if count]


def _neighbours(part: Part, nodes: int, groups: int) -> tuple[int, int]:
    """The first and last group of the shortest stretch in which so many groups hold so many nodes."""
    line = sorted(part.groups.items())
    best: tuple[int, int, int] | None = None
    inside: list[int] = []  # the counts of the stretch, ascending
    total, end = 0, 0
    for start, (rank, count) in enumerate(line):
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
        if start + 1 > end:
            break
    assert best is not None, "all groups together hold it"  # noqa: S101
    return best[1], best[2]


def _top(inside: list[int], groups: int, total: int) -> int:
    return total if len(inside) <= groups else sum(inside[-groups:])


def _inside(pool: Pool, found: Found, rank: int, nodes: int, prefer: Prefer) -> Iterator[tuple[Bucket, int]]:
    """The nodes of one group: buckets at home first, then whole switches, then the preferred buckets."""
    names = found.fingerprints
    buckets = [bucket for bucket in pool.by_group[rank] if (names is None or bucket.key.fingerprint in names) and pool.cap(bucket)]
    if len(buckets) == 1:
        yield buckets[0], nodes
        return
    tiers: dict[object, list[Bucket]] = {}
    for bucket in buckets:
        tiers.setdefault(prefer(bucket)[0], []).append(bucket)
    for tier in sorted(tiers):  # type: ignore[type-var]
        part = min(nodes, sum(pool.cap(bucket) for bucket in tiers[tier]))
        if part:
            yield from _switches(pool, tiers[tier], part, prefer)
            nodes -= part


def _switches(pool: Pool, buckets: list[Bucket], nodes: int, prefer: Prefer) -> Iterator[tuple[Bucket, int]]:
    first = {bucket.key.switch: bucket.order for bucket in reversed(buckets)}
    names = sorted(first, key=lambda name: first[name])
    sizes = {place: sum(pool.cap(one) for one in buckets if one.key.switch == name) for place, name in enumerate(names)}
    for place, count in fewest_first(sorted((size, place) for place, size in sizes.items()), nodes):
        left = count
        for bucket in sorted((one for one in buckets if one.key.switch == names[place]), key=prefer):
            part = min(left, pool.cap(bucket))
            if part:
                yield bucket, part
                left -= part


def nodes_of(counts: Iterable[tuple[Bucket, int]], pool: Pool) -> tuple[int, ...]:
    """The nodes themselves, ascending: the lowest free indices, over all buckets that differ only in the sets they lie in."""
    chosen: list[int] = []
    alike: dict[Key, int] = {}
    for bucket, count in counts:
        if bucket.key.marks or pool._machine.masks:
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


def _lowest(pool: Pool, buckets: list[Bucket], nodes: int) -> list[int]:
    return sorted(index for bucket in buckets for index in bucket.free[: pool.cap(bucket)])[:nodes]
