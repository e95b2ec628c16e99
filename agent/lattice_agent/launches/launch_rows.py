"""Makes the row of the step log for a launch: its result in sacct's words, its exit, its use, and why it ended; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from lattice.launches.answers import CANCELLED, COMPLETED, FAILED, NODE_FAIL, RUNNING, TIMEOUT, LaunchRow, StepState
from lattice.units import fold_nodes, format_time
from lattice_agent.launches.record import OVER, LaunchRecord

LONGEST_REASON: Final = 256
LONGEST_NODES: Final = 1024
LARGEST_USE: Final = 1 << 62
"""The most that is believed of bytes and seconds that another node reports."""
ENDING_SIGNALS: Final = frozenset({9, 15})
"""By which launches end with their allocation: TERM, after the grace period KILL."""


def row_of(record: LaunchRecord, now: float) -> LaunchRow:
    """Returns the row of a launch as it is at `now`, in seconds since the epoch."""
    over = record.state == OVER
    worst = worst_end(record) if over else None
    ended = (record.ended if over else now) - record.begun
    reports = [report for report in record.done.values() if report is not None]
    result = result_of(record)
    return LaunchRow(
        number=record.number,
        state=result,
        command=record.command,
        name=record.name if record.name != record.command.partition(" ")[0] else "",
        nodes=_cut(fold_nodes([places.name for places in record.nodes]), LONGEST_NODES),
        node_count=len(record.nodes),
        tasks=sum(len(places.ranks) for places in record.nodes),
        cpus=sum(len(set(places.held).union(*places.cpus)) for places in record.nodes),
        started=format_time(record.begun),
        ended=format_time(record.ended) if over else "",
        seconds=round(max(0.0, ended), 3),
        code=min(max(record.code, 0), 255) if over else 0,
        signal=worst[3] if worst is not None else 0,
        cpu_seconds=round(sum(_within(report.get("cpu_seconds", 0)) for report in reports), 3),
        peak_memory=int(max((_within(report.get("peak_memory", 0)) for report in reports), default=0)),
        node=worst[0] if worst is not None and result not in (COMPLETED, CANCELLED) else "",
        reason=_cut(_reason(record, result), LONGEST_REASON),
    )


def result_of(record: LaunchRecord) -> StepState:
    """Returns the result of a launch in sacct's words; Running: it is not over."""
    if record.state != OVER:
        return RUNNING
    whole = len(record.done) == len(record.nodes) and not record.refusal
    if whole and record.code == 0:
        return COMPLETED
    if record.result in (CANCELLED, TIMEOUT, NODE_FAIL):
        return cast("StepState", record.result)
    if record.refusal:
        return FAILED
    return NODE_FAIL if None in record.done.values() else FAILED


def ends_with_allocation(record: LaunchRecord) -> bool:
    """Tells whether a launch that is over was ended by what ends an allocation: TERM, KILL, or the loss of its keeper."""
    worst = worst_end(record)
    return not record.refusal and (worst is None or worst[3] in ENDING_SIGNALS or None in record.done.values())


def worst_end(record: LaunchRecord) -> tuple[str, int, int, int] | None:
    """Returns node, rank, exit code and signal of the task with the highest code, the first of equals; of a lost node rank −1.

    None: no task has ended.
    """
    return max(_ends(record), key=lambda end: end[2], default=None)


def _ends(record: LaunchRecord) -> Iterator[tuple[str, int, int, int]]:
    """Yields node, rank, exit code and signal of every task of which that is known; of a node that reports nothing, 137."""
    for place in sorted(record.done):
        node, report = record.nodes[place].name, record.done[place]
        if report is None:
            yield node, -1, 137, 0
            continue
        for row in report.get("ranks", ()):
            code, number = int(row[1]), int(row[2]) if len(row) > 2 else 0
            yield node, int(row[0]), min(max(code, 0), 255), number if 0 <= number <= 128 else 0


def _reason(record: LaunchRecord, result: str) -> str:
    """Returns why a launch has ended as it has; empty: it completed, or runs."""
    if result in (COMPLETED, RUNNING):
        return ""
    if said := record.refusal or record.why:
        return said
    worst = worst_end(record)
    if worst is None:
        return "no task has begun"
    node, rank, code, number = worst
    if rank < 0:
        return f"the process that kept its tasks on {node} was killed, or the node was lost; start it again"
    return f"task {rank} was ended by signal {number}" if number else f"task {rank} exited with code {code}"


def _within(number: Any) -> float:
    """Returns a reported amount, 0 where it is none."""
    return float(number) if isinstance(number, int | float) and 0 <= number <= LARGEST_USE else 0.0


def _cut(text: str, most: int) -> str:
    """Returns a text that every reader takes, cut to `most` characters."""
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= most else clean[: most - 1] + "…"
