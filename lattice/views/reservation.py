"""The cached Reservation."""

from __future__ import annotations

from lattice.views.allocation import Condition
from lattice.views.meta import Metadata, View


class Recurrence(View, frozen=True):
    """The recurrence of a reservation's window: every so many days, or on weekdays; until a time, or so many times."""

    every_days: int | None = None
    weekdays: tuple[str, ...] = ()
    until: str | None = None
    count: int | None = None


class ReservationSpec(View, frozen=True):
    """The nodes of a reservation, its windows, and who may use it."""

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
    """The state of a reservation, written by the scheduler: its nodes and its open or next window."""

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
