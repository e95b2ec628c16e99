"""Reasons are found once for many candidates; each is what would be found anew for the one that is told it."""

from __future__ import annotations

from collections import Counter

from lattice.scheduling.cycle.equivalence import EquivalenceClasses
from lattice.scheduling.cycle.reasons import Explainer
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.model.strategies import strategy_of
from tests.unit.scheduling.cycle.test_phases import WORLDS, worlds_over_time


def test_a_cached_reason_is_what_would_be_found_anew() -> None:
    met = Counter[str]()
    for seed in range(WORLDS // 2):
        for turn in worlds_over_time(seed):
            state, policy, now = turn.state, turn.state.policy(turn.vcluster), turn.now
            queue = state.pending_queue(turn.vcluster)
            queue.replace(turn.queue)
            state.set_lists(turn.vcluster, queue.lists)
            reservations = CycleReservations(state, policy, turn.queue, now)
            classes = EquivalenceClasses(state, policy, strategy_of(policy), reservations.profile, queue, now)
            one_for_all = Explainer(state, policy, classes, reservations, now, silent=False)
            for number, candidate in zip(queue.shapes, queue.candidates, strict=True):
                if candidate.reservation:
                    continue
                shape = classes.shape(number, candidate)
                anew = Explainer(state, policy, classes, reservations, now, silent=False)
                found = one_for_all.reason_of(candidate, shape)
                assert found == anew.reason_of(candidate, shape), (seed, candidate.uid)
                met[found[0]] += 1
            reservations.commit()
    assert {"BehindHigherPriority", "WaitingForNodes", "ReservedNodes", "NeverFits"} <= set(met)
