"""Which orders of a group's plan concern one node: pure."""

from __future__ import annotations

from lattice.ledger.plans import PlanRow, parse_plan
from lattice.views.ledger import Plan
from lattice_agent.lifecycle import PlanRead


def rows_of(node: str, plan: Plan) -> tuple[PlanRow, ...]:
    """The rows that name the node. Raises Corrupt for a plan that this agent cannot read: it acts on none of it."""
    if not plan.spec.text:
        return ()
    return tuple(row for row in parse_plan(plan.spec.text) if node in row.nodes)


def read(node: str, plan: Plan) -> PlanRead:
    """The plan as the node's state machine takes it."""
    return PlanRead(plan.spec.seq, rows_of(node, plan))


def rows_by_node(plan: Plan) -> dict[str, list[PlanRow]]:
    """The rows of every node that the plan names: one pass for a process that is many nodes."""
    found: dict[str, list[PlanRow]] = {}
    if plan.spec.text:
        for row in parse_plan(plan.spec.text):
            for node in row.nodes:
                found.setdefault(node, []).append(row)
    return found
