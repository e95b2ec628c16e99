"""Vclusters beside each other: what is borrowed is idle, allowed, no more than is lacking at home, and never in the lender's way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.forecast.forecaster import Expected, Forecaster
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.policy import BACKFILL, BIN_PACK, INTERACTIVE_FIFO, Borrowing, Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import job, node, uid

HOUR = 3600.0
LENDER, BORROWER = "lender", "borrower"


def site(homes: dict[str, int], *policies: Policy) -> ClusterState:
    node_cache, index = NodeCache(), 0
    for home, count in homes.items():
        for _ in range(count):
            node_cache.put(node(index, f"{home}{index % 2}", home=home))
            index += 1
    return ClusterState(node_cache, {"physics": TenantAccount()}, {policy.name: policy for policy in policies}, start_allowance=0.0)


def decided(state: ClusterState, vcluster: str, queue: list[Candidate], now: float = 0.0) -> dict[str, Outcome]:
    found = {one.candidate.uid: one for one in decide(state, vcluster, queue, now)}
    state.validate()
    return found


def borrowed(state: ClusterState, outcome: Placed) -> list[int]:
    return [index for index in outcome.nodes if state.node_cache.nodes[index].home != outcome.candidate.vcluster]


@st.composite
def borrowings(draw: st.DrawFn) -> tuple[ClusterState, list[Candidate], list[Candidate]]:
    """A lender and a borrower with some nodes and limits each, and work of both."""
    limit = st.sampled_from([None, 1.0, 4.0])
    longest = [None if hours is None else hours * HOUR for hours in (draw(limit), draw(limit))]
    lends = Borrowing(lend=draw(st.booleans()), max_duration=longest[0])
    borrows = Borrowing(borrow=draw(st.integers(0, 4)) > 0, max_borrowed=draw(st.sampled_from([None, 0, 1, 3])), max_duration=longest[1])
    state = site(
        {LENDER: draw(st.integers(1, 6)), BORROWER: draw(st.integers(0, 4))},
        Policy(LENDER, draw(st.sampled_from([BACKFILL, BIN_PACK, INTERACTIVE_FIFO])), home=True, borrowing=lends),
        Policy(BORROWER, draw(st.sampled_from([BACKFILL, BIN_PACK, INTERACTIVE_FIFO])), home=True, borrowing=borrows),
    )
    hours = st.sampled_from([None, 0.5, 1.0, 3.0, 9.0])

    def work(first: int, vcluster: str) -> list[Candidate]:
        return [
            job(first + number, draw(st.integers(1, 7)), draw(hours), vcluster=vcluster, preemptible=draw(st.integers(0, 3)) > 0)
            for number in range(draw(st.integers(0, 5)))
        ]

    return state, work(0, LENDER), work(100, BORROWER)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=5), st.integers(1, 8))
def test_borrowers_give_back_by_their_priority_and_none_for_nothing(loans: list[tuple[int, int, bool]], wanted: int) -> None:
    lender = Policy(LENDER, home=True, borrowing=Borrowing(lend=True))
    borrowers = [
        Policy(f"b{rank}", home=True, borrowing=Borrowing(borrow=True, priority=rank, return_grace=60.0 * rank)) for rank in range(3)
    ]
    state, first = site({LENDER: 8}, lender, *borrowers), 0
    for number, (rank, count, releasing) in enumerate(loans):
        nodes = tuple(range(first, min(8, first + count)))
        first += len(nodes)
        if nodes:
            state.put_holder(
                NodeHolder(
                    uid=f"loan{number}", key=f"t/loan{number}", tenant="physics", user="alice", vcluster=f"b{rank}", preemption_class=5, nodes=nodes,
                    since=float(number), end=HOUR, borrowed=nodes, releasing=releasing,
                )
            )  # fmt: skip
    outcome = decided(state, LENDER, [job(1, wanted, vcluster=LENDER)], now=10.0)[uid(1)]
    if isinstance(outcome, Placed):
        return
    missing, order = (
        wanted - (8 - len(state.node_cache.taken)),
        [(int(one.vcluster[1]), -state.holders[one.uid].since) for one in outcome.reclaims],
    )
    lent = {uid: holder for uid, holder in state.holders.items() if not holder.releasing}
    back = sum(len(one.nodes) for one in outcome.reclaims)
    assert order == sorted(order), "the lowest priority first, then who began last"
    assert all(one.nodes == lent[one.uid].borrowed and one.grace == 60.0 * int(one.vcluster[1]) for one in outcome.reclaims)
    assert bool(outcome.reclaims) == (sum(len(holder.nodes) for holder in lent.values()) >= missing)
    assert not outcome.reclaims or back >= missing
    assert all(back - len(one.nodes) < missing for one in outcome.reclaims), "each of them is needed"


def test_who_may_borrow_and_still_lacks_nodes_reads_how_many_are_idle_elsewhere() -> None:
    lender = Policy(LENDER, home=True, borrowing=Borrowing(lend=True))
    limited = Policy(BORROWER, home=True, borrowing=Borrowing(borrow=True, max_borrowed=2))
    state = site({LENDER: 3, BORROWER: 2}, lender, limited)
    state.put_holder(
        NodeHolder(
            uid="loan", key="t/loan", tenant="physics", user="alice", vcluster=BORROWER, preemption_class=5, nodes=(0,), since=0.0, end=HOUR,
            borrowed=(0,),
        )
    )  # fmt: skip
    told = decided(state, BORROWER, [job(1, 4, vcluster=BORROWER)])[uid(1)]
    assert isinstance(told, Waiting)
    idle = "2 are idle in vclusters that lend, of which it may borrow 1"
    assert (told.reason, told.message) == ("WaitingForNodes", f"needs 4 nodes; of 2 that fit, 2 are free, 0 in use; {idle}")
    never = decided(state, BORROWER, [job(2, 5, vcluster=BORROWER)])[uid(2)]
    assert isinstance(never, Waiting)
    assert never.message == (
        'needs 5 nodes, and 4 exist that fit its constraints: 1 more are at home in other vclusters than "borrower", which lend it none, '
        "or not so many, or not for so long"
    )


@given(st.sampled_from([None, 0.5, 1.0, 2.0, 5.0]), st.integers(1, 9), st.sampled_from([None, 0, 2]), st.sampled_from([None, 1.0]))
def test_work_never_fits_where_even_idle_lenders_may_not_give_it_enough(
    hours: float | None, wanted: int, most: int | None, longest: float | None
) -> None:
    limit = None if longest is None else longest * HOUR
    lender = Policy(LENDER, home=True, borrowing=Borrowing(lend=True, max_duration=limit))
    state = site({LENDER: 4, BORROWER: 3}, lender, Policy(BORROWER, home=True, borrowing=Borrowing(borrow=True, max_borrowed=most)))
    asked = job(1, wanted, hours, vcluster=BORROWER)
    lent = 0 if limit is not None and (hours is None or hours * HOUR > limit) else 4 if most is None else most
    outcome = decided(state, BORROWER, [asked])[uid(1)]
    if wanted <= 3 + lent:
        assert isinstance(outcome, Placed)
    else:
        assert isinstance(outcome, Waiting)
        assert (outcome.reason, f"and {3 + lent} exist that fit" in outcome.message) == ("NeverFits", True)
        assert Forecaster().forecast(state, {BORROWER: [asked]}, 0.0, [outcome]) == {uid(1): Expected(reason="NeverFits")}


@given(borrowings())
def test_what_is_borrowed_is_allowed_by_both_sides(drawn: tuple[ClusterState, list[Candidate], list[Candidate]]) -> None:
    state, own, others = drawn
    lends, borrows = state.policies[LENDER].borrowing, state.policies[BORROWER].borrowing
    decided(state, LENDER, own)
    for outcome in decided(state, BORROWER, others).values():
        if isinstance(outcome, Placed) and (lent := borrowed(state, outcome)):
            assert lends.lend
            assert borrows.borrow
            assert outcome.candidate.preemptible
            for longest in (lends.max_duration, borrows.max_duration):
                assert longest is None or (outcome.candidate.walltime or 1e18) <= longest
            assert state.holders[outcome.candidate.uid].borrowed == tuple(lent)
    held = sum(len(holder.borrowed) for holder in state.holders.values())
    assert borrows.max_borrowed is None or held <= borrows.max_borrowed
    assert all(not holder.borrowed for holder in state.holders.values() if holder.vcluster == LENDER)


@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 11))
def test_no_more_is_borrowed_than_is_lacking_at_home(lent: int, own: int, wanted: int) -> None:
    state = site({LENDER: lent, BORROWER: own}, Policy(LENDER, home=True, borrowing=Borrowing(lend=True)),
                 Policy(BORROWER, home=True, borrowing=Borrowing(borrow=True)))  # fmt: skip
    (outcome,) = decided(state, BORROWER, [job(1, wanted, vcluster=BORROWER)]).values()
    assert isinstance(outcome, Placed) == (wanted <= lent + own)
    if isinstance(outcome, Placed):
        assert len(borrowed(state, outcome)) == max(0, wanted - own)


@given(borrowings())
def test_what_the_lender_was_promised_starts_no_later_for_anything_that_is_lent(
    drawn: tuple[ClusterState, list[Candidate], list[Candidate]],
) -> None:
    state, own, others = drawn
    first = {key: one for key, one in decided(state, LENDER, own).items() if isinstance(one, Waiting)}
    decided(state, BORROWER, others)
    waiting = [one.candidate for one in first.values()]
    again = decided(state, LENDER, waiting)
    for key, one in first.items():
        if one.latest is not None:
            then = again[key]
            assert isinstance(then, Placed) or (then.latest is not None and then.latest <= one.latest)


@given(borrowings())
def test_each_vcluster_decides_by_its_own_policy_whatever_the_other_one_is(
    drawn: tuple[ClusterState, list[Candidate], list[Candidate]],
) -> None:
    state, own, _ = drawn
    kinds: list[dict[str, tuple[int, ...] | str]] = []
    for kind in (BACKFILL, INTERACTIVE_FIFO, BIN_PACK):
        state.policies[BORROWER] = replace(state.policies[BORROWER], kind=kind)
        found = decided(state, LENDER, own)
        kinds.append({uid: one.nodes if isinstance(one, Placed) else one.reason for uid, one in found.items()})
        state.drop_claims(list(found))
        state.backfill_reservations.clear()
    assert kinds[0] == kinds[1] == kinds[2]
