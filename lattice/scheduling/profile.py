"""The nodes to come: how many of each bucket are free from when to when, by the ends of what runs, promises and windows.

Counts only, and made for the buckets that are asked about. Never optimistic: ends are rounded up, what nobody knows the
end of never comes free, a window is closed to all that may not use it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lattice.scheduling.machine import NEVER, Bucket, Key, Machine

_STEPS = 64
"""A time this many steps away is rounded up to one step: the step doubles with each doubling of the distance."""


def round_up(time: float, now: float) -> float:
    """The time, rounded up by at most 1/32 of its distance; later roundings of the same time are never later than earlier ones."""
    distance = time - now
    if distance <= 0 or time == NEVER:
        return time
    step = 2.0 ** max(0, math.ceil(math.log2(distance / _STEPS)))
    return math.ceil(time / step) * step


@dataclass(frozen=True, slots=True)
class Promise:
    """Nodes that a blocked allocation starts on at the latest: [start, end) in seconds since the epoch, nodes by bucket."""

    uid: str
    vcluster: str
    start: float
    end: float
    counts: tuple[tuple[Key, int], ...]

    @property
    def nodes(self) -> int:
        """How many."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True)
class Closing:
    """A window as the profile sees it: its nodes as a mark of buckets, and its times."""

    name: str
    start: float
    end: float
    mask: int


class Profile:
    """What is free when, for one cycle; follows the machine as the cycle places work."""

    def __init__(self, machine: Machine, closings: Sequence[Closing], promises: Iterable[Promise], now: float, overrun: float) -> None:
        self.now = now
        self.closings = [closing for closing in closings if closing.end > now]
        self.promises: dict[str, Promise] = {}
        self.version = 0
        """Grows with each change of promises."""
        self._machine = machine
        self._overrun = overrun
        self._reserved: dict[Bucket, dict[str, tuple[float, float, int]]] = {}
        self._ends: dict[Bucket, tuple[int, list[float], list[int]]] = {}
        for promise in promises:
            self.add(promise)

    def add(self, promise: Promise) -> None:
        """These nodes are kept for it."""
        self.version += 1
        self.promises[promise.uid] = promise
        for bucket, count in self._buckets(promise):
            self._reserved.setdefault(bucket, {})[promise.uid] = (promise.start, promise.end, count)

    def remove(self, uid: str) -> Promise | None:
        """They are not, any more."""
        promise = self.promises.pop(uid, None)
        if promise is None:
            return None
        self.version += 1
        for bucket in [bucket for bucket, slots in self._reserved.items() if uid in slots]:
            del self._reserved[bucket][uid]
            if not self._reserved[bucket]:
                del self._reserved[bucket]
        return promise

    def touches(self, members: Iterable[Bucket] | dict[Bucket, int]) -> bool:
        """Whether any of these buckets has nodes that are kept for somebody."""
        if isinstance(members, dict):
            return any(bucket in members for bucket in self._reserved)
        return any(bucket in self._reserved for bucket in members)

    def kept(self, bucket: Bucket, start: float, end: float) -> int:
        """How many nodes of a bucket are kept for somebody at some time in [start, end), at most."""
        slots = self._reserved.get(bucket, {}).values()
        overlapping = [slot for slot in slots if slot[0] < end and slot[1] > start]
        points = [start, *(slot[0] for slot in overlapping if slot[0] > start)]
        return max(sum(count for begin, stop, count in overlapping if begin <= point < stop) for point in points)

    def crosses(self, start: float, end: float) -> bool:
        """Whether any window lies in [start, end)."""
        return any(closing.start < end and start < closing.end for closing in self.closings)

    def closed(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> Closing | None:
        """The first window that keeps work of this reservation (or none) off a bucket in [start, end)."""
        marks = bucket.key.marks
        for closing in self.closings:
            if closing.start < end and start < closing.end and closing.name != reservation and closing.mask in marks:
                return closing
        return None

    def inside(self, bucket: Bucket, start: float, end: float, reservation: str) -> bool:
        """Whether [start, end) lies within a window of this name on the bucket's nodes."""
        marks = bucket.key.marks
        return any(
            closing.name == reservation and closing.start <= start and end <= closing.end and closing.mask in marks
            for closing in self.closings
        )  # fmt: skip

    def capacity(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> int:
        """How many nodes of a bucket are free from start to end: nothing promised to others, no window in the way."""
        if self.closings and self.closed(bucket, start, end, reservation) is not None:
            return 0
        if reservation and not self.inside(bucket, start, end, reservation):
            return 0
        slots = self._reserved.get(bucket)
        if slots is None:
            return self._at(bucket, start)
        least = self._at(bucket, start) - sum(count for begin, stop, count in slots.values() if begin <= start < stop)
        for point, _, _ in slots.values():
            if start < point < end:
                free = self._at(bucket, point) - sum(count for begin, stop, count in slots.values() if begin <= point < stop)
                least = min(least, free)
        return max(0, least)

    def starts(self, buckets: Sequence[Bucket], nodes: int) -> Iterator[float]:
        """The times after now at which more may be free than before, ascending, from when so many have come free at all."""
        gains: dict[float, int] = {}
        for bucket in buckets:
            _, times, totals = self._released(bucket)
            before = 0
            for time, total in zip(times, totals, strict=True):
                gains[time] = gains.get(time, 0) + total - before
                before = total
            for _, stop, _ in self._reserved.get(bucket, {}).values():
                if self.now < stop < NEVER:
                    gains.setdefault(stop, 0)
        for closing in self.closings:
            if any(closing.mask in bucket.key.marks for bucket in buckets):
                for time in (closing.start, closing.end):
                    if self.now < time < NEVER:
                        gains.setdefault(time, 0)
        reached = sum(len(bucket.free) for bucket in buckets)
        for time in sorted(gains):
            reached += gains[time]
            if reached >= nodes:
                yield time

    def _at(self, bucket: Bucket, time: float) -> int:
        if time <= self.now:
            return len(bucket.free)
        _, times, totals = self._released(bucket)
        place = bisect_right(times, time)
        return len(bucket.free) + (totals[place - 1] if place else 0)

    def _released(self, bucket: Bucket) -> tuple[int, list[float], list[int]]:
        """When how many held nodes of a bucket have come free in all."""
        known = self._ends.get(bucket)
        if known is not None and known[0] == bucket.version:
            return known
        gains: dict[float, int] = {}
        for end, count in bucket.ends.items():
            if end < NEVER:
                time = round_up(end if end > self.now else self.now + self._overrun, self.now)
                gains[time] = gains.get(time, 0) + count
        times = sorted(gains)
        totals: list[int] = []
        reached = 0
        for time in times:
            reached += gains[time]
            totals.append(reached)
        known = self._ends[bucket] = (bucket.version, times, totals)
        return known

    def _buckets(self, promise: Promise) -> Iterator[tuple[Bucket, int]]:
        """The buckets of a promise as they are now: where node sets have split one, its kin in order."""
        buckets = self._machine.buckets
        for key, count in promise.counts:
            bucket = buckets.get(key)
            left = count
            if bucket is not None:
                part = min(left, len(bucket.members))
                yield bucket, part
                left -= part
            if left:
                kin = [other for other in buckets.values() if other is not bucket and other.key.plain == key.plain]
                for other in sorted(kin, key=lambda one: one.order):
                    part = min(left, len(other.members))
                    if part:
                        yield other, part
                        left -= part
