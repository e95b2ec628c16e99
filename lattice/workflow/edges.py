"""Answers edges: what a predecessor has come to, in one letter, once and for good (decisions, "dependency outcomes").

| condition | met (M) | never met (F, N) |
|---|---|---|
| Success | it completed | F: it failed, or was cancelled |
| Failure | it failed, by walltime and lost nodes too | N: it completed; F: it was cancelled |
| Any | it ended in whatever way | |
| Started | its first process ran, or it ended without | |
| Mutex | no other work has it (`mutexes`) | |

What was cancelled, or skipped for its own edges, meets Any and Started only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import CANCELLED, COMPLETED
from lattice.units import format_time, parse_duration, parse_time
from lattice.views.allocation import Allocation, Dependency, Edge

MET: Final = "M"
NEVER: Final = "F"
NOT_NEEDED: Final = "N"
LONGEST_DELAY: Final = 366 * 86400.0
"""Most seconds of a delay; admission refuses more, and more counts as this."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The facts that an edge asks of the work before it: its uid, its final state (empty: it has not ended), first start and end.

    Times are seconds since the epoch; 0: none is known.
    """

    uid: str
    state: str = ""
    started: float = 0.0
    ended: float = 0.0


def predecessor_of(allocation: Allocation) -> Predecessor:
    """Returns an allocation as edges see it; a failed attempt that another one follows is no end."""
    status = allocation.status
    starts = [entry.start_time for entry in status.attempts] + [status.start_time]
    started = min((parse_time(text) for text in starts if text), default=0.0)
    if not is_final(status):
        return Predecessor(allocation.metadata.uid, started=started)
    ended = parse_time(status.end_time) if status.end_time else 0.0
    return Predecessor(allocation.metadata.uid, status.phase, started, ended)


def answered(edge: Edge, dependency: Dependency, before: Predecessor) -> Edge:
    """Returns an edge with its answer, where its predecessor has given one; an edge that has its answer is returned as it is."""
    if edge.answer:
        return edge
    letter = condition_letter(dependency.condition, before)
    if not letter:
        return edge
    due = None
    if letter == MET and dependency.delay:
        met_at = before.started or before.ended if dependency.condition == "Started" else before.ended
        due = format_time(met_at + _seconds(dependency.delay))
    return Edge(index=edge.index, uid=edge.uid, answer=letter, due=due)


def _seconds(delay: str) -> float:
    """Returns a delay in seconds; the longest for a text that does not read, which came in while the webhook was away."""
    try:
        return min(parse_duration(delay), LONGEST_DELAY)
    except Rejected:
        return LONGEST_DELAY


def condition_letter(condition: str, before: Predecessor) -> str:
    """Returns the answer of a condition; empty: it is open."""
    if condition == "Started":
        return MET if before.started or before.state else ""
    if not before.state:
        return ""
    match condition:
        case "Any":
            return MET
        case "Success":
            return MET if before.state == COMPLETED else NEVER
        case "Failure" if before.state == COMPLETED:
            return NOT_NEEDED
        case "Failure":
            return NEVER if before.state == CANCELLED else MET
        case _:
            return NEVER  # of a later release: the schema refuses it, and nothing starts by it
