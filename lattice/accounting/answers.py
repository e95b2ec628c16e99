"""The documents that answer `usage` and `history`, as types; `lattice.scheduling.queries.answers` has the others.

Hours are numbers; times RFC 3339 texts, days (UTC) such as `2026-11-21`. An empty field is left out.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from lattice.accounting.charges import Charge

USAGE_SCHEMA: Final = "lattice.dev/usage/v1"
HISTORY_SCHEMA: Final = "lattice.dev/history/v1"
EndState = Literal["Completed", "Failed", "Cancelled", "Requeued", "Running"]


class UsagePart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The base of every part of these documents: field names in camelCase, empty fields left out."""


class DayUse(UsagePart, frozen=True):
    """The node-hours and GPU-hours used on one day (UTC)."""

    day: str
    node_hours: float
    gpu_hours: float


class PartUse(UsagePart, frozen=True):
    """The hours used by one tenant, project or user among those that the question concerns."""

    name: str
    """Empty: work without a project. `others`: those whom the reader may not name, in one sum."""
    node_hours: float
    gpu_hours: float
    attempts: int


class BudgetHours(UsagePart, frozen=True):
    """The use of one of the two budgets (GPU-hours, node-hours) of a tenant, project or user."""

    used: float
    limit: float
    per_day: float = 0.0
    """Hours used a day over the last 7 days, the rate of the forecast."""


class BudgetReport(UsagePart, frozen=True):
    """The state of the budget of one tenant, project or user, and when it runs out."""

    scope: Literal["Tenant", "Project", "User"]
    name: str
    """The name of the tenant, the project or the user."""
    tenant: str
    period: str
    """The time whose hours count, in words."""
    fraction: float
    """Used ÷ agreed, of the worse of GPU-hours and node-hours; 1: used up."""
    on_exhausted: Literal["Penalise", "Queue"]
    source: Literal["Internal", "External"]
    """External: an outside source gives the figures."""
    told_by: str = ""
    """The name of that source."""
    period_start: str | None = None
    period_end: str | None = None
    """Absent: the hours of a rolling window count."""
    gpu_hours: BudgetHours | None = None
    node_hours: BudgetHours | None = None
    runs_out: str | None = None
    """When it is used up if work goes on as in the last 7 days; absent: it is already, or will not be in this period."""


class UsageReport(UsagePart, frozen=True):
    """The document that answers `usage`: the hours used since a time, by day, tenant, project and user, and the budgets."""

    schema: Literal["lattice.dev/usage/v1"]
    at: str
    since: str
    node_hours: float
    gpu_hours: float
    attempts: int
    """How many attempts used nodes in this time."""
    running: int = 0
    """How many of these still run; they count up to now."""
    tenant: str = ""
    """The tenant asked about; empty: all."""
    user: str = ""
    """The user asked about; empty: all."""
    project: str = ""
    """The project asked about; empty: all."""
    days: list[DayUse] = []
    tenants: list[PartUse] = []
    """Those with most hours first, as in the next two lists."""
    projects: list[PartUse] = []
    users: list[PartUse] = []
    budgets: list[BudgetReport] = []
    incomplete: str = ""
    """What is missing, and why: the scheduler, which knows of running work, does not answer."""


class HistoryRow(UsagePart, frozen=True):
    """One attempt of an allocation in the history."""

    tenant: str
    namespace: str
    name: str
    uid: str
    attempt: int
    """Its number; 0: the allocation ended without ever having had nodes."""
    state: EndState
    """Requeued: another attempt followed."""
    submitted: str
    number: int = 0
    job: str = ""
    """`tags.name`."""
    user: str = ""
    project: str = ""
    vcluster: str = ""
    preemption_class: int = 0
    first_attempt: int | None = None
    """Given where the row sums up the attempts from this one to `attempt`."""
    nodes: int = 0
    gpus: int = 0
    """The GPUs of all its nodes together."""
    scheduled: str | None = None
    """When it got its nodes, from which it is charged."""
    started: str | None = None
    """When its first process started."""
    ended: str | None = None
    seconds: int = 0
    """Seconds from its first process to its end, or to now."""
    reason: str = ""
    exit: int | None = None
    node_hours: float = 0.0
    gpu_hours: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of all its processes; 0: unknown."""
    peak_memory: int = 0
    """Bytes, on the node where it held most; 0: unknown."""
    oom_kills: int = 0
    """Processes that the kernel killed because memory was short."""


class HistoryReport(UsagePart, frozen=True):
    """The document that answers `history`: attempts, the newest first."""

    schema: Literal["lattice.dev/history/v1"]
    at: str
    since: str
    until: str
    rows: list[HistoryRow]
    node_hours: float = 0.0
    """Of all attempts that match, those left out included."""
    gpu_hours: float = 0.0
    left_out: int = 0
    """How many attempts match beyond the limit that the question set."""
    incomplete: str = ""


class Unsettled(msgspec.Struct, frozen=True):
    """The scheduler's charges that no UsageRecord held when it had seen the records up to resourceVersion `version`."""

    version: str
    charges: list[Charge]


ACCOUNTING_ANSWERS: Final[dict[str, type[UsagePart]]] = {USAGE_SCHEMA: UsageReport, HISTORY_SCHEMA: HistoryReport}
"""The documents by their schema."""
