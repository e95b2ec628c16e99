"""One queue of a simulation: its waiting jobs by shape, in order of rank, and by set and size.

Jobs of one shape (set, nodes, belief, caps, window) are interchangeable, and only the first of each shape is asked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappush
from math import ceil, floor, log2

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.simulator_input import BACKFILL, Job


@dataclass(slots=True, eq=False)
class JobShape:
    """The waiting jobs of one queue that differ only in rank and expected duration.

    `columns`: the number of their set. `believed`: seconds. `ranks`: their places in the queue, ascending.
    """

    columns: int
    nodes: int
    believed: float
    caps: tuple[tuple[int, int], ...]
    window: int
    number: int
    """A number that no other shape of the queue has."""
    ranks: deque[int] = field(default_factory=deque)

    @property
    def identity(self) -> tuple[object, ...]:
        """Returns the properties that all jobs of the shape share."""
        return (self.columns, self.nodes, self.believed, self.caps, self.window)


class SimulatedQueue:
    """The jobs of one queue in a simulation: those that wait, by shape, and the start of each one.

    `shapes`: by identity. `by_set`: for each set the waiting shapes ordered by size, as (nodes, number of the shape, shape). `order`:
    a heap of (rank, shape); ranks that have started are dropped when they reach the front. `starts`: by rank, seconds from the
    beginning of the simulation, NEVER where it has not started. `coarse`: believed durations are rounded up by an eighth at most.
    """

    __slots__ = ("_coarse", "_entered", "by_set", "jobs", "mode", "names_windows", "order", "shapes", "starts")

    def __init__(self, jobs: Sequence[Job], sets: int, mode: str = BACKFILL, *, coarse: bool) -> None:
        self._coarse = coarse
        self._entered = 0
        self.jobs = jobs
        self.mode = mode
        self.names_windows = any(job.window >= 0 for job in jobs)
        """Whether any of its jobs must run in a reservation window."""
        self.shapes: dict[tuple[object, ...], JobShape] = {}
        self.by_set: list[list[tuple[int, int, JobShape]]] = [[] for _ in range(sets)]
        self.order: list[tuple[int, JobShape]] = []
        self.starts: list[float] = [NEVER] * len(jobs)

    def enter(self, rank: int) -> None:
        """Adds the job of this rank to those that wait."""
        job = self.jobs[rank]
        believed = _rounded(job.believed) if self._coarse else job.believed
        identity = (job.columns, job.nodes, believed, job.caps, job.window)
        shape = self.shapes.get(identity)
        if shape is None:
            self._entered += 1
            shape = self.shapes[identity] = JobShape(job.columns, job.nodes, believed, job.caps, job.window, self._entered)
            insort(self.by_set[job.columns], (job.nodes, self._entered, shape))
        heappush(self.order, (rank, shape))
        if shape.ranks and rank < shape.ranks[-1]:
            ranks = list(shape.ranks)
            insort(ranks, rank)
            shape.ranks = deque(ranks)
        else:
            shape.ranks.append(rank)

    def start_first(self, shape: JobShape, now: float) -> Job:
        """Records that the job of lowest rank of a shape starts at `now`, takes it from those that wait, and returns it."""
        rank = shape.ranks.popleft()
        if not shape.ranks:
            del self.shapes[shape.identity]
            by_size = self.by_set[shape.columns]
            del by_size[bisect_left(by_size, (shape.nodes, shape.number))]
        self.starts[rank] = now
        return self.jobs[rank]


def _rounded(seconds: float) -> float:
    """Rounds a duration in seconds up to a multiple of 1/8 of the largest power of two below it, so by an eighth at most."""
    if seconds <= 0 or seconds == NEVER:
        return seconds
    step = 2.0 ** floor(log2(seconds)) / 8
    return ceil(seconds / step) * step
