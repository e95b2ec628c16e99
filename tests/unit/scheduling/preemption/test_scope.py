"""Which nodes a preemption could give: those at home, idle ones of lenders, none that is reserved or promised to others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.policy import Borrowing, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.preemption.scope import preemption_scope
from lattice.scheduling.preemption.victims import Victims, preemption
from lattice.scheduling.queries.context import QueryContext
from lattice.scheduling.state.cluster_state import ClusterState, mask_of
from tests.build import node
from tests.unit.scheduling.moments import NOW, holding, moment, moments, pending

LENDS, BORROWS = Borrowing(lend=True), Borrowing(borrow=True)


def shared(lender: Borrowing = LENDS, borrower: Borrowing = BORROWS) -> ClusterState:
    """hpc at home on 0 to 3, ml, which lends, on 4 to 7; of each the first node is held."""
    state = moment(0).state
    for index in range(8):
        state.node_cache.put(node(index, f"g{index // 4}", home="hpc" if index < 4 else "ml"))
    state.policies = {"hpc": Policy("hpc", home=True, borrowing=borrower), "ml": Policy("ml", home=True, borrowing=lender)}
    state.put_holder(holding(1, (0,)))
    state.put_holder(holding(2, (4,), vcluster="ml"))
    return state


def seen(state: ClusterState, **fields: Any) -> tuple[list[int], list[int]]:
    """Eligible nodes and those of them that are free."""
    found = preemption_scope(state, pending(9, **fields), NOW)
    state.validate()
    return found.eligible(), found.free(found.eligible())


def test_its_own_nodes_may_be_cleared_and_idle_ones_of_lenders_borrowed() -> None:
    assert seen(shared()) == ([0, 1, 2, 3, 5, 6, 7], [1, 2, 3, 5, 6, 7])


@pytest.mark.parametrize(
    ("lender", "borrower", "fields"),
    [
        pytest.param(Borrowing(), BORROWS, {}, id="nobody lends"),
        pytest.param(LENDS, Borrowing(), {}, id="it does not borrow"),
        pytest.param(Borrowing(lend=True, max_duration=60.0), BORROWS, {}, id="lent for less time"),
        pytest.param(LENDS, Borrowing(borrow=True, max_duration=60.0), {"walltime": None}, id="unbounded"),
        pytest.param(LENDS, BORROWS, {"preemptible": False}, id="not preemptible"),
        pytest.param(LENDS, Borrowing(borrow=True, max_borrowed=0), {}, id="nothing left to borrow"),
    ],
)
def test_where_nothing_may_be_borrowed_its_own_nodes_are_all(lender: Borrowing, borrower: Borrowing, fields: dict[str, Any]) -> None:
    assert seen(shared(lender, borrower), **fields)[0] == [0, 1, 2, 3]


def test_no_more_is_borrowed_than_the_vcluster_may() -> None:
    assert seen(shared(borrower=Borrowing(borrow=True, max_borrowed=2)))[0] == [0, 1, 2, 3, 5, 6]


def test_nodes_of_a_window_that_opens_before_its_end_are_left_out() -> None:
    state = shared()
    state.set_windows([ReservationWindow("maint", NOW + 1800, NOW + 9000, mask_of((0, 1, 5)), maintenance=True)])
    assert seen(state)[0] == [2, 3, 6, 7]
    assert seen(state, walltime=600.0)[0] == [0, 1, 2, 3, 5, 6, 7]


def test_work_of_a_reservation_has_the_nodes_of_its_open_window_only() -> None:
    state = shared()
    state.set_windows([ReservationWindow("course", NOW - 60, NOW + 9000, mask_of((0, 1)))])
    assert seen(state, reservation="course") == ([0, 1], [1])
    assert seen(state)[0] == [2, 3, 5, 6, 7]


def test_free_nodes_that_are_promised_to_work_before_it_are_left_out() -> None:
    state = moment(4, (holding(1, (0, 1)),)).state
    wide = pending(2, nodes=4, preemption_class=9)
    list(decide(state, "hpc", [wide], NOW))
    assert seen(state) == ([0, 1], [])
    own = preemption_scope(state, wide, NOW)
    assert own.free(own.eligible()) == [2, 3]
    assert seen(state, walltime=60.0)[1] == [2, 3]


@given(moments())
def test_what_is_preempted_is_at_home_there_and_what_is_used_is_reserved_for_nobody_else(context: QueryContext) -> None:
    state = context.state
    before = {uid: holder.nodes for uid, holder in state.holders.items()}
    for candidate in context.candidates.values():
        within = preemption_scope(state, candidate, NOW)
        eligible = within.eligible()
        free = within.free(eligible)
        assert set(free) <= set(eligible) - set(state.node_cache.taken)
        found = preemption(candidate, state.holders.values(), within.nodes, eligible, free, state.policies, NOW)
        if isinstance(found, Victims):
            end = NOW + state.occupancy(candidate)
            for window in state.windows:
                if window.start < end:
                    assert not window.nodes & mask_of(found.nodes)
    assert {uid: holder.nodes for uid, holder in state.holders.items()} == before
    state.validate()
