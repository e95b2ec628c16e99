"""Usage by tenant and user: decayed for the fair share, by period for the budgets (book, "Quota Enforcement").

`Shares` has one owner and is changed by `agree`, `charge`, `see` and `end` only. Sums are whole numbers, so that the same
history gives the same shares whatever the order of its events. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp2, fsum, inf, log, nan
from typing import Final

from lattice.accounting.budgets import NO_BUDGETS, OF_TENANT, Budgets, Scope
from lattice.accounting.charges import Charge
from lattice.accounting.meter import Meter, spans
from lattice.errors import Corrupt
from lattice.scheduling.priority.cost import fair_share, fair_share_of_both, multiplier

HALF_LIFE: Final = 7 * 86400.0
"""Seconds after which usage counts half."""
_SCALE: Final = 40
"""Binary places of the decayed sums."""
_EARLIEST: Final = 64
"""Half-lives before the first event of which usage can still be counted."""
FORGOTTEN_HALF_LIVES: Final = 14
"""Half-lives after which usage counts less than a ten-thousandth of itself; attempts that ended earlier are not counted."""
WITH_WORK: Final = 7 * 86400.0
"""Seconds after the last use of nodes for which a user still counts among the users of his tenant."""


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt, or a stretch of it, that holds or held nodes; `gpus`: of all nodes together; `end`: None while it runs."""

    key: str
    tenant: str
    user: str
    nodes: int
    gpus: int
    start: float
    end: float | None = None
    project: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The share and the budgets agreed with one tenant; `target`: its share of all usage; None: an equal part of the rest."""

    target: float | None = None
    burst_allowance: float = 1.0
    """A factor: 1.5 allows up to 150 % of the fair share."""
    budgets: Budgets = NO_BUDGETS


@dataclass(slots=True)  # not frozen, though nobody changes one: a cycle makes one for each tenant
class Standing:
    """The present usage of one tenant beside its target, as the cost function reads it.

    `usage` and `target` are shares of all decayed node-hours, `utilisation` is used ÷ budget of the worse of its budgets,
    `fair_share` its F in f3, `multiplier` the factor that follows from the utilisation.
    """

    target: float
    usage: float
    fair_share: float
    utilisation: float
    multiplier: float

    def fair_share_of(self, usage: float, users: int) -> float:
        """Returns f3 of one user; `usage`: his share of all decayed node-hours, `users`: how many users of the tenant have work, among whom
        its target is divided equally (0 counts as 1).
        """
        return fair_share_of_both(self.fair_share, fair_share(self.target / max(1, users), usage))


@dataclass(slots=True)
class _Decayed:
    """Node-hours of one tenant or user that halve with each half-life.

    Everything up to now is `total · 2^-(now - origin) + rate · τ`.
    """

    total: int = 0
    rate: int = 0


_NO_TERMS: Final = Terms()
_NOBODY: Final[dict[str, float]] = {}


class Shares:
    """Decayed node-hours by tenant and by user, and the hours that budgets limit; each event costs O(1)."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life = half_life
        self._origin: int | None = None
        self._weighed = (nan, 0)
        self._runs: dict[str, Run] = {}
        self._all = _Decayed()
        self._tenants: dict[str, _Decayed] = {}
        self._users: dict[tuple[str, str], _Decayed] = {}
        self._with_work: dict[str, dict[str, float]] = {}
        """By tenant and user: until when the user counts among those with work; a user who holds nodes counts longer."""
        self._fewer_at: dict[str, float] = {}
        """By tenant: the earliest time at which one of its users ceases to count among those with work."""
        self.meter: Final = Meter()
        """Hours of tenants, users and projects that have a budget."""
        self._terms: dict[str, Terms] = {}
        self._targets: dict[str, float] = {}

    # Events

    def agree(self, terms: Mapping[str, Terms]) -> bool:
        """Puts these terms (share and budgets by tenant) in force; tenants without a target share equally what the others leave.

        Returns True where budgets now count other hours than before; the caller must then charge every attempt again, to new
        `Shares`.
        """
        given = fsum(each.target for each in terms.values() if each.target is not None)
        others = sum(each.target is None for each in terms.values())
        rest = max(0.0, 1.0 - given) / others if others else 0.0
        self._terms = dict(terms)
        self._targets = {name: rest if each.target is None else each.target for name, each in terms.items()}
        return self.meter.agree({name: each.budgets for name, each in terms.items()})

    def charge(self, charge: Charge, sign: int) -> None:
        """Adds the usage of an attempt (`sign` +1) or removes what was added for it (−1).

        An attempt without an end goes on using its nodes. Adding one twice counts it twice.
        """
        for place, (begin, end, nodes, gpus) in enumerate(spans(charge)):
            self._add(charge.tenant, charge.user, charge.project, begin, end, sign * nodes, sign * gpus)
            if end is not None:
                continue
            key = f"{charge.uid}/{charge.attempt}/{place}"
            if sign > 0:
                self._runs[key] = Run(key, charge.tenant, charge.user, nodes, gpus, begin, end, charge.project)
            else:
                self._runs.pop(key, None)

    def begin(self, now: float) -> float:
        """Returns the time (epoch seconds) before which usage counts for nothing.

        It is the begin of the longest budget period, or `FORGOTTEN_HALF_LIVES` half-lives ago where that is earlier.
        """
        return min(self.meter.begin(now), now - FORGOTTEN_HALF_LIVES * self._half_life)

    def see(self, run: Run) -> None:
        """Replaces the known run with the same key by this one and counts the difference; an equal run changes nothing."""
        before = self._runs.get(run.key)
        if before == run:
            return
        self._runs[run.key] = run
        if before is not None:
            self._count(before, -1)
        self._count(run, 1)

    def end(self, key: str, at: float) -> None:
        """Ends a run (by its key) whose object is gone at `at`, not before its start, and keeps its usage; an unknown or ended run is
        ignored.
        """
        run = self._runs.pop(key, None)
        if run is None or run.end is not None:
            return
        nodes, moment = run.nodes, max(at, run.start)
        weight = nodes * self._weight(moment)
        for decayed in self._decayed(run.tenant, run.user):
            decayed.total += weight
            decayed.rate -= nodes
        self._note(run.tenant, run.user, moment)
        self.meter.count(run.tenant, run.user, run.project, moment, -nodes, -run.gpus)

    # Answers

    def standing(self, tenant: str, now: float) -> Standing:
        """Returns the usage and the target of a tenant at `now`; a tenant without terms has a target of 0."""
        target, usage = self._targets.get(tenant, 0.0), self._share(self._tenants.get(tenant), self._all, now)
        used = self.utilisation(tenant, now)
        return Standing(target, usage, fair_share(target, usage), used, multiplier(used) if used else 1.0)

    def usage(self, tenant: str, now: float) -> float:
        """Returns the tenant's share of all decayed node-hours, in [0, 1]; 0 for an unknown tenant, and while nobody has used any."""
        return self._share(self._tenants.get(tenant), self._all, now)

    def with_work(self, tenant: str, now: float) -> Collection[str]:
        """Returns the users of a tenant who hold nodes, or held some within the last seven days; drops those who no longer do."""
        known = self._with_work.get(tenant, _NOBODY)
        if now >= self._fewer_at.get(tenant, inf):
            holds = {user for user in known if self._users[tenant, user].rate > 0}
            known = self._with_work[tenant] = {user: until for user, until in known.items() if until > now or user in holds}
            self._fewer_at[tenant] = min([until for user, until in known.items() if user not in holds], default=inf)
        return known.keys()

    def usage_of_user(self, tenant: str, user: str, now: float) -> float:
        """Returns the user's share of all decayed node-hours, in [0, 1]; 0 for an unknown user."""
        return self._share(self._users.get((tenant, user)), self._all, now)

    def node_hours(self, tenant: str, now: float) -> float:
        """Returns the decayed node-hours of a tenant: a node-hour of a half-life ago counts half; 0 for an unknown tenant."""
        decayed = self._tenants.get(tenant)
        if decayed is None:
            return 0.0
        return self._value(decayed, now) / self._weight(now) * self._half_life / log(2) / 3600

    def utilisation(self, tenant: str, now: float) -> float:
        """Returns usage ÷ budget, of the worse of the tenant's own two budgets; 0 without a budget."""
        if self._terms.get(tenant, _NO_TERMS).budgets is NO_BUDGETS:
            return 0.0
        return self.meter.balance(Scope(OF_TENANT, tenant), now).fraction

    def multiplier_of(self, tenant: str, user: str, project: str, now: float) -> float:
        """Returns the factor (0.05 to 1) of the score for work of this user and project, by the budget most used of those that apply.

        1 where none applies.
        """
        if self._terms.get(tenant, _NO_TERMS).budgets is NO_BUDGETS:
            return 1.0
        return multiplier(self.meter.worst(tenant, user, project, now))

    def burst(self, tenant: str, now: float) -> int:
        """Returns how far a tenant exceeds its share: 0 within its target, 1 above it within the burst allowance, 2 above that.

        Preemption takes work of tenants with the higher number first. A tenant without terms has a target of 0.
        """
        target, usage = self._targets.get(tenant, 0.0), self.usage(tenant, now)
        if usage <= target:
            return 0
        allowance = self._terms[tenant].burst_allowance if tenant in self._terms else 1.0
        return 1 if usage <= target * allowance else 2

    def validate(self) -> None:
        """Sums the nodes of all known running attempts again, by tenant; raises Corrupt where a tenant's sum differs.

        Users, hours and budgets are not compared.
        """
        again: dict[str, int] = {}
        for run in self._runs.values():
            if run.end is None:
                again[run.tenant] = again.get(run.tenant, 0) + run.nodes
        for tenant, decayed in self._tenants.items():
            if decayed.rate != again.get(tenant, 0):
                sentence = f'tenant "{tenant}" is counted with {decayed.rate} nodes, and its runs hold {again.get(tenant, 0)}'
                raise Corrupt(sentence, reason="SharesDiffer")

    # Sums

    def _count(self, run: Run, sign: int) -> None:
        """Adds the use of a run (`sign` +1), or removes it (−1)."""
        self._add(run.tenant, run.user, run.project, run.start, run.end, sign * run.nodes, sign * run.gpus)

    def _add(self, tenant: str, user: str, project: str, start: float, end: float | None, nodes: int, gpus: int) -> None:
        """Adds the use of so many nodes and GPUs from `start` to `end` (None: going on); negative numbers remove it."""
        weight = self._weight(start)
        if end is None:
            rate, total = nodes, -nodes * weight
        else:
            end = max(end, start)
            rate, total = 0, nodes * (self._weight(end) - weight)
        for decayed in self._decayed(tenant, user):
            decayed.total += total
            decayed.rate += rate
        self._note(tenant, user, start if end is None else end)
        self.meter.count(tenant, user, project, start, nodes, gpus, end)

    def _decayed(self, of: str, by: str) -> tuple[_Decayed, _Decayed, _Decayed]:
        """Returns the sums that a user's work counts in: of all, of the tenant `of`, of its user `by`; new ones start at 0."""
        tenant, user = self._tenants.get(of), self._users.get((of, by))
        if tenant is None:
            tenant = self._tenants[of] = _Decayed()
        if user is None:
            user = self._users[of, by] = _Decayed()
        return self._all, tenant, user

    def _note(self, tenant: str, user: str, until: float) -> None:
        """Counts a user among those with work until seven days after `until`."""
        known = self._with_work.setdefault(tenant, {})
        known[user] = max(until + WITH_WORK, known.get(user, 0.0))
        self._fewer_at[tenant] = min(known[user], self._fewer_at.get(tenant, inf))

    def _weight(self, at: float) -> int:
        """Returns 2^(half-lives since the origin) as a whole number in units of 2^-`_SCALE`; the first call sets the origin, 64 half-lives
        before `at`.

        Keeps the last answer, since `now` repeats.
        """
        if self._weighed[0] == at:
            return self._weighed[1]
        lives = at / self._half_life
        whole = int(lives // 1)
        if self._origin is None:
            self._origin = whole - _EARLIEST
        shift = whole - self._origin
        mantissa = round(exp2(lives - whole) * (1 << _SCALE))
        weight = mantissa << shift if shift >= 0 else mantissa >> -shift
        self._weighed = (at, weight)
        return weight

    def _value(self, decayed: _Decayed, now: float) -> int:
        """Returns the decayed node-seconds at `now` times a factor common to all, as a whole number, so that equal histories give
        equal shares.
        """
        return max(0, decayed.total + decayed.rate * self._weight(now))

    def _share(self, part: _Decayed | None, whole: _Decayed | None, now: float) -> float:
        """Returns one sum as a share, in [0, 1], of another at `now`; 0 where either is None or the other is not above 0."""
        if part is None or whole is None:
            return 0.0
        weight = self._weighed[1] if self._weighed[0] == now else self._weight(now)
        total = whole.total + whole.rate * weight
        value = part.total + part.rate * weight
        return min(1.0, value / total) if total > 0 and value > 0 else 0.0
