"""Measures workflows: how soon the members of a DAG exist, how soon work follows other work, and what a fan-out and a fan-in cost.

Successors are measured by turns with a real Slurm's `afterok` on the same machine where one is installed.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from lattice.accounting.records import Records
from lattice.daemon.clock import SystemClock
from lattice.errors import Corrupt
from lattice.kube.aiohttp import connect
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, DAGS
from lattice.views import Metadata
from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Condition, Dependency
from lattice.workflow.edges import Predecessor, condition_letter, predecessor_of
from lattice.workflow.release import Released
from lattice_controllers.scheduler.dag_gates import DagGates
from lattice_controllers.scheduler.dependencies import Dependencies
from lattice_dev import slurm
from lattice_dev.bench import work
from lattice_dev.bench.cost_rounds import costs
from lattice_dev.bench.costs import Call, ServerMeter
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile
from lattice_dev.bench.observe import Watching
from lattice_dev.bench.processor import ProgramTimes
from lattice_dev.waiting import HostClock

MADE_AIM: Final = 1.2
"""The time in which all members of a DAG are readable, by that of as many plain creations in the same run."""
FOLLOWS_AIMS: Final = {0.5: Aim(200.0), 0.99: Aim(500.0)}
FAN_OUT_AIM: Final = Aim(20.0)
FAN_OUT_ROUNDS: Final = 7
FAN_IN_CREATED, FAN_IN_BOUND, MAP_CREATED, MAP_REPLACED = (
    "fan-in, created", "fan-in, status with its edges", "ConfigMap of the same size, created", "ConfigMap of the same size, replaced",
)  # fmt: skip
WRITES_A_ROUND: Final = 4
MADE_SECONDS, FOLLOW_SECONDS, SETTLE_SECONDS = 600.0, 60.0, 1.0
FIRST: Final = "sleep 0.2; echo $EPOCHREALTIME > {file}"
THEN: Final = "echo $EPOCHREALTIME > {file}"


@dataclass(frozen=True)
class WorkflowSize:
    """The size of a measurement: members of a DAG, how often each is made, pairs of work that follow each other, rounds of writes."""

    members: int
    rounds: int
    pairs: int
    write_rounds: int


async def measure(at: Driver, size: WorkflowSize) -> list[Figure]:
    """Returns all figures. Scheduler and operator are stopped at the end: the instance is of no use afterwards.

    Raises Corrupt where work does not run as it must, Retry where it takes too long.
    """
    async with at.watch() as seen:
        found = await _follows(at, seen, size.pairs)
        found += await _made(at, seen, size)
    found.append(fan_out(size.members - 2))
    return [*found, *await _writes(at, size)]


# members


async def _made(at: Driver, seen: Watching, size: WorkflowSize) -> list[Figure]:
    """Returns the figures of how long all members of a DAG take to be readable, from its POST, beside as many plain creations."""
    plain: list[float] = []
    took: dict[str, list[float]] = {"chain": [], "fan": []}
    spent: dict[str, dict[str, float]] = {}
    for number in range(size.rounds):
        made = [_held(f"plain-{number}-{place:04d}") for place in range(size.members)]
        plain.append(await at.create(made))
        await seen.until(lambda: len(seen.lives) >= size.members, within=MADE_SECONDS, what="the plain creations")
        await at.clear(seen)
        for shape, each in took.items():
            times = ProgramTimes(at.instance)
            each.append(await _one_dag(at, seen, f"{shape}-{number}", _members(shape, size.members)))
            spent[shape] = {name: one for name, one in times.spent(size.members).items() if one >= 0.05}
            await at.user.delete(DAGS, f"{shape}-{number}", NAMESPACE)
            await seen.until(lambda: not seen.lives, within=MADE_SECONDS, what="the end of a DAG's members")
    beside = percentile(plain, 0.5)
    detail = f"p50 of {size.rounds}, from the POST; ms of processor a member, of the last"
    return [
        Figure(
            f"all members of a DAG of {size.members:,} readable, {shape}", percentile(each, 0.5), "s", Aim(round(MADE_AIM * beside, 3)),
            Baseline(f"s {size.members:,} plain creations", beside), detail, spent[shape],
        )
        for shape, each in took.items()
    ]  # fmt: skip


async def _one_dag(at: Driver, seen: Watching, name: str, members: Sequence[dict[str, Any]]) -> float:
    """Makes a DAG that is held, and returns the seconds from its POST until each of its members has been seen."""
    spec = _held("")["spec"]
    del spec["hold"]
    dag = {
        "apiVersion": DAGS.api_version, "kind": DAGS.kind, "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"hold": True, "defaults": spec, "members": members},
    }  # fmt: skip
    began = at.clock.monotonic()
    await at.user.create(DAGS, dag, NAMESPACE)
    await seen.until(lambda: len(seen.lives) >= len(members), within=MADE_SECONDS, what=f"the members of {name}")
    return max(life.seen for life in seen.lives.values()) - began


def _held(name: str) -> dict[str, Any]:
    """Returns an allocation that waits until it is deleted."""
    made = work.hollow(NAMESPACE, name)
    made["spec"]["hold"] = True
    return made


def _members(shape: str, count: int) -> list[dict[str, Any]]:
    """Returns so many members of a `chain`, each after the one before it, or of a `fan`: one, all others but one after it, and one last
    after these.
    """
    names = [f"m{place:04d}" for place in range(count)]
    before = {name: [names[place]] for place, name in enumerate(names[1:])}
    if shape == "fan":
        before = dict.fromkeys(names[1:-1], names[:1]) | {names[-1]: names[1:-1]}
    return [{"name": name, "dependsOn": [{"ref": one, "condition": "Success"} for one in before.get(name, ())]} for name in names]


# who follows


async def _follows(at: Driver, seen: Watching, count: int) -> list[Figure]:
    """Returns the figures of the time from the last process of work to the first of the work that waits for its success."""
    folder = at.instance.where.user_home(USER) / "bench-workflows"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # Slurm's jobs are root's, ours are the user's
    ours: list[float] = []
    theirs: list[float] = []
    try:
        async with _slurm() as cluster:
            for number in range(count):
                ours.append(await _pair(at, seen, folder, f"ours-{number:03d}"))
                if cluster is not None:
                    theirs.append(await asyncio.to_thread(_slurm_pair, cluster, folder, f"slurm-{number:03d}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    await at.clear(seen)
    return [
        Figure(
            f"last process of a predecessor to the first of its successor, p{100 * share:.0f}", percentile(ours, share), "ms", aim,
            Baseline("of Slurm 22.05, afterok", percentile(theirs, share)) if theirs else None, f"{count} of each, by turns",
        )
        for share, aim in FOLLOWS_AIMS.items()
    ]  # fmt: skip


async def _pair(at: Driver, seen: Watching, folder: Path, name: str) -> float:
    """Submits work and its successor; returns the milliseconds between the end of the one and the begin of the other."""
    files = folder / f"{name}.end", folder / f"{name}.begin"
    first = work.real(NAMESPACE, f"{name}-a", FIRST.format(file=files[0]))
    then = work.real(NAMESPACE, f"{name}-b", THEN.format(file=files[1]))
    then["spec"]["dependsOn"] = [{"ref": f"{name}-a", "condition": "Success"}]
    seen.expect(f"{name}-b")
    await at.create([first])
    await at.create([then])
    life = await seen.end_of(f"{name}-b", within=FOLLOW_SECONDS)
    if life.last.status.phase != "Completed":
        raise Corrupt(f"{name}-b has ended as {life.last.status.phase}", reason="WorkFailed")
    await at.clock.sleep(SETTLE_SECONDS / 2)  # its node is free again
    return _between(*files)


def _slurm_pair(cluster: slurm.SlurmCluster, folder: Path, name: str) -> float:
    """Does as `_pair` in a Slurm that runs."""
    files = folder / f"{name}.end", folder / f"{name}.begin"
    scripts = []
    for text, file in zip((FIRST, THEN), files, strict=True):
        script = file.with_suffix(f"{file.suffix}.sh")
        script.write_text(f"#!/bin/bash\n{text.format(file=file)}\n", encoding="utf-8")
        scripts.append(script)
    first = cluster.submit(scripts[0], "--nodes=1", "--output=/dev/null")
    then = cluster.submit(scripts[1], "--nodes=1", "--output=/dev/null", f"--dependency=afterok:{first}")
    cluster.await_end(then, HostClock(), within=FOLLOW_SECONDS)
    return _between(*files)


def _between(end: Path, begin: Path) -> float:
    """Returns the milliseconds between the times that two files hold; raises Corrupt where one has none."""
    try:
        return 1000 * (float(begin.read_text(encoding="ascii")) - float(end.read_text(encoding="ascii")))
    except (OSError, ValueError) as error:
        raise Corrupt(f"{end.name} and {begin.name} do not hold two times: {error}", reason="WorkFailed") from error


@asynccontextmanager
async def _slurm() -> AsyncIterator[slurm.SlurmCluster | None]:
    """Yields a Slurm of one node that runs for the block; None: none is installed."""
    if slurm.missing():
        yield None
        return
    running = slurm.running(HostClock(), nodes=1, scheduler_parameters="batch_sched_delay=0")
    cluster = await asyncio.to_thread(running.__enter__)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


# fan-out


def fan_out(count: int) -> Figure:
    """Returns the figure of the processor time in which a scheduler finds that so many wait for one that has ended, and releases each;
    beside it the plain rule, which asks each edge anew. No API server takes part.
    """
    ours, plain = [], []
    for _ in range(FAN_OUT_ROUNDS):
        first, followers = _allocation("first"), [_allocation(f"f{place}", "first") for place in range(count)]
        objects = {one.metadata.uid: one for one in (first, *followers)}
        dependencies = Dependencies(SystemClock(), objects, Records(), {}, DagGates(lambda: ""))
        for one in objects.values():
            dependencies.on_allocation(Change(one.metadata.key, None, one))
        dependencies.started()
        ended = _allocation("first", over=True)
        objects[ended.metadata.uid] = ended
        began = time.process_time()
        woken = dependencies.on_allocation(Change(ended.metadata.key, first, ended))
        released = sum(isinstance(dependencies.judge(objects[uid]).verdict, Released) for uid in woken)
        ours.append(1000 * (time.process_time() - began))
        if released != count:
            raise Corrupt(f"{released} of {count} were released", reason="WorkFailed")
        began = time.process_time()
        for one in followers:
            before: Predecessor = predecessor_of(ended)
            [condition_letter(edge.condition, before) for edge in one.spec.depends_on]
        plain.append(1000 * (time.process_time() - began))
    name, detail = f"fan-out of {count} decided, the scheduler's CPU", f"p50 of {FAN_OUT_ROUNDS}"
    return Figure(name, percentile(ours, 0.5), "ms", FAN_OUT_AIM, Baseline("ms plain rule", percentile(plain, 0.5)), detail)


def _allocation(name: str, *before: str, over: bool = False) -> Allocation:
    """Returns an allocation as a scheduler reads it, which waits for the success of others, or has completed."""
    made = "2026-11-01T00:00:00Z"
    meta = Metadata(name=name, namespace=NAMESPACE, uid=f"uid-{name}", creation_timestamp=made)
    spec = AllocationSpec(tenant=NAMESPACE, depends_on=tuple(Dependency(ref=one, condition="Success") for one in before))
    ended = tuple(Condition(type=kind, status="True", reason="Completed") for kind in ("Finished", "Ready"))
    status = AllocationStatus(phase="Completed", end_time=made, conditions=ended) if over else AllocationStatus(phase="Pending")
    return Allocation(metadata=meta, spec=spec, status=status)


# writes


async def _writes(at: Driver, size: WorkflowSize) -> list[Figure]:
    """Returns what a write of work that waits for many costs the API server, beside a ConfigMap of as many bytes; nobody else writes."""
    count = size.members - 2
    for daemon in ("scheduler", "operator"):
        await asyncio.to_thread(at.instance.stop, daemon)
    bench = at.admin.impersonate("lattice:bench", ("system:masters",))
    edges = [{"index": index, "uid": f"00000000-0000-0000-0000-{index:012d}"} for index in range(count)]
    bound = {"status": {"phase": "Pending", "edges": edges}}
    text = str([{"ref": f"bench.m{place:04d}", "condition": "Success"} for place in range(count)])
    async with connect(str(at.instance.kubeconfig("scheduler")), user_agent="lattice-bench", connections=2) as scheduler:
        meter = ServerMeter(at)
        await meter.measure_background()
        rounds = []
        for number in range(size.write_rounds):
            names = [f"fan-in-{number}-{each}" for each in range(WRITES_A_ROUND)]
            maps = [{**work.lean_config_map(NAMESPACE, name), "data": {"a": text}} for name in names]
            batches: dict[str, list[Call]] = {
                MAP_CREATED: [partial(at.admin.create, CONFIG_MAPS, body, NAMESPACE) for body in maps],
                MAP_REPLACED: [
                    partial(at.admin.replace, CONFIG_MAPS, name, {**body, "data": {"a": text, "b": "1"}}, NAMESPACE)
                    for name, body in zip(names, maps, strict=True)
                ],
                FAN_IN_CREATED: [partial(bench.create, ALLOCATIONS, _fan_in(name, count), NAMESPACE) for name in names],
                FAN_IN_BOUND: [
                    partial(scheduler.patch, ALLOCATIONS, name, bound, NAMESPACE, subresource="status") for name in names
                ],
            }  # fmt: skip
            rounds += [await meter.round(kind, 1, calls) for kind, calls in batches.items()]
    known = costs(rounds)
    return [
        Figure(
            f"API server's CPU, {kind}, {count} edges", known[kind].milliseconds, "ms", None,
            Baseline(f"ms {beside}", known[beside].milliseconds), f"{known[kind].writes} writes; {known[kind].kib:.0f} KiB allocated each",
        )
        for kind, beside in ((FAN_IN_CREATED, MAP_CREATED), (FAN_IN_BOUND, MAP_REPLACED))
    ]  # fmt: skip


def _fan_in(name: str, count: int) -> dict[str, Any]:
    """Returns an allocation that waits for many, as the operator makes one of a DAG: no webhook is asked about it."""
    made = work.hollow(NAMESPACE, name)
    made["metadata"]["finalizers"] = ["lattice.dev/release"]
    made["spec"] |= {
        "user": "lattice:bench", "tenant": NAMESPACE, "vcluster": "hpc-batch",
        "dependsOn": [{"ref": f"bench.m{place:04d}", "condition": "Success"} for place in range(count)],
    }  # fmt: skip
    return made
