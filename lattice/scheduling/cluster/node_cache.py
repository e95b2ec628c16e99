"""The nodes as cycles see them: buckets of interchangeable nodes, kept by events, never rebuilt in a cycle.

A bucket is (hardware, group, switch, fingerprint, home) and the node sets that it lies in (reservations, node lists): its nodes are
interchangeable, so that counts lose nothing. It knows its free nodes in order and when the others come free. `NodeCache` is changed
by its own methods only: the scheduler's `Nodes` calls `put` and `drop`, the cluster state `take`, `give` and `split`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

from lattice.errors import Corrupt
from lattice.scheduling.cluster.group_counts import GroupCounts
from lattice.scheduling.model.hardware import Hardware, Key, Need, NodeFacts, natural

HOLLOW = "hollow"
UNHEARD = "not seen alive yet"
"""State of a node whose heartbeat this process has not seen since it began to listen."""

NEVER: Final = float("inf")
_LOGGED: Final = 10_000
"""The log of changes is cut when it is longer."""


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


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of the nodes that admit a need: all (`eligible`), those that may work (`usable`), those that also hold no work (`free`)."""

    eligible: int
    usable: int
    free: int


@dataclass
class NodeCache:
    """All nodes of the cluster, free and held, in buckets; cycles read it, events and placements change it.

    `by_name`: the index of a node. `buckets`: by key. One process has one, a part of its cluster state.
    """

    nodes: dict[int, NodeFacts] = field(default_factory=dict)
    by_name: dict[str, int] = field(default_factory=dict)
    news: int = 0
    """Grows with every change of `nodes`."""
    taken: dict[int, float] = field(default_factory=dict)
    """Held nodes, also ones unknown here: when each comes free at the latest, seconds since the epoch (`NEVER`: nobody knows)."""
    watts: int = 0
    """Nominal power of the held nodes."""
    buckets: dict[Key, Bucket] = field(default_factory=dict)
    masks: frozenset[int] = frozenset()
    """The node sets (bit sets of indices) along which buckets are split: every bucket lies wholly inside or outside of each."""
    changes: int = 0
    """Grows with every change of the free nodes, and of the time when a held one comes free."""
    shape: int = 0
    """Grows when a bucket appears or goes; whatever was derived from the set of buckets is void then."""
    tally: int = 0
    """Grows when a node comes, goes, or becomes usable or not."""
    due: float = NEVER
    """Earliest time at which a held node is to come free, seconds since the epoch; it may be too early, never too late (`overdue`)."""
    losses: int = 0
    """Grows when nodes become held that no cycle placed work on, or held for longer than was known: backfill reservations may fail."""
    _log: list[tuple[Bucket, int]] = field(default_factory=list)
    """The last changes in order: the bucket, and by how many its free nodes grew. The first `_logged` changes are dropped."""
    _logged: int = 0
    _pools: int = 0
    """The number of a pool that was given last."""
    _of: dict[int, Bucket] = field(default_factory=dict)
    """The bucket of each node index."""
    _classes: dict[Hardware, Hardware] = field(default_factory=dict)
    """One object for equal hardware, so that comparing hardware compares identities."""
    _ranks: dict[str, int] = field(default_factory=dict)
    _admitted: dict[Need, list[Bucket]] = field(default_factory=dict)

    def put(self, facts: NodeFacts) -> None:
        """Adds a node, or replaces the facts of the node with the same index."""
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
        self._prune(left)

    def drop(self, index: int) -> None:
        """Removes a node; if it is held, its index stays in `taken`."""
        facts = self.nodes.pop(index, None)
        if facts is None:
            return
        self.news += 1
        self.by_name.pop(facts.name, None)
        if index in self.taken:
            self.watts -= facts.watts
        self._prune(self._leave(facts))

    def take_free(self, indices: Sequence[int], until: float, counts: Iterable[tuple[Bucket, int]]) -> None:
        """Marks nodes as held until `until`, as `take` does, where each bucket gives its lowest free nodes; `counts`: how many of
        which bucket.
        """
        self.due = min(self.due, until)
        self.taken.update(zip(indices, repeat(until)))
        watts = 0
        for bucket, count in counts:
            del bucket.free[:count]
            watts += bucket.watts * count
            ends = bucket.ends
            ends[until] = ends.get(until, 0) + count
            bucket.version += 1
            self._log.append((bucket, -count))
            for part, rank in bucket.counters:  # as `part.note` does, without a call for each
                noted = part.noted
                noted[rank] = noted.get(rank, 0) - count
                part.total -= count
        self.watts += watts
        self.changes += 1

    def take(self, indices: Iterable[int], until: float = NEVER, *, planned: bool = False) -> None:
        """Marks nodes as held; `until` is when they come free at the latest, seconds since the epoch.

        `planned`: a cycle placed the work and so kept every backfill reservation. If False, `losses` grows, since reservations may
        fail now.
        """
        self.losses += not planned
        self.due = min(self.due, until)
        new = dict.fromkeys(indices, until)
        nodes, taken, of = self.nodes, self.taken, self._of
        if not taken.keys().isdisjoint(new):
            for index in [index for index in new if index in taken]:
                self._retake(index, until)
                del new[index]
        taken.update(new)
        gone: dict[Bucket, list[int]] = {}
        for index in new:
            bucket = of.get(index)
            if bucket is None:
                continue
            self.watts += bucket.key.hardware.watts
            if nodes[index].usable:
                lost = gone.get(bucket)
                if lost is None:
                    gone[bucket] = [index]
                else:
                    lost.append(index)
        for bucket, lost in gone.items():
            free = bucket.free
            if len(lost) == len(free):
                free.clear()
            elif free[: len(lost)] == lost:
                del free[: len(lost)]
            else:
                for index in lost:
                    del free[bisect_left(free, index)]
            bucket.ends[until] = bucket.ends.get(until, 0) + len(lost)
            self._changed(bucket, -len(lost))

    def give(self, indices: Iterable[int]) -> None:
        """Marks nodes as no longer held; indices that are not held are ignored."""
        back: dict[tuple[Bucket, float], list[int]] = {}
        nodes, taken, of = self.nodes, self.taken, self._of
        for index in indices:
            before = taken.pop(index, None)
            facts = nodes.get(index)
            if before is None or facts is None:
                continue
            self.watts -= facts.watts
            if facts.usable:
                back.setdefault((of[index], before), []).append(index)
        for (bucket, before), given in back.items():
            _less(bucket.ends, before, len(given))
            for index in given:
                insort(bucket.free, index)
            self._changed(bucket, len(given))

    def split(self, masks: frozenset[int]) -> None:
        """Splits the buckets so that each lies wholly inside or outside of each of these node sets; sets given before that are
        absent are merged.
        """
        if masks == self.masks:
            return
        touched = 0
        for mask in masks ^ self.masks:
            touched |= mask
        moving = [self.nodes[index] for index in indices_of(touched) if index in self.nodes]
        left = [self._leave(facts) for facts in moving]
        self.masks = masks
        for facts in moving:
            self._enter(facts)
        for bucket in left:
            self._prune(bucket)

    def overdue(self, now: float) -> bool:
        """Tells whether a node is still held past the time at which it was to come free."""
        if now < self.due:
            return False
        self.due = min([end for bucket in self.buckets.values() for end in bucket.ends], default=NEVER)
        return self.due <= now

    @property
    def position(self) -> int:
        """Returns the present end of the log of changed buckets; give it to `changed_since` later."""
        return self._logged + len(self._log)

    def changed_since(self, position: int) -> dict[Bucket, int] | None:
        """Returns the buckets whose free nodes or ends changed since the log stood at `position`, and by how many their free nodes
        grew.

        None: the log no longer reaches back so far.
        """
        if len(self._log) > _LOGGED:
            self._logged += len(self._log)
            self._log.clear()
        if position < self._logged:
            return None
        found: dict[Bucket, int] = {}
        for bucket, by in self._log[position - self._logged :]:
            found[bucket] = found.get(bucket, 0) + by
        return found

    def number_pool(self) -> int:
        """Returns a number for a new pool; no other pool of this node cache has it."""
        self._pools += 1
        return self._pools

    def bucket_of(self, index: int) -> Bucket:
        """Returns the bucket of a known node."""
        return self._of[index]

    def admitted(self, need: Need) -> list[Bucket]:
        """Returns the buckets that admit a need, in order; the node lists of the need must have been given to `split` before."""
        buckets = self._admitted.get(need)
        if buckets is None:
            buckets = [bucket for bucket in self.buckets.values() if bucket.admitted_by(need)]
            buckets.sort(key=lambda bucket: bucket.order)
            if len(self._admitted) > 10_000:
                self._admitted.clear()
            self._admitted[need] = buckets
        return buckets

    def eligible(self, need: Need) -> list[int]:
        """Returns the indices of all nodes that admit a need, whatever their state, ascending; needs no `split`."""
        if need.lists <= self.masks:
            return sorted(index for bucket in self.admitted(need) for index in bucket.members)
        return sorted(index for index, facts in self.nodes.items() if need.admits_node(facts))

    def rank(self, group: str) -> int:
        """Returns the place of a group in the order of names, numbers in names by value; neighbours in that order count as adjacent."""
        if not self._ranks:
            names = {bucket.key.group for bucket in self.buckets.values()}
            self._ranks = {name: place for place, name in enumerate(sorted(names, key=lambda name: (natural(name), name)))}
        return self._ranks[group]

    def census(self, need: Need) -> Census:
        """Counts the nodes that admit a need: all, the usable ones, and the free ones among these."""
        if need.lists <= self.masks:
            found = self.admitted(need)
            return Census(sum(len(one.members) for one in found), sum(one.usable for one in found), sum(len(one.free) for one in found))
        facts = [self.nodes[index] for index in self.eligible(need)]
        usable = [one for one in facts if one.usable]
        return Census(len(facts), len(usable), sum(one.index not in self.taken for one in usable))

    def states(self, need: Need) -> dict[str, int]:
        """Returns how many nodes that admit a need are in each state (the word shown for a node's condition)."""
        counts: dict[str, int] = {}
        for index in self.eligible(need):
            state = self.nodes[index].state
            counts[state] = counts.get(state, 0) + 1
        return counts

    def validate(self) -> None:
        """Rebuilds the buckets from the nodes and compares; raises Corrupt on a difference."""
        again = NodeCache(taken=dict(self.taken), masks=self.masks)
        for facts in self.nodes.values():
            again.put(facts)
        if again.watts != self.watts:
            raise Corrupt(f"held nodes draw {again.watts} W, not {self.watts} W", reason="WattsDiffer")
        if again.buckets.keys() != self.buckets.keys():
            raise Corrupt("there are other buckets than the nodes make", reason="BucketDiffers")
        for key, bucket in self.buckets.items():
            other = again.buckets[key]
            if (bucket.members, bucket.usable, bucket.free, bucket.ends) != (other.members, other.usable, other.free, other.ends):
                raise Corrupt(f"bucket {key} differs from its nodes", reason="BucketDiffers")

    def _retake(self, index: int, until: float) -> None:
        """Changes the time at which one held node comes free at the latest."""
        facts = self.nodes.get(index)
        if facts is not None and facts.usable:
            bucket = self._of[index]
            _less(bucket.ends, self.taken[index])
            bucket.ends[until] = bucket.ends.get(until, 0) + 1
            self._count_change(bucket)
        self.taken[index] = until

    def _count_change(self, bucket: Bucket, by: int = 0) -> None:
        bucket.version += 1
        self.changes += 1
        self._log.append((bucket, by))

    def _changed(self, bucket: Bucket, by: int) -> None:
        self._count_change(bucket, by)
        for part, rank in bucket.counters:
            part.count_change(rank, by)

    def _enter(self, facts: NodeFacts) -> None:
        index = facts.index
        marks = frozenset(mask for mask in self.masks if mask >> index & 1) if self.masks else self.masks
        hardware = Hardware(
            facts.cpus, facts.memory, facts.gpus, facts.features, facts.hollow,
            facts.cxl_memory, facts.gpu_type, facts.gpu_memory, facts.unified, facts.watts,
        )  # fmt: skip
        hardware = self._classes.setdefault(hardware, hardware)
        key = Key(hardware, facts.group, facts.switch, facts.fingerprint, facts.home, marks)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(key, key.order, facts.watts)
            self._reshape()
        self._of[index] = bucket
        self.tally += 1
        bucket.members.add(index)
        if not facts.usable:
            return
        bucket.usable += 1
        end = self.taken.get(index)
        if end is None:
            insort(bucket.free, index)
            self._changed(bucket, 1)
        else:
            self.due = min(self.due, end)
            bucket.ends[end] = bucket.ends.get(end, 0) + 1
            self._count_change(bucket)

    def _leave(self, facts: NodeFacts) -> Bucket:
        index = facts.index
        bucket = self._of.pop(index)
        self.tally += 1
        bucket.members.discard(index)
        if facts.usable:
            bucket.usable -= 1
            end = self.taken.get(index)
            if end is None:
                del bucket.free[bisect_left(bucket.free, index)]
                self._changed(bucket, -1)
            else:
                _less(bucket.ends, end)
                self._count_change(bucket)
        return bucket

    def _prune(self, bucket: Bucket | None) -> None:
        if bucket is not None and not bucket.members and self.buckets.get(bucket.key) is bucket:
            del self.buckets[bucket.key]
            self._reshape()

    def _reshape(self) -> None:
        self.shape += 1
        self._admitted.clear()
        self._ranks.clear()


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
    left = ends[end] - by
    if left:
        ends[end] = left
    else:
        del ends[end]
