"""The numbers of a replay of a plain log: waits, flow times, bounded slowdowns, utilisation; sums are exact in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Final

from lattice.replay.workload import Workload

SHORT_RUN_SECONDS: Final = 10
"""Shorter runs count as this long in a bounded slowdown."""


@dataclass(frozen=True)
class Report:
    """Times in seconds, over all jobs; utilisation is the share of the nodes held between first submission and last end."""

    jobs: int
    avg_wait: float
    avg_flow: float
    avg_bounded_slowdown: float
    max_bounded_slowdown: float
    rms_bounded_slowdown: float
    utilisation: float
    makespan: int
    wait_p50: int
    wait_p95: int
    wait_p99: int

    def document(self) -> dict[str, int | float]:
        """Returns the document that `-o json` prints, which is part of the interface."""
        return {
            "jobs": self.jobs,
            "avg_wait": self.avg_wait,
            "avg_flow": self.avg_flow,
            "avg_bounded_slowdown": self.avg_bounded_slowdown,
            "max_bounded_slowdown": self.max_bounded_slowdown,
            "rms_bounded_slowdown": self.rms_bounded_slowdown,
            "utilisation": self.utilisation,
            "makespan": self.makespan,
        }


def report(workload: Workload, start: Sequence[int], nodes: int) -> Report:
    """Returns the numbers of at least one job on `nodes` nodes; `start`: the second at which each job started."""
    jobs, run = len(workload), workload.run
    waits = sorted(began - submitted for began, submitted in zip(start, workload.submit, strict=True))
    slowdowns = [
        max(1.0, (began - submitted + ran) / max(SHORT_RUN_SECONDS, ran))
        for began, submitted, ran in zip(start, workload.submit, run, strict=True)
    ]
    makespan = max(map(int.__add__, start, run)) - workload.submit[0]
    waited = sum(waits)
    return Report(
        jobs=jobs,
        avg_wait=waited / jobs,
        avg_flow=(waited + sum(run)) / jobs,
        avg_bounded_slowdown=fsum(slowdowns) / jobs,
        max_bounded_slowdown=max(slowdowns),
        rms_bounded_slowdown=sqrt(fsum(value * value for value in slowdowns) / jobs),
        utilisation=sum(map(int.__mul__, workload.nodes, run)) / (nodes * makespan),
        makespan=makespan,
        wait_p50=percentile(waits, 50),
        wait_p95=percentile(waits, 95),
        wait_p99=percentile(waits, 99),
    )


def percentile(ascending: Sequence[int], percent: int) -> int:
    """Returns the smallest value that at least `percent` percent of the values do not exceed (nearest rank)."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]
