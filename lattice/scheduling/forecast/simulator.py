"""The queues played forward over counts of nodes: who starts when, if all work runs as long as expected.

A column is a set of nodes that the same needs admit, so counts lose nothing. The simulation is the policy of backfill in
small: at each end the queues are asked in order; the first that does not fit is its queue's head and holds a reservation, made
from the *believed* durations (walltimes), which is all that the real cycle knows; one behind it starts if it fits and
either ends by then, as believed, or leaves the head enough nodes. Work ends after its *expected* duration. Only the
head of a queue is protected (EASY): reservations deeper in the queue move starts less than run times do. A queue may
also be played first fit (nobody is protected) or in strict order (nobody passes one that asks for the same nodes).

What makes it quick: jobs of one shape (set, nodes, belief, caps) are interchangeable, and only the first of each shape
is asked; ends can be rounded up to slots, so that many of them share one pass. Never optimistic: ends, not starts, are rounded.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil, floor, log2
from typing import Final

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.simulator_input import BACKFILL, FIRST_FIT, IN_ORDER, SimulatorInput

MOST_SHAPES: Final = 512
"""With more shapes than this, believed durations are rounded up by an eighth at most, so that shapes coincide."""


@dataclass(slots=True, eq=False)
class _Shape:
    """The waiting jobs of one queue that differ only in rank and expected duration.

    `ranks`: their places in the queue, ascending.
    """

    columns: int
    nodes: int
    believed: float
    caps: tuple[tuple[int, int], ...]
    window: int
    number: int
    """A number that no other shape has."""
    ranks: deque[int] = field(default_factory=deque)

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.columns, self.nodes, self.believed, self.caps, self.window)


@dataclass(slots=True)
class _Releases:
    """The believed times at which nodes of one set come free, and how many at each."""

    times: list[float] = field(default_factory=list)
    nodes: dict[float, int] = field(default_factory=dict)

    def add_release(self, time: float, count: int) -> None:
        if time in self.nodes:
            self.nodes[time] += count
        else:
            self.nodes[time] = count
            insort(self.times, time)

    def drop_release(self, time: float, count: int) -> None:
        left = self.nodes[time] - count
        if left:
            self.nodes[time] = left
        else:
            del self.nodes[time]
            del self.times[bisect_left(self.times, time)]


@dataclass(slots=True)
class _Reservation:
    """The reservation of a queue's head: its nodes are free from `shadow` on, and `extra` nodes of its set are left over then."""

    columns: int
    shadow: float
    extra: int


class BackfillSimulator:
    """Plays all queues forward over counts of nodes; made for one run.

    `slot`: ends are rounded up to multiples of so many seconds; 0: exact.
    """

    def __init__(self, stage: SimulatorInput, slot: float = 0.0) -> None:
        self._stage = stage
        self._slot = slot
        self._free = list(stage.free)
        self._sets = stage.sets
        self._touching = _touching(stage)
        self._members = [frozenset(columns) for columns in stage.sets]
        self._near = [frozenset(near for column in columns for near in self._touching[column]) for columns in stage.sets]
        """By set: the sets that share a column with it."""
        self._in_set = [sum(self._free[column] for column in columns) for columns in stage.sets]
        self._room = list(stage.room)
        self._releases = [_Releases() for _ in stage.sets]
        self._ends: list[tuple[float, int]] = []
        self._running: list[tuple[tuple[tuple[int, int], ...], float, tuple[tuple[int, int], ...]]] = []
        for held in stage.held:
            self._occupy(held.columns, held.expected, held.believed, held.caps)
        shapes = {(job.columns, job.nodes, job.believed, job.caps, job.window) for jobs in stage.queues for job in jobs}
        self._coarse = len(shapes) > MOST_SHAPES
        self._shapes: list[dict[tuple[object, ...], _Shape]] = [{} for _ in stage.queues]
        self._of_set: list[list[list[tuple[int, int, _Shape]]]] = [[[] for _ in stage.sets] for _ in stage.queues]
        """By queue and set: its waiting shapes ordered by size, as (nodes, number of the shape, shape)."""
        self._entered = 0
        self._order: list[list[tuple[int, _Shape]]] = [[] for _ in stage.queues]
        """By queue: a heap of waiting ranks with their shapes; ranks that have started are dropped when they reach the front."""
        self.start: list[list[float]] = [[NEVER] * len(jobs) for jobs in stage.queues]
        self._later: list[tuple[float, int, int]] = [(column_window.end, -1, 0) for column_window in stage.column_windows]
        heapify(self._later)
        capacity = self._capacity()
        for queue, jobs in enumerate(stage.queues):
            for rank, job in enumerate(jobs):
                if job.nodes > capacity[job.columns]:
                    continue  # it needs nodes that no end gives back: it starts never, and delays nobody
                if job.after > 0:
                    heappush(self._later, (job.after, queue, rank))
                else:
                    self._enter(queue, rank)

    def run(self, until: tuple[int, int] | None = None) -> list[list[float]]:
        """Plays until no job can start any more, or until the job `until` (queue, rank) has started.

        Returns the start of each job by queue and rank, seconds from now; NEVER where none comes.
        """
        now = 0.0
        while True:
            self._pass(now)
            if until is not None and self.start[until[0]][until[1]] < NEVER:
                break
            if not any(self._shapes) and not self._later:
                break
            times = [heap[0][0] for heap in (self._ends, self._later) if heap]
            if not times:
                break
            now = max(now, min(times))
            self._advance(now)
        return self.start

    def _capacity(self) -> list[int]:
        """Returns for each set the nodes that are free after all work with a known end has ended."""
        capacity = list(self._in_set)
        for columns, _believed, _caps in self._running:
            for column, count in columns:
                for touched in self._touching[column]:
                    capacity[touched] += count
        return capacity

    # Events

    def _advance(self, now: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now:
            columns, believed, caps = self._running[heappop(ends)[1]]
            for column, count in columns:
                self._free[column] += count
                for touched in self._touching[column]:
                    self._in_set[touched] += count
                    self._releases[touched].drop_release(believed, count)
            for cap, amount in caps:
                self._room[cap] += amount
        while self._later and self._later[0][0] <= now:
            _after, queue, rank = heappop(self._later)
            if queue >= 0:
                self._enter(queue, rank)

    def _enter(self, queue: int, rank: int) -> None:
        job = self._stage.queues[queue][rank]
        believed = _rounded(job.believed) if self._coarse else job.believed
        key = (job.columns, job.nodes, believed, job.caps, job.window)
        shape = self._shapes[queue].get(key)
        if shape is None:
            self._entered += 1
            shape = self._shapes[queue][key] = _Shape(job.columns, job.nodes, believed, job.caps, job.window, self._entered)
            insort(self._of_set[queue][job.columns], (job.nodes, self._entered, shape))
        heappush(self._order[queue], (rank, shape))
        if shape.ranks and rank < shape.ranks[-1]:
            ranks = list(shape.ranks)
            insort(ranks, rank)
            shape.ranks = deque(ranks)
        else:
            shape.ranks.append(rank)

    def _occupy(self, columns: tuple[tuple[int, int], ...], end: float, believed: float, caps: tuple[tuple[int, int], ...]) -> None:
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

    # One pass

    def _pass(self, now: float) -> None:
        """Starts what may start at `now`, queue by queue; a queue leaves the reservations of the queues before it alone."""
        kept: list[_Reservation] = []
        modes = self._stage.modes
        for queue, shapes in enumerate(self._shapes):
            if not shapes:
                continue
            mode = modes[queue] if modes else BACKFILL
            head = None if mode == FIRST_FIT else self._start_in_order(queue, now, kept, strict=mode == IN_ORDER)
            some_fit = any(by_size and by_size[0][0] <= free for by_size, free in zip(self._of_set[queue], self._in_set, strict=True))
            if head is not None and (some_fit or len(self._shapes) > 1):
                kept.append(self._reserve(head, now))
            if some_fit and mode != IN_ORDER:
                self._backfill(queue, now, kept)

    def _start_in_order(self, queue: int, now: float, kept: Sequence[_Reservation], *, strict: bool) -> _Shape | None:
        """Starts jobs in order of rank until one does not fit; returns its shape, None where none is left.

        Jobs beyond a cap are passed over.

        `strict`: continues behind it with jobs of other sets of nodes.
        """
        if not self._room and not strict:
            return self._start_heads(queue, now, kept)
        head: _Shape | None = None
        shapes = self._shapes[queue].values()
        asked = [shape for shape in shapes if self._has_room(shape)] if self._room else list(shapes)
        while asked:
            first = min(asked, key=_first_rank) if len(asked) > 1 else asked[0]
            if not self._fits(first, now) or not self._spares(first, now, kept):
                head = head or first
                if not strict:
                    break
                asked = [shape for shape in asked if shape.columns != first.columns]
                continue
            self._begin(queue, first, now, kept)
            if self._room:
                asked = [shape for shape in asked if shape.ranks and self._has_room(shape)]
            elif not first.ranks:
                asked.remove(first)
        return head

    def _start_heads(self, queue: int, now: float, kept: Sequence[_Reservation]) -> _Shape | None:
        """Starts jobs in order of rank until one does not fit; returns its shape, None where none is left. Only without caps."""
        order, started = self._order[queue], self.start[queue]
        while order:
            rank, shape = order[0]
            if started[rank] == NEVER:
                if not self._fits(shape, now) or not self._spares(shape, now, kept):
                    return shape
                self._begin(queue, shape, now, kept)
            heappop(order)
        return None

    def _backfill(self, queue: int, now: float, kept: list[_Reservation]) -> None:
        """Starts, in order of rank, the jobs that fit and delay no reservation (`kept`); a shape is tried once in a pass."""
        in_set = self._in_set
        own = kept[-1] if kept else _Reservation(-1, NEVER, 0)
        waiting: list[tuple[int, _Shape]] = []
        for columns, (by_size, free) in enumerate(zip(self._of_set[queue], in_set, strict=True)):
            some = by_size[: bisect_left(by_size, (free + 1,))]
            if columns == own.columns:
                some = [entry for entry in some if entry[0] <= own.extra or now + entry[2].believed <= own.shadow]
            waiting += [(shape.ranks[0], shape) for _, _, shape in some]
        waiting.sort()
        at = 0
        while at < len(waiting):
            shape = waiting[at][1]
            at += 1
            if (
                shape.nodes > in_set[shape.columns]
                or (shape.caps and not self._has_room(shape))
                or not self._spares(shape, now, kept)
                or not self._fits(shape, now)
            ):
                continue
            self._begin(queue, shape, now, kept)
            if shape.ranks:
                insort(waiting, (shape.ranks[0], shape), at)

    def _closed(self, shape: _Shape, now: float) -> frozenset[int]:
        """Returns the columns that windows close to a shape if it starts now."""
        found: frozenset[int] = frozenset()
        for number, column_window in enumerate(self._stage.column_windows):
            end = now + shape.believed
            if end > column_window.end if number == shape.window else now < column_window.end and end > column_window.start:
                found |= column_window.columns
        return found

    def _fits(self, shape: _Shape, now: float) -> bool:
        free = self._in_set[shape.columns]
        if free < shape.nodes or not self._stage.column_windows:
            return free >= shape.nodes
        closed = self._closed(shape, now)
        return free - sum(self._free[column] for column in self._sets[shape.columns] if column in closed) >= shape.nodes

    def _spares(self, shape: _Shape, now: float, kept: Sequence[_Reservation]) -> bool:
        """Tells whether a start of this shape now delays none of the reservations `kept`."""
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

    def _reserve(self, shape: _Shape, now: float) -> _Reservation:
        """Returns the reservation of a head: the first time at which, by belief, its nodes are free and no window closes them."""
        free, releases, shadow = self._in_set[shape.columns], self._releases[shape.columns], now
        for time in releases.times:
            if free >= shape.nodes:
                break
            free += releases.nodes[time]
            shadow = max(now, time)
        if free < shape.nodes:
            return _Reservation(shape.columns, NEVER, 0)  # what it needs is never released: it protects nothing
        for number, column_window in enumerate(self._stage.column_windows):
            if number != shape.window and shadow < column_window.end and shadow + shape.believed > column_window.start:
                shadow = column_window.end
        return _Reservation(shape.columns, shadow, free - shape.nodes)

    def _begin(self, queue: int, shape: _Shape, now: float, kept: Sequence[_Reservation]) -> None:
        """Starts the job of lowest rank of a shape, and reduces the extra nodes of reservations that it uses."""
        rank = shape.ranks.popleft()
        if not shape.ranks:
            del self._shapes[queue][shape.identity]
            by_size = self._of_set[queue][shape.columns]
            del by_size[bisect_left(by_size, (shape.nodes, shape.number))]
        job = self._stage.queues[queue][rank]
        self.start[queue][rank] = now
        columns = self._choose(shape, now)
        for column, count in columns:
            self._free[column] -= count
            for touched in self._touching[column]:
                self._in_set[touched] -= count
        for cap, amount in shape.caps:
            self._room[cap] -= amount
        self._occupy(columns, now + job.expected, now + shape.believed, shape.caps)
        for reservation in kept:
            if now + shape.believed > reservation.shadow:
                reservation.extra -= self._within(columns, reservation.columns)

    def _choose(self, shape: _Shape, now: float) -> tuple[tuple[int, int], ...]:
        """Returns (column, nodes) to start a shape on, in the order of use of its set."""
        left, chosen, free = shape.nodes, [], self._free
        closed = self._closed(shape, now) if self._stage.column_windows else ()
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

    def _within(self, columns: tuple[tuple[int, int], ...], number: int) -> int:
        members, within = self._members[number], 0
        for column, count in columns:
            if column in members:
                within += count
        return within

    def _has_room(self, shape: _Shape) -> bool:
        return all(self._room[cap] >= amount for cap, amount in shape.caps)


def _touching(stage: SimulatorInput) -> list[tuple[int, ...]]:
    """Returns for each column the numbers of the sets that contain it."""
    return [tuple(number for number, columns in enumerate(stage.sets) if column in columns) for column in range(len(stage.free))]


def _first_rank(shape: _Shape) -> int:
    return shape.ranks[0]


def _rounded(seconds: float) -> float:
    """Rounds a duration in seconds up to a multiple of 1/8 of the largest power of two below it, so by an eighth at most."""
    if seconds <= 0 or seconds == NEVER:
        return seconds
    step = 2.0 ** floor(log2(seconds)) / 8
    return ceil(seconds / step) * step
