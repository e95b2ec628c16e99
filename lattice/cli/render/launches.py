"""The launches of allocations as a table, as sacct shows steps, and the totals of an attempt as sentences. Pure."""

from __future__ import annotations

from typing import Final

from lattice.cli.render.text import Column, hang, memory, span, table
from lattice.launches.answers import LaunchReport, LaunchRow, StepsOfAttempt
from lattice.views.allocation import FailedLaunch, LaunchTotals

_STEPS: Final = (
    Column("STEP"),
    Column("COMMAND", shrink_to=8, leave=9),
    Column("NODES", right=True, leave=5),
    Column("TASKS", right=True, leave=6),
    Column("CPUS", right=True, leave=4),
    Column("STATE"),
    Column("EXIT", right=True),
    Column("STARTED", leave=2),
    Column("RAN", right=True, leave=8),
    Column("CPU", right=True, leave=3),
    Column("PEAK", right=True, leave=3),
    Column("REASON", shrink_to=12, leave=1),
)
_WIDE: Final = (Column("ENDED"), Column("NAME"), Column("WHERE"), Column("ATTEMPT", right=True))


def launch_lines(report: LaunchReport, *, width: int, wide: bool, color: bool) -> list[str]:
    """Returns a row for each launch, and a sentence for each attempt: how its launches ended, and which rows are missing."""
    columns = _STEPS + _WIDE if wide else _STEPS
    rows = [_cells(row)[: len(columns)] for row in report.rows]
    lines = table(columns, rows, width=0 if wide else width, color=color) if rows else []
    for part in report.attempts:
        lines += ["", *hang(_about(part), 0 if wide else width)] if lines else hang(_about(part), 0 if wide else width)
    return lines


def totals_text(totals: LaunchTotals | None) -> str:
    """Returns how many launches an attempt had, by result, and a line for each of the last that failed; empty: it had none."""
    if totals is None or not totals.total:
        return ""
    return "\n".join([_counts(totals), *map(_failed, totals.failures)])


def exit_words(row: LaunchRow) -> str:
    """Returns exit code and signal as sacct has them: `7:0`, `0:9`; empty while it runs."""
    if row.state == "Running":
        return ""
    return f"{0 if row.signal else row.code}:{row.signal}"


def _cells(row: LaunchRow) -> tuple[str, ...]:
    """Returns the cells of one launch."""
    return (
        row.step, row.command, str(row.node_count or ""), str(row.tasks or ""), str(row.cpus or ""), row.state, exit_words(row),
        row.started[:19].replace("T", " "), span(row.seconds) if row.seconds >= 1 else f"{row.seconds:.2f}s",
        f"{row.cpu_seconds:.1f}" if row.cpu_seconds else "", memory(row.peak_memory), row.reason, row.ended, row.name, row.nodes,
        str(row.attempt),
    )  # fmt: skip


def _about(part: StepsOfAttempt) -> str:
    """Returns the sentence on one attempt: its launches by result, and rows that are missing."""
    name = str(part.number or part.allocation)
    counted = _counts(part.launches) if part.launches.total else "no launch is over"
    missing = [
        f"{part.left_out} older rows, --limit shows them" if part.left_out else "",
        f"the rows of the {part.dropped} oldest are dropped: the log keeps 16 MiB" if part.dropped else "",
    ]
    return "; ".join(filter(None, [f"{name}: {counted}", *missing]))


def _counts(totals: LaunchTotals) -> str:
    """Returns how many launches there were, by result."""
    parts: tuple[tuple[int, str], ...] = (
        (totals.completed, "completed"), (totals.failed, "failed"), (totals.cancelled, "cancelled"), (totals.timeout, "timed out"),
        (totals.node_fail, "lost a node"),
    )  # fmt: skip
    parts += ((totals.total - sum(count for count, _ in parts), "running"),)
    words = ", ".join(f"{count} {word}" for count, word in parts if count)
    count = "1 launch" if totals.total == 1 else f"{totals.total} launches"
    return f"{count}: {words}" if words else count


def _failed(one: FailedLaunch) -> str:
    """Returns one failed launch as a line: its exit, its node, and why."""
    ended = f"signal {one.signal}" if one.signal else f"exit {one.code}"
    where = f" on {one.node}" if one.node else ""
    return f"{one.step} {one.result}, {ended}{where}" + (f": {one.reason}" if one.reason else "")
