"""The benchmark of optimality at a reduced size: what CI holds every change to."""

from __future__ import annotations

import time
from statistics import median

from lattice.scheduling.preemption.victims import NoVictims, PreemptionLimits, loss
from lattice_dev.bench import optimum


def test_a_cycle_places_nine_tenths_of_the_value_that_the_bound_allows() -> None:
    reached = list(optimum.shares(range(12), 100, 1000))
    assert median(reached) >= 0.90
    assert all(0 < share <= 1 + 1e-9 for share in reached)


def test_instances_are_the_same_for_the_same_seed() -> None:
    assert optimum.instance(3, 50, 500) == optimum.instance(3, 50, 500)
    assert optimum.instance(3, 50, 500) != optimum.instance(4, 50, 500)
    assert optimum.question(3, 300, 100) == optimum.question(3, 300, 100)


def test_what_the_greedy_choice_solves_the_exact_one_solves_at_no_higher_cost() -> None:
    solved = greedy = 0
    for seed in range(60):
        asked = optimum.question(seed, 200, 70)
        found, _ = optimum.answer(asked, time.process_time)
        if isinstance(found, NoVictims):
            assert found.reason == "FitsWithout" or optimum.greedy_choice(asked) is None
            continue
        solved += 1
        chosen = optimum.greedy_choice(asked)
        if chosen is not None:
            greedy += 1
            cost = sum(loss(each, asked.nodes, optimum.NOW).seconds for each in chosen) / optimum.HOUR
            assert found.cost <= PreemptionLimits().span_premium * cost
    assert 0 < greedy < solved
