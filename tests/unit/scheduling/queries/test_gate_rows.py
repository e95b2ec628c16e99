"""Every gate in its order with its numbers; the first that blocks is the one whose reason the allocation has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings

from lattice.accounting.budgets import OF_TENANT, Scope
from lattice.errors import NotFound
from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import ROOT, Group
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.policy import Borrowing, Limits, Policy
from lattice.scheduling.queries.context import QueryContext
from lattice.scheduling.queries.gate_rows import explain_gates
from lattice.scheduling.queries.quota_answers import Gate, QuotaExplanation
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.what_if import undone
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.views.ledger import TenantAccount
from tests.build import uid
from tests.unit.scheduling.moments import ALICE, MARK, NOW, holding, moment, moments, pending

SCHEMA = json.loads((Path(__file__).resolve().parents[4] / "docs" / "reference" / "schemas" / "quota-explanation-v1.json").read_text())
ADMIN = Reader("ada", groups=True)
ORDER = ["Itself", "HardQuota", "Budget", "QuotaTree", "VCluster", "Reservation", "Nodes"]


def gates(context: QueryContext, number: int = 1, reader: Reader = ALICE) -> dict[str, Gate]:
    return {gate.gate: gate for gate in checked(explain_gates(context, uid(number), reader)).gates}


def checked(found: QuotaExplanation) -> QuotaExplanation:
    jsonschema.validate(json.loads(msgspec.json.encode(found)), SCHEMA)
    return found


def numbers(gate: Gate) -> list[tuple[Any, ...]]:
    return [(one.of, one.name, one.used, one.requested, one.limit, one.blocks) for one in gate.limits]


def grown(context: QueryContext, *groups: Group, **asked_and_held: tuple[int, int]) -> QueryContext:
    """The situation with a quota tree over its nodes; other groups than its own ask for, and hold, so many nodes."""
    context.state.plant(Forest([TreeSpec(groups=groups)]))
    quota_usage = context.state.quota_usage
    assert quota_usage is not None
    quota_usage.forest.capacity("", {"nodes": len(context.nodes)})
    quota_usage.ask(context.candidates.values(), NOW)
    for name, (asked, held) in asked_and_held.items():
        quota_usage.forest.demand(name, {"nodes": asked}, {"nodes": held})
    return context


def group(name: str, parent: str = ROOT, least: int = 0, most: int = 60, **fields: Any) -> Group:
    return Group(name, parent, min={"nodes": least}, max={"nodes": most}, **fields)


def test_gates_stand_in_the_order_of_the_cycle_and_without_limits_all_are_open() -> None:
    found = checked(explain_gates(moment(4, (), (pending(1),)), uid(1), ALICE))
    assert [gate.gate for gate in found.gates] == ORDER
    assert [gate.gate for gate in found.gates if gate.first] == ["Nodes"]  # what the last cycle said
    assert {gate.verdict for gate in found.gates[:-1]} == {"Passes", "Unlimited"}
    assert (found.leaf, found.tree) == ("", "")


def test_the_hard_quota_shows_the_limits_of_tenant_and_user_and_which_one_blocks() -> None:
    context = moment(8, (holding(9, (0, 1)),), (pending(1, nodes=2),))
    context.state.accounts = {"physics": TenantAccount(max_nodes=8, used_nodes=2, max_allocations=5, used_allocations=1, user_max_nodes=3)}
    gate = gates(context)["HardQuota"]
    assert (gate.verdict, gate.reason) == ("Blocks", "WaitingForQuotaHeadroom")
    assert numbers(gate) == [
        ("tenant physics", "quota.maxNodes", 2, 2, 8, False),
        ("tenant physics", "quota.maxConcurrentAllocations", 1, 1, 5, False),
        ("user alice", "quota.perUser.maxNodes", 2, 2, 3, True),
    ]


def test_a_budget_at_whose_end_work_waits_blocks_with_its_numbers() -> None:
    context = moment(4, (), (pending(1),))
    spent = Exhausted('the budget of tenant "physics" has used 110 of 100 node-hours', NOW + 600)
    context.state.exhausted = {Scope(OF_TENANT, "physics"): spent}
    gate = gates(context)["Budget"]
    assert (gate.verdict, gate.first, gate.reason) == ("Blocks", True, "BudgetExhausted")
    assert "110 of 100 node-hours" in gate.message


def test_the_quota_tree_shows_level_by_level_and_which_one_blocks() -> None:
    context = moment(8, (), (pending(1, nodes=4, quota="theory"),))
    grown(
        context, group("physics", least=6, most=6, is_parent=True), group("theory", "physics", least=2),
        group(f"{MARK}_lab", "physics", least=4), FOREIGN_lab=(5, 3),
    )  # fmt: skip
    found = checked(explain_gates(context, uid(1), ALICE))
    gate = next(gate for gate in found.gates if gate.gate == "QuotaTree")
    assert (gate.verdict, gate.reason, gate.first, found.leaf) == ("Blocks", "WaitingForQuotaShare", True, "theory")
    assert [(one.of, one.depth, one.blocks) for one in gate.limits] == [("theory", 1, True), ("physics", 0, True)]
    cycle = list(decide(context.state, "hpc", context.candidates.values(), NOW))
    assert [(one.reason, one.message) for one in cycle if isinstance(one, Waiting)] == [(gate.reason, gate.message)]
    above = gate.limits[1]
    assert (above.name, above.used, above.requested, above.limit, above.request, above.min) == ("max", 3, 4, 6, 9, 6)
    assert MARK not in msgspec.json.encode(found).decode()


def test_who_borrows_is_a_sum_to_ordinary_people_and_a_name_to_those_who_list_groups() -> None:
    context = moment(10, (), (pending(1, nodes=9, quota="a"),))
    grown(context, group("a", least=2, most=9), group(f"{MARK}_b", least=2, most=9), FOREIGN_b=(9, 9))
    ours, theirs = (gates(context, reader=reader)["QuotaTree"] for reader in (ALICE, ADMIN))
    assert [(one.name, one.count, one.borrowed) for one in ours.borrowers] == [("", 1, 7)]
    assert MARK not in ours.message
    assert [(one.name, one.count, one.borrowed) for one in theirs.borrowers] == [(f"{MARK}_b", 1, 7)]
    assert f"{MARK}_b 7" in theirs.message


def test_limits_of_the_vcluster_and_what_it_may_borrow_stand_beside_each_other() -> None:
    context = moment(8, (holding(9, (0, 1), borrowed=(1,)),), (pending(1, nodes=2),))
    policy = Policy("hpc", home=True, limits=Limits(max_nodes_per_user=3), borrowing=Borrowing(borrow=True, max_borrowed=4))
    context.state.policies["hpc"] = policy
    gate = gates(context)["VCluster"]
    assert numbers(gate) == [
        ("user alice", "limits.maxNodesPerUser", 2, 2, 3, True),
        ("vcluster hpc", "borrowing.maxBorrowed", 1, 0, 4, False),
    ]
    assert gate.verdict == "Blocks"


def test_work_on_nodes_passes_every_gate_and_is_told_where_its_group_uses_too_much() -> None:
    context = moment(8, (holding(9, (0, 1)),), limit=2)
    found = gates(context, 9)
    assert {gate.verdict for gate in found.values()} <= {"Passes", "Unlimited"}
    assert numbers(found["HardQuota"]) == [("tenant physics", "quota.maxNodes", 0, 0, 2, False)]
    context = moment(8, (holding(9, tuple(range(6)), quota="theory"),))
    grown(context, group("theory", least=2), group("lab", least=6), lab=(8, 0))
    gate = gates(context, 9)["QuotaTree"]
    assert numbers(gate) == [("theory", "runtime", 6, 0, 2, False)]
    assert gate.message == 'group "theory" uses 6 of nodes and may use 2: what it borrows may be taken back'


def test_work_that_neither_waits_nor_holds_nodes_is_not_found() -> None:
    with pytest.raises(NotFound) as refused:
        explain_gates(moment(4), uid(1), ALICE)
    assert refused.value.reason == "NotPending"


@settings(deadline=None, max_examples=40)
@given(moments())
def test_the_first_gate_that_blocks_gives_the_reason_that_the_cycle_gives(context: QueryContext) -> None:
    with undone(context.state) as state:
        for vcluster in sorted({one.vcluster for one in context.candidates.values()}):
            for candidate in [one for one in context.candidates.values() if one.vcluster == vcluster]:
                outcome = next(iter(decide(state, vcluster, [candidate], context.now)))
                state.drop_holder(candidate.uid)
                first = [gate for gate in explain_gates(context, candidate.uid, ALICE).gates if gate.first]
                if isinstance(outcome, Waiting) and first and first[0].gate != "Nodes":
                    assert (first[0].reason, first[0].message) == (outcome.reason, outcome.message)
                elif isinstance(outcome, Waiting):
                    assert outcome.reason not in {"Held", "WaitingForQuotaHeadroom"}
