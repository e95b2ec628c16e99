"""One node's agent without an API server, which strikes where it is told: state machine, effects, host, steps and journal are the real ones.

python -m tests.faults.step_agent PLACE

`PLACE/setup` names the work and the faults. A fault is struck at a moment of the agent's own life (`mounts begun after`), so that it comes
at the same place in every run; with a delay, in the middle of what follows. What was struck stands in `PLACE/struck`, the end of the work,
as a reporter would write it, in `PLACE/results`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lattice.daemon.clock import SystemClock
from lattice.errors import LatticeError
from lattice.ledger.plans import RUN, PlanRow
from lattice.views.cluster import ConfigSpec
from lattice.views.work import Work as Allocation
from lattice_agent.attempts import Key, Seen
from lattice_agent.cluster.work_source import FetchedWork
from lattice_agent.host.containers import ContainerTools
from lattice_agent.host.hooks import HookDirectories
from lattice_agent.host.linux import LinuxHost, open_host
from lattice_agent.host.prologue import Prologue
from lattice_agent.host.scratch import REMOVED
from lattice_agent.host.threads import Threads
from lattice_agent.lifecycle.events import Directed, Event, Exited, PlanRead, Started, Tick
from lattice_agent.lifecycle.instructions import Forget, Start
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.members import Direction
from lattice_agent.node.effects import Effects
from lattice_agent.reporter.head import AttemptView, Over
from lattice_agent.standalone import shim
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from lattice_agent.state.journal import Journal
from lattice_agent.state.step_journal import StepJournal

MENDED_SECONDS = 1.0
"""After so long a disk that was struck serves again."""
TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Fault:
    """What is struck, at which moment, and how long after it."""

    moment: str
    target: str
    delay: float = 0.0


@dataclass(frozen=True)
class Setup:
    """The work of the one attempt, the site's options, and the faults, one after the other."""

    node: str
    uid: str
    allocation: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def key(self) -> Key:
        """The only attempt."""
        return Key(self.uid, 1)


class Saboteur:
    """Strikes each fault of a setup once, in whichever agent its moment comes."""

    def __init__(self, place: Path, setup: Setup, host: LinuxHost) -> None:
        self._place, self._setup, self._host = place, setup, host
        self._struck = place / "struck"
        self._lock = threading.Lock()
        done = len(self._struck.read_text().splitlines()) if self._struck.exists() else 0
        self._left = deque(setup.faults[done:])

    def reached(self, moment: str) -> None:
        """Strikes, now or in a moment, if the next fault waits for this one."""
        with self._lock:
            if not self._left or self._left[0].moment != moment:
                return
            fault = self._left.popleft()
        if fault.delay:
            timer = threading.Timer(fault.delay, self._strike, (fault.target,))
            timer.daemon = True
            timer.start()
        else:
            self._strike(fault.target)

    def _strike(self, target: str) -> None:
        pids = self._pids(target)
        with self._struck.open("a") as file:
            file.write(f"{target} {len(pids)}\n")
            file.flush()
            os.fsync(file.fileno())
        how, _, disk = target.partition(" ")
        if how in ("full", "read-only"):
            self._break_disk(how, self._place / (disk or "state"))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pids(self, target: str) -> list[int]:
        """The processes of a target as they are now; of a reboot everything that this agent has begun, itself last."""
        key, scopes = self._setup.key, self._host.scopes
        match target:
            case "agent":
                return [os.getpid()]
            case "reboot":
                return [*shim.descendants(os.getpid()), os.getpid()]
            case "runner":
                return [pid for pid in (self._host.runner_client.pid,) if pid]
            case "shim":
                return [pid for pid in (scopes.shim_pid(key),) if pid]
            case "hold" | "container":
                procs = scopes.hold_procs(key) if target == "hold" else scopes.container_procs(key)
                with suppress(OSError):
                    return [int(pid) for pid in Path(procs).read_text().split()]
            case "puller":
                return [pid for pid in shim.descendants(os.getpid()) if b"lattice_agent.puller" in _command(pid)]
        return []

    def _break_disk(self, how: str, directory: Path) -> None:
        """The directory is full, or read-only, as this agent and all it starts see it; a second later it serves again."""
        disk = str(directory)
        if how == "full":
            filler = directory / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            timer = threading.Timer(MENDED_SECONDS, filler.unlink)
        else:
            subprocess.run(["mount", "--bind", disk, disk], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
            argv = ["mount", "-o", "remount,bind,rw", disk]
            timer = threading.Timer(MENDED_SECONDS, subprocess.run, (argv,))
        timer.daemon = True
        timer.start()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class StruckNotes(StepJournal):
    """Notes on the steps, before and after each of which a fault may come."""

    def __init__(self, journal: Journal, saboteur: Saboteur) -> None:
        super().__init__(journal)
        self._saboteur = saboteur

    def note(self, key: Key, step: str, state: str, *, durable: bool, variables: Mapping[str, str] | None = None, at: float = 0.0) -> None:
        self._saboteur.reached(f"{step} {state} before")
        super().note(key, step, state, durable=durable, variables=variables, at=at)
        self._saboteur.reached(f"{step} {state} after")


class StepAgent:
    """Brings the one attempt to its end, and forgets it once the end is told."""

    def __init__(self, place: Path, setup: Setup, host: LinuxHost) -> None:
        self._place, self._setup, self._host, self._clock = place, setup, host, SystemClock()
        self._saboteur = Saboteur(place, setup, host)
        self._allocation = msgspec.convert(setup.allocation, Allocation)
        config = msgspec.convert(setup.config, ConfigSpec)
        self._row = PlanRow(
            RUN, "", setup.uid, 1, 1, 41, setup.node, f"{setup.node}:1", "physics", "job", setup.node, (setup.node,), None
        )  # fmt: skip
        self._view, self._told = AttemptView(setup.key), Direction()
        self._view.follow_row(self._row)
        self._effects = Effects(
            setup.node, host=host, config=lambda: config, works=self, row_of=lambda _: self._row, awaits=lambda _: True, post=self.post,
            on_read=lambda _, found: self._view.describe(on_head_only=found.work.spec.on_head_only, walltime_seconds=None),
        )  # fmt: skip
        self._machine = Lifecycle(setup.node, seen=host.seen(), known=())
        self._events: deque[Event] = deque()
        self._draining = False
        self._wake: dict[Key, asyncio.Event] = {}
        self._busy: set[Key] = set()
        self._group = asyncio.TaskGroup()
        self._workers: list[asyncio.Task[None]] = []
        launcher = host.launcher
        notes, disk = StruckNotes(host.journal, self._saboteur), Threads("the disk of the notes", count=2, within=60.0)
        launcher.prologue = Prologue(launcher.prologue.steps, notes, disk, self._clock)

    async def find_work(self, node: str, row: PlanRow, *, stale: str = "", variables: bool = False) -> FetchedWork:
        """The Allocation, as a gateway would give it."""
        return FetchedWork(self._allocation, {}, {})

    async def run(self) -> None:
        """Works from the start of the agent until nothing of the attempt is left to do."""
        if self._host.seen().seq == 0:
            await self._host.remember(Seen(1))
        known = await self._host.attempts()
        self._machine = Lifecycle(self._setup.node, seen=self._host.seen(), known=known)
        self._host.on_exit(lambda key, record: self.post(Exited(key, record)))
        async with self._group as group:
            ticking = group.create_task(self._tick())
            self._read_plan()
            await self._over()
            ticking.cancel()
            for worker in self._workers:
                worker.cancel()

    async def _over(self) -> None:
        deletes = self._result.exists()  # an agent that begins after the end is there to delete what its predecessor could not
        while (  # noqa: ASYNC110 - files tell nobody
            not self._result.exists() or self._machine.attempts or self._busy or (deletes and self._put_aside())
        ):
            await asyncio.sleep(0.005)

    def _put_aside(self) -> list[Path]:
        """Scratch space that is to be deleted."""
        return [*(self._place / "scratch").glob(f"*/{REMOVED}/*")]

    @property
    def _result(self) -> Path:
        return self._place / "results"

    def _read_plan(self) -> None:
        over = self._result.exists()
        self.post(PlanRead(3 if over else 2, () if over else (self._row,)))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.post(Tick())

    def post(self, event: Event) -> None:
        """Runs the machine, as `Agent.post` does."""
        self._events.append(event)
        if self._draining:
            return
        self._draining = True
        while self._events:
            self._handle(self._events.popleft())
        self._draining = False

    def _handle(self, event: Event) -> None:
        if isinstance(event, Started):
            self._saboteur.reached("started")
        if isinstance(event, Exited):
            self._saboteur.reached("exited")
        for instruction in self._machine.handle(event, self._clock.monotonic()):
            if isinstance(instruction, Start):
                self._saboteur.reached("start")
            if isinstance(instruction, Forget):
                self._saboteur.reached("forget")
            self._carry_out(self._effects.put(instruction))
        self._machine.validate()
        self._report()

    def _carry_out(self, key: Key) -> None:
        self._busy.add(key)
        if key not in self._wake:
            self._wake[key] = asyncio.Event()
            self._workers.append(self._group.create_task(self._work(key)))
        self._wake[key].set()

    async def _work(self, key: Key) -> None:
        while True:
            await self._wake[key].wait()
            self._wake[key].clear()
            while (delay := await self._effects.carry_out(key)) is not None:  # noqa: ASYNC110 - it is repeated, not awaited
                await asyncio.sleep(delay)
            if not self._wake[key].is_set():
                self._busy.discard(key)

    def _report(self) -> None:
        """Does what the attempt's reporter does, here on the same node: directs it, and tells its end once."""
        member = self._machine.member(self._setup.key)
        if member is None or self._result.exists():
            return
        self._view.hear(member)
        if (direction := self._view.direction()) != self._told:
            self._told = direction
            self._events.append(Directed(self._setup.key, direction))
        verdict = self._view.verdict()
        if isinstance(verdict, Over):
            self._saboteur.reached("told before")
            _write_whole(self._result, {"reason": verdict.reason, "message": verdict.message, "code": _code(verdict)})
            self._saboteur.reached("told after")
            self._events.append(PlanRead(3, ()))


def _code(over: Over) -> int | None:
    if not over.exit_known:
        return None
    return over.failure.task.code if over.failure is not None else 0


def _write_whole(path: Path, said: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        file.write(json.dumps(said))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def directory_of(place: Path, name: str) -> Path | None:
    """A directory of the place, where there is one."""
    return place / name if (place / name).is_dir() else None


async def main(place: Path) -> None:
    """Lives until the attempt is forgotten, or a fault ends it."""
    setup = msgspec.json.decode((place / "setup").read_bytes(), type=Setup)
    hooks = HookDirectories(directory_of(place, "prologue.d"), directory_of(place, "epilogue.d"))
    cache = ImageCache(place / "cache", CacheLimits(free=0))
    while True:
        try:
            async with open_host(
                place / "state", place / "memory", node=setup.node, clock=SystemClock(), hooks=hooks, cache=cache,
                scratch_dir=directory_of(place, "scratch"), tools=ContainerTools(stub=Path(os.environ.get("LATTICE_STUB", ""))),
            ) as host:  # fmt: skip
                await StepAgent(place, setup, host).run()
                return
        except LatticeError as error:  # as systemd starts an agent again
            print(f"the agent ends: {error.message}", file=sys.stderr)
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
