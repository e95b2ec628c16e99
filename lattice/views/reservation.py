"""The cached Reservation."""

from __future__ import annotations

from lattice.views.allocation import Condition
from lattice.views.meta import Metadata, View


class Recurrence(View, frozen=True):
    """How it comes again: every so many days, or on days of the week; until a time, or so often."""

    every_days: int | None = None
    weekdays: tuple[str, ...] = ()
    until: str | None = None
    count: int | None = None


class ReservationSpec(View, frozen=True):
    """Which nodes, when, and for whom."""

    nodes: str = ""
    node_count: int | None = None
    features: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    gpu_type: str = ""
    start: str = ""
    time_zone: str = ""
    duration: str = ""
    recurrence: Recurrence | None = None
    users: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    vclusters: tuple[str, ...] = ()
    maintenance: bool = False
    ignore_running: bool = False


class ReservationStatus(View, frozen=True):
    """What the scheduler made of it."""

    observed_generation: int = 0
    state: str = ""
    nodes: str = ""
    node_count: int = 0
    window_start: str | None = None
    window_end: str | None = None
    allocations: int = 0
    conditions: tuple[Condition, ...] = ()


class Reservation(View, frozen=True):
    """A Reservation."""

    metadata: Metadata
    spec: ReservationSpec = ReservationSpec()
    status: ReservationStatus = ReservationStatus()
