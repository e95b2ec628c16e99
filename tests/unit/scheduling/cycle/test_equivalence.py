"""Equivalence classes: the free nodes of one horizon are those that the profile gives for each end in it."""

from __future__ import annotations

import random

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.equivalence import EquivalenceClasses
from lattice.scheduling.model.strategies import strategy_of
from tests.unit.scheduling.cycle.test_invariants import NOW, VCLUSTERS, some_world


def test_whatever_the_duration_the_free_nodes_are_those_that_no_reservation_and_no_window_takes_before_its_end() -> None:
    reduced = set[tuple[int, str, int]]()
    for seed in range(60):
        world, roll = some_world(seed), random.Random(seed)
        state = world.state
        for name in VCLUSTERS:
            list(decide(state, name, world.queues[name], NOW))
        profile = state.profile(NOW)
        begins = [*(one.start for one in profile.reservations.values()), *(one.start for one in profile.windows.ordered)]
        edges = [begin - NOW for begin in begins]
        durations = [edge + by for edge in edges for by in (-1.0, 0.0, 1.0) if edge + by > 0] + [60.0, 7200.0, NEVER]
        for name in VCLUSTERS:
            queue, policy = state.pending_queue(name), state.policy(name)
            classes = EquivalenceClasses(state, policy, strategy_of(policy), profile, queue, NOW)
            for candidate in queue.candidates:
                eq_class = classes.class_of(candidate)
                for duration in roll.sample(durations, len(durations)):
                    end = NOW + duration
                    expected = sum(profile.capacities(eq_class.pool.members, NOW, end, candidate.reservation).values())
                    assert eq_class.now_pool(duration).whole.total == expected, (seed, candidate.uid, duration)
                    if expected < eq_class.pool.whole.total:
                        reduced.add((seed, candidate.uid, expected))
    assert len(reduced) > 60
