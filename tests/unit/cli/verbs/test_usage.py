"""Usage and history as text."""

from __future__ import annotations

from datetime import date, timedelta

import msgspec
import pytest

from lattice.accounting.answers import (
    HISTORY_SCHEMA,
    USAGE_SCHEMA,
    BudgetHours,
    BudgetReport,
    DayUse,
    HistoryReport,
    HistoryRow,
    PartUse,
    UsageReport,
)
from lattice.cli.render.usage import history_lines, usage_lines

REPORT = UsageReport(
    schema=USAGE_SCHEMA, at="2026-11-21T12:00:00Z", since="2026-10-22T12:00:00Z", tenant="physics", node_hours=48.0, gpu_hours=192.0,
    attempts=3, running=1,
    days=[DayUse(day=f"2026-11-{day:02}", node_hours=hours, gpu_hours=4 * hours) for day, hours in enumerate((0, 0, 32.0, 0, 16.0), 1)],
    users=[PartUse(name="alice", node_hours=40.0, gpu_hours=160.0, attempts=2), PartUse(name="others", node_hours=8.0, gpu_hours=32.0, attempts=1)],
    budgets=[
        BudgetReport(
            scope="Tenant", name="physics", tenant="physics", period="in the last 90 days", fraction=0.48, on_exhausted="Queue",
            source="Internal", node_hours=BudgetHours(used=48.0, limit=100.0, per_day=6.5), runs_out="2026-11-29T12:00:00Z",
        )
    ],
)  # fmt: skip
ROW = HistoryRow(
    tenant="physics", namespace="physics", name="train-x1", uid="u", attempt=2, state="Failed", submitted="2026-11-20T09:00:00Z", number=42,
    job="train", user="alice", nodes=4, started="2026-11-20T10:00:00Z", ended="2026-11-20T12:30:00Z", seconds=9000, reason="TaskFailed",
    exit=3, node_hours=10.0, gpu_hours=40.0,
)  # fmt: skip


def test_usage_says_the_sum_the_budget_its_forecast_and_a_bar_for_each_day() -> None:
    lines = usage_lines(REPORT, width=120, wide=False, color=False)
    assert (
        lines[0]
        == "tenant physics: 48.0 node-hours, 192.0 GPU-hours since 2026-10-22, by 3 attempts of a second or more (1 running, up to now)"
    )
    budget = next(line for line in lines if line.startswith("tenant physics node-hours"))
    assert budget.split() == [
        "tenant", "physics", "node-hours", "in", "the", "last", "90", "days", "48.0", "100.0", "█████████░░░░░░░░░░░", "48", "6.50",
        "2026-11-29", "work", "waits",
    ]  # fmt: skip
    bars = [line for line in lines if line.startswith("2026-11-0")]
    assert [line.split()[0] for line in bars] == ["2026-11-03", "2026-11-04", "2026-11-05"]
    assert bars[0].count("█") == 2 * bars[2].count("█") == 40
    assert any(line.startswith("others") for line in lines)


def test_bars_are_coloured_only_where_colours_are_wanted() -> None:
    assert not any("\x1b" in line for line in usage_lines(REPORT, width=0, wide=True, color=False))
    assert any("\x1b[32m█" in line for line in usage_lines(REPORT, width=0, wide=False, color=True))


def test_many_days_are_shown_by_week_and_an_empty_time_says_so() -> None:
    days = [DayUse(day=f"2026-{day // 28 + 1:02}-{day % 28 + 1:02}", node_hours=1.0, gpu_hours=0.0) for day in range(90)]
    lines = usage_lines(
        UsageReport(schema=USAGE_SCHEMA, at="", since="2026-01-01", node_hours=90.0, gpu_hours=0.0, attempts=1, days=days),
        width=0,
        wide=False,
        color=False,
    )
    assert sum("█" in line for line in lines) == 13
    assert lines[2].startswith("WEEK FROM")
    empty = UsageReport(schema=USAGE_SCHEMA, at="", since="2026-01-01", node_hours=0.0, gpu_hours=0.0, attempts=0, user="bob")
    assert usage_lines(empty, width=0, wide=False, color=False)[-1] == "nothing was used"


def test_years_are_shown_by_month_and_a_narrow_terminal_gets_shorter_bars() -> None:
    first = date(2023, 1, 1)
    days = [DayUse(day=str(first + timedelta(days=day)), node_hours=1.0, gpu_hours=0.0) for day in range(3 * 365)]
    report = UsageReport(schema=USAGE_SCHEMA, at="", since="2023-01-01", node_hours=1095.0, gpu_hours=0.0, attempts=1, days=days)
    lines = usage_lines(report, width=60, wide=False, color=False)
    months = [line.split() for line in lines[3:]]
    assert lines[2].startswith("MONTH")
    assert [month[:2] for month in months[:2]] == [["2023-01", "31.0"], ["2023-02", "28.0"]]
    assert len(months) == 36
    assert max(map(len, lines[2:])) <= 60


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_history_fits_a_terminal_and_says_everything_where_it_is_wide(width: int) -> None:
    row = msgspec.structs.replace(
        ROW, number=1234567, job="training-of-a-large-model", project="gpt-training", vcluster="ml-training", reason="WalltimeExceeded",
        exit=143, nodes=1024, node_hours=12345.0, gpu_hours=49380.0, cpu_seconds=1234567.8, peak_memory=120 << 30, state="Requeued",
    )  # fmt: skip
    report = HistoryReport(schema=HISTORY_SCHEMA, at="", since="2026-11-14T00:00:00Z", until="2026-11-21T00:00:00Z", rows=[row], left_out=7)
    lines = history_lines(report, width=width, wide=False, color=False)
    assert [line for line in lines if len(line) > width] == []
    assert all(word in lines[1] for word in ("1234567", "training-", "Requeued", "12,345"))
    assert ("WalltimeExc" in lines[1]) == (width >= 100)
    wide = history_lines(report, width=width, wide=True, color=False)[1]
    assert all(word in wide for word in (row.job, row.user, row.project, row.vcluster, row.reason, "1234567.8", "120Gi", "physics"))


def test_history_is_a_row_for_each_attempt_and_what_they_sum_up_to() -> None:
    report = HistoryReport(
        schema=HISTORY_SCHEMA, at="", since="2026-11-14T00:00:00Z", until="2026-11-21T00:00:00Z", rows=[ROW], node_hours=12.0, left_out=7
    )
    lines = history_lines(report, width=0, wide=False, color=False)
    assert lines[1].split() == [
        "42", "train", "alice", "2", "Failed", "TaskFailed", "3", "4", "2026-11-20", "10:00", "2026-11-20", "12:30", "2h30m", "10.0", "40.0",
    ]  # fmt: skip
    assert "12.0 node-hours" in lines[-1]
    assert "7 more rows, --limit shows them" in lines[-1]
    nothing = HistoryReport(schema=HISTORY_SCHEMA, at="", since="a", until="b", rows=[])
    assert history_lines(nothing, width=0, wide=False, color=False) == ["nothing ran from a to b"]
