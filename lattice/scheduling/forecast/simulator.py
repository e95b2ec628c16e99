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
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.simulated_cluster import ShadowReservation, SimulatedCluster
from lattice.scheduling.forecast.simulated_queue import JobShape, SimulatedQueue
from lattice.scheduling.forecast.simulator_input import BACKFILL, FIRST_FIT, IN_ORDER, SimulatorInput

MOST_SHAPES: Final = 512
"""With more shapes than this, believed durations are rounded up by an eighth at most, so that shapes coincide."""


class BackfillSimulator:
    """Plays all queues forward over counts of nodes; made for one run.

    `slot`: ends are rounded up to multiples of so many seconds; 0: exact.
    """

    def __init__(self, stage: SimulatorInput, slot: float = 0.0) -> None:
        self._cluster = SimulatedCluster(stage, slot)
        shapes = {(job.columns, job.nodes, job.believed, job.caps, job.window) for jobs in stage.queues for job in jobs}
        coarse, modes = len(shapes) > MOST_SHAPES, stage.modes or (BACKFILL,) * len(stage.queues)
        self._queues = [SimulatedQueue(jobs, len(stage.sets), mode, coarse=coarse) for jobs, mode in zip(stage.queues, modes, strict=True)]
        self._later: list[tuple[float, int, int]] = [(column_window.end, -1, 0) for column_window in stage.column_windows]
        """A heap of (time, queue, rank) of jobs that may not start before a time, and of (end, −1, 0) of windows."""
        heapify(self._later)
        capacity = self._cluster.capacity_at_last()
        for number, queue in enumerate(self._queues):
            for rank, job in enumerate(queue.jobs):
                if job.nodes > capacity[job.columns]:
                    continue  # it needs nodes that no end gives back: it starts never, and delays nobody
                if job.after > 0:
                    heappush(self._later, (job.after, number, rank))
                else:
                    queue.enter(rank)

    def run(self, until: tuple[int, int] | None = None) -> list[list[float]]:
        """Plays until no job can start any more, or until the job `until` (queue, rank) has started; may be called once.

        Returns the start of each job by queue and rank, seconds from now; NEVER where none comes, or none came before the play ended.
        """
        now = 0.0
        while True:
            self._pass(now)
            if until is not None and self._queues[until[0]].starts[until[1]] < NEVER:
                break
            if not self._later and not any(queue.shapes for queue in self._queues):
                break
            time = min(self._cluster.next_end, self._later[0][0] if self._later else NEVER)
            if time == NEVER:
                break
            now = max(now, time)
            self._advance(now)
        return [queue.starts for queue in self._queues]

    def _advance(self, now: float) -> None:
        """Ends the work that ends by `now`, and enters the jobs that may start from then on."""
        self._cluster.end_work(now)
        while self._later and self._later[0][0] <= now:
            _after, number, rank = heappop(self._later)
            if number >= 0:
                self._queues[number].enter(rank)

    def _pass(self, now: float) -> None:
        """Starts what may start at `now`, queue by queue, and reserves nodes for the first job of each that does not fit, where the queue's
        mode has reservations.

        A queue delays no reservation of the queues before it.
        """
        kept: list[ShadowReservation] = []
        in_set = self._cluster.in_set
        for queue in self._queues:
            if not queue.shapes:
                continue
            head = None if queue.mode == FIRST_FIT else self._start_in_order(queue, now, kept, strict=queue.mode == IN_ORDER)
            some_fit = any(by_size and by_size[0][0] <= free for by_size, free in zip(queue.by_set, in_set, strict=True))
            if head is not None and (some_fit or len(self._queues) > 1):
                kept.append(self._cluster.reserve(head, now))
            if some_fit and queue.mode != IN_ORDER:
                self._backfill(queue, now, kept)

    def _start_in_order(self, queue: SimulatedQueue, now: float, kept: Sequence[ShadowReservation], *, strict: bool) -> JobShape | None:
        """Starts jobs in order of rank until one does not fit; returns its shape, None where none is left.

        Jobs beyond a cap are passed over, and so are those whose own window ends before they could start: they hold no reservation.

        `strict`: continues behind it with jobs of other sets of nodes.
        """
        cluster = self._cluster
        if not cluster.capped and not strict and not queue.names_windows:
            return self._start_heads(queue, now, kept)
        head: JobShape | None = None
        asked = [shape for shape in queue.shapes.values() if cluster.within_caps(shape)]
        while asked:
            first = min(asked, key=_first_rank) if len(asked) > 1 else asked[0]
            if not cluster.fits(first, now) or not cluster.spares(first, now, kept):
                if not strict and first.window >= 0 and cluster.reserve(first, now).shadow == NEVER:
                    asked.remove(first)
                    continue
                head = head or first
                if not strict:
                    break
                asked = [shape for shape in asked if shape.columns != first.columns]
                continue
            self._begin(queue, first, now, kept)
            if cluster.capped:
                asked = [shape for shape in asked if shape.ranks and cluster.within_caps(shape)]
            elif not first.ranks:
                asked.remove(first)
        return head

    def _start_heads(self, queue: SimulatedQueue, now: float, kept: Sequence[ShadowReservation]) -> JobShape | None:
        """Starts jobs in order of rank until one does not fit; returns its shape, None where none is left. Only without caps and
        jobs that name a window.
        """
        order, started, cluster = queue.order, queue.starts, self._cluster
        while order:
            rank, shape = order[0]
            if started[rank] == NEVER:
                if not cluster.fits(shape, now) or not cluster.spares(shape, now, kept):
                    return shape
                self._begin(queue, shape, now, kept)
            heappop(order)
        return None

    def _backfill(self, queue: SimulatedQueue, now: float, kept: list[ShadowReservation]) -> None:
        """Starts, in order of rank, the jobs that fit and delay no reservation (`kept`); a shape of which one did not is not tried again in
        the pass.
        """
        cluster = self._cluster
        in_set = cluster.in_set
        own = kept[-1] if kept else ShadowReservation(-1, NEVER, 0)
        waiting: list[tuple[int, JobShape]] = []
        for columns, (by_size, free) in enumerate(zip(queue.by_set, in_set, strict=True)):
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
                or (shape.caps and not cluster.within_caps(shape))
                or not cluster.spares(shape, now, kept)
                or not cluster.fits(shape, now)
            ):
                continue
            self._begin(queue, shape, now, kept)
            if shape.ranks:
                insort(waiting, (shape.ranks[0], shape), at)

    def _begin(self, queue: SimulatedQueue, shape: JobShape, now: float, kept: Sequence[ShadowReservation]) -> None:
        """Starts the job of lowest rank of a shape, and reduces the extra nodes of reservations that it uses."""
        job = queue.start_first(shape, now)
        self._cluster.start_job(shape, job.expected, now, kept)


def _first_rank(shape: JobShape) -> int:
    """Returns the rank of the first waiting job of a shape."""
    return shape.ranks[0]
