"""Measures a replay through the production cycle: utilisation, waits, fairness, backfill, targets met.

Formulas (book, "Using RM-Replay", "Simulation"; docs/howto/replay.md says them for readers):
- utilisation: node-hours held ÷ (nodes × time), from the first submission to the last end, and until the last submission;
- fairness counts only times at which work waits. At each of 2,000 equally spaced instants the nodes in use are divided among the
  tenants by their target shares, nobody getting more than it runs and waits for (water level): that is what each was *entitled*
  to. Jain's index is of used ÷ entitled; a tenant's deviation is |used − entitled| ÷ all that was used;
- idle nodes filled: of the nodes that were free or held by backfilled work while work waited, the part held by backfilled work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import ceil, fsum
from typing import Any, Final

from lattice.replay.jobs import TenantTerms, TraceJob
from lattice.scheduling.model.hardware import NodeFacts

INSTANTS: Final = 2000
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Ran:
    """One job that the replay ran; times in seconds, nodes as indices."""

    job: TraceJob
    start: float
    end: float
    nodes: tuple[int, ...]
    backfilled: bool = False
    killed: bool = False
    """It ended at its walltime, not by itself."""

    @property
    def wait(self) -> float:
        """Returns the seconds from submission to start."""
        return self.start - self.job.submit


@dataclass(slots=True)
class Reservations:
    """Counts of the backfill reservations of a replay: how many were given, lost and moved."""

    given: int = 0
    lost: int = 0
    """Withdrawn without a new one."""
    moved: dict[str, int] = field(default_factory=dict)
    """By cause: how often one was moved to a later start or lost."""
    late: int = 0
    """Jobs that started later than their reservation last promised."""

    def document(self) -> dict[str, Any]:
        """Returns the counts as they stand in the JSON report."""
        return {"given": self.given, "lost": self.lost, "movedLater": dict(sorted(self.moved.items())), "startedLate": self.late}


@dataclass
class Replayed:
    """The result of a replay before it is measured: every job that ran, in order of starts, and those that did not."""

    nodes: Sequence[NodeFacts]
    ran: list[Ran] = field(default_factory=list)
    withdrawn: list[TraceJob] = field(default_factory=list)
    """Jobs that their users cancelled while they waited."""
    stuck: list[tuple[TraceJob, str, str]] = field(default_factory=list)
    """Jobs that never started, with the reason and the sentence of the last cycle."""
    cycles: int = 0
    decided: int = 0
    """How many outcomes all cycles had together."""
    reservations: Reservations = field(default_factory=lambda: Reservations())


@dataclass(frozen=True, slots=True)
class Waits:
    """Statistics of the waits of some jobs, in seconds; percentiles are the nearest rank."""

    jobs: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float

    def document(self) -> dict[str, float]:
        """Returns the statistics as they stand in the JSON report."""
        return {"jobs": self.jobs, "mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.most}


@dataclass(frozen=True, slots=True)
class TenantUse:
    """The use of one tenant while work waited, as shares of the use of all.

    `target`: its agreed share, or an equal part of the rest. `entitled`: its part by the target shares, no more than it asked for.
    """

    target: float
    used: float
    entitled: float
    node_hours: float
    jobs: int

    @property
    def deviation(self) -> float:
        """Returns the distance of the used from the entitled share."""
        return abs(self.used - self.entitled)


@dataclass(frozen=True)
class Measures:
    """The numbers of one replay; hours are node- or GPU-hours, waits and makespan seconds, shares between 0 and 1."""

    name: str
    jobs: int
    withdrawn: int
    stuck: int
    killed: int
    makespan: float
    node_hours_used: float
    node_hours_available: float
    gpu_hours_used: float
    gpu_hours_available: float
    utilisation: float
    utilisation_submitting: float
    waits: Waits
    by_class: Mapping[int, Waits]
    by_vcluster: Mapping[str, Waits]
    sensitive: Waits | None
    bounded_slowdown: float
    jain: float
    tenants: Mapping[str, TenantUse]
    contended: float
    """The part of the time in which work waited."""
    backfilled: int
    idle_filled: float
    preemptions: int
    """0: replays execute no preemption."""
    target_wait: float | None
    target_met: float | None
    """The part of the jobs that waited no longer than `target_wait`; None: no target was given."""
    reservations: Reservations
    ramp_up: float | None
    """Seconds from the first submission until 95 % of the nodes were held at once; None: never."""
    cycles: int

    @property
    def deviation(self) -> float:
        """Returns the greatest distance of a tenant's used from its entitled share; 0 without a tenant."""
        return max((use.deviation for use in self.tenants.values()), default=0.0)

    def document(self) -> dict[str, Any]:
        """Returns the content of `report.json` and of `-o json`; it is part of the interface."""
        return {
            "format": 1,
            "kind": "ReplayReport",
            "name": self.name,
            "jobs": {"replayed": self.jobs, "withdrawn": self.withdrawn, "neverStarted": self.stuck, "endedAtWalltime": self.killed},
            "makespanSeconds": self.makespan,
            "utilisation": {
                "share": self.utilisation,
                "shareWhileSubmitting": self.utilisation_submitting,
                "nodeHoursUsed": self.node_hours_used,
                "nodeHoursAvailable": self.node_hours_available,
                "gpuHoursUsed": self.gpu_hours_used,
                "gpuHoursAvailable": self.gpu_hours_available,
            },
            "waitSeconds": {
                "all": self.waits.document(),
                "byClass": {str(number): waits.document() for number, waits in self.by_class.items()},
                "byVCluster": {name: waits.document() for name, waits in self.by_vcluster.items()},
                "sensitive": None if self.sensitive is None else self.sensitive.document(),
            },
            "boundedSlowdown": self.bounded_slowdown,
            "fairness": {"jain": self.jain, "maxShareDeviation": self.deviation, "contendedShareOfTime": self.contended},
            "tenants": {
                name: {
                    "jobs": use.jobs,
                    "nodeHours": use.node_hours,
                    "targetShare": use.target,
                    "usedShare": use.used,
                    "entitledShare": use.entitled,
                    "deviation": use.deviation,
                }
                for name, use in self.tenants.items()
            },
            "reservations": self.reservations.document(),
            "backfill": {"jobs": self.backfilled, "idleFilled": self.idle_filled},
            "preemptions": {"total": self.preemptions, "executed": False},
            "slo": {"targetWaitSeconds": self.target_wait, "met": self.target_met},
            "rampUpSeconds": self.ramp_up,
            "cycles": self.cycles,
        }


def measure(name: str, done: Replayed, terms: Mapping[str, TenantTerms], target_wait: float | None = None) -> Measures:
    """Returns the numbers of a replay in which at least one job ran, of the jobs that ran; `target_wait` in seconds, None: no target.

    Raises ValueError where none ran.
    """
    ran = done.ran
    first = min(each.job.submit for each in ran)
    last = max(each.end for each in ran)
    closing = max(each.job.submit for each in ran)
    span = max(last - first, 1.0)
    gpus = [facts.gpus for facts in done.nodes]
    node_hours = fsum(len(each.nodes) * (each.end - each.start) for each in ran) / _HOUR
    gpu_hours = fsum(sum(gpus[at] for at in each.nodes) * (each.end - each.start) for each in ran) / _HOUR
    fair = _Fairness(ran, first, last, len(done.nodes), terms)
    waits = sorted(each.wait for each in ran)
    sensitive = [each.wait for each in ran if each.job.sensitive]
    return Measures(
        name=name,
        jobs=len(ran),
        withdrawn=len(done.withdrawn),
        stuck=len(done.stuck),
        killed=sum(each.killed for each in ran),
        makespan=last - first,
        node_hours_used=node_hours,
        node_hours_available=len(done.nodes) * span / _HOUR,
        gpu_hours_used=gpu_hours,
        gpu_hours_available=sum(gpus) * span / _HOUR,
        utilisation=node_hours * _HOUR / (len(done.nodes) * span),
        utilisation_submitting=held_share(ran, first, closing, len(done.nodes)),
        waits=waits_of(waits),
        by_class=_grouped((each.job.preemption_class, each.wait) for each in ran),
        by_vcluster=_grouped((each.job.vcluster, each.wait) for each in ran),
        sensitive=waits_of(sensitive) if sensitive else None,
        bounded_slowdown=fsum(max(1.0, (each.end - each.job.submit) / max(10.0, each.end - each.start)) for each in ran) / len(ran),
        jain=fair.jain,
        tenants=fair.tenants,
        contended=fair.contended,
        backfilled=sum(each.backfilled for each in ran),
        idle_filled=fair.idle_filled,
        reservations=done.reservations,
        preemptions=0,
        target_wait=target_wait,
        target_met=None if target_wait is None else sum(wait <= target_wait for wait in waits) / len(waits),
        ramp_up=ramp_up(ran, len(done.nodes)),
        cycles=done.cycles,
    )


def waits_of(values: Iterable[float]) -> Waits:
    """Returns mean, largest and percentiles of waits in seconds; there must be at least one."""
    ascending = sorted(values)
    count = len(ascending)

    def percentile(percent: int) -> float:
        """Returns the wait that this percentage of jobs did not exceed."""
        return ascending[max(0, -(-count * percent // 100) - 1)]

    return Waits(count, fsum(ascending) / count, percentile(50), percentile(95), percentile(99), ascending[-1])


def _grouped(pairs: Iterable[tuple[Any, float]]) -> dict[Any, Waits]:
    """Returns the waits of each group, in order of the groups."""
    groups: dict[Any, list[float]] = {}
    for key, wait in pairs:
        groups.setdefault(key, []).append(wait)
    return {key: waits_of(groups[key]) for key in sorted(groups)}


def held_share(ran: Sequence[Ran], begin: float, end: float, nodes: int) -> float:
    """Returns the part of the node-time between two moments in which nodes were held, 0 to 1; 0 where the end is not after the
    beginning.
    """
    if end <= begin:
        return 0.0
    held = fsum(len(each.nodes) * max(0.0, min(each.end, end) - max(each.start, begin)) for each in ran)
    return held / (nodes * (end - begin))


def ramp_up(ran: Sequence[Ran], nodes: int, share: float = 0.95) -> float | None:
    """Returns the seconds from the first submission of a job that ran until `share` of the nodes was held at once; None: it never was."""
    changes = sorted([(each.start, 1, len(each.nodes)) for each in ran] + [(each.end, 0, -len(each.nodes)) for each in ran])
    held = 0
    first = min(each.job.submit for each in ran)
    for at, _, count in changes:
        held += count
        if held >= share * nodes:
            return at - first
    return None


class _Samples:
    """The nodes of running and of waiting work by tenant, and those of backfilled work, at each of 2,000 instants."""

    def __init__(self, ran: Sequence[Ran], first: float, last: float, names: Sequence[str]) -> None:
        self._first = first
        self._step = max(last - first, 1.0) / INSTANTS
        at = {name: index for index, name in enumerate(names)}
        self._running = [[0] * (INSTANTS + 1) for _ in names]
        self._waiting = [[0] * (INSTANTS + 1) for _ in names]
        self._jumped = [0] * (INSTANTS + 1)
        for each in ran:
            tenant, count = at[each.job.tenant], len(each.nodes)
            self._add(self._waiting[tenant], each.job.submit, each.start, each.job.nodes)
            self._add(self._running[tenant], each.start, each.end, count)
            if each.backfilled:
                self._add(self._jumped, each.start, each.end, count)

    def _add(self, row: list[int], begin: float, end: float, count: int) -> None:
        """Counts `count` from `begin` to `end` into a row of changes at each sample."""
        row[_slot(begin, self._first, self._step)] += count
        row[_slot(end, self._first, self._step)] -= count

    def __iter__(self) -> Iterator[tuple[list[int], list[int], int]]:
        """Yields for each instant: running nodes by tenant, nodes asked for by waiting work by tenant, nodes of backfilled work."""
        running, waiting = (zip(*(accumulate(row) for row in rows), strict=True) for rows in (self._running, self._waiting))
        for now_running, now_waiting, jumped in islice(zip(running, waiting, accumulate(self._jumped), strict=True), INSTANTS):
            yield list(now_running), list(now_waiting), jumped


class _Fairness:
    """The used and the entitled share of each tenant, and what follows from them; see the formulas of the module."""

    def __init__(self, ran: Sequence[Ran], first: float, last: float, nodes: int, terms: Mapping[str, TenantTerms]) -> None:
        names = sorted({each.job.tenant for each in ran})
        targets = target_shares(names, terms)
        weights = [targets[name] for name in names]
        used, entitled = [0.0] * len(names), [0.0] * len(names)
        contended = idle = filled = 0
        for running, waiting, jumped in _Samples(ran, first, last, names):
            if not any(waiting):
                continue
            total = sum(running)
            contended += 1
            idle += nodes - total
            filled += jumped
            parts = water_fill(total, list(map(int.__add__, running, waiting)), weights)
            entitled = list(map(float.__add__, entitled, parts))
            used = [sum_ + now for sum_, now in zip(used, running, strict=True)]
        self.contended = contended / INSTANTS
        self.idle_filled = filled / (idle + filled) if idle + filled else 0.0
        self.jain = jain([mine / due for mine, due in zip(used, entitled, strict=True) if due > 0])
        every = fsum(used) or 1.0
        seconds, jobs = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        for each in ran:
            seconds[each.job.tenant] += len(each.nodes) * (each.end - each.start)
            jobs[each.job.tenant] += 1
        self.tenants = {
            name: TenantUse(targets[name], mine / every, due / every, seconds[name] / _HOUR, jobs[name])
            for name, mine, due in zip(names, used, entitled, strict=True)
        }


def _slot(moment: float, first: float, step: float) -> int:
    """Returns the number of the first instant at or after a moment; instants stand in the middle of their slots."""
    return min(INSTANTS, max(0, ceil((moment - first) / step - 0.5)))


def target_shares(names: Sequence[str], terms: Mapping[str, TenantTerms]) -> dict[str, float]:
    """Returns the target share of each tenant: the agreed one as it is, and the rest in equal parts for those without one (at least 1 % of
    all together).

    The sum may be above 1.
    """
    promised = {name: share for name in names if (share := terms.get(name, TenantTerms()).share) is not None}
    rest = len(names) - len(promised)
    left = max(1.0 - fsum(promised.values()), 0.01)
    return {name: promised.get(name, left / rest if rest else 0.0) for name in names}


def water_fill(total: float, asked: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Returns `total` divided in proportion to the weights, no part above what was asked; the rest of such parts goes to the others.

    Where all get what they asked for, the parts are less than `total` together.
    """
    parts = [0.0] * len(asked)
    thirsty = sorted((index for index in range(len(asked)) if asked[index] > 0), key=lambda at: (asked[at] / max(weights[at], 1e-12), at))
    weight = fsum(max(weights[index], 1e-12) for index in thirsty)
    for index in thirsty:
        mine = max(weights[index], 1e-12)
        parts[index] = min(float(asked[index]), total * mine / weight) if weight > 0 else float(asked[index])
        total -= parts[index]
        weight -= mine
    return parts


def jain(values: Sequence[float]) -> float:
    """Returns Jain's fairness index, (Σx)² ÷ (n · Σx²): 1 when all are equal (or 0, or there are none), 1/n when one has everything."""
    squares = fsum(value * value for value in values)
    return fsum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0
