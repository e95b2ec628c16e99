"""Measures the time from the POST of an Allocation to its first process, which itself writes the time at which it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lattice.errors import Corrupt
from lattice.kube.resources import ALLOCATIONS
from lattice_dev.bench import starts, work
from lattice_dev.bench.auditlog import Moment, moments
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile, shown
from lattice_dev.bench.observe import Watching
from lattice_dev.bench.starts import TracedStart

AIMS_MILLISECONDS = {1: 120.0, 4: 150.0}
"""Aims for the median by number of nodes, idle and with a queue that waits."""
AIM_P99_MILLISECONDS = 250.0
"""Aim for p99 on one node."""
STAGES = (
    (frozenset({"create allocations"}), "POST"),
    (frozenset({"update ledgers/status"}), "commit"),
    (frozenset({"update nodegroupplans", "create nodegroupplans"}), "plan"),
)
"""The writes on the way of a start, in their order, with the name of each stage."""
FIRST_NODES = "nid[001-004]"
HELD_NODE = "nid005"
MARKS = "bench-marks"
REST_SECONDS = 0.3
"""Before each start: the node of the one before has been released, in Ledger, plan and statuses, and nothing else goes on."""


async def measure(driver: Driver, seen: Watching, *, nodes: int, count: int, label: str) -> list[Figure]:
    """Returns median and p99, in milliseconds, of `count` allocations of so many nodes, made one after the other."""
    trip = percentile(await driver.round_trip(), 0.5) * 1000
    offset, slug = driver.instance.where.audit_log.stat().st_size, label.replace(" ", "-")
    first, last, spans = [], [], []
    for number in range(count):
        start, marks = await _one(driver, seen, f"latency-{slug}-{number:03d}", nodes)
        first.append((start.first - start.began) * 1000)
        last.append((max(marks) - start.began) * 1000)
        spans.append((start.began, start.first))
    parts = stages(await _writes(driver, offset), spans)
    aim = Aim(AIMS_MILLISECONDS[nodes]) if nodes in AIMS_MILLISECONDS else None
    detail = f"{count} one after the other; best {shown(min(first))} ms" + (
        f"; the last of {nodes} p50 {shown(percentile(last, 0.5))} ms" if nodes > 1 else ""
    )
    what, baseline = f"apply to first process, {label}", Baseline("ms for one PATCH", trip)
    middle = Figure(f"{what}, p50", percentile(first, 0.5), "ms", aim, baseline, detail, parts)
    return [middle, Figure(f"{what}, p99", percentile(first, 0.99), "ms", Aim(AIM_P99_MILLISECONDS) if nodes == 1 else None, baseline)]


def stages(writes: Sequence[Moment], spans: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Returns the median milliseconds of each stretch between a POST and its first process, by the stage, or by `A to B`; of a start whose
    writes are not all found, the stretches before the first that is missing.
    """
    stretches: dict[str, list[float]] = {}
    for began, first in spans:
        at, named = began, ""
        for what, stage in STAGES:
            write = next(
                (write for write in writes if write.what in what and began <= write.answered and write.received >= at - 0.001), None
            )
            if write is None or write.answered > first:
                break
            if named:
                stretches.setdefault(f"{named} to {stage}", []).append((write.received - at) * 1000)
            stretches.setdefault(stage, []).append((write.answered - max(began, write.received)) * 1000)
            at, named = write.answered, stage
        else:
            stretches.setdefault(f"{named} to process", []).append((first - at) * 1000)
    return {name: percentile(values, 0.5) for name, values in stretches.items()}


async def trace(driver: Driver, seen: Watching, *, nodes: int, count: int, label: str) -> list[str]:
    """Returns the steps of `count` starts on so many nodes, made one after the other: a table, and the middle start as a timeline.

    Raises Corrupt where the machine's clock was set meanwhile.
    """
    offset, slug = driver.instance.where.audit_log.stat().st_size, label.replace(" ", "-")
    made = [(await _one(driver, seen, f"traced-{slug}-{number:03d}", nodes))[0] for number in range(count)]
    writes = await _writes(driver, offset)
    steps = [step for file in driver.instance.log_files() for step in starts.read_steps(file.open(encoding="utf-8"))]
    if starts.clock_was_set(steps):
        raise Corrupt("the machine's clock was set while starts were traced: trace them again", reason="ClockSet")
    ends = {start: starts.ends(start, steps) for start in made}
    middle = sorted(made, key=lambda start: ends[start]["exec"])[count // 2]
    return [f"{count} starts, {label}", *starts.table(list(ends.values())), *starts.timeline(middle, ends[middle], writes)]


async def _writes(driver: Driver, offset: int) -> list[Moment]:
    """Returns the writes that took effect, in the order of their answers, from this byte of the API server's audit log on; refused ones are
    left out.

    Waits a second first, since the log is written behind the answers.
    """
    await driver.clock.sleep(1.0)  # the audit log is written behind the answers
    with driver.instance.where.audit_log.open("rb") as file:
        file.seek(offset)
        return moments(file)


async def _one(driver: Driver, seen: Watching, name: str, nodes: int) -> tuple[TracedStart, list[float]]:
    """Starts one allocation after a rest, and returns it once it has ended, with the second since the epoch at which each node's process
    ran.

    Raises Corrupt where a process left no time.
    """
    home = driver.instance.where.user_home(USER)
    script = f'echo $EPOCHREALTIME > "$HOME/{MARKS}.$LATTICE_JOB_ID.$LATTICE_NODE_RANK"'
    manifest = work.real(NAMESPACE, name, script, nodes=nodes, only=FIRST_NODES)
    await driver.clock.sleep(REST_SECONDS)
    seen.expect(name)
    began = driver.clock.now()
    await driver.user.create(ALLOCATIONS, manifest, NAMESPACE)
    life = await seen.end_of(name, within=60)
    files = [home / f"{MARKS}.{life.last.status.number}.{rank}" for rank in range(nodes)]
    marks = [_read(file, name) for file in files]
    for file in files:
        file.unlink()
    return TracedStart(life.uid, f"{NAMESPACE}/{name}", began, min(marks)), marks


def _read(file: Path, name: str) -> float:
    """Returns the time that a process wrote into its file. Raises Corrupt where there is none."""
    try:
        return float(file.read_text())
    except (OSError, ValueError) as error:
        raise Corrupt(f"{name} ended without the mark of its process: {error}", reason="MarkMissing") from error


async def fill_queue(driver: Driver, seen: Watching, count: int) -> float:
    """Creates one allocation that holds the fifth node, and `count` that wait for that node, and waits until each has a reason; returns the
    seconds of the creation of the latter.
    """
    await driver.create([work.real(NAMESPACE, "latency-holder", "sleep 3600", only=HELD_NODE, walltime=3600)])
    await seen.until(lambda: seen.count_reached("started", ["latency-holder"]) == 1, within=30, what="the holder of the fifth node")
    names = [f"latency-waits-{number:04d}" for number in range(count)]
    waiting: Sequence[work.Manifest] = [work.real(NAMESPACE, name, "true", only=HELD_NODE) for name in names]
    took = await driver.create(waiting)

    def explained() -> bool:
        """Tells whether each allocation has been given a reason for waiting."""
        return all((life := seen.lives.get(name)) is not None and life.reasons for name in names)

    await seen.until(explained, within=60 + count / 20, what="a reason for each that waits")
    return took
