"""Budgets at whose end work waits: the gate, its sentence and its time, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.accounting.budgets import Allowance, Budgets, Outside, Period
from lattice.accounting.meter import Meter
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.budget_gate import budget, exhausted
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount

NOW, HOUR = 1_795_000_000.0, 3600.0
JOB = Candidate("physics/a", "u", "physics", "hpc", 5, NOW, 1, 1, Need(), user="alice", project="lhc", walltime=HOUR)


def meter(budgets: Budgets, node_hours: float = 10.0) -> Meter:
    """alice has used so many node-hours of project lhc, the last of them just now."""
    made = Meter()
    made.agree({"physics": budgets})
    made.count("physics", "alice", "lhc", NOW - node_hours * HOUR, 1, 4)
    made.count("physics", "alice", "lhc", NOW, -1, -4)
    return made


@pytest.mark.parametrize(
    ("budgets", "who"),
    [
        (Budgets(Allowance(node_hours=10.0), queues=True), 'tenant "physics"'),
        (Budgets(projects={"lhc": Allowance(gpu_hours=40.0)}, queues=True), 'project "lhc" of tenant "physics"'),
        (Budgets(per_user=Allowance(node_hours=9.0), queues=True), 'user "alice" of tenant "physics"'),
    ],
)
def test_work_waits_at_the_end_of_each_kind_of_budget_with_its_numbers(budgets: Budgets, who: str) -> None:
    waiting = budget(exhausted(meter(budgets), NOW), JOB)
    assert waiting is not None
    assert waiting.reason == "BudgetExhausted"
    assert waiting.message.startswith(f"waiting for budget: {who} has used ")
    assert waiting.wake is not None
    assert waiting.wake > NOW


def test_others_than_those_who_have_used_it_up_go_on() -> None:
    budgets = Budgets(projects={"lhc": Allowance(node_hours=1.0)}, per_user=Allowance(node_hours=1.0), queues=True)
    spent = exhausted(meter(budgets), NOW)
    assert budget(spent, replace(JOB, user="bob", project="")) is None
    assert budget(spent, replace(JOB, user="bob")) is not None
    assert budget(spent, replace(JOB, tenant="ml")) is None


def test_a_budget_that_only_penalises_or_is_not_used_up_blocks_nothing() -> None:
    assert exhausted(meter(Budgets(Allowance(node_hours=1.0))), NOW) == {}
    assert exhausted(meter(Budgets(Allowance(node_hours=10.01), queues=True)), NOW) == {}


def test_it_lets_go_when_it_says_so() -> None:
    made = meter(Budgets(Allowance(node_hours=8.0), period=Period(seconds=24 * HOUR), queues=True))
    (found,) = exhausted(made, NOW).values()
    assert found.until is not None
    assert exhausted(made, found.until) == {}
    again = meter(Budgets(Allowance(node_hours=8.0), period=Period(seconds=24 * HOUR), queues=True))
    assert exhausted(again, found.until - 2.0)


def test_what_an_outside_source_told_counts_and_its_end_is_not_known() -> None:
    outside = Outside("waldur", Allowance(gpu_hours=5.0), Allowance(gpu_hours=5.0), NOW + HOUR)
    (found,) = exhausted(meter(Budgets(Allowance(node_hours=1e6), queues=True, outside=outside)), NOW).values()
    assert "(told by waldur)" in found.message
    assert found.until is None


def test_a_cycle_places_nothing_of_a_tenant_without_budget_and_all_of_the_others() -> None:
    state = ClusterState(NodeCache(), {"physics": TenantAccount(), "ml": TenantAccount()})
    for index in range(4):
        state.node_cache.put(NodeFacts(index, f"n{index}", "g", 8, 1 << 30, 0, frozenset(), hollow=False, usable=True, state="Ready"))
    state.exhausted = exhausted(meter(Budgets(Allowance(node_hours=10.0), queues=True)), NOW)
    other = replace(JOB, key="ml/b", uid="v", tenant="ml")
    outcomes = {one.candidate.uid: one for one in decide(state, "hpc", [JOB, other], NOW)}
    assert isinstance(outcomes["v"], Placed)
    assert isinstance(outcomes["u"], Waiting)
    assert outcomes["u"].reason == "BudgetExhausted"
