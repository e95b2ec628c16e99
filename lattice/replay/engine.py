"""The counts-only engine for plain logs: which job starts when, under FCFS, EASY and EASY with the shortest first.

A node is a node: only counts matter. At each second with an event all ends come first, then all submissions, then one pass of the
scheduler. FCFS starts jobs in order of submission until one does not fit. EASY does the same; the first that does not fit is the
head, and gets a reservation: its *shadow* is the first second at which enough nodes are free if every running job ran to its
estimate, the *extra* nodes are those then left over. A later job may start at once if it fits and either ends, by its estimate, by
the shadow or takes extra nodes only. EASY asks the later jobs in order of submission, EASY-SJBF those with the shortest estimate
first, equal ones in order of submission.

Between two starts of heads the reservation is kept, not searched again, which makes it quick. An end by the estimate changes
nothing of it; an early end adds nodes, and moves it nearer only when the head fits into what is free before it; a job that was
submitted is compared with it alone, since all waiting jobs did not fit before and time makes that no better; only an end makes the
waiting jobs be asked again. Seconds stay numbers of their own: those below 2^30 are compared and added fastest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final

from lattice.errors import Corrupt
from lattice.replay.waiting import WaitingJobs
from lattice.replay.workload import Workload

STEP = 8192
"""How many submissions lie between two reports of progress."""
NONE: Final = -1
NEVER: Final = 1 << 62
"""A second after every other."""


class Policy(StrEnum):
    """The rule by which waiting jobs start: in order of submission (FCFS), or with backfill behind a blocked one (EASY, EASY-SJBF)."""

    FCFS = "fcfs"
    EASY = "easy"
    EASY_SJBF = "easy-sjbf"


class Estimates(StrEnum):
    """The run times that backfill believes: the requested ones (USER) or the real ones (EXACT)."""

    USER = "user"
    EXACT = "exact"


def simulate(
    workload: Workload, nodes: int, policy: Policy, estimates: Estimates, progress: Callable[[int], None] = lambda _submitted: None
) -> list[int]:
    """Returns the second at which each job starts on `nodes` nodes; no job may need more than these (EASY raises Corrupt for one). Jobs
    must be in order of submission; FCFS uses no estimates.

    `progress` is called now and then with the number of jobs submitted so far.
    """
    if policy is Policy.FCFS:
        return first_come(workload, nodes, progress)
    backfill = Backfill(workload, nodes, policy, estimates)
    while backfill.submitted < len(workload):
        backfill.advance(STEP)
        progress(backfill.submitted)
    while backfill.advance(STEP):
        pass  # what still waits
    return backfill.start


def first_come(workload: Workload, nodes: int, progress: Callable[[int], None]) -> list[int]:
    """Returns the second at which each job starts under FCFS: when all jobs before it have started and it fits into `nodes` nodes; a job
    that needs more than these raises IndexError.
    """
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
    """A machine and its queue under EASY or EASY-SJBF; `simulate` makes one and calls `advance` until nothing happens any more.

    `start`: the second at which each job started (NONE: not yet). `submitted`: how many jobs have been submitted.
    """

    __slots__ = (
        "_before", "_by_rank", "_ending", "_ends", "_estimate", "_extra", "_free", "_head", "_need", "_order", "_promised", "_rank",
        "_run", "_shadow", "_submit", "_times", "_total", "_waiting", "start", "submitted",
    )  # fmt: skip

    def __init__(self, workload: Workload, nodes: int, policy: Policy, estimates: Estimates) -> None:
        jobs = len(workload)
        self._submit: Sequence[int] = [*workload.submit, NEVER, NEVER]
        self._run: Sequence[int] = list(workload.run)
        self._estimate: Sequence[int] = self._run if estimates is Estimates.EXACT else list(workload.estimate)
        self._need: Sequence[int] = list(workload.nodes)
        by_rank: Sequence[int] = range(jobs)
        if policy is Policy.EASY_SJBF:
            by_rank = sorted(by_rank, key=self._estimate.__getitem__)
        self._by_rank = by_rank
        self._rank: Sequence[int] = by_rank
        if policy is Policy.EASY_SJBF:
            self._rank = rank = [0] * jobs
            for place, job in enumerate(by_rank):
                rank[job] = place
        self._waiting = WaitingJobs(*(list(map(column.__getitem__, by_rank)) for column in (self._need, self._estimate)))
        self._order: deque[int] = deque()
        """Waiting jobs in order of submission; backfilled ones are dropped when they reach its front."""
        self._total = self._free = nodes
        self._ends: list[int] = [NEVER]
        """The seconds at which running jobs end, ascending, with NEVER at the end."""
        self._ending: dict[int, list[int]] = {}
        """By second: the jobs that end in it."""
        self._times: list[int] = self._ends if estimates is Estimates.EXACT else [NEVER]
        """The seconds at which running jobs end by their estimates, ascending; the same list as `_ends` where estimates are exact."""
        self._promised: dict[int, int] = {}
        """By second of `_times`: the nodes that come free in it by the estimates."""
        self._head = NONE
        self._shadow = NEVER
        """The second at which the head's reservation begins; NEVER without a head."""
        self._extra = self._before = 0
        """`_extra`: nodes left over at the shadow. `_before`: nodes free just before the shadow, fewer than the head needs."""
        self.start: list[int] = [NONE] * jobs
        self.submitted = 0

    def advance(self, events: int = 1) -> bool:
        """Simulates the next `events` seconds that have an event, with one scheduling pass in each; returns False when none is left."""
        submit, estimate, need, ends = self._submit, self._estimate, self._need, self._ends
        waiting, rank, order = self._waiting, self._rank, self._order
        for _ in range(events):
            at = self.submitted
            now = submit[at]
            if ends[0] <= now:
                if ends[0] == NEVER:
                    return False
                now = self._release()
                while submit[at] == now:
                    order.append(at)
                    waiting.push(rank[at])
                    at += 1
                self.submitted = at
                if order:
                    self._rescan(now)
            elif submit[at + 1] == now:
                self._arrive_together(now)
            else:  # one job is submitted and none ends: only it can start
                self.submitted = at + 1
                nodes, believed = need[at], now + estimate[at]
                if nodes <= self._free and (believed <= self._shadow or nodes <= self._extra):
                    self._begin(at, now, nodes, believed)
                    continue
                order.append(at)
                waiting.push(rank[at])
                if self._head == NONE:
                    self._reserve(at)
        return True

    # Events

    def _release(self) -> int:
        """Ends the jobs that end in the next second in which any does, and frees their nodes; returns that second. Starts nothing."""
        ends, times, promised, need = self._ends, self._times, self._promised, self._need
        now = ends[0]
        del ends[0]
        if times is ends:
            self._free += promised.pop(now)
            del self._ending[now]
            return now
        for job in self._ending.pop(now):
            nodes = need[job]
            self._free += nodes
            believed = self.start[job] + self._estimate[job]
            left = promised[believed] - nodes
            if left:
                promised[believed] = left
            else:
                del promised[believed]
                del times[bisect_left(times, believed)]
            if believed >= self._shadow:
                self._before += nodes
                if believed > self._shadow:
                    self._extra += nodes
        return now

    def _arrive_together(self, now: int) -> None:
        """Submits several jobs of one second in which none ends: starts them in order of submission, behind a head in order of rank."""
        first = at = self.submitted
        submit, need, order = self._submit, self._need, self._order
        while submit[at] == now:
            at += 1
        self.submitted = at
        while self._head == NONE and first < at:
            if need[first] <= self._free:
                self._begin(first, now, need[first], now + self._estimate[first])
            else:
                order.append(first)
                self._waiting.push(self._rank[first])
                self._reserve(first)
            first += 1
        for job in sorted(range(first, at), key=self._rank.__getitem__):
            believed = now + self._estimate[job]
            if need[job] <= self._free and (believed <= self._shadow or need[job] <= self._extra):
                self._begin(job, now, need[job], believed)
            else:
                self._waiting.push(self._rank[job])
        order.extend([job for job in range(first, at) if self.start[job] == NONE])

    # One pass

    def _rescan(self, now: int) -> None:
        """Starts heads as long as they fit, then backfills behind the first that does not; called when nodes have come free."""
        order, start, need = self._order, self.start, self._need
        while order:
            job = order[0]
            if start[job] == NONE:
                if need[job] > self._free:
                    break
                self._waiting.remove(self._rank[job])
                self._begin(job, now, need[job], now + self._estimate[job])
            order.popleft()
        else:
            self._head, self._shadow = NONE, NEVER
            return
        if job != self._head:
            self._reserve(job)
        elif self._before >= need[job]:
            self._reserve_nearer()
        if self._free:
            for rank in self._waiting.pop_fitting(self._free, self._shadow - now, self._extra):
                job = self._by_rank[rank]
                self._begin(job, now, need[job], now + self._estimate[job])

    def _reserve(self, job: int) -> None:
        """Makes a job the head: its reservation begins at the first second at which it fits if all jobs run to their estimates.

        Raises Corrupt where it never fits.
        """
        need, free, promised = self._need[job], self._free, self._promised
        for time in self._times:
            if time == NEVER:
                break
            before = free
            free += promised[time]
            if free >= need:
                self._head, self._shadow, self._extra, self._before = job, time, free - need, before
                return
        raise Corrupt(f"job {job} needs {need} nodes of a machine that has {self._total}")

    def _reserve_nearer(self) -> None:
        """Moves the head's reservation nearer after jobs have ended early: searches backwards from its shadow."""
        need, times, promised, free = self._need[self._head], self._times, self._promised, self._before
        at = bisect_left(times, self._shadow)
        while free >= need:
            at -= 1  # it ends: before the first of these seconds only `_free` nodes are, and the head does not fit into them
            self._shadow, self._extra = times[at], free - need
            free -= promised[times[at]]
        self._before = free

    def _begin(self, job: int, now: int, nodes: int, believed: int) -> None:
        """Starts a job, the head or one that does not delay it; `believed`: the second at which it ends by its estimate."""
        ends, ending, promised, end = self._ends, self._ending, self._promised, now + self._run[job]
        self.start[job] = now
        self._free -= nodes
        if end in ending:
            ending[end].append(job)
        else:
            ending[end] = [job]
            insort(ends, end)
        if believed in promised:
            promised[believed] += nodes
        else:
            promised[believed] = nodes
            if self._times is not ends:
                insort(self._times, believed)
        if believed >= self._shadow:
            self._before -= nodes
            if believed > self._shadow:
                self._extra -= nodes

    def validate(self) -> None:
        """Rebuilds all kept values from the starts alone and compares; raises Corrupt on a difference."""
        running = [job for jobs in self._ending.values() for job in jobs]
        ends = sorted({self.start[job] + self._run[job] for job in running})
        promised: dict[int, int] = {}
        for job in running:
            time = self.start[job] + self._estimate[job]
            promised[time] = promised.get(time, 0) + self._need[job]
        free = self._total - sum(promised.values())
        waiting = [job for job in range(self.submitted) if self.start[job] == NONE]
        kept = (self._free, self._ends, self._promised, self._times, [job for job in self._order if self.start[job] == NONE])
        if kept != (free, [*ends, NEVER], promised, [*sorted(promised), NEVER], waiting) or free < 0:
            raise Corrupt(f"free, promised or waiting differ from the {len(running)} running jobs")
        if sorted(self._waiting) != sorted(self._rank[job] for job in waiting):
            raise Corrupt(f"the queue of a pass differs from the {len(waiting)} waiting jobs")
        self._waiting.validate()
        if self._head != (waiting[0] if waiting else NONE):
            raise Corrupt(f"the head is {self._head}, not the first of {len(waiting)} waiting jobs")
        reservation = (self._shadow, self._extra, self._before)
        if waiting:
            self._reserve(self._head)
            if reservation != (self._shadow, self._extra, self._before):
                raise Corrupt(f"the reservation {reservation} should be {(self._shadow, self._extra, self._before)}")
