"""The nodes of a pool that are free and reserved for nobody, over time, and the starts that these totals allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from lattice.errors import Corrupt
from lattice.scheduling.cluster.backfill_table import BackfillReservation, BackfillTable
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache
from lattice.scheduling.cluster.releases import NEAR, Releases
from lattice.scheduling.cluster.step_function import ALWAYS, StepFunction
from lattice.scheduling.cluster.windows import Windows


class UnreservedNodes:
    """Answers how many nodes of a pool are free and kept by no backfill reservation over time, and which starts these totals allow.

    Keeps a step function for each pool and layout of the backfill table: derived from that of the layout before, made anew when
    nodes change.
    """

    def __init__(self, node_cache: NodeCache, releases: Releases, table: BackfillTable) -> None:
        self.windows = Windows()
        self._node_cache = node_cache
        self._releases = releases
        self._table = table
        self._known: dict[tuple[int, int], StepFunction] = {}
        """By the pool's number and the layout; cleared when nodes change."""
        self._pools: dict[int, FreeCounts] = {}
        """By number: the pools of the functions in `_known`."""
        self._stamp = (-1, -1)
        self._not_earlier: dict[str, tuple[StepFunction, float]] = {}
        """By uid: the function and the duration (seconds) for which a search found no start earlier than the reservation's."""

    def restart(self) -> None:
        """Drops all step functions, and all notes of searches without result; called when ends are rounded anew."""
        self._known.clear()
        self._not_earlier.clear()

    def drop_functions(self) -> None:
        """Drops the step functions; called when windows change."""
        self._known.clear()

    def compare(self, again: UnreservedNodes) -> None:
        """Raises Corrupt where a function of the present layout differs from that of `again`, which was made from scratch.

        Functions made before nodes last changed, or with a step that is past, are not compared.
        """
        now = self._releases.now
        if self._stamp != (self._node_cache.changes, self._node_cache.shape):
            return
        for (number, layout), free in self._known.items():
            if layout != self._table.layout or (len(free.times) > 1 and free.times[1] <= now):
                continue
            found = again.of_pool(self._pools[number])
            for time in (now, *free.times[1:], *found.times[1:]):
                if free.at(time) != found.at(time):
                    raise Corrupt(f"at {time:.0f} {found.at(time)} nodes are free, not {free.at(time)}", reason="ProfileDiffers")

    def starts(self, pool: FreeCounts, nodes: int, duration: float, before: float = NEVER) -> Iterator[float]:
        """Yields the times after now and before `before`, ascending, from which `nodes` nodes may be free for `duration` seconds.

        Yields only times at which nodes may come free. Checks only the totals of the pool, not windows; the caller checks its buckets.
        """
        free = self.of_pool(pool)
        times, counts = free.times, free.counts
        last, at = bisect_left(times, before), 1
        while at < last:
            if counts[at] >= nodes:
                short = free.first_below(nodes, at, times[at] + duration)
                if short:
                    at = short + 1  # whatever begins before that step meets it too
                    continue
                if self._may_gain(pool, times[at]):
                    yield times[at]
            at += 1

    def starts_from_now(self, pool: FreeCounts, nodes: int, duration: float, before: float) -> Iterator[float]:
        """Yields what `starts` does, and first the present time (seconds since the epoch) if `nodes` nodes may be free for `duration`
        seconds from now.
        """
        free, now = self.of_pool(pool), self._releases.now
        if min(free.counts[: bisect_left(free.times, now + duration)]) >= nodes:
            yield now
        yield from self.starts(pool, nodes, duration, before)

    def may_improve(self, reservation: BackfillReservation, pool: FreeCounts, duration: float) -> bool:
        """Tells whether as many nodes as a reservation keeps might be free for `duration` seconds from before its start; False: surely not,
        which is noted for the next call.

        Only the totals of the pool are checked; the caller searches its buckets. The reservation starts after now and is no shorter than
        `duration`.
        """
        free = self.of_pool(pool)
        known = self._not_earlier.get(reservation.uid)
        if known is not None and known[0] is free and known[1] == duration:
            return False
        if self._is_improvable(reservation, free, pool, duration):
            return True
        self._not_earlier[reservation.uid] = free, duration
        return False

    def known_short(self, pool: FreeCounts, nodes: int, duration: float) -> bool:
        """Tells whether totals that are known already show fewer than `nodes` nodes free throughout `duration` seconds from now.

        False: there may be enough, or nothing is known; totals are not summed up for the question.
        """
        if self._stamp != (self._node_cache.changes, self._node_cache.shape):
            return False
        free, now = self._known.get((pool.number, self._table.layout)) or self._derived(pool), self._releases.now
        if free is None or (len(free.times) > 1 and free.times[1] <= now):
            return False
        return min(free.counts[: bisect_left(free.times, now + duration)]) < nodes

    def keep_until_changed(self, reservation: BackfillReservation, pool: FreeCounts, duration: float) -> bool:
        """Notes that the search by bucket found no earlier start for a reservation: `may_improve` then says False until something changes.

        Returns False where that was noted already, and nothing has changed since. Not noted with a `duration` of 256 s or less, for which
        near ends are rounded anew from moment to moment; a note makes all rounded times expire at the end of the epoch (4,096 s).
        """
        if duration <= NEAR:
            return True
        free, known = self.of_pool(pool), self._not_earlier.get(reservation.uid)
        self._not_earlier[reservation.uid] = free, duration
        self._releases.expire_with_epoch()
        return known is None or known[0] is not free or known[1] != duration

    def _is_improvable(self, reservation: BackfillReservation, free: StepFunction, pool: FreeCounts, duration: float) -> bool:
        """Tells whether totals over time `free` leave a start before the reservation's from which as many nodes as it keeps are free for
        `duration` seconds.

        From its own start on, the reservation's own nodes count as free.
        """
        times, counts, nodes = free.times, free.counts, reservation.nodes
        start = bisect_left(times, reservation.start)
        if max(counts[:start]) < nodes:
            return False
        at = 0
        while at < start:
            if counts[at] >= nodes:
                end = bisect_left(times, (times[at] if at else self._releases.now) + duration)
                if min(counts[at : min(end, start)]) >= nodes:
                    own = self._table.nodes_of(reservation.uid, pool.members)  # they are free for it from its start on
                    return end <= start or min(counts[start:end]) >= nodes - own
                at = next(step for step in range(at + 1, start) if counts[step] < nodes)
            at += 1
        return False

    def of_pool(self, pool: FreeCounts) -> StepFunction:
        """Returns how many nodes of a pool's buckets are free and kept by no backfill reservation over time, if no work starts.

        The first step, from `ALWAYS`, counts now. Windows take nothing away: they only add steps.
        """
        table, key = self._table, (pool.number, self._table.layout)
        stamp = (self._node_cache.changes, self._node_cache.shape)
        if stamp != self._stamp:
            self._stamp = stamp
            self._known.clear()
            self._pools.clear()
            table.forget_changes()
        free = self._known.get(key) or self._derived(pool)
        if free is None or (len(free.times) > 1 and free.times[1] <= self._releases.now):
            free = self._known[key] = self._summed(pool)
            self._pools[pool.number] = pool
        return free

    def _summed(self, pool: FreeCounts) -> StepFunction:
        """Makes the function of a pool anew from releases, reservations and the edges of windows."""
        now, gains = self._releases.now, self._releases.gains_of(pool)
        changes, first = dict(gains), pool.whole.total
        for time in self.windows.edges(pool.members):
            if time > now:
                changes[time] = changes.get(time, 0)
        for begin, stop, count in self._table.kept(pool.members):
            if stop > now:
                changes[stop] = changes.get(stop, 0) + count
                if begin > now:
                    changes[begin] = changes.get(begin, 0) - count
                else:
                    first -= count
        return StepFunction.of_changes(first, changes)

    def _derived(self, pool: FreeCounts) -> StepFunction | None:
        """Makes the function of a pool from that of an earlier layout and the reservations added or removed since, and keeps it.

        None: no earlier one is known, or a step of it is past.
        """
        table, now, number = self._table, self._releases.now, pool.number
        layout, since = table.layout, list[tuple[BackfillReservation, int]]()
        while (free := self._known.get((number, layout))) is None:
            change = table.change_to(layout)
            if change is None:
                return None
            layout = change.before
            since.append((change.reservation, change.by * sum([count for bucket, count in change.slots if bucket in pool.members])))
        if len(free.times) > 1 and free.times[1] <= now:
            return None
        for reservation, by in reversed(since):
            if by and reservation.end > now:
                free = free.plus(reservation.start if reservation.start > now else ALWAYS, reservation.end, by)
        self._known[number, table.layout] = free
        return free

    def _may_gain(self, pool: FreeCounts, time: float) -> bool:
        """Tells whether nodes of a pool may come free at a time: work on them or a reservation of them ends then, or a window, on whatever
        nodes, begins or ends.
        """
        if time in self._releases.gains_of(pool) or any(time in (window.start, window.end) for window in self.windows.ordered):
            return True
        table = self._table
        return any(one.end == time and table.nodes_of(uid, pool.members) for uid, one in table.by_uid.items())
