"""Who used how much: decayed usage for the fair share, hours in a rolling window for the budgets (book, "Quota Enforcement").

`Shares` has one owner and is changed by `see`, `forget` and `agree` only. Sums are whole numbers, so that the same history
gives the same shares in whatever order it is told. Times are seconds since the epoch.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp2, fsum, log
from typing import Final

from lattice.errors import Corrupt
from lattice.scheduling.cost import fair_share, multiplier

HALF_LIFE: Final = 7 * 86400.0
"""Usage so long ago counts half, seconds."""
_SCALE: Final = 40
"""Binary places of the decayed sums."""
_EARLIEST: Final = 64
"""Half-lives before the first event seen that still count."""


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt that had nodes: `gpus` of all of them together, `end` None while it runs."""

    key: str
    tenant: str
    user: str
    nodes: int
    gpus: int
    start: float
    end: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What was agreed with a tenant; 0 hours: no such budget. `target` None: an equal part of what the others leave."""

    target: float | None = None
    burst_allowance: float = 1.0
    """A factor: 1.5 is up to 150 % of the fair share."""
    gpu_hours: float = 0.0
    node_hours: float = 0.0
    period: float = 90 * 86400.0
    """Of the budgets: a rolling window, seconds."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One tenant now: `usage` and `target` are shares of all usage, `utilisation` of the worse budget; `deficit` is f3."""

    target: float
    usage: float
    deficit: float
    utilisation: float
    multiplier: float


@dataclass(slots=True)
class _Decayed:
    """Node-hours that halve with each half-life: everything up to now is `total · 2^-(now - origin) + rate · τ`."""

    total: int = 0
    rate: int = 0


@dataclass(slots=True)
class _Window:
    """Hours of the last period: the hours up to now less those up to where the window begins.

    `changes` are (millisecond, rate) that lie after the beginning of the window, ascending; the others are folded into
    `before` (rates, and rates times milliseconds). Hours up to t are Σ rate · (t - at).
    """

    changes: list[tuple[int, int]] = field(default_factory=list)
    rates: int = 0
    moments: int = 0
    before_rates: int = 0
    before_moments: int = 0
    begin: int = -(10**18)

    def add(self, at: float, rate: int) -> None:
        if not rate:
            return
        moment = round(at * 1000)
        self.rates += rate
        self.moments += rate * moment
        if moment <= self.begin:
            self.before_rates += rate
            self.before_moments += rate * moment
        else:
            insort(self.changes, (moment, rate))

    def hours(self, now: float, period: float) -> float:
        moment = round(now * 1000)
        begin = moment - round(period * 1000)
        if begin < self.begin:  # a clock that went back, or a longer period: what was folded stays folded
            begin = self.begin
        self._fold(begin)
        until_now = self.rates * moment - self.moments
        until_begin = self.before_rates * begin - self.before_moments
        return max(0, until_now - until_begin) / 3_600_000

    def _fold(self, begin: int) -> None:
        passed = 0
        for moment, rate in self.changes:
            if moment > begin:
                break
            self.before_rates += rate
            self.before_moments += rate * moment
            passed += 1
        if passed:
            del self.changes[:passed]
        self.begin = begin


class Shares:
    """Usage by tenant and by user, kept by events in O(1) each."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life = half_life
        self._origin: int | None = None
        self._weighed = (0.0, 0)
        self._runs: dict[str, Run] = {}
        self._all = _Decayed()
        self._tenants: dict[str, _Decayed] = {}
        self._users: dict[tuple[str, str], _Decayed] = {}
        self._nodes: dict[str, _Window] = {}
        self._gpus: dict[str, _Window] = {}
        self._terms: dict[str, Terms] = {}
        self._targets: dict[str, float] = {}

    # Events

    def agree(self, terms: Mapping[str, Terms]) -> None:
        """The terms of every tenant; those without a target share what is left equally."""
        given = fsum(each.target for each in terms.values() if each.target is not None)
        others = sum(each.target is None for each in terms.values())
        rest = max(0.0, 1.0 - given) / others if others else 0.0
        self._terms = dict(terms)
        self._targets = {name: rest if each.target is None else each.target for name, each in terms.items()}

    def see(self, run: Run) -> None:
        """A run has started or ended, or is told again: what is known already changes nothing."""
        before = self._runs.get(run.key)
        if before == run:
            return
        if before is not None:
            self._count(before, -1)
        self._runs[run.key] = run
        self._count(run, 1)

    def forget(self, keys: Iterable[str], at: float) -> None:
        """The objects of these runs are gone: what they used stays counted, those that still ran end now."""
        for key in keys:
            run = self._runs.get(key)
            if run is not None and run.end is None:
                self.see(replace(run, end=at))
            self._runs.pop(key, None)

    # Answers

    def standing(self, tenant: str, now: float) -> Standing:
        """How a tenant stands; one that nobody has agreed anything with has a target of 0."""
        target, usage = self._targets.get(tenant, 0.0), self.usage(tenant, now)
        used = self.utilisation(tenant, now)
        return Standing(target, usage, fair_share(target, usage), used, multiplier(used))

    def usage(self, tenant: str, now: float) -> float:
        """The tenant's share of all decayed node-hours, in [0, 1]; 0 when nobody has used any."""
        return self._share(self._tenants.get(tenant), self._all, now)

    def share_of_user(self, tenant: str, user: str, now: float) -> float:
        """The user's share of the tenant's decayed node-hours, in [0, 1]."""
        return self._share(self._users.get((tenant, user)), self._tenants.get(tenant), now)

    def node_hours(self, tenant: str, now: float) -> float:
        """Decayed node-hours of a tenant: an hour of a node that ended a half-life ago counts half."""
        decayed = self._tenants.get(tenant)
        if decayed is None:
            return 0.0
        return self._value(decayed, now) / self._weight(now) * self._half_life / log(2) / 3600

    def utilisation(self, tenant: str, now: float) -> float:
        """Used ÷ budget, of the worse of the two budgets; 0 without a budget."""
        terms = self._terms.get(tenant)
        if terms is None:
            return 0.0
        worst = 0.0
        for budget, windows in ((terms.gpu_hours, self._gpus), (terms.node_hours, self._nodes)):
            window = windows.get(tenant)
            if budget > 0 and window is not None:
                worst = max(worst, window.hours(now, terms.period) / budget)
        return worst

    def burst(self, tenant: str, now: float) -> int:
        """0: within its fair share; 1: above it, within the burst allowance; 2: above that. Higher is preempted first."""
        target, usage = self._targets.get(tenant, 0.0), self.usage(tenant, now)
        if usage <= target:
            return 0
        allowance = self._terms[tenant].burst_allowance if tenant in self._terms else 1.0
        return 1 if usage <= target * allowance else 2

    def validate(self) -> None:
        """Count every run again that is still known; raises Corrupt where the sums of running work differ."""
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
        end = run.end if run.end is None or run.end >= run.start else run.start
        weight = self._weight(run.start)
        added = -weight if end is None else self._weight(end) - weight
        for decayed in self._decayed(run):
            decayed.total += sign * run.nodes * added
            decayed.rate += sign * run.nodes if end is None else 0
        for windows, rate in ((self._nodes, run.nodes), (self._gpus, run.gpus)):
            window = windows.setdefault(run.tenant, _Window())
            window.add(run.start, sign * rate)
            if end is not None:
                window.add(end, -sign * rate)

    def _decayed(self, run: Run) -> tuple[_Decayed, _Decayed, _Decayed]:
        tenant = self._tenants.setdefault(run.tenant, _Decayed())
        user = self._users.setdefault((run.tenant, run.user), _Decayed())
        return self._all, tenant, user

    def _weight(self, at: float) -> int:
        """2^(half-lives since the origin), as a whole number of 2^-`_SCALE`; the last one is remembered: `now` is asked for often."""
        if self._weighed[0] == at and self._weighed[1]:
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
        """Decayed node-seconds now, by a common factor; whole, so that quotients of equal histories are equal."""
        return max(0, decayed.total + decayed.rate * self._weight(now))

    def _share(self, part: _Decayed | None, whole: _Decayed | None, now: float) -> float:
        if part is None or whole is None:
            return 0.0
        total = self._value(whole, now)
        return min(1.0, self._value(part, now) / total) if total else 0.0
