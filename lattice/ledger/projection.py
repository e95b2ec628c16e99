"""Computes the patches of an Allocation's status that the scheduler writes after changes of the ledger.

Every patch carries `ledgerSeq`, the derived fields of `settle`, and the resourceVersion that it was decided on: on a conflict the
shell reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lattice.accounting.charges import held_seconds
from lattice.ledger.format import Row
from lattice.ledger.steps import QUOTA_RECLAIMED, REQUEUED, SCHEDULER, End, Retry, ShowEnding
from lattice.lifecycle.conditions import FALSE, TRUE, encode, same_but_for_times, with_condition, without_conditions
from lattice.lifecycle.grace import grace_seconds
from lattice.lifecycle.settle import settle
from lattice.models import conditions as kinds
from lattice.units import fold_nodes, format_time, parse_time
from lattice.views.allocation import Allocation, AttemptsUse, Condition, Edge, Exit, ExpectedStart

Patch = dict[str, Any]
ATTEMPTS_KEPT = 10
MOVED_SECONDS, MOVED_SHARE = 60.0, 0.1
"""How far an expected start moves before it is written again: so many seconds, and this share of the time to it."""


def pending(
    allocation: Allocation, reason: str, message: str, *, number: int, seq: int, now: float, score: Patch | None = None,
    expected: Patch | None = None, alone: bool = False, reserved: float | None = None, edges: Sequence[Edge] = (),
) -> Patch | None:  # fmt: skip
    """Returns the patch that shows why work waits, with its score, its expected start, its edges and the time of its reservation.

    `reserved`: when the reservation was given; None: it holds none. `edges`: empty leaves those of the status. Returns None when the
    status shows all that already: a score is never written alone, an expected start only with `alone`.
    """
    status, generation = allocation.status, allocation.metadata.generation
    conditions = with_condition(status.conditions, kinds.SCHEDULED, FALSE, reason, message, generation=generation, now=format_time(now))
    settled = _settle(allocation, conditions, now)
    if status.number and status.observed_generation == generation and same_but_for_times(settled.conditions, status.conditions):
        shown: Patch = {"expectedStart": expected} if expected is not None else {}
        held = _reserved_at(allocation, reserved) | _edges(allocation, edges)
        return _alone(allocation, {**shown, **held}, seq) if held or (alone and shown) else None
    return _patch(
        allocation, settled.phase, settled.conditions, seq,
        number=status.number or number, submitTime=status.submit_time or allocation.metadata.creation_timestamp,
        **({"score": score} if score else {}), **({"expectedStart": expected} if expected is not None else {}),
        **_reserved_at(allocation, reserved), **_edges(allocation, edges),
    )  # fmt: skip


def edges_answered(allocation: Allocation, edges: Sequence[Edge], *, number: int, seq: int, now: float) -> Patch:
    """Returns the patch that shows the answers of an allocation's edges, and what else the first write of a status shows."""
    submitted = allocation.status.submit_time or allocation.metadata.creation_timestamp
    number = allocation.status.number or number
    return written(allocation, seq=seq, now=now, number=number, submitTime=submitted, **_edges(allocation, edges))


def _edges(allocation: Allocation, edges: Sequence[Edge]) -> Patch:
    """Returns the field that shows edges; empty where there are none, or the status shows the same already."""
    same = not edges or tuple(edges) == allocation.status.edges
    return {} if same else {"edges": [msgspec.to_builtins(edge) for edge in edges]}


def _alone(allocation: Allocation, fields: Patch, seq: int) -> Patch:
    """Returns a patch of these fields without conditions and phase."""
    return {"metadata": {"resourceVersion": allocation.metadata.resource_version}, "status": {"ledgerSeq": seq, **fields}}


def _reserved_at(allocation: Allocation, given: float | None = None) -> Patch:
    """Returns the field that shows when the reservation was given (None: none); empty where the status shows the same already."""
    moment = None if given is None else format_time(given)
    return {} if moment == allocation.status.reserved_at else {"reservedAt": moment}


def expectation(p50: float | None, p90: float | None, reason: str) -> Patch:
    """Returns an expected start in the form of the status; absent values are None, so that the patch removes them."""
    return {
        "p50": format_time(p50) if p50 is not None else None,
        "p90": format_time(p90) if p90 is not None else None,
        "reason": reason or None,
    }


def moved(shown: ExpectedStart | None, p50: float | None, p90: float | None, reason: str, now: float) -> bool:
    """Tells whether an expected start differs enough from the shown one (None: none is shown) to be worth a write.

    True where none is shown, the reasons differ, one of the times is absent in one of them, or p50 or p90 has moved by more than a
    minute and more than a tenth of the time to it.
    """
    if shown is None:
        return True
    if shown.reason != reason:
        return True
    return _apart(shown.p50, p50, now) or _apart(shown.p90, p90, now)


def _apart(shown: str | None, found: float | None, now: float) -> bool:
    """Tells whether a shown start (text) and a found one (seconds since the epoch) differ so much that the status must change, or only one
    of them is known.

    The allowed difference grows with the time that is left until the found one.
    """
    if shown is None or found is None:
        return (shown is None) != (found is None)
    return abs(parse_time(shown) - found) > max(MOVED_SECONDS, MOVED_SHARE * max(0.0, found - now))


def placed(
    allocation: Allocation, row: Row, names: Mapping[int, str], *, number: int, seq: int, now: float, hollow: bool = False,
    score: Patch | None = None, gpus: int = 0,
) -> Patch:  # fmt: skip
    """Returns the patch that shows the nodes of an attempt with a ledger row; `names`: of node indices, `gpus`: of its nodes
    together.

    The total of the score stays; its terms go, since they inform only while the work waits and every later write would carry them.
    """
    status = allocation.status
    nodes = [names.get(index, f"index-{index}") for index in row.nodes]
    fresh = status.attempt != row.attempt
    message = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}: {fold_nodes(nodes)}"
    left = (*kinds.WRITTEN_BY_REPORTER, kinds.ENDING)
    base = without_conditions(status.conditions, left) if fresh else status.conditions
    conditions = with_condition(
        base, kinds.SCHEDULED, TRUE, "Placed", message, generation=allocation.metadata.generation, now=format_time(now)
    )
    settled = _settle(allocation, conditions, now)
    fields: Patch = {
        "number": status.number or number,
        "submitTime": status.submit_time or allocation.metadata.creation_timestamp,
        "nodes": fold_nodes(nodes),
        "nodeCount": len(nodes),
        "reporter": names.get(row.reporter, ""),
        "attempt": row.attempt,
    }
    if fresh or not status.head:
        fields["head"] = nodes[0]
    if fresh or status.scheduled_time is None:
        fields |= {"scheduledTime": format_time(now), "gpus": gpus or None}
    if fresh and status.attempt:
        fields |= {"startTime": None, "endTime": None, "exit": None, "launches": None, "report": None}
    if hollow:
        fields["hollow"] = True
    if score or status.score is not None:
        fields["score"] = {**(score or {}), "terms": None}
    if status.expected_start is not None:
        fields["expectedStart"] = None
    return _patch(allocation, settled.phase, settled.conditions, seq, **fields, **_reserved_at(allocation))


def ending(allocation: Allocation, shown: ShowEnding, *, seq: int, now: float) -> Patch:
    """Returns the patch that shows that TERM was sent to the attempt, why, and when KILL follows."""
    grace = grace_seconds(allocation.spec.lifecycle.grace_period)
    kill = format_time(shown.since + grace)
    message = f"{shown.message}; TERM was sent at {format_time(shown.since)}, KILL follows at {kill}"
    conditions = with_condition(
        allocation.status.conditions, kinds.ENDING, TRUE, shown.cause, message,
        generation=allocation.metadata.generation, now=format_time(shown.since),
    )  # fmt: skip
    settled = _settle(allocation, conditions, now)
    return _patch(allocation, settled.phase, settled.conditions, seq, killTime=kill)


def staged(allocation: Allocation, reason: str, message: str, *, seq: int, now: float) -> Patch:
    """Returns the patch that shows why a placed attempt has not started yet."""
    generation = allocation.metadata.generation
    conditions = with_condition(
        allocation.status.conditions, kinds.STAGED, FALSE, reason, message, generation=generation, now=format_time(now)
    )
    settled = _settle(allocation, conditions, now)
    return _patch(allocation, settled.phase, settled.conditions, seq)


def ended(allocation: Allocation, end: End, *, number: int, seq: int, now: float) -> Patch:
    """Returns the patch that shows the final end of the allocation; an end time, exit and report that the status has already stay.

    `number` is the allocation's own number, written where the status has none yet, `seq` is the ledger's, and `now` is in seconds since the
    epoch.
    """
    status = allocation.status
    going = without_conditions(status.conditions, (kinds.ENDING,))
    conditions = with_condition(
        going, kinds.FINISHED, TRUE, end.reason, end.message, generation=allocation.metadata.generation, now=format_time(now)
    )
    settled = _settle(allocation, conditions, now, decided=True)
    fields: Patch = {
        "number": status.number or number,
        "submitTime": status.submit_time or allocation.metadata.creation_timestamp,
        "endTime": status.end_time or format_time(now),
    }
    if end.exit is not None and status.exit is None:
        fields["exit"] = exit_fields(end.exit)
    if status.attempt and status.report is None:
        fields["report"] = {"attempt": status.attempt, "by": SCHEDULER}
    return _patch(allocation, settled.phase, settled.conditions, seq, **fields, **_no_kill_time(allocation), **_reserved_at(allocation))


def _no_kill_time(allocation: Allocation) -> Patch:
    """Returns the field that removes the time of KILL from the status; empty where it has none."""
    return {} if allocation.status.kill_time is None else {"killTime": None}


def retried(allocation: Allocation, retry: Retry, *, number: int, seq: int, now: float) -> Patch:
    """Returns the patch for the next attempt: Pending again, the ended one in `attempts`, the time of submission kept; `retry.counted`: a
    requeue more.

    Of entries beyond the last 10 only their use stays, in `status.usage`.
    """
    status = allocation.status
    attempt = max(1, status.attempt)
    done: Patch = {
        "attempt": attempt, "nodes": status.nodes, "nodeCount": status.node_count, "gpus": status.gpus,
        "endTime": status.end_time or format_time(now), "reason": retry.reason,
    }  # fmt: skip
    if status.scheduled_time or status.start_time:
        done["scheduledTime"] = status.scheduled_time or status.start_time
    if status.start_time:
        done["startTime"] = status.start_time
    ended_with = retry.exit or status.exit
    if ended_with is not None and ended_with.code is not None:
        done["exit"] = exit_fields(ended_with)
    if retry.reason == kinds.PROLOGUE_FAILED:
        done |= {"node": retry.node, "message": retry.message[:1024]}
    kept = [msgspec.to_builtins(entry) for entry in status.attempts if entry.attempt != attempt]
    left = (*kinds.WRITTEN_BY_REPORTER, kinds.ENDING, kinds.RECONCILING, kinds.STALLED)
    base = without_conditions(status.conditions, left)
    conditions = with_condition(
        base, kinds.SCHEDULED, FALSE, retry.reason if retry.reason in (QUOTA_RECLAIMED, REQUEUED) else "NotYetEvaluated",
        f"attempt {attempt} ended: {retry.message}",
        generation=allocation.metadata.generation, now=format_time(now),
    )  # fmt: skip
    settled = _settle(allocation, conditions, now)
    entries = [*kept, done]
    usage = _fallen_out(status.usage, entries[:-ATTEMPTS_KEPT])
    return _patch(
        allocation, settled.phase, settled.conditions, seq,
        number=status.number or number, attempt=attempt + 1, attempts=entries[-ATTEMPTS_KEPT:],
        requeues=status.requeues + (1 if retry.counted else 0), nodes="", nodeCount=0, gpus=0, head="", reporter="",
        scheduledTime=None, startTime=None, endTime=None, exit=None, launches=None, report=None,
        **({"usage": usage} if usage else {}), **_no_kill_time(allocation),
    )  # fmt: skip


def _fallen_out(usage: AttemptsUse | None, leaving: Sequence[Patch]) -> Patch | None:
    """Returns `status.usage` with the use of the entries that drop out of `attempts` added; None where none drops out."""
    if not leaving:
        return None
    before = usage or AttemptsUse()
    held = [(entry, held_seconds(entry.get("scheduledTime"), entry.get("endTime"))) for entry in leaving]
    return {
        "attempts": leaving[-1]["attempt"],
        "nodeSeconds": before.node_seconds + sum(entry.get("nodeCount", 0) * seconds for entry, seconds in held),
        "gpuSeconds": before.gpu_seconds + sum(entry.get("gpus", 0) * seconds for entry, seconds in held),
        "endTime": leaving[-1].get("endTime"),
    }


def written(allocation: Allocation, *, seq: int, now: float, **fields: Any) -> Patch:
    """Returns the patch with these fields, and with the derived fields computed anew from the present conditions."""
    settled = _settle(allocation, allocation.status.conditions, now)
    return _patch(allocation, settled.phase, settled.conditions, seq, **fields)


def observed(allocation: Allocation, *, seq: int) -> Patch:
    """Returns the patch that shows that the newest spec was seen; also removes the condition Ending from work that has ended."""
    shown: Patch = {"observedGeneration": allocation.metadata.generation, "ledgerSeq": seq, **_no_kill_time(allocation)}
    left = without_conditions(allocation.status.conditions, (kinds.ENDING,))
    if len(left) < len(allocation.status.conditions):
        shown["conditions"] = encode(left)
    return {"metadata": {"resourceVersion": allocation.metadata.resource_version}, "status": shown}


def _settle(allocation: Allocation, conditions: tuple[Condition, ...], now: float, *, decided: bool = False) -> Any:
    """Returns what `settle` makes of an allocation's conditions at `now`, seconds since the epoch; it never requeues."""
    return settle(
        conditions,
        lifecycle_type=allocation.spec.lifecycle.type,
        may_requeue=False,
        generation=allocation.metadata.generation,
        now=format_time(now),
        phase_before=allocation.status.phase,
        decided=decided,
    )


def exit_fields(ended_with: Exit) -> Patch:
    """Returns an exit in the form of the status; use (CPU, memory, kills) that is unknown is left out."""
    used = {"cpuSeconds": ended_with.cpu_seconds, "peakMemory": ended_with.peak_memory, "oomKills": ended_with.oom_kills or None}
    return {
        "code": ended_with.code, "signal": ended_with.signal, "node": ended_with.node, "rank": ended_with.rank,
        **{name: value for name, value in used.items() if value is not None},
    }  # fmt: skip


def _patch(allocation: Allocation, phase: str, conditions: tuple[Condition, ...], seq: int, **fields: Any) -> Patch:
    """Returns the patch of an allocation's status with this phase, these conditions and fields, for exactly the resource version that was
    read.
    """
    return {
        "metadata": {"resourceVersion": allocation.metadata.resource_version},
        "status": {
            "observedGeneration": allocation.metadata.generation,
            "phase": phase,
            "conditions": encode(conditions),
            "ledgerSeq": seq,
            **fields,
        },
    }
