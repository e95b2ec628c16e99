"""The nodes as cycles see them: buckets of interchangeable nodes, kept by events, never rebuilt in a cycle.

A bucket is (hardware, group, switch, fingerprint, home) and the node sets that it lies in (reservations, node lists): its nodes are
interchangeable, so that counts lose nothing. It knows its free nodes in order and when the others come free. `NodeCache` is changed
by its own methods only: the scheduler's `Nodes` calls `put` and `drop`, the cluster state `take`, `give` and `split`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lattice.errors import Corrupt
from lattice.scheduling.cluster.change_log import ChangeLog
from lattice.scheduling.cluster.group_counts import GroupCounts
from lattice.scheduling.model.hardware import Hardware, Key, Need, NodeFacts, natural

HOLLOW = "hollow"
UNHEARD = "not seen alive yet"
"""State of a node whose heartbeat this process has not seen since it began to listen."""

NEVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class Bucket:
    """Interchangeable nodes: `members` (all indices), `usable` (how many may work), `free` (indices, ascending), `ends` of the held
    ones.
    """

    key: Key
    order: tuple[object, ...]
    """The sort key of buckets, `Key.order`."""
    watts: int
    """Of each node, at its nominal power."""
    members: set[int] = field(default_factory=set)
    usable: int = 0
    """How many members, free or held, are not drained, down or never seen alive."""
    free: list[int] = field(default_factory=list)
    ends: dict[float, int] = field(default_factory=dict)
    """How many usable nodes are held until when at the latest, seconds since the epoch (`NEVER`: nobody knows)."""
    version: int = 0
    """Grows with every change of `free` or `ends`."""
    counters: list[tuple[GroupCounts, int]] = field(default_factory=list)
    """The counts of pools that follow its free nodes, each with the rank under which it counts this bucket's group."""

    @property
    def group(self) -> str:
        """Returns the topology group."""
        return self.key.group

    @property
    def fingerprint(self) -> str:
        """Returns the fingerprint of hardware and software; empty: unknown."""
        return self.key.fingerprint

    def admitted_by(self, need: Need) -> bool:
        """Tells whether all nodes of the bucket satisfy a need; its node lists must be among the node cache's `masks`."""
        key = self.key
        return (
            need.admits(key.hardware)
            and (need.groups is None or key.group in need.groups)
            and (need.only is None or need.only in key.marks)
            and (not need.without or need.without not in key.marks)
        )

    def enter(self, index: int, end: float | None) -> None:
        """Counts a usable node among the free ones (`end` None), or among those held until `end` at the latest, seconds since the epoch;
        `members`, `version` and pools are left to the caller.
        """
        self.usable += 1
        if end is None:
            insort(self.free, index)
        else:
            self.ends[end] = self.ends.get(end, 0) + 1

    def leave(self, index: int, end: float | None) -> None:
        """Counts a usable node no longer that was free (`end` None) or held until `end`; `members`, `version` and pools are left to the
        caller.
        """
        self.usable -= 1
        if end is None:
            del self.free[bisect_left(self.free, index)]
        else:
            _less(self.ends, end)

    def hold(self, indices: list[int], until: float) -> None:
        """Moves free nodes (indices, in any order) to those that are held until `until`; `version` and pools are left to the caller."""
        free = self.free
        if len(indices) == len(free):
            free.clear()
        elif free[: len(indices)] == indices:
            del free[: len(indices)]
        else:
            for index in indices:
                del free[bisect_left(free, index)]
        self.ends[until] = self.ends.get(until, 0) + len(indices)

    def release(self, indices: list[int], end: float) -> None:
        """Moves nodes that are held until `end` to the free ones; `version` and pools are left to the caller."""
        _less(self.ends, end, len(indices))
        for index in indices:
            insort(self.free, index)


class BucketTable:
    """The buckets of a node cache by key and by node; knows which of them admit a need, and the order of their groups.

    `by_key`: the buckets. `of_node`: the bucket of each node index. `masks`: the node sets (bit sets of indices) along which buckets
    are split: every bucket lies wholly inside or outside of each. `shape`: grows when a bucket appears or goes; whatever was derived
    from the set of buckets is void then.
    """

    __slots__ = ("_admitted", "_classes", "_ranks", "by_key", "masks", "of_node", "shape")

    def __init__(self, masks: frozenset[int]) -> None:
        self.by_key: dict[Key, Bucket] = {}
        self.masks = masks
        self.shape = 0
        self.of_node: dict[int, Bucket] = {}
        self._classes: dict[Hardware, Hardware] = {}
        """One object for equal hardware, so that comparing hardware compares identities."""
        self._ranks: dict[str, int] = {}
        self._admitted: dict[Need, list[Bucket]] = {}

    def enter(self, facts: NodeFacts) -> Bucket:
        """Makes a node a member of the bucket that its facts name, a new one where there is none, without counting it as usable or free;
        returns the bucket.
        """
        marks = frozenset(mask for mask in self.masks if mask >> facts.index & 1) if self.masks else self.masks
        hardware = Hardware(
            facts.cpus, facts.memory, facts.gpus, facts.features, facts.hollow,
            facts.cxl_memory, facts.gpu_type, facts.gpu_memory, facts.unified, facts.watts, facts.scratch,
            facts.architecture,
        )  # fmt: skip
        hardware = self._classes.setdefault(hardware, hardware)
        key = Key(hardware, facts.group, facts.switch, facts.fingerprint, facts.home, marks)
        bucket = self.by_key.get(key)
        if bucket is None:
            bucket = self.by_key[key] = Bucket(key, key.order, facts.watts)
            self._reshape()
        self.of_node[facts.index] = bucket
        bucket.members.add(facts.index)
        return bucket

    def leave(self, index: int) -> Bucket:
        """Removes a node from its bucket, which may be empty then; returns the bucket."""
        bucket = self.of_node.pop(index)
        bucket.members.discard(index)
        return bucket

    def prune(self, bucket: Bucket | None) -> None:
        """Removes a bucket if it has no members left; a bucket with members, a bucket that is not in the table, and None are ignored."""
        if bucket is not None and not bucket.members and self.by_key.get(bucket.key) is bucket:
            del self.by_key[bucket.key]
            self._reshape()

    def admitted(self, need: Need) -> list[Bucket]:
        """Returns the buckets that admit a need, in order; the node lists of the need must be among `masks`."""
        buckets = self._admitted.get(need)
        if buckets is None:
            buckets = [bucket for bucket in self.by_key.values() if bucket.admitted_by(need)]
            buckets.sort(key=lambda bucket: bucket.order)
            if len(self._admitted) > 10_000:
                self._admitted.clear()
            self._admitted[need] = buckets
        return buckets

    def rank(self, group: str) -> int:
        """Returns the place of a group in the order of names, where numbers in names compare by value; KeyError: no bucket is of it."""
        if not self._ranks:
            names = {bucket.key.group for bucket in self.by_key.values()}
            self._ranks = {name: place for place, name in enumerate(sorted(names, key=lambda name: (natural(name), name)))}
        return self._ranks[group]

    def differing(self, other: BucketTable) -> Key | None:
        """Returns the key of a bucket that the other table has not, or has with other nodes or ends; None: the tables are equal."""
        for key in sorted(self.by_key.keys() ^ other.by_key.keys(), key=lambda key: key.order):
            return key
        for key, bucket in self.by_key.items():
            its = other.by_key[key]
            if (bucket.members, bucket.usable, bucket.free, bucket.ends) != (its.members, its.usable, its.free, its.ends):
                return key
        return None

    def _reshape(self) -> None:
        """Notes that a bucket appeared or went: `shape` grows, and all that was derived from the set of buckets is dropped."""
        self.shape += 1
        self._admitted.clear()
        self._ranks.clear()


@dataclass
class NodeCache:
    """All nodes of the cluster, free and held, in buckets; cycles read it, events and placements change it.

    `by_name`: the index of a node. One process has one, a part of its cluster state.
    """

    nodes: dict[int, NodeFacts] = field(default_factory=dict)
    by_name: dict[str, int] = field(default_factory=dict)
    news: int = 0
    """Grows with every change of `nodes`."""
    taken: dict[int, float] = field(default_factory=dict)
    """Held nodes, also ones unknown here: when each comes free at the latest, seconds since the epoch (`NEVER`: nobody knows)."""
    watts: int = 0
    """Nominal power of the held nodes."""
    table: BucketTable = field(default_factory=lambda: BucketTable(frozenset()))
    changes: int = 0
    """Grows with every change of the free nodes, and of the time when a held one comes free."""
    tally: int = 0
    """Grows when a node comes, goes, or becomes usable or not."""
    due: float = NEVER
    """Earliest time at which a held node is to come free, seconds since the epoch; it may be too early, never too late (`overdue`)."""
    losses: int = 0
    """Grows when nodes become held that no cycle placed work on, or held for longer than was known: backfill reservations may fail."""
    log: ChangeLog[Bucket] = field(default_factory=ChangeLog)
    """The changes of buckets: of the nodes that they hold until an end, and of the free ones."""
    pool_numbers: Iterator[int] = field(default_factory=itertools.count)
    """The next item is a number that no other pool of this node cache has."""

    @property
    def buckets(self) -> Mapping[Key, Bucket]:
        """Returns all buckets by key."""
        return self.table.by_key

    @property
    def masks(self) -> frozenset[int]:
        """Returns the node sets (bit sets of indices) along which buckets are split: `split` sets them."""
        return self.table.masks

    @property
    def shape(self) -> int:
        """Returns a number that grows when a bucket appears or goes; whatever was derived from the set of buckets is void then."""
        return self.table.shape

    def put(self, facts: NodeFacts) -> None:
        """Adds a node, or replaces the facts of the node with the same index; one that may work counts as free, or as held where `taken`
        has its index.

        Equal facts change nothing.
        """
        before = self.nodes.get(facts.index)
        if before == facts:
            return
        left = self._leave(before) if before is not None else None
        if before is not None and before.name != facts.name:
            self.by_name.pop(before.name, None)
        self.nodes[facts.index] = facts
        self.news += 1
        self.by_name[facts.name] = facts.index
        if facts.index in self.taken:
            self.watts += facts.watts - (before.watts if before is not None else 0)
        self._enter(facts)
        self.table.prune(left)

    def drop(self, index: int) -> None:
        """Removes a node; if it is held, its index stays in `taken`; an unknown index is ignored."""
        facts = self.nodes.pop(index, None)
        if facts is None:
            return
        self.news += 1
        self.by_name.pop(facts.name, None)
        if index in self.taken:
            self.watts -= facts.watts
        self.table.prune(self._leave(facts))

    def take_free(self, indices: Sequence[int], until: float, counts: Iterable[tuple[Bucket, int]]) -> None:
        """Marks free nodes as held until `until` (seconds since the epoch), quicker than `take`, for work that a cycle placed.

        `indices` must be the lowest free nodes of the buckets in `counts`, so many of each; nothing checks that.
        """
        self.due = min(self.due, until)
        taken = self.taken
        for index in indices:
            taken[index] = until
        self.watts += _hold_lowest(counts, until, self.log)
        self.changes += 1

    def take(self, indices: Iterable[int], until: float = NEVER, *, planned: bool = False) -> None:
        """Marks nodes as held, unknown ones too; a node that is held already gets the new end.

        `until`: when they come free at the latest, seconds since the epoch (`NEVER`: unknown). `planned`: a cycle placed the work and so
        kept every backfill reservation. If False, `losses` grows, since reservations may fail now.
        """
        self.losses += not planned
        self.due = min(self.due, until)
        new = dict.fromkeys(indices, until)
        nodes, taken, of_node = self.nodes, self.taken, self.table.of_node
        if not taken.keys().isdisjoint(new):
            for index in [index for index in new if index in taken]:
                self._retake(index, until)
                del new[index]
        taken.update(new)
        gone: dict[Bucket, list[int]] = {}
        for index in new:
            facts = nodes.get(index)
            if facts is None:
                continue
            self.watts += facts.watts
            if facts.usable:
                gone.setdefault(of_node[index], []).append(index)
        for bucket, lost in gone.items():
            bucket.hold(lost, until)
            self._count_change(bucket, -len(lost), until, len(lost))

    def give(self, indices: Iterable[int]) -> None:
        """Marks nodes as no longer held; indices that are not held are ignored.

        A node that may not work, or is unknown, does not count as free then.
        """
        back: dict[tuple[Bucket, float], list[int]] = {}
        nodes, taken, of_node = self.nodes, self.taken, self.table.of_node
        for index in indices:
            before = taken.pop(index, None)
            facts = nodes.get(index)
            if before is None or facts is None:
                continue
            self.watts -= facts.watts
            if facts.usable:
                back.setdefault((of_node[index], before), []).append(index)
        for (bucket, end), given in back.items():
            bucket.release(given, end)
            self._count_change(bucket, len(given), end, -len(given))

    def split(self, masks: frozenset[int]) -> None:
        """Replaces the node sets along which buckets are split: each bucket then lies wholly inside or outside of each of `masks`.

        Buckets that only a former node set kept apart become one.
        """
        if masks == self.masks:
            return
        touched = 0
        for mask in masks ^ self.masks:
            touched |= mask
        moving = [self.nodes[index] for index in indices_of(touched) if index in self.nodes]
        left = [self._leave(facts) for facts in moving]
        self.table.masks = masks
        for facts in moving:
            self._enter(facts)
        for bucket in left:
            self.table.prune(bucket)

    def overdue(self, now: float) -> bool:
        """Tells whether a usable node is still held at the time at which it was to come free, or past it.

        Makes `due` exact where it has been reached.
        """
        if now < self.due:
            return False
        self.due = min([end for bucket in self.buckets.values() for end in bucket.ends], default=NEVER)
        return self.due <= now

    def validate(self) -> None:
        """Rebuilds the buckets from the nodes and compares; raises Corrupt on a difference."""
        again = NodeCache(taken=dict(self.taken), table=BucketTable(self.masks))
        for facts in self.nodes.values():
            again.put(facts)
        if again.watts != self.watts:
            raise Corrupt(f"held nodes draw {again.watts} W, not {self.watts} W", reason="WattsDiffer")
        if (key := self.table.differing(again.table)) is not None:
            raise Corrupt(f"bucket {key} differs from its nodes", reason="BucketDiffers")

    def _retake(self, index: int, until: float) -> None:
        """Changes the time at which one held node comes free at the latest."""
        facts = self.nodes.get(index)
        if facts is not None and facts.usable:
            bucket = self.table.of_node[index]
            _less(bucket.ends, self.taken[index])
            bucket.ends[until] = bucket.ends.get(until, 0) + 1
            self._count_change(bucket, 0, self.taken[index], -1)
            self._count_change(bucket, 0, until, 1)
        self.taken[index] = until

    def _count_change(self, bucket: Bucket, by: int, end: float = NEVER, held: int = 0) -> None:
        """Notes that the free nodes of a bucket grew by `by`, and those that are held until `end` by `held`, wherever they are counted."""
        bucket.version += 1
        self.changes += 1
        self.log.entries += (bucket, end, held)
        if by:
            for part, rank in bucket.counters:
                part.count_change(rank, by)

    def _count_entered(self, bucket: Bucket, end: float | None, sign: int) -> None:
        """Notes that a usable node came into a bucket (`sign` +1) or left it (−1): a free one (`end` None), or one held until `end`."""
        if end is None:
            self._count_change(bucket, sign)
        else:
            self._count_change(bucket, 0, end, sign)

    def _enter(self, facts: NodeFacts) -> None:
        """Puts a node into its bucket, as free or as held until the end in `taken`, and logs that; a node that may not work becomes a
        member only.
        """
        bucket = self.table.enter(facts)
        self.tally += 1
        if facts.usable:
            end = self.taken.get(facts.index)
            bucket.enter(facts.index, end)
            if end is not None:
                self.due = min(self.due, end)
            self._count_entered(bucket, end, 1)

    def _leave(self, facts: NodeFacts) -> Bucket:
        """Removes a node from its bucket and logs that; returns the bucket, which may be empty now."""
        bucket = self.table.leave(facts.index)
        self.tally += 1
        if facts.usable:
            end = self.taken.get(facts.index)
            bucket.leave(facts.index, end)
            self._count_entered(bucket, end, -1)
        return bucket


def _hold_lowest(counts: Iterable[tuple[Bucket, int]], until: float, log: ChangeLog[Bucket]) -> int:
    """Holds the lowest free nodes of each bucket until `until`, so many of each, logs the changes and counts them in the pools; returns
    their watts.
    """
    watts = 0
    for bucket, count in counts:
        del bucket.free[:count]
        watts += bucket.watts * count
        ends = bucket.ends
        ends[until] = ends.get(until, 0) + count
        bucket.version += 1
        log.entries += (bucket, until, count)
        for part, rank in bucket.counters:  # as `part.count_change` does, without a call for each
            noted = part.noted
            noted[rank] = noted.get(rank, 0) - count
            part.total -= count
    return watts


def indices_of(mask: int) -> Iterator[int]:
    """Yields the indices in a bit set, ascending."""
    at = 0
    while mask:
        if not mask & 0xFFFFFFFFFFFFFFFF:
            mask >>= 64
            at += 64
            continue
        word = mask & 0xFFFFFFFFFFFFFFFF
        while word:
            low = word & -word
            yield at + low.bit_length() - 1
            word ^= low
        mask >>= 64
        at += 64


def _less(ends: dict[float, int], end: float, by: int = 1) -> None:
    """Counts `by` fewer nodes that are held until `end`; the entry goes when none is left."""
    left = ends[end] - by
    if left:
        ends[end] = left
    else:
        del ends[end]
