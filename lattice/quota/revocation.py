"""Takes back loans: the clock that runs while a group uses more than it may, and the choice of whole allocations to stop.

A group that is over for strictly longer than the delay is due; any sample that finds it not over stops its clock, and being due
starts it again, so that another round needs another full delay. Victims are taken least important first: lower class, then the
least work lost, then the later start, then the name. Work that still fits afterwards stays, the most important first. Full vectors
of resources are compared; nothing is taken from a group that is within its min, nor work that may not be preempted. A parent's
overuse is charged to those below it that are over themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.quota.forest import Forest, Overuse
from lattice.quota.gates import Gate
from lattice.quota.groups import Resources

DELAY_SECONDS: Final = 120.0
MOST_A_ROUND: Final = 10
_NOBODY: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Holding:
    """One allocation that holds nodes, as revocation weighs it."""

    key: str
    leaf: str
    amounts: Resources
    """The resources of its nodes, as they are charged to its leaf."""
    preemption_class: int
    started: float
    """When it started, in seconds of any clock, the same for all."""
    lost_node_hours: float = 0.0
    """Node-hours of work that ending it now would lose: since its start or its last checkpoint."""
    preemptible: bool = True
    leaving: bool = False
    """Whether it is ending already; its nodes still count as used."""

    def order(self) -> tuple[int, float, float, str]:
        """Returns a sort key that puts the least important work first."""
        return (self.preemption_class, self.lost_node_hours, -self.started, self.key)


@dataclass(frozen=True, slots=True)
class Began:
    """The event that a group has begun to use more than it may; its work is stopped at `due` (the clock's seconds) if that lasts."""

    over: Overuse
    due: float
    resumed: bool = False
    """Whether its clock goes on from the one of an earlier process."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The event that a group uses no more than it may any longer."""

    name: str


@dataclass(frozen=True, slots=True)
class Due:
    """The event that a group was over for longer than the delay; its clock starts again at `since`."""

    over: Overuse
    since: float


Sampled = Began | Ended | Due


class OveruseClock:
    """Knows since when each group uses more than it may; the caller samples, with the time in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def sample(
        self, over: Iterable[Overuse], now: float, delay: Mapping[str, float] | float = DELAY_SECONDS, *,
        earlier: Mapping[str, float] = _NOBODY,
    ) -> tuple[Sampled, ...]:  # fmt: skip
        """Takes the groups that are over at `now`; returns which began, ended or became due since the last sample.

        `delay`: in seconds, one for all or by tree (absent: the default). `earlier`: how many seconds ago an earlier process first
        found a group over. Within the delay its clock goes on from there; after it a round may have been taken already, and the
        clock begins anew.
        """
        found = {each.name: each for each in over}
        outcomes: list[Sampled] = [Ended(name) for name in self._since if name not in found]
        self._since = {name: since for name, since in self._since.items() if name in found}
        for name, each in found.items():
            wait = delay if isinstance(delay, (int, float)) else delay.get(each.tree, DELAY_SECONDS)
            if name not in self._since:
                before = earlier.get(name, 0.0)
                self._since[name] = began = now - before if 0 < before < wait else now
                outcomes.append(Began(each, began + wait, resumed=began < now))
            elif now - self._since[name] > wait:
                self._since[name] = now
                outcomes.append(Due(each, now))
        return tuple(outcomes)

    def since(self, name: str) -> float | None:
        """Returns when a group began to be over, or was last due, by the caller's clock; None: it is not over."""
        return self._since.get(name)


@dataclass(frozen=True, slots=True)
class Revoked:
    """One allocation that a round stops, with the overused group and the resource for which it is chosen."""

    holding: Holding
    over: Overuse
    resource: str


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one choice: the allocations to stop, and the groups that stay over."""

    revoked: tuple[Revoked, ...]
    """The least important first."""
    left: tuple[Overuse, ...]
    """The groups that are still over afterwards: the round is limited, or the rest may not be taken."""


def choose(forest: Forest, due: Sequence[Overuse], holdings: Iterable[Holding], most: int = MOST_A_ROUND) -> Round:
    """Returns the allocations to stop, `most` at most, so that every due group uses no more than it is allowed, and the groups left over.

    `holdings`: all work that holds nodes; work that is leaving counts as gone, and work that may not be preempted is never taken.
    """
    balance = _Balance(forest, due)
    candidates: list[Holding] = []
    for holding in holdings:
        if holding.leaving:
            balance.remove(holding)
        elif holding.preemptible:
            candidates.append(holding)
    taken: list[tuple[Holding, Overuse, str]] = []
    candidates.sort(key=Holding.order)
    for strict in (True, False):
        for holding in candidates:
            charge = balance.charge(holding, strict=strict) if not balance.gone(holding) else None
            if charge is not None:
                balance.remove(holding)
                taken.append((holding, *charge))
    taken.sort(key=lambda each: each[0].order())
    stopped = []
    for holding, over, key in reversed(taken):
        if balance.fits(holding):
            balance.restore(holding)
        else:
            stopped.append(Revoked(holding, over, key))
    stopped.reverse()
    for spared in stopped[most:]:
        balance.restore(spared.holding)
    return Round(tuple(stopped[:most]), tuple(over for over in due if balance.over(over)))


def make_room(
    forest: Forest, leaf: str, amounts: Resources, preemption_class: int, holdings: Iterable[Holding], *, non_preemptible: bool = False
) -> tuple[Holding, ...] | None:
    """Returns work of a lower class at the same leaf whose end would let `amounts` fit at every level.

    Empty where they fit already; None where the end of such work does not suffice. Guarantees of the leaf are not compared, since
    the work stays within its own group.
    """
    gates = [gate for gate in forest.gates(leaf, amounts, non_preemptible=non_preemptible) if not gate.passes]
    if any(gate.by == "Min" for gate in gates):
        return None  # nothing that may be preempted counts there
    missing: dict[str, int] = {}
    for gate in gates:
        missing[gate.resource] = max(missing.get(gate.resource, 0), _missing(gate))
    own = [holding for holding in holdings if holding.leaf == leaf]
    for holding in own:
        if holding.leaving:
            _lower(missing, holding.amounts)
    taken: list[Holding] = []
    able = [each for each in own if each.preemptible and not each.leaving and each.preemption_class < preemption_class]
    for holding in sorted(able, key=Holding.order):
        if any(missing[key] > 0 and holding.amounts.get(key, 0) for key in missing):
            _lower(missing, holding.amounts)
            taken.append(holding)
    if any(amount > 0 for amount in missing.values()):
        return None
    kept = []
    for holding in reversed(taken):
        if all(missing[key] + holding.amounts.get(key, 0) <= 0 for key in missing):
            _lower(missing, {key: -amount for key, amount in holding.amounts.items()})
        else:
            kept.append(holding)
    return tuple(reversed(kept))


class _Balance:
    """The use of the due groups and of those below them while a choice takes holdings out and puts some back."""

    def __init__(self, forest: Forest, due: Sequence[Overuse]) -> None:
        self._forest = forest
        self._due = {over.name: over for over in due}
        self._allowed = {over.name: dict(over.allowed) for over in forest.overused(on_shrink=True)}
        self._paths: dict[str, tuple[str, ...]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._least: dict[str, Resources] = {}
        self._gone: set[str] = set()

    def _path(self, leaf: str) -> tuple[str, ...]:
        """Returns the groups from a leaf up to the highest due one; empty where none above the leaf is due."""
        if leaf not in self._paths:
            way = self._forest.path(leaf)
            end = max((at + 1 for at, name in enumerate(way) if name in self._due), default=0)
            self._paths[leaf] = way[:end]
            for name in way[:end]:
                if name not in self._used:
                    standing = self._forest.standing(name)
                    self._used[name], self._least[name] = dict(standing.used), standing.min
        return self._paths[leaf]

    def charge(self, holding: Holding, *, strict: bool) -> tuple[Overuse, str] | None:
        """Returns the due group and the resource for which a holding is to be stopped; None: it is not.

        Every group from its leaf up to the due one must use more than its min; with `strict`, more than it may.
        """
        for key in sorted(key for key, amount in holding.amounts.items() if amount):
            for name in self._path(holding.leaf):
                due = self._due.get(name)
                if due is not None and key in due.allowed and self._used[name].get(key, 0) > due.allowed[key]:
                    return due, key
                bound = self._allowed.get(name, {}).get(key) if strict else self._least[name].get(key, 0)
                if bound is None or self._used[name].get(key, 0) <= bound:
                    break
        return None

    def over(self, due: Overuse) -> bool:
        """Tells whether a due group still uses more than it is allowed, without the holdings taken out."""
        used = self._used.get(due.name, due.used)
        return any(used.get(key, 0) > amount for key, amount in due.allowed.items())

    def fits(self, holding: Holding) -> bool:
        """Tells whether every due group above a holding stays within its allowance if the holding is put back."""
        for name in self._path(holding.leaf):
            if name in self._due:
                for key, allowed in self._due[name].allowed.items():
                    amount = holding.amounts.get(key, 0)
                    if amount and self._used[name].get(key, 0) + amount > allowed:
                        return False
        return True

    def gone(self, holding: Holding) -> bool:
        """Tells whether a holding is taken out."""
        return holding.key in self._gone

    def remove(self, holding: Holding) -> None:
        """Subtracts a holding's amounts from the use of its leaf and of the groups above."""
        self._gone.add(holding.key)
        self._book(holding, -1)

    def restore(self, holding: Holding) -> None:
        """Adds a holding's amounts back to the use of its leaf and of the groups above."""
        self._gone.discard(holding.key)
        self._book(holding, 1)

    def _book(self, holding: Holding, sign: int) -> None:
        """Adds the amounts of a holding (`sign` 1) to the use of its leaf and all groups above, or subtracts them (-1)."""
        for name in self._path(holding.leaf):
            used = self._used[name]
            for key, amount in holding.amounts.items():
                used[key] = used.get(key, 0) + sign * amount


def _missing(gate: Gate) -> int:
    """Returns how much a request exceeds a limit together with present use; 0 or less: it fits."""
    return gate.used + gate.asked - gate.limit


def _lower(missing: dict[str, int], amounts: Resources) -> None:
    """Subtracts amounts from what is missing, for the resources that `missing` names; the result may be negative."""
    for key in missing:
        missing[key] -= amounts.get(key, 0)
