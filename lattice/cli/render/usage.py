"""Renders usage and history: sums, a bar for each day, budgets with forecasts, a row for each attempt; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from lattice.accounting.answers import BudgetHours, BudgetReport, DayUse, HistoryReport, HistoryRow, PartUse, UsageReport
from lattice.cli.render.text import Column, Painted, hang, memory, plural, printable, span, table
from lattice.units import parse_time

BAR: Final = 40
LEAST_BAR: Final = 10
"""Least number of cells of the longest bar, in a narrow terminal."""
MOST_BARS: Final = 45
"""Most bars; more days are shown by week, and more weeks by month."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_HOURS: Final = (Column("NODE-HOURS", right=True), Column("GPU-HOURS", right=True), Column("ATTEMPTS", right=True))
_BUDGETS: Final = (
    Column("BUDGET", shrink_to=12),
    Column("PERIOD", leave=1),
    Column("USED", right=True),
    Column("OF", right=True),
    Column("", leave=3),
    Column("%", right=True),
    Column("PER DAY", right=True, leave=2),
    Column("RUNS OUT"),
    Column("THEN", leave=4),
)
_HISTORY: Final = (
    Column("ID", right=True),
    Column("NAME", shrink_to=10),
    Column("USER", shrink_to=6, leave=6),
    Column("PROJECT", shrink_to=6, leave=3),
    Column("VCLUSTER", shrink_to=6, leave=4),
    Column("TRY", right=True, leave=2),
    Column("STATE"),
    Column("REASON", shrink_to=12, leave=7),
    Column("EXIT", right=True, leave=9),
    Column("NODES", right=True, leave=8),
    Column("STARTED", leave=1),
    Column("ENDED"),
    Column("RAN", right=True, leave=10),
    Column("NODE-HOURS", right=True),
    Column("GPU-HOURS", right=True, leave=5),
    Column("CPU-SECONDS", right=True, leave=1),
    Column("PEAK", right=True, leave=1),
)
_WIDE: Final = (
    Column("OOM-KILLS", right=True), Column("TENANT"), Column("NAMESPACE"), Column("CLASS", right=True), Column("SUBMITTED"),
    Column("SCHEDULED"), Column("UID"),
)  # fmt: skip
_GREEN: Final = "32"


def usage_lines(report: UsageReport, *, width: int, wide: bool, color: bool) -> list[str]:
    """Returns all lines of a usage report; `wide` shows tables at any width, and also those of one row."""
    whose = _whose(report)
    lines = [
        f"{whose}: {_number(report.node_hours)} node-hours, {_number(report.gpu_hours)} GPU-hours since {report.since[:10]},"
        f" by {plural(report.attempts, 'attempt')} of a second or more"
        + (f" ({report.running} running, up to now)" if report.running else "")
    ]
    if report.budgets:
        rows = [row for budget in report.budgets for row in _budget_rows(budget)]
        lines += ["", *table(_BUDGETS, rows, width=0 if wide else width)]
        lines.append("Forecast: at the rate of the last 7 days.")
    lines += ["", *_bars(report.days, color, width)]
    for title, parts in (("TENANT", report.tenants), ("PROJECT", report.projects), ("USER", report.users)):
        if len(parts) > 1 or (wide and parts):
            head = (Column(title, shrink_to=12), *_HOURS)
            lines += ["", *table(head, [_part(part) for part in parts], width=0 if wide else width)]
    return lines


def history_lines(report: HistoryReport, *, width: int, wide: bool, color: bool) -> list[str]:
    """Returns a row for each attempt, and the sums of all that match, those left out included; one sentence where nothing ran."""
    if not report.rows:
        return [f"nothing ran from {report.since} to {report.until}"]
    columns = _HISTORY + _WIDE if wide else _HISTORY
    lines = table(columns, [_attempt(row)[: len(columns)] for row in report.rows], width=0 if wide else width, color=color)
    more = f"; {report.left_out} more rows, --limit shows them" if report.left_out else ""
    sums = f"{_number(report.node_hours)} node-hours, {_number(report.gpu_hours)} GPU-hours"
    return [*lines, "", *hang(f"{sums} from {report.since} to {report.until}{more}", 0 if wide else width)]


def _whose(report: UsageReport) -> str:
    """Returns whose usage a report is of, in words; all tenants where it names nobody."""
    parts = [
        f"user {report.user}" if report.user else "",
        f"project {report.project}" if report.project else "",
        f"tenant {report.tenant}" if report.tenant else "",
    ]
    return ", ".join(part for part in parts if part) or "all tenants"


def _part(part: PartUse) -> list[str]:
    """Returns the cells of one part of a report: its name, hours and attempts."""
    return [part.name or "(none)", _number(part.node_hours), _number(part.gpu_hours), str(part.attempts)]


def _budget_rows(budget: BudgetReport) -> list[list[str]]:
    """Returns a row for each limit of a budget: GPU-hours and node-hours."""
    rows: list[list[str]] = []
    for what, found in (("GPU-hours", budget.gpu_hours), ("node-hours", budget.node_hours)):
        if found is not None:
            rows.append(_budget_row(budget, what, found, first=not rows))
    return rows


def _budget_row(budget: BudgetReport, what: str, found: BudgetHours, *, first: bool) -> list[str]:
    """Returns the cells of a budget's node or GPU hours (`what`); those that are the same for both are filled in the first row only."""
    share = found.used / found.limit
    outcome = budget.runs_out[:10] if budget.runs_out else "used up" if budget.fraction >= 1 else "not foreseen"
    name = f"{budget.scope.lower()} {budget.name}" + (f" ({budget.told_by})" if budget.told_by else "")
    return [
        f"{name if first else ''} {what}".strip(), budget.period, _number(found.used), _number(found.limit), _gauge(share),
        f"{share * 100:.0f}", _number(found.per_day), outcome if first else "",
        "" if not first else "work waits" if budget.on_exhausted == "Queue" else "scores fall",
    ]  # fmt: skip


def _gauge(share: float) -> str:
    """Returns a budget's used share as a bar of twenty cells."""
    full = min(20, int(share * 20))
    return "█" * full + "░" * (20 - full)


def _bars(days: Sequence[DayUse], color: bool, width: int) -> list[str]:
    """Returns the bars of node-hours by day from the first day with any; by week above 45 days, by month above 45 weeks; one sentence where
    nothing was used.
    """
    first = next((at for at, day in enumerate(days) if day.node_hours), len(days))
    title, groups = _group(days[first:])
    rows = [(name, sum(day.node_hours for day in group)) for name, group in groups]
    most = max((hours for _, hours in rows), default=0.0)
    if not most:
        return ["nothing was used"]
    margin = max(10, *(len(_number(hours)) for _, hours in rows))
    longest = max(LEAST_BAR, min(BAR, width - 12 - margin - 2)) if width else BAR
    lines = [f"{title:<12}{'NODE-HOURS':>{margin}}"]
    for name, hours in rows:
        bar = _bar(hours / most, longest)
        start = f"{printable(name):<12}{_number(hours):>{margin}}  "
        lines.append(Painted(start + _painted(bar, _GREEN)) if color and bar else (start + bar).rstrip())
    return lines


def _group(days: Sequence[DayUse]) -> tuple[str, list[tuple[str, list[DayUse]]]]:
    """Returns the title of the unit (day, week, month), and the days of each unit with its name."""
    if len(days) <= MOST_BARS:
        return "DAY", [(day.day, [day]) for day in days]
    if len(days) <= 7 * MOST_BARS:
        return "WEEK FROM", [(days[at].day, list(days[at : at + 7])) for at in range(0, len(days), 7)]
    return "MONTH", [(month, list(group)) for month, group in groupby(days, key=lambda day: day.day[:7])]


def _bar(share: float, longest: int) -> str:
    """Returns a bar in eighths of a cell, at most `longest` cells; an amount above 0 shows at least one eighth."""
    eighths = max(1, round(share * longest * 8)) if share > 0 else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _attempt(row: HistoryRow) -> list[str]:
    """Returns the cells of one attempt of a history."""
    tries = f"{row.first_attempt}-{row.attempt}" if row.first_attempt is not None else str(row.attempt) if row.attempt > 1 else ""
    return [
        str(row.number or ""), row.job or row.name, row.user, row.project, row.vcluster, tries, row.state,
        row.reason if row.reason != row.state else "", "" if row.exit is None else str(row.exit), str(row.nodes or ""),
        _when(row.started or row.scheduled), _when(row.ended), span(row.seconds) if row.seconds else "", _number(row.node_hours),
        _number(row.gpu_hours) if row.gpu_hours else "", f"{row.cpu_seconds:.1f}" if row.cpu_seconds else "",
        memory(row.peak_memory), str(row.oom_kills or ""), row.tenant,
        row.namespace, str(row.preemption_class), row.submitted,
        row.scheduled or "", row.uid,
    ]  # fmt: skip


def _when(text: str | None) -> str:
    """Returns a time to the minute, in the zone it is written in; empty without one, or for the beginning of 1970."""
    return text[:16].replace("T", " ") if text and parse_time(text) else ""


def _number(hours: float) -> str:
    """Returns hours with as many decimals as matter at their size."""
    if hours >= 10:
        return f"{hours:,.0f}" if hours >= 1000 else f"{hours:.1f}"
    return f"{hours:.2f}" if hours >= 0.1 else f"{hours:.4f}" if hours else "0"


def _painted(text: str, code: str) -> str:
    """Returns a text in the colour of this ANSI code."""
    return f"\x1b[{code}m{text}\x1b[0m"
