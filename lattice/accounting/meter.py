"""Keeps the hours in a period of every tenant, project and user with a budget; exact, and equal in whatever order events come.

`MeterWindow` keeps when rates change; `Meter` keeps one window of nodes and one of GPUs for each owner of a budget. Sums are whole
numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lattice.accounting.budgets import EXTERNAL, NO_BUDGETS, OF_PROJECT, OF_TENANT, OF_USER, Allowance, Balance, Budgets, Scope
from lattice.accounting.charges import Charge

_HOUR = 3_600_000


@dataclass(slots=True)
class MeterWindow:
    """The number of nodes (or GPUs) in use over time, of one owner of a budget, and its sum between two moments.

    Changes that lie after the beginning of the window stand in `moments` (milliseconds, ascending) and `changes`; the others are
    folded into `before` (rates, and rates times milliseconds). The sum up to t is Σ change · (t - moment).
    """

    moments: array[int] = field(default_factory=lambda: array("q"))
    changes: array[int] = field(default_factory=lambda: array("q"))
    rates: int = 0
    products: int = 0
    before_rates: int = 0
    before_products: int = 0
    begin: int = -(10**18)

    def add_change(self, at: float, change: int) -> None:
        """Changes the number in use by `change` from the time `at` (seconds) on; a change before the window's beginning counts in its rate,
        whole.
        """
        if not change:
            return
        moment = round(at * 1000)
        self.rates += change
        self.products += change * moment
        if moment <= self.begin:
            self.before_rates += change
            self.before_products += change * moment
            return
        moments = self.moments
        if not moments or moment > moments[-1]:
            moments.append(moment)
            self.changes.append(change)
            return
        place = bisect_left(moments, moment)
        if moments[place] == moment:
            self.changes[place] += change
        else:
            moments.insert(place, moment)
            self.changes.insert(place, change)

    def hours(self, begin: float, now: float) -> float:
        """Returns number × hours between two times in seconds, at least 0; drops what lies before `begin`, so that an earlier `begin` later
        counts as this one.

        All changes count as if none came after `now`.
        """
        moment, start = round(now * 1000), max(round(begin * 1000), self.begin)
        self._fold(start)
        until_now = self.rates * moment - self.products
        until_begin = self.before_rates * start - self.before_products
        return max(0, until_now - until_begin) / _HOUR

    def is_over(self, begin: float) -> bool:
        """Tells whether nothing was in use since `begin` (seconds), nor changes after it; earlier changes are folded away."""
        self._fold(max(round(begin * 1000), self.begin))
        return not self.moments and not self.before_rates

    def rate(self) -> int:
        """Returns the number in use after the last change, also where that change lies in the future."""
        return self.rates

    def below(self, hours: float, length: float, now: float) -> float | None:
        """Returns when, in seconds, a rolling window of `length` seconds holds fewer than `hours` if use stops at `now`; None: it holds
        fewer already.

        Moves the window's beginning to `now - length`.
        """
        over = self.hours(now - length, now) - hours
        if over < 0:
            return None
        wanted, reached, rate = over * _HOUR, 0.0, self.before_rates
        at = self.begin
        for moment, change in zip(self.moments, self.changes, strict=True):
            gained = rate * (min(moment, round(now * 1000)) - at)
            if rate > 0 and reached + gained > wanted:
                break
            reached, at, rate = reached + gained, moment, rate + change
        return (at + (wanted - reached) / rate if rate > 0 else at) / 1000 + length + 1.0

    def _fold(self, begin: int) -> None:
        """Moves the window's beginning to this time (milliseconds), and sums up all changes until then into its totals."""
        passed = bisect_right(self.moments, begin)
        for moment, change in zip(self.moments[:passed], self.changes[:passed], strict=True):
            self.before_rates += change
            self.before_products += change * moment
        if passed:
            del self.moments[:passed], self.changes[:passed]
        self.begin = begin


class Meter:
    """The hours of every owner of a budget in the present period; `agree` says who has budgets."""

    def __init__(self, *, every_tenant: bool = False) -> None:
        self._every_tenant = every_tenant
        """Whether hours of tenants without a budget, and of unknown ones, are kept too."""
        self._budgets: dict[str, Budgets] = {}
        self._windows: dict[Scope, tuple[MeterWindow, MeterWindow]] = {}
        self._users: dict[str, list[Scope]] = {}
        """By tenant: the users whose hours are kept."""

    def agree(self, budgets: Mapping[str, Budgets]) -> bool:
        """Replaces the budgets of all tenants; returns True where other hours have to be kept than before (who has budgets, or their
        periods), not for other limits.

        The caller then counts all hours again, in a new Meter: this one keeps what it has counted.
        """
        before = self._kept()
        self._budgets = dict(budgets)
        return before != self._kept()

    def _kept(self) -> dict[str, tuple[object, ...]]:
        """Returns by tenant a key of the hours that are kept for it; tenants without budgets are left out."""
        return {name: one.counted for name, one in self._budgets.items() if one.counted != NO_BUDGETS.counted}

    def begin(self, now: float) -> float:
        """Returns when the longest period begins of which hours are kept; `now` where none are.

        With `every_tenant`, the last 90 days are among them.
        """
        periods = [self._budgets[name].period for name in self._kept()]
        if self._every_tenant:
            periods.append(NO_BUDGETS.period)
        return min((period.begin(now) for period in periods), default=now)

    def count(self, tenant: str, user: str, project: str, at: float, nodes: int, gpus: int, until: float | None = None) -> None:
        """Adds the use of so many nodes and GPUs (negative: subtracts) from the time `at` on, up to `until`, or without end if it is None.

        Only owners of budgets are counted, and with `every_tenant` each tenant; all other use is ignored.
        """
        budgets = self._budgets.get(tenant, NO_BUDGETS)
        if budgets is NO_BUDGETS and not self._every_tenant:
            return
        scopes = budgets.scopes(tenant, user, project)
        if self._every_tenant and (not scopes or scopes[0].kind != OF_TENANT):
            scopes.append(Scope(OF_TENANT, tenant))
        for scope in scopes:
            windows = self._windows.get(scope)
            if windows is None:
                windows = self._windows[scope] = (MeterWindow(), MeterWindow())
                if scope.kind == OF_USER:
                    self._users.setdefault(tenant, []).append(scope)
            for window, amount in zip(windows, (nodes, gpus), strict=True):
                if amount:
                    window.add_change(at, amount)
                    if until is not None:
                        window.add_change(until, -amount)

    def trim(self, now: float) -> None:
        """Drops hours from before the present periods, and owners who have used nothing since."""
        for scope, windows in list(self._windows.items()):
            begin = self._budgets.get(scope.tenant, NO_BUDGETS).period.begin(now)
            over = [window.is_over(begin) for window in windows]
            if all(over):
                del self._windows[scope]
                if scope.kind == OF_USER:
                    self._users[scope.tenant].remove(scope)
        self._users = {tenant: scopes for tenant, scopes in self._users.items() if scopes}

    def charge(self, charge: Charge, sign: int = 1) -> None:
        """Adds the use of an attempt (`sign` +1) or subtracts it (−1); an attempt without an end goes on using its nodes."""
        for begin, end, nodes, gpus in spans(charge):
            self.count(charge.tenant, charge.user, charge.project, begin, sign * nodes, sign * gpus, end)

    def balance(self, scope: Scope, now: float) -> Balance:
        """Returns the balance of a budget: of a tenant by its outside source while the figures are fresh, else by the hours counted here.

        A scope without a budget has a limit of 0.
        """
        budgets = self._budgets.get(scope.tenant, NO_BUDGETS)
        begin, end = budgets.period.begin(now), budgets.period.end(now)
        outside = budgets.outside
        if scope.kind == OF_TENANT and outside is not None and now < outside.until:
            return Balance(scope, outside.used, outside.limit, begin, end, EXTERNAL, outside.name)
        return Balance(scope, self.used(scope, now), budgets.allowance(scope), begin, end)

    def used(self, scope: Scope, now: float) -> Allowance:
        """Returns the hours that an owner has used in the present period, as counted here, also where an outside source has other figures;
        0 for an unknown one.
        """
        windows = self._windows.get(scope)
        if windows is None:
            return Allowance()
        begin = self._budgets.get(scope.tenant, NO_BUDGETS).period.begin(now)
        return Allowance(gpu_hours=windows[1].hours(begin, now), node_hours=windows[0].hours(begin, now))

    def lets_go(self, balance: Balance, now: float) -> float | None:
        """Returns when a used-up budget has hours again if no more are used; None: unknown, or its hours as counted here are not used up.

        At the next period, or when enough hours have left the rolling window; unknown for an outside source.
        """
        if balance.source == EXTERNAL:
            return None
        if balance.end is not None:
            return balance.end
        windows, length = self._windows.get(balance.scope), now - balance.begin
        if windows is None:
            return None
        ends = [
            windows[place].below(limit, length, now)
            for place, limit in ((0, balance.limit.node_hours), (1, balance.limit.gpu_hours))
            if limit > 0
        ]
        return max((end for end in ends if end is not None), default=None)

    def balances(self, tenant: str, now: float) -> Iterator[Balance]:
        """Yields the balances of a tenant and its projects that have budgets, and of those of its users whose use was counted and not
        trimmed since.
        """
        yield from self.shared(tenant, now)
        for scope in sorted(self._users.get(tenant, ())):
            yield self.balance(scope, now)

    def shared(self, tenant: str, now: float) -> Iterator[Balance]:
        """Yields the balances of a tenant and of its projects, where they have budgets; the tenant's status shows them, and those of users
        only the users may see.
        """
        budgets = self._budgets.get(tenant, NO_BUDGETS)
        if budgets.whole.given or budgets.outside is not None:
            yield self.balance(Scope(OF_TENANT, tenant), now)
        for name, allowance in sorted(budgets.projects.items()):
            if allowance.given:
                yield self.balance(Scope(OF_PROJECT, tenant, name), now)

    def worst(self, tenant: str, user: str, project: str, now: float) -> float:
        """Returns used ÷ agreed of the most used of the budgets on which work of this user and project draws, more than 1 where one is
        overdrawn; 0 without one.
        """
        budgets = self._budgets.get(tenant)
        if budgets is None or budgets is NO_BUDGETS:
            return 0.0
        return max((self.balance(scope, now).fraction for scope in budgets.scopes(tenant, user, project)), default=0.0)

    def windows(self, scope: Scope) -> tuple[MeterWindow, MeterWindow]:
        """Returns an owner's windows of nodes and of GPUs, empty new ones for an unknown owner; asking them for a time moves their
        beginning, so earlier questions come first.
        """
        return self._windows.get(scope) or (MeterWindow(), MeterWindow())

    def period_words(self, tenant: str) -> str:
        """Returns words for the period of a tenant's budgets, such as `this month`."""
        return self._budgets.get(tenant, NO_BUDGETS).period.words

    def queueing(self) -> list[str]:
        """Returns the tenants whose work waits whenever a budget is used up (`onExhausted: Queue`), whether one is now or not."""
        return [name for name, budgets in self._budgets.items() if budgets.queues]


def spans(charge: Charge) -> list[tuple[float, float | None, int, int]]:
    """Returns (begin, end or None while it runs, nodes, GPUs) of each stretch of a charge; none without nodes or commit.

    A summed charge counts as one node, and one GPU, for as many seconds as it has node-seconds and GPU-seconds, up to its end.
    """
    if charge.summed:
        ended = float(charge.ended)
        return [(ended - charge.node_seconds, ended, 1, 0), (ended - charge.gpu_seconds, ended, 0, 1)]
    if not charge.committed or not charge.nodes:
        return []
    end = float(max(charge.ended, charge.committed)) if charge.ended else None
    return [(float(charge.committed), end, charge.nodes, charge.gpus)]
