"""Selects the part of an SWF trace that can be replayed on a machine, and counts the rest; the filter of the published studies.

A job is left out when its processors are unknown or exceed the machine, or its run time, requested time or submit time is unknown.
Where one of requested and allocated processors is missing the other replaces it; requested ones are used where both stand. A run is
cut at its requested time, as a batch system would.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise

from lattice.errors import Rejected
from lattice.replay.swf import Trace
from lattice.replay.tally import Tally


@dataclass(frozen=True)
class Machine:
    """A machine of equal nodes for the counts-only engine; a job holds whole nodes."""

    nodes: int
    procs_per_node: int = 1

    @property
    def procs(self) -> int:
        """Returns the number of processors of all nodes."""
        return self.nodes * self.procs_per_node

    def nodes_for(self, procs: int) -> int:
        """Returns how many nodes it takes to have `procs` processors together."""
        return -(-procs // self.procs_per_node)


@dataclass(frozen=True)
class Workload:
    """The jobs of a replay of a plain log in columns, in order of submission, equal times in order of the lines; times in seconds."""

    job: array[int]
    submit: array[int]
    run: array[int]
    estimate: array[int]
    procs: array[int]
    nodes: array[int]

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True)
class Left:
    """Counts, by rule, of the jobs that the filter left out (without parts of jobs), and of the changes to those it kept."""

    out: Tally
    changed: Tally


def select(trace: Trace, machine: Machine, *, run_stands_in: bool = False) -> tuple[Workload, Left]:
    """Returns the jobs that can be replayed, and the counts of the others; raises Rejected (`BadTrace`) when none is left.

    `run_stands_in`: a job without a requested time is kept, with its run time in place of it.
    """
    left = Left(Tally(), trace.changed.copy())
    estimates = _with_runs(trace, left.changed) if run_stands_in else trace.estimate
    kept = []
    for at in range(len(trace.job)):
        rule = _rule_against(trace, at, estimates[at], machine.procs)
        if rule is None:
            kept.append(at)
        else:
            left.out.note(rule[0], trace.line[at], rule[1])
    if not kept:
        raise _nothing_left(trace, left)
    submit = trace.submit
    unsorted = [after for before, after in pairwise(kept) if submit[after] < submit[before]]
    for at in unsorted:
        left.changed.note("lines out of order sorted by submit time", trace.line[at], "field 2")
    if unsorted:
        kept.sort(key=submit.__getitem__)
    for at in kept:
        if trace.run[at] > estimates[at]:
            left.changed.note("runs cut at their requested time", trace.line[at], "field 4")
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


def _with_runs(trace: Trace, changed: Tally) -> array[int]:
    """Returns the requested times, with the run time where one is missing; counts these in `changed`."""
    estimates = array("q", trace.estimate)
    for at, estimate in enumerate(estimates):
        if estimate <= 0 < trace.run[at]:
            estimates[at] = trace.run[at]
            changed.note("requested times that are missing taken from the run", trace.line[at], "field 9")
    return estimates


def _rule_against(trace: Trace, at: int, estimate: int, most: int) -> tuple[str, str] | None:
    """Returns the first rule that leaves a job out and the field that it reads; None where the job can be replayed."""
    requested, allocated = trace.requested[at], trace.allocated[at]
    if requested > most or allocated > most:
        return f"of more than {most} processors", "field 8" if requested > most else "field 5"
    if requested <= 0 and allocated <= 0:
        return "without processors", "fields 5 and 8"
    if trace.run[at] <= 0:
        return "without a run time", "field 4"
    if estimate <= 0:
        return "without a requested time", "field 9"
    if trace.submit[at] < 0:
        return "without a submit time", "field 2"
    return None


def _nothing_left(trace: Trace, left: Left) -> Rejected:
    """Returns the error that no job is left to replay, and why."""
    total = len(trace.job)
    if not total:
        return Rejected("no job to replay: the trace has no line of a job", reason="BadTrace")
    hint = ""
    if "without a requested time" in left.out.counts:
        hint = "; --missing-estimates=run-time plans jobs that requested no time with their run time"
    return Rejected(f"no job to replay: 0 of {total} jobs are left: {', '.join(left.out.phrases())}{hint}", reason="BadTrace")
