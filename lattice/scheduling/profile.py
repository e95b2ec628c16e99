"""The nodes to come: how many of each bucket are free from when to when, by the ends of what runs, promises and windows.

Counts only, and made for the buckets that are asked about. Never optimistic: ends are rounded up, what nobody knows the
end of never comes free, a window is closed to all that may not use it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lattice.scheduling.machine import NEVER, Bucket, Key, Machine

_STEPS = 64
"""A time this many steps away is rounded up to one step: the step doubles with each doubling of the distance."""


def round_up(time: float, now: float) -> float:
    """The time, rounded up by at most 1/32 of its distance; later roundings of the same time are never later than earlier ones."""
    distance = time - now
    if distance <= 0 or time == NEVER:
        return time
    if distance <= _STEPS:
        return float(math.ceil(time))
    half, exponent = math.frexp(distance / _STEPS)
    step = math.ldexp(1.0, exponent if half > 0.5 else exponent - 1)
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
        self._slots: dict[str, list[tuple[Bucket, int]]] = {}
        self._ends: dict[Bucket, tuple[int, list[float], list[int]]] = {}
        self._leasts: dict[Bucket, tuple[int, dict[tuple[float, float], int]]] = {}
        self._rounded: dict[float, float] = {}
        self._reductions: dict[tuple[float, float], Mapping[Bucket, int]] = {}
        self._reductions_at = (-1, -1, -1)
        self._merges: dict[int, tuple[tuple[int, int], list[float], list[int], Mapping[Bucket, int]]] = {}
        for promise in promises:
            self.add(promise)

    def add(self, promise: Promise) -> None:
        """These nodes are kept for it."""
        self.version += 1
        self.promises[promise.uid] = promise
        slots: dict[Bucket, int] = {}
        for bucket, count in self._buckets(promise):  # buckets of the promise may have become one
            slots[bucket] = slots.get(bucket, 0) + count
        self._slots[promise.uid] = list(slots.items())
        for bucket, count in slots.items():
            self._reserved.setdefault(bucket, {})[promise.uid] = (promise.start, promise.end, count)
            self._leasts.pop(bucket, None)

    def remove(self, uid: str) -> Promise | None:
        """They are not, any more."""
        promise = self.promises.pop(uid, None)
        if promise is None:
            return None
        self.version += 1
        for bucket, _ in self._slots.pop(uid):
            self._leasts.pop(bucket, None)
            del self._reserved[bucket][uid]
            if not self._reserved[bucket]:
                del self._reserved[bucket]
        return promise

    def touches(self, members: Mapping[Bucket, int]) -> bool:
        """Whether any of these buckets has nodes that are kept for somebody."""
        return any(bucket in members for bucket in self._reserved)

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
        return self.capacities((bucket,), start, end, reservation)[bucket]

    def capacities(self, buckets: Collection[Bucket], start: float, end: float, reservation: str = "") -> dict[Bucket, int]:
        """`capacity` of each bucket."""
        if start <= self.now:
            caps = {bucket: len(bucket.free) for bucket in buckets}
        else:
            caps = {bucket: self._at(bucket, start) for bucket in buckets}
        for bucket, count in self._reduced(start, end).items():
            if bucket in caps:
                caps[bucket] = count
        if reservation or self.crosses(start, end):
            for bucket in buckets:
                if self.closed(bucket, start, end, reservation) or (reservation and not self.inside(bucket, start, end, reservation)):
                    caps[bucket] = 0
        return caps

    def starts(self, members: Mapping[Bucket, int], nodes: int, duration: float, before: float = NEVER) -> Iterator[float]:
        """The times after now and before another, ascending, from which so many may be free for so long: totals say so, buckets may
        not."""
        times, reached = self._merged(members)
        enough = bisect_left(reached, nodes)
        if enough == len(times) or times[enough] >= before:
            return
        since = max(times[enough], self.now)
        kept = self._kept(members)
        points = {time for time in times[enough:] if self.now < time < before}
        points.update(stop for _, stop, _ in kept if self.now < stop and since <= stop < before)
        for closing in self.closings:
            if any(closing.mask in bucket.key.marks for bucket in members):
                points.update(time for time in (closing.start, closing.end) if self.now < time and since <= time < before)

        def left(time: float) -> int:
            return reached[bisect_right(times, time) - 1] - sum(count for begin, stop, count in kept if begin <= time < stop)

        for time in sorted(points):
            if left(time) >= nodes:
                end = time + duration
                if all(left(begin) >= nodes for begin, _, _ in kept if time < begin < end):
                    yield time

    def _merged(self, members: Mapping[Bucket, int]) -> tuple[list[float], list[int]]:
        """How many nodes of these buckets are free from when on, if nothing new starts; the first time is before all others."""
        key = id(members)
        stamp = (len(self._machine.log), self._machine.shape)
        known = self._merges.get(key)
        if known is None or known[0] != stamp:
            ends: dict[float, int] = {}
            for bucket in members:
                for end, count in bucket.ends.items():
                    ends[end] = ends.get(end, 0) + count
            gains: dict[float, int] = {}
            for end, count in ends.items():
                if end < NEVER:
                    time = self._round(end)
                    gains[time] = gains.get(time, 0) + count
            merged = sorted(gains)
            start = sum(len(bucket.free) for bucket in members)
            reached = list(accumulate((gains[time] for time in merged), initial=start))
            known = self._merges[key] = (stamp, [-NEVER, *merged], reached, members)
        return known[1], known[2]

    def _kept(self, members: Mapping[Bucket, int]) -> list[tuple[float, float, int]]:
        """What is promised of these buckets: from, until, nodes."""
        kept = []
        for uid, promise in self.promises.items():
            count = sum(part for bucket, part in self._slots[uid] if bucket in members)
            if count:
                kept.append((promise.start, promise.end, count))
        return kept

    def _reduced(self, start: float, end: float) -> Mapping[Bucket, int]:
        """`capacity` of the buckets of which anything is promised."""
        stamp = (self.version, len(self._machine.log), self._machine.shape)
        if self._reductions_at != stamp:
            self._reductions.clear()
            self._reductions_at = stamp
        known = self._reductions.get((start, end))
        if known is None:
            known = {bucket: self._remembered(bucket, slots, start, end) for bucket, slots in self._reserved.items()}
            self._reductions[start, end] = known
        return known

    def _remembered(self, bucket: Bucket, slots: dict[str, tuple[float, float, int]], start: float, end: float) -> int:
        known = self._leasts.get(bucket)
        if known is None or known[0] != bucket.version:
            known = self._leasts[bucket] = (bucket.version, {})
        least = known[1].get((start, end))
        if least is None:
            least = known[1][start, end] = self._least(bucket, slots.values(), start, end)
        return least

    def _least(self, bucket: Bucket, slots: Collection[tuple[float, float, int]], start: float, end: float) -> int:
        least = self._at(bucket, start)
        for begin, stop, count in slots:
            if begin <= start < stop:
                least -= count
        for point, _, _ in slots:
            if start < point < end:
                free = self._at(bucket, point)
                for begin, stop, count in slots:
                    if begin <= point < stop:
                        free -= count
                least = min(least, free)
        return max(0, least)

    def _at(self, bucket: Bucket, time: float) -> int:
        if time <= self.now:
            return len(bucket.free)
        _, times, totals = self._released(bucket)
        place = bisect_right(times, time)
        return len(bucket.free) + (totals[place - 1] if place else 0)

    def _round(self, end: float) -> float:
        """When nodes that are held until then count as free."""
        time = self._rounded.get(end)
        if time is None:
            time = self._rounded[end] = round_up(end if end > self.now else self.now + self._overrun, self.now)
        return time

    def _released(self, bucket: Bucket) -> tuple[int, list[float], list[int]]:
        """When how many held nodes of a bucket have come free in all."""
        known = self._ends.get(bucket)
        if known is not None and known[0] == bucket.version:
            return known
        gains: dict[float, int] = {}
        for end, count in bucket.ends.items():
            if end < NEVER:
                time = self._round(end)
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
