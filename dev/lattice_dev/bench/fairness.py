"""Measures whether schedules are fair: `scenes` through the production cycle, and logs beside counts-only EASY.

The aims are the design's: a job on all nodes starts within the longest walltime that ran and a tenth, tenants get their shares, a
colleague's crowd and small ranges delay nobody, and no log waits twice as long as under EASY.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from lattice.replay.engine import Estimates, simulate
from lattice.replay.engine import Policy as Order
from lattice.replay.jobs import Log
from lattice.replay.measures import Measures, Ran, Replayed, held_share, measure, water_fill
from lattice.replay.plain import alike, jobs_of
from lattice.replay.production import Setting, replay
from lattice.replay.profiles import base_policy
from lattice.replay.swf import parse
from lattice.replay.workload import Machine, Workload
from lattice.scheduling.model.policy import BALANCED, Policy, Weights
from lattice_dev.bench import scenes
from lattice_dev.bench.figures import Aim, Figure
from lattice_dev.bench.replaying import NODES as KTH_NODES
from lattice_dev.bench.replaying import log_path

HOUR, DAY = scenes.HOUR, scenes.DAY
ONLY_SHARES: Final = Weights(0, 0, 1, 0, 0, 0, 0, 0, 0)
_PLAIN: Final = base_policy("default")
_RANGED: Final = 64
_SEEDS: Final = range(40, 48)
"""Seeds of the scene of ranges, whose difference is too small for a single schedule to show."""
_SHARE_SEEDS: Final = range(23, 27)
"""Seeds of the scene of shares."""

Say = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class FairnessSize:
    """The size of a run: nodes, days of a scene, jobs of a crowd, jobs of a log."""

    nodes: int
    days: float
    crowd: int
    jobs: int


FULL: Final = FairnessSize(scenes.NODES, 7, 4000, 30_000)
QUICK: Final = FairnessSize(32, 3, 500, 1_500)


def measure_all(*, quick: bool, say: Say = lambda _share: None) -> list[Figure]:
    """Returns the figures of all scenes, then those of the logs."""
    size = QUICK if quick else FULL
    parts = (wide, shares, crowd, ranges, logs)
    found: list[Figure] = []
    for at, part in enumerate(parts):
        found += part(size)
        say((at + 1) / len(parts))
    return found


def play(log: Log, nodes: int, policy: Policy = _PLAIN) -> Replayed:
    """Returns the replay of a log through the production cycle on so many equal nodes, in one vcluster of this policy."""
    return replay(log, Setting(alike(nodes), {policy.name: policy}))


def wide(size: FairnessSize) -> Iterator[Figure]:
    """Yields how long the job on all nodes waits, and how well the machine is used meanwhile."""
    log = scenes.wide(min(size.days, 4), size.nodes)
    done = play(log, size.nodes)
    job = next(one for one in done.ran if one.job.id == scenes.WIDE)
    longest = max(one.job.walltime or 0.0 for one in done.ran if one.start <= job.job.submit < one.end)
    detail = f"reservations given {done.reservations.given}, lost {done.reservations.lost}, moved later {done.reservations.moved}"
    yield Figure("wide job on all nodes, wait", job.wait / HOUR, "h", Aim(min(5.0, 1.1 * longest / HOUR)), detail=detail)
    yield Figure("wide job, use of the machine by that of EASY", _used(log, done, size.nodes), "", Aim(0.99, at_least=True))


def shares(size: FairnessSize) -> Iterator[Figure]:
    """Yields, for three tenants, the greatest distance of a share from what the tenant is entitled to; and two users of one tenant.

    The distance is the mean of several schedules: of a single one it differs by 0.02 from seed to seed.
    """
    for demand in scenes.DEMANDS:
        due = dict(zip(scenes.SHARES, water_fill(1.0, demand, list(scenes.SHARES.values())), strict=True))
        for name, weights, most in (("fair share alone", ONLY_SHARES, 0.05), ("balanced", BALANCED, 0.12)):
            policy = replace(_PLAIN, weights=weights)
            played = (play(scenes.shares(size.days, demand, size.nodes, seed=seed), size.nodes, policy) for seed in _SHARE_SEEDS)
            found = [used_by(done, size, lambda one: one.job.tenant) for done in played]
            worst = [max(abs(used[tenant] - part) for tenant, part in due.items()) for used in found]
            parts = (f"{tenant} {mean(used[tenant] for used in found):.3f} of {part:.3f}" for tenant, part in due.items())
            detail = f"{min(worst):.3f} to {max(worst):.3f} in {len(worst)} schedules; {', '.join(parts)}"
            yield Figure(f"shares, demand {'/'.join(f'{one:g}' for one in demand)}, {name}", mean(worst), "", Aim(most), detail=detail)
    log = scenes.two_users(size.days, size.nodes)
    halves = used_by(play(log, size.nodes, replace(_PLAIN, weights=ONLY_SHARES)), size, lambda one: one.job.user)
    yield Figure("two users of one tenant, distance from half", abs(halves["small"] - 0.5), "", Aim(0.05))


def used_by(done: Replayed, size: FairnessSize, whom: Callable[[Ran], str]) -> dict[str, float]:
    """Returns each one's part of the node-time used from the end of the first day until `size.days`, by the key that `whom` gives; those
    who used nothing are absent.
    """
    begin, end, found = DAY, size.days * DAY, dict[str, float]()
    for one in done.ran:
        lasted = min(one.end, end) - max(one.start, begin)
        if lasted > 0:
            found[whom(one)] = found.get(whom(one), 0.0) + lasted * len(one.nodes)
    total = sum(found.values())
    return {name: part / total for name, part in found.items()}


def crowd(size: FairnessSize) -> Iterator[Figure]:
    """Yields the longest wait of twenty jobs an hour after a colleague's thousands."""
    done = play(scenes.spam(size.crowd, size.nodes), size.nodes)
    longest = max(one.wait for one in done.ran if one.job.user == "colleague")
    yield Figure("20 jobs behind a colleague's crowd, longest wait", longest / HOUR, "h", Aim(2.0), detail=f"{size.crowd} jobs")


def ranges(size: FairnessSize) -> Iterator[Figure]:
    """Yields how much longer others wait beside work that asks for a range of nodes than beside work that asks for its least."""
    for least in (1, 4):
        waits = {}
        for most in (least, _RANGED):
            played = (play(scenes.ranges(min(size.days, 4), least, most, _RANGED, seed), _RANGED) for seed in _SEEDS)
            mine = [one.wait for done in played for one in done.ran if one.job.tenant == "a"]
            waits[most] = sum(mine) / len(mine)
        found = waits[_RANGED] / max(waits[least], 1.0)
        yield Figure(f"wait of others beside {least}-{_RANGED}, by that beside {least}", found, "", Aim(1.05))


def logs(size: FairnessSize) -> Iterator[Figure]:
    """Yields waits and bounded slowdown of KTH-SP2 and two made logs, beside EASY."""
    with gzip.open(log_path()) as lines:
        kth, _ = jobs_of(parse(lines), Machine(KTH_NODES), _PLAIN.name)
    kth = replace(kth, jobs=kth.jobs[: size.jobs])
    cases = [("KTH-SP2", kth, KTH_NODES), *((name, make(min(size.jobs, 10_000)), scenes.NODES) for name, make in scenes.LOGS.items())]
    for name, log, nodes in cases:
        done = play(log, nodes)
        found, easy = measure("", done, log.tenants), under_easy(log, nodes)
        detail = (
            f"mean wait {found.waits.mean:,.0f} s ({easy['mean']:,.0f}), "
            f"bounded slowdown {found.bounded_slowdown:.1f} ({easy['slowdown']:.1f}), "
            f"use {found.utilisation:.4f} ({easy['used']:.4f}); {kept(found)}"
        )
        yield Figure(f"longest wait by EASY's, {name}", found.waits.most / max(easy["most"], 1.0), "", Aim(2.0), detail=detail)


def kept(found: Measures) -> str:
    """Returns a clause on what became of the backfill reservations."""
    tally = found.reservations
    return f"reservations {tally.given}, lost {tally.lost}, late {tally.late}, moved later {tally.moved or 0}"


def under_easy(log: Log, nodes: int) -> Mapping[str, float]:
    """Returns the figures of the same log under EASY with users' estimates, by counts only."""
    jobs = log.jobs
    run = [round(min(job.run, job.walltime or job.run)) for job in jobs]
    columns = ([round(job.submit) for job in jobs], run, [round(job.walltime or job.run) for job in jobs], [job.nodes for job in jobs])
    submit, ran, estimate, count = (array("q", column) for column in columns)
    work = Workload(array("q", range(len(jobs))), submit, ran, estimate, count, count)
    starts = simulate(work, nodes, Order.EASY, Estimates.USER)
    waits = [start - at for start, at in zip(starts, submit, strict=True)]
    slowdowns = [max(1.0, (wait + lasted) / max(10, lasted)) for wait, lasted in zip(waits, ran, strict=True)]
    span = max(start + lasted for start, lasted in zip(starts, ran, strict=True)) - submit[0]
    last = submit[-1]
    held = sum(size * max(0, min(start + lasted, last) - start) for start, lasted, size in zip(starts, ran, count, strict=True))
    return {
        "mean": sum(waits) / len(waits),
        "most": float(max(waits)),
        "slowdown": sum(slowdowns) / len(slowdowns),
        "used": sum(map(int.__mul__, ran, count)) / (nodes * max(span, 1)),
        "submitting": held / (nodes * max(last - submit[0], 1)),
    }


def _used(log: Log, done: Replayed, nodes: int) -> float:
    """Returns the part of the nodes held until the last submission, divided by EASY's."""
    first, last = log.jobs[0].submit, log.jobs[-1].submit
    return held_share(done.ran, first, last, nodes) / under_easy(log, nodes)["submitting"]
