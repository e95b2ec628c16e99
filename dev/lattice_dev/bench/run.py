"""The list of all benchmarks: the instance that each needs, its size, and the output of its figures."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import Rejected
from lattice_dev import build
from lattice_dev.bench import (
    admission,
    answers,
    core,
    costs,
    eta,
    fairness,
    figures,
    footprint,
    latency,
    launches,
    lists,
    nodeplane,
    optimum,
    peers,
    quota,
    rates,
    replaying,
    turns,
    usage,
    waiting,
    webhook,
    workflows,
    writes,
)
from lattice_dev.bench.drive import Driver, driver
from lattice_dev.bench.figures import Figure
from lattice_dev.instance import Instance
from lattice_dev.progress import Progress
from lattice_dev.state import Options


@dataclass(frozen=True)
class Size:
    """The amount that is measured, by a full or by a quick run."""

    latencies: int
    pending: int
    nodes: int
    allocations: int
    admissions: int
    seconds: float
    together: int
    rounds: int
    pull_mebibytes: int


FULL = Size(60, 1000, 1000, 5000, 3000, 60.0, 12, 12, 1024)
QUICK = Size(12, 100, 130, 400, 300, 10.0, 1, 3, 64)

TRACED = 20
"""Starts of each kind that `--trace` shows."""
WRITES_A_ROUND = 100
"""Writes of each kind in a round of the cost measurement."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """One group of figures, measured on an instance of its own."""

    name: str
    what: str
    options: Callable[[Size], Options]
    measure: Callable[[Driver, Size], Awaitable[list[Figure]]]


@dataclass(frozen=True)
class Local:
    """One group of figures that needs no instance; `measure` receives whether the run is quick, and reports its progress (0 to 1)."""

    name: str
    what: str
    measure: Callable[[bool, Callable[[float], None]], list[Figure]]


@dataclass(frozen=True)
class Beside:
    """Another scheduler's figures and ours, one after the other on instances of the same kind; measured only when named."""

    name: str
    what: str
    prepare: Callable[[Progress], None]
    theirs: Bench
    ours: Bench
    compare: Callable[[Sequence[Figure], Sequence[Figure]], list[Figure]]
    notes: Sequence[str]
    """Sentences on what is compared and what is not."""


async def _latency(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of starts on an idle cluster and with a long queue."""
    async with at.watch() as seen:

        async def of(nodes: int, state: str) -> list[Figure]:
            """Returns the figures of starts on so many nodes."""
            return await latency.measure(at, seen, nodes=nodes, count=size.latencies, label=f"{_nodes(nodes)} {state}")

        found = [*await of(1, "idle"), *await of(4, "idle")]
        await latency.fill_queue(at, seen, size.pending)
        for nodes in (1, 4):
            found += await of(nodes, f"with {size.pending} pending")
        found += await asyncio.to_thread(footprint.commands, at.instance, size.pending)
        await at.clear(seen)
    return found


async def _rates(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of admissions and of whole lives a second."""
    lives = await rates.lives(at, seconds=size.seconds, outstanding=100)
    return [*await rates.admissions(at, size.admissions), lives]


async def _webhook(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of the webhook."""
    return await webhook.measure(at, groups=size.nodes, count=size.admissions)


async def _bindings(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of Kubernetes' own scheduler, with the machine's load."""
    return [peers.with_load(figure, os.getloadavg()[0]) for figure in await peers.bindings(at, size.admissions)]


async def _admissions(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of our admissions, with agents and without, with the machine's load."""
    found = [peers.with_load(figure, os.getloadavg()[0]) for figure in await rates.admissions(at, size.admissions)]
    async with at.watch() as seen:
        await at.clear(seen)
    alone = await rates.admissions_without_agents(at, size.admissions)
    return [*found, peers.with_load(alone, os.getloadavg()[0])]


async def _writes(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of API writes by number of nodes, and of what each kind costs."""
    found = await writes.measure(at, nodes=1, count=min(100, size.nodes))
    found += await writes.measure(at, nodes=64, count=size.together)
    if size.nodes >= 1000:
        found += await writes.measure(at, nodes=1000, count=1)
    return found + await costs.measure(at, rounds=size.rounds, each=WRITES_A_ROUND)


def _options_of_writes(size: Size) -> Options:
    """Returns the options of an instance whose audit log also has reads."""
    return Options(nodes=0, hollow=size.nodes, audit_reads=True)


async def _lists(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of lists."""
    return await lists.measure(at, (size.pending, 10 * size.pending))


async def _nodeplane(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of the node plane, each with the machine's load."""
    found = await nodeplane.measure(
        at, starts=size.latencies // 2, idle_seconds=size.seconds, lives=size.rounds, pulls=max(1, size.rounds // 4),
        pull_bytes=size.pull_mebibytes << 20,
    )  # fmt: skip
    return [peers.with_load(figure, os.getloadavg()[0]) for figure in found]


async def _launches(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of launches, each with the machine's load."""
    rounds = max(1, size.rounds)
    wanted = launches.LaunchSize(
        ones=4 * size.latencies, inits=rounds, fences=rounds, many=size.allocations, many_beside=size.allocations // 5,
        lives=5 if rounds > 3 else 3,
    )  # fmt: skip
    return [peers.with_load(figure, os.getloadavg()[0]) for figure in await launches.measure(at, wanted)]


async def _workflows(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of workflows, each with the machine's load."""
    wanted = workflows.WorkflowSize(
        members=size.pending, rounds=max(1, size.rounds // 4), pairs=size.latencies, write_rounds=max(2, size.rounds // 2)
    )
    return [peers.with_load(figure, os.getloadavg()[0]) for figure in await workflows.measure(at, wanted)]


async def _memory(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of memory."""
    return await footprint.memory(at, allocations=size.allocations, nodes=size.nodes)


async def _memory_of_large(at: Driver, size: Size) -> list[Figure]:
    """Returns the figures of memory with ten times the nodes, all of them busy."""
    return await footprint.memory(at, allocations=10 * size.nodes, nodes=10 * size.nodes)


BENCHES = (
    Bench("latency", "apply to first process; wall time of commands", lambda size: Options(nodes=5), _latency),
    Bench("writes", "API writes of a life; what each kind costs the API server", _options_of_writes, _writes),
    Bench(
        "nodeplane",
        "software beside bare work; agent and shim at rest; pulls; writes of a life",
        lambda _size: Options(nodes=1),
        _nodeplane,
    ),
    Bench("launches", "srun and PMI on four nodes, beside a real Slurm", lambda _size: Options(nodes=launches.NODES), _launches),
    Bench("workflows", "DAGs, successors beside Slurm's, fan-out, fan-in", lambda _size: Options(nodes=1), _workflows),
    Bench("memory", "memory of each daemon", lambda size: Options(nodes=1, hollow=size.nodes), _memory),
    Bench("webhook", "answers of the admission webhook", lambda _size: Options(nodes=0, hollow=4), _webhook),
    Bench("lists", "wall time of lattice status; answers to ten readers", lambda size: Options(nodes=1, hollow=size.pending), _lists),
    Bench("rates", "creations, admissions, whole lives", lambda size: Options(nodes=0, hollow=size.admissions), _rates),
)

LOCAL = (
    Local("core", "one cycle beside a scan over nodes", lambda quick, say: core.measure(quick=quick, say=say)),
    Local("admission", "what one admission costs, by the size of the object", lambda quick, say: admission.measure(quick=quick, say=say)),
    Local("waiting", "one cycle of a queue that waits", lambda quick, say: waiting.measure(quick=quick, say=say)),
    Local("answers", "how long questions hold the scheduler's loop", lambda quick, say: answers.measure(quick=quick, say=say)),
    Local("eta", "expected starts on the KTH-SP2 log; time of a full forecast", lambda quick, say: eta.measure(quick=quick, say=say)),
    Local("optimum", "cycles by the LP bound; the choice of victims", lambda quick, say: optimum.measure(quick=quick, say=say)),
    Local("quota", "the quota tree beside the plain rule", lambda quick, say: quota.measure(quick=quick, say=say)),
    Local("usage", "usage and history of ten thousand attempts", lambda quick, say: usage.measure(quick=quick, say=say)),
    Local("replay", "jobs a second of both replay engines on KTH-SP2", lambda quick, say: replaying.measure(quick=quick, say=say)),
)
"""Benchmarks of the pure rooms."""

NAMED: tuple[Local | Bench, ...] = (
    Local("fairness", "scenes of fairness, and logs beside EASY", lambda quick, say: fairness.measure_all(quick=quick, say=say)),
    Bench("large", "memory with ten times the nodes", lambda size: Options(nodes=0, hollow=10 * size.nodes), _memory_of_large),
)
"""Benchmarks of quality or of a large machine, which take minutes; run only when named."""

BESIDE = (
    Beside(
        "peers",
        "bindings by kube-scheduler beside our admissions",
        peers.prepare,
        Bench("kube-scheduler", "bindings by kube-scheduler", lambda _size: Options(nodes=0), _bindings),
        Bench("ours", "admissions by our scheduler", lambda size: Options(nodes=0, hollow=size.admissions), _admissions),
        peers.beside,
        peers.COMPARED,
    ),
)
"""Comparisons with other schedulers, which take minutes to build; run only when named."""


def _nodes(count: int) -> str:
    """Returns a number of nodes in words, such as `1 node` or `3 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def chosen(only: Sequence[str]) -> list[Bench | Local | Beside]:
    """Returns the benchmarks of these names, `BENCHES` and `LOCAL` without any; raises Rejected with the names there are."""
    known: dict[str, Bench | Local | Beside] = {bench.name: bench for bench in (*BENCHES, *LOCAL, *NAMED, *BESIDE)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise Rejected(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", reason="NoBenchmark")
    return [known[name] for name in only] or [*BENCHES, *LOCAL]


def run(only: Sequence[str], *, name: str, quick: bool, file: Path | None, say: Say, progress: Progress) -> list[Figure]:
    """Measures on instances that are made for it and removed afterwards, and returns all figures.

    Prints a table of each benchmark, and writes JSON where a file is named. Raises Rejected for an unknown name.
    """
    size = QUICK if quick else FULL
    found: list[Figure] = []
    for bench in chosen(only):
        say(f"== {bench.name}: {bench.what}")
        mine = _measured(bench, size, name, progress, say, quick=quick)
        for line in figures.table(mine):
            say(line)
        for note in bench.notes if isinstance(bench, Beside) else ():
            say(note)
        found += mine
        if file is not None:
            file.write_text(json.dumps(figures.as_json(found, setting(quick=quick)), indent=2) + "\n")
    return found


def trace(only: Sequence[str], *, name: str, quick: bool, say: Say, progress: Progress) -> None:
    """Traces starts, idle and with work that waits, on an instance whose daemons log every step of a start, and says the steps; the
    instance is made for it and removed.

    Raises Rejected where another benchmark than `latency` is asked for.
    """
    if list(only) not in ([], ["latency"]):
        raise Rejected("--trace traces the starts of `latency` alone", reason="NoBenchmark")
    instance = Instance(f"{name}-trace", Options(nodes=5, trace_starts=True), progress=progress)
    try:
        instance.up()
        asyncio.run(_traced(instance, QUICK if quick else FULL, 5 if quick else TRACED, say))
    finally:
        instance.down()


def beside(only: Sequence[str], baseline: Path, *, name: str, quick: bool, file: Path | None, say: Say, progress: Progress) -> None:
    """Measures `replay` or `nodeplane` with this checkout and with `baseline` by turns; prints a table, and writes JSON where a file is
    named.

    Raises Rejected where another benchmark is asked for.
    """
    if list(only) == ["nodeplane"]:
        count = (QUICK if quick else FULL).latencies
        found = [peers.with_load(one, os.getloadavg()[0]) for one in nodeplane.beside(baseline, name=name, count=count, progress=progress)]
    elif list(only) == ["replay"]:
        with progress.step("replays by turns with the baseline"):
            found = turns.compare(baseline, quick=quick)
    else:
        raise Rejected("--baseline compares `replay` or `nodeplane` alone", reason="NoBenchmark")
    for line in figures.table(found):
        say(line)
    if file is not None:
        file.write_text(json.dumps(figures.as_json(found, setting(quick=quick)), indent=2) + "\n")


async def _traced(instance: Instance, size: Size, count: int, say: Say) -> None:
    """Says the steps of starts on an idle cluster and with a long queue."""
    async with driver(instance) as at, at.watch() as seen:
        for state in ("idle", f"with {size.pending} pending"):
            if state != "idle":
                await latency.fill_queue(at, seen, size.pending)
            for nodes in (1, 4):
                for line in await latency.trace(at, seen, nodes=nodes, count=count, label=f"{_nodes(nodes)} {state}"):
                    say(line)
        await at.clear(seen)


def _measured(bench: Bench | Local | Beside, size: Size, name: str, progress: Progress, say: Say, *, quick: bool) -> list[Figure]:
    """Returns the figures of a benchmark, wherever it runs; of one beside a peer, which is prepared first, the peer's are said at once."""
    match bench:
        case Local():
            return _here(bench, progress, quick=quick)
        case Beside():
            bench.prepare(progress)
            theirs = _on_instance(bench.theirs, size, name, progress)
            for figure in theirs:  # at once: what follows may take long, or fail
                say(f"{figure.name}: {figures.shown(figure.value)} {figure.unit}; {figure.detail}")
            return bench.compare(theirs, _on_instance(bench.ours, size, name, progress))
        case Bench():
            return _on_instance(bench, size, name, progress)


def _here(bench: Local, progress: Progress, *, quick: bool) -> list[Figure]:
    """Returns the figures of a benchmark that needs no instance."""
    with progress.step(bench.what):
        return bench.measure(quick, lambda _share: None)


def _on_instance(bench: Bench, size: Size, name: str, progress: Progress) -> list[Figure]:
    """Returns the figures of a benchmark on an instance of its own, which is removed afterwards."""
    instance = Instance(f"{name}-{bench.name}", bench.options(size), progress=progress)
    try:
        instance.up()
        return asyncio.run(_measure(bench, size, instance))
    finally:
        instance.down()


async def _measure(bench: Bench, size: Size, instance: Instance) -> list[Figure]:
    """Returns the figures of a benchmark on a running instance."""
    async with driver(instance) as at:
        return await bench.measure(at, size)


def setting(*, quick: bool) -> dict[str, str]:
    """Returns where and how the figures were measured."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "size": "quick" if quick else "full",
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "kubernetes": build.KUBERNETES,
        "fsync": "on",
        "auditLog": "on",
        "loadAtEnd": f"{load:.2f}",
    }
