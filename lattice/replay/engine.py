"""The counts-only engine for plain logs: which job starts when, under FCFS, EASY and EASY with the shortest first.

A node is a node: only counts matter. At each second with an event all ends come first, then all submissions, then one
pass of the scheduler. FCFS starts jobs in order of submission until one does not fit. EASY does the same; the first
that does not fit is the head, and gets a reservation: its *shadow* is the first second at which enough nodes are free
if every running job ran to its estimate, the *extra* nodes are those then left over. A later job may start at once
if it fits and either ends, by its estimate, by the shadow or takes extra nodes only. EASY asks the later jobs in
order of submission, EASY-SJBF those with the shortest estimate first, equal ones in order of submission.

What makes it quick: between two starts of heads the reservation is kept, not sought again. An end by the estimate
changes nothing of it; an early end adds nodes or moves it nearer; a job that was submitted is asked against it alone,
for whoever waits already did not fit and time makes that no better; only an end makes those who wait be asked again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from heapq import heappop, heappush

from lattice.errors import Corrupt
from lattice.replay.waiting import WaitingJobs
from lattice.replay.workload import Workload

STEP = 8192
"""Submissions between two reports of progress."""
NONE = -1


class Policy(StrEnum):
    """The order in which waiting jobs start."""

    FCFS = "fcfs"
    EASY = "easy"
    EASY_SJBF = "easy-sjbf"


class Estimates(StrEnum):
    """What the scheduler believes of run times: what the user requested, or what they will be."""

    USER = "user"
    EXACT = "exact"


def simulate(
    workload: Workload, nodes: int, policy: Policy, estimates: Estimates, progress: Callable[[int], None] = lambda _submitted: None
) -> list[int]:
    """The second at which each job starts; `progress` is told now and then how many have been submitted."""
    if policy is Policy.FCFS:
        return first_come(workload, nodes, progress)
    backfill = Backfill(workload, nodes, policy, estimates)
    while backfill.submitted < len(workload):
        for _ in range(STEP):
            if not backfill.advance():
                break
        progress(backfill.submitted)
    while backfill.advance():
        pass  # what still waits
    return backfill.start


def first_come(workload: Workload, nodes: int, progress: Callable[[int], None]) -> list[int]:
    """FCFS: a job starts when all before it have started and it fits."""
    start: list[int] = []
    ends: list[tuple[int, int]] = []
    free, now = nodes, 0
    for job, (submit, run, need) in enumerate(zip(workload.submit, workload.run, workload.nodes, strict=True)):
        now = max(now, submit)
        while free < need or (ends and ends[0][0] <= now):
            end, released = heappop(ends)
            free += released
            now = max(now, end)
        start.append(now)
        free -= need
        heappush(ends, (now + run, need))
        if job % STEP == 0:
            progress(job)
    return start


class Backfill:
    """A machine under EASY, from one second with an event to the next."""

    __slots__ = (
        "_by_rank", "_count", "_ends", "_estimate", "_extra", "_free", "_head", "_need", "_order", "_promised", "_rank",
        "_run", "_shadow", "_submit", "_times", "_total", "_waiting", "start", "submitted",
    )  # fmt: skip

    def __init__(self, workload: Workload, nodes: int, policy: Policy, estimates: Estimates) -> None:
        self._submit: Sequence[int] = list(workload.submit)
        self._run: Sequence[int] = list(workload.run)
        self._estimate: Sequence[int] = self._run if estimates is Estimates.EXACT else list(workload.estimate)
        self._need: Sequence[int] = list(workload.nodes)
        self._count = len(workload)
        by_rank: Sequence[int] = range(self._count)
        if policy is Policy.EASY_SJBF:
            by_rank = sorted(by_rank, key=self._estimate.__getitem__)
        self._by_rank = by_rank
        self._rank: Sequence[int] = by_rank
        if policy is Policy.EASY_SJBF:
            self._rank = rank = [0] * self._count
            for place, job in enumerate(by_rank):
                rank[job] = place
        self._waiting = WaitingJobs([self._need[job] for job in by_rank], [self._estimate[job] for job in by_rank])
        self._order: deque[int] = deque()
        """Waiting jobs by submission; those that were backfilled are dropped when they come to its front."""
        self._total = self._free = nodes
        self._ends: list[int] = []
        """A heap of end · count + job."""
        self._times: list[int] = []
        """The seconds, in order, at which running jobs end by their estimates."""
        self._promised: dict[int, int] = {}
        """The nodes that each of these seconds gives back."""
        self._head = NONE
        self._shadow = self._extra = 0
        self.start: list[int] = [NONE] * self._count
        self.submitted = 0

    def advance(self) -> bool:
        """Go to the next second with an event and let the scheduler pass once; False when nothing will happen any more."""
        ends, at = self._ends, self.submitted
        next_submit = self._submit[at] if at < self._count else NONE
        if ends:
            now = ends[0] // self._count
            if next_submit == NONE or now <= next_submit:
                early = self._release(now)
                if now == next_submit:
                    for job in self._submissions(now):
                        self._wait(job)
                if self._head != NONE or self._order:
                    self._rescan(now, early)
                return True
        if next_submit == NONE:
            return False
        if at + 1 == self._count or self._submit[at + 1] != next_submit:
            self.submitted = at + 1
            self._arrive(at, next_submit)
        else:
            self._arrive_together(self._submissions(next_submit), next_submit)
        return True

    # Events

    def _release(self, now: int) -> bool:
        """End the jobs that end now; whether one of them ended before its estimate."""
        ends, count, early = self._ends, self._count, False
        bound = (now + 1) * count
        while ends and ends[0] < bound:
            job = heappop(ends) % count
            need = self._need[job]
            self._free += need
            promised = self.start[job] + self._estimate[job]
            left = self._promised[promised] - need
            if left:
                self._promised[promised] = left
            else:
                del self._promised[promised]
                times = self._times
                del times[bisect_left(times, promised)]
            if promised > now:
                early = True
                if promised > self._shadow:
                    self._extra += need
        return early

    def _submissions(self, now: int) -> Sequence[int]:
        """The jobs that are submitted now."""
        first = at = self.submitted
        submit, count = self._submit, self._count
        while at < count and submit[at] == now:
            at += 1
        self.submitted = at
        return range(first, at)

    def _arrive(self, job: int, now: int) -> None:
        """One job is submitted and none ends: only it can start."""
        need = self._need[job]
        if self._head == NONE:
            if need <= self._free:
                self._begin(job, now)
            else:
                self._wait(job)
                self._reserve(job)
        elif need <= self._free and (now + self._estimate[job] <= self._shadow or need <= self._extra):
            self._backfill(job, now)
        else:
            self._wait(job)

    def _arrive_together(self, jobs: Sequence[int], now: int) -> None:
        """Several jobs are submitted and none ends: the first in order of submission, then those behind a head in theirs."""
        if self._head == NONE:
            jobs = self._start_in_order(jobs, now)
        for job in sorted(jobs, key=self._rank.__getitem__):
            if self._need[job] <= self._free and (now + self._estimate[job] <= self._shadow or self._need[job] <= self._extra):
                self._backfill(job, now)
            else:
                self._waiting.add(self._rank[job])
        self._order.extend([job for job in jobs if self.start[job] == NONE])

    def _start_in_order(self, jobs: Sequence[int], now: int) -> Sequence[int]:
        """Nobody waits: start what fits; the first that does not becomes the head. Those behind it."""
        for at, job in enumerate(jobs):
            if self._need[job] > self._free:
                self._wait(job)
                self._reserve(job)
                return jobs[at + 1 :]
            self._begin(job, now)
        return ()

    def _wait(self, job: int) -> None:
        self._order.append(job)
        self._waiting.add(self._rank[job])

    # One pass

    def _rescan(self, now: int, early: bool) -> None:
        """Nodes have come free: start heads as long as they fit, then ask everybody behind the first that does not."""
        order, start = self._order, self.start
        while order:
            job = order[0]
            if start[job] == NONE:
                if self._need[job] > self._free:
                    break
                self._waiting.remove(self._rank[job])
                self._begin(job, now)
            order.popleft()
        if not order:
            self._head = NONE
            return
        if order[0] != self._head:
            self._reserve(order[0])
        elif early:
            self._reserve_nearer()
        for rank in self._waiting.take(self._free, self._shadow - now, self._extra):
            self._backfill(self._by_rank[rank], now)

    def _reserve(self, job: int) -> None:
        """The job is the head: the first second at which it fits if all run to their estimates, and what is left then."""
        self._head = job
        need, free, promised = self._need[job], self._free, self._promised
        for time in self._times:
            free += promised[time]
            if free >= need:
                self._shadow, self._extra = time, free - need
                return
        raise Corrupt(f"job {job} needs {need} nodes of a machine that has {self._total}")

    def _reserve_nearer(self) -> None:
        """Jobs ended early: the same reservation, sought backwards from where it was."""
        need, times, promised = self._need[self._head], self._times, self._promised
        at = bisect_left(times, self._shadow)
        before = need + self._extra - promised.get(self._shadow, 0)
        while before >= need:
            at -= 1  # it ends: before the first of these seconds only `free` nodes are, and the head does not fit into them
            self._shadow, self._extra = times[at], before - need
            before -= promised[times[at]]

    def _backfill(self, job: int, now: int) -> None:
        """Start a job ahead of the head."""
        if now + self._estimate[job] > self._shadow:
            self._extra -= self._need[job]
        self._begin(job, now)

    def _begin(self, job: int, now: int) -> None:
        need = self._need[job]
        self.start[job] = now
        self._free -= need
        heappush(self._ends, (now + self._run[job]) * self._count + job)
        promised, time = self._promised, now + self._estimate[job]
        if time in promised:
            promised[time] += need
        else:
            promised[time] = need
            insort(self._times, time)

    def validate(self) -> None:
        """Rebuild everything from the starts alone and compare; Corrupt when something differs."""
        running = [end % self._count for end in self._ends]
        promised: dict[int, int] = {}
        for job in running:
            time = self.start[job] + self._estimate[job]
            promised[time] = promised.get(time, 0) + self._need[job]
        free = self._total - sum(promised.values())
        waiting = [job for job in range(self.submitted) if self.start[job] == NONE]
        kept = (self._free, self._promised, self._times, [job for job in self._order if self.start[job] == NONE])
        if kept != (free, promised, sorted(promised), waiting) or free < 0:
            raise Corrupt(f"free, promised or waiting differ from the {len(running)} running jobs")
        if sorted(self._waiting) != sorted(self._rank[job] for job in waiting):
            raise Corrupt(f"the queue of a pass differs from the {len(waiting)} waiting jobs")
        self._waiting.validate()
        if self._head != (waiting[0] if waiting else NONE):
            raise Corrupt(f"the head is {self._head}, not the first of {len(waiting)} waiting jobs")
        reservation = (self._shadow, self._extra)
        if waiting:
            self._reserve(self._head)
            if reservation != (self._shadow, self._extra):
                raise Corrupt(f"the reservation {reservation} should be {(self._shadow, self._extra)}")
