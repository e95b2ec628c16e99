"""Run times learnt: never above the walltime, never below what has run, and from the narrowest level that knows enough."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.forecast import predictor
from lattice.scheduling.forecast.predictor import ENOUGH, WINDOW, RunFeatures, RunTimes

HOUR = 3600.0


def work(user: str = "alice", tenant: str = "physics", name: str = "", nodes: int = 4, walltime: float = HOUR) -> RunFeatures:
    return RunFeatures(user, tenant, name, nodes, walltime)


def taught(*runs: tuple[RunFeatures, float]) -> RunTimes:
    known = RunTimes()
    for what, ran in runs:
        known.observe(what, ran)
    return known


some_work = st.builds(
    RunFeatures,
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(["physics", "chemistry"]),
    st.sampled_from(["", "train", "post"]),
    st.integers(1, 64),
    st.sampled_from([60.0, HOUR, 24 * HOUR]),
)
runs = st.lists(st.tuples(some_work, st.floats(0, 30 * HOUR)), max_size=30)


def test_nothing_learnt_means_the_walltime() -> None:
    assert RunTimes().totals(work(), (0.5,))[0] == HOUR


@settings(deadline=None)
@given(runs, some_work, st.floats(0, 1), st.floats(0, 2))
def test_a_quantile_lies_between_what_has_run_and_the_walltime(
    known: list[tuple[RunFeatures, float]], asked: RunFeatures, share: float, part: float
) -> None:
    elapsed = part * asked.walltime
    [total] = taught(*known).totals(asked, (share,), elapsed)
    assert elapsed <= total
    assert total <= max(elapsed, asked.walltime)


@settings(deadline=None)
@given(runs, some_work, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_quantile_is_never_shorter(
    known: list[tuple[RunFeatures, float]], asked: RunFeatures, one: float, other: float, part: float
) -> None:
    learnt = taught(*known)
    elapsed = part * asked.walltime
    assert learnt.totals(asked, (min(one, other),), elapsed) <= learnt.totals(asked, (max(one, other),), elapsed)


@settings(deadline=None)
@given(runs, some_work, st.floats(0, 1))
def test_equal_histories_give_equal_answers(known: list[tuple[RunFeatures, float]], asked: RunFeatures, share: float) -> None:
    assert taught(*known).totals(asked, (share,)) == taught(*known).totals(asked, (share,))


def test_equal_runs_are_expected_again() -> None:
    learnt = taught(*[(work(), 600.0)] * ENOUGH)
    assert learnt.totals(work(), (0.5,))[0] == pytest.approx(600.0)
    assert learnt.totals(work(), (0.9,))[0] == pytest.approx(600.0)


def test_too_few_runs_of_a_name_leave_the_answer_to_the_user() -> None:
    of_user = [(work(name="post"), 1800.0)] * ENOUGH
    few = taught(*of_user, *[(work(name="train", nodes=32), 60.0)] * (ENOUGH - 1))
    enough = taught(*of_user, *[(work(name="train", nodes=32), 60.0)] * ENOUGH)
    asked = work(name="train", nodes=16)
    assert few.totals(asked, (0.9,))[0] == pytest.approx(1800.0)
    assert enough.totals(asked, (0.9,))[0] == pytest.approx(60.0)


def test_what_nobody_of_the_tenant_ran_is_answered_by_everybody() -> None:
    learnt = taught(*[(work(user="bob", tenant="chemistry"), 900.0)] * ENOUGH)
    assert learnt.totals(work(), (0.5,))[0] == pytest.approx(900.0)


def test_recent_runs_weigh_more() -> None:
    learnt = taught(*[(work(), 3000.0)] * 20, *[(work(), 300.0)] * 20)
    assert learnt.totals(work(), (0.5,))[0] == pytest.approx(300.0)
    assert learnt.totals(work(), (0.9,))[0] == pytest.approx(3000.0)


def test_work_that_has_outlasted_the_short_runs_is_expected_to_be_a_long_one() -> None:
    learnt = taught(*[(work(), 300.0), (work(), 3000.0)] * ENOUGH)
    assert learnt.totals(work(), (0.25,))[0] == pytest.approx(300.0)
    assert learnt.remaining(work(), (0.25,), 600.0)[0] == pytest.approx(2400.0)
    assert learnt.remaining(work(), (0.5,), 3500.0)[0] == pytest.approx(100.0), "no run lasted so long: the walltime"


def test_a_run_beyond_its_walltime_counts_as_the_walltime() -> None:
    assert taught(*[(work(), 2 * HOUR)] * ENOUGH).totals(work(), (0.5,))[0] == HOUR


def test_old_runs_are_forgotten() -> None:
    learnt = taught(*[(work(), 60.0)] * WINDOW, *[(work(), 1200.0)] * WINDOW)
    assert learnt.totals(work(), (0.0,))[0] == pytest.approx(1200.0)


def test_memory_is_bounded_by_keys_and_by_runs() -> None:
    learnt = RunTimes()
    for number in range(predictor.MOST_KEYS + 50):
        learnt.observe(work(user=f"u{number}"), 60.0)
    assert all(len(level) <= predictor.MOST_KEYS for level in learnt._known)
    assert all(len(window.ascending) <= WINDOW for level in learnt._known for window in level.values())
