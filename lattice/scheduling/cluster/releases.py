"""Releases: the times at which held nodes come free, by bucket and by pool.

Never optimistic: ends are rounded up, and nodes of unknown end stay held.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, Bucket, NodeCache

EPOCH: Final = 4096.0
NEAR: Final = 256.0
"""Times further away than this are rounded by their distance from the beginning of the epoch, nearer ones to a second. Seconds.

A rounded time stays the same until a new epoch begins or the time comes near.
"""
_STEPS: Final = 128
"""A time this many steps away is rounded up to one step: the step doubles with each doubling of the distance."""
_FEW: Final = 8
"""Up to so many buckets are looked at one by one; for more, those that gain nodes are found by time."""
_TIMES: Final = 4
"""So many times a bucket of one version is asked about before its ends are sorted."""


def round_up(time: float, now: float) -> float:
    """Rounds a time (seconds since the epoch) up: to a second within 256 s of `now`, else by at most 1/64 of its distance.

    The distance counts from the beginning of the epoch (4,096 s) that `now` lies in. A time that is past, or `NEVER`, stays as it is.
    Rounding the same time again at a later `now` never gives a later time.
    """
    if time <= now or time == NEVER:
        return time
    if time - now <= NEAR:
        return float(math.ceil(time))
    half, exponent = math.frexp((time - now // EPOCH * EPOCH) / _STEPS)
    step = math.ldexp(1.0, exponent if half > 0.5 else exponent - 1)
    return math.ceil(time / step) * step if step > 1.0 else float(math.ceil(time))


class _OfBucket(NamedTuple):
    """The releases of one bucket at one of its versions: `times` at which nodes come free, ascending."""

    version: int
    times: list[float]
    counts: list[int]
    """How many nodes are free before the first of `times`, then from each of them on; one longer than `times`."""


class _Gains:
    """The nodes of some buckets that come free at each time, and these times in order; kept up to date change by change."""

    __slots__ = ("at", "members", "times")

    def __init__(self, members: Mapping[Bucket, int]) -> None:
        self.members = members
        """The buckets whose nodes are counted."""
        self.at: dict[float, int] = {}
        self.times: list[float] = []

    def count_gain(self, time: float, by: int) -> None:
        """Counts `by` more nodes (fewer if negative) that come free at a time; a time at which none are left is dropped."""
        at = self.at
        before = at.get(time)
        if before is None:
            at[time] = by
            insort(self.times, time)
        elif before + by:
            at[time] = before + by
        else:
            del at[time], self.times[bisect_left(self.times, time)]


class Releases:
    """Knows when held nodes come free, rounded up as seen from `now`, and how many nodes are free at a time."""

    def __init__(self, node_cache: NodeCache) -> None:
        self.now = NEVER
        self._node_cache = node_cache
        self.overrun = 0.0
        """Nodes that are held past their end are taken to be held for so many more seconds."""
        self.restarts = 0
        """How often every time has been forgotten."""
        self._valid_until = NEVER
        """From this time on rounded times are to be rounded again; seconds since the epoch."""
        self._rounded: dict[float, float] = {}
        self._by_bucket: dict[Bucket, _OfBucket] = {}
        self._asked: dict[Bucket, int] = {}
        """By bucket: its version times `_TIMES`, plus how often it was asked about since."""
        self._by_time: dict[float, dict[Bucket, int]] = {}
        """How many nodes of which bucket come free at each time, as of `_position`."""
        self._by_pool: dict[int, _Gains] = {}
        """By the pool's number: what its buckets gain when, as of `_position`."""
        self._all = _Gains({})
        """What all buckets gain when, as of `_position`."""
        self._position = -1
        """The position in the node cache's log for which sums are true; −1: all are to be made anew."""

    def is_current(self, now: float, overrun: float) -> bool:
        """Tells whether the rounded times still hold at `now`, which must not be before the last one, with this overrun (seconds); if not,
        the caller must call `restart`.
        """
        return self.now <= now < self._valid_until and overrun == self.overrun

    def restart(self, overrun: float) -> None:
        """Drops every rounded time and every count made of them, and sets the overrun."""
        self.overrun = overrun
        self.restarts += 1
        self._valid_until = NEVER
        self._rounded.clear()
        self._by_bucket.clear()
        self._position = -1

    def expire_with_epoch(self) -> None:
        """Limits the validity of all rounded times to the end of the present epoch (4,096 s)."""
        self._valid_until = min(self._valid_until, self.now - self.now % EPOCH + EPOCH)

    def free_at(self, bucket: Bucket, time: float) -> int:
        """Returns how many nodes of a bucket are free at a time if no work starts until then: now's for a time not after now, else with
        those whose end, rounded up, is reached; ends that nobody knows never are.
        """
        if time <= self.now:
            return len(bucket.free)
        known = self._by_bucket.get(bucket)
        if known is None or known.version != bucket.version:
            stamp = bucket.version * _TIMES
            asked = max(stamp, self._asked.get(bucket, 0))
            if asked < stamp + _TIMES - 1:
                self._asked[bucket] = asked + 1
                return self._added_up(bucket, time)
            known = self.of_bucket(bucket)
        return known.counts[bisect_right(known.times, time)]

    def _added_up(self, bucket: Bucket, time: float) -> int:
        """Returns what `free_at` does, from the ends of the bucket: cheaper than to sort them, for the first few questions."""
        rounded = self._rounded
        gained = [count for end, count in bucket.ends.items() if end < NEVER and (rounded.get(end) or self._round(end)) <= time]
        return len(bucket.free) + sum(gained)

    def free_of(self, buckets: Iterable[Bucket], time: float) -> dict[Bucket, int]:
        """Returns how many nodes of each of these buckets are free at a time if no work starts until then."""
        return {bucket: self.free_at(bucket, time) for bucket in buckets}

    def gained(self, pool: FreeCounts, time: float) -> dict[Bucket, int]:
        """Returns how many nodes of a pool's buckets are free at a time, in all, for those of which more are free then than now; other
        buckets may be among them.
        """
        if len(pool.buckets) <= _FEW:
            return self.free_of(pool.buckets, time)
        self._follow()
        found: dict[Bucket, int] = {}
        members, by_time, times = pool.members, self._by_time, self._all.times
        for each in times[: bisect_right(times, time)]:
            for bucket, count in by_time[each].items():
                if bucket in members:
                    found[bucket] = (found[bucket] if bucket in found else len(bucket.free)) + count
        return found

    def of_bucket(self, bucket: Bucket) -> _OfBucket:
        """Computes and keeps the releases of a bucket as it is now."""
        gains: dict[float, int] = {}
        rounded = self._rounded
        for end, count in bucket.ends.items():
            if end < NEVER:
                time = rounded.get(end) or self._round(end)
                gains[time] = gains.get(time, 0) + count
        times = sorted(gains)
        counts = list(accumulate(map(gains.__getitem__, times), initial=len(bucket.free)))
        known = self._by_bucket[bucket] = _OfBucket(bucket.version, times, counts)
        return known

    def gains_of(self, pool: FreeCounts) -> Mapping[float, int]:
        """Returns how many nodes of a pool's buckets come free at each time, rounded up; nodes of unknown end are left out, and the pool's
        caps do not count.
        """
        self._follow()
        known = self._by_pool.get(pool.number)
        if known is None:
            known = self._by_pool[pool.number] = _Gains(pool.members)
            for time, ends in self._by_time.items():
                count = sum([count for bucket, count in ends.items() if bucket in pool.members])
                if count:
                    known.at[time] = count
            known.times = sorted(known.at)
        return known.at

    def _follow(self) -> None:
        """Counts in all sums what has changed in the node cache since they were true; begins anew where its log is too short."""
        log = self._node_cache.log
        if self._position == log.position:
            return
        moved = log.moved(self._position)
        if moved is None:
            self._by_time, self._all = {}, _Gains({})
            self._by_pool.clear()
            moved = {(bucket, end): count for bucket in self._node_cache.buckets.values() for end, count in bucket.ends.items()}
        self._position = log.position
        for (bucket, end), by in moved.items():
            if by and end < NEVER:
                self._count_end(bucket, self._rounded.get(end) or self._round(end), by)

    def _count_end(self, bucket: Bucket, time: float, by: int) -> None:
        """Counts `by` more nodes (fewer if negative) of a bucket that come free at a time in all sums."""
        ends = self._by_time.get(time)
        if ends is None:
            ends = self._by_time[time] = {}
        left = ends.get(bucket, 0) + by
        if left:
            ends[bucket] = left
        else:
            del ends[bucket]
            if not ends:
                del self._by_time[time]
        self._all.count_gain(time, by)
        for gains in self._by_pool.values():
            if bucket in gains.members:
                gains.count_gain(time, by)

    def differs(self, other: Releases) -> str:
        """Returns a sentence on the first bucket whose known releases differ from those of `other`, or that the ends by time differ; empty:
        nothing differs.
        """
        for bucket, known in self._by_bucket.items():
            if known.version == bucket.version and known != other.of_bucket(bucket):
                return f"the ends of bucket {bucket.key} differ from those that are known"
        other._follow()
        if self._position == self._node_cache.log.position and self._by_time != other._by_time:
            return "the ends by time differ from those of the buckets"
        return ""

    def _round(self, end: float) -> float:
        """Returns when nodes that are held until `end` count as free, rounded up; where `end` is past, `overrun` seconds from now.

        Remembers the answer, and makes all rounded times expire when `end` comes near, or with the epoch.
        """
        now = self.now
        time = self._rounded[end] = round_up(end if end > now else now + self.overrun, now)
        if end - now > NEAR:
            self._valid_until = min(self._valid_until, end - NEAR)
        self.expire_with_epoch()
        return time
