"""The measurement of expected starts is honest: what comes later changes no prediction, and each job is judged once."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.errors import Rejected
from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.workload import Workload
from lattice_dev.bench import eta
from lattice_dev.bench.eta import Course, Judged, Log

SHORT, LONG = 250, 350


def log(jobs: int, *, later_run: int | None = None) -> Log:
    """A busy machine, the same for equal numbers; jobs from SHORT on run `later_run` seconds if that is given."""
    dice = random.Random(5)
    columns: dict[str, list[int]] = {"submit": [], "run": [], "estimate": [], "nodes": []}
    now = 0
    for number in range(jobs):
        now += dice.randrange(1700)
        estimate = dice.choice([600, 3600, 7200])
        run = dice.randrange(1, estimate + 1)
        drawn = {"submit": now, "run": run, "estimate": estimate, "nodes": dice.choice([4, 16, 40, 80])}
        if later_run is not None and number >= SHORT:
            drawn["run"] = min(later_run, estimate)
        for name, value in drawn.items():
            columns[name].append(value)
    arrays = {name: array("q", values) for name, values in columns.items()}
    workload = Workload(job=array("q", range(jobs)), procs=arrays["nodes"], **arrays)
    people = [(f"user{number % 7}", "physics") for number in range(jobs)]
    return Log(workload, people, simulate(workload, eta.NODES, Policy.EASY, Estimates.USER))


def judged(of: Log) -> list[Judged]:
    course = Course(of)
    found = list(course.judge(lambda _share: None))
    course.state.validate()
    assert not course.waiting
    assert not course.state.holders
    return found


def predictions(found: list[Judged]) -> list[Judged]:
    """Without what came true."""
    return [replace(one, waited=0.0) for one in found]


def test_what_comes_later_changes_no_prediction() -> None:
    short, long = judged(log(SHORT)), judged(log(LONG))
    assert len(short) > 50
    assert predictions(long)[: len(short)] == predictions(short)
    assert predictions(judged(log(LONG, later_run=1)))[: len(short)] == predictions(short)


def test_every_job_that_waits_is_judged_once_and_by_its_true_wait() -> None:
    of = log(SHORT)
    waits = [start - submit for start, submit in zip(of.start, of.workload.submit, strict=True)]
    assert [one.waited for one in judged(of)] == [wait for wait in waits if wait]


def test_the_learnt_predictions_err_less_than_the_users_estimates() -> None:
    figures = {figure.name: figure for figure in eta.accuracy(eta.judge(log(700), lambda _share: None))}
    assert figures["median error of p50"].met
    assert figures["median width, p90 - now"].met
    assert figures["starts by p90, jobs that waited"].value > 80


def test_coverage_is_said_by_band_and_judged_where_there_are_enough() -> None:
    some = [Judged(waited=100.0 * (number % 10), p50=300.0, p90=850.0, by_users=0.0, constant=0.0) for number in range(400)]
    rare = [Judged(waited=9000.0, p50=8000.0, p90=8500.0, by_users=0.0, constant=0.0)] * (eta.ENOUGH - 1)
    foreseen, came, sharp = eta.by_bands("log", [*some, *rare])
    assert foreseen.value == 90.0
    assert "1-6 h 0.0 of 199" in foreseen.detail
    assert came.value == 100.0
    assert "< 10 min 100.0 of 240" in came.detail
    assert "10-60 min 75.0 of 160" in came.detail
    assert sharp.value == pytest.approx(850 / 600, abs=0.3)
    assert eta.by_bands("log", [*some, *rare, rare[0]])[0].value == 0.0
    with pytest.raises(Rejected, match="no band has 200 starts"):
        eta.by_bands("log", rare)


def test_too_short_a_log_is_no_figure() -> None:
    with pytest.raises(Rejected, match="fewer than 201 jobs waited"):
        eta.judge(log(20), lambda _share: None)


def test_a_missing_log_says_where_it_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="set LATTICE_DATA to the folder with KTH-SP2"):
        eta.read(tmp_path / "KTH-SP2.swf.gz")
