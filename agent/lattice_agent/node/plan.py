"""Which orders of a group's plan concern one node: pure."""

from __future__ import annotations

from collections.abc import Iterable

from lattice.ledger.plans import PlanRow, parse_plan
from lattice.views.ledger import Plan
from lattice_agent.lifecycle.machine import PlanRead


def rows_of(node: str, plan: Plan) -> tuple[PlanRow, ...]:
    """The rows that name the node. Raises Corrupt for a plan that this agent cannot read: it acts on none of it."""
    if not plan.spec.text:
        return ()
    return tuple(row for row in parse_plan(plan.spec.text) if node in row.nodes)


def read(node: str, plan: Plan) -> PlanRead:
    """The plan as the node's state machine takes it."""
    return read_as(plan, rows_of(node, plan))


def read_as(plan: Plan, rows: Iterable[PlanRow]) -> PlanRead:
    """These rows with what the plan says of the ledger that it was made from."""
    spec = plan.spec
    return PlanRead(spec.seq, tuple(rows), spec.epoch, spec.term, spec.since)


def rows_by_node(plan: Plan) -> dict[str, list[PlanRow]]:
    """The rows of every node that the plan names: one pass for a process that is many nodes."""
    found: dict[str, list[PlanRow]] = {}
    if plan.spec.text:
        for row in parse_plan(plan.spec.text):
            for node in row.nodes:
                found.setdefault(node, []).append(row)
    return found
