"""The division among siblings: what it promises for any claims, and the figures that are published."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.quota.division import Claim, divide, scale_mins

from .reference import base, exact, rounds
from .trees import random_claims

AMOUNTS = st.one_of(st.integers(0, 20), st.integers(0, 2**63 - 1))
WEIGHTS = st.one_of(st.integers(0, 4), st.integers(0, 2**63 - 1))


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    rows = draw(st.lists(st.tuples(AMOUNTS, AMOUNTS, WEIGHTS, st.booleans()), max_size=9))
    names = draw(st.permutations([f"g{at}" for at in range(len(rows))]))
    return [Claim(name, *row) for name, row in zip(names, rows, strict=True)]


def hungry(row: Claim, share: int) -> bool:
    return share < row.request and row.weight > 0


@given(AMOUNTS, claims())
def test_nobody_has_less_than_his_base_or_more_than_he_asks_for(total: int, rows: list[Claim]) -> None:
    for row, share in zip(rows, divide(total, rows), strict=True):
        assert base(row) <= share <= max(base(row), row.request)


@given(AMOUNTS, claims())
def test_the_sum_is_never_above_the_total_unless_the_floors_are(total: int, rows: list[Claim]) -> None:
    assert sum(divide(total, rows)) <= max(total, sum(base(row) for row in rows))


@given(AMOUNTS, claims())
def test_nothing_stays_idle_beside_a_hungry_sibling_that_has_weight(total: int, rows: list[Claim]) -> None:
    shares = divide(total, rows)
    if any(hungry(row, share) for row, share in zip(rows, shares, strict=True)):
        assert sum(shares) >= total


@given(AMOUNTS, claims(), AMOUNTS, AMOUNTS, WEIGHTS)
def test_equals_differ_by_at_most_one_unit(total: int, rows: list[Claim], floor: int, request: int, weight: int) -> None:
    twins = [Claim(f"twin{at}", floor, request, weight) for at in range(3)]
    shares = divide(total, [*twins, *rows])[:3]
    assert max(shares) - min(shares) <= 1


@given(AMOUNTS, claims())
def test_all_that_are_cut_short_stand_at_one_level_within_a_unit(total: int, rows: list[Claim]) -> None:
    shares = divide(total, rows)
    cut = [(row, share - row.floor) for row, share in zip(rows, shares, strict=True) if hungry(row, share) and row.request > row.floor]
    lowest = max((Fraction(gain - 1, row.weight) for row, gain in cut), default=Fraction(0))
    highest = min((Fraction(gain + 1, row.weight) for row, gain in cut), default=Fraction(0))
    assert lowest <= highest


@given(AMOUNTS, claims(), st.randoms(use_true_random=False))
def test_the_order_of_the_siblings_changes_nothing(total: int, rows: list[Claim], rng: random.Random) -> None:
    shuffled = rng.sample(rows, len(rows))
    shares = dict(zip((row.name for row in rows), divide(total, rows), strict=True))
    assert dict(zip((row.name for row in shuffled), divide(total, shuffled), strict=True)) == shares


@settings(max_examples=300)
@given(AMOUNTS, claims())
def test_the_answer_is_the_exact_level_of_a_search_by_fractions(total: int, rows: list[Claim]) -> None:
    assert divide(total, rows) == exact(total, rows)


def test_seeded_sibling_sets_stay_within_two_units_of_the_upstreams_rounds() -> None:
    for seed in range(4000):
        total, rows = random_claims(random.Random(seed))
        ours, theirs = divide(total, rows), rounds(total, rows)
        assert ours == exact(total, rows), seed
        assert max(abs(some - other) for some, other in zip(ours, theirs, strict=True)) <= 2, seed


@pytest.mark.parametrize(
    ("total", "rows", "expected"),
    [
        pytest.param(
            100,
            [Claim("A", 10, 5, 40), Claim("B", 15, 20, 60), Claim("C", 20, 40, 50), Claim("D", 15, 70, 80)],
            [5, 20, 35, 40],
            id="the proposal's worked example",
        ),
        pytest.param(11, [Claim("A", 0, 1, 1), Claim("B", 0, 100, 1), Claim("C", 0, 100, 1)], [1, 5, 5], id="equals stay equal"),
        pytest.param(2, [Claim("b", 0, 9, 1), Claim("c", 0, 9, 1), Claim("a", 0, 9, 1)], [1, 0, 1], id="ties go by name"),
        pytest.param(10, [Claim("a", 0, 9, 0), Claim("b", 0, 4, 1)], [0, 4], id="no weight gets nothing above its floor"),
        pytest.param(200, [Claim("a", 150, 300, 1), Claim("b", 150, 300, 1)], [150, 150], id="floors above the total stand"),
        pytest.param(10, [Claim("a", 6, 1, 1, lends=False), Claim("b", 0, 9, 1)], [6, 4], id="an idle floor that is not lent is kept"),
        pytest.param(2**63 - 1, [Claim("a", 0, 2**63 - 1, 2**63 - 1), Claim("b", 0, 2**63 - 1, 1)], [2**63 - 2, 1], id="beyond int64"),
        pytest.param(0, [Claim("a", 0, 5, 1)], [0], id="nothing to divide"),
        pytest.param(5, [], [], id="nobody"),
    ],
)
def test_a_total_is_divided_as_the_rules_say(total: int, rows: list[Claim], expected: list[int]) -> None:
    assert divide(total, rows) == expected


def test_the_upstreams_rounds_give_two_equals_six_and_four_where_ours_give_five_and_five() -> None:
    rows = [Claim("A", 0, 1, 1), Claim("B", 0, 100, 1), Claim("C", 0, 100, 1)]
    assert rounds(11, rows) == [1, 6, 4]
    assert divide(11, rows) == [1, 5, 5]


@pytest.mark.parametrize(
    ("available", "mins", "scalable", "expected"),
    [
        pytest.param(200, [50, 50, 50], [False, True, True], [50, 50, 50], id="enough"),
        pytest.param(100, [50, 50, 50], [False, True, True], [50, 25, 25], id="who does not scale comes first"),
        pytest.param(0, [50, 50, 50], [False, True, True], [50, 0, 0], id="nothing is there"),
        pytest.param(200_000, [100_000] * 3, [True] * 3, [66_666] * 3, id="rounded down"),
        pytest.param(1, [0, 5], [True, False], [0, 5], id="nobody to shrink"),
    ],
)
def test_mins_shrink_in_proportion(available: int, mins: list[int], scalable: list[bool], expected: list[int]) -> None:
    assert scale_mins(available, mins, scalable) == expected


@given(AMOUNTS, st.lists(AMOUNTS, max_size=6))
def test_scaled_mins_are_never_more_than_what_is_available(available: int, mins: list[int]) -> None:
    scaled = scale_mins(available, mins, [True] * len(mins))
    assert sum(scaled) <= max(available, 0)
    assert all(0 <= new <= old for new, old in zip(scaled, mins, strict=True))
