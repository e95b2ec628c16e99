"""Measures the node plane: work in a software environment beside bare work, agent and shim at rest, API writes of a life on a real node.

Kinds that are compared take turns, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from lattice.errors import Corrupt, Rejected
from lattice.kube.resources import ALLOCATIONS, CONFIGS
from lattice_dev.bench import work
from lattice_dev.bench.auditlog import Writes, count_writes
from lattice_dev.bench.drive import NAMESPACE, USER, Driver, driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile, shown
from lattice_dev.bench.footprint import resident_mib
from lattice_dev.bench.image_server import ImageServer, serving
from lattice_dev.bench.observe import Watching
from lattice_dev.bench.processor import ProcessorTime
from lattice_dev.bench.writes import NOT_OF_A_LIFE
from lattice_dev.instance import Instance
from lattice_dev.progress import Progress
from lattice_dev.state import Options

UENV_AIM, BARE_AIM = Aim(15.0), Aim(5.0)
IDLE_CPU_AIM, IDLE_MEMORY_AIM, SHIM_MEMORY_AIM = Aim(0.3), Aim(60.0), Aim(12.0)
MORE_WRITES_AIM = Aim(2.0)
NODE = "nid001"
MARK = "bench-node-marks"
REST_SECONDS = 0.3
"""Before each start: the node of the one before has been released, and nothing else goes on."""
LIFE_SECONDS = 60.0
LABEL: Final = "bench/1:v1@bench%x86"
MOUNT: Final = "/user-environment"
Environment = dict[str, str]


async def measure(at: Driver, *, starts: int, idle_seconds: float, lives: int) -> list[Figure]:
    """Returns all figures, of so many starts and lives of each kind. Raises Rejected where no image can be made or mounted."""
    with image() as file:
        found = await at_rest(at, idle_seconds)
        async with at.watch(ledger=True) as seen:
            found += await against_bare(at, seen, file, count=starts)
            found += [await shim(at, seen)]
            found += await writes(at, seen, file, count=lives)
            await at.clear(seen)
    return found


@contextmanager
def image() -> Iterator[Path]:
    """Makes a small squashfs image, a file that everybody may read; raises Rejected without mksquashfs or without root."""
    program = shutil.which("mksquashfs")
    if program is None or os.geteuid() != 0:
        raise Rejected("images need mksquashfs (apt-get install squashfs-tools), and mounts need root", reason="NoSquashfs")
    with tempfile.TemporaryDirectory(prefix="lattice-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "tree/bin").mkdir(parents=True)
        (folder / "tree/bin/app").write_text("#!/bin/sh\n", encoding="utf-8")
        file = folder / "bench.squashfs"
        argv = [program, str(folder / "tree"), str(file), "-noappend", "-no-progress", "-all-root", "-quiet"]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        file.chmod(0o644)
        yield file


# Starts


async def against_bare(at: Driver, seen: Watching, file: Path, *, count: int) -> list[Figure]:
    """Returns by how many milliseconds work in an image of the user's starts later than bare work, `count` of each by turns."""
    bare, software, mounted = [], [], []
    environment = {"uenv": f"{file}:{MOUNT}"}
    for number in range(count):
        bare.append(await start(at, seen, f"node-bare-{number:03d}", {}))
        software.append(await start(at, seen, f"node-uenv-{number:03d}", environment))
        mounted.append(await asyncio.to_thread(_mount_by_hand, file))
    later = (percentile(software, 0.5) - percentile(bare, 0.5)) * 1000
    beside = Baseline("ms of unshare and mount", 1000 * median(mounted))
    parts = {"bare p50": 1000 * percentile(bare, 0.5), "uenv p50": 1000 * percentile(software, 0.5)}
    return [Figure("uenv starts later than bare work, p50", later, "ms", UENV_AIM, beside, f"{count} of each by turns", parts)]


async def start(at: Driver, seen: Watching, name: str, environment: Environment) -> float:
    """Returns the seconds from the POST of an allocation on the first node to its first process, after a short rest and once it has ended;
    raises Corrupt where it left no mark.
    """
    mark = at.instance.where.user_home(USER) / f"{MARK}.{name}"
    manifest = work.real(NAMESPACE, name, f'echo $EPOCHREALTIME > "$HOME/{mark.name}"', only=NODE)
    if environment:
        manifest["spec"]["environment"] = dict(environment)
    await at.clock.sleep(REST_SECONDS)
    seen.expect(name)
    began = at.clock.now()
    await at.user.create(ALLOCATIONS, manifest, NAMESPACE)
    await seen.end_of(name, within=LIFE_SECONDS)
    try:
        return float(mark.read_text()) - began
    except (OSError, ValueError) as error:
        raise Corrupt(f"{name} ended without the mark of its process: {error}", reason="MarkMissing") from error
    finally:
        mark.unlink(missing_ok=True)


def _mount_by_hand(file: Path) -> float:
    """Returns the seconds that `unshare` and `mount` take for the image, in a namespace that goes with them."""
    with tempfile.TemporaryDirectory() as target:
        began = time.monotonic()
        argv = ["unshare", "--mount", "--propagation", "slave", "mount", "-t", "squashfs", "-o", "loop,ro,nosuid,nodev", str(file), target]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        return time.monotonic() - began


# At rest


async def at_rest(at: Driver, seconds: float) -> list[Figure]:
    """Returns processor time and memory of the agent of an idle node, its runner included, over so many seconds."""
    agent = at.instance.pid(f"agent-{NODE}")
    pids = [agent, *_children(agent)]
    before = sum(ProcessorTime(pid).seconds() for pid in pids)
    await at.clock.sleep(seconds)
    percent = 100 * (sum(ProcessorTime(pid).seconds() for pid in pids) - before) / seconds
    memory = {name: resident_mib(pid) for name, pid in zip(("agent", *(f"runner {pid}" for pid in pids[1:])), pids, strict=True)}
    detail = f"over {seconds:.0f} s, with its runner"
    return [
        Figure("agent at rest, processor", percent, "% of a core", IDLE_CPU_AIM, detail=detail),
        Figure("agent at rest, memory", sum(memory.values()), "MiB", IDLE_MEMORY_AIM, detail="resident, with its runner", parts=memory),
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
    memory = resident_mib(pids[0])
    await at.user.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "measured"}}}, NAMESPACE)
    await seen.end_of(name, within=LIFE_SECONDS)
    return Figure("shim, memory", memory, "MiB", SHIM_MEMORY_AIM, detail="resident, of one task")


def _shims(uid: str) -> list[int]:
    """Returns the processes in the cgroup `shim` of an allocation's first attempt."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                text = (process / "cgroup").read_text(encoding="utf-8")
            except OSError:
                continue
            if f"alloc-{uid}-1.scope/shim" in text:
                found.append(int(process.name))
    return sorted(found)


# Writes


async def writes(at: Driver, seen: Watching, file: Path, *, count: int) -> list[Figure]:
    """Returns the API writes of a life of bare work, and how many more a life has with an own image, and with one of the registry."""
    network = at.instance.site().network
    async with _registry(at, file, network.gateway if network is not None else "127.0.0.1"):
        kinds: dict[str, Environment] = {"bare": {}, "file": {"uenv": f"{file}:{MOUNT}"}, "label": {"uenv": f"{LABEL}:{MOUNT}"}}
        await _lives(at, seen, "label-first", kinds["label"], 1)  # the image is on the node from here on
        found = {kind: await _lives(at, seen, kind, environment, count) for kind, environment in kinds.items()}
    bare = found["bare"].total / count
    figures = [
        Figure("API writes of a life, 1 real node", bare, "writes", detail=f"{count} one after the other", parts=found["bare"].each(count))
    ]
    for kind, what in (("file", "an image of the user's"), ("label", "an image of the registry")):
        more = found[kind].total / count - bare
        detail = f"{shown(found[kind].total / count)} in all"
        figures.append(
            Figure(f"API writes more with {what}", more, "writes", MORE_WRITES_AIM, detail=detail, parts=found[kind].each(count))
        )
    return figures


@asynccontextmanager
async def _registry(at: Driver, file: Path, address: str) -> AsyncIterator[ImageServer]:
    """Serves the image to operator and nodes, and names the registry in the LatticeConfig, within the block; at its end, unless by an
    error, the option is removed.
    """
    with serving(await asyncio.to_thread(file.read_bytes), address) as server:
        software = {"registry": server.url, "system": "bench"}
        await at.admin.patch(CONFIGS, "lattice", {"spec": {"software": software}})
        await at.clock.sleep(1.0)  # the operator watches the LatticeConfig
        yield server
        await at.admin.patch(CONFIGS, "lattice", {"spec": {"software": dict.fromkeys(software)}})


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
