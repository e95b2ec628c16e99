"""Budgets: the hours agreed with a tenant, the period in which they count, and the balance (book, "Quota Enforcement", "Soft
Quotas").

A budget of hours is the tenant's, a project's in it, or each user's. Hours of a rolling window count, or those since the beginning
of the month, quarter or year (UTC). An outside source takes precedence for the tenant's own budget while its figures are fresh.
Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, NamedTuple

from lattice.errors import Rejected
from lattice.units import parse_duration, parse_quantity, parse_time
from lattice.views.cluster import Tenant

DAY: Final = 86400.0
ROLLING, MONTH, QUARTER, YEAR = "Rolling", "Month", "Quarter", "Year"
_MONTHS: Final = {MONTH: 1, QUARTER: 3, YEAR: 12}
INTERNAL, EXTERNAL = "Internal", "External"
OF_TENANT, OF_PROJECT, OF_USER = "Tenant", "Project", "User"


class Scope(NamedTuple):
    """The owner of a budget: a tenant (`name` empty), or a project or a user in it."""

    kind: str
    tenant: str
    name: str = ""

    @property
    def words(self) -> str:
        """Returns words for a sentence that say whose budget it is, such as `project "lattice-qcd" of tenant "physics"`."""
        if self.kind == OF_TENANT:
            return f'tenant "{self.tenant}"'
        return f'{"project" if self.kind == OF_PROJECT else "user"} "{self.name}" of tenant "{self.tenant}"'


@dataclass(frozen=True, slots=True)
class Allowance:
    """An amount of GPU-hours and node-hours, agreed or used; 0 as a limit: no such budget."""

    gpu_hours: float = 0.0
    node_hours: float = 0.0

    @property
    def given(self) -> bool:
        """Tells whether there is a budget of GPU-hours or of node-hours."""
        return self.gpu_hours > 0 or self.node_hours > 0


@dataclass(frozen=True, slots=True)
class Period:
    """The time whose hours count: a rolling window of `seconds`, or since the beginning of the month, quarter or year."""

    kind: str = ROLLING
    seconds: float = 90 * DAY

    def begin(self, now: float) -> float:
        """Returns when the period that contains `now` began."""
        return now - self.seconds if self.kind == ROLLING else self._start(now, 0)

    def end(self, now: float) -> float | None:
        """Returns when the period that contains `now` ends and the next begins; None: a rolling window does not end."""
        return None if self.kind == ROLLING else self._start(now, 1)

    def _start(self, now: float, ahead: int) -> float:
        """Returns when the calendar period that contains `now`, or the one `ahead` periods later, begins in UTC, seconds since the
        epoch.
        """
        length = _MONTHS[self.kind]
        moment = datetime.fromtimestamp(now, UTC)
        months = (moment.year * 12 + moment.month - 1) // length * length + ahead * length
        return datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC).timestamp()

    @property
    def words(self) -> str:
        """Returns words for a sentence, such as `this month`."""
        return f"in the last {self.seconds / DAY:g} days" if self.kind == ROLLING else f"this {self.kind.lower()}"


@dataclass(frozen=True, slots=True)
class Outside:
    """The figures that an outside source gives for a tenant's budget; valid until `until`."""

    name: str
    used: Allowance
    limit: Allowance
    until: float


@dataclass(frozen=True, slots=True)
class Budgets:
    """All budgets of one tenant, as its spec and the outside source give them."""

    whole: Allowance = Allowance()
    projects: Mapping[str, Allowance] = field(default_factory=dict)
    per_user: Allowance = Allowance()
    period: Period = Period()
    queues: bool = False
    """Whether work waits while a budget is used up (`onExhausted: Queue`); False: its score falls."""
    outside: Outside | None = None

    @property
    def counted(self) -> tuple[object, ...]:
        """Returns a key of the hours that these budgets need counted: who has budgets, and the period, not how much; where the key changes,
        all hours are counted again.
        """
        return self.whole.given, tuple(sorted(name for name, one in self.projects.items() if one.given)), self.per_user.given, self.period

    def allowance(self, scope: Scope) -> Allowance:
        """Returns the budget of one of the tenant's scopes, the outside source's figures aside; zero hours where it has none."""
        if scope.kind == OF_TENANT:
            return self.whole
        return self.per_user if scope.kind == OF_USER else self.projects.get(scope.name, Allowance())

    def scopes(self, tenant: str, user: str, project: str) -> list[Scope]:
        """Returns the owners of the budgets on which work of this user and project draws: tenant, project, user; empty: none."""
        found = [Scope(OF_TENANT, tenant)] if self.whole.given or self.outside is not None else []
        if project in self.projects and self.projects[project].given:
            found.append(Scope(OF_PROJECT, tenant, project))
        if self.per_user.given:
            found.append(Scope(OF_USER, tenant, user))
        return found


NO_BUDGETS: Final = Budgets()


@dataclass(frozen=True, slots=True)
class Balance:
    """The state of one budget: hours used and agreed in the period [begin, end); end None: a rolling window."""

    scope: Scope
    used: Allowance
    limit: Allowance
    begin: float
    end: float | None
    source: str = INTERNAL
    told_by: str = ""
    """The outside source whose figures these are; empty: the hours were counted here."""

    @property
    def fraction(self) -> float:
        """Returns used ÷ agreed, of the worse of GPU-hours and node-hours, above 1 where overdrawn; 0 without a budget."""
        return max((used / limit for used, limit in self.pairs()), default=0.0)

    @property
    def exhausted(self) -> bool:
        """Tells whether all agreed GPU-hours or all agreed node-hours are used; never without a budget."""
        return self.fraction >= 1.0

    def pairs(self) -> Iterable[tuple[float, float]]:
        """Yields (used, agreed) of GPU-hours and of node-hours, those without a budget left out."""
        pairs = ((self.used.gpu_hours, self.limit.gpu_hours), (self.used.node_hours, self.limit.node_hours))
        return ((used, limit) for used, limit in pairs if limit > 0)

    @property
    def numbers(self) -> str:
        """Returns the figures as text, `87.5 of 100 GPU-hours and 10 of 50 node-hours`; hours without a limit are left out."""
        named = ((self.used.gpu_hours, self.limit.gpu_hours, "GPU-hours"), (self.used.node_hours, self.limit.node_hours, "node-hours"))
        return " and ".join(f"{used:.6g} of {limit:.6g} {what}" for used, limit, what in named if limit > 0)


def budgets_of(tenant: Tenant) -> Budgets:
    """Returns the budgets of a Tenant; figures of its outside source that do not parse (the webhook was away) count as absent, and an
    unknown period as a rolling window.
    """
    budget, told = tenant.spec.budget, tenant.status.external_budget
    outside = None
    if told is not None:
        try:
            outside = Outside(
                told.source, Allowance(_hours(told.gpu_hours.used), _hours(told.node_hours.used)),
                Allowance(_hours(told.gpu_hours.limit), _hours(told.node_hours.limit)),
                parse_time(told.observed) + parse_duration(told.valid_for),
            )  # fmt: skip
        except Rejected:
            outside = None
    per_user = budget.per_user
    return Budgets(
        whole=Allowance(float(budget.gpu_hours), float(budget.node_hours)),
        projects={one.name: Allowance(float(one.gpu_hours), float(one.node_hours)) for one in budget.projects},
        per_user=Allowance(float(per_user.gpu_hours), float(per_user.node_hours)) if per_user is not None else Allowance(),
        period=Period(budget.period if budget.period in _MONTHS else ROLLING, budget.period_days * DAY),
        queues=budget.on_exhausted == "Queue",
        outside=outside,
    )


def _hours(quantity: int | str) -> float:
    """Returns a quantity of hours as a number. Raises Rejected where it does not parse."""
    return float(Decimal(parse_quantity(quantity)))
