"""Measures the node plane: agent and shim at rest, API writes of a life on a real node, and bare work beside another checkout's.

`software` has work in images beside bare work.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lattice.errors import Corrupt, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.units import is_digits
from lattice_dev.bench import image_files, software, work
from lattice_dev.bench.auditlog import WRITES, Writes, count_writes
from lattice_dev.bench.drive import NAMESPACE, Driver, driver
from lattice_dev.bench.figures import Aim, Figure, percentile, shown
from lattice_dev.bench.footprint import resident_mib, share_mib, together_mib
from lattice_dev.bench.observe import Watching
from lattice_dev.bench.processor import ProcessorTime
from lattice_dev.bench.software import LIFE_SECONDS, NODE, Environment, Software, start
from lattice_dev.bench.writes import NOT_OF_A_LIFE
from lattice_dev.instance import Instance
from lattice_dev.progress import Progress
from lattice_dev.state import Options

BARE_AIM = Aim(5.0)
IDLE_CPU_AIM, IDLE_MEMORY_AIM, SHIM_MEMORY_AIM = Aim(0.3), Aim(60.0), Aim(12.0)
MORE_WRITES_AIM = Aim(2.0)
RECORDS = "usagerecords"
AGENTS_WRITES_AIM = Aim(2.0)
"""A start and an end: what nodes do to be prepared and cleaned is not written."""


async def measure(at: Driver, *, starts: int, idle_seconds: float, lives: int, pulls: int, pull_bytes: int) -> list[Figure]:
    """Returns all figures, of so many starts, lives and pulls of each kind. Raises Rejected where no image can be made, mounted or run."""
    with image_files.folder() as place:
        made = await asyncio.to_thread(software.made, place, pull_bytes)
        found = await at_rest(at, idle_seconds)
        async with at.watch(ledger=True) as seen, software.registry(at, made, pulls) as server:
            found += await software.starts(at, seen, made, count=starts)
            found += [await shim(at, seen)]
            found += await writes(at, seen, made, count=lives)
            found += [await software.pulls(at, seen, made, server, count=pulls)]
            await at.clear(seen)
    return found


# At rest


async def at_rest(at: Driver, seconds: float) -> list[Figure]:
    """Returns processor time and memory of the agent of an idle node, its runner included, over so many seconds."""
    agent = at.instance.pid(f"agent-{NODE}")
    pids = [agent, *_children(agent)]
    before = sum(ProcessorTime(pid).seconds() for pid in pids)
    await at.clock.sleep(seconds)
    percent = 100 * (sum(ProcessorTime(pid).seconds() for pid in pids) - before) / seconds
    names = ("agent", *(f"runner {pid}" for pid in pids[1:]))
    memory = {f"{name} resident": resident_mib(pid) for name, pid in zip(names, pids, strict=True)}
    memory["share of both (PSS)"] = sum(share_mib(pid) for pid in pids)
    detail, once = f"over {seconds:.0f} s, with its runner", "with its runner, each page that either maps counted once"
    return [
        Figure("agent at rest, processor", percent, "% of a core", IDLE_CPU_AIM, detail=detail),
        Figure("agent at rest, memory", together_mib(pids), "MiB", IDLE_MEMORY_AIM, detail=once, parts=memory),
    ]


def _children(pid: int) -> list[int]:
    """Returns the pids of a process's children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


async def shim(at: Driver, seen: Watching) -> Figure:
    """Returns the memory of the shim of work that runs, which is started on the first node and cancelled for it; raises Corrupt where none
    is found.
    """
    name = "node-shim"
    seen.expect(name)
    await at.user.create(ALLOCATIONS, work.real(NAMESPACE, name, "sleep 600", only=NODE), NAMESPACE)
    await seen.until(lambda: seen.count_reached("started", [name]) == 1, within=LIFE_SECONDS, what="work whose shim is measured")
    pids = await asyncio.to_thread(_shims, seen.lives[name].uid)
    if not pids:
        raise Corrupt(f"no shim of {name} is found in a cgroup", reason="NoShim")
    memory, share = resident_mib(pids[0]), share_mib(pids[0])
    await at.user.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "measured"}}}, NAMESPACE)
    await seen.end_of(name, within=LIFE_SECONDS)
    return Figure("shim, memory", memory, "MiB", SHIM_MEMORY_AIM, detail="resident, of one task", parts={"share (PSS)": share})


def _shims(uid: str) -> list[int]:
    """Returns the processes in the cgroup `shim` of an allocation's first attempt."""
    found = []
    for process in Path("/proc").iterdir():
        if is_digits(process.name):
            try:
                text = (process / "cgroup").read_text(encoding="utf-8")
            except OSError:
                continue
            if f"alloc-{uid}-1.scope/shim" in text:
                found.append(int(process.name))
    return sorted(found)


# Writes


async def writes(at: Driver, seen: Watching, made: Software, *, count: int) -> list[Figure]:
    """Returns the API writes of a life of bare work, those of its agents, and how many more a life has with software of each kind, which is
    on the node already.
    """
    kinds = made.kinds()
    for kind in ("label", "image"):
        await _lives(at, seen, f"{kind}-first", kinds[kind], 1)
    found = {kind: await _lives(at, seen, kind, environment, count) for kind, environment in kinds.items()}
    bare = found["bare"].total / count
    figures = [
        Figure("API writes of a life, 1 real node", bare, "writes", detail=f"{count} one after the other", parts=found["bare"].each(count)),
        Figure("API writes of agents in a life of bare work", _by_agents(found["bare"]) / count, "writes", AGENTS_WRITES_AIM),
    ]
    for kind, what in (("file", "a uenv of the user's"), ("label", "a uenv of the registry"), ("image", "an OCI image")):
        more = (_without_records(found[kind]) - _without_records(found["bare"])) / count
        detail = f"{shown(found[kind].total / count)} in all; usage records, which are written by time, are no part of the difference"
        figures.append(
            Figure(f"API writes more with {what}", more, "writes", MORE_WRITES_AIM, detail=detail, parts=found[kind].each(count))
        )
    return figures


def _without_records(found: Writes) -> int:
    """Returns how many writes took effect, without those of usage records: one has the hours of many lives, however these ended."""
    return sum(times for what, times in found.counted.items() if what.split()[1].partition("/")[0] != RECORDS)


def _by_agents(found: Writes) -> int:
    """Returns how many writes agents have asked for, refused ones too, without heartbeats and Events."""
    count, other = 0, NOT_OF_A_LIFE | {"leases", "events"}
    for asked, times in found.requests.items():
        who, verb, what = asked.split()
        if who == "agents" and verb in WRITES and what.partition("/")[0] not in other:
            count += times
    return count


async def _lives(at: Driver, seen: Watching, kind: str, environment: Environment, count: int) -> Writes:
    """Returns the writes of so many lives, one after the other, from the audit log."""
    log = at.instance.where.audit_log
    offset = log.stat().st_size
    for number in range(count):
        await start(at, seen, f"node-writes-{kind}-{number:03d}", environment)
    released = f"the release of {kind}"
    await seen.until(lambda: not _held(seen), within=LIFE_SECONDS, what=released)
    await at.clock.sleep(1.0)  # the plans follow the last release
    with log.open("rb") as file:
        file.seek(offset)
        return count_writes(file, leave_out=NOT_OF_A_LIFE)


def _held(seen: Watching) -> int:
    """Returns how many rows were added to the ledger and are not removed yet."""
    return sum(len(step.claimed) - len(step.released) for step in seen.steps)


# Beside another checkout


def beside(checkout: Path, *, name: str, count: int, progress: Progress) -> list[Figure]:
    """Returns by how many milliseconds bare work starts later than with another checkout, by turns on an instance of each; both are made
    for it and removed.

    Raises Rejected where the checkout cannot be run.
    """
    ours, theirs = Instance(f"{name}-ours", Options(nodes=1), progress=progress), Instance(f"{name}-theirs")
    try:
        ours.up()
        _of_checkout(checkout, "up", "--name", theirs.where.name, "--nodes", "1")
        return asyncio.run(_by_turns(ours, theirs, count))
    finally:
        ours.down()
        _of_checkout(checkout, "down", "--name", theirs.where.name)


def _of_checkout(checkout: Path, *words: str) -> None:
    """Runs `lattice-dev` of a checkout with its own interpreter; raises Rejected where it has none, or the program fails."""
    python = checkout / ".venv/bin/python"
    if not python.exists():
        raise Rejected(f"{checkout} has no .venv: make it with `make -C {checkout} VENV=.venv install`", reason="NoCheckout")
    done = subprocess.run([str(python), "-m", "lattice_dev", *words], cwd=checkout, stdout=sys.stderr, check=False, timeout=600)
    if done.returncode:
        raise Rejected(f"`lattice-dev {' '.join(words)}` of {checkout} ended with {done.returncode}", reason="NoCheckout")


async def _by_turns(ours: Instance, theirs: Instance, count: int) -> list[Figure]:
    """Returns the figure of how much later bare work starts on our instance than on the other one, by turns."""
    async with driver(ours) as here, driver(theirs) as there, here.watch() as seen, there.watch() as theirs_seen:
        mine: list[float] = []
        others: list[float] = []
        for number in range(count):
            turns = ((here, seen, mine), (there, theirs_seen, others))
            for at, watching, took in turns if number % 2 else reversed(turns):
                took.append(await start(at, watching, f"node-turn-{number:03d}", {}))
    return [_later(mine, others, count)]


def _later(mine: Sequence[float], others: Sequence[float], count: int) -> Figure:
    """Returns the figure of how much later ours start than the others, both in seconds, by their medians."""
    own, other = 1000 * percentile(mine, 0.5), 1000 * percentile(others, 0.5)
    parts = {"ours p50": own, "baseline p50": other}
    return Figure(
        "bare work starts later than with the baseline, p50", own - other, "ms", BARE_AIM, detail=f"{count} by turns", parts=parts
    )
