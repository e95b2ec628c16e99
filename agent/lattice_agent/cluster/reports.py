"""Decides what a heartbeat reports, and which reports do not wait for the next one; pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from lattice.ledger import reports
from lattice.ledger.reports import NodeReport, ReportRow, format_report
from lattice_agent.attempts import Key, Seen

URGENT = frozenset({reports.UNNAMED, reports.GONE, reports.LOST, reports.UNKNOWN_EXIT, reports.START_FAILED})
"""States of an attempt for which the scheduler waits; all others are reported with the next heartbeat."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of the reporting agent: the kernel's boot id, and the random id of its state directory."""

    boot: str
    instance: str


@dataclass(frozen=True, slots=True)
class ReportContent:
    """The content of one report: a row for each attempt, and the names of nodes in them that cannot be reached, sorted."""

    rows: tuple[ReportRow, ...] = ()
    away: tuple[str, ...] = ()


def annotation(identity: NodeIdentity, beat: int, seen: Seen, said: ReportContent) -> str:
    """Returns the text of the Lease's annotation `lattice.dev/report`; `beat` numbers the heartbeats of the process, from 1."""
    report = NodeReport(beat, seen.seq, identity.boot, identity.instance, said.rows, epoch=seen.epoch, term=seen.term, away=said.away)
    return format_report(report)


def with_detail(rows: tuple[ReportRow, ...], waiting: Collection[Key], detail: str) -> tuple[ReportRow, ...]:
    """Returns the rows, of which those of `waiting` attempts that are being prepared and have no detail yet get this one."""
    if not waiting:
        return rows
    return tuple(
        msgspec.structs.replace(row, detail=detail)
        if row.state == reports.PREPARING and not row.detail and Key(row.uid, row.attempt) in waiting
        else row
        for row in rows
    )


def is_urgent(before: ReportContent, after: ReportContent) -> bool:
    """Tells whether the scheduler waits for something that is new since the last report.

    Such are urgent states of attempts, and a change of which nodes cannot be reached.
    """
    if before.away != after.away:
        return True
    told = {(row.uid, row.attempt, row.state) for row in before.rows}
    return any(row.state in URGENT and (row.uid, row.attempt, row.state) not in told for row in after.rows)
