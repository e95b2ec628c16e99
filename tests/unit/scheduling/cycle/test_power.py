"""The power budget: what it leaves is used, by nodes that draw less where the first choice draws too much."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import LEFT, asks_for_more, extended
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.state.cluster_state import ClusterState, PowerBudget
from lattice.views.ledger import TenantAccount
from tests.build import node
from tests.unit.scheduling.moments import NOW, OWNERS, pending


def outcome_on(watts: list[int], limit: int, least: int, most: int) -> Outcome:
    """What becomes of work that takes any nodes, a range included; every third node has the same number of GPUs, so that classes differ."""
    node_cache = NodeCache()
    for index, each in enumerate(watts):
        node_cache.put(node(index, watts=each, gpus=index % 3, group="g0"))
    state = ClusterState(node_cache, {tenant: TenantAccount() for _, tenant in OWNERS}, {"hpc": Policy("hpc")}, power=PowerBudget(limit))
    candidate = pending(1, nodes=least, maximum=most)
    (found,) = decide(state, "hpc", [candidate], NOW)
    grown = extended(state, [candidate], NOW) if asks_for_more(found) else []
    state.validate()
    return grown[0] if grown else found


def test_nodes_that_draw_less_are_taken_where_the_plainest_draw_too_much() -> None:
    found = outcome_on([500, 100, 100, 500, 100, 500], 800, 4, 4)
    assert isinstance(found, Placed)
    assert sorted([500, 100, 100, 500, 100, 500][index] for index in found.nodes) == [100, 100, 100, 500]


def test_a_range_gets_as_many_nodes_as_there_is_power_for() -> None:
    watts = [500, 100, 100, 500, 100, 500] * 3
    found = outcome_on(watts, 499, 1, 8)
    assert isinstance(found, Placed)
    assert [watts[index] for index in found.nodes] == [100] * 4


def test_the_sentence_names_the_least_that_so_many_nodes_draw() -> None:
    found = outcome_on([500, 100, 100, 500, 100, 500], 799, 4, 4)
    assert isinstance(found, Waiting)
    assert (found.reason, found.message) == (
        "PowerBudget",
        "needs 4 nodes that draw 0.8 kW, more than the whole power budget of 0.799 kW: ask for fewer nodes, or wait until it is raised",
    )  # fmt: skip


def test_work_that_lacks_nodes_does_not_wait_for_the_power_that_work_before_it_lacks() -> None:
    node_cache = NodeCache()
    for index in range(4):
        node_cache.put(node(index, watts=500))
    node_cache.take([0], NOW + 3600)
    policies = {"hpc": Policy("hpc", depth=0)}
    state = ClusterState(node_cache, {tenant: TenantAccount() for _, tenant in OWNERS}, policies, power=PowerBudget(1000))
    wide, short_of_power = pending(1, nodes=4, preemption_class=9), pending(2, nodes=2, preemption_class=8)
    wide_too = pending(3, nodes=4, preemption_class=7, walltime=7200.0)
    found = list(decide(state, "hpc", [wide, short_of_power, wide_too], NOW))
    assert [one.reason for one in found if isinstance(one, Waiting)] == ["WaitingForNodes", "PowerBudget", "WaitingForNodes"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from((0, 100, 300, 700)), min_size=1, max_size=9), st.integers(0, 3000), st.integers(1, 6), st.integers(0, 4))
def test_work_waits_for_power_only_where_no_nodes_draw_little_enough(watts: list[int], limit: int, least: int, more: int) -> None:
    found = outcome_on(watts, limit, least, least + more)
    if len(watts) < least:
        assert isinstance(found, Waiting)
        assert found.reason == "NeverFits"
    elif sum(sorted(watts)[:least]) > limit:
        assert isinstance(found, Waiting)
        assert found.reason == "PowerBudget"
    else:
        assert isinstance(found, Placed)
        assert sum(watts[index] for index in found.nodes) <= limit
        best = max(count for count in range(1, len(watts) + 1) if sum(sorted(watts)[:count]) <= limit)
        idle = least + (len(watts) - least) // LEFT
        assert len(found.nodes) == min(best, least + more, idle)
