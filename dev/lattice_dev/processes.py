"""Handles processes by pid and start time, never by pid alone: starts them, finds them after a crash, signals them without a race."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lattice import errors
from lattice.units import is_digits
from lattice_dev.waiting import Clock

MARK = "LATTICE_DEV_MARK"
COMPONENT = "LATTICE_DEV_COMPONENT"
MARKS_SECONDS: Final = 1.0


@dataclass(frozen=True)
class ProcessId:
    """One process, identified for ever: `start` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    pid: int
    start: int


@dataclass(frozen=True)
class Marked:
    """A process that carries the mark of an instance in its environment."""

    id: ProcessId
    component: str
    argv: tuple[str, ...]


def identify(pid: int) -> ProcessId | None:
    """Returns the process that has this pid now, a zombie too while other threads of it end; None when there is none, or only a zombie
    whose threads have all ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    over = fields[0] in "ZX" and int(fields[17]) <= 1  # while other threads end, its sockets and locks are still held
    return None if over else ProcessId(pid, int(fields[19]))


def alive(process: ProcessId) -> bool:
    """Tells whether exactly this process lives, and not another one that got its pid."""
    return identify(process.pid) == process


def send(process: ProcessId, number: int) -> bool:
    """Sends the signal `number` to exactly this process; returns False, and sends nothing, when the process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def marked(mark: str) -> list[Marked]:
    """Returns every process that was started with this mark in its environment, whoever its parent is now, without the caller.

    Processes whose environment the caller may not read are left out.
    """
    return [read[1] for read in map(_read_mark, _pids()) if read and read[0] == mark]


def _pids() -> Iterator[int]:
    """Yields the pids of all processes but this one."""
    own = os.getpid()
    return (int(entry.name) for entry in Path("/proc").iterdir() if is_digits(entry.name) and int(entry.name) != own)


def _read_mark(pid: int) -> tuple[str, Marked] | None:
    """Returns a process's mark, with its pid, component and command; None where it has none, is gone, or is another user's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return None  # gone meanwhile, or another user's
    marks = (entry.decode(errors="replace").partition("=") for entry in environment if entry.startswith(b"LATTICE_DEV_"))
    values = {name: value for name, _, value in marks}
    found = identify(pid)
    if found is None or MARK not in values:
        return None
    return values[MARK], Marked(found, values.get(COMPONENT, ""), tuple(argv))


def _has_environment(pid: int) -> bool:
    """Tells whether the environment of a process can be read and holds a variable."""
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return False


def in_network_namespace(inode: int) -> list[ProcessId]:
    """Returns every process whose network namespace has this inode number, without the caller."""
    return [found for pid in _pids() if _network_inode(pid) == inode and (found := identify(pid))]


def _network_inode(pid: int) -> int:
    """Returns the inode of a process's network namespace; 0 where it is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return 0  # gone meanwhile, or another user's


class Launcher:
    """Starts processes that outlive the caller, and reaps those that end meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._children: list[int] = []

    def start(self, argv: Sequence[str], *, log: Path, directory: Path, environment: Mapping[str, str]) -> ProcessId:
        """Starts `argv` in a session of its own with both streams appended to `log`, and returns the process; reaps children that ended.

        `environment` is its whole environment. Raises Rejected when it cannot be run. It outlives this object.
        """
        self.reap()
        with log.open("ab") as output:
            try:
                child = subprocess.Popen(
                    argv,
                    cwd=directory,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise errors.Rejected(f"{argv[0]} cannot be started: {error}", reason="ProgramMissing") from error
        child.returncode = 0  # it outlives this object on purpose: subprocess shall neither wait for it nor complain
        self._children.append(child.pid)
        found = identify(child.pid) or ProcessId(child.pid, 0)
        self._await_marks(found)
        return found

    def _await_marks(self, process: ProcessId) -> None:
        """Waits until the environment of a process that is being executed can be read, so that `marked` finds it; 1 s at most.

        The kernel says that a program is executed a moment before it has laid down its environment.
        """
        deadline = self._clock.monotonic() + MARKS_SECONDS
        while not _has_environment(process.pid) and alive(process) and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)

    def reap(self) -> None:
        """Collects those children of this launcher that ended, so that none stays a zombie."""
        self._children = [pid for pid in self._children if not _collected(pid)]

    def stop(self, processes: Sequence[ProcessId], grace_seconds: float) -> None:
        """Sends TERM and CONT to all, so that suspended ones end too, and KILL to those left after the grace period; returns when all have
        ended.

        Raises Retry if one does not end within 10 s of KILL. Those that have ended already are no error.
        """
        for process in processes:
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)
        if not self._gone(processes, grace_seconds):
            self.kill(processes)

    def kill(self, processes: Sequence[ProcessId]) -> None:
        """Sends KILL to all; returns when all have ended, raises Retry if one does not within 10 s."""
        for process in processes:
            send(process, signal.SIGKILL)
        if not self._gone(processes, 10.0):
            left = ", ".join(str(p.pid) for p in processes if alive(p))
            raise errors.Retry(f"processes {left} are still there 10 s after SIGKILL", reason="NotKilled")

    def _gone(self, processes: Sequence[ProcessId], seconds: float) -> bool:
        """Waits until all processes have ended, and returns whether they have within so many seconds."""
        deadline = self._clock.monotonic() + seconds
        while any(alive(process) for process in processes):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(0.01)
        self.reap()
        return True


def _collected(pid: int) -> bool:
    """Tells whether a child has ended and was waited for, or is none of ours."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


SPARING: Final = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Has the C library give freed memory back, of which each thread else keeps some for itself; the chart says the same to daemons."""
COLLECTED_SOONER: Final = {"kube-controller-manager": {"GOGC": "20"}}
"""Programs in Go that are small and have time: less garbage for a little more work."""


def environment_for(base: Mapping[str, str], mark: str, component: str) -> dict[str, str]:
    """Returns the environment of a component: those variables of `base` that programs need, a sparing use of memory, and its marks.

    `mark` and `component` are what the process is found by again.
    """
    kept = {name: base[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "TMPDIR", "TZ", "VIRTUAL_ENV") if name in base}
    return {**kept, **SPARING, **COLLECTED_SOONER.get(component, {}), "PYTHONUNBUFFERED": "1", MARK: mark, COMPONENT: component}


def kill_scope(root: Path, clock: Clock) -> None:
    """Kills everything in the cgroup subtree at `root` and removes it (of v1 it kills nothing, and removes the directories alone); does
    nothing where there is none.

    Raises Retry when processes are left after 10 s, OSError for a v1 directory that still has some.
    """
    if not root.is_dir():
        return
    if (root / "cgroup.kill").exists():
        (root / "cgroup.kill").write_text("1")
    deadline = clock.monotonic() + 10
    while (root / "cgroup.events").exists() and "populated 1" in (root / "cgroup.events").read_text():
        if clock.monotonic() >= deadline:
            raise errors.Retry(f"{root} still holds processes 10 s after cgroup.kill", reason="NotKilled")
        clock.sleep(0.01)
    for directory in sorted((p for p in root.rglob("*") if p.is_dir()), key=lambda p: len(p.parts), reverse=True):
        directory.rmdir()
    root.rmdir()
