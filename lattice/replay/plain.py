"""Plain logs for the production cycle: makes jobs of an SWF trace, and equal nodes of a mere number."""

from __future__ import annotations

from typing import Final

from lattice.replay.jobs import Log, TraceJob
from lattice.replay.swf import Trace
from lattice.replay.workload import Left, Machine, select
from lattice.scheduling.model.hardware import NodeFacts

GROUP: Final = 64
"""Nodes in one topology group, where a machine is given as a number."""


def jobs_of(trace: Trace, machine: Machine, vcluster: str, *, run_stands_in: bool = False) -> tuple[Log, Left]:
    """Returns the jobs that the filter of the published studies keeps, and counts of those left out. Raises Rejected where none is left.

    A log's group becomes the tenant, its user the user, a number of 0 or less none. Runs are not cut here: the production cycle ends a job
    at its walltime, the requested time. There is no grace.
    """
    workload, left = select(trace, machine, run_stands_in=run_stands_in)
    place = {number: at for at, number in enumerate(trace.job)}
    jobs: list[TraceJob] = []
    for number, submit, estimate, nodes in zip(workload.job, workload.submit, workload.estimate, workload.nodes, strict=True):
        at = place[number]
        group, user = trace.group[at], trace.user[at]
        jobs.append(
            TraceJob(
                id=str(number), submit=float(submit), nodes=nodes, most=nodes, run=float(trace.run[at]), walltime=float(estimate),
                tenant=f"group-{group}" if group > 0 else "default", user=f"user-{user}" if user > 0 else "", vcluster=vcluster,
                grace=0.0, line=trace.line[at],
            )
        )  # fmt: skip
    return Log("swf", jobs, total=len(trace.job)), left


def alike(count: int) -> list[NodeFacts]:
    """Returns `count` equal free nodes named `n1`, `n2`, …, with leading zeros where there are ten or more, in groups of 64."""
    width = len(str(count))
    return [
        NodeFacts(
            index=at, name=f"n{at + 1:0{width}d}", group=f"g{at // GROUP}", cpus=1, memory=0, gpus=0, features=frozenset(), hollow=False,
            usable=True, state="Ready", fingerprint="alike",
        )
        for at in range(count)
    ]  # fmt: skip
