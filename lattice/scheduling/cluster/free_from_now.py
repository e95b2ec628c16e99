"""Pools of the nodes that are free from now until an end, without those that a backfill reservation or a window takes before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from lattice.scheduling.cluster.backfill_table import BackfillTable
from lattice.scheduling.cluster.free_counts import AdjustedCounts, FreeCounts
from lattice.scheduling.cluster.node_cache import Bucket, NodeCache
from lattice.scheduling.cluster.windows import Windows


class Availability(Protocol):
    """The members of AvailabilityProfile that FreeFromNow reads."""

    now: float
    windows: Windows
    table: BackfillTable

    def capacity(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> int:
        """Returns how many nodes of a bucket are free throughout [start, end), epoch seconds; `reservation`: that which the work names."""
        ...


@dataclass(slots=True)
class _UsableUntil:
    """The nodes that may be used until one end, with the layout of the backfill table and the position of the node cache's log for
    which they are true.
    """

    counts: AdjustedCounts
    layout: int
    position: int


class FreeFromNow:
    """The pools of one cycle, by end; those of one end share their counts, which follow the node cache's changes.

    Ends between which no reservation and no window begins are one end.
    """

    def __init__(self, node_cache: NodeCache, profile: Availability) -> None:
        self._node_cache = node_cache
        self._profile = profile
        self._kept: dict[tuple[float, str, bool, int], _UsableUntil] = {}
        self._begins: list[float] = []
        """When reservations and windows begin, ascending."""
        self._begins_of = -1
        """The layout of the backfill table for which `_begins` was computed."""

    def drop_pools(self) -> None:
        """Drops every pool; called when a new cycle begins."""
        self._kept.clear()
        self._begins_of = -1

    def of_pool(self, pool: FreeCounts, end: float, reservation: str = "") -> FreeCounts:
        """Returns a pool of those nodes that work may hold from now until `end`: kept by no backfill reservation, closed by no window;
        `pool` itself where nothing takes free ones away.

        `reservation`: the Reservation that the work names, in a window of which it must lie wholly (empty: none). The result is valid until
        nodes or reservations change.
        """
        return self._find(pool, end, reservation, windows_only=False)

    def unclosed(self, pool: FreeCounts, end: float, reservation: str = "") -> FreeCounts:
        """Returns a pool of the free nodes that no window closes before `end` to work of this Reservation (empty: of none); `pool` itself
        where none does.

        Backfill reservations take nothing away, and work of a Reservation need not lie in a window of its own, unlike in `of_pool`.
        """
        return self._find(pool, end, reservation, windows_only=True)

    def _find(self, pool: FreeCounts, end: float, reservation: str, *, windows_only: bool) -> FreeCounts:
        """Returns the pool of the nodes that work may hold from now until `end`, from counts that are kept by end and brought up to date.

        `windows_only`: only windows of other Reservations take nodes away, not backfill reservations (see `unclosed`).
        """
        # A Reservation closes nearly all buckets to work that names it, so each pool of such work has counts of its own.
        key = (end, reservation, windows_only, pool.number) if reservation else (self._horizon(end), "", windows_only, 0)
        kept, layout, cache = self._kept.get(key), self._profile.table.layout, self._node_cache
        moved = None if kept is None else self._profile.table.touched_since(kept.layout)
        if kept is None or moved is None:
            caps = self._reductions(pool.members if reservation else cache.buckets.values(), end, reservation, windows_only=windows_only)
            kept = self._kept[key] = _UsableUntil(AdjustedCounts(caps), layout, cache.log.position)
        elif moved or kept.position != cache.log.position:
            self._follow(kept, moved, end, reservation, windows_only=windows_only)
            kept.layout, kept.position = layout, cache.log.position
        return kept.counts.pool_of(pool) if kept.counts.caps else pool

    def _horizon(self, end: float) -> float:
        """Returns the last time before `end`, which is after now, at which a reservation or a window begins, now if none does: nothing
        changes from there to `end`.
        """
        profile = self._profile
        if self._begins_of != profile.table.layout:
            self._begins_of = profile.table.layout
            begins = {one.start for one in profile.table.by_uid.values()} | {window.start for window in profile.windows.ordered}
            self._begins = [profile.now, *sorted([begin for begin in begins if begin > profile.now])]
        return self._begins[bisect_left(self._begins, end) - 1]

    def _reductions(self, buckets: Collection[Bucket], end: float, reservation: str, *, windows_only: bool) -> dict[Bucket, int]:
        """Returns by bucket how many nodes work may use from now until `end`, for buckets of which it may not use all free nodes.

        Work of a Reservation (`reservation`; empty: of none) gets none outside its own windows. For work of none, buckets with backfill
        reservations are answered for even if not in `buckets`. `windows_only`: nothing but the windows of other Reservations counts.
        """
        profile, now = self._profile, self._profile.now
        touched = [] if windows_only else list(profile.table.by_bucket)
        if reservation:
            touched = list(buckets)
        elif profile.windows.crosses(now, end):
            closed = [bucket for bucket in buckets if bucket.key.marks and profile.windows.closed(bucket, now, end)]
            touched = list(dict.fromkeys([*touched, *closed]))
        caps = {bucket: self._capacity(bucket, end, reservation, windows_only=windows_only) for bucket in touched}
        return {bucket: count for bucket, count in caps.items() if count != len(bucket.free)}

    def _capacity(self, bucket: Bucket, end: float, reservation: str, *, windows_only: bool) -> int:
        """Returns how many nodes of a bucket work of this Reservation (empty: of none) may hold from now until `end`.

        `windows_only`: all free ones, or 0 where a window of another Reservation closes the bucket before `end`.
        """
        profile = self._profile
        if windows_only:
            return 0 if profile.windows.closed(bucket, profile.now, end, reservation) is not None else len(bucket.free)
        return profile.capacity(bucket, profile.now, end, reservation)

    def _follow(
        self, kept: _UsableUntil, moved: Collection[Bucket], end: float, reservation: str, *, windows_only: bool
    ) -> None:  # fmt: skip
        """Sets anew how many nodes may be used of the buckets that have changed, of those only that are kept in part, or closed.

        `moved`: the buckets of which reservations keep more or fewer nodes since; the node cache's log names the others.
        """
        profile = self._profile
        reserved = () if windows_only else profile.table.by_bucket
        crossed = profile.windows.crosses(profile.now, end)
        changed = self._node_cache.log.changed(kept.position)
        for bucket in changed.union(moved) if moved else changed:
            if reservation or bucket in reserved or bucket in moved or (crossed and bucket.key.marks):
                kept.counts.set_cap(bucket, self._capacity(bucket, end, reservation, windows_only=windows_only))
