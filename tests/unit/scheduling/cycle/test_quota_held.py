"""Demand that a hard quota or a budget keeps waiting: how much of it, and that a look without it leaves everything as it was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.accounting.budgets import OF_TENANT, Scope
from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import Group
from lattice.scheduling.cycle.quota_held import quota_held_demand
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import node
from tests.unit.scheduling.moments import NOW, OWNERS, holding, pending

PHYSICS, LAB = OWNERS[0][1], OWNERS[2][1]


def site(*work: Candidate, **accounts: TenantAccount) -> ClusterState:
    """Eight nodes, two leaves, and these accounts of the tenants (by default without limits)."""
    known = {PHYSICS: TenantAccount(), LAB: TenantAccount(), OWNERS[3][1]: TenantAccount(), **accounts}
    state = ClusterState(accounts=known, policies={"hpc": Policy("hpc")})
    for index in range(8):
        state.node_cache.put(node(index, f"g{index // 4}"))
    forest = Forest([TreeSpec(groups=(Group("a", max={"nodes": 8}), Group("b", max={"nodes": 8})))])
    forest.capacity("", {"nodes": 8})
    state.plant(forest)
    assert state.quota_usage is not None
    state.quota_usage.ask(work, NOW)
    return state


def nodes(state: ClusterState) -> dict[str, int]:
    return {leaf: amounts["nodes"] for leaf, amounts in quota_held_demand(state).items()}


def test_where_nothing_limits_nothing_is_withheld() -> None:
    assert quota_held_demand(site(pending(1, nodes=4, quota="a"), pending(2, nodes=8, quota="b"))) == {}
    assert quota_held_demand(ClusterState()) == {}


def test_what_was_submitted_first_counts_as_far_as_the_limit_leaves_room() -> None:
    work = [pending(1, nodes=2, quota="a"), pending(2, nodes=4, quota="a"), pending(3, nodes=1, quota="b"), pending(4, nodes=1, quota="b")]
    assert nodes(site(*work, physics=TenantAccount(max_nodes=5, used_nodes=1))) == {"a": 4}
    assert nodes(site(*work, physics=TenantAccount(max_nodes=3, used_nodes=1))) == {"a": 4, "b": 2}
    assert nodes(site(*work, physics=TenantAccount(max_allocations=2))) == {"b": 2}
    assert nodes(site(*work, physics=TenantAccount(max_nodes=0))) == {"a": 6, "b": 2}
    assert nodes(site(*work, physics=TenantAccount(user_max_nodes=2))) == {"a": 4, "b": 2}


def test_each_user_has_a_limit_of_his_own_and_what_he_holds_counts() -> None:
    work = [pending(1, 0, nodes=2, quota="a"), pending(2, 1, nodes=2, quota="a")]
    state = site(*work, physics=TenantAccount(user_max_nodes=3))
    assert quota_held_demand(state) == {}
    state.put_holder(holding(90, (0, 1), 0, quota="a"))
    assert nodes(state) == {"a": 2}


def test_work_whose_budget_is_used_up_is_withheld() -> None:
    state = site(pending(1, nodes=2, quota="a"), pending(2, 2, nodes=1, quota="b"))
    state.exhausted = {Scope(OF_TENANT, PHYSICS): Exhausted("used up", None)}
    assert nodes(state) == {"a": 2}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.integers(0, 2)), max_size=8), st.integers(0, 8))
def test_a_look_without_it_sees_what_may_start_and_leaves_everything_as_it_was(wishes: list[tuple[int, str, int]], limit: int) -> None:
    work = [pending(at, owner, nodes=count, quota=leaf) for at, (count, leaf, owner) in enumerate(wishes)]
    state = site(*work, physics=TenantAccount(max_nodes=limit))
    assert state.quota_usage is not None
    forest, kept_waiting = state.quota_usage.forest, quota_held_demand(state)
    before = [forest.standing(name) for name in "ab"]
    with state.quota_usage.without(kept_waiting):
        asked = sum(forest.booked(name).request.get("nodes", 0) for name in "ab")
        others = sum(count for count, _, owner in wishes if owner == 2)
        assert asked - others <= limit
    assert [forest.standing(name) for name in "ab"] == before
    state.validate()
