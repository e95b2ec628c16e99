"""Runs the first jobs of a log on hollow nodes, with real multi-node allocations on real nodes beside them."""

from __future__ import annotations

import asyncio
import gzip
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import Rejected
from lattice.kube.resources import ALLOCATIONS, CONFIGS, NODES, VCLUSTERS
from lattice.units import parse_duration, parse_time
from lattice.views.cluster import Node
from lattice_dev.bench import work
from lattice_dev.bench.drive import NAMESPACE, USER, Driver, driver
from lattice_dev.bench.figures import percentile
from lattice_dev.bench.observe import Life, Watching
from lattice_dev.instance import Instance
from lattice_dev.progress import Progress
from lattice_dev.state import Layout, Options
from lattice_dev.trace import swf, verdict
from lattice_dev.trace.order import Commit, Queued
from lattice_dev.trace.recorded import RecordedCycles
from lattice_dev.trace.verdict import Ended

REAL_NODES = 4
REAL_SECONDS = 0.3
GRACE_SECONDS = 1.0
"""A job counts as waiting this long after it was seen: one cycle interval; `order` explains the whole tolerance."""
TOGETHER_SECONDS = 0.25
"""Jobs that were seen so close together may have reached the scheduler in another order."""
VCLUSTER = "hpc-batch"
DEPTH = 10
IN_ORDER = {"weights": {"waitTime": "1"}, "cycle": {"depth": DEPTH}}
"""A vcluster in which the longest waiting goes first, and the first ten blocked are promised nodes, so that the order can be checked."""
RECORDED = {"scheduling": {"recording": {"enabled": True}}}
"""Cycles are recorded, as evidence where one of them passes somebody over."""
WITNESS = "trace-witness"
RELEASED = "the release of every row in the ledger"
JOB_ENDS = frozenset({"Completed", "Failed"})
"""Phases of a proper end; a job of the log that used its requested time to the second may be ended by its walltime."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """The run that is wanted: the log, how many of its jobs, on how many hollow nodes, time divided by `compression`, real jobs beside."""

    file: Path
    jobs: int
    nodes: int
    compression: float
    beside: int

    def __post_init__(self) -> None:
        """Raises Rejected for a run without jobs or nodes, or with a compression that is not above 0."""
        if not self.compression > 0 or self.jobs < 1 or self.nodes < 1 or self.beside < 0:
            raise Rejected("a trace needs at least one job, one node, and a compression above 0", reason="TraceWrong")


def read(wanted: Wanted) -> list[swf.SwfJob]:
    """Returns the first jobs of the log, which may be compressed by gzip.

    Raises Rejected for a file that is not there or is no log, and when it has fewer jobs.
    """
    try:
        raw = wanted.file.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise Rejected(f"{wanted.file}: {error}", reason="LogUnreadable") from error
    return swf.first_jobs(text.decode("latin-1").splitlines(), wanted.jobs, wanted.nodes)


def run(wanted: Wanted, *, name: str, say: Say, progress: Progress) -> bool:
    """Makes the instance `name`, runs the trace, and removes the instance, also after an error; returns True when nothing was found wrong.

    Raises Rejected where an instance of this name stands already, or the log cannot be used, Retry where an end does not come in time.
    """
    jobs = read(wanted)
    span = (jobs[-1].submit - jobs[0].submit) / wanted.compression
    say(
        f"{len(jobs)} jobs of {wanted.file.name} on {wanted.nodes} hollow nodes, compression C = {wanted.compression:g}: "
        f"submitted over {span:.0f} s; {wanted.beside} real allocations on {REAL_NODES} real nodes beside them"
    )
    instance = Instance(name, Options(nodes=REAL_NODES, hollow=wanted.nodes), progress=progress)
    refuse_existing(instance.where)
    try:
        instance.up()
        return asyncio.run(on_instance(instance, jobs, wanted, say))
    finally:
        instance.down()


def refuse_existing(where: Layout) -> None:
    """Raises Rejected where an instance stands already: a trace removes its instance at the end."""
    if where.directory.exists():
        said = f"the instance {where.name} exists, and a trace would remove it at its end"
        raise Rejected(f"{said}: choose another --name, or remove it first with `lattice dev down --name {where.name}`", reason="NameTaken")


async def on_instance(instance: Instance, jobs: Sequence[swf.SwfJob], wanted: Wanted, say: Say) -> bool:
    """Submits the jobs to a running instance, waits for every end and release, judges, and prints; returns True when nothing was found
    wrong.

    Changes the order of vcluster hpc-batch for good; raises Retry where an end does not come in time.
    """
    names = {f"kth-{number:04d}": job for number, job in enumerate(jobs, start=1)}
    sizes = {f"real-{number:02d}": 2 + number % (REAL_NODES - 1) for number in range(1, wanted.beside + 1)}
    async with driver(instance) as at, at.watch(ledger=True) as seen:
        await at.admin.patch(CONFIGS, "lattice", {"spec": RECORDED})
        await at.admin.patch(VCLUSTERS, VCLUSTER, {"spec": IN_ORDER})
        span = (jobs[-1].submit - jobs[0].submit) / wanted.compression
        async with asyncio.TaskGroup() as group:
            group.create_task(_submit_jobs(at, names, wanted.compression))
            group.create_task(_submit_real(at, sizes, span))
        every = [*names, *sizes]
        rest = sum(job.walltime(wanted.compression) for job in jobs) + 120
        await seen.until(lambda: seen.count_reached("ended", every) == len(every), within=rest, what="the end of every allocation")
        await seen.until(lambda: _all_released(seen, len(every)), within=60, what=RELEASED)
        capacity = await _ready_nodes(at)
        queue, history = _queue(seen, names, wanted.compression), _history(seen, names)
        ends = {name: _ended(life) for name, life in seen.lives.items()}
    found = list(verdict.faults(names, ends, JOB_ENDS))
    found += verdict.faults(sizes, ends, frozenset({"Completed"}))
    recorded = RecordedCycles(instance.where.directory / "cycles")
    found += verdict.order_faults(
        queue, history, capacity=capacity, grace_seconds=GRACE_SECONDS, depth=DEPTH, together_seconds=TOGETHER_SECONDS,
        bound=recorded.bound, evidence=recorded.evidence,
    )  # fmt: skip
    found += verdict.witness_faults(_witness(instance), sizes)
    _print(ends, [*names, *sizes], capacity, len(history), found, say)
    return not found


async def _submit_jobs(at: Driver, jobs: Mapping[str, swf.SwfJob], compression: float) -> None:
    """Submits each job at its compressed time of the log."""
    began, first = at.clock.monotonic(), next(iter(jobs.values())).submit
    for name, job in jobs.items():
        due = began + (job.submit - first) / compression
        await at.clock.sleep(max(0.0, due - at.clock.monotonic()))
        manifest = work.hollow(
            NAMESPACE, name, nodes=job.nodes, seconds=job.run / compression, walltime=job.walltime(compression)
        )  # fmt: skip
        await at.user.create(ALLOCATIONS, manifest, NAMESPACE)


async def _submit_real(at: Driver, sizes: Mapping[str, int], span: float) -> None:
    """Submits the real allocations, of 2 to 4 nodes, spread over `span` seconds.

    Each task writes a line `NAME ATTEMPT RANK` into a file outside Lattice.
    """
    witness = at.instance.where.user_home(USER) / WITNESS
    await asyncio.to_thread(witness.unlink, missing_ok=True)
    for name, nodes in sizes.items():
        script = f'echo {name} $LATTICE_ATTEMPT $LATTICE_NODE_RANK >> "$HOME/{WITNESS}"; sleep {REAL_SECONDS}'
        await at.user.create(ALLOCATIONS, work.real(NAMESPACE, name, script, nodes=nodes), NAMESPACE)
        await at.clock.sleep(span / max(1, len(sizes)))


def _all_released(seen: Watching, count: int) -> bool:
    """Tells whether the nodes of so many allocations are free again."""
    return sum(len(step.released) for step in seen.steps) >= count


async def _ready_nodes(at: Driver) -> int:
    """Returns how many hollow nodes are Ready now; fewer than there were make the check too strict, never too lax."""
    found = await at.admin.list(NODES, type=Node)
    return sum(1 for node in found.items if node.status.hollow and node.status.state == "Ready")


def _queue(seen: Watching, jobs: Mapping[str, swf.SwfJob], compression: float) -> list[Queued]:
    """Returns the jobs that were seen, with what the scheduler orders them by: submission in whole seconds, then the name."""
    return [
        Queued(
            name, job.nodes, life.last.spec.lifecycle.preemption_class,
            (parse_time(life.last.metadata.creation_timestamp), life.last.metadata.key), life.seen,
            job.walltime(compression) + parse_duration(life.last.spec.lifecycle.grace_period), life.started,
        )
        for name, job in jobs.items()
        if (life := seen.lives.get(name)) is not None
    ]  # fmt: skip


def _history(seen: Watching, jobs: Mapping[str, swf.SwfJob]) -> list[Commit]:
    """Returns the ledger's commits with the jobs of the log that each claims and releases; the real ones are on other nodes."""
    names = {life.uid: name for name, life in seen.lives.items() if name in jobs}

    def of(keys: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        """Returns the names of the jobs among these rows."""
        return tuple(names[uid] for uid, _ in keys if uid in names)

    return [Commit(step.seq, step.at, of(step.claimed), of(step.released)) for step in seen.steps]


def _ended(life: Life) -> Ended:
    """Returns how an allocation ended, and when it was seen, started and ended."""
    last = life.last
    reason = next((condition.reason for condition in last.status.conditions if condition.type == "Finished"), "")
    nodes = last.status.node_count
    return Ended(
        last.metadata.name, nodes, life.seen, life.started or life.scheduled, life.ended, last.status.phase, reason,
        last.status.attempt, tuple(life.reasons),
    )  # fmt: skip


def _witness(instance: Instance) -> list[str]:
    """Returns the lines that the work wrote; none where it wrote nothing."""
    file = instance.where.user_home(USER) / WITNESS
    return file.read_text().splitlines() if file.exists() else []


def _print(ends: Mapping[str, Ended], names: Sequence[str], capacity: int, commits: int, found: Sequence[str], say: Say) -> None:
    """Prints the line of each allocation, a summary of the waits and the ends, and what was found wrong."""
    shown = [ends[name] for name in names if name in ends]
    for line in verdict.table(shown):
        say(line)
    waits = [end.waited for end in shown if end.waited is not None]
    say("")
    if waits:
        say(f"waits: mean {statistics.mean(waits):.2f} s, p50 {percentile(waits, 0.5):.2f} s, longest {max(waits):.2f} s")
    for line in _counts(shown):
        say(line)
    say(f"order: {commits} commits of the ledger replayed on {capacity} nodes; tolerance one commit and {GRACE_SECONDS:g} s")
    for fault in found:
        say(f"WRONG: {fault}")
    say("every one ended, none twice, nobody passed over" if not found else f"{len(found)} faults")


def _counts(shown: Sequence[Ended]) -> Iterator[str]:
    """Yields a line on ends and a line on the reasons shown, each with how often."""
    ends = Counter(f"{end.phase} ({end.reason})" for end in shown)
    yield "ends: " + ", ".join(f"{count} {end}" for end, count in ends.most_common())
    reasons = Counter(reason for end in shown for reason in end.reasons)
    yield "reasons shown: " + (", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none")
