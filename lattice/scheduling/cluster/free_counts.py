"""Pools: the free nodes of an eligibility set by fingerprint and group, which the machine keeps up to date as it changes.

Needs that the same buckets admit share one pool, however differently they are written. Pools share the parts that they
count in: one of each class of hardware, and one of each class and fingerprint, where no group has nodes of two classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lattice.errors import Corrupt
from lattice.scheduling.cluster.group_counts import GroupCounts, Groups, JoinedCounts
from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.model.hardware import Hardware, Need

_MOST = 2_000
"""With more pools kept than this at the end of a cycle, which may be of needs long gone, all are made again when they are asked for."""


class FreeCounts:
    """The nodes that an eligibility set has free, or may have: counts of each fingerprint and group."""

    __slots__ = (
        "_inside",
        "_mixture",
        "_node_cache",
        "_sizes",
        "_tally",
        "buckets",
        "by_group",
        "caps",
        "kinds",
        "members",
        "mixed",
        "number",
        "parts",
        "whole",
    )

    whole: Groups
    parts: dict[str, Groups]
    """By fingerprint."""

    def __init__(self, node_cache: NodeCache, buckets: Sequence[Bucket], parts: GroupCountsByClass | None = None) -> None:
        """Counts the free nodes of these buckets as they are now or, with `parts`, at any time."""
        self._node_cache = node_cache
        self.number = node_cache.number_pool()
        """Unlike that of every other set of buckets; pools with other counts of the same buckets share it."""
        self.buckets = buckets
        self.caps: Mapping[Bucket, int] | None = None
        self.members = {bucket: node_cache.rank(bucket.key.group) for bucket in buckets}
        self.by_group: dict[int, list[Bucket]] = {}
        for bucket, rank in self.members.items():
            self.by_group.setdefault(rank, []).append(bucket)
        self.kinds = frozenset(bucket.key.hardware for bucket in buckets)
        self.mixed = len({bucket.key.home for bucket in buckets}) > 1
        """Whether nodes of several homes are among them."""
        self._inside: dict[tuple[int, frozenset[str] | None], tuple[list[Bucket], bool]] = {}
        self._tally, self._sizes = -1, (0, 0)
        self._mixture: Mapping[str, Mapping[Hardware, int]] = {}
        if parts is None:
            self._count({bucket: len(bucket.free) for bucket in buckets})
            return
        alike: dict[str, list[Bucket]] = {}
        for bucket in buckets:
            alike.setdefault(bucket.key.fingerprint, []).append(bucket)
        self.whole = parts.of(buckets)
        self.parts = {name: parts.of(some) for name, some in alike.items()}

    def capped(self, caps: Mapping[Bucket, int]) -> FreeCounts:
        """Returns a pool of the same buckets with so many nodes of each, whatever the node cache does."""
        pool = self._like(caps)
        pool._count(caps)
        return pool

    def reduced(self, caps: Mapping[Bucket, int]) -> FreeCounts:
        """Returns a pool with so many nodes of these buckets and the free ones of the others; it holds until the node cache changes."""
        pool = self._like(caps)
        whole = pool.whole = self.whole.copy()
        pool.parts = {name: whole if part is self.whole else part.copy() for name, part in self.parts.items()}
        for bucket, count in caps.items():
            pool.count_change(bucket, count - len(bucket.free))
        return pool

    def count_change(self, bucket: Bucket, by: int) -> None:
        """Counts more nodes of a bucket, or fewer; for a pool of its own counts only (`reduced`)."""
        rank, part, whole = self.members[bucket], self.parts[bucket.key.fingerprint], self.whole
        part.count_change(rank, by)
        if part is not whole:
            whole.count_change(rank, by)

    def inside(self, rank: int, names: frozenset[str] | None) -> tuple[list[Bucket], bool]:
        """Returns the buckets of a group with these fingerprints (None: all), and whether they share a home, each on its own switch."""
        key = (rank, names)
        found = self._inside.get(key)
        if found is None:
            buckets = [bucket for bucket in self.by_group[rank] if names is None or bucket.key.fingerprint in names]
            found = self._inside[key] = buckets, not self.mixed and on_switches_of_their_own(buckets)
        return found

    def cap(self, bucket: Bucket) -> int:
        """Returns how many nodes of a bucket the pool may give."""
        caps = self.caps
        return len(bucket.free) if caps is None or bucket not in caps else caps[bucket]

    def largest_equal(self) -> int:
        """Returns the size of the largest set of nodes of one fingerprint; an unknown one is unlike every other."""
        return max((part.total if name else min(1, part.total) for name, part in self.parts.items()), default=0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Returns how many nodes there are, and how many of them are usable, free or not."""
        self._weigh()
        return self._sizes

    @property
    def mixture(self) -> Mapping[str, Mapping[Hardware, int]]:
        """Returns how many usable nodes there are, free or not, by fingerprint and class."""
        self._weigh()
        return self._mixture

    def _weigh(self) -> None:
        tally = self._node_cache.tally
        if self._tally == tally:
            return
        self._tally = tally
        self._sizes = sum(len(bucket.members) for bucket in self.buckets), sum(bucket.usable for bucket in self.buckets)
        mixture: dict[str, dict[Hardware, int]] = {}
        for bucket in self.buckets:
            alike = mixture.setdefault(bucket.key.fingerprint, {})
            alike[bucket.key.hardware] = alike.get(bucket.key.hardware, 0) + bucket.usable
        self._mixture = mixture

    def _like(self, caps: Mapping[Bucket, int]) -> FreeCounts:
        pool = FreeCounts.__new__(FreeCounts)
        pool._node_cache, pool.buckets, pool.members, pool.by_group = self._node_cache, self.buckets, self.members, self.by_group
        pool.kinds, pool.mixed, pool.caps, pool._inside = self.kinds, self.mixed, caps, self._inside
        pool._tally, pool._sizes, pool._mixture, pool.number = self._tally, self._sizes, self._mixture, self.number
        return pool

    def _count(self, counts: Mapping[Bucket, int]) -> None:
        parts: dict[str, dict[int, int]] = {}
        for bucket, rank in self.members.items():
            part = parts.get(bucket.key.fingerprint)
            if part is None:
                part = parts[bucket.key.fingerprint] = {}
            count = counts[bucket]
            if count:
                part[rank] = part.get(rank, 0) + count
        if len(parts) <= 1:
            self.whole = GroupCounts(next(iter(parts.values()), {}))
            self.parts = dict.fromkeys(parts, self.whole)
            return
        whole: dict[int, int] = {}
        for groups in parts.values():
            for rank, count in groups.items():
                whole[rank] = whole.get(rank, 0) + count
        self.whole = GroupCounts(whole)
        self.parts = {name: GroupCounts(groups) for name, groups in parts.items()}


def on_switches_of_their_own(buckets: Sequence[Bucket]) -> bool:
    """Tells whether no two of these buckets of a group lie below one switch."""
    return len({bucket.key.switch for bucket in buckets}) == len(buckets)


class GroupCountsByClass:
    """The parts that pools share: each counts the free nodes of some buckets, and is told of every change by the buckets."""

    def __init__(self, node_cache: NodeCache) -> None:
        self._node_cache = node_cache
        self._parts: dict[tuple[Bucket, ...], GroupCounts] = {}

    def of(self, buckets: Sequence[Bucket]) -> Groups:
        """Returns the free nodes of these buckets by group: the counts of their classes joined, where no group has two of them."""
        classes: dict[Hardware, list[Bucket]] = {}
        home: dict[int, Hardware] = {}
        for bucket in buckets:
            hardware = bucket.key.hardware
            classes.setdefault(hardware, []).append(bucket)
            if home.setdefault(self._node_cache.rank(bucket.key.group), hardware) is not hardware:
                return self._part(tuple(buckets))
        if len(classes) <= 1:
            return self._part(tuple(buckets))
        places = {hardware: place for place, hardware in enumerate(classes)}
        return JoinedCounts([self._part(tuple(some)) for some in classes.values()], {rank: places[one] for rank, one in home.items()})

    def clear(self) -> None:
        """Forgets all counts."""
        mine = set(self._parts.values())
        for bucket in {bucket for buckets in self._parts for bucket in buckets}:
            bucket.counters = [entry for entry in bucket.counters if entry[0] not in mine]
        self._parts.clear()

    def validate(self) -> None:
        """Counts the free nodes again; raises Corrupt on a difference."""
        for buckets, part in self._parts.items():
            if part.groups != GroupCounts(self._counts(buckets)).groups:
                raise Corrupt("the free nodes of a pool differ from its buckets", reason="PoolDiffers")

    def _part(self, buckets: tuple[Bucket, ...]) -> GroupCounts:
        part = self._parts.get(buckets)
        if part is None:
            part = self._parts[buckets] = GroupCounts(self._counts(buckets))
            for bucket in buckets:
                bucket.counters.append((part, self._node_cache.rank(bucket.key.group)))
        return part

    def _counts(self, buckets: Iterable[Bucket]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for bucket in buckets:
            rank = self._node_cache.rank(bucket.key.group)
            counts[rank] = counts.get(rank, 0) + len(bucket.free)
        return counts


class FreeCountsByNeed:
    """The pools that cycles asked for, kept from cycle to cycle."""

    def __init__(self, node_cache: NodeCache) -> None:
        self._node_cache = node_cache
        self._shape = -1
        self._pools: dict[tuple[object, ...], FreeCounts] = {}
        self._alike: dict[tuple[Bucket, ...], FreeCounts] = {}
        self._parts = GroupCountsByClass(node_cache)

    def of(self, need: Need, home: str, *, known: bool = False, classes: frozenset[Hardware] | None = None) -> FreeCounts:
        """Returns the free nodes at home in `home` that admit a need; `known`: of known fingerprint; `classes`: of this hardware only."""
        if self._shape != self._node_cache.shape:
            self._clear()
        key = (need, home, known, classes)
        pool = self._pools.get(key)
        if pool is None:
            buckets = tuple([
                bucket
                for bucket in self._node_cache.admitted(need)
                if bucket.key.home == home and (bucket.key.fingerprint or not known) and (classes is None or bucket.key.hardware in classes)
            ])  # fmt: skip
            pool = self._alike.get(buckets)
            if pool is None:
                pool = self._alike[buckets] = FreeCounts(self._node_cache, buckets, self._parts)
            self._pools[key] = pool
        return pool

    def trim(self) -> None:
        """Forgets the pools where there are too many; never within a cycle, which goes on with those that it has."""
        if len(self._pools) > _MOST:
            self._clear()

    def _clear(self) -> None:
        self._pools.clear()
        self._alike.clear()
        self._parts.clear()
        self._shape = self._node_cache.shape

    def validate(self) -> None:
        """Counts the nodes of every pool again; raises Corrupt on a difference."""
        if self._shape == self._node_cache.shape:
            self._parts.validate()
