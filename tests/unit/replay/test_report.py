"""The numbers of a report, worked out by hand."""

from __future__ import annotations

import pytest

from lattice.replay.report import percentile, report

from .logs import Job, workload


def test_the_numbers_of_two_jobs_are_those_worked_out_by_hand() -> None:
    found = report(workload([Job(10, 5, 9, 2), Job(20, 40, 90, 3)]), [10, 60], 4)
    assert found.document() == {
        "jobs": 2,
        "avg_wait": 20.0,
        "avg_flow": 42.5,
        "avg_bounded_slowdown": 1.5,
        "max_bounded_slowdown": 2.0,
        "rms_bounded_slowdown": pytest.approx(2.5**0.5, abs=1e-15),
        "utilisation": 130 / 360,
        "makespan": 90,
    }


def test_a_run_below_ten_seconds_counts_as_ten_in_a_slowdown() -> None:
    assert report(workload([Job(0, 1, 1, 1)]), [49], 1).max_bounded_slowdown == 5.0


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (95, 95), (99, 99), (1, 1), (100, 100)])
def test_a_percentile_is_the_nearest_rank(percent: int, value: int) -> None:
    assert percentile(range(1, 101), percent) == value


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert [percentile([7], percent) for percent in (1, 50, 99)] == [7, 7, 7]
