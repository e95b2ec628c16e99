"""Nodes that a vcluster borrows from another: within its limits, and given back when they are wanted."""

from __future__ import annotations

from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.policy import (
    Borrowing,
    Policy,
)  # fmt: skip
from lattice.scheduling.state.cluster_state import ClusterState
from tests.build import job, node, uid
from tests.unit.scheduling.cycle.scenes import HOUR, decided, placed, scene_of, waiting


def two(borrowing: Borrowing, nodes: int = 6) -> ClusterState:
    lender = Policy("lender", home=True, borrowing=Borrowing(lend=True, max_duration=4 * HOUR))
    homes = ["hpc" if index < 2 else "lender" for index in range(nodes)]
    return scene_of([node(index, home=home) for index, home in enumerate(homes)], Policy("hpc", home=True, borrowing=borrowing), lender)


def test_idle_nodes_are_borrowed_within_their_limits_only() -> None:
    state = two(Borrowing(borrow=True, max_borrowed=2))
    found = decided(state, job(1, 1), job(2, 3), job(3, 3))
    assert placed(found[uid(1)]) == (0,)
    assert placed(found[uid(2)]) == (1, 2, 3)
    assert state.holders[uid(2)].borrowed == (2, 3)
    assert isinstance(found[uid(3)], Waiting)
    for refused in (job(4, 3, 5.0), job(4, 3, None), job(4, 3, preemptible=False)):
        assert isinstance(decided(two(Borrowing(borrow=True)), refused)[uid(4)], Waiting)
    assert isinstance(decided(two(Borrowing()), job(5, 3))[uid(5)], Waiting)


def test_borrowed_nodes_do_not_delay_what_the_lender_was_promised_and_are_named_when_it_wants_them_back() -> None:
    state = two(Borrowing(borrow=True, return_grace=30.0))
    assert len(placed(decided(state, job(1, 4, 2.0))[uid(1)])) == 4
    told = waiting(decided(state, job(2, 4, 2.0, vcluster="lender"), vcluster="lender")[uid(2)])
    assert [(one.uid, one.vcluster, one.nodes, one.grace) for one in told.reclaims] == [(uid(1), "hpc", (2, 3), 30.0)]
    latest = told.latest
    assert latest is not None
    late = waiting(decided(state, job(3, 2, 3.0))[uid(3)])
    assert late.reason in ("WaitingForNodes", "BehindHigherPriority")
