"""The nine terms and the budget multiplier: the book's values, within [0, 1], monotone where it says so."""

from __future__ import annotations

from dataclasses import astuple
from itertools import combinations
from math import fsum, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.model.policy import BALANCED, PROFILES, Weights
from lattice.scheduling.priority import cost

HOUR, DAY = 3600.0, 86400.0
seconds = st.floats(-1e6, 1e9)


@pytest.mark.parametrize(
    ("waited", "value"),
    [(0.0, 0.0), (-5.0, 0.0), (HOUR, log(2) / log(169)), (DAY, log(25) / log(169)), (7 * DAY, 1.0), (70 * DAY, 1.0)],
    ids=["new", "clock went back", "1h", "1d", "7d", "70d"],
)
def test_waiting_counts_by_its_logarithm_until_seven_days(waited: float, value: float) -> None:
    assert cost.wait_time(waited) == pytest.approx(value)


@settings(deadline=None)
@given(seconds, seconds, st.floats(1.0, 7 * DAY))
def test_longer_waiting_never_lowers_its_term(one: float, other: float, reference: float) -> None:
    shorter, longer = sorted((one, other))
    assert 0.0 <= cost.wait_time(shorter, reference) <= cost.wait_time(longer, reference) <= 1.0


@pytest.mark.parametrize(
    ("target", "usage", "value"),
    [(0.2, 0.0, 1.0), (0.2, 0.2, 0.5), (0.2, 0.4, 0.25), (0.1, 0.9, 2**-9), (0.0, 0.0, 1.0), (0.0, 0.1, 0.0)],
    ids=["nothing used", "at its share", "twice", "far above, and still no floor", "no share, unused", "no share, used"],
)
def test_a_fair_share_halves_with_each_target_used(target: float, usage: float, value: float) -> None:
    assert cost.fair_share(target, usage) == pytest.approx(value)


@pytest.mark.parametrize(
    ("used", "value"),
    [(0.0, 1.0), (0.8, 1.0), (0.9, 0.05 + 0.95 * 0.8535533906), (1.0, 0.525), (1.2, 0.05), (9.0, 0.05)],
    ids=["unused", "80 %", "90 %", "all", "120 %", "far over"],
)
def test_a_budget_lowers_scores_from_80_percent_on(used: float, value: float) -> None:
    assert cost.multiplier(used) == pytest.approx(value)


@settings(deadline=None)
@given(st.floats(0, 5), st.floats(0, 5))
def test_more_of_a_budget_never_raises_the_multiplier(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert cost.LEAST_MULTIPLIER <= cost.multiplier(more) <= cost.multiplier(less) <= 1.0


def test_the_classes_are_tenths() -> None:
    assert [cost.priority(level) for level in range(11)] == [level / 10 for level in range(11)]


def test_what_nobody_knows_counts_half_and_an_idle_system_has_no_backlog() -> None:
    assert (cost.data_readiness(), cost.energy()) == (0.5, 0.5)
    assert (cost.backlog(50.0, 0.0), cost.backlog(50.0, 100.0), cost.backlog(500.0, 100.0)) == (0.0, 0.5, 1.0)
    assert (cost.energy(0.0), cost.energy(0.25), cost.energy(1.0)) == (1.0, 0.75, 0.0)


def test_a_node_without_gpus_counts_as_one_gpu_in_hours() -> None:
    assert cost.gpu_hours(4, 0, 2 * HOUR) == cost.gpu_hours(4, 1, 2 * HOUR) == 8.0
    assert cost.gpu_hours(4, 4, 2 * HOUR) == 32.0
    assert cost.gpu_hours(1, 0, None) == cost.UNBOUNDED_HOURS


@pytest.mark.parametrize(
    ("nodes", "gpus", "unified", "inter", "value"),
    [
        (1, 0, False, 0.0, 0.3 * 1.0 + 0.7 * 0.5),
        (1, 4, True, 0.0, 0.7 * 0.5 + 0.3 * 1.0),
        (8, 0, False, 0.9, 0.7 * 0.9 + 0.3 * (0.3 * 1.0 + 0.7 * 0.5)),
        (8, 1, True, 0.9, 0.7 * 0.9 + 0.3 * 1.0),
    ],
    ids=["one node: groups are moot", "unified", "eight nodes: 0.7 of the groups", "one gpu has no links"],
)
def test_topology_weighs_groups_by_seven_tenths_for_more_than_one_node(
    nodes: int, gpus: int, unified: bool, inter: float, value: float
) -> None:
    assert cost.topology(inter, cost.intra_node(gpus, unified=unified), nodes) == pytest.approx(value)


def test_a_quick_checkpoint_scores_high_and_none_scores_nothing() -> None:
    assert (cost.checkpoint(None), cost.checkpoint(0.0), cost.checkpoint(1.0)) == (0.0, 1.0, 0.5)
    assert cost.checkpoint_minutes(0) == cost.CHECKPOINT_MINUTES
    assert cost.checkpoint_minutes(120 * 2.0**30) == 2.0
    assert cost.checkpoint_minutes(1e15) == cost.MOST_CHECKPOINT_MINUTES


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=7), st.integers(1, 300))
def test_no_set_of_fewer_groups_holds_the_nodes(capacities: list[int], nodes: int) -> None:
    fewest = next(
        (size for size in range(1, len(capacities) + 1) if any(sum(some) >= nodes for some in combinations(capacities, size))), None
    )
    assert cost.groups_needed(cost.reach(capacities), nodes) == fewest


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_terms_of_sets_stay_between_0_and_1(needed: int, available: int, alike: int, nodes: int) -> None:
    assert 0.0 <= cost.inter_node(needed, available) <= 1.0
    assert 0.0 <= cost.conformance(alike, nodes) <= 1.0


@pytest.mark.parametrize("name", [*PROFILES, "balanced"])
def test_the_weights_of_a_profile_sum_to_1(name: str) -> None:
    assert fsum(astuple(PROFILES.get(name, BALANCED))) == pytest.approx(1.0, abs=1e-12)


def test_the_profiles_are_the_table_of_the_book() -> None:
    columns = list(
        zip(*(astuple(PROFILES[name]) for name in ("HpcBatch", "MlTraining", "Service", "Sensitive", "Interactive")), strict=True)
    )
    assert columns == [
        (0.15, 0.10, 0.15, 0.90, 0.10),
        (0.20, 0.10, 0.05, 0.00, 0.30),
        (0.20, 0.10, 0.10, 0.00, 0.10),
        (0.15, 0.25, 0.05, 0.00, 0.00),
        (0.10, 0.15, 0.10, 0.00, 0.05),
        (0.05, 0.05, 0.05, 0.00, 0.15),
        (0.00, 0.05, 0.10, 0.00, 0.00),
        (0.05, 0.10, 0.10, 0.00, 0.00),
        (0.10, 0.10, 0.30, 0.10, 0.30),
    ]
    assert astuple(BALANCED) == (0.20, 0.20, 0.20, 0.15, 0.10, 0.05, 0.00, 0.00, 0.10)


def test_there_is_a_name_for_each_weight() -> None:
    assert len(cost.TERMS) == len(astuple(Weights()))
