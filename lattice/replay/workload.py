"""What of a trace can be replayed on a machine, and what cannot, counted; the filter of the published studies.

A job is left out when its processors are unknown or exceed the machine, or its run time, requested time or submit
time is unknown. Where one of requested and allocated processors is missing the other replaces it; requested ones
are used where both stand. A run is cut at its requested time, as a batch system would.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise

from lattice.errors import Rejected
from lattice.replay.swf import Trace


@dataclass(frozen=True)
class Machine:
    """Interchangeable nodes; a job holds whole ones."""

    nodes: int
    procs_per_node: int = 1

    @property
    def procs(self) -> int:
        """Processors of all nodes."""
        return self.nodes * self.procs_per_node

    def nodes_for(self, procs: int) -> int:
        """How many nodes that many processors take."""
        return -(-procs // self.procs_per_node)


@dataclass(frozen=True)
class Workload:
    """The jobs of a replay, in order of submission, equal times in order of the lines; times in seconds."""

    job: array[int]
    submit: array[int]
    run: array[int]
    estimate: array[int]
    procs: array[int]
    nodes: array[int]

    def __len__(self) -> int:
        return len(self.job)


@dataclass
class Left:
    """How many jobs each rule of the filter left out, and how many it changed."""

    parts: int = 0
    no_submit: int = 0
    no_procs: int = 0
    too_large: int = 0
    no_run: int = 0
    no_estimate: int = 0
    capped: int = 0
    cut: int = 0
    unsorted: int = 0

    @property
    def out(self) -> int:
        """Jobs left out; parts of jobs are not jobs."""
        return self.no_submit + self.no_procs + self.too_large + self.no_run + self.no_estimate

    def why(self, machine: Machine) -> list[str]:
        """The rules that left jobs out, as phrases with their counts."""
        rules = (
            (self.too_large, f"of more than {machine.procs} processors"),
            (self.no_procs, "without processors"),
            (self.no_run, "without a run time"),
            (self.no_estimate, "without a requested time"),
            (self.no_submit, "without a submit time"),
        )
        return [f"{count} {phrase}" for count, phrase in rules if count]

    def changes(self) -> list[str]:
        """What was changed of the jobs that were kept, as phrases with their counts."""
        rules = (
            (self.capped, "runs cut at their requested time"),
            (self.unsorted, "lines out of order sorted by submit time"),
            (self.cut, "lines with parts of seconds cut to whole ones"),
            (self.parts, "lines left out that are parts of a job above them"),
        )
        return [f"{count} {phrase}" for count, phrase in rules if count]


def select(trace: Trace, machine: Machine) -> tuple[Workload, Left]:
    """The jobs that can be replayed, and the counts of the rest; Rejected (`BadTrace`) when none is left."""
    left = Left(parts=trace.parts, cut=trace.cut)
    estimates = trace.estimate
    kept = [at for at in range(len(trace.job)) if _is_kept(trace, at, machine.procs, left)]
    if not kept:
        total = len(trace.job)
        why = f": {', '.join(left.why(machine))}" if total else ""
        raise Rejected(f"no job to replay: 0 of {total} jobs are left{why}", reason="BadTrace")
    submit = trace.submit
    left.unsorted = sum(1 for before, after in pairwise(kept) if submit[after] < submit[before])
    if left.unsorted:
        kept.sort(key=submit.__getitem__)
    left.capped = sum(1 for at in kept if trace.run[at] > estimates[at])
    procs = array("q", (trace.requested[at] if trace.requested[at] > 0 else trace.allocated[at] for at in kept))
    workload = Workload(
        job=array("q", (trace.job[at] for at in kept)),
        submit=array("q", (submit[at] for at in kept)),
        run=array("q", (min(trace.run[at], estimates[at]) for at in kept)),
        estimate=array("q", (estimates[at] for at in kept)),
        procs=procs,
        nodes=array("q", (machine.nodes_for(count) for count in procs)),
    )
    return workload, left


def _is_kept(trace: Trace, at: int, most: int, left: Left) -> bool:
    """Whether the job can be replayed; counts the first rule that says no."""
    requested, allocated = trace.requested[at], trace.allocated[at]
    if requested > most or allocated > most:
        left.too_large += 1
    elif requested <= 0 and allocated <= 0:
        left.no_procs += 1
    elif trace.run[at] <= 0:
        left.no_run += 1
    elif trace.estimate[at] <= 0:
        left.no_estimate += 1
    elif trace.submit[at] < 0:
        left.no_submit += 1
    else:
        return True
    return False
