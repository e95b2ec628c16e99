"""One cycle: order, places and reasons; the machine always equals what it is rebuilt from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.models.reasons import PENDING_WORDS
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import job, node

UNLIMITED = {"physics": TenantAccount()}


def node_cache(*nodes: NodeFacts) -> NodeCache:
    made = NodeCache()
    for facts in nodes:
        made.put(facts)
    return made


def outcomes(made: NodeCache, *jobs: Candidate, accounts: dict[str, TenantAccount] | None = None) -> dict[str, Outcome]:
    found = {outcome.candidate.key[-4:]: outcome for outcome in decide(ClusterState(made, accounts or UNLIMITED), "hpc", jobs, 1000.0)}
    made.validate()
    return found


def places(made: NodeCache, candidate: Candidate, **fields: Any) -> tuple[int, ...] | None:
    outcome = next(decide(ClusterState(made, UNLIMITED, **fields), "hpc", [candidate], 1000.0))
    made.validate()
    return outcome.nodes if isinstance(outcome, Placed) else None


def test_higher_classes_go_first_then_who_waits_longer() -> None:
    queue = decide(ClusterState(node_cache(node(0)), UNLIMITED), "hpc", [job(3), job(1, submitted=9.0), job(2, preemption_class=7)], 1000.0)
    assert [outcome.candidate.key[-4:] for outcome in queue] == ["0002", "0003", "0001"]


def test_a_smaller_one_behind_a_blocked_one_starts() -> None:
    found = outcomes(node_cache(node(0), node(1)), job(1, 3), job(2, 1))
    assert isinstance(found["0002"], Placed)


def test_the_smallest_group_that_holds_all_is_taken() -> None:
    made = node_cache(*(node(index, "big") for index in range(4)), *(node(index, "small") for index in (4, 5)))
    assert places(made, job(1, 2)) == (4, 5)
    assert places(node_cache(*made.nodes.values()), job(1, 5)) == (0, 1, 2, 3, 4)


def test_a_range_is_placed_on_its_least_nodes() -> None:
    assert places(node_cache(*(node(index) for index in range(6))), job(1, 2, maximum=4)) == (0, 1)


def test_hollow_and_real_nodes_are_never_mixed() -> None:
    made = node_cache(node(0), node(1, hollow=True, features=frozenset({"hollow"})))
    found = outcomes(made, job(1, 2), job(2, need=Need(hollow=True, features=frozenset({"hollow"}))))
    assert isinstance(found["0001"], Waiting)
    assert found["0001"].reason == "NeverFits"
    assert isinstance(found["0002"], Placed)
    assert found["0002"].nodes == (1,)


REASONS: list[tuple[str, NodeCache, Candidate, dict[str, TenantAccount], str, str]] = [
    ("too many", node_cache(node(0)), job(1, 2), UNLIMITED, "NeverFits", "needs 2 nodes, and 1 exist that fit its constraints"),
    ("a node is down", node_cache(node(0), node(1, usable=False, state="Down")), job(1, 2), UNLIMITED, "NodesUnavailable",
     "needs 2 nodes; of 2 that fit, 1 can be used (1 Down)"),
    ("held", node_cache(node(0)), job(1, held=True), UNLIMITED, "Held", "spec.hold is set; `lattice release` lets it go"),
    ("later", node_cache(node(0)), job(1, not_before=1060.0), UNLIMITED, "NotBefore", "starts 1m from now at the earliest"),
    ("closed", node_cache(node(0)), job(1, vcluster_open=False), UNLIMITED, "VClusterClosed",
     'vCluster "hpc" is Closed: it accepts work and starts none'),
    ("quota", node_cache(node(0), node(1)), job(1, 2), {"physics": TenantAccount(max_nodes=4, used_nodes=3)}, "WaitingForQuotaHeadroom",
     'waiting for quota headroom: tenant "physics" would exceed max_nodes quota (current: 3, requested: 2, limit: 4)'),
    ("paused", node_cache(node(0)), job(1), {"physics": TenantAccount(max_nodes=0)}, "WaitingForQuotaHeadroom",
     ('waiting for quota headroom: tenant "physics" would exceed max_nodes quota (current: 0, requested: 1, limit: 0)'
     "; it is paused: nothing starts until the limit is raised")),
    ("more than the quota", node_cache(node(0), node(1)), job(1, 2), {"physics": TenantAccount(max_nodes=1)}, "WaitingForQuotaHeadroom",
     ('waiting for quota headroom: tenant "physics" would exceed max_nodes quota (current: 0, requested: 2, limit: 1)'
     "; more than the limit itself: it starts only when the limit is raised")),
    ("a lowered quota", node_cache(node(0)), job(1), {"physics": TenantAccount(max_nodes=2, used_nodes=3)}, "WaitingForQuotaHeadroom",
     ('waiting for quota headroom: tenant "physics" would exceed max_nodes quota (current: 3, requested: 1, limit: 2)'
     "; the limit was lowered below what is held: what runs goes on, and nothing starts until enough of it has ended")),
    ("quota of a user", node_cache(node(0), node(1)), job(1, 2, user="alice"), {"physics": TenantAccount(user_max_nodes=1)},
     "WaitingForQuotaHeadroom",
     ('waiting for quota headroom: user "alice" of tenant "physics" would exceed max_nodes quota (current: 0, requested: 2, limit: 1)'
     "; more than the limit itself: it starts only when the limit is raised")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "candidate", "accounts", "reason", "message"), [pytest.param(*entry[1:], id=entry[0]) for entry in REASONS]
)
def test_every_no_has_its_reason_and_numbers(
    made: NodeCache, candidate: Candidate, accounts: dict[str, TenantAccount], reason: str, message: str
) -> None:
    found = outcomes(made, candidate, accounts=accounts)["0001"]
    assert isinstance(found, Waiting)
    assert (found.reason, found.message) == (reason, message)


def test_waiting_for_nodes_says_how_many_are_in_use() -> None:
    made = node_cache(*(node(index) for index in range(4)))
    made.take((0, 1, 2))
    found = outcomes(made, job(1, 2))["0001"]
    assert isinstance(found, Waiting)
    assert (found.reason, found.message) == ("WaitingForNodes", "needs 2 nodes; of 4 that fit, 1 is free, 3 in use")


def test_nodes_that_went_to_work_that_comes_first_are_named_as_such() -> None:
    found = outcomes(node_cache(node(0), node(1)), job(1, 2, preemption_class=9, grace=30.0), job(2, 2, grace=30.0))["0002"]
    assert isinstance(found, Waiting)
    assert (found.reason, found.message) == (
        "BehindHigherPriority", "needs 2 nodes; 2 were free, and 2 of them went to work that comes first; it starts at the latest 1970-01-01T01:18:56Z",
    )  # fmt: skip


facts = st.builds(
    lambda index, group, cpus, usable: node(index, f"g{group}", cpus=cpus, usable=usable, state="Ready" if usable else "Down"),
    st.integers(0, 15), st.integers(0, 3), st.sampled_from((4, 8)), st.booleans(),
)  # fmt: skip
jobs = st.builds(
    lambda number, nodes, extra, cpus, rank: replace(job(number, nodes), maximum=nodes + extra, need=Need(cpus=cpus), preemption_class=rank),
    st.integers(1, 400), st.integers(1, 6), st.integers(0, 2), st.sampled_from((0, 8)), st.integers(0, 10),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(facts, max_size=16, unique_by=lambda found: found.index), st.sets(st.integers(0, 15)),
    st.lists(jobs, max_size=12, unique_by=lambda entry: entry.key),
)  # fmt: skip
def test_every_place_satisfies_its_need_and_no_earlier_one_that_fits_is_passed_over(
    nodes: list[NodeFacts], taken: set[int], waiting: list[Candidate]
) -> None:
    made = node_cache(*nodes)
    made.take(taken)
    free = {found.index for found in nodes if found.usable and found.index not in taken}
    by_index = {found.index: found for found in nodes}
    twin = node_cache(*nodes)
    twin.take(taken)
    decided = list(decide(ClusterState(made, UNLIMITED), "hpc", waiting, 1000.0))
    assert decided == list(decide(ClusterState(twin, UNLIMITED), "hpc", waiting, 1000.0))
    for outcome in decided:
        fitting = {index for index in free if by_index[index].cpus >= outcome.candidate.need.cpus}
        match outcome:
            case Placed(candidate, places):
                assert set(places) <= fitting
                assert candidate.minimum <= len(places) <= candidate.maximum
                free -= set(places)
            case Waiting(candidate, reason, _):
                assert len(fitting) < candidate.minimum
                assert reason in PENDING_WORDS
    made.validate()


def test_equal_needs_are_explained_once_and_anew_after_a_place_was_found() -> None:
    work = [job(1, 3), job(2, 3), job(3, 2), job(4, 3)]
    outcomes = list(decide(ClusterState(node_cache(node(0), node(1)), UNLIMITED), "hpc", work, 0.0))
    reasons = [outcome.message for outcome in outcomes if isinstance(outcome, Waiting)]
    assert reasons == ["needs 3 nodes, and 2 exist that fit its constraints"] * 3
    held = node_cache(*(node(index) for index in range(4)))
    held.take([0])
    told = [
        outcome
        for outcome in decide(ClusterState(held, UNLIMITED), "hpc", [job(1, 4), job(2, 2), job(3, 4)], 0.0)
        if isinstance(outcome, Waiting)
    ]
    assert [outcome.message for outcome in told] == [
        "needs 4 nodes; of 4 that fit, 3 are free, 1 in use",
        "needs 4 nodes; of 4 that fit, 1 is free, 3 in use",
    ]
