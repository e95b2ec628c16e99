"""Releases: the times at which held nodes come free, by bucket and by pool.

Never optimistic: ends are rounded up, and nodes of unknown end stay held.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, Bucket, NodeCache
from lattice.scheduling.cluster.step_function import NOTHING, StepFunction

EPOCH: Final = 4096.0
NEAR: Final = 256.0
"""Times further away than this are rounded by their distance from the beginning of the epoch, nearer ones to a second. Seconds.

A rounded time stays the same until a new epoch begins or the time comes near.
"""
_STEPS: Final = 128
"""A time this many steps away is rounded up to one step: the step doubles with each doubling of the distance."""


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


@dataclass(slots=True)
class _OfPool:
    """The releases of one pool: the sums over its buckets, kept up to date change by change."""

    changes: int
    """The node cache's `changes` for which these sums are true."""
    log_position: int
    ends_position: int
    """The positions in the node cache's logs of free nodes and of ends for which these sums are true."""
    first: int
    """How many nodes are free now."""
    gains: dict[float, int]
    """How many nodes come free at each time."""
    free: StepFunction = NOTHING


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
        self._by_pool: dict[int, _OfPool] = {}

    def is_current(self, now: float, overrun: float) -> bool:
        """Tells whether the rounded times still hold at `now` with this overrun (seconds); if not, the caller must call `restart`."""
        return self.now <= now < self._valid_until and overrun == self.overrun

    def restart(self, overrun: float) -> None:
        """Drops every rounded time and every count made of them, and sets the overrun."""
        self.overrun = overrun
        self.restarts += 1
        self._valid_until = NEVER
        self._rounded.clear()
        self._by_bucket.clear()
        self._by_pool.clear()

    def expire_with_epoch(self) -> None:
        """Limits the validity of all rounded times to the end of the present epoch (4,096 s)."""
        self._valid_until = min(self._valid_until, self.now - self.now % EPOCH + EPOCH)

    def free_at(self, bucket: Bucket, time: float) -> int:
        """Returns how many nodes of a bucket are free at a time if no work starts until then."""
        if time <= self.now:
            return len(bucket.free)
        known = self._by_bucket.get(bucket)
        if known is None or known.version != bucket.version:
            known = self.of_bucket(bucket)
        return known.counts[bisect_right(known.times, time)]

    def free_of(self, buckets: Iterable[Bucket], time: float) -> dict[Bucket, int]:
        """Returns how many nodes of each of these buckets are free at a time if no work starts until then."""
        if time <= self.now:
            return {bucket: len(bucket.free) for bucket in buckets}
        known_of, found = self._by_bucket, dict[Bucket, int]()
        for bucket in buckets:
            known = known_of.get(bucket)
            if known is None or known.version != bucket.version:
                known = self.of_bucket(bucket)
            found[bucket] = known.counts[bisect_right(known.times, time)]
        return found

    def of_bucket(self, bucket: Bucket) -> _OfBucket:
        """Computes and keeps the releases of a bucket as it is now."""
        gains = self._gains(bucket.ends)
        times = sorted(gains)
        counts = list(accumulate(map(gains.__getitem__, times), initial=len(bucket.free)))
        known = self._by_bucket[bucket] = _OfBucket(bucket.version, times, counts)
        return known

    def of_pool(self, pool: FreeCounts) -> StepFunction:
        """Returns how many nodes of a pool's buckets are free over time if no work starts; the first step, from `ALWAYS`, counts now."""
        known, cache = self._by_pool.get(pool.number), self._node_cache
        if known is not None and known.changes == cache.changes:
            return known.free
        if known is None or not self._follow(known, pool):
            known = self._by_pool[pool.number] = self._summed(pool)
        known.changes, known.log_position, known.ends_position = cache.changes, cache.log.position, cache.ends_log.position
        known.free = StepFunction.of_changes(known.first, known.gains)
        return known.free

    def _summed(self, pool: FreeCounts) -> _OfPool:
        """Sums up the releases of a pool's buckets anew."""
        first, gains = 0, dict[float, int]()
        for bucket in pool.buckets:
            first += len(bucket.free)
            for time, count in self._gains(bucket.ends).items():
                gains[time] = gains.get(time, 0) + count
        return _OfPool(0, 0, 0, first, gains)

    def _follow(self, known: _OfPool, pool: FreeCounts) -> bool:
        """Counts in a pool's sums what has changed since they were true; returns False where the logs no longer reach back so far."""
        cache, members, gains = self._node_cache, pool.members, known.gains
        freed, moved = cache.log.since(known.log_position), cache.ends_log.since(known.ends_position)
        if freed is None or moved is None:
            return False
        known.first += sum([by for bucket, by in freed.items() if bucket in members])
        for (bucket, end), by in moved.items():
            if by and bucket in members and end < NEVER:
                time = self._rounded.get(end) or self._round(end)
                left = gains.get(time, 0) + by
                if left:
                    gains[time] = left
                else:
                    del gains[time]
        return True

    def differs(self, other: Releases) -> str:
        """Returns a sentence on the first bucket whose known releases differ from those of `other`; empty: none differs."""
        for bucket, known in self._by_bucket.items():
            if known.version == bucket.version and known != other.of_bucket(bucket):
                return f"the ends of bucket {bucket.key} differ from those that are known"
        return ""

    def _gains(self, ends: Mapping[float, int]) -> dict[float, int]:
        """Returns how many nodes come free at each rounded time; `ends`: how many are held until when."""
        gains: dict[float, int] = {}
        rounded = self._rounded
        for end, count in ends.items():
            if end < NEVER:
                time = rounded.get(end) or self._round(end)
                gains[time] = gains.get(time, 0) + count
        return gains

    def _round(self, end: float) -> float:
        """Returns when nodes that are held until `end` count as free."""
        now = self.now
        time = self._rounded[end] = round_up(end if end > now else now + self.overrun, now)
        if end - now > NEAR:
            self._valid_until = min(self._valid_until, end - NEAR)
        self.expire_with_epoch()
        return time
