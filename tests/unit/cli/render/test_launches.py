"""The launches of allocations as people see them: a table as sacct shows steps, and sentences on what is missing."""

from __future__ import annotations

from lattice.cli.render.launches import exit_words, launch_lines, totals_text
from lattice.launches.answers import LaunchReport, LaunchRow, StepsOfAttempt
from lattice.views.allocation import FailedLaunch, LaunchTotals

ROWS = [
    LaunchRow(number=0, step="12.0", command="./a", state="Completed", nodes="n1", node_count=1, tasks=2, started="2026-01-01T00:00:00Z"),
    LaunchRow(number=1, step="12.1", command="./b", state="Failed", code=137, signal=9, reason="task 0 was ended by signal 9"),
    LaunchRow(number=2, step="12.2", command="./c", state="Running", code=0),
]


def lines(part: StepsOfAttempt, rows: list[LaunchRow], width: int = 200) -> list[str]:
    """The lines of a report."""
    report = LaunchReport(schema="lattice.dev/steps/v1", at="2026-01-01T00:00:00Z", rows=rows, attempts=[part])
    return launch_lines(report, width=width, wide=False, color=False)


def test_exits_are_shown_as_sacct_shows_them() -> None:
    assert [exit_words(row) for row in ROWS] == ["0:0", "0:9", ""]


def test_each_launch_is_a_row_and_the_attempt_a_sentence() -> None:
    totals = LaunchTotals(total=2, completed=1, failed=1)
    head, *rows = lines(StepsOfAttempt(allocation="physics/job", number=12, attempt=1, launches=totals), ROWS)
    assert head.split()[:2] == ["STEP", "COMMAND"]
    assert [row.split()[0] for row in rows[:3]] == ["12.0", "12.1", "12.2"]
    assert "task 0 was ended by signal 9" in rows[1]
    assert rows[-1] == "12: 2 launches: 1 completed, 1 failed"


def test_what_is_missing_is_said_with_its_reason() -> None:
    part = StepsOfAttempt(allocation="physics/job", number=12, dropped=5, left_out=30, launches=LaunchTotals(total=1, completed=1))
    said = " ".join(lines(part, []))
    assert "1 launch: 1 completed" in said
    assert "30 older rows, --limit shows them" in said
    assert "the 5 oldest are dropped: the log keeps 16 MiB" in said


def test_an_attempt_without_launches_says_so_alone() -> None:
    assert lines(StepsOfAttempt(allocation="physics/job"), []) == ["physics/job: no launch is over"]


def test_totals_name_the_last_failures() -> None:
    failed = FailedLaunch(step="12.3", result="NodeFail", code=137, node="n2", reason="the node was lost")
    assert totals_text(LaunchTotals(total=3, completed=2, node_fail=1, failures=(failed,))).splitlines() == [
        "3 launches: 2 completed, 1 lost a node",
        "12.3 NodeFail, exit 137 on n2: the node was lost",
    ]
    assert totals_text(None) == totals_text(LaunchTotals()) == ""


def test_launches_that_run_are_not_counted_as_ended() -> None:
    assert totals_text(LaunchTotals(total=4, failed=2)) == "4 launches: 2 failed, 2 running"
