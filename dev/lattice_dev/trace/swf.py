"""The first jobs of a log in the Standard Workload Format: lines in, jobs out; pure. One processor is one node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from lattice.errors import Rejected

FIELDS = 18
ID, SUBMIT, RUN, ALLOCATED, REQUESTED, REQUESTED_TIME = 0, 1, 3, 4, 7, 8


@dataclass(frozen=True, slots=True)
class SwfJob:
    """One job of the log; times in seconds of the log."""

    id: int
    submit: int
    run: int
    nodes: int
    requested: int

    def walltime(self, compression: float) -> int:
        """Returns the requested time divided by `compression`, in whole seconds rounded up, at least one."""
        return max(1, math.ceil(self.requested / compression))


def first_jobs(lines: Iterable[str], count: int, machine: int) -> list[SwfJob]:
    """Returns the first `count` jobs that the filter keeps, in the order of the log.

    Dropped are jobs without processors (allocated, else requested) or with more than `machine`, without run time or without requested time;
    a run is cut at the requested time. Raises Rejected with the line's number for what is no log, as far as it was read, and when there are
    fewer jobs.
    """
    jobs = list(islice(_kept(lines, machine), count))
    if len(jobs) < count:
        raise Rejected(f"the log has {len(jobs)} jobs that fit on {machine} nodes; {count} were asked for", reason="LogTooShort")
    return jobs


def _kept(lines: Iterable[str], machine: int) -> Iterator[SwfJob]:
    """Yields the jobs of a log that fit on the machine and ran. Raises Rejected for a line that is no job."""
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        job = _job(number, line.split())
        if 0 < job.nodes <= machine and job.run > 0 and job.requested > 0:
            yield job


def _job(number: int, columns: list[str]) -> SwfJob:
    """Returns the job of a line. Raises Rejected where it is none."""
    if len(columns) < FIELDS:
        raise Rejected(f"line {number} has {len(columns)} fields, a job has {FIELDS}", reason="LogUnreadable")
    try:
        values = [int(float(column)) for column in columns[:FIELDS]]
    except (ValueError, OverflowError) as error:
        raise Rejected(f"line {number} is no job: {error}", reason="LogUnreadable") from error
    nodes = values[ALLOCATED] if values[ALLOCATED] > 0 else values[REQUESTED]
    requested = values[REQUESTED_TIME]
    return SwfJob(values[ID], values[SUBMIT], min(values[RUN], requested), nodes, requested)
