"""Ranges of nodes: how many more than its least number work is given."""

from __future__ import annotations

from lattice.scheduling.cycle.ranges import RANGES, extended
from lattice.scheduling.model.policy import (
    Policy,
)  # fmt: skip
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.recording.record import reproduce, take_snapshot
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import job, node, uid
from tests.unit.scheduling.cycle.scenes import HOUR, decided, placed, scene_of, waiting


def more(state: ClusterState, *jobs: Candidate) -> dict[str, int]:
    """How many nodes each range has once all have had their turn."""
    decided(state, *jobs)
    found = {one.candidate.uid: len(one.nodes) for one in extended(state, [one for one in jobs if one.uid in state.holders], 0.0)}
    state.validate()
    assert all(len(state.holders[uid].nodes) == nodes for uid, nodes in found.items())
    return found


def test_a_range_starts_on_its_least_nodes_and_gets_a_third_of_what_is_free_then() -> None:
    state = scene_of([node(index) for index in range(14)])
    ranged = job(1, 2, maximum=14)
    assert len(placed(decided(state, ranged)[uid(1)])) == 2
    state.drop_holder(uid(1))
    assert more(state, ranged, job(2, 3)) == {uid(1): 2 + 9 // 3}


def test_which_ranges_grow_is_decided_again_as_it_was_recorded() -> None:
    state = scene_of([node(index) for index in range(20)])
    jobs = [job(1, 2, maximum=9), job(2, 1, maximum=20)]
    decided(state, *jobs)
    moment = take_snapshot(state, RANGES, jobs, 0.0, 1)
    found = extended(state, jobs, 0.0)
    assert [len(one.nodes) for one in found] == [7, 5]
    assert reproduce(moment) == found


def test_a_range_gets_what_the_quota_leaves() -> None:
    state = scene_of([node(index) for index in range(24)])
    state.accounts = {"physics": TenantAccount(max_nodes=5, used_nodes=1)}
    assert more(state, job(1, 2, maximum=24)) == {uid(1): 4}


def test_a_range_gets_nothing_where_somebody_waits_for_the_same_nodes_and_delays_no_reservation() -> None:
    state = scene_of([node(index, home="" if index < 12 else "ml") for index in range(24)], Policy("hpc"), Policy("ml", home=True))
    state.waiting = frozenset({"hpc"})
    assert more(state, job(1, 2, maximum=12)) == {}
    state.drop_holder(uid(1))
    state.waiting = frozenset({"ml"})
    assert more(state, job(1, 2, maximum=12)) == {uid(1): 5}
    state.drop_holder(uid(1))
    state.waiting = frozenset()
    state.node_cache.take((0,), HOUR)
    assert waiting(decided(state, job(9, 12, 2.0))[uid(9)]).latest is not None
    assert more(state, job(1, 2, 9.0, maximum=12), job(9, 12, 2.0)) == {}
