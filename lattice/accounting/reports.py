"""Builds the documents that answer `usage` and `history` from charges: sums, days, budgets with a forecast, matching attempts.

Times are seconds since the epoch. The caller has found out before what the reader may see (`names`, `reader`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Final, cast

from lattice.accounting.answers import (
    HISTORY_SCHEMA,
    USAGE_SCHEMA,
    BudgetHours,
    BudgetReport,
    DayUse,
    HistoryReport,
    HistoryRow,
    PartUse,
    UsageReport,
)
from lattice.accounting.budgets import OF_PROJECT, OF_TENANT, OF_USER, Balance, Budgets, Scope
from lattice.accounting.charges import RUNNING, Charge
from lattice.accounting.meter import Meter, MeterWindow, spans
from lattice.accounting.records import Page, month_of, read_rows, word
from lattice.units import format_time

DAY: Final = 86400
RATE_DAYS: Final = 7
"""Days whose mean use is the rate of the forecast."""
OTHERS: Final = "others"
MOST_DAYS: Final = 3650
_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class Asked:
    """The tenant, user and project that a question of `reader` is about; empty: all. `names`: people other than `reader` may be named."""

    reader: str
    tenant: str = ""
    user: str = ""
    project: str = ""
    names: bool = False

    def admits(self, charge: Charge) -> bool:
        """Tells whether a charge is of the tenant, user and project asked about, those that are empty aside; `names` and `reader` play no
        part.
        """
        return (
            (not self.tenant or charge.tenant == self.tenant)
            and (not self.user or charge.user == self.user)
            and (not self.project or charge.project == self.project)
        )


@dataclass(frozen=True, slots=True)
class Among:
    """The filter of a `history` question: attempts in [since, until), in these states (none: all), at most `limit`.

    `numbers` are ranges of allocation numbers, both ends included, and `names` those of objects or jobs; an attempt matches one or
    the other; without both, all match.
    """

    since: float
    until: float
    states: frozenset[str] = frozenset()
    limit: int = 100
    numbers: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reach:
    """The charges that a question may read: of these tenants (None: of all), and of `user` in any tenant; ended after `since`."""

    since: float
    tenants: frozenset[str] | None = None
    user: str = ""


LATEST_SECONDS: Final = 86400
"""How much older than `since` an end may be that a record has, and of which whoever counts open charges has not heard."""


def charges_since(pages: Iterable[Page], open_ones: Sequence[Charge], reach: Reach, now: float) -> Iterator[Charge]:
    """Yields each charge within reach once: those of records that ended after `since`, then open ones, counted up to `now`; of open ones
    also those that have not ended.

    `pages`: the records. `open_ones`: charges that may be in no record yet; those that a record has are yielded from it. Raises Corrupt for
    rows that cannot be read.
    """
    first, everybody, mark = month_of(int(reach.since)), reach.tenants is None, f" {word(reach.user)} "
    if open_ones:
        first = month_of(max(0, int(reach.since) - LATEST_SECONDS))
    tenants = reach.tenants or frozenset()
    settled: set[tuple[str, int]] = set()
    expected = {(charge.uid, charge.attempt) for charge in open_ones}
    for page in pages:
        whole = everybody or page.tenant in tenants
        if page.month < first or not page.text or not (whole or (reach.user and mark in page.text)):
            continue
        for charge in read_rows(page.text, page.tenant):
            key = (charge.uid, charge.attempt)
            if key in expected:
                settled.add(key)
            if charge.ended > reach.since and (whole or charge.user == reach.user):
                yield charge
    for charge in open_ones:
        within = everybody or charge.tenant in tenants or charge.user == reach.user
        if within and (charge.uid, charge.attempt) not in settled and not 0 < charge.ended <= reach.since:
            yield charge.at(now)


def usage_report(
    charges: Iterable[Charge], asked: Asked, since: float, now: float, budgets: Mapping[str, Budgets], incomplete: str = ""
) -> UsageReport:
    """Returns the document of `usage`: the hours used in [since, now), and the budgets that the question concerns.

    `charges` reach back to the earliest of `since` and the beginnings of the budgets' periods, and are all of the budgets' tenants.
    """
    sums, forecasts = _Sums(since, now), _Forecasts(budgets, asked, now)
    for charge in charges:
        forecasts.take(charge)
        if asked.admits(charge):
            sums.take(charge)
    return UsageReport(
        schema=USAGE_SCHEMA, at=format_time(now), since=format_time(since), tenant=asked.tenant, user=asked.user, project=asked.project,
        node_hours=_hours(sums.total[0]), gpu_hours=_hours(sums.total[1]), attempts=sums.attempts, running=sums.running,
        days=sums.by_day(), tenants=sums.parts("tenant", None) if not asked.tenant else [],
        projects=sums.parts("project", None) if not asked.project else [],
        users=sums.parts("user", None if asked.names else asked.reader) if not asked.user else [],
        budgets=list(forecasts.reports()), incomplete=incomplete,
    )  # fmt: skip


def history_report(charges: Iterable[Charge], asked: Asked, among: Among, now: float, incomplete: str = "") -> HistoryReport:
    """Returns the document of `history`: the attempts that match, the newest first, `among.limit` at most; its sums count all of them."""
    found = [charge for charge in charges if asked.admits(charge) and _matches(charge, among)]
    kept = nlargest(among.limit, found, key=lambda charge: (charge.ended or now, charge.number, charge.attempt))
    return HistoryReport(
        schema=HISTORY_SCHEMA, at=format_time(now), since=format_time(among.since), until=format_time(among.until),
        rows=[row_of(charge, now) for charge in kept], node_hours=_hours(sum(charge.node_seconds for charge in found)),
        gpu_hours=_hours(sum(charge.gpu_seconds for charge in found)), left_out=len(found) - len(kept), incomplete=incomplete,
    )  # fmt: skip


def row_of(charge: Charge, now: float) -> HistoryRow:
    """Returns one charge as a row of `history`; the seconds of an attempt that still runs count up to `now`."""
    times = {"scheduled": charge.committed, "started": charge.started, "ended": charge.ended}
    return HistoryRow(
        tenant=charge.tenant, namespace=charge.namespace, name=charge.name, uid=charge.uid, attempt=charge.attempt,
        state=cast("Any", charge.state), submitted=format_time(charge.submitted), number=charge.number, job=charge.job, user=charge.user,
        project=charge.project, vcluster=charge.vcluster, preemption_class=charge.preemption_class,
        first_attempt=charge.first if charge.first != charge.attempt else None, nodes=charge.nodes, gpus=charge.gpus,
        seconds=max(0, (charge.ended or int(now)) - charge.started) if charge.started else 0, reason=charge.reason, exit=charge.exit,
        node_hours=_hours(charge.node_seconds), gpu_hours=_hours(charge.gpu_seconds),
        cpu_seconds=charge.cpu_milliseconds / 1000, peak_memory=charge.peak_memory, oom_kills=charge.oom_kills,
        **{name: format_time(at) if at else None for name, at in times.items()},
    )  # fmt: skip


def _matches(charge: Charge, among: Among) -> bool:
    """Tells whether a charge is one of those asked for: by name, job or number where any is given, by overlap with the time asked for, and
    by state where any is given.

    An attempt without nodes lasts from its end, or its submission, on.
    """
    named = charge.name in among.names or (charge.job and charge.job in among.names)
    if (among.names or among.numbers) and not named and not any(first <= charge.number <= last for first, last in among.numbers):
        return False
    begun = charge.committed or charge.ended or charge.submitted
    return begun < among.until and (not charge.ended or charge.ended >= among.since) and (not among.states or charge.state in among.states)


@dataclass(slots=True)
class _Sums:
    """The sums of node-seconds and GPU-seconds used in [since, now): in all, by day, and by tenant, project and user."""

    since: float
    now: float
    total: list[int] = field(default_factory=lambda: [0, 0])
    attempts: int = 0
    running: int = 0
    days: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    by: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))

    def take(self, charge: Charge) -> None:
        """Adds the use of one attempt in [since, now), by day and by tenant, project and user; an attempt that used no node then counts
        only if it runs and holds nodes.
        """
        used = [0, 0]
        first = int(self.since)
        for begin, end, nodes, gpus in spans(charge):
            at, last = max(int(begin), first), min(int(self.now), int(end) if end is not None else int(self.now))
            while at < last:
                day = at // DAY
                seconds = min(last, (day + 1) * DAY) - at
                of_day = self.days[day]
                of_day[0] += nodes * seconds
                of_day[1] += gpus * seconds
                used[0] += nodes * seconds
                used[1] += gpus * seconds
                at += seconds
        if not used[0] and not (charge.state == RUNNING and charge.nodes):
            return
        self.attempts += 1
        self.running += charge.state == RUNNING
        self.total[0] += used[0]
        self.total[1] += used[1]
        for key in (("tenant", charge.tenant), ("project", charge.project), ("user", charge.user)):
            part = self.by[key]
            part[0] += used[0]
            part[1] += used[1]
            part[2] += 1

    def by_day(self) -> list[DayUse]:
        """Returns the hours of each day (UTC), from the day of `since` to today, days without use included."""
        days = range(int(self.since) // DAY, int(self.now) // DAY + 1)
        used = [(day, self.days.get(day, (0, 0))) for day in days]
        return [DayUse(day=format_time(day * DAY)[:10], node_hours=_hours(sums[0]), gpu_hours=_hours(sums[1])) for day, sums in used]

    def parts(self, kind: str, only: str | None) -> list[PartUse]:
        """Returns the hours by name of tenant, project or user (`kind`), most node-hours first; None as `only`: each by its name, else only
        that one, and all others summed up as `others`.
        """
        names: dict[str, Counter[int]] = defaultdict(Counter)
        for (of, name), sums in self.by.items():
            if of == kind:
                names[name if only is None or name == only else OTHERS].update(dict(enumerate(sums)))
        rows = [PartUse(name=name, node_hours=_hours(sums[0]), gpu_hours=_hours(sums[1]), attempts=sums[2]) for name, sums in names.items()]
        return sorted(rows, key=lambda row: (-row.node_hours, row.name))


class _Forecasts:
    """The budgets that a question concerns, with their use, and when they run out."""

    def __init__(self, budgets: Mapping[str, Budgets], asked: Asked, now: float) -> None:
        self._budgets = budgets
        self._asked = asked
        self._now = now
        self._meter = Meter()
        self._meter.agree(budgets)
        self._recent: dict[Scope, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def take(self, charge: Charge) -> None:
        """Adds the use of one attempt to the budgets and to the rates of the last seven days; ignored for a tenant without an entry among
        the budgets.
        """
        budgets = self._budgets.get(charge.tenant)
        if budgets is None:
            return
        self._meter.charge(charge)
        since = self._now - RATE_DAYS * DAY
        if charge.ended and charge.ended <= since:
            return
        used = [0.0, 0.0]
        for begin, end, nodes, gpus in spans(charge):
            hours = ((end if end is not None else self._now) - max(begin, since)) / _HOUR / RATE_DAYS
            if hours > 0:
                used[0] += nodes * hours
                used[1] += gpus * hours
        for scope in budgets.scopes(charge.tenant, charge.user, charge.project):
            recent = self._recent[scope]
            recent[0] += used[0]
            recent[1] += used[1]

    def reports(self) -> Iterator[BudgetReport]:
        """Yields each budget that the question concerns: of tenants always, of all projects or the one asked about, and of users the one
        asked about or the reader, all of them only if he may name them and none is asked about.
        """
        asked = self._asked
        for tenant, budgets in sorted(self._budgets.items()):
            for balance in self._meter.balances(tenant, self._now):
                scope = balance.scope
                if scope.kind == OF_PROJECT and asked.project not in ("", scope.name):
                    continue
                if scope.kind == OF_USER and scope.name != (asked.user or asked.reader) and not (asked.names and not asked.user):
                    continue
                yield self._report(balance, budgets)

    def _report(self, balance: Balance, budgets: Budgets) -> BudgetReport:
        """Returns a budget with its present use, its hours a day of late, and when it runs out."""
        scope = balance.scope
        node_rate, gpu_rate = self._recent[scope]
        used, limit = balance.used, balance.limit
        return BudgetReport(
            scope=cast("Any", scope.kind), name=scope.tenant if scope.kind == OF_TENANT else scope.name, tenant=scope.tenant,
            period=budgets.period.words, fraction=round(balance.fraction, 4), on_exhausted="Queue" if budgets.queues else "Penalise",
            source=cast("Any", balance.source), told_by=balance.told_by,
            period_start=format_time(balance.begin) if balance.end is not None else None,
            period_end=format_time(balance.end) if balance.end is not None else None,
            gpu_hours=_budget(used.gpu_hours, limit.gpu_hours, gpu_rate), node_hours=_budget(used.node_hours, limit.node_hours, node_rate),
            runs_out=self._runs_out(balance, (node_rate, gpu_rate)),
        )  # fmt: skip

    def _runs_out(self, balance: Balance, rates: tuple[float, float]) -> str | None:
        """Returns when the first of GPU-hours and node-hours is used up at these rates (node-hours and GPU-hours a day), as text; None: not
        in sight, or a budget is used up already.

        Hours without a limit or without use of late do not run out.
        """
        if balance.exhausted:
            return None
        used = (balance.used.node_hours, balance.used.gpu_hours)
        limits = (balance.limit.node_hours, balance.limit.gpu_hours)
        ends = [
            self._end(balance, self._meter.windows(balance.scope)[place], used[place], limits[place], rates[place])
            for place in (0, 1)
            if limits[place] > 0 and rates[place] > 0
        ]
        first = min((end for end in ends if end is not None), default=None)
        return format_time(first) if first is not None else None

    def _end(self, balance: Balance, window: MeterWindow, used: float, limit: float, rate: float) -> float | None:
        """Returns when the hours reach the limit, seconds since the epoch, at this rate (hours a day, which must be above 0); None: not in
        sight, or not before the end of the calendar period.

        Hours of a rolling window leave it day by day; those that an outside source tells never do.
        """
        now = self._now
        if balance.end is not None or balance.told_by:
            at = now + (limit - used) / rate * DAY
            return at if balance.end is None or at < balance.end else None
        length = now - balance.begin
        before = used
        for day in range(1, int(length / DAY) + 2):
            ahead = day * DAY
            after = window.hours(balance.begin + ahead, now) + rate * min(ahead, length) / DAY
            if after >= limit:
                return now + (day - 1 + (limit - before) / (after - before)) * DAY
            before = after
        return None


def _budget(used: float, limit: float, rate: float) -> BudgetHours | None:
    """Returns used and agreed hours with the hours a day; None where no hours of this kind are agreed."""
    return BudgetHours(used=round(used, 4), limit=limit, per_day=round(rate, 4)) if limit > 0 else None


def _hours(seconds: int) -> float:
    """Returns seconds as hours, rounded to four digits."""
    return round(seconds / _HOUR, 4)
