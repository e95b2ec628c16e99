"""The availability profile: how many nodes of each bucket are free from when to when.

It puts together what is released when (`releases`), what backfill reservations keep (`backfill_table`), what windows close
(`windows`), and the totals of pools that follow (`unreserved`). Counts only, and made for the buckets that are asked about.
Never optimistic: ends are rounded up, nodes whose end nobody knows never come free, a window is closed to all that may not use it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lattice.errors import Corrupt
from lattice.scheduling.cluster.backfill_table import BackfillReservation, BackfillTable, Slot, least_free, on_present_buckets
from lattice.scheduling.cluster.free_counts import AdjustedCounts, FreeCounts
from lattice.scheduling.cluster.free_from_now import FreeFromNow
from lattice.scheduling.cluster.node_cache import NEVER, Bucket, NodeCache
from lattice.scheduling.cluster.releases import Releases
from lattice.scheduling.cluster.unreserved import UnreservedNodes
from lattice.scheduling.cluster.windows import Windows
from lattice.scheduling.model.windows import ReservationWindow


class AvailabilityProfile:
    """Answers how many nodes of a bucket are free for a span of time; cycles, forecasts and what-if search starts in it.

    The cluster state keeps one from cycle to cycle; `begin` gives it the windows and the backfill reservations of the new cycle.
    """

    def __init__(self, node_cache: NodeCache) -> None:
        self.now = NEVER
        self.windows = Windows()
        self.releases = Releases(node_cache)
        self.table = BackfillTable(node_cache)
        self.unreserved = UnreservedNodes(node_cache, self.releases, self.table)
        self.free_from_now = FreeFromNow(node_cache, self)
        self.late = False
        """Whether, at the last `begin`, nodes were held past the end by which they should have come free."""
        self._node_cache = node_cache
        self._buckets_stamp = node_cache.shape, node_cache.tally
        """The node cache's `shape` and `tally` when the reservations were last laid on buckets; others mean that buckets or nodes
        changed.
        """
        self._least: dict[Bucket, tuple[int, dict[tuple[float, float], int]]] = {}
        """By bucket: the version for which it was computed, and by (start, end) the fewest unreserved free nodes in that time."""

    @property
    def reservations(self) -> Mapping[str, BackfillReservation]:
        """Returns the backfill reservations by uid."""
        return self.table.by_uid

    @property
    def layout(self) -> int:
        """Returns the number of the present set of backfill reservations; equal numbers mean equal sets."""
        return self.table.layout

    def begin(
        self, now: float, windows: Sequence[ReservationWindow], reservations: Iterable[BackfillReservation], overrun: float
    ) -> None:  # fmt: skip
        """Begins a cycle at `now` (seconds since the epoch): replaces the windows, except those that are over, and the reservations.

        Drops what time or changes of nodes have made untrue; a reservation whose buckets have changed is put on the present ones.
        `overrun`: for so many more seconds nodes that are held past their end are taken to be held.
        """
        node_cache, releases = self._node_cache, self.releases
        late, stamp = node_cache.overdue(now), (node_cache.shape, node_cache.tally)
        if late or self.late or not releases.is_current(now, overrun) or self._buckets_stamp[0] != stamp[0]:
            releases.restart(overrun)
            self.unreserved.restart()
        moved = self._buckets_stamp != stamp
        if moved:
            self._buckets_stamp = stamp
            self.table.clear()
        self.late, self.now, releases.now = late, now, now
        node_cache.log.trim()
        self._least.clear()
        self.free_from_now.drop_pools()
        self.table.forget_removed()
        left = tuple([window for window in windows if window.end > now])
        if left != self.windows.ordered:
            self.windows = self.unreserved.windows = Windows(left)
            self.unreserved.drop_functions()
        wanted = {reservation.uid: reservation for reservation in reservations}
        if wanted == self.reservations:
            return
        for uid in [uid for uid, reservation in self.reservations.items() if wanted.get(uid) != reservation]:
            self.remove(uid)
        missing = [reservation for uid, reservation in wanted.items() if uid not in self.reservations]
        for reservation in sorted(missing, key=lambda one: one.start) if moved else missing:
            self.add(on_present_buckets(reservation, self.table, releases) if moved else reservation)

    def adopt_buckets(self) -> None:
        """Makes the next `begin` take its reservations as they are: they name the buckets that the node cache has now."""
        self._buckets_stamp = self._node_cache.shape, self._node_cache.tally

    def overbooked(self) -> bool:
        """Tells whether, at the start of some backfill reservation (now, if that is past), reservations keep more nodes of a bucket than
        will be free then.

        That happens when nodes went away, or are held for longer than was known.
        """
        for bucket, slots in self.table.by_bucket.items():
            for start, _, _ in slots.values():
                point = max(start, self.now)
                if sum([count for begin, stop, count in slots.values() if begin <= point < stop]) > self.releases.free_at(bucket, point):
                    return True
        return False

    def validate(self) -> None:
        """Rebuilds the profile from the node cache and the reservations and compares; raises Corrupt on a difference.

        Compares nothing where buckets, nodes or rounded ends have changed since `begin`: the next cycle makes the profile anew.
        """
        cache = self._node_cache
        overrun = self.releases.overrun
        if self._buckets_stamp != (cache.shape, cache.tally) or not self.releases.is_current(self.now, overrun):
            return  # the next cycle begins anew
        again = AvailabilityProfile(cache)
        again.begin(self.now, self.windows.ordered, self.reservations.values(), overrun)
        if again.table.by_bucket != self.table.by_bucket:
            raise Corrupt("the nodes that are kept differ from the backfill reservations", reason="ProfileDiffers")
        if difference := self.releases.differs(again.releases):
            raise Corrupt(difference, reason="ProfileDiffers")
        self.unreserved.compare(again.unreserved)

    def add(self, reservation: BackfillReservation) -> None:
        """Adds a backfill reservation of work that has none in the table: its nodes count as not free from its start to its end."""
        for bucket, _ in self.table.add(reservation):
            self._least.pop(bucket, None)

    def remove(self, uid: str) -> BackfillReservation | None:
        """Removes a backfill reservation and returns it; None: the allocation `uid` has none."""
        reservation = self.reservations.get(uid)
        if reservation is not None:
            for bucket, _ in self.table.remove(uid):
                self._least.pop(bucket, None)
        return reservation

    def capacity(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> int:
        """Returns how many nodes of a bucket are free throughout [start, end), epoch seconds, if no work starts: neither held nor kept; 0
        where a window closes it.

        `reservation`: the Reservation that the work names; its own windows do not close, and the work must stay inside one (empty: none).
        Backfill reservations keep nodes from everybody, also from their holders.
        """
        slots = self.table.by_bucket.get(bucket)
        left = self.releases.free_at(bucket, start) if slots is None else self.least_free_in(bucket, slots, start, end)
        if not left or not (reservation or self.windows.crosses(start, end)):
            return left
        return left if self.windows.open_for(bucket, start, end, reservation) else 0

    def capacities(self, buckets: Collection[Bucket], start: float, end: float, reservation: str = "") -> dict[Bucket, int]:
        """Returns `capacity` by bucket, for each of these buckets, in a dict of the caller's own; `reservation` as there."""
        caps = self.releases.free_of(buckets, start)
        if reservation or self.windows.crosses(start, end):
            open_for = self.windows.open_for
            for bucket in buckets:
                if not open_for(bucket, start, end, reservation):
                    caps[bucket] = 0
        for bucket, slots in self.table.by_bucket.items():
            if caps.get(bucket):
                caps[bucket] = self.least_free_in(bucket, slots, start, end)
        return caps

    def pool_at(self, pool: FreeCounts, start: float, end: float, reservation: str = "", least: int = 0) -> FreeCounts | None:
        """Returns a pool of the nodes of `pool` that are free throughout [start, end); None where they are fewer than `least`.

        `pool`: one of `FreeCountsByNeed`. `reservation`: as in `capacity`. The result is valid until nodes or reservations change.
        """
        caps = self.releases.gained(pool, start)
        total = pool.whole.total + sum(caps.values()) - sum([len(bucket.free) for bucket in caps])
        if reservation or self.windows.crosses(start, end):
            open_for = self.windows.open_for
            for bucket in pool.buckets:
                if not open_for(bucket, start, end, reservation):
                    total -= caps.get(bucket, len(bucket.free))
                    caps[bucket] = 0
        for bucket, slots in self.table.by_bucket.items():
            if total < least:
                return None
            count = caps.get(bucket)
            if count is None:
                count = len(bucket.free) if bucket in pool.members else 0
            if count:
                left = caps[bucket] = self.least_free_in(bucket, slots, start, end)
                total -= count - left
        return AdjustedCounts(caps).pool_of(pool) if total >= least else None

    def least_free_in(self, bucket: Bucket, slots: Mapping[str, Slot], start: float, end: float) -> int:
        """Returns the fewest nodes of a bucket that are free and kept by no reservation at any time in [start, end), at least 0.

        `slots`: what reservations keep of the bucket; the answer is remembered until the bucket or its reservations change.
        """
        known = self._least.get(bucket)
        if known is None or known[0] != bucket.version:
            known = self._least[bucket] = (bucket.version, {})
        least = known[1].get((start, end))
        if least is None:
            least = known[1][start, end] = least_free(self.releases, bucket, slots.values(), start, end)
        return least
