"""Scenes of fairness: made workloads on machines of equal nodes, each with a question that its replay answers.

All are made from seeds (`lattice.replay.synthetic.Dice`), so that a scene is the same everywhere. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, exp
from typing import Final

from lattice.replay.jobs import Log, TenantTerms, TraceJob
from lattice.replay.synthetic import Dice

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
NODES: Final = 128
SHARES: Final[Mapping[str, float]] = {"a": 0.6, "b": 0.3, "c": 0.1}
DEMANDS: Final = ((0.5, 0.5, 0.5), (0.1, 0.7, 0.7))
WIDE: Final = "wide"


@dataclass(frozen=True)
class Stream:
    """Work of one user that keeps coming: `load` of the machine, `sizes` and `runs` to choose from, walltimes `slack` times the run."""

    load: float
    tenant: str
    user: str
    sizes: tuple[int, ...] = (1,)
    runs: tuple[float, ...] = (HOUR,)
    slack: tuple[float, ...] = (1.2,)
    most: int = 0
    """Most nodes of each job; 0: as many as the least."""

    def jobs(self, nodes: int, begin: float, end: float, dice: Dice) -> Iterable[TraceJob]:
        """Yields jobs at random times between `begin` and `end`, ascending, that amount to this load of so many nodes on average; they have
        no id.
        """
        mean = sum(self.sizes) / len(self.sizes) * sum(self.runs) / len(self.runs)
        at = begin
        while (at := at + dice.gap(mean / (self.load * nodes))) < end:
            run, size = float(round(dice.one(self.runs) * dice.between(0.5, 1.5))), dice.one(self.sizes)
            walltime = ceil(run * dice.one(self.slack) / 60) * 60.0
            yield TraceJob(
                id="", submit=float(round(at)), nodes=size, most=max(size, self.most), run=run, walltime=walltime, tenant=self.tenant,
                user=self.user, grace=0.0,
            )  # fmt: skip


def log_of(jobs: Iterable[TraceJob], shares: Mapping[str, float] | None = None) -> Log:
    """Returns a log of these jobs, in order of submission; those without an id are numbered.

    `shares` become the tenants' terms, None: no tenant has any.
    """
    ordered = sorted(jobs, key=lambda job: job.submit)
    named = [job if job.id else replace(job, id=f"j{number}") for number, job in enumerate(ordered)]
    return Log("made", named, total=len(named), tenants={name: TenantTerms(share=share) for name, share in (shares or {}).items()})


def wide(days: float, nodes: int = NODES, part: int = 1, level: int = 5) -> Log:
    """Returns one-node jobs of an hour, more than the machine can run, and after a day one job on 1/`part` of all nodes.

    All are of one tenant; `level`: the preemption class of the large job.
    """
    narrow = Stream(1.05, "t", "narrow").jobs(nodes, 0.0, days * DAY, Dice(11))
    asked = nodes // part
    return log_of(
        [*narrow, TraceJob(WIDE, DAY, asked, HOUR, 2 * HOUR, most=asked, tenant="t", user=WIDE, grace=0.0, preemption_class=level)]
    )


def shares(days: float, demand: tuple[float, ...], nodes: int = NODES, users: int = 4, seed: int = 23) -> Log:
    """Returns three tenants with shares .6, .3 and .1 that ask for these parts of the machine, each by several users."""
    dice = Dice(seed)
    sizes, runs = (1, 2, 4, 8, 16), (HOUR, 2 * HOUR, 4 * HOUR)
    jobs = [
        job
        for (tenant, _), load in zip(SHARES.items(), demand, strict=True)
        for user in range(users)
        for job in Stream(load / users, tenant, f"{tenant}{user}", sizes, runs).jobs(nodes, 0.0, days * DAY, dice)
    ]
    return log_of(jobs, SHARES)


def spam(jobs: int, nodes: int = NODES) -> Log:
    """Returns so many one-node jobs of one user at once, and after an hour 20 of a colleague."""
    dice = Dice(5)

    def one(at: float, user: str) -> TraceJob:
        """Returns a job of one node and at most an hour, submitted at this second."""
        run = float(round(HOUR * dice.between(0.5, 1.0)))
        return TraceJob("", at, 1, run, HOUR, most=1, tenant="t", user=user, grace=0.0)

    return log_of([*(one(0.0, "crowd") for _ in range(jobs)), *(one(HOUR, "colleague") for _ in range(20))])


def two_users(days: float, nodes: int = NODES) -> Log:
    """Returns two users of one tenant who each ask for 80 % of the machine, one in small jobs and one in large ones."""
    dice = Dice(31)
    small = Stream(0.8, "t", "small", (1, 2), (HOUR, 2 * HOUR)).jobs(nodes, 0.0, days * DAY, dice)
    large = Stream(0.8, "t", "large", (16, 32), (2 * HOUR, 4 * HOUR)).jobs(nodes, 0.0, days * DAY, dice)
    return log_of([*small, *large])


def ranges(days: float, least: int, most: int, nodes: int = NODES, seed: int = 47) -> Log:
    """Returns tenant `a`, which asks for 85 % of the machine, and `b`, whose jobs ask for `least` to `most` nodes; the times of `b` do not
    depend on these.
    """
    dice = Dice(seed)
    fixed = Stream(0.85, "a", "a0", (4, 8, 16, 32), (HOUR, 2 * HOUR)).jobs(nodes, 0.0, days * DAY, dice)
    count = Stream(0.3, "b", "b0", (16,), (2 * HOUR,)).jobs(nodes, 0.0, days * DAY, Dice(seed + 6))
    asked = [replace(job, nodes=least, most=most) for job in count]
    return log_of([*fixed, *asked], {"a": 0.6, "b": 0.4})


def made(jobs: int, load: float, seed: int, nodes: int = NODES) -> Log:
    """Returns a log like a site's: 40 users in 6 tenants, sizes by powers of two, run times over four decades, walltimes overestimated."""
    dice, at = Dice(seed), 0.0
    found: list[TraceJob] = []
    habits = [
        (f"u{user}", f"t{user % 6}", dice.between(0.0, 5.5), dice.between(3.5, 9.5), dice.one((1.2, 2.0, 5.0, 20.0))) for user in range(40)
    ]
    for _ in range(jobs):
        user, tenant, size, length, slack = dice.one(habits)
        count = min(nodes, 1 << int(max(0.0, size + dice.between(-1.5, 1.5))))
        run = float(round(min(2 * DAY, max(10.0, exp(length + dice.between(-1.5, 1.5))))))
        walltime = min(3 * DAY, ceil(max(run, run * slack * dice.between(0.6, 1.2)) / 900) * 900.0)
        found.append(TraceJob("", float(round(at)), count, run, walltime, most=count, tenant=tenant, user=user, grace=0.0))
        at += dice.gap(count * run / (load * nodes))
    return log_of(found)


LOGS: Final[Mapping[str, Callable[[int], Log]]] = {
    "busy": lambda jobs: made(jobs, 0.75, 7),
    "full": lambda jobs: made(jobs, 0.92, 9),
}
"""The two made logs on which schedules are compared."""
