"""A plain log from its text to every start and every number, beside a reading and a simulation written on purpose without haste."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.report import report
from lattice.replay.swf import parse
from lattice.replay.workload import Machine, select

from .logs import EVERY, Job, Naive


@dataclass(frozen=True)
class Line:
    """What one line of a log says of a job."""

    submit: str
    run: str
    allocated: str
    requested: str
    estimate: str

    def text(self, number: int, gap: str, end: str) -> str:
        every = [
            number,
            self.submit,
            -1,
            self.run,
            self.allocated,
            7.25,
            -1,
            self.requested,
            self.estimate,
            -1,
            1,
            3,
            2,
            -1,
            -1,
            -1,
            -1,
            -1,
        ]
        return gap.join(map(str, every)) + end


def whole(text: str) -> int:
    """Seconds without their fraction, where anything above 0 is at least 1."""
    value = float(text)
    return 1 if 0 < value < 1 else int(value)


def plainly(lines: list[Line], nodes: int, per_node: int) -> list[tuple[int, int, Job]]:
    """Number, processors and job of each line that the published filter keeps, in order of submission."""
    kept = []
    for number, line in enumerate(lines, start=1):
        submit, run, estimate = whole(line.submit), whole(line.run), whole(line.estimate)
        allocated, requested = int(float(line.allocated)), int(float(line.requested))
        procs = requested if requested > 0 else allocated
        if max(allocated, requested) > nodes * per_node or min(procs, run, estimate) <= 0 or submit < 0:
            continue
        held = 0
        while held * per_node < procs:
            held += 1
        kept.append((number, procs, Job(submit, min(run, estimate), estimate, held)))
    return sorted(kept, key=lambda each: each[2].submit)


TIMES = st.one_of(st.integers(1, 40).map(str), st.sampled_from(["0", "-1", "0.5", "12.5", "7.0", "3."]))
PROCS = st.one_of(st.integers(1, 12).map(str), st.sampled_from(["0", "-1", "4.0"]))
LINES = st.lists(
    st.builds(Line, st.one_of(st.integers(0, 60).map(str), st.sampled_from(["-1", "8.75", "9"])), TIMES, PROCS, PROCS, TIMES),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150)
@given(
    lines=LINES,
    node_cache=st.builds(Machine, st.integers(1, 6), st.integers(1, 4)),
    how=st.sampled_from(EVERY),
    gap=st.sampled_from([" ", "\t", "   "]),
    end=st.sampled_from(["\n", "\r\n", " \n"]),
)
def test_every_job_of_a_log_starts_when_the_plain_reading_and_simulation_start_it(
    lines: list[Line], node_cache: Machine, how: tuple[Policy, Estimates], gap: str, end: str
) -> None:
    text = "".join(["; Computer: any" + end, *(line.text(number, gap, end) for number, line in enumerate(lines, start=1))])
    expected = plainly(lines, node_cache.nodes, node_cache.procs_per_node)
    trace = parse(text.encode().splitlines(keepends=True))
    if not expected:
        with pytest.raises(Rejected, match="no job to replay"):
            select(trace, node_cache)
        return
    workload, left = select(trace, node_cache)
    assert left.out.total == len(lines) - len(expected)
    jobs = [job for _, _, job in expected]
    start = simulate(workload, node_cache.nodes, *how)
    assert list(zip(workload.job, workload.procs, workload.submit, workload.run, start, strict=True)) == [
        (number, procs, job.submit, job.run, began)
        for (number, procs, job), began in zip(expected, Naive(jobs, node_cache.nodes, *how).simulate(), strict=True)
    ]
    check_numbers(jobs, start, node_cache, report(workload, start, node_cache.nodes).document())


def check_numbers(jobs: list[Job], start: list[int], node_cache: Machine, found: dict[str, int | float]) -> None:
    """The definitions of the report, one after the other."""
    waits = [began - job.submit for job, began in zip(jobs, start, strict=True)]
    slow = [max(1.0, (wait + job.run) / max(10, job.run)) for job, wait in zip(jobs, waits, strict=True)]
    ends = [began + job.run for job, began in zip(jobs, start, strict=True)]
    makespan = max(ends) - min(job.submit for job in jobs)
    count = len(jobs)
    assert found == {
        "jobs": count,
        "avg_wait": pytest.approx(sum(waits) / count),
        "avg_flow": pytest.approx(sum(end - job.submit for job, end in zip(jobs, ends, strict=True)) / count),
        "avg_bounded_slowdown": pytest.approx(sum(slow) / count),
        "max_bounded_slowdown": pytest.approx(max(slow)),
        "rms_bounded_slowdown": pytest.approx(sqrt(sum(value * value for value in slow) / count)),
        "utilisation": pytest.approx(sum(job.nodes * job.run for job in jobs) / (node_cache.nodes * makespan)),
        "makespan": makespan,
    }
