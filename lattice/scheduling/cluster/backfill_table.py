"""Backfill reservations, and which nodes of which bucket each of them keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.cluster.releases import Releases
from lattice.scheduling.model.hardware import Key

Slot = tuple[float, float, int]
"""What one reservation keeps of one bucket: from when, until when (seconds since the epoch), how many nodes."""


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """The nodes and the latest start that one blocked allocation (`uid`) has been given: [start, end) in seconds since the epoch.

    `counts`: how many nodes it keeps of each bucket, by the bucket's key. A cycle makes it; the allocation may start earlier.
    """

    uid: str
    vcluster: str
    start: float
    end: float
    counts: tuple[tuple[Key, int], ...]
    given: float = 0.0
    """When its holder was first given a reservation, seconds since the epoch: longer-standing holders are planned first."""

    nodes: int = field(init=False, compare=False, repr=False)
    """How many nodes it keeps, of all buckets together."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", sum([count for _, count in self.counts]))


class LayoutChange(NamedTuple):
    """The origin of a layout (a numbered set of backfill reservations): the layout `before`, and the one reservation that was added
    or removed.

    `by`: −1 where the reservation was added (free nodes go), +1 where it was removed. `slots`: how many nodes it keeps of which
    bucket.
    """

    before: int
    reservation: BackfillReservation
    slots: list[tuple[Bucket, int]]
    by: int


_NONE: Final[tuple[BackfillReservation | None, list[tuple[Bucket, int]]]] = (None, [])


class BackfillTable:
    """All backfill reservations of all vclusters, by uid and by bucket; a part of the availability profile, which adds and removes them."""

    def __init__(self, node_cache: NodeCache) -> None:
        self.by_uid: dict[str, BackfillReservation] = {}
        self.layout = 0
        """The number of the present set of reservations: equal numbers are equal sets.

        Undoing a removal restores the number of before, and no number is ever given to a second set.
        """
        self.by_bucket: dict[Bucket, dict[str, Slot]] = {}
        """The slots of each bucket, by uid."""
        self._layouts = 0
        """The layout number given last; it only grows."""
        self._node_cache = node_cache
        self._slots: dict[str, list[tuple[Bucket, int]]] = {}
        self._removed: dict[str, tuple[BackfillReservation | None, list[tuple[Bucket, int]]]] = {}
        """Removed reservations of this cycle with their buckets: most are added again as they were."""
        self._changes: dict[int, LayoutChange] = {}
        """By layout: the change that made it; kept since the nodes last changed."""

    def add(self, reservation: BackfillReservation) -> list[tuple[Bucket, int]]:
        """Adds the reservation of an allocation that has none in the table; returns how many nodes it keeps of which present bucket,
        perhaps fewer than it names.

        The set gets a new layout number or, where this undoes the last removal, that of before.
        """
        uid, start, end = reservation.uid, reservation.start, reservation.end
        before, slots = self._removed.get(uid, _NONE)
        if before is not reservation:
            slots = list(self._merged(reservation).items())
        change = self._changes.get(self.layout)
        if change is not None and change.by > 0 and change.reservation is reservation:
            self.layout = change.before
        else:
            self._enter(LayoutChange(self.layout, reservation, slots, -1))
        self.by_uid[uid] = reservation
        self._slots[uid] = slots
        for bucket, count in slots:
            known = self.by_bucket.get(bucket)
            if known is None:
                self.by_bucket[bucket] = {uid: (start, end, count)}
            else:
                known[uid] = (start, end, count)
        return slots

    def remove(self, uid: str) -> list[tuple[Bucket, int]]:
        """Removes the reservation of an allocation, which must be in the table; returns how many nodes it kept of which bucket.

        The set gets a new layout number or, where this undoes the last addition, that of before.
        """
        reservation, slots = self.by_uid.pop(uid), self._slots.pop(uid)
        change = self._changes.get(self.layout)
        if change is not None and change.by < 0 and change.reservation is reservation:
            self.layout = change.before
        else:
            self._enter(LayoutChange(self.layout, reservation, slots, 1))
        self._removed[uid] = reservation, slots
        for bucket, _ in slots:
            known = self.by_bucket[bucket]
            del known[uid]
            if not known:
                del self.by_bucket[bucket]
        return slots

    def clear(self) -> None:
        """Removes every reservation and gives the empty set a new layout number."""
        for known in (self.by_uid, self._slots, self.by_bucket, self._removed, self._changes):
            known.clear()
        self._layouts += 1
        self.layout = self._layouts

    def forget_removed(self) -> None:
        """Drops the buckets remembered of removed reservations; called when a new cycle begins."""
        self._removed.clear()

    def forget_changes(self) -> None:
        """Drops the origins of all layouts but the present one; called when nodes changed, since step functions derived along them
        are void.
        """
        last = self._changes.get(self.layout)
        self._changes = {} if last is None else {self.layout: last}

    def change_to(self, layout: int) -> LayoutChange | None:
        """Returns the one addition or removal of a reservation that made a layout (its number); None: it is no longer known, or `clear`
        made the layout.
        """
        return self._changes.get(layout)

    def touched_since(self, layout: int) -> Collection[Bucket] | None:
        """Returns the buckets of the reservations that were added or removed on the way from this layout to the present one; None: that way
        is not known.
        """
        touched: set[Bucket] = set()
        at = self.layout
        while at != layout:
            change = self._changes.get(at)
            if change is None:
                return None
            touched.update([bucket for bucket, _ in change.slots])
            at = change.before
        return touched

    def slots(self, reservation: BackfillReservation) -> list[tuple[Bucket, int]]:
        """Returns how many nodes a reservation keeps of which present bucket, whether or not it is in the table."""
        before, slots = self._removed.get(reservation.uid, _NONE)
        return slots if before is reservation else list(self.on_buckets(reservation))

    def nodes_of(self, uid: str, members: Mapping[Bucket, int]) -> int:
        """Returns how many nodes of the buckets `members` the reservation of an allocation keeps, which must be in the table."""
        count = 0
        for bucket, part in self._slots[uid]:
            if bucket in members:
                count += part
        return count

    def kept(self, members: Mapping[Bucket, int]) -> list[Slot]:
        """Returns for each reservation with nodes in the buckets `members`: its start, its end, and how many of them it keeps."""
        found: list[Slot] = []
        for uid, reservation in self.by_uid.items():
            count = self.nodes_of(uid, members)
            if count:
                found.append((reservation.start, reservation.end, count))
        return found

    def touches(self, members: Mapping[Bucket, int]) -> bool:
        """Tells whether any reservation keeps nodes of the buckets `members`."""
        return any(bucket in members for bucket in self.by_bucket)

    def sharers(self, members: Mapping[Bucket, int], besides: str) -> int:
        """Returns how many reservations keep nodes of the buckets `members`, not counting that of the allocation `besides`."""
        return sum(uid != besides and any(bucket in members for bucket, _ in slots) for uid, slots in self._slots.items())

    def on_buckets(self, reservation: BackfillReservation) -> Iterator[tuple[Bucket, int]]:
        """Yields (bucket, nodes) for the nodes that a reservation keeps of each present bucket, whether or not it is in the table.

        Where a bucket that it names is gone or too small, buckets that differ only in their node sets stand in, in their order; they
        may have fewer nodes together than the reservation names.
        """
        buckets = self._node_cache.buckets
        for key, count in reservation.counts:
            own = buckets.get(key)
            if own is not None and len(own.members) >= count:
                yield own, count
                continue
            for bucket in self.kin(key):
                part = min(count, len(bucket.members))
                if part:
                    yield bucket, part
                    count -= part

    def kin(self, key: Key) -> list[Bucket]:
        """Returns the bucket of a key first, if there is one, then the buckets that differ from it only in their node sets."""
        buckets = self._node_cache.buckets
        bucket = buckets.get(key)
        others = [other for other in buckets.values() if other is not bucket and other.key.plain == key.plain]
        return [*([bucket] if bucket is not None else ()), *sorted(others, key=lambda one: one.order)]

    def _merged(self, reservation: BackfillReservation) -> dict[Bucket, int]:
        """Returns the nodes of a reservation by present bucket; buckets that it names may have become one."""
        whole: dict[Bucket, int] = {}
        for bucket, count in self.on_buckets(reservation):
            whole[bucket] = whole.get(bucket, 0) + count
        return whole

    def _enter(self, change: LayoutChange) -> None:
        """Gives the set of reservations that a change made a new layout number, and remembers the change under it."""
        self._layouts += 1
        self.layout = self._layouts
        self._changes[self.layout] = change


def on_present_buckets(reservation: BackfillReservation, table: BackfillTable, releases: Releases) -> BackfillReservation:
    """Returns a reservation with its nodes on the buckets of today; the same object where nothing differs.

    A bucket that node sets split is replaced by its parts: first nodes that are free from the reservation's start to its end, then any;
    nodes without a place stay under the old key. If called in order of the reservations' starts, every reservation finds nodes that found
    nodes before.
    """
    counts: dict[Key, int] = {}
    taken: dict[Bucket, int] = {}
    for key, left in reservation.counts:
        kin = table.kin(key)
        for by_free in (True, False):  # where too few are free, of them all
            for bucket in kin if left else ():
                slots = table.by_bucket.get(bucket, {}).values()
                free = least_free(releases, bucket, slots, reservation.start, reservation.end)
                some = min(left, (free if by_free else len(bucket.members)) - taken.get(bucket, 0))
                if some > 0:
                    taken[bucket] = taken.get(bucket, 0) + some
                    counts[bucket.key] = counts.get(bucket.key, 0) + some
                    left -= some
        if left:
            counts[key] = counts.get(key, 0) + left
    found = tuple(counts.items())
    return reservation if found == reservation.counts else replace(reservation, counts=found)


def least_free(releases: Releases, bucket: Bucket, slots: Collection[Slot], start: float, end: float) -> int:
    """Returns the fewest nodes of a bucket that are free at any time in [start, end) beside what the reservations' `slots` keep; at
    least 0.
    """
    least = releases.free_at(bucket, start)
    met = [slot for slot in slots if slot[0] < end and slot[1] > start]
    if len(met) <= 1:
        return least if not met else _beside_one(releases, bucket, met[0], start, least)
    least -= sum([count for begin, _, count in met if begin <= start])
    for point in [begin for begin, _, _ in met if begin > start]:
        left = releases.free_at(bucket, point) - sum([count for begin, stop, count in met if begin <= point < stop])
        least = min(least, left)
    return max(0, least)


def _beside_one(releases: Releases, bucket: Bucket, slot: Slot, start: float, free: int) -> int:
    """Returns what `least_free` does where one slot shares time with the work; `free`: the nodes that are free at its start."""
    begin, _, count = slot
    return max(0, free - count if begin <= start else min(free, releases.free_at(bucket, begin) - count))
