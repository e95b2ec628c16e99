"""The nodes to come: how many of each bucket are free from when to when, by the ends of what runs, promises and windows.

Counts only, and made for the buckets that are asked about. Never optimistic: ends are rounded up, what nobody knows the
end of never comes free, a window is closed to all that may not use it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import sub
from typing import Final

from lattice.errors import Corrupt
from lattice.scheduling.cluster.node_cache import NEVER, Bucket, NodeCache
from lattice.scheduling.model.hardware import Key

EPOCH: Final = 4096.0
NEAR: Final = 256.0
"""Times further away are rounded by their distance from the beginning of the epoch, nearer ones to a second: so what was rounded
stays, but for new epochs and times that come near. Seconds."""
_STEPS: Final = 128
"""A time this many steps away is rounded up to one step: the step doubles with each doubling of the distance."""


def round_up(time: float, now: float) -> float:
    """The time, rounded up by at most 1/64 of its distance from the beginning of `now`'s epoch; later roundings of the same time are
    never later than earlier ones."""
    if time <= now or time == NEVER:
        return time
    if time - now <= NEAR:
        return float(math.ceil(time))
    half, exponent = math.frexp((time - now // EPOCH * EPOCH) / _STEPS)
    step = math.ldexp(1.0, exponent if half > 0.5 else exponent - 1)
    return math.ceil(time / step) * step if step > 1.0 else float(math.ceil(time))


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """Nodes that a blocked allocation starts on at the latest: [start, end) in seconds since the epoch, nodes by bucket."""

    uid: str
    vcluster: str
    start: float
    end: float
    counts: tuple[tuple[Key, int], ...]
    given: float = 0.0
    """When its holder was first promised nodes, seconds since the epoch: whoever has waited with one for longer is planned before."""

    @property
    def nodes(self) -> int:
        """How many."""
        return sum([count for _, count in self.counts])


@dataclass(frozen=True, slots=True)
class BucketWindow:
    """A window as the profile sees it: its nodes as a mark of buckets, and its times."""

    name: str
    start: float
    end: float
    mask: int


@dataclass(slots=True, eq=False)
class _StepFunction:
    """From each of the times on, so many nodes are free and promised to nobody; the last one is for ever."""

    times: list[float]
    free: list[int]
    members: Mapping[Bucket, int]
    """Of which buckets; kept so that nothing else gets their identity."""

    def short(self, at: int, nodes: int, end: float) -> int:
        """The first step after `at` and before a time on which fewer nodes are free; 0 if there is none."""
        place = bisect_left(self.times, end)
        if min(self.free[at:place]) >= nodes:
            return 0
        return next(step for step in range(at + 1, place) if self.free[step] < nodes)

    def at(self, time: float) -> int:
        """How many are free at a time."""
        return self.free[bisect_right(self.times, time) - 1]

    def changed(self, begin: float, stop: float, by: int) -> _StepFunction:
        """The same with more nodes, or fewer, between two times."""
        times, free = self.times.copy(), self.free.copy()
        now = times[0]
        for edge in (begin, stop):
            place = bisect_left(times, edge)
            if edge > now and (place == len(times) or times[place] != edge):
                times.insert(place, edge)
                free.insert(place, free[place - 1])
        first, last = bisect_left(times, begin), bisect_left(times, stop)
        free[first:last] = [left + by for left in free[first:last]]
        return _StepFunction(times, free, self.members)


_NEVER_HELD: Final[tuple[BackfillReservation | None, list[tuple[Bucket, int]]]] = (None, [])


class AvailabilityProfile:
    """What is free when; follows the machine, and is kept from cycle to cycle: `begin` says what is promised and reserved now."""

    def __init__(self, node_cache: NodeCache) -> None:
        self.now = NEVER
        self.bucket_windows: list[BucketWindow] = []
        self.promises: dict[str, BackfillReservation] = {}
        self.version = 0
        """Of the promises: another one for each change, and the same again when a promise is taken back and given again."""
        self.late = False
        """Whether nodes are held longer than was known."""
        self._versions = 0
        """How many there were."""
        self._removed: tuple[BackfillReservation | None, int, int] = (None, 0, 0)
        """The promise that was removed last, the version before that and the one after it."""
        self._node_cache = node_cache
        self._grounds = node_cache.shape, node_cache.tally
        """Which buckets there were, and which nodes in them."""
        self._overrun = 0.0
        self._fresh_until = NEVER
        """From when on times are to be rounded again."""
        self._reserved: dict[Bucket, dict[str, tuple[float, float, int]]] = {}
        self._slots: dict[str, list[tuple[Bucket, int]]] = {}
        self._taken_back: dict[str, tuple[BackfillReservation | None, list[tuple[Bucket, int]]]] = {}
        """Promises that were removed, with their slots: most are given again as they were."""
        self._ends: dict[Bucket, tuple[int, list[float], list[int]]] = {}
        self._leasts: dict[Bucket, tuple[int, dict[tuple[float, float], int]]] = {}
        self._rounded: dict[float, float] = {}
        self._stairs: dict[tuple[int, int], _StepFunction] = {}
        """By the identity of members and the version of the promises, as long as nodes do not change."""
        self._stairs_of = (-1, -1)
        self._origins: dict[int, tuple[int, BackfillReservation, list[tuple[Bucket, int]], int]] = {}
        """Of a version: the one before it, and the promise that was given (−1) or taken back (+1) then, with its nodes."""
        self._best: dict[str, tuple[_StepFunction, float]] = {}
        """Promises that could not be bettered: on which stairs, and for how long."""
        self._merges: dict[int, tuple[tuple[int, int], list[float], list[int], Mapping[Bucket, int]]] = {}

    def begin(self, now: float, bucket_windows: Iterable[BucketWindow], promises: Iterable[BackfillReservation], overrun: float) -> None:
        """A cycle begins: these windows there are, and this is promised. What is held past its end is needed for `overrun` more seconds."""
        node_cache = self._node_cache
        late = node_cache.overdue(now)
        if late or self.late or not self.now <= now < self._fresh_until or overrun != self._overrun or self._grounds[0] != node_cache.shape:
            self._forget_times()
        moved = self._grounds != (node_cache.shape, node_cache.tally)
        if moved:
            self._grounds = node_cache.shape, node_cache.tally
            self._forget_promises()
        self.late, self.now, self._overrun = late, now, overrun
        self._leasts.clear()
        self._taken_back.clear()
        self._set_bucket_windows([closing for closing in bucket_windows if closing.end > now])
        wanted = {promise.uid: promise for promise in promises}
        if wanted != self.promises:
            for uid in [uid for uid, promise in self.promises.items() if wanted.get(uid) != promise]:
                self.remove(uid)
            missing = [promise for uid, promise in wanted.items() if uid not in self.promises]
            for promise in sorted(missing, key=lambda one: one.start) if moved else missing:
                self.add(self._on_buckets(promise) if moved else promise)

    def stand(self) -> None:
        """The promises to come name buckets as they are now."""
        self._grounds = self._node_cache.shape, self._node_cache.tally

    def overbooked(self) -> bool:
        """Whether more is promised of a bucket than there will be, in spite of all care: nodes went, or are held for longer."""
        for bucket, slots in self._reserved.items():
            for start, _, _ in slots.values():
                point = max(start, self.now)
                if sum([count for begin, stop, count in slots.values() if begin <= point < stop]) > self._at(bucket, point):
                    return True
        return False

    def slots(self, promise: BackfillReservation) -> list[tuple[Bucket, int]]:
        """The buckets that a promise was of when it was taken back."""
        before, slots = self._taken_back.get(promise.uid, _NEVER_HELD)
        return slots if before is promise else list(self._buckets(promise))

    def validate(self) -> None:
        """Make what is kept anew from the machine and the promises; raises Corrupt on a difference."""
        if self._grounds != (self._node_cache.shape, self._node_cache.tally) or not self.now < self._fresh_until:
            return  # the next cycle begins anew
        again = AvailabilityProfile(self._node_cache)
        again.begin(self.now, self.bucket_windows, self.promises.values(), self._overrun)
        if again._reserved != self._reserved:
            raise Corrupt("the nodes that are kept differ from the promises", reason="ProfileDiffers")
        for bucket, known in self._ends.items():
            if known[0] == bucket.version and known != again._released(bucket):
                raise Corrupt(f"the ends of bucket {bucket.key} differ from those that are known", reason="ProfileDiffers")
        for (_, version), stairs in self._stairs.items() if self._stairs_of == (self._node_cache.changes, self._node_cache.shape) else ():
            found = again._steps(stairs.members)
            if version != self.version or (len(stairs.times) > 1 and stairs.times[1] <= self.now):
                continue
            for time in (self.now, *stairs.times[1:], *found.times[1:]):
                if stairs.at(max(time, stairs.times[0])) != found.at(time):
                    raise Corrupt(f"at {time:.0f} {found.at(time)} nodes are free, not {stairs.at(time)}", reason="ProfileDiffers")

    def _set_bucket_windows(self, bucket_windows: list[BucketWindow]) -> None:
        if bucket_windows != self.bucket_windows:
            self._stairs.clear()
            self.bucket_windows = bucket_windows

    def _forget_times(self) -> None:
        """What was rounded, and all that was made of it."""
        self._fresh_until = NEVER
        for known in (self._rounded, self._ends, self._merges, self._stairs, self._best):
            known.clear()

    def _forget_promises(self) -> None:
        for known in (self.promises, self._slots, self._reserved):
            known.clear()
        self._change()

    def _change(self) -> None:
        self._versions += 1
        self.version = self._versions

    def add(self, promise: BackfillReservation) -> None:
        """These nodes are kept for it."""
        removed, version, since = self._removed
        again = removed is promise and since == self.version
        base = self.version
        if again:
            self.version = version
        else:
            self._change()
        uid, start, end = promise.uid, promise.start, promise.end
        self.promises[uid] = promise
        before, slots = self._taken_back.get(uid, _NEVER_HELD)
        if before is not promise:
            whole: dict[Bucket, int] = {}
            for bucket, count in self._buckets(promise):  # buckets of the promise may have become one
                whole[bucket] = whole.get(bucket, 0) + count
            slots = list(whole.items())
        self._slots[uid] = slots
        if not again:
            self._origins[self.version] = base, promise, slots, -1
        for bucket, count in slots:
            known = self._reserved.get(bucket)
            if known is None:
                self._reserved[bucket] = {uid: (start, end, count)}
            else:
                known[uid] = (start, end, count)
            self._leasts.pop(bucket, None)

    def remove(self, uid: str) -> BackfillReservation | None:
        """They are not, any more."""
        promise = self.promises.pop(uid, None)
        if promise is None:
            return None
        version = self.version
        self._change()
        self._removed = promise, version, self.version
        slots = self._slots.pop(uid)
        self._origins[self.version] = version, promise, slots, 1
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
        return bool(self.bucket_windows) and any(closing.start < end and start < closing.end for closing in self.bucket_windows)

    def closed(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> BucketWindow | None:
        """The first window that keeps work of this reservation (or none) off a bucket in [start, end)."""
        marks = bucket.key.marks
        for closing in self.bucket_windows:
            if closing.start < end and start < closing.end and closing.name != reservation and closing.mask in marks:
                return closing
        return None

    def inside(self, bucket: Bucket, start: float, end: float, reservation: str) -> bool:
        """Whether [start, end) lies within a window of this name on the bucket's nodes."""
        marks = bucket.key.marks
        return any(
            closing.name == reservation and closing.start <= start and end <= closing.end and closing.mask in marks
            for closing in self.bucket_windows
        )  # fmt: skip

    def capacity(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> int:
        """How many nodes of a bucket are free from start to end: nothing promised to others, no window in the way."""
        slots = self._reserved.get(bucket)
        left = self._at(bucket, start) if slots is None else self._remembered(bucket, slots, start, end)
        if not left or not (reservation or self.crosses(start, end)):
            return left
        return left if self._open(bucket, start, end, reservation) else 0

    def capacities(
        self, buckets: Collection[Bucket], start: float, end: float, reservation: str = "", least: int = 0
    ) -> dict[Bucket, int]:  # fmt: skip
        """`capacity` of each bucket; nothing at all where they are fewer than `least` together."""
        if start <= self.now:
            caps = {bucket: len(bucket.free) for bucket in buckets}
        else:
            caps = {bucket: self._at(bucket, start) for bucket in buckets}
        if reservation:
            for bucket in buckets:
                if not self._open(bucket, start, end, reservation):
                    caps[bucket] = 0
        elif closed := {closing.mask for closing in self.bucket_windows if closing.start < end and start < closing.end}:
            for bucket in buckets:
                if not closed.isdisjoint(bucket.key.marks):
                    caps[bucket] = 0
        total = sum(caps.values())
        for bucket, slots in self._reserved.items():
            if total < least:
                break
            count = caps.get(bucket)
            if count:
                left = caps[bucket] = self._remembered(bucket, slots, start, end)
                total -= count - left
        return caps if total >= least else {}

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
        stairs = self._steps(members)
        times, free = stairs.times, stairs.free
        last, at = bisect_left(times, before), 1
        while at < last:
            if free[at] >= nodes:
                short = stairs.short(at, nodes, times[at] + duration)
                if short:
                    at = short + 1  # whatever begins before it meets it too
                    continue
                if self._gains(times[at], members):
                    yield times[at]
            at += 1

    def may_improve(self, promise: BackfillReservation, members: Mapping[Bucket, int], duration: float) -> bool:
        """Whether its nodes could be had before the promise's start for so long, now included: totals say so, buckets may not."""
        stairs = self._steps(members)
        best = self._best.get(promise.uid)
        if best is not None and best[0] is stairs and best[1] == duration:
            return False
        if self._is_bettered(promise, stairs, members, duration):
            return True
        self._best[promise.uid] = stairs, duration
        return False

    def sought(self, promise: BackfillReservation, members: Mapping[Bucket, int], duration: float) -> None:
        """It was sought anew, bucket by bucket, and nothing earlier was found: nor is it until something changes.

        What ends soon is rounded less from moment to moment, and might fit before something then; all is in another epoch.
        """
        if duration > NEAR:
            self._best[promise.uid] = self._steps(members), duration
            self._fresh_until = min(self._fresh_until, self.now - self.now % EPOCH + EPOCH)

    def _is_bettered(self, promise: BackfillReservation, stairs: _StepFunction, members: Mapping[Bucket, int], duration: float) -> bool:
        times, free, nodes = stairs.times, stairs.free, promise.nodes
        before = bisect_left(times, promise.start)
        if max(free[:before]) < nodes:
            return False
        without = None
        at = 0
        while at < before:
            if free[at] >= nodes:
                if without is None:
                    without = self._without(promise, stairs, members)
                short = without.short(at, nodes, times[at] + duration)
                if not short:
                    return True
                at = short
            at += 1
        return False

    def _without(self, promise: BackfillReservation, stairs: _StepFunction, members: Mapping[Bucket, int]) -> _StepFunction:
        """The stairs if this were not promised."""
        begin, stop = promise.start, promise.end
        own = sum([count for bucket, count in self._slots[promise.uid] if bucket in members])
        free = [left + own if begin <= time < stop else left for time, left in zip(stairs.times, stairs.free, strict=True)]
        return _StepFunction(stairs.times, free, stairs.members)

    def _steps(self, members: Mapping[Bucket, int]) -> _StepFunction:
        """From when on how many nodes of these buckets are free and promised to nobody, if nothing new starts; the first time is now."""
        now = self.now
        nodes, key = (self._node_cache.changes, self._node_cache.shape), (id(members), self.version)
        if nodes != self._stairs_of:
            self._stairs.clear()
            self._origins.clear()
            self._stairs_of = nodes
        known = self._stairs.get(key) or self._derived(members)
        if known is None or (len(known.times) > 1 and known.times[1] <= now):
            released, reached = self._merged(members)
            changes = dict(zip(released[1:], map(sub, reached[1:], reached), strict=False))
            first, kept = reached[0], [slot for slot in self._kept(members) if slot[1] > now]
            for _, stop, count in kept:
                changes[stop] = changes.get(stop, 0) + count
            for closing in self.bucket_windows:
                if any(closing.mask in bucket.key.marks for bucket in members):
                    changes |= {time: changes.get(time, 0) for time in (closing.start, closing.end) if time > now}
            for begin, _, count in kept:
                if begin > now:
                    changes[begin] = changes.get(begin, 0) - count
                else:
                    first -= count
            times = sorted(changes)
            free = list(accumulate([changes[time] for time in times], initial=first))
            known = self._stairs[key] = _StepFunction([now, *times], free, members)
        known.times[0] = now
        return known

    def _derived(self, members: Mapping[Bucket, int]) -> _StepFunction | None:
        """The stairs made of those before the last promises were given and taken back, where there are any."""
        key, version, since = id(members), self.version, list[tuple[BackfillReservation, int]]()
        while (known := self._stairs.get((key, version))) is None:
            origin = self._origins.get(version)
            if origin is None:
                return None
            version, promise, slots, sign = origin
            since.append((promise, sign * sum([count for bucket, count in slots if bucket in members])))
        if len(known.times) > 1 and known.times[1] <= self.now:
            return None
        known.times[0] = self.now
        for promise, by in reversed(since):
            if by and promise.end > self.now:
                known = known.changed(promise.start, promise.end, by)
        self._stairs[key, self.version] = known
        return known

    def _gains(self, time: float, members: Mapping[Bucket, int]) -> bool:
        """Whether nodes of these buckets may come free then: work or a promise ends, a window begins or ends."""
        released, _ = self._merged(members)
        place = bisect_left(released, time)
        if place < len(released) and released[place] == time:
            return True
        if any(stop == time for _, stop, _ in self._kept(members)):
            return True
        return any(time in (one.start, one.end) for one in self.bucket_windows)

    def _merged(self, members: Mapping[Bucket, int]) -> tuple[list[float], list[int]]:
        """How many nodes of these buckets are free from when on, if nothing new starts; the first time is before all others."""
        key = id(members)
        stamp = (self._node_cache.changes, self._node_cache.shape)
        known = self._merges.get(key)
        if known is None or known[0] != stamp:
            ends: dict[float, int] = {}
            for bucket in members:
                for end, count in bucket.ends.items():
                    ends[end] = ends.get(end, 0) + count
            gains = self._gained(ends)
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
        least = self._at(bucket, start)
        met = [slot for slot in slots if slot[0] < end and slot[1] > start]
        if not met:
            return least
        least -= sum([count for begin, _, count in met if begin <= start])
        for point in [begin for begin, _, _ in met if begin > start]:
            left = self._at(bucket, point) - sum([count for begin, stop, count in met if begin <= point < stop])
            least = min(least, left)
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
            now = self.now
            time = self._rounded[end] = round_up(end if end > now else now + self._overrun, now)
            again = min(end - NEAR if end - now > NEAR else NEVER, now - now % EPOCH + EPOCH)
            self._fresh_until = min(self._fresh_until, again)
        return time

    def _gained(self, ends: Mapping[float, int]) -> dict[float, int]:
        """How many nodes come free when, of those that are held until these ends."""
        gains: dict[float, int] = {}
        rounded = self._rounded
        for end, count in ends.items():
            if end < NEVER:
                time = rounded.get(end) or self._round(end)
                gains[time] = gains.get(time, 0) + count
        return gains

    def _released(self, bucket: Bucket) -> tuple[int, list[float], list[int]]:
        """When how many held nodes of a bucket have come free in all."""
        known = self._ends.get(bucket)
        if known is not None and known[0] == bucket.version:
            return known
        gains = self._gained(bucket.ends)
        times = sorted(gains)
        totals = list(accumulate([gains[time] for time in times]))
        known = self._ends[bucket] = (bucket.version, times, totals)
        return known

    def _buckets(self, promise: BackfillReservation) -> Iterator[tuple[Bucket, int]]:
        """The buckets of a promise as they are now: where one is gone or too small, its kin in order."""
        buckets = self._node_cache.buckets
        for key, count in promise.counts:
            own = buckets.get(key)
            if own is not None and len(own.members) >= count:
                yield own, count
                continue
            for bucket in self._kin(key):
                part = min(count, len(bucket.members))
                if part:
                    yield bucket, part
                    count -= part

    def _on_buckets(self, promise: BackfillReservation) -> BackfillReservation:
        """The same promise of buckets as they are now: where node sets have split one, of those of its kin that have room then.

        In order of their starts all find room that had room before: a node that is free at a start stays so.
        """
        counts: dict[Key, int] = {}
        taken: dict[Bucket, int] = {}
        for key, left in promise.counts:
            kin = self._kin(key)
            for by_room in (True, False):  # where there is too little room, of too little
                for bucket in kin if left else ():
                    room = self._least(bucket, self._reserved.get(bucket, {}).values(), promise.start, promise.end)
                    some = min(left, (room if by_room else len(bucket.members)) - taken.get(bucket, 0))
                    if some > 0:
                        taken[bucket] = taken.get(bucket, 0) + some
                        counts[bucket.key] = counts.get(bucket.key, 0) + some
                        left -= some
            if left:
                counts[key] = counts.get(key, 0) + left
        found = tuple(counts.items())
        return promise if found == promise.counts else replace(promise, counts=found)

    def _kin(self, key: Key) -> list[Bucket]:
        """The bucket of this key, where there is one, and those that differ only in the node sets they lie in."""
        buckets = self._node_cache.buckets
        bucket = buckets.get(key)
        others = [other for other in buckets.values() if other is not bucket and other.key.plain == key.plain]
        return [*([bucket] if bucket is not None else ()), *sorted(others, key=lambda one: one.order)]
