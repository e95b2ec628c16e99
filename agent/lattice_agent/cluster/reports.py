"""Decides what a heartbeat reports, and when a report does not wait for the next one: pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from lattice.ledger import reports
from lattice.ledger.reports import NodeReport, ReportRow, format_report
from lattice_agent.attempts import Key, Seen

URGENT = frozenset({reports.UNNAMED, reports.GONE, reports.LOST, reports.UNKNOWN_EXIT, reports.START_FAILED})
"""States that the scheduler waits for; the others travel with the next beat."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Names who reports: the kernel's boot id and the state directory's random id."""

    boot: str
    instance: str


@dataclass(frozen=True, slots=True)
class ReportContent:
    """Holds what a node reports: its attempts, and the nodes of them that it cannot talk to, in order of their names."""

    rows: tuple[ReportRow, ...] = ()
    away: tuple[str, ...] = ()


def annotation(identity: NodeIdentity, beat: int, seen: Seen, said: ReportContent) -> str:
    """Formats the annotation `lattice.dev/report`."""
    report = NodeReport(beat, seen.seq, identity.boot, identity.instance, said.rows, epoch=seen.epoch, term=seen.term, away=said.away)
    return format_report(report)


def with_unserved(rows: tuple[ReportRow, ...], unserved: Collection[Key]) -> tuple[ReportRow, ...]:
    """Marks the rows of attempts for which the node waits until a gateway gives it their work."""
    if not unserved:
        return rows
    return tuple(
        msgspec.structs.replace(row, detail=reports.UNSERVED)
        if row.state == reports.PREPARING and not row.detail and Key(row.uid, row.attempt) in unserved
        else row
        for row in rows
    )


def is_urgent(before: ReportContent, after: ReportContent) -> bool:
    """Tells whether something that the scheduler waits for is new since the last report; so is a change of who can be reached."""
    if before.away != after.away:
        return True
    told = {(row.uid, row.attempt, row.state) for row in before.rows}
    return any(row.state in URGENT and (row.uid, row.attempt, row.state) not in told for row in after.rows)
