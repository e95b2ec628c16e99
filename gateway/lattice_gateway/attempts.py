"""Chooses which attempt's output is read, on which nodes, and whether another attempt may follow; pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.errors import NotFound, Rejected, Stale
from lattice.lifecycle.conditions import condition, is_true
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import FINISHED, SCHEDULED
from lattice.units import expand_nodes
from lattice.views import Allocation, AllocationStatus


@dataclass(frozen=True)
class Target:
    """The attempt whose output is read, and the nodes it is read from, in rank order."""

    attempt: int
    nodes: tuple[str, ...]


def is_live(allocation: Allocation | None, attempt: int) -> bool:
    """Tells whether an attempt may still print something: it is the allocation's current one, and is not finished.

    False for a deleted allocation (None).
    """
    if allocation is None or allocation.status.attempt != attempt:
        return False
    return not is_true(allocation.status.conditions, FINISHED) and not is_final(allocation.status)


def present(status: AllocationStatus) -> Target | None:
    """Returns the current attempt with its nodes; None while no nodes are placed for it."""
    scheduled = condition(status.conditions, SCHEDULED)
    if not status.nodes or status.attempt < 1 or (scheduled is not None and scheduled.status == "False"):
        return None
    return Target(status.attempt, tuple(expand_nodes(status.nodes)))


def newest(status: AllocationStatus) -> Target | None:
    """Returns the newest attempt that ever had nodes, with these; None: none had any."""
    now = present(status)
    if now is not None:
        return now
    ended = [attempt for attempt in status.attempts if attempt.nodes]
    last = max(ended, key=lambda attempt: attempt.attempt, default=None)
    return Target(last.attempt, tuple(expand_nodes(last.nodes))) if last is not None else None


def named(status: AllocationStatus, attempt: int) -> Target | None:
    """Returns the attempt of this number with its nodes; None where it had no nodes, or its record is gone."""
    now = present(status)
    if now is not None and now.attempt == attempt:
        return now
    ended = next((entry for entry in status.attempts if entry.attempt == attempt and entry.nodes), None)
    return Target(attempt, tuple(expand_nodes(ended.nodes))) if ended is not None else None


def at_once(allocation: Allocation, attempt: int) -> Target:
    """Returns the attempt of this number (0: the newest) whose output is read without waiting.

    Raises NotFound where it is not on record, Stale while it has not started.
    """
    status = allocation.status
    target = named(status, attempt) if attempt else newest(status)
    if target is not None:
        return target
    if attempt and attempt <= status.attempt and not (attempt == status.attempt and is_live(allocation, attempt)):
        raise NotFound(
            f"{allocation.metadata.key} has no record of attempt {attempt}; the newest is {status.attempt}", reason="AttemptUnknown"
        )
    raise Stale(
        f"{allocation.metadata.key} has not started (phase {status.phase or 'Pending'}): there is no output yet; follow it to wait",
        reason="NotStarted",
    )


def limit_to(target: Target, nodes: tuple[str, ...], name: str) -> Target:
    """Returns the target with these of its nodes only (empty: all); raises Rejected for a node on which the attempt did not run."""
    foreign = [node for node in nodes if node not in target.nodes]
    if foreign:
        raise Rejected(
            f"{name} did not run on node {foreign[0]} in attempt {target.attempt}", reason="NodeNotOfAllocation", fields=("node",)
        )
    return Target(target.attempt, tuple(node for node in target.nodes if not nodes or node in nodes))


def following(allocation: Allocation, done: int, wanted: int) -> Target | None:
    """Returns the attempt to follow after attempt `done` (0: none yet): the wanted one (0: any later one), once it has nodes.

    None: there is none now. Where none was followed yet and the allocation is final, it is the newest that had nodes.
    """
    if wanted:
        return named(allocation.status, wanted) if done < wanted else None
    now = present(allocation.status)
    if now is not None and now.attempt > done:
        return now
    if done == 0 and is_final(allocation.status):
        return newest(allocation.status)
    return None


def is_over(allocation: Allocation | None, done: int, wanted: int) -> bool:
    """Tells whether no attempt can follow `done`: the allocation is deleted (None) or final, or past the wanted attempt."""
    if allocation is None or is_final(allocation.status):
        return True
    return bool(wanted) and (done >= wanted or allocation.status.attempt > wanted)
