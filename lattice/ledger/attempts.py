"""Computes an allocation's status from the nodes' histories in a recovery: the ends of attempts, and the number of the one that runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from lattice.ledger import projection
from lattice.ledger.ends import describe_unknown_exit
from lattice.ledger.history import HistoryRow
from lattice.ledger.reports import ENDING, LOST, PREPARING, RUNNING, START_FAILED, UNKNOWN_EXIT, UNNAMED
from lattice.ledger.steps import Retry, decide_end
from lattice.lifecycle.conditions import FALSE, TRUE, with_condition, without_conditions
from lattice.models import conditions as kinds
from lattice.units import fold_nodes, format_time
from lattice.views.allocation import Allocation, Attempt, Exit

ALIVE = frozenset((PREPARING, RUNNING, ENDING, UNNAMED))
"""States of a node's report in which it may have processes of the attempt, or may still start some."""

Patch = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """One attempt as the histories of its nodes tell it; made in a recovery, when etcd came back older than the nodes.

    `members`: the history row of each node that knows the attempt.
    """

    attempt: int
    members: Mapping[str, HistoryRow]
    nodes: tuple[str, ...]
    """Every node that the attempt was given, in rank order."""
    contested: bool = False
    """Whether nodes contradict each other about which nodes it ran on, and no evidence decides between them."""

    @cached_property
    def alive(self) -> frozenset[str]:
        """Returns the nodes on which the attempt runs, or may still start."""
        return frozenset(node for node, row in self.members.items() if row.state in ALIVE)

    def is_open(self, away: Iterable[str]) -> bool:
        """Tells whether the attempt's end is still unknown: it runs, or an unreachable node (`away`) may know a worse end than the
        others.
        """
        return bool(self.alive) or (not self.failed and not {*away}.isdisjoint(self.nodes))

    @property
    def failed(self) -> bool:
        """Tells whether a node has recorded an end other than exit code 0."""
        return any(row.code or row.state in (START_FAILED, LOST, UNKNOWN_EXIT) for row in self.members.values())

    @property
    def number(self) -> int:
        """Returns the number that people type for the allocation, as the journals have it; 0: unknown."""
        return max(row.number for row in self.members.values())

    @property
    def prepared(self) -> float:
        """Returns when the first node prepared the attempt, seconds since the epoch; 0: unknown."""
        return min((row.prepared for row in self.members.values() if row.prepared), default=0.0)

    @property
    def start(self) -> float:
        """Returns when its first process started, seconds since the epoch; 0: none did."""
        return min((row.start for row in self.members.values() if row.start), default=0.0)

    @property
    def end(self) -> float:
        """Returns when its last process ended, seconds since the epoch; 0: unknown."""
        return max((row.end for row in self.members.values()), default=0.0)

    def outcome(self, away: Iterable[str]) -> tuple[str, str, Exit | None]:
        """Returns reason, sentence and exit (None: unknown) of an attempt that runs nowhere; `away`: the nodes that cannot be asked.

        Where nodes contradict each other the exit is unknown. Else a failed start counts first, then the earliest failure, a node that
        lost the attempt or is away, an unknown exit; else exit code 0, or `Lost` for an attempt that never began.
        """
        if self.contested:
            return "ExitUnknown", f"{fold_nodes(sorted(self.members))} contradict each other about where it ran", None
        failed = sorted((row.end, node) for node, row in self.members.items() if row.code)
        rows = {node: self.members[node] for node in self.nodes if node in self.members}
        for node, row in rows.items():
            if row.state == START_FAILED:
                return row.reason or "StartFailed", f"could not be started on {node}", None
        if failed:
            node = failed[0][1]
            row = self.members[node]
            how = f"by signal {row.signal}" if row.signal else f"with exit code {row.code}"
            ended = Exit(code=row.code, signal=row.signal, node=node, rank=row.rank)
            return row.reason or "TaskFailed", f"task {row.rank} on {node} ended {how}", ended
        lost = sorted({*(node for node, row in rows.items() if row.state == LOST), *({*away} & {*self.nodes})})
        if lost:
            return "NodeLost", f"{len(lost)} of {len(self.nodes)} nodes were lost: {fold_nodes(lost)}", None
        unknown = next((node for node, row in rows.items() if row.state == UNKNOWN_EXIT), None)
        if unknown is not None:
            return "ExitUnknown", describe_unknown_exit(unknown), None
        if not self.start:
            return "Lost", "it was ended before it began", None
        return "Completed", f"every task on {fold_nodes(self.nodes)} ended with 0", Exit(code=0)


def entered(
    allocation: Allocation, history: Sequence[Told], *, away: Iterable[str], seq: int, now: float, gpus: int = 0
) -> Patch | None:  # fmt: skip
    """Returns the patch that brings an allocation's status up to these attempts; None where the status shows them already.

    The attempts come oldest first, none older than the one that the status shows; each but the last was followed by another one.
    Where the end of the last one is open, its number is written, and the ledger's row gives the rest. Else its end is written: for
    good, or with the next attempt, as the policy of requeue decides.
    """
    newest = history[-1]
    shown = allocation
    for one in history[:-1]:
        if all(entry.attempt != one.attempt for entry in shown.status.attempts):
            shown = _followed(shown, one, away, now)
    if newest.is_open(away):
        return None if shown.status.attempt == newest.attempt else _floor(shown, newest, seq=seq, now=now, gpus=gpus)
    reason, message, ended = newest.outcome(away)
    shown = _ended(shown, newest, ended, gpus)
    number = shown.status.number or newest.number
    step = decide_end(shown, reason, f"{message}, as its nodes told after etcd was restored", ended)
    if not newest.start and reason == "Lost":
        step = Retry(reason, message, None, counted=False)  # nothing of it has run
    if isinstance(step, Retry):
        return projection.retried(shown, step, number=number, seq=seq, now=now)
    patch = projection.ended(shown, step, number=number, seq=seq, now=now)
    patch["status"] = _fields(shown) | patch["status"]
    return patch


def _floor(allocation: Allocation, one: Told, *, seq: int, now: float, gpus: int) -> Patch:
    """Returns the patch for an attempt that runs while the restored status does not show it."""
    status = allocation.status
    conditions = with_condition(
        without_conditions(status.conditions, (*kinds.WRITTEN_BY_REPORTER, *kinds.DERIVED)), kinds.SCHEDULED, FALSE, "NotYetEvaluated",
        f"attempt {one.attempt} runs on {fold_nodes(one.nodes)}: the ledger takes it up again",
        generation=allocation.metadata.generation, now=format_time(now),
    )  # fmt: skip
    shown = _with(
        allocation, attempt=one.attempt, nodes="", node_count=0, gpus=gpus, head=one.nodes[0], reporter="",
        scheduled_time=_time(one.prepared), start_time=None, end_time=None, exit=None, conditions=conditions,
        number=status.number or one.number,
    )  # fmt: skip
    return projection.written(shown, seq=seq, now=now, **_fields(shown), report=None)


def forsaken(allocation: Allocation, attempt: int, nodes: str, *, seq: int, now: float) -> Patch:
    """Returns the patch that queues work again as its next attempt, since no node knows of the attempt that its ledger row names; it uses
    none of requeue.max.
    """
    message = f"no node knows of attempt {attempt} on {nodes}: etcd was restored, and what they knew is gone"
    shown = _with(allocation, attempt=attempt)
    return projection.retried(shown, Retry("Lost", message, None, counted=False), number=allocation.status.number or 0, seq=seq, now=now)


def _followed(allocation: Allocation, one: Told, away: Iterable[str], now: float) -> Allocation:
    """Returns the allocation with an ended attempt in `attempts`, of which the last 10 are kept; another attempt followed it, so it is no
    final end.

    One that ended with 0 is shown as Requeued, one of unknown end as ended at `now`.
    """
    reason, _, ended = one.outcome(away)
    status = allocation.status
    same = status.attempt == one.attempt
    entry = Attempt(
        attempt=one.attempt, nodes=fold_nodes(one.nodes), node_count=len(one.nodes), gpus=status.gpus if same else 0,
        scheduled_time=(status.scheduled_time if same else None) or _time(one.prepared), start_time=_time(one.start),
        end_time=_time(one.end) or format_time(now), exit=ended, reason="Requeued" if reason == "Completed" else reason,
    )  # fmt: skip
    kept = (*status.attempts, entry)[-projection.ATTEMPTS_KEPT :]
    return _with(allocation, attempts=kept, attempt=one.attempt, start_time=None, scheduled_time=None)


def _ended(allocation: Allocation, one: Told, ended: Exit | None, gpus: int) -> Allocation:
    """Returns the allocation with a status that shows this attempt at its end; GPUs, placement and start that the status has of the same
    attempt stay.
    """
    status, generation = allocation.status, allocation.metadata.generation
    same = status.attempt == one.attempt and status.scheduled_time is not None
    at = _time(one.prepared or one.start or one.end) or ""
    base = without_conditions(status.conditions, (*kinds.WRITTEN_BY_REPORTER, *kinds.DERIVED))
    count = len(one.nodes)
    message = f"{count} node{'s' if count > 1 else ''}: {fold_nodes(one.nodes)}"
    conditions = with_condition(base, kinds.SCHEDULED, TRUE, "Placed", message, generation=generation, now=at)
    if one.start:
        conditions = with_condition(
            conditions, kinds.STARTED, TRUE, "Started", "its node kept the start", generation=generation, now=_time(one.start) or at
        )
    return _with(
        allocation, attempt=one.attempt, nodes=fold_nodes(one.nodes), node_count=len(one.nodes), gpus=status.gpus if same else gpus,
        head=one.nodes[0], scheduled_time=status.scheduled_time if same else at, exit=ended, conditions=conditions,
        start_time=(status.start_time if same else None) or _time(one.start), end_time=_time(one.end) or at,
    )  # fmt: skip


def _fields(allocation: Allocation) -> Patch:
    """Returns the status fields of the present attempt as a patch."""
    status = allocation.status
    return {
        "attempt": status.attempt, "nodes": status.nodes, "nodeCount": status.node_count, "gpus": status.gpus, "head": status.head,
        "scheduledTime": status.scheduled_time, "startTime": status.start_time, "endTime": status.end_time, "number": status.number,
        "exit": projection.exit_fields(status.exit) if status.exit is not None else None,
        "attempts": [msgspec.to_builtins(entry) for entry in status.attempts],
    }  # fmt: skip


def _with(allocation: Allocation, **fields: Any) -> Allocation:
    """Returns a copy of an allocation with these fields of its status replaced."""
    return msgspec.structs.replace(allocation, status=msgspec.structs.replace(allocation.status, **fields))


def _time(seconds: float) -> str | None:
    """Returns seconds since the epoch as text for status; None for 0, which means that no time is known."""
    return format_time(seconds) if seconds else None
