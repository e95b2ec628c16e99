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
    """The base of every part of these answers: camelCase outside, what is empty left out."""


class DayUse(UsagePart, frozen=True):
    """Hours of one day."""

    day: str
    node_hours: float
    gpu_hours: float


class PartUse(UsagePart, frozen=True):
    """Hours of one tenant, project or user among those asked about."""

    name: str
    """Empty: those without a project; `others`: those whom the reader may not name, in sums."""
    node_hours: float
    gpu_hours: float
    attempts: int


class BudgetHours(UsagePart, frozen=True):
    """One of the two budgets of a scope."""

    used: float
    limit: float
    per_day: float = 0.0
    """The rate that the forecast takes: use of the last 7 days, per day."""


class BudgetReport(UsagePart, frozen=True):
    """The state of a budget, and when it runs out."""

    scope: Literal["Tenant", "Project", "User"]
    name: str
    """Of the tenant, the project or the user."""
    tenant: str
    period: str
    """Which hours count, as words."""
    fraction: float
    """Used ÷ agreed of the worse of the two; 1 is used up."""
    on_exhausted: Literal["Penalise", "Queue"]
    source: Literal["Internal", "External"]
    """External: an outside source told it."""
    told_by: str = ""
    """That source."""
    period_start: str | None = None
    period_end: str | None = None
    """Absent: a rolling window."""
    gpu_hours: BudgetHours | None = None
    node_hours: BudgetHours | None = None
    runs_out: str | None = None
    """When, if work goes on as in the last 7 days; absent: not in this period, or not at that rate, or it has."""


class UsageReport(UsagePart, frozen=True):
    """The answer to `usage`."""

    schema: Literal["lattice.dev/usage/v1"]
    at: str
    since: str
    node_hours: float
    gpu_hours: float
    attempts: int
    """Attempts that used something in this time."""
    running: int = 0
    """Of them, those that still run; they count up to now."""
    tenant: str = ""
    """Empty: all tenants."""
    user: str = ""
    """Empty: everybody's."""
    project: str = ""
    """Empty: all projects."""
    days: list[DayUse] = []
    tenants: list[PartUse] = []
    """Most hours first, as are the next two."""
    projects: list[PartUse] = []
    users: list[PartUse] = []
    budgets: list[BudgetReport] = []
    incomplete: str = ""
    """What is missing, and why: the scheduler, which tells of running work, does not answer."""


class HistoryRow(UsagePart, frozen=True):
    """One attempt."""

    tenant: str
    namespace: str
    name: str
    uid: str
    attempt: int
    """0: it never had nodes."""
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
    """The row sums up the attempts from this one on."""
    nodes: int = 0
    gpus: int = 0
    """Of all its nodes together."""
    scheduled: str | None = None
    """When it got its nodes: it is charged from then on."""
    started: str | None = None
    """Its first process."""
    ended: str | None = None
    seconds: int = 0
    """From the first process to the end, or to now."""
    reason: str = ""
    exit: int | None = None
    node_hours: float = 0.0
    gpu_hours: float = 0.0


class HistoryReport(UsagePart, frozen=True):
    """The answer to `history`, the newest first."""

    schema: Literal["lattice.dev/history/v1"]
    at: str
    since: str
    until: str
    rows: list[HistoryRow]
    node_hours: float = 0.0
    """Of all rows that match, those that were left out included."""
    gpu_hours: float = 0.0
    left_out: int = 0
    """Rows that match, beyond the limit of the question."""
    incomplete: str = ""


class Unsettled(msgspec.Struct, frozen=True):
    """The charges of the scheduler that no usage record held when it had read the records up to `version`."""

    version: str
    charges: list[Charge]


ACCOUNTING_ANSWERS: Final[dict[str, type[UsagePart]]] = {USAGE_SCHEMA: UsageReport, HISTORY_SCHEMA: HistoryReport}
"""The documents by their schema."""
