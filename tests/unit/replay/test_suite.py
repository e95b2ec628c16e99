"""The regression suite in reduced size: every trace meets its threshold, and a scheduler that is wrong does not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lattice.replay.measures import Measures, Ran, Replayed, measure
from lattice.replay.plain import alike
from lattice.replay.production import Timing
from lattice.replay.suite import JUDGES, TRACES, SuiteSize, outcome

from .test_measures import ran

CI = SuiteSize(nodes=32, hours=8)


@pytest.mark.parametrize("trace", TRACES)
def test_the_trace_meets_its_threshold(trace: str) -> None:
    seconds = itertools.count()
    found = outcome(trace, 3, CI, lambda: next(seconds) / 1000)
    assert found.verdicts
    assert [verdict for verdict in found.verdicts if verdict.holds is False] == []
    assert any(verdict.holds for verdict in found.verdicts)


def bad(trace: str) -> tuple[Replayed, Measures, Timing]:
    """What a scheduler that let everybody wait for a day would have done, on a machine that it hardly uses."""
    jobs = [ran("a", 0, 86400 + 10 * at, 86400 + 10 * at + 10) for at in range(50)] + [ran("b", 0, 90000, 90010)]
    spoiled = [Ran(replace(each.job, sensitive=True), each.start, each.end, each.nodes) for each in jobs]
    done = Replayed(alike(64), spoiled)
    return done, measure(trace, done, {}), Timing(lambda: 0.0, [60.0])


@pytest.mark.parametrize("trace", [trace for trace in TRACES if trace != "preemption-heavy"])
def test_a_scheduler_that_lets_everybody_wait_breaks_the_threshold(trace: str) -> None:
    done, measures, timing = bad(trace)
    if trace == "unfair":
        measures = replace(measures, tenants={"a": replace(measures.tenants["a"], used=0.9, entitled=0.5)})
    verdicts = JUDGES[trace](trace, done, measures, timing)
    assert all(verdict.holds is False for verdict in verdicts)
