"""Predictions held against starts: the factor learnt, the coverage it gives, and what is forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.calibration import FEWEST, LEAST, OF_THE_WAIT, SPARE, WINDOW, Calibration


def test_before_enough_starts_p90_is_the_second_rehearsal_and_a_little() -> None:
    promise = Calibration().promise(1000.0, 2000.0, 2600.0)
    assert promise.p50 == 2000.0
    assert promise.p90 == pytest.approx(2600.0 + OF_THE_WAIT * 1000.0 + LEAST)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_p50_is_never_after_p90(wait: float, late: float, errors: list[float]) -> None:
    made = Calibration()
    for number, error in enumerate(errors):
        made.predicted(str(number), made.promise(0.0, 1e6, 2e6))
        made.started(str(number), 1e6 + error)
    promise = made.promise(0.0, wait, wait + late)
    assert wait == promise.p50 <= promise.p90


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 2e6))
def test_nothing_is_promised_later_than_what_is_certain(wait: float, late: float, latest: float) -> None:
    promise = Calibration().promise(0.0, wait, wait + late).by(latest)
    assert promise.p50 <= promise.p90 <= latest


def test_nine_of_ten_starts_come_by_p90_whatever_the_rehearsals_err() -> None:
    dice, made, kept = random.Random(7), Calibration(), []
    for number in range(4000):
        now = 100.0 * number
        wait = dice.uniform(60, 7200)
        made.predicted(str(number), made.promise(now, now + wait, now + 1.2 * wait))
        truth = made.started(str(number), now + wait * dice.lognormvariate(0.3, 0.8))
        assert truth is not None
        kept.append(truth.first_covered)
    late = kept[WINDOW:]
    assert 0.87 <= sum(late) / len(late) <= 0.93
    assert made.coverage == pytest.approx(sum(kept[-WINDOW:]) / WINDOW)


def test_a_start_is_scored_once_by_its_first_and_its_last_prediction() -> None:
    made = Calibration()
    made.predicted("a", made.promise(0.0, 100.0, 200.0))
    made.predicted("a", made.promise(50.0, 160.0, 170.0))
    kept = made.started("a", 150.0)
    assert kept is not None
    assert (kept.first_error, kept.last_error) == (50.0, -10.0)
    assert made.median_error == 50.0
    assert made.starts == 1
    assert made.started("a", 150.0) is None


def test_what_was_never_predicted_or_forgotten_scores_nothing() -> None:
    made = Calibration()
    made.predicted("a", made.promise(0.0, 100.0, 200.0))
    made.forget("a")
    assert made.started("a", 1.0) is made.started("b", 1.0) is None
    assert made.coverage is made.median_error is None


def test_the_factor_waits_for_enough_starts() -> None:
    made = Calibration()
    for number in range(FEWEST):
        assert made.factor == 1.0
        made.predicted(str(number), made.promise(0.0, 100.0, 100.0))
        made.started(str(number), 100.0)
    assert made.factor == 0.0


def test_predictions_of_work_that_is_gone_are_thrown_away() -> None:
    made = Calibration()
    for number in range(SPARE + 10):
        made.predicted(str(number), made.promise(0.0, 1.0, 1.0))
    made.prune({"3": None, "5": None})
    assert made.started("4", 1.0) is None
    assert made.started("5", 1.0) is not None
