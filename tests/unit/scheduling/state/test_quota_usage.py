"""The quota tree in the cycle: whoever is over its share waits with the numbers, and demand is what the work makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import Group, Options
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import extended
from lattice.scheduling.forecast.forecaster import Forecaster
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.queries.what_if import undone
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.node_amounts import amounts_of
from lattice.views.ledger import TenantAccount
from tests.build import node
from tests.unit.scheduling.moments import NOW, OWNERS, holding, pending

GH200 = {"gpus": 4, "gpu_type": "GH200", "cpus": 32}


def group(name: str, parent: str = "", least: int = 0, most: int = 8, **fields: Any) -> Group:
    given: dict[str, Any] = {"min": {"nodes": least}, "max": {"nodes": most}, **fields}
    return Group(name, parent=parent, **given) if parent else Group(name, **given)


LEAVES = (group("a", "dept", 4), group("b", "dept", 4))
DEPARTMENT = (group("dept", least=8, is_parent=True), *LEAVES)


def site(nodes: int = 8, groups: tuple[Group, ...] = DEPARTMENT, *, gpus: int = 0, total: dict[str, int] | None = None) -> ClusterState:
    """A scene of so many nodes, of which the last `gpus` have GPUs, under one quota tree that divides them all."""
    node_cache = NodeCache()
    for index in range(nodes):
        node_cache.put(node(index, f"g{index // 4}", **(GH200 if index >= nodes - gpus else {})))
    state = ClusterState(node_cache, {tenant: TenantAccount() for _, tenant in OWNERS}, {"hpc": Policy("hpc")})
    forest = Forest([TreeSpec(groups=groups, options=Options(scale_min=True, raw_weight=True))])
    sums: dict[str, int] = {}
    for facts in node_cache.nodes.values():
        for resource, amount in amounts_of(facts).items():
            sums[resource] = sums.get(resource, 0) + amount
    forest.capacity("", total or sums)
    state.plant(forest)
    return state


def asks(number: int, leaf: str, nodes: int, **fields: Any) -> Candidate:
    return pending(number, nodes=nodes, quota=leaf, **fields)


def cycle(state: ClusterState, *queue: Candidate) -> dict[str, Outcome]:
    """The outcomes by the key of their candidate; the scene is sound after it."""
    found = {outcome.candidate.key: outcome for outcome in decide(state, "hpc", list(queue), NOW)}
    state.validate()
    return found


def told(outcome: Outcome) -> tuple[str, str]:
    assert isinstance(outcome, Waiting), outcome
    return outcome.reason, outcome.message


def test_a_group_may_use_what_its_sibling_lends_and_no_more() -> None:
    state = site()
    first, second = asks(1, "a", 6), asks(2, "a", 3)
    found = cycle(state, first, second)
    assert isinstance(found[first.key], Placed)
    reason, message = told(found[second.key])
    assert reason == "WaitingForQuotaShare"
    assert 'quota "a": nodes: 3 asked for and 6 used are above its' in message


def test_what_is_claimed_in_a_cycle_counts_in_the_same_cycle() -> None:
    state = site()
    queue = [asks(number, "a", 1) for number in range(12)]
    assert sum(isinstance(one, Placed) for one in cycle(state, *queue).values()) == 8


def test_a_full_parent_blocks_its_children_and_is_named() -> None:
    groups = (group("small", least=2, most=2, is_parent=True), group("a", "small", 1, 8), group("b", "small", 1, 8))
    state = site(groups=groups)
    first, second = asks(1, "a", 1), asks(2, "b", 2)
    found = cycle(state, first, second)
    assert isinstance(found[first.key], Placed)
    reason, message = told(found[second.key])
    assert (reason, 'quota "small"' in message, "max, which is 2" in message) == ("WaitingForQuotaShare", True, True) or (
        'quota "b"' in message and "runtime, which is 1" in message
    )


def test_work_that_may_not_be_preempted_stays_within_min() -> None:
    state = site()
    found = cycle(state, asks(1, "a", 4, preemptible=False), asks(2, "a", 1, preemptible=False), asks(3, "a", 1))
    reasons = [one.reason if isinstance(one, Waiting) else "Placed" for one in found.values()]
    assert reasons == ["Placed", "WaitingForQuotaShare", "Placed"]
    assert "above its min, which is 4" in told(found["physics/job-2"])[1]


def test_work_outside_of_every_group_is_not_bounded_and_leaves_the_tree_less() -> None:
    state = site()
    found = cycle(state, asks(1, "default", 5), asks(2, "a", 4))
    assert isinstance(found["physics/job-1"], Placed)
    assert told(found["physics/job-2"])[0] == "WaitingForQuotaShare"


def test_a_range_shrinks_to_the_share_and_not_below_its_least() -> None:
    state = site()
    state.put_holder(holding(90, (0, 1), quota="a"))
    ranged = asks(1, "a", 2, maximum=20)
    found = cycle(state, ranged, asks(2, "b", 1))
    placed = found["physics/job-1"]
    assert isinstance(placed, Placed)
    assert len(placed.nodes) == 2
    assert [len(one.nodes) for one in extended(state, [ranged], NOW)] == [3]  # a third of the three that are free
    assert isinstance(found["physics/job-2"], Placed)


def test_what_the_share_blocks_holds_back_no_node() -> None:
    state = site(groups=(group("a", least=1, most=1), group("b", least=1, most=8)))
    state.put_holder(holding(90, (0, 1, 2, 3, 4, 5, 6), quota="b"))
    blocked, behind = asks(1, "a", 2, preemption_class=9), asks(2, "b", 1, preemption_class=1, walltime=None)
    found = cycle(state, blocked, behind)
    assert told(found[blocked.key])[0] == "WaitingForQuotaShare"
    assert isinstance(found[behind.key], Placed)


def test_only_classes_of_nodes_that_the_share_admits_are_taken() -> None:
    most = {"nodes": 8, "gpu": 0}
    state = site(groups=(group("a", max=most),), gpus=6)
    found = cycle(state, asks(1, "a", 2), asks(2, "a", 1))
    first = found["physics/job-1"]
    assert isinstance(first, Placed)
    assert set(first.nodes) == {0, 1}
    assert told(found["physics/job-2"])[0] == "BehindHigherPriority"


def test_a_model_that_is_used_up_leaves_the_other_models() -> None:
    machine_groups = (group("a", max={"nodes": 8, "gpu/GH200": 4}),)
    state = site(groups=machine_groups, gpus=4)
    state.node_cache.put(node(0, "g0", gpus=4, gpu_type="A100"))
    queue = [asks(number, "a", 1, need=Need(gpus=1)) for number in (1, 2, 3)]
    found = cycle(state, *queue)
    placed = [one.nodes for one in found.values() if isinstance(one, Placed)]
    assert len(placed) == 2
    assert (0,) in placed


def test_what_can_never_start_or_is_held_takes_nothing_from_others() -> None:
    state = site()
    found = cycle(state, asks(1, "b", 20), asks(2, "b", 8, held=True), asks(3, "b", 8, not_before=NOW + 60), asks(4, "a", 8))
    assert isinstance(found["physics/job-4"], Placed)


def test_without_a_tree_nothing_is_charged() -> None:
    state = site()
    state.plant(None)
    assert isinstance(cycle(state, asks(1, "a", 8))["physics/job-1"], Placed)


def test_a_what_if_leaves_the_demand_as_it_was() -> None:
    state = site()
    state.put_holder(holding(90, (0, 1), quota="b"))
    assert state.quota_usage is not None
    waiting = asks(1, "a", 3)
    state.quota_usage.ask([waiting], NOW)
    before = state.quota_usage.forest.snapshot()
    with undone(state):
        list(decide(state, "hpc", [replace(waiting, minimum=1, maximum=1), asks(2, "b", 4)], NOW))
    assert state.quota_usage.forest.snapshot() == before
    state.validate()


def test_no_start_is_foreseen_for_work_that_waits_for_its_share() -> None:
    state = site()
    waits = cycle(state, asks(1, "a", 6), asks(2, "a", 3))
    said = [one for one in waits.values() if isinstance(one, Waiting)]
    found = Forecaster().forecast(state, {"hpc": [one.candidate for one in said]}, NOW, said)
    assert [(one.p50, one.reason) for one in found.values()] == [(None, "WaitingForQuotaShare")]


@pytest.mark.parametrize("change", [{"gpus": 8}, {"cpus": 16}])
def test_a_node_of_other_hardware_is_charged_anew(change: dict[str, Any]) -> None:
    state = site()
    assert state.quota_usage is not None
    state.put_holder(holding(90, (0, 1), quota="a"))
    state.node_cache.put(node(0, "g0", **change))
    state.quota_usage.nodes_changed([0])
    state.validate()


LEAF = st.sampled_from(["a", "b", "default", "unknown"])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_after_any_events_request_and_use_are_what_the_work_makes(data: st.DataObject) -> None:
    state = site(gpus=3)
    quota_usage = state.quota_usage
    assert quota_usage is not None
    waiting: dict[str, Candidate] = {}
    held: dict[str, NodeHolder] = {}
    now = NOW
    for number in range(data.draw(st.integers(1, 14))):
        now += 1
        match data.draw(st.sampled_from(["wait", "hold", "start", "end", "leave", "move", "node", "time"])):
            case "wait":
                later = data.draw(st.sampled_from([0.0, now + 2]))
                need = Need(gpus=data.draw(st.integers(0, 1)))
                fixed = data.draw(st.booleans())
                size = data.draw(st.integers(1, 9))
                one = asks(number, data.draw(LEAF), size, not_before=later, need=need, preemptible=fixed, held=data.draw(st.booleans()))
                waiting[one.uid] = one
                quota_usage.ask([one], now)
            case "hold":
                nodes = tuple(sorted(data.draw(st.sets(st.integers(0, 9), min_size=1, max_size=3))))
                run = holding(100 + number, nodes, quota=data.draw(LEAF), preemptible=data.draw(st.booleans()))
                held[run.uid] = run
                state.put_holder(run)
            case "start" if waiting:
                one = waiting[data.draw(st.sampled_from(sorted(waiting)))]
                state.claim(one, (data.draw(st.integers(0, 7)),), now)
                held[one.uid] = state.holders[one.uid]
            case "end" if held:
                uid = data.draw(st.sampled_from(sorted(held)))
                del held[uid]
                state.drop_holder(uid)
            case "leave" if waiting:
                uid = data.draw(st.sampled_from(sorted(waiting)))
                del waiting[uid]
                quota_usage.drop(uid)
            case "move" if held:
                uid = data.draw(st.sampled_from(sorted(held)))
                held[uid] = msgspec.structs.replace(held[uid], quota=data.draw(LEAF))
                state.put_holder(held[uid])
            case "node":
                index = data.draw(st.integers(0, 7))
                state.node_cache.put(node(index, f"g{index // 4}", gpus=data.draw(st.integers(0, 4))))
                quota_usage.nodes_changed([index])
            case _:
                quota_usage.ask(waiting.values(), now)
    quota_usage.ask(waiting.values(), now)
    kinds = sorted({facts.gpus for facts in state.node_cache.nodes.values()})
    nodes_asked: dict[str, int] = {}
    used: dict[str, int] = {}
    fixed_used: dict[str, int] = {}
    for run in held.values():
        used[run.quota] = used.get(run.quota, 0) + len(run.nodes)
        fixed_used[run.quota] = fixed_used.get(run.quota, 0) + (len(run.nodes) if run.non_preemptible else 0)
    for one in waiting.values():
        fitting = sum(facts.gpus >= one.need.gpus for facts in state.node_cache.nodes.values())
        if one.uid not in held and not one.held and one.not_before <= now and one.minimum <= fitting:
            nodes_asked[one.quota] = nodes_asked.get(one.quota, 0) + one.minimum
    assert kinds
    for leaf in ("a", "b", "default", "unknown"):
        booked = quota_usage.forest.booked(leaf)
        assert booked.used.get("nodes", 0) == used.get(leaf, 0)
        assert booked.request.get("nodes", 0) == used.get(leaf, 0) + nodes_asked.get(leaf, 0)
        assert booked.non_preemptible_used.get("nodes", 0) == fixed_used.get(leaf, 0)
    quota_usage.validate()
