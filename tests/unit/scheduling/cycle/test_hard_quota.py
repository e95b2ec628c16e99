"""Cycles and ledger judge hard limits alike: what is placed is accepted, and what fits does not wait."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.ledger.commit import Book, apply_all, beyond
from lattice.ledger.proposals import Accepted, Claim, Limits, Pool, Stop
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from tests.build import uid

NODES = 64
TENANTS, USERS, VCLUSTERS = ("physics", "ml"), ("alice", "bob", "eve"), ("hpc", "service")
NOW = 1000.0

people = st.tuples(st.sampled_from(TENANTS), st.sampled_from(USERS))
limit = st.none() | st.integers(0, 9)
limits = st.tuples(limit, limit, limit, limit)
held = st.lists(st.tuples(people, st.integers(1, 4), st.booleans()), max_size=4)
asked = st.lists(st.tuples(people, st.sampled_from(VCLUSTERS), st.integers(1, 4), st.integers(0, 3)), max_size=12)
Held = list[tuple[tuple[str, str], int, bool]]
Asked = list[tuple[tuple[str, str], str, int, int]]


def holding(rows: Held) -> tuple[Book, ClusterState]:
    """The same in both: rows that hold nodes, some of them releasing, and accounts without limits."""
    book, node_cache = Book.empty("term", "commit"), NodeCache()
    apply_all(book, [Pool(NODES), *(Limits(tenant, None, None) for tenant in TENANTS)])
    for index in range(NODES):
        node_cache.put(NodeFacts(index, f"n{index}", "g", 8, 1 << 30, 0, frozenset(), hollow=False, usable=True, state="Ready"))
    state, first = ClusterState(node_cache), 0
    for number, ((tenant, user), count, releasing) in enumerate(rows):
        nodes = tuple(range(first, first + count))
        first += count
        key = (uid(900 + number), 1)
        apply_all(book, [Claim(key[0], 1, 1, user, tenant, "hpc", "B", nodes[0], nodes), *([Stop(key, "c")] if releasing else [])])
        name = f"{key[0]}/1" if releasing else key[0]
        state.put_holder(NodeHolder(name, name, tenant, user, "hpc", 5, nodes, since=NOW, releasing=releasing))
    return book, state


def queue(wishes: Asked) -> list[Candidate]:
    return [
        Candidate(
            key=f"ns/job-{number:03d}", uid=uid(number), tenant=tenant, vcluster=vcluster, preemption_class=5, submitted=float(number),
            minimum=least, maximum=least + more, need=Need(), user=user, walltime=600.0,
        )
        for number, ((tenant, user), vcluster, least, more) in enumerate(wishes)
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(held, st.tuples(limits, limits), asked)
def test_the_ledger_accepts_what_a_cycle_places_and_nothing_waits_that_it_would_accept(
    rows: Held, agreed: tuple[tuple[int | None, ...], tuple[int | None, ...]], wishes: Asked
) -> None:
    book, state = holding(rows)
    for tenant, (nodes, allocations, user_nodes, user_allocations) in zip(TENANTS, agreed, strict=True):
        book.apply(Limits(tenant, nodes, allocations, user_nodes, user_allocations))
    state.accounts = dict(book.accounts)
    outcomes: list[Outcome] = []
    for vcluster in VCLUSTERS:
        outcomes += decide(state, vcluster, [one for one in queue(wishes) if one.vcluster == vcluster], NOW)
    state.validate()
    for outcome in outcomes:
        if isinstance(outcome, Placed):
            one = outcome.candidate
            claimed = Claim(one.uid, 1, 1, one.user, one.tenant, one.vcluster, "B", outcome.nodes[0], outcome.nodes)
            assert book.apply(claimed)[0] == Accepted()
    for outcome in outcomes:
        if isinstance(outcome, Waiting):
            one = outcome.candidate
            excess = beyond(book.accounts[one.tenant], book.used_by(one.tenant, one.user), one.tenant, one.user, one.minimum)
            assert excess is not None, f"{one.key} waits with {outcome.reason} though it fits"
            assert outcome.reason == "WaitingForQuotaHeadroom"
            assert "(current: " in outcome.message
