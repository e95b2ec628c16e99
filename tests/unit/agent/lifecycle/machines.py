"""The node's state machine as tests drive it: one event at a time, validated, its instructions returned."""

from __future__ import annotations

from typing import Any

from lattice_agent.attempts import Known, Seen
from lattice_agent.lifecycle.events import (
    Cleared,
    Directed,
    Event,
    PlanRead,
    Prepared,
    Started,
    TermsRead,
)
from lattice_agent.lifecycle.instructions import Clear, Instruction
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.members import Direction, Order
from tests.unit.agent.rows import key, run, running, terms

START = Direction(Order.START)


def machine(*found: Known, seen_seq: int = 1) -> Lifecycle:
    return Lifecycle("n1", seen=Seen(seen_seq), known=found)


def feed(node: Lifecycle, *events: Event, boottime: float = 10.0) -> list[Instruction]:
    """The instructions of the last event, and of the epilogue's end where that follows at once."""
    out: list[Instruction] = []
    for event in events:
        out = order(node, event, boottime=boottime)
        for clear in [one for one in out if isinstance(one, Clear)]:
            out.remove(clear)
            out += order(node, Cleared(clear.key), boottime=boottime)
    return out


def order(node: Lifecycle, event: Event, *, boottime: float = 10.0) -> list[Instruction]:
    """The instructions of one event."""
    out = node.handle(event, boottime)
    node.validate()
    return out


def started(node: Lifecycle, **fields: Any) -> None:
    """Leads attempt 1 to RUNNING at boottime 10."""
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms(**fields)), Prepared(key()), Directed(key(), START))
    feed(node, Started(key(), running()))


def states(node: Lifecycle) -> list[str]:
    return [row.state + row.detail for row in node.report()]
