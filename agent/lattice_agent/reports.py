"""What a node says with each heartbeat, and when it does not wait for the next one: pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.ledger import reports
from lattice.ledger.reports import NodeReport, ReportRow, format_report

URGENT = frozenset({reports.UNNAMED, reports.GONE, reports.LOST, reports.UNKNOWN_EXIT, reports.START_FAILED})
"""States that the scheduler waits for; the others travel with the next beat."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who reports: the kernel's boot id and the state directory's random id."""

    boot: str
    instance: str


def annotation(identity: Identity, beat: int, seq: int, rows: tuple[ReportRow, ...]) -> str:
    """The text of `lattice.dev/report`."""
    return format_report(NodeReport(beat, seq, identity.boot, identity.instance, rows))


def is_urgent(before: tuple[ReportRow, ...], after: tuple[ReportRow, ...]) -> bool:
    """Whether something that the scheduler waits for is new since the last report."""
    said = {(row.uid, row.attempt, row.state) for row in before}
    return any(row.state in URGENT and (row.uid, row.attempt, row.state) not in said for row in after)
