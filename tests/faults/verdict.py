"""What must be true of every allocation after a fault run, whatever was killed; pure but for reading what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lattice.lifecycle.conditions import condition
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import FINISHED
from lattice.views.allocation import Allocation, Exit
from lattice_agent.attempts import Key
from lattice_agent.state.journal import Journal
from tests.faults.load import Wish
from tests.faults.witness import Task


@dataclass(frozen=True)
class Case:
    """One allocation: what was wished, what stands there, what its tasks told, whose shims were killed or stood still for a while."""

    wish: Wish
    allocation: Allocation | None
    cancelled: bool
    exits: Mapping[Task, int]
    shims: frozenset[tuple[str, int]]
    paused: frozenset[tuple[str, int]] = frozenset()


def faults(case: Case) -> list[str]:
    """Everything that is wrong with it, as sentences."""
    allocation = case.allocation
    if allocation is None:
        return [f"{case.wish.name} is not there"]
    name, status = allocation.metadata.name, allocation.status
    if not is_final(status):
        return [f"{name} is not final: {status.phase}"]
    finished = condition(status.conditions, FINISHED)
    reason = finished.reason if finished else ""
    end = (status.phase, reason, status.exit.code if status.exit else None)
    wrong = [] if _is_right(case, *end) else [f"{name} ended as {end}, wished was {case.wish}; {finished.message if finished else ''}"]
    return wrong + _lost_exits(case, allocation)


def _is_right(case: Case, phase: str, reason: str, code: int | None) -> bool:
    wish, uid = case.wish, case.allocation.metadata.uid if case.allocation else ""
    if case.cancelled and (phase, reason) == ("Cancelled", "Cancelled"):
        return True
    unknown = case.shims | case.paused if wish.walltime or case.cancelled else case.shims
    if any(killed == uid for killed, _ in unknown) and (phase, reason) == ("Failed", "ExitUnknown"):
        return True
    if wish.walltime:
        return (phase, reason) == ("Failed", "WalltimeExceeded")
    natural = ("Completed", "Completed", 0) if wish.code == 0 else ("Failed", "TaskFailed", wish.code)
    return (phase, reason, code) == natural


def _lost_exits(case: Case, allocation: Allocation) -> list[str]:
    """Exit codes that tasks told and that neither the status nor its attempts know."""
    status, uid = allocation.status, allocation.metadata.uid
    known: dict[int, Exit | None] = {entry.attempt: entry.exit for entry in status.attempts} | {status.attempt: status.exit}
    lost = []
    for (_, attempt, node, rank), code in case.exits.items():
        shown = known.get(attempt)
        if (uid, attempt) in case.shims or ((uid, attempt) in case.paused and (case.wish.walltime or case.cancelled)):
            continue
        if shown is None:
            lost.append(
                f"{allocation.metadata.name} attempt {attempt}: rank {rank} on {node} ended with {code}; the status shows no exit of it"
            )
        elif (shown.node, shown.rank) == (node, rank) and shown.code != code and not case.cancelled:
            lost.append(
                f"{allocation.metadata.name} attempt {attempt}: rank {rank} on {node} ended with {code}, the status says {shown.code}"
            )
        elif code and not shown.code:
            lost.append(f"{allocation.metadata.name} attempt {attempt}: rank {rank} on {node} ended with {code}, the status says 0")
    return lost


def lost_records(exits: Mapping[Task, int], shims: Iterable[tuple[str, int]], state_of: Mapping[str, Path]) -> list[str]:
    """Exit codes that tasks told and that their node's exit record does not have."""
    spared, lost = set(shims), []
    for (uid, attempt, node, rank), code in exits.items():
        if (uid, attempt) in spared:
            continue
        record = Journal(state_of[node], state_of[node].with_name("run")).exit_record(Key(uid, attempt))
        kept = {task.rank: task.code for task in record.tasks} if record else {}
        if kept.get(rank) not in (code, 143, 137):  # a signal may reach it between its word and its end
            lost.append(f"{uid} attempt {attempt}: rank {rank} on {node} told {code}, the node's record has {kept.get(rank, 'nothing')}")
    return lost
