"""The table of `lattice status`, made of rows wherever they came from; loads nothing of weight."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.cli.render.text import Column, clock, span, start_cell, table
from lattice.scheduling.queries.row_shapes import StatusDetail, StatusRow
from lattice.units import format_clock

_COLUMNS = (
    Column("NAMESPACE", shrink_to=8),
    Column("ID", right=True),
    Column("NAME", shrink_to=12),
    Column("USER", shrink_to=6),
    Column("STATE"),
    Column("NODES", right=True),
    Column("WALLTIME", right=True, leave=2),
    Column("ELAPSED", right=True, leave=3),
    Column("VCLUSTER", shrink_to=8, leave=1),
    Column("SINCE", right=True),
    Column("START", right=True, leave=4),
    Column("NODELIST(REASON)", shrink_to=12),
    Column("JOB", shrink_to=8),
    Column("TENANT", shrink_to=8),
    Column("PROJECT", shrink_to=8),
    Column("ATTEMPT", right=True),
    Column("CLASS", right=True),
    Column("SCORE", right=True),
    Column("MESSAGE", shrink_to=20),
)


def status_table(
    rows: Sequence[StatusRow], details: Sequence[StatusDetail], *, now: float, users: bool, namespaces: bool, width: int, color: bool
) -> list[str]:
    """Returns the table of allocations: the book's columns, the nodes or the reason, and since when; with `details`, the wide table.

    `details`: empty, or one for each row. `users`, `namespaces`: with a column of them. `width` 0: unlimited.
    """
    cells = [_cells(row, now, users=users or bool(details), namespaces=namespaces) for row in rows]
    extra = [_extra(detail) for detail in details] or [_NO_EXTRA] * len(rows)
    return table(_COLUMNS, [left + right for left, right in zip(cells, extra, strict=True)], width=width, color=color)


_NO_EXTRA = ("", "", "", "", "", "", "")


def _cells(row: StatusRow, now: float, *, users: bool, namespaces: bool) -> tuple[str, ...]:
    """Returns the cells of one row, with user and namespace only where asked for."""
    return (
        row.namespace if namespaces else "",
        str(row.number or ""),
        row.name,
        row.user if users else "",
        row.phase,
        row.nodes,
        clock(row.walltime),
        format_clock((now if row.end is None else row.end) - row.start) if row.start is not None else "",
        row.vcluster,
        span(now - row.since) if row.since is not None else "",
        start_cell(row.expected_p50, row.expected_p90, now) if row.expected_reason is not None else "",
        _place(row, now),
    )


def _extra(detail: StatusDetail) -> tuple[str, ...]:
    """Returns the further cells of the wide table."""
    return (
        detail.job,
        detail.tenant,
        detail.project,
        str(detail.attempt or ""),
        str(detail.preemption_class),
        detail.score,
        detail.message,
    )


def _place(row: StatusRow, now: float) -> str:
    """Returns the nodes or the reason; of work that ends why, and when KILL follows."""
    if not row.leaving and row.kill is None and (row.over is None or row.over >= now):
        return row.place
    at = row.kill if row.kill is not None or row.over is None or row.over >= now else row.over + row.grace_seconds
    kill = kill_words(at, now)
    return f"({', '.join(filter(None, (row.leaving or 'WalltimeExceeded', kill)))})"


def kill_words(at: float | None, now: float) -> str:
    """Returns when KILL follows, or was due, as `KILL in 12s`; empty where `at` (seconds since the epoch) is None."""
    if at is None:
        return ""
    return f"KILL in {span(at - now)}" if at > now else f"KILL was due {span(now - at)} ago"
