"""Pools: the free nodes of one set of eligible nodes, counted by fingerprint and group, which the node cache keeps up to date.

Needs that the same buckets admit share one pool, however differently they are written. Pools share the counts that they are made
of: one for each class of hardware, and one for each class and fingerprint, where no group has nodes of two classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lattice.errors import Corrupt
from lattice.scheduling.cluster.group_counts import AdjustedGroups, GroupCounts, Groups, JoinedCounts
from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.model.hardware import Hardware, Need

_MOST = 2_000
"""With more pools kept than this at the end of a cycle, which may be of needs long gone, all are made again when they are asked for."""


class FreeCounts:
    """A pool: how many nodes a set of buckets has free, or may give, by fingerprint and group; placement searches in it.

    `members`: each bucket with the rank of its group. `kinds`: the classes of hardware. `caps`: where not None, by bucket the nodes
    that may be taken instead of all free ones. `whole`: the counts by group of all fingerprints together.
    """

    __slots__ = (
        "_inside",
        "_mixture",
        "_node_cache",
        "_sizes",
        "_tally",
        "adjustment",
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
    """The counts by group of each fingerprint."""

    def __init__(self, node_cache: NodeCache, buckets: Sequence[Bucket], parts: GroupCountsByClass | None = None) -> None:
        """Counts the free nodes of these buckets; with `parts` the counts are shared and follow the node cache, without they do not."""
        self._node_cache = node_cache
        self.number = next(node_cache.pool_numbers)
        """The number of the set of buckets; a pool made by `capped` or `sharing` keeps the number of its origin."""
        self.buckets = buckets
        self.caps: Mapping[Bucket, int] | None = None
        self.adjustment: AdjustedCounts | None = None
        """The counts that this pool shares with all pools adjusted alike; None: it has none but its own, or those of all free nodes."""
        self.members = {bucket: node_cache.table.rank(bucket.key.group) for bucket in buckets}
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
        self.whole = parts.groups_of(buckets)
        self.parts = {name: parts.groups_of(some) for name, some in alike.items()}

    def capped(self, caps: Mapping[Bucket, int]) -> FreeCounts:
        """Returns a pool of the same buckets that may give `caps` nodes of each; `caps` has them all. Its counts of them never change."""
        pool = self._like(caps)
        pool._count(caps)
        return pool

    def sharing(self, adjustment: AdjustedCounts, groups_of: Callable[[Groups], Groups]) -> FreeCounts:
        """Returns a pool of the same buckets that may give the nodes that `adjustment` allows.

        `groups_of`: returns the adjusted counts for counts of all free nodes; the counts of the new pool are made by it.
        """
        pool = self._like(adjustment.caps)
        pool.adjustment = adjustment
        pool.whole = groups_of(self.whole)
        pool.parts = {name: pool.whole if part is self.whole else groups_of(part) for name, part in self.parts.items()}
        return pool

    def inside(self, rank: int, names: frozenset[str] | None) -> tuple[list[Bucket], bool]:
        """Returns the buckets of the group of this rank with these fingerprints (None: all), and whether placement may treat them
        as switches.

        The second is True where all nodes of the pool have one home and each of these buckets lies below another switch.
        """
        key = (rank, names)
        found = self._inside.get(key)
        if found is None:
            buckets = [bucket for bucket in self.by_group[rank] if names is None or bucket.key.fingerprint in names]
            found = self._inside[key] = buckets, not self.mixed and on_switches_of_their_own(buckets)
        return found

    def cap(self, bucket: Bucket) -> int:
        """Returns how many nodes of a bucket may be taken from the pool: its cap, or all its free ones where it has none."""
        caps = self.caps
        return len(bucket.free) if caps is None or bucket not in caps else caps[bucket]

    def largest_equal(self) -> int:
        """Returns the size of the largest set of nodes of one fingerprint, 0 without nodes; a node of unknown fingerprint equals no other,
        and is a set of 1.
        """
        return max((part.total if name else min(1, part.total) for name, part in self.parts.items()), default=0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Returns how many nodes the buckets have in all, and how many of them are usable, free or held."""
        self._weigh()
        return self._sizes

    @property
    def mixture(self) -> Mapping[str, Mapping[Hardware, int]]:
        """Returns how many usable nodes, free or held, there are by fingerprint and class of hardware."""
        self._weigh()
        return self._mixture

    def _weigh(self) -> None:
        """Computes `sizes` and `mixture` again if nodes came, went or became usable or not since the last time."""
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
        """Returns a pool of the same buckets that may give at most `caps` nodes of each; the caller must still set its counts."""
        pool = FreeCounts.__new__(FreeCounts)
        pool.adjustment = None
        pool._node_cache, pool.buckets, pool.members, pool.by_group = self._node_cache, self.buckets, self.members, self.by_group
        pool.kinds, pool.mixed, pool.caps, pool._inside = self.kinds, self.mixed, caps, self._inside
        pool._tally, pool._sizes, pool._mixture, pool.number = self._tally, self._sizes, self._mixture, self.number
        return pool

    def _count(self, counts: Mapping[Bucket, int]) -> None:
        """Sets the pool's own counts by group and fingerprint from the nodes of each bucket; `counts` has all of its buckets."""
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


class AdjustedCounts:
    """The counts of pools of which other numbers of nodes may be used than are free now; all pools made of it share them.

    `caps`: by bucket the nodes that may be used, where these may be others than the free ones.
    """

    __slots__ = ("_adjusted", "_by", "_pools", "caps")

    def __init__(self, caps: dict[Bucket, int]) -> None:
        self.caps = caps
        self._by = {bucket: cap - len(bucket.free) for bucket, cap in caps.items()}
        """By bucket: how many nodes more than the free ones may be used, fewer if negative."""
        self._adjusted: dict[GroupCounts, AdjustedGroups] = {}
        """By counts of free nodes: the same counts, adjusted."""
        self._pools: dict[int, FreeCounts] = {}

    def pool_of(self, pool: FreeCounts) -> FreeCounts:
        """Returns a pool of `FreeCountsByNeed` with the nodes that may be used; it follows the node cache and `set_cap`."""
        found = self._pools.get(pool.number)
        if found is None:
            found = self._pools[pool.number] = pool.sharing(self, self._groups)
        return found

    def set_cap(self, bucket: Bucket, cap: int) -> None:
        """Sets how many nodes of a bucket may be used, also in the pools made before; to be called for each bucket in `caps` whose free
        nodes have changed.
        """
        by = cap - len(bucket.free)
        more = by - self._by.get(bucket, 0)
        self.caps[bucket], self._by[bucket] = cap, by
        if more:
            adjusted = self._adjusted
            for part, rank in bucket.counters:
                if part in adjusted:
                    adjusted[part].adjust(rank, more)

    def _groups(self, groups: Groups) -> Groups:
        """Returns the adjusted counts of counts of all free nodes: joined ones are made of adjusted parts; counts that do not follow
        buckets are returned as they are.
        """
        if type(groups) is JoinedCounts:  # isinstance asks every base of a Protocol
            return groups.joined_of([self._part(part) for part in groups.parts if type(part) is BucketCounts])
        return self._part(groups) if type(groups) is BucketCounts else groups

    def _part(self, part: BucketCounts) -> AdjustedGroups:
        """Returns the counts of free nodes `part`, adjusted; made at the first question and kept."""
        found = self._adjusted.get(part)
        if found is None:
            ranks, changes = part.ranks, dict[int, int]()
            for bucket, by in self._by.items():
                if by and (rank := ranks.get(bucket)) is not None:
                    changes[rank] = changes.get(rank, 0) + by
            found = self._adjusted[part] = AdjustedGroups(part, changes)
        return found


def on_switches_of_their_own(buckets: Sequence[Bucket]) -> bool:
    """Tells whether no two of these buckets of a group lie below one switch."""
    return len({bucket.key.switch for bucket in buckets}) == len(buckets)


class BucketCounts(GroupCounts):
    """The free nodes of some buckets, counted by group; `ranks`: by bucket the rank of its group."""

    __slots__ = ("ranks",)

    def __init__(self, groups: Mapping[int, int], ranks: Mapping[Bucket, int]) -> None:
        super().__init__(groups)
        self.ranks = ranks


class GroupCountsByClass:
    """The counts by group that pools share; each counts the free nodes of some buckets, and the buckets tell it every change."""

    def __init__(self, node_cache: NodeCache) -> None:
        self._node_cache = node_cache
        self._parts: dict[tuple[Bucket, ...], BucketCounts] = {}

    def groups_of(self, buckets: Sequence[Bucket]) -> Groups:
        """Returns the free nodes of these buckets by group, as shared counts.

        Where no group has two classes of hardware, the counts of the classes are joined, so that other pools share them.
        """
        classes: dict[Hardware, list[Bucket]] = {}
        home: dict[int, Hardware] = {}
        for bucket in buckets:
            hardware = bucket.key.hardware
            classes.setdefault(hardware, []).append(bucket)
            if home.setdefault(self._node_cache.table.rank(bucket.key.group), hardware) is not hardware:
                return self._part(tuple(buckets))
        if len(classes) <= 1:
            return self._part(tuple(buckets))
        return JoinedCounts([self._part(tuple(some)) for some in classes.values()])

    def clear(self) -> None:
        """Drops all counts and takes them off the buckets that update them."""
        mine = set(self._parts.values())
        for bucket in {bucket for buckets in self._parts for bucket in buckets}:
            bucket.counters = [entry for entry in bucket.counters if entry[0] not in mine]
        self._parts.clear()

    def validate(self) -> None:
        """Counts the free nodes again; raises Corrupt on a difference."""
        for buckets, part in self._parts.items():
            if part.groups != GroupCounts(self._counts(buckets)).groups:
                raise Corrupt("the free nodes of a pool differ from its buckets", reason="PoolDiffers")

    def _part(self, buckets: tuple[Bucket, ...]) -> BucketCounts:
        """Returns the counts of the free nodes of exactly these buckets; makes them at the first question and lets the buckets
        update them.
        """
        part = self._parts.get(buckets)
        if part is None:
            ranks = {bucket: self._node_cache.table.rank(bucket.key.group) for bucket in buckets}
            part = self._parts[buckets] = BucketCounts(self._counts(buckets), ranks)
            for bucket, rank in ranks.items():
                bucket.counters.append((part, rank))
        return part

    def _counts(self, buckets: Iterable[Bucket]) -> dict[int, int]:
        """Counts the free nodes of these buckets by the rank of their group."""
        counts: dict[int, int] = {}
        for bucket in buckets:
            rank = self._node_cache.table.rank(bucket.key.group)
            counts[rank] = counts.get(rank, 0) + len(bucket.free)
        return counts


class FreeCountsByNeed:
    """The pools that cycles asked for, by need and home, kept from cycle to cycle."""

    def __init__(self, node_cache: NodeCache) -> None:
        self._node_cache = node_cache
        self._shape = -1
        self._cleared = 0
        """How often all pools were dropped."""
        self._pools: dict[tuple[object, ...], FreeCounts] = {}
        self._alike: dict[tuple[Bucket, ...], FreeCounts] = {}
        self._parts = GroupCountsByClass(node_cache)

    @property
    def stamp(self) -> tuple[int, int, int]:
        """Returns a stamp that changes when pools are dropped, or nodes come, go, or become usable or not."""
        return self._node_cache.shape, self._node_cache.tally, self._cleared

    def pool_for(self, need: Need, home: str, *, known: bool = False, classes: frozenset[Hardware] | None = None) -> FreeCounts:
        """Returns the pool of the nodes that admit a need and are at home in the vcluster `home` (empty: at home nowhere); its counts
        follow the node cache.

        `known`: only nodes of known fingerprint; `classes`: only nodes of these classes of hardware (None: all). The need's node lists must
        be among the node cache's `masks`. Equal questions get the same object until buckets appear or go, or `trim` drops it.
        """
        if self._shape != self._node_cache.shape:
            self._clear()
        key = (need, home, known, classes)
        pool = self._pools.get(key)
        if pool is None:
            buckets = tuple([
                bucket
                for bucket in self._node_cache.table.admitted(need)
                if bucket.key.home == home and (bucket.key.fingerprint or not known) and (classes is None or bucket.key.hardware in classes)
            ])  # fmt: skip
            pool = self._alike.get(buckets)
            if pool is None:
                pool = self._alike[buckets] = FreeCounts(self._node_cache, buckets, self._parts)
            self._pools[key] = pool
        return pool

    def trim(self) -> None:
        """Drops all pools where more than 2,000 are kept; called between cycles only, since a cycle holds on to its pools."""
        if len(self._pools) > _MOST:
            self._clear()

    def _clear(self) -> None:
        """Drops all pools and their counts, and notes the node cache's `shape` for which new ones will be made."""
        self._cleared += 1
        self._pools.clear()
        self._alike.clear()
        self._parts.clear()
        self._shape = self._node_cache.shape

    def validate(self) -> None:
        """Counts the free nodes of every pool again; raises Corrupt on a difference.

        Does nothing where buckets have appeared or gone since: the pools are then made anew when they are next asked for.
        """
        if self._shape == self._node_cache.shape:
            self._parts.validate()
