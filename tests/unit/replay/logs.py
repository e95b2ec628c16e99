"""Random small logs, and the simulation that is obviously right: everything is sought anew at every second."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from random import Random

from lattice.replay.engine import Estimates, Policy
from lattice.replay.workload import Workload

EVERY = [(Policy.FCFS, Estimates.USER), *((policy, each) for policy in (Policy.EASY, Policy.EASY_SJBF) for each in Estimates)]


@dataclass(eq=False)
class Job:
    """One job of a log."""

    submit: int
    run: int
    estimate: int
    nodes: int


def workload(jobs: list[Job]) -> Workload:
    """The columns of these jobs."""
    return Workload(
        job=array("q", range(1, len(jobs) + 1)),
        submit=array("q", (job.submit for job in jobs)),
        run=array("q", (job.run for job in jobs)),
        estimate=array("q", (job.estimate for job in jobs)),
        procs=array("q", (job.nodes for job in jobs)),
        nodes=array("q", (job.nodes for job in jobs)),
    )


def random_log(seed: int, most: int = 20) -> tuple[list[Job], int]:
    """A log and the nodes of its machine: crowded seconds, equal estimates, ends on time and early."""
    random = Random(seed)
    nodes = random.choice((1, 2, 3, 5, 8, 13))
    longest = random.choice((2, 6, 30))
    pause = random.choice((0, 1, 4))
    jobs: list[Job] = []
    now = random.randrange(3)
    for _ in range(random.randint(1, most)):
        now += random.choice((0, 0, random.randint(0, pause), random.randint(0, longest)))
        run = random.randint(1, longest)
        estimate = run + random.choice((0, 0, random.randint(0, longest), 3 * longest))
        jobs.append(Job(now, run, estimate, random.choice((1, random.randint(1, nodes), random.randint(1, nodes)))))
    return jobs, nodes


class Naive:
    """A machine without memory: who runs follows from the starts, the reservation from who runs."""

    def __init__(self, jobs: list[Job], nodes: int, policy: Policy, estimates: Estimates) -> None:
        self.jobs = jobs
        self.nodes = nodes
        self.policy = policy
        self.exact = estimates is Estimates.EXACT
        self.start: dict[Job, int] = {}

    def believed(self, job: Job) -> int:
        return job.run if self.exact else job.estimate

    def simulate(self) -> list[int]:
        now, waiting, coming = -1, list[Job](), list(self.jobs)
        while coming or waiting:
            ends = [began + job.run for job, began in self.start.items()]
            now = min(second for second in [*ends, *(job.submit for job in coming)] if second > now)
            while coming and coming[0].submit == now:
                waiting.append(coming.pop(0))
            waiting = self.one_pass(waiting, now)
        return [self.start[job] for job in self.jobs]

    def free(self, now: int) -> int:
        return self.nodes - sum(job.nodes for job, began in self.start.items() if began + job.run > now)

    def one_pass(self, waiting: list[Job], now: int) -> list[Job]:
        """Start what may start now; those that still wait, in order of submission."""
        while waiting and waiting[0].nodes <= self.free(now):
            self.start[waiting[0]] = now
            waiting = waiting[1:]
        if not waiting or self.policy is Policy.FCFS:
            return waiting
        head, *later = waiting
        reserved = self.first_fit(head, now)
        if self.policy is Policy.EASY_SJBF:
            later = sorted(later, key=self.believed)  # a stable sort
        for job in later:
            if self.fits_beside(job, now, head, reserved):
                self.start[job] = now
        return [job for job in waiting if job not in self.start]

    def believed_free(self, second: int, now: int) -> int:
        """The nodes that are free at a later second, if all that run now run to their estimates."""
        running = [(job, began) for job, began in self.start.items() if began + job.run > now]
        return self.nodes - sum(job.nodes for job, began in running if began + self.believed(job) > second)

    def seconds(self, now: int) -> list[int]:
        """Now, and every later second at which something is believed to end."""
        return sorted({now, *(began + self.believed(job) for job, began in self.start.items() if began + job.run > now)})

    def first_fit(self, job: Job, now: int) -> int:
        return next(second for second in self.seconds(now) if self.believed_free(second, now) >= job.nodes)

    def fits_beside(self, job: Job, now: int, head: Job, reserved: int) -> bool:
        """Whether the job fits from now to its believed end, and takes no node that the head has reserved."""
        for second in {*self.seconds(now), reserved}:
            if now <= second < now + self.believed(job):
                held = head.nodes if reserved <= second < reserved + self.believed(head) else 0
                if self.believed_free(second, now) - held < job.nodes:
                    return False
        return True
