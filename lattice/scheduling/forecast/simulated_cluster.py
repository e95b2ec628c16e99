"""The cluster of a simulation in counts: free nodes by column and by set, headroom of caps, and running work until it ends."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.simulated_queue import JobShape
from lattice.scheduling.forecast.simulator_input import SimulatorInput

Amounts = tuple[tuple[int, int], ...]
"""(column, nodes) or (cap number, amount) pairs."""


@dataclass(slots=True)
class _Releases:
    """The believed times at which nodes of one set come free, and how many at each."""

    times: list[float] = field(default_factory=list)
    nodes: dict[float, int] = field(default_factory=dict)

    def add_release(self, time: float, count: int) -> None:
        """Notes that `count` more nodes are believed to come free at `time`."""
        if time in self.nodes:
            self.nodes[time] += count
        else:
            self.nodes[time] = count
            insort(self.times, time)

    def drop_release(self, time: float, count: int) -> None:
        """Notes that `count` fewer nodes come free at `time`; a time without any is dropped."""
        left = self.nodes[time] - count
        if left:
            self.nodes[time] = left
        else:
            del self.nodes[time]
            del self.times[bisect_left(self.times, time)]


@dataclass(slots=True)
class ShadowReservation:
    """The reservation of a queue's head: its nodes are free from `shadow` on, and `extra` nodes of its set are left over then.

    `columns`: the number of the head's set. `shadow`: seconds from the beginning of the simulation; NEVER: it protects nothing.
    """

    columns: int
    shadow: float
    extra: int


class SimulatedCluster:
    """Counts the free nodes of a simulation by column and by set, the headroom of its caps, and the releases of running work.

    `free`: by column. `in_set`: free nodes by set. `slot`: ends are rounded up to multiples of so many seconds; 0: exact. Times are
    seconds from the beginning of the simulation.
    """

    __slots__ = ("_column_windows", "_ends", "_members", "_near", "_releases", "_room", "_running", "_sets", "_slot", "_touching",
                 "free", "in_set")  # fmt: skip

    def __init__(self, stage: SimulatorInput, slot: float) -> None:
        self._slot = slot
        self._sets, self._column_windows = stage.sets, stage.column_windows
        self._touching = _touching(stage)
        self._members = [frozenset(columns) for columns in stage.sets]
        self._near = [frozenset(near for column in columns for near in self._touching[column]) for columns in stage.sets]
        """By set: the sets that share a column with it."""
        self.free = list(stage.free)
        self.in_set = [sum(self.free[column] for column in columns) for columns in stage.sets]
        self._room = list(stage.room)
        self._releases = [_Releases() for _ in stage.sets]
        self._ends: list[tuple[float, int]] = []
        """A heap of (end, place in `_running`)."""
        self._running: list[tuple[Amounts, float, Amounts]] = []
        """The columns, the believed end and the caps of all work that ever ran, in order of its start."""
        for held in stage.held:
            self._occupy(held.columns, held.expected, held.believed, held.caps)

    @property
    def next_end(self) -> float:
        """Returns the time at which the next running work ends; NEVER: no work ends."""
        return self._ends[0][0] if self._ends else NEVER

    @property
    def capped(self) -> bool:
        """Tells whether any limit (cap) is set that could keep a job of the simulation waiting."""
        return bool(self._room)

    def capacity_at_last(self) -> list[int]:
        """Returns for each set the nodes that are free after all work with a known end has ended; call it before `end_work` only."""
        capacity = list(self.in_set)
        for columns, _believed, _caps in self._running:
            for column, count in columns:
                for touched in self._touching[column]:
                    capacity[touched] += count
        return capacity

    # Events

    def end_work(self, now: float) -> None:
        """Frees the nodes and the caps of all work that ends at `now` or before."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            columns, believed, caps = self._running[heappop(ends)[1]]
            for column, count in columns:
                self.free[column] += count
                for touched in self._touching[column]:
                    self.in_set[touched] += count
                    self._releases[touched].drop_release(believed, count)
            for cap, amount in caps:
                self._room[cap] += amount

    def start_job(self, shape: JobShape, expected: float, now: float, kept: Sequence[ShadowReservation]) -> None:
        """Starts a job of a shape at `now` for `expected` seconds: takes its nodes and its part of the caps, until `end_work` frees them.

        The caller has checked `fits`, `within_caps` and `spares`. Reduces the extra nodes of reservations in `kept` that it uses.
        """
        columns = self._choose(shape, now)
        for column, count in columns:
            self.free[column] -= count
            for touched in self._touching[column]:
                self.in_set[touched] -= count
        for cap, amount in shape.caps:
            self._room[cap] -= amount
        self._occupy(columns, now + expected, now + shape.believed, shape.caps)
        for reservation in kept:
            if now + shape.believed > reservation.shadow:
                reservation.extra -= self._within(columns, reservation.columns)

    def _occupy(self, columns: Amounts, end: float, believed: float, caps: Amounts) -> None:
        """Records work that holds nodes until `end`; the caller takes them from `free`. Work without a known end releases none."""
        if end == NEVER:
            return
        if self._slot:
            end = ceil(end / self._slot) * self._slot
        believed = max(end, believed)
        heappush(self._ends, (end, len(self._running)))
        self._running.append((columns, believed, caps))
        for column, count in columns:
            for touched in self._touching[column]:
                self._releases[touched].add_release(believed, count)

    # Answers

    def within_caps(self, shape: JobShape) -> bool:
        """Tells whether every cap of a shape leaves the amount that one job of it uses."""
        return all(self._room[cap] >= amount for cap, amount in shape.caps)

    def fits(self, shape: JobShape, now: float) -> bool:
        """Tells whether enough nodes of a shape's set are free and not closed by a window if a job of it starts at `now`."""
        free = self.in_set[shape.columns]
        if free < shape.nodes or not self._column_windows:
            return free >= shape.nodes
        closed = self._closed(shape, now)
        return free - sum(self.free[column] for column in self._sets[shape.columns] if column in closed) >= shape.nodes

    def spares(self, shape: JobShape, now: float, kept: Sequence[ShadowReservation]) -> bool:
        """Tells whether a job of this shape may start at `now` without delaying any of the reservations `kept`."""
        end = now + shape.believed
        for reservation in kept:
            if end <= reservation.shadow or shape.nodes <= reservation.extra:
                continue
            if shape.columns == reservation.columns:
                return False
            if reservation.columns in self._near[shape.columns] and (
                self._within(self._choose(shape, now), reservation.columns) > reservation.extra
            ):
                return False
        return True

    def reserve(self, shape: JobShape, now: float) -> ShadowReservation:
        """Returns the reservation of a queue's head: from the first time on at which, by walltimes, its nodes are free; takes no nodes.

        No window on its set lies in the head's time from then on; `shadow` NEVER: its nodes are never free, or its own window is too short.
        """
        free, releases, shadow = self.in_set[shape.columns], self._releases[shape.columns], now
        for time in releases.times:
            if free >= shape.nodes:
                break
            free += releases.nodes[time]
            shadow = max(now, time)
        if free < shape.nodes:
            return ShadowReservation(shape.columns, NEVER, 0)  # what it needs is never released: it protects nothing
        for number, column_window in enumerate(self._column_windows):
            concerns = number != shape.window and not column_window.columns.isdisjoint(self._members[shape.columns])
            if concerns and shadow < column_window.end and shadow + shape.believed > column_window.start:
                shadow = column_window.end
        if shape.window >= 0 and shadow + shape.believed > self._column_windows[shape.window].end:
            return ShadowReservation(shape.columns, NEVER, 0)  # its own window ends before it could
        return ShadowReservation(shape.columns, shadow, free - shape.nodes)

    def _closed(self, shape: JobShape, now: float) -> frozenset[int]:
        """Returns the columns that windows close to a shape if it starts at `now`."""
        found: frozenset[int] = frozenset()
        for number, column_window in enumerate(self._column_windows):
            end = now + shape.believed
            if end > column_window.end if number == shape.window else now < column_window.end and end > column_window.start:
                found |= column_window.columns
        return found

    def _choose(self, shape: JobShape, now: float) -> Amounts:
        """Returns (column, nodes) to start a shape on, in the order of use of its set, without columns that windows close; fewer than the
        shape needs where too few are free.

        Takes none.
        """
        left, chosen, free = shape.nodes, [], self.free
        closed = self._closed(shape, now) if self._column_windows else ()
        for column in self._sets[shape.columns]:
            count = free[column]
            if not count or column in closed:
                continue
            if count >= left:
                chosen.append((column, left))
                break
            chosen.append((column, count))
            left -= count
        return tuple(chosen)

    def _within(self, columns: Amounts, number: int) -> int:
        """Returns how many of these nodes lie in the set of this number."""
        members, within = self._members[number], 0
        for column, count in columns:
            if column in members:
                within += count
        return within


def _touching(stage: SimulatorInput) -> list[tuple[int, ...]]:
    """Returns for each column the numbers of the sets that contain it."""
    return [tuple(number for number, columns in enumerate(stage.sets) if column in columns) for column in range(len(stage.free))]
