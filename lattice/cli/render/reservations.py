"""Renders Reservations for people: one line each, or everything about one; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from lattice.cli.render.text import Column, fields, plural, table
from lattice.errors import Rejected
from lattice.lifecycle.conditions import condition
from lattice.lifecycle.reservations import calendar_of, show_span
from lattice.models.conditions import READY
from lattice.views import Reservation, ReservationSpec

_COLUMNS: Final = (
    Column("RESERVATION", shrink_to=12),
    Column("STATE"),
    Column("START"),
    Column("END", leave=2),
    Column("NODES", right=True),
    Column("FOR", shrink_to=8),
    Column("REPEATS", shrink_to=7, leave=1),
    Column("REASON", shrink_to=8),
    Column("WORK", right=True),
    Column("WHERE", shrink_to=12),
    Column("MESSAGE"),
)
_NEXT: Final = 5


def reservation_table(items: Sequence[Reservation], *, wide: bool, width: int, color: bool) -> list[str]:
    """Returns one line a reservation, by the beginning of its open or next window; those without one come last, equal ones by name."""
    ordered = sorted(items, key=lambda one: (one.status.window_start or "~", one.metadata.name))
    return table(_COLUMNS, [_row(one, wide) for one in ordered], width=0 if wide else width, color=color)


def _row(one: Reservation, wide: bool) -> list[str]:
    """Returns the cells of one Reservation; those of the wide table are empty unless asked for."""
    spec, status = one.spec, one.status
    ready = condition(status.conditions, READY)
    reason = ready.reason if ready is not None and ready.reason != status.state else ""
    extra = ["", "", ""]
    if wide:
        extra = [str(status.allocations), status.nodes or spec.nodes, ready.message if ready is not None else ""]
    return [
        one.metadata.name,
        status.state or "New",
        _minute(status.window_start),
        _minute(status.window_end),
        str(status.node_count or spec.node_count or ""),
        _people(spec),
        repeats(spec),
        reason,
        *extra,
    ]


def reservation_details(one: Reservation, now: float) -> list[str]:
    """Returns the lines about one reservation, with its next windows."""
    spec, status = one.spec, one.status
    ready = condition(status.conditions, READY)
    wanted = [plural(spec.node_count, "node")] if spec.node_count is not None else []
    wanted += [f"features {', '.join(spec.features)}"] if spec.features else []
    wanted += [f"groups {', '.join(spec.groups)}"] if spec.groups else []
    wanted += [f"GPU type {spec.gpu_type}"] if spec.gpu_type else []
    return fields(
        [
            ("Reservation", one.metadata.name),
            ("State", status.state or "the scheduler has not judged it yet"),
            ("Reason", f"{ready.reason}: {ready.message}".rstrip(": ") if ready is not None else ""),
            ("Asked for", spec.nodes or "; ".join(wanted)),
            ("Nodes", f"{status.nodes} ({plural(status.node_count, 'node')})" if status.nodes else ""),
            ("Start", spec.start + (f" in {spec.time_zone}" if spec.time_zone else "")),
            ("Duration", spec.duration),
            ("Repeats", repeats(spec)),
            ("Windows", "\n".join(_windows(spec, now))),
            ("For", _people(spec)),
            ("Running", "work that runs into it goes on to its end" if spec.ignore_running else ""),
            ("Allocations", plural(status.allocations, "allocation") if status.allocations else ""),
        ]
    )


def repeats(spec: ReservationSpec) -> str:
    """Returns the recurrence as `daily`, `every 3d` or `Mon, Fri`, with its end; empty where there is none."""
    rule = spec.recurrence
    if rule is None:
        return ""
    if rule.weekdays:
        text = ", ".join(day[:3] for day in rule.weekdays)
    else:
        text = {1: "daily", 7: "weekly"}.get(rule.every_days or 0, f"every {rule.every_days}d")
    if rule.count is not None:
        text += f", {rule.count} times"
    return text + (f" until {rule.until}" if rule.until else "")


def _windows(spec: ReservationSpec, now: float) -> list[str]:
    """Returns the open and the next windows of a Reservation as texts, five at most; none where its times do not parse, or all are over."""
    try:
        return [show_span(span) for span in islice(calendar_of(spec).spans(now), _NEXT)]
    except Rejected:
        return []  # the reason says why


def _people(spec: ReservationSpec) -> str:
    """Returns who may use a Reservation, in words; maintenance and everybody have words of their own."""
    if spec.maintenance:
        return "maintenance"
    parts = [f"{what} {','.join(names)}" for what, names in _named(spec) if names]
    return "; ".join(parts) or "everybody"


def _named(spec: ReservationSpec) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns the names that a Reservation admits, by what they are names of."""
    return ("users", spec.users), ("tenants", spec.tenants), ("vclusters", spec.vclusters)


def _minute(time: str | None) -> str:
    """Returns `2026-12-01T08:00Z`: seconds are left out where they are 0."""
    return time.removesuffix(":00Z") + "Z" if time and time.endswith(":00Z") else time or ""
