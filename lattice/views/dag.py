"""The cached DAG: as the operator reads it, whole, and as the scheduler does, without its members."""

from __future__ import annotations

from typing import Any

from lattice.views.allocation import Cancel, Condition, Dependency
from lattice.views.meta import Metadata, View


class Member(View, frozen=True):
    """One member of a DAG: its name, the spec of its Allocation as a person wrote it, and the members that it waits for."""

    name: str = ""
    spec: dict[str, Any] = {}
    depends_on: tuple[Dependency, ...] = ()
    depends_on_mode: str = "All"
    on_unmet: str = "Cancel"


class DagSpec(View, frozen=True):
    """The request of a person: the members, what they have in common, whose they are, and whether they wait or are to end."""

    tenant: str = ""
    user: str = ""
    defaults: dict[str, Any] = {}
    members: tuple[Member, ...] = ()
    hold: bool = False
    cancel: Cancel | None = None


class MemberState(View, frozen=True):
    """The state of one member, as the operator last wrote it."""

    name: str
    number: int | None = None
    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    end_time: str | None = None


class Counts(View, frozen=True):
    """The members of a DAG by state; `skipped`: cancelled for their edges."""

    total: int = 0
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0


class DagStatus(View, frozen=True):
    """The state of a DAG, written by the operator; `made`: so many members exist, in the order in which they are made."""

    observed_generation: int = 0
    phase: str = ""
    made: int = 0
    complete: bool = False
    counts: Counts = Counts()
    members: tuple[MemberState, ...] = ()
    critical_path: tuple[str, ...] = ()
    expected_end: str | None = None
    end_time: str | None = None
    conditions: tuple[Condition, ...] = ()


class Dag(View, frozen=True):
    """A DAG."""

    metadata: Metadata
    spec: DagSpec = DagSpec()
    status: DagStatus = DagStatus()


class GateSpec(View, frozen=True):
    """The parts of a DAG's spec by which its members wait."""

    hold: bool = False
    cancel: Cancel | None = None


class GateStatus(View, frozen=True):
    """The parts of a DAG's status by which its members wait: `complete` is True once all of them (`made`) exist, `end_time` set once it
    has ended.
    """

    made: int = 0
    complete: bool = False
    end_time: str | None = None


class DagGate(View, frozen=True):
    """A DAG as the scheduler reads it: whether its members may start."""

    metadata: Metadata
    spec: GateSpec = GateSpec()
    status: GateStatus = GateStatus()
