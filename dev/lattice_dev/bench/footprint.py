"""Measures the memory of each program, and the wall time of commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import Corrupt, NotFound
from lattice_dev.bench import work
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile
from lattice_dev.instance import Instance

STATUS_AIMS = {1_000: Aim(150), 10_000: Aim(300)}
"""Aims for `lattice status`, by the number of allocations that it shows."""
HELP_AIM = Aim(80)
REPEATED = 15
MEBIBYTE = 1024
PAGE, ENTRY = os.sysconf("SC_PAGE_SIZE"), 8
"""Bytes of a page, and of its entry in a pagemap."""
PRESENT, FRAME, LAST_PAGE = 63, (1 << 55) - 1, 1 << 51
"""Of an entry: the bit of a page that is in memory, and the number of its frame; user space ends before that page."""
MEMORY_AIM, LARGE_MEMORY_AIM = Aim(300), Aim(400)
"""Aims for the memory of all control processes, on up to and beyond a thousand nodes."""
NOT_COUNTED = frozenset({"etcd", "kube-apiserver", "hollow"})
"""Components that are no control process of Lattice's; agents are none either."""


async def memory(driver: Driver, *, allocations: int, nodes: int) -> list[Figure]:
    """Returns the resident memory of every component with all hollow nodes busy and the other allocations waiting; the work stays."""
    names = [f"memory-{number:05d}" for number in range(allocations)]
    running = min(nodes, allocations)
    async with driver.watch() as seen:
        await driver.create([work.hollow(NAMESPACE, name, seconds=None, walltime=3600) for name in names])

        def settled() -> bool:
            """Tells whether all allocations run or wait as planned."""
            waiting = sum(1 for life in seen.lives.values() if life.reasons or life.started)
            return seen.count_reached("started", names) >= running and waiting == allocations

        await seen.until(settled, within=120 + allocations / 10, what=f"{running} running, the rest explained")
        detail = f"{running} running, {allocations - running} waiting"
        held = {one.name: _held(driver.instance.pid(one.name)) for one in driver.instance.components()}
        return memory_figures(held, detail, MEMORY_AIM if nodes <= 1_000 else LARGE_MEMORY_AIM)


@dataclass(frozen=True)
class Held:
    """The memory of a process in MiB: resident, and its share of it, of which pages that several processes map are divided among them."""

    resident: float
    share: float


def memory_figures(held: Mapping[str, Held], detail: str, aim: Aim = MEMORY_AIM) -> list[Figure]:
    """Returns the memory of each component, and of all control processes together without etcd and API server."""
    found = [_figure(f"memory of {name}", one, detail=detail) for name, one in held.items()]
    control = [one for name, one in held.items() if name not in NOT_COUNTED and not name.startswith("agent-")]
    together = Held(sum(one.resident for one in control), sum(one.share for one in control))
    return [*found, _figure("memory of control processes, without etcd and API server", together, aim, detail)]


def _figure(name: str, held: Held, aim: Aim | None = None, detail: str = "") -> Figure:
    """Returns the figure of what is held, with its aim, if it has one."""
    return Figure(name, held.resident, "MiB", aim, detail=detail, parts={"MiB with shared pages divided (PSS)": held.share})


def _held(pid: int) -> Held:
    """Returns the memory of a process; raises NotFound when it has ended."""
    return Held(resident_mib(pid), share_mib(pid))


def resident_mib(pid: int) -> float:
    """Returns the resident memory (VmRSS) of a process in MiB; it raises NotFound when the process is gone, and Corrupt when it has no
    memory of its own, as a zombie or a kernel thread.
    """
    return _mebibytes(pid, "status", "VmRSS:")


def share_mib(pid: int) -> float:
    """Returns the memory of a process in MiB, of whose pages those that several processes map are divided among them (PSS); raises NotFound
    when it is gone.
    """
    return _mebibytes(pid, "smaps_rollup", "Pss:")


def together_mib(pids: Sequence[int]) -> float:
    """Returns the memory that processes map together in MiB, each page counted once however many of them map it; needs root.

    Raises NotFound when one of them has gone.
    """
    pages: set[int] = set()
    for pid in pids:
        try:
            pages |= _pages(pid)
        except OSError as error:
            raise NotFound(f"process {pid} has gone: {error}", reason="NotRunning") from error
    return len(pages) * PAGE / MEBIBYTE / MEBIBYTE


def _pages(pid: int) -> set[int]:
    """Returns the numbers of the page frames that a process maps (proc/PID/pagemap); raises OSError."""
    found: set[int] = set()
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(address, 16) // PAGE for address in line.split()[0].split("-"))
            if begin >= LAST_PAGE:  # the kernel's own
                continue
            pagemap.seek(begin * ENTRY)
            entries = array("Q", pagemap.read((end - begin) * ENTRY))
            found.update(entry & FRAME for entry in entries if entry >> PRESENT)
    found.discard(0)
    return found


def _mebibytes(pid: int, file: str, line: str) -> float:
    """Returns a line of a file of /proc in MiB; raises NotFound when the process has ended, Corrupt where the file has no such line."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError as error:
        raise NotFound(f"process {pid} has gone: {error}", reason="NotRunning") from error
    for found in lines:
        if found.startswith(line):
            return int(found.split()[1]) / MEBIBYTE
    raise Corrupt(f"process {pid} says no {line}", reason="NoMemory")


def commands(instance: Instance, allocations: int) -> list[Figure]:
    """Returns the median wall time of `lattice status` and `lattice --help`, beside the like of kubectl and Python itself."""
    lattice = str(Path(sys.executable).with_name("lattice"))
    environ = {**os.environ, "KUBECONFIG": str(instance.kubeconfig(USER)), "NO_COLOR": "1"}
    kubectl = [instance.site().programs.path("kubectl"), "get", "allocations", "-n", NAMESPACE]
    python = _wall([sys.executable, "-c", "pass"], environ)
    listed = _wall([lattice, "status"], environ)
    helped = _wall([lattice, "--help"], environ)
    got = _wall(kubectl, environ)
    detail = f"{REPEATED} runs, p50"
    return [
        Figure(
            f"lattice status, {allocations} allocations",
            listed,
            "ms",
            STATUS_AIMS.get(allocations),
            Baseline("ms kubectl get", got),
            detail,
        ),
        Figure("lattice --help", helped, "ms", HELP_AIM, Baseline("ms python -c pass", python), detail),
    ]


def _wall(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    """Returns the median milliseconds of 15 runs of a command; raises Corrupt when one of them fails.

    A run before them is not counted: it writes the bytecode that an installed program has.
    """
    took: list[float] = []
    cold = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(argv, env=cold, capture_output=True, check=False, timeout=60)
    for _ in range(REPEATED):
        began = time.monotonic()
        done = subprocess.run(argv, env=dict(environ), capture_output=True, check=False, timeout=60)
        took.append((time.monotonic() - began) * 1000)
        if done.returncode:
            message = f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
            raise Corrupt(message, reason="CommandFailed")
    return percentile(took, 0.5)
