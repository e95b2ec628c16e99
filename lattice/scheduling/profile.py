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
from operator import sub
from typing import Final

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


_NEVER_HELD: Final[tuple[Promise | None, list[tuple[Bucket, int]]]] = (None, [])


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
        self._taken_back: dict[str, tuple[Promise | None, list[tuple[Bucket, int]]]] = {}
        """Promises that were removed, with their slots: most are given again as they were."""
        self._ends: dict[Bucket, tuple[int, list[float], list[int]]] = {}
        self._leasts: dict[Bucket, tuple[int, dict[tuple[float, float], int]]] = {}
        self._rounded: dict[float, float] = {}
        self._stairs: dict[int, tuple[tuple[int, int, int], list[float], list[int], Mapping[Bucket, int]]] = {}
        self._merges: dict[int, tuple[tuple[int, int], list[float], list[int], Mapping[Bucket, int]]] = {}
        for promise in promises:
            self.add(promise)

    def add(self, promise: Promise) -> None:
        """These nodes are kept for it."""
        self.version += 1
        uid, start, end = promise.uid, promise.start, promise.end
        self.promises[uid] = promise
        before, slots = self._taken_back.get(uid, _NEVER_HELD)
        if before is not promise:
            whole: dict[Bucket, int] = {}
            for bucket, count in self._buckets(promise):  # buckets of the promise may have become one
                whole[bucket] = whole.get(bucket, 0) + count
            slots = list(whole.items())
        self._slots[uid] = slots
        for bucket, count in slots:
            known = self._reserved.get(bucket)
            if known is None:
                self._reserved[bucket] = {uid: (start, end, count)}
            else:
                known[uid] = (start, end, count)
            self._leasts.pop(bucket, None)

    def remove(self, uid: str) -> Promise | None:
        """They are not, any more."""
        promise = self.promises.pop(uid, None)
        if promise is None:
            return None
        self.version += 1
        slots = self._slots.pop(uid)
        self._taken_back[uid] = promise, slots
        for bucket, _ in slots:
            self._leasts.pop(bucket, None)
            del self._reserved[bucket][uid]
            if not self._reserved[bucket]:
                del self._reserved[bucket]
        return promise

    def touches(self, members: Mapping[Bucket, int]) -> bool:
        """Whether any of these buckets has nodes that are kept for somebody."""
        return any(bucket in members for bucket in self._reserved)

    def sharers(self, members: Mapping[Bucket, int], besides: str) -> int:
        """How many are promised nodes of these buckets, besides one."""
        return sum(uid != besides and any(bucket in members for bucket, _ in slots) for uid, slots in self._slots.items())

    def crosses(self, start: float, end: float) -> bool:
        """Whether any window lies in [start, end)."""
        return bool(self.closings) and any(closing.start < end and start < closing.end for closing in self.closings)

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
        slots = self._reserved.get(bucket)
        left = self._at(bucket, start) if slots is None else self._remembered(bucket, slots, start, end)
        if not left or not (reservation or self.crosses(start, end)):
            return left
        return left if self._open(bucket, start, end, reservation) else 0

    def capacities(self, buckets: Collection[Bucket], start: float, end: float, reservation: str = "") -> dict[Bucket, int]:
        """`capacity` of each bucket."""
        if start <= self.now:
            caps = {bucket: len(bucket.free) for bucket in buckets}
        else:
            caps = {bucket: self._at(bucket, start) for bucket in buckets}
        caps.update(self._reduced(caps, start, end))
        if reservation or self.crosses(start, end):
            for bucket in buckets:
                if not self._open(bucket, start, end, reservation):
                    caps[bucket] = 0
        return caps

    def reductions(self, buckets: Mapping[Bucket, object], end: float, reservation: str = "") -> dict[Bucket, int]:
        """`capacity` from now to an end of those buckets of which not every free node may be used."""
        if reservation or self.crosses(self.now, end):
            caps = self.capacities(buckets, self.now, end, reservation)
        else:
            caps = self._reduced(buckets, self.now, end)
        return {bucket: count for bucket, count in caps.items() if count != len(bucket.free)}

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
        points.update([stop for _, stop, _ in kept if self.now < stop and since <= stop < before])
        for closing in self.closings:
            if any(closing.mask in bucket.key.marks for bucket in members):
                points.update(time for time in (closing.start, closing.end) if self.now < time and since <= time < before)

        def left(time: float) -> int:
            count = reached[bisect_right(times, time) - 1]
            for begin, stop, part in kept:
                if begin <= time < stop:
                    count -= part
            return count

        for time in sorted(points):
            if left(time) >= nodes:
                end = time + duration
                for begin, _, _ in kept:
                    if time < begin < end and left(begin) < nodes:
                        break
                else:
                    yield time

    def may_improve(self, promise: Promise, members: Mapping[Bucket, int], duration: float) -> bool:
        """Whether its nodes could be had before the promise's start for so long, now included: totals say so, buckets may not."""
        times, free = self._steps(members)
        nodes, begin, stop = promise.nodes, promise.start, promise.end
        before = bisect_left(times, begin)
        if max(free[:before]) < nodes:
            return False
        own = sum([count for bucket, count in self._slots[promise.uid] if bucket in members])
        at = 0
        while at < before:
            if free[at] < nodes:
                at += 1
                continue
            end = times[at] + duration
            for place in range(at + 1, len(times)):
                time = times[place]
                if time >= end:
                    return True
                if free[place] + (own if begin <= time < stop else 0) < nodes:
                    at = place + 1  # whatever begins in between meets this too
                    break
            else:
                return True
        return False

    def _steps(self, members: Mapping[Bucket, int]) -> tuple[list[float], list[int]]:
        """From when on how many nodes of these buckets are free and promised to nobody, if nothing new starts; the first time is now."""
        stamp = (self._machine.changes, self._machine.shape, self.version)
        known = self._stairs.get(id(members))
        if known is None or known[0] != stamp:
            now = self.now
            released, reached = self._merged(members)
            changes = dict(zip(released[1:], map(sub, reached[1:], reached), strict=False))
            first = reached[0]
            for begin, stop, count in self._kept(members):
                if stop <= now:
                    continue
                if begin > now:
                    changes[begin] = changes.get(begin, 0) - count
                else:
                    first -= count
                changes[stop] = changes.get(stop, 0) + count
            times = sorted(changes)
            free = list(accumulate([changes[time] for time in times], initial=first))
            known = self._stairs[id(members)] = (stamp, [now, *times], free, members)
        return known[1], known[2]

    def _merged(self, members: Mapping[Bucket, int]) -> tuple[list[float], list[int]]:
        """How many nodes of these buckets are free from when on, if nothing new starts; the first time is before all others."""
        key = id(members)
        stamp = (self._machine.changes, self._machine.shape)
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
        slots = self._slots
        for uid, promise in self.promises.items():
            count = 0
            for bucket, part in slots[uid]:
                if bucket in members:
                    count += part
            if count:
                kept.append((promise.start, promise.end, count))
        return kept

    def _reduced(self, buckets: Mapping[Bucket, object], start: float, end: float) -> dict[Bucket, int]:
        """`capacity` of those of the buckets of which anything is promised, whatever windows there are."""
        return {bucket: self._remembered(bucket, slots, start, end) for bucket, slots in self._reserved.items() if bucket in buckets}

    def _open(self, bucket: Bucket, start: float, end: float, reservation: str) -> bool:
        """Whether no window keeps work of this reservation (or none) off a bucket; a reservation's is on its own nodes only."""
        if self.closed(bucket, start, end, reservation):
            return False
        return not reservation or self.inside(bucket, start, end, reservation)

    def _remembered(self, bucket: Bucket, slots: dict[str, tuple[float, float, int]], start: float, end: float) -> int:
        known = self._leasts.get(bucket)
        if known is None or known[0] != bucket.version:
            known = self._leasts[bucket] = (bucket.version, {})
        least = known[1].get((start, end))
        if least is None:
            least = known[1][start, end] = self._least(bucket, slots.values(), start, end)
        return least

    def _least(self, bucket: Bucket, slots: Collection[tuple[float, float, int]], start: float, end: float) -> int:
        _, times, totals = self._released(bucket)
        free, now = len(bucket.free), self.now
        least = free
        for point in [start, *[begin for begin, _, _ in slots if start < begin < end]]:
            left = free
            if point > now and (place := bisect_right(times, point)):
                left += totals[place - 1]
            for begin, stop, count in slots:
                if begin <= point < stop:
                    left -= count
            if left < least or point == start:
                least = left
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
