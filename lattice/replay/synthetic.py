"""Generates six workloads from a seed: the traces of the regression suite (book, "Regression Suite").

The same kind, seed and size give the same trace everywhere: the numbers come from a generator of this module (SplitMix64), not from
a library that may change. Widths, lengths and loads are in proportion to the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import Final, TypeVar

from lattice.errors import Rejected
from lattice.replay.jobs import Log, TenantTerms, TraceJob
from lattice.scheduling.model.hardware import Need
from lattice.units import parse_time

BEGIN: Final = parse_time("2026-01-05T00:00:00Z")
NODES: Final = 256
HOURS: Final = 96
LEAST_NODES: Final = 32
GROUP: Final = 16
"""Nodes in one topology group."""
_HOUR: Final = 3600.0
_MASK: Final = (1 << 64) - 1

T = TypeVar("T")


class Dice:
    """A random number generator (SplitMix64) that gives the same numbers on every machine and in every version."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def bits(self) -> int:
        """Returns the next 64 random bits, and advances."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        value = self._state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def share(self) -> float:
        """Returns a random number, evenly distributed from 0 (included) to 1 (excluded)."""
        return (self.bits() >> 11) / (1 << 53)

    def between(self, low: float, high: float) -> float:
        """Returns a random number, evenly distributed between two bounds."""
        return low + (high - low) * self.share()

    def one(self, choices: Sequence[T]) -> T:
        """Returns a random one of the choices."""
        return choices[int(self.share() * len(choices))]

    def gap(self, mean: float) -> float:
        """Returns a random time, exponentially distributed with this mean."""
        return -mean * log(1.0 - self.share())


@dataclass(frozen=True)
class SyntheticSite:
    """The machine of a generated trace: half of its groups have GPUs, some may be at home in the vcluster `sensitive`.

    `hours`: the time of submissions. `dice`: the random numbers of the trace.
    """

    nodes: int
    hours: float
    dice: Dice
    reserved: int = 0
    """How many nodes, in whole groups at the end, are at home in the vcluster `sensitive`."""

    @property
    def open_nodes(self) -> int:
        """Returns how many nodes have no home."""
        return self.nodes - self.reserved

    @property
    def gpu_nodes(self) -> int:
        """Returns how many nodes have GPUs; all of them have no home."""
        return self.open_nodes // 2 // GROUP * GROUP

    def inventory(self) -> dict[str, object]:
        """Returns the inventory document of the whole machine: its classes of hardware and its nodes."""
        entries: list[dict[str, str]] = []
        for begin in range(0, self.nodes, GROUP):
            last = min(begin + GROUP, self.nodes)
            entry = {
                "names": f"nid[{begin + 1:05d}-{last:05d}]",
                "class": "gh200" if begin < self.gpu_nodes else "cpu",
                "group": f"g{begin // GROUP}",
                "switch": f"s{begin // GROUP}",
            }
            entries.append(entry | ({"vcluster": "sensitive"} if begin >= self.open_nodes else {}))
        classes: dict[str, object] = {
            "gh200": {"cpus": 288, "memory": "480Gi", "gpus": 4, "gpuType": "GH200", "gpuMemory": "96Gi", "unifiedMemory": True},
            "cpu": {"cpus": 256, "memory": "512Gi"},
        }
        return {"classes": classes, "nodes": entries}


@dataclass(frozen=True)
class Kind:
    """One of the six kinds of traces: its description, the function that makes its jobs, its tenants and vclusters."""

    what: str
    make: Callable[[SyntheticSite], list[TraceJob]]
    tenants: dict[str, TenantTerms]
    vclusters: dict[str, dict[str, object]]
    reserved_share: float = 0.0


def generate(kind: str, seed: int, *, nodes: int = NODES, hours: float = HOURS) -> Log:
    """Returns the generated trace of a kind: jobs by submission, the machine, tenants and vclusters; equal arguments give an equal trace.

    Raises Rejected (`BadInput`) for an unknown kind or an impossible size.
    """
    if kind not in KINDS:
        raise Rejected(f"no trace {kind!r} can be generated; kinds: {', '.join(KINDS)}", reason="BadInput")
    if nodes < LEAST_NODES or nodes % GROUP:
        raise Rejected(f"--nodes={nodes}: a generated trace needs a multiple of {GROUP} from {LEAST_NODES} on", reason="BadInput")
    if not 1 <= hours <= 24 * 366:
        raise Rejected(f"--hours={hours:g} is not between 1 and {24 * 366}", reason="BadInput")
    chosen = KINDS[kind]
    reserved = max(GROUP, int(nodes * chosen.reserved_share) // GROUP * GROUP) if chosen.reserved_share else 0
    site = SyntheticSite(nodes, hours, Dice(seed * 1_000_003 + sum(kind.encode())), reserved)
    jobs = sorted(chosen.make(site), key=lambda job: job.submit)
    named = [replace(job, id=f"{kind}-{number}", line=0) for number, job in enumerate(jobs, start=1)]
    return Log(
        format="generated",
        jobs=named,
        total=len(named),
        inventory=site.inventory(),
        tenants=dict(chosen.tenants),
        vclusters=dict(chosen.vclusters),
    )


# Jobs


def _whole(seconds: float) -> float:
    """Returns seconds as a whole number of at least 60."""
    return float(max(60, round(seconds)))


def _walltime(site: SyntheticSite, run: float) -> float:
    """Returns a requested walltime for a run, both in seconds: 1.05 to 2.5 times as long, rounded up to quarters of an hour."""
    return ceil(run * site.dice.between(1.05, 2.5) / 900) * 900.0


def _job(site: SyntheticSite, submit: float, nodes: int, run: float, tenant: str, vcluster: str, level: int = 5) -> TraceJob:
    """Returns a job of these sizes with a walltime, one of five users of its tenant, and a name; `submit` in seconds since the trace's
    begin.
    """
    run = _whole(run)
    return TraceJob(
        id="", submit=BEGIN + float(round(submit)), nodes=nodes, most=nodes, run=run, walltime=_walltime(site, run), tenant=tenant,
        user=f"{tenant}-{1 + int(site.dice.share() * 5)}", vcluster=vcluster, preemption_class=level, name=f"{vcluster}-{nodes}",
    )  # fmt: skip


def _stream(site: SyntheticSite, load: float, capacity: int, make: Callable[[float], TraceJob], begin: float, end: float) -> list[TraceJob]:
    """Returns jobs at random moments between `begin` and `end` (seconds since the trace's begin), not in order, whose node-hours are at
    least `load` times those of `capacity` nodes.
    """
    jobs: list[TraceJob] = []
    wanted = load * capacity * (end - begin)
    sample = [make(begin) for _ in range(64)]
    mean = sum(job.nodes * job.run for job in sample) / len(sample)
    now, total, gap = begin, 0.0, (end - begin) * mean / wanted
    while total < wanted:
        now += site.dice.gap(gap)
        if now >= end:
            now = begin + site.dice.share() * (end - begin)
        job = make(now)
        total += job.nodes * job.run
        jobs.append(job)
    return jobs


def _full(capacity: int, make: Callable[[float], TraceJob]) -> list[TraceJob]:
    """Returns jobs, all submitted at once, that fill `capacity` nodes: the beginning of a steady state."""
    jobs: list[TraceJob] = []
    while sum(job.nodes for job in jobs) < capacity:
        jobs.append(make(0.0))
    return jobs


def _width(site: SyntheticSite, capacity: int) -> int:
    """Returns a random number of nodes: mostly small, a power of two, at most an eighth of `capacity`."""
    most = max(1, capacity // 8)
    return min(most, 1 << int(site.dice.share() * site.dice.share() * (most.bit_length() + 1)))


def _length(site: SyntheticSite) -> float:
    """Returns a random run time in seconds: from minutes to some hours, mostly short."""
    return _HOUR * 0.1 * exp(log(80.0) * site.dice.share())


_TENANTS: Final = ("physics", "climate", "biology", "ml-lab")
_EQUAL: Final = {name: TenantTerms(share=0.25) for name in _TENANTS}
_HPC: Final[dict[str, object]] = {"policy": "Backfill", "profile": "HpcBatch"}
_ML: Final[dict[str, object]] = {"policy": "Backfill", "profile": "MlTraining"}
_SERVICE: Final[dict[str, object]] = {"policy": "BinPack", "profile": "Service"}
_SENSITIVE: Final[dict[str, object]] = {"policy": "SensitiveReservation", "profile": "Sensitive"}


def _steady(site: SyntheticSite) -> list[TraceJob]:
    """Makes a full machine, and HPC, ML and service jobs that together ask for somewhat more than it can do."""
    end, dice = site.hours * _HOUR, site.dice
    gpu, cpu = site.gpu_nodes, site.open_nodes - site.gpu_nodes

    def ml(at: float) -> TraceJob:
        """Returns a job of machine learning on nodes with four GPUs, submitted at this second."""
        job = _job(site, at, _width(site, gpu), _length(site), dice.one(_TENANTS), "ml-training", dice.one((3, 4, 5)))
        return replace(job, need=Need(gpus=4, gpu_type="GH200"))

    def hpc(at: float) -> TraceJob:
        """Returns a job on nodes without GPUs, submitted at this second."""
        return _job(site, at, _width(site, cpu), _length(site), dice.one(_TENANTS), "hpc-batch", dice.one((3, 4, 5, 6)))

    services = [
        replace(_job(site, dice.share() * end * 0.5, 1, dice.between(0.3, 0.5) * end, dice.one(_TENANTS), "service", 7))
        for _ in range(max(1, site.nodes // 32))
    ]
    return [*_full(gpu, ml), *_full(cpu, hpc), *_stream(site, 1.05, gpu, ml, 0.0, end), *_stream(site, 1.05, cpu, hpc, 0.0, end), *services]


def _burst(site: SyntheticSite) -> list[TraceJob]:
    """Makes jobs that keep half of the machine busy, and at a third of the time a spike of 1.5 hours' work for the whole machine."""
    end, dice = site.hours * _HOUR, site.dice

    def make(at: float) -> TraceJob:
        """Returns a job of any tenant and at most an hour, submitted at this second."""
        return _job(site, at, _width(site, site.nodes), dice.between(0.05, 1.0) * _HOUR, dice.one(_TENANTS), "hpc-batch", 5)

    spike = end / 3
    return [
        *_stream(site, 0.5, site.nodes, make, 0.0, end),
        *_stream(site, 1.5 * _HOUR / 300, site.nodes, make, spike, spike + 300),
    ]


def _unfair(site: SyntheticSite) -> list[TraceJob]:
    """Makes jobs of four tenants with equal shares: one asks for twice the machine, the others for a little more than their share."""
    end, dice = site.hours * _HOUR, site.dice
    jobs: list[TraceJob] = []
    for tenant, load in zip(_TENANTS, (2.0, 0.3, 0.3, 0.3), strict=True):

        def make(at: float, tenant: str = tenant) -> TraceJob:
            """Returns a small job of one tenant, submitted at this second."""
            return _job(site, at, 1 + int(dice.share() * 4), dice.between(0.2, 2.0) * _HOUR, tenant, "hpc-batch", 5)

        jobs += _stream(site, load, site.nodes, make, 0.0, end)
    return jobs


def _claims(site: SyntheticSite) -> list[TraceJob]:
    """Makes jobs that fill the machine without a home, and sensitive jobs that never ask for more nodes than are free at their home."""
    end, dice = site.hours * _HOUR, site.dice

    def make(at: float) -> TraceJob:
        """Returns a job on the nodes that are not set aside for sensitive work, submitted at this second."""
        return _job(site, at, _width(site, site.open_nodes), _length(site), dice.one(_TENANTS), "hpc-batch", dice.one((3, 4, 5)))

    jobs = _stream(site, 1.1, site.open_nodes, make, 0.0, end)
    held: list[tuple[float, int]] = []
    now = 0.0
    while (now := now + dice.gap(1.5 * _HOUR)) < end:
        held = [(until, nodes) for until, nodes in held if until > now]
        free = site.reserved - sum(nodes for _, nodes in held)
        nodes = 1 + int(dice.share() * GROUP / 2)
        if nodes > free:
            continue
        job = _job(site, now, nodes, dice.between(1.0, 6.0) * _HOUR, "hospital", "sensitive", 10)
        held.append((now + (job.walltime or 0.0) + 2 * job.grace, nodes))
        jobs.append(replace(job, sensitive=True, preemptible=False))
    return jobs


def _inversions(site: SyntheticSite) -> list[TraceJob]:
    """Makes long jobs of low classes that hold the machine, and again and again jobs of high classes."""
    end, dice = site.hours * _HOUR, site.dice

    def low(at: float) -> TraceJob:
        """Returns a long job of class 1 to 3, submitted at this second."""
        return _job(
            site, at, _width(site, site.nodes), dice.between(2.0, 8.0) * _HOUR, dice.one(_TENANTS), "hpc-batch", dice.one((1, 2, 3))
        )

    def high(at: float) -> TraceJob:
        """Returns a short job of class 7 to 9, submitted at this second."""
        return _job(
            site, at, _width(site, site.nodes), dice.between(0.2, 1.0) * _HOUR, dice.one(_TENANTS), "hpc-batch", dice.one((7, 8, 9))
        )

    return [*_stream(site, 0.9, site.nodes, low, 0.0, end), *_stream(site, 0.2, site.nodes, high, end * 0.05, end)]


def _ramp(site: SyntheticSite) -> list[TraceJob]:
    """Makes jobs for twice the machine within ten minutes, after nothing."""
    dice, jobs, asked = site.dice, list[TraceJob](), 0
    while asked < 2 * site.nodes:
        at = 600.0 * min(1.0, asked / (2 * site.nodes))
        job = _job(site, at, min(_width(site, site.nodes), site.nodes), dice.between(1.0, 4.0) * _HOUR, dice.one(_TENANTS), "hpc-batch", 5)
        asked += job.nodes
        jobs.append(job)
    return jobs


KINDS: Final[dict[str, Kind]] = {
    "steady-state": Kind(
        "HPC, ML and services at full load", _steady, _EQUAL, {"hpc-batch": _HPC, "ml-training": _ML, "service": _SERVICE}
    ),
    "burst": Kind("half a load, and a spike of submissions", _burst, _EQUAL, {"hpc-batch": _HPC}),
    "unfair": Kind("one of four equal tenants submits for two machines", _unfair, _EQUAL, {"hpc-batch": _HPC}),
    "sensitive-claim": Kind(
        "sensitive work beside a full machine", _claims, _EQUAL, {"hpc-batch": _HPC, "sensitive": _SENSITIVE}, reserved_share=0.125
    ),
    "preemption-heavy": Kind("work of high classes finds the machine full of low ones", _inversions, _EQUAL, {"hpc-batch": _HPC}),
    "empty-to-full": Kind("an idle machine is filled at once", _ramp, _EQUAL, {"hpc-batch": _HPC}),
}
