"""From the POST of an Allocation to its first process: the process itself writes the time at which it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lattice.errors import Corrupt
from lattice.kube.resources import ALLOCATIONS
from lattice_dev.bench import work
from lattice_dev.bench.auditlog import Moment, moments
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile, shown
from lattice_dev.bench.observe import Watching

AIM_SECONDS = 0.150
STAGES = (
    (frozenset({"create allocations"}), "POST"),
    (frozenset({"update ledgers/status"}), "commit"),
    (frozenset({"update nodegroupplans", "create nodegroupplans"}), "plan"),
)
"""The writes on the way, in their order."""
FIRST_NODES = "nid[001-004]"
HELD_NODE = "nid005"
MARKS = "bench-marks"


async def measure(driver: Driver, seen: Watching, *, nodes: int, count: int, label: str) -> Figure:
    """`count` allocations of so many nodes, one after the other; milliseconds."""
    trip = percentile(await driver.round_trip(), 0.5) * 1000
    log = driver.instance.where.audit_log
    offset, spans = log.stat().st_size, []
    slug = label.replace(" ", "-")
    first, last = [], []
    for number in range(count):
        began, marks = await _one(driver, seen, f"latency-{slug}-{number:03d}", nodes)
        first.append((min(marks) - began) * 1000)
        last.append((max(marks) - began) * 1000)
        spans.append((began, min(marks)))
    await driver.clock.sleep(1.0)  # the audit log is written behind the answers
    with log.open("rb") as file:
        file.seek(offset)
        parts = stages(moments(file), spans)
    aim = Aim(AIM_SECONDS * 1000) if label.endswith("idle") else None
    detail = f"{count} one after the other; p99 {shown(percentile(first, 0.99))} ms, best {shown(min(first))} ms" + (
        f"; the last of {nodes} p50 {shown(percentile(last, 0.5))} ms" if nodes > 1 else ""
    )
    value = percentile(first, 0.5)
    return Figure(f"apply to first process, {label}, p50", value, "ms", aim, Baseline("ms for one PATCH", trip), detail, parts)


def stages(writes: Sequence[Moment], spans: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Where the time goes between a POST and its first process: the median of each stretch, in milliseconds; pure."""
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


async def _one(driver: Driver, seen: Watching, name: str, nodes: int) -> tuple[float, list[float]]:
    """When the POST began, and when each node's process ran, in seconds since the epoch."""
    home = driver.instance.where.user_home(USER)
    script = f'echo $EPOCHREALTIME > "$HOME/{MARKS}.$LATTICE_JOB_ID.$LATTICE_NODE_RANK"'
    manifest = work.real(NAMESPACE, name, script, nodes=nodes, only=FIRST_NODES)
    seen.expect(name)
    began = driver.clock.now()
    await driver.user.create(ALLOCATIONS, manifest, NAMESPACE)
    life = await seen.end_of(name, within=60)
    files = [home / f"{MARKS}.{life.last.status.number}.{rank}" for rank in range(nodes)]
    marks = [_read(file, name) for file in files]
    for file in files:
        file.unlink()
    return began, marks


def _read(file: Path, name: str) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError) as error:
        raise Corrupt(f"{name} ended without the mark of its process: {error}", reason="MarkMissing") from error


async def fill_queue(driver: Driver, seen: Watching, count: int) -> float:
    """One allocation holds the fifth node, and `count` wait for that node; the seconds that their creation took."""
    await driver.create([work.real(NAMESPACE, "latency-holder", "sleep 3600", only=HELD_NODE, walltime=3600)])
    await seen.until(lambda: seen.count_reached("started", ["latency-holder"]) == 1, within=30, what="the holder of the fifth node")
    names = [f"latency-waits-{number:04d}" for number in range(count)]
    waiting: Sequence[work.Manifest] = [work.real(NAMESPACE, name, "true", only=HELD_NODE) for name in names]
    took = await driver.create(waiting)

    def explained() -> bool:
        return all((life := seen.lives.get(name)) is not None and life.reasons for name in names)

    await seen.until(explained, within=60 + count / 20, what="a reason for each that waits")
    return took
