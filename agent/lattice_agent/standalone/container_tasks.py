"""Starts the tasks of an attempt in its container: `exec` of the stub by the OCI runtime, which waits until it stands in its cgroups.

It is of standard library alone, for the shim, whose children the tasks become: the runtime's own process ends before they begin.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH108, PTH118, PTH119, PTH123
from __future__ import annotations

import fcntl
import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from lattice_agent.standalone import forks
from lattice_agent.standalone.records import Record

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any, NoReturn

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GATE = 3
"""The descriptor at which the stub waits."""
HIGH = 16
"""Descriptors of the caller are copied beyond this one before the low ones are given out."""
EXEC_SECONDS = 60.0


class Container(Record):
    """The container of an attempt, and how its tasks are started in it."""

    runtime: str
    state: str
    """The runtime's own directory (`--root`)."""
    identifier: str
    bundle: str
    stub: str
    """The stub's path in the container."""
    workdir: str
    procs: str
    """The file by which the runtime joins the container's cgroup in the v2 tree."""
    process: dict[str, Any]
    """The process of the runtime specification without arguments and variables."""
    label: str = ""
    """Begins the names of the files about a start, so that several callers do not write the same ones."""
    filter: str = ""
    """The path in the container of the filter of system calls that the stub sets; empty: the runtime does."""
    options: Sequence[str] = ()
    """What the stub sets before it becomes a task (stub.c)."""


class Call(Record):
    """One task to be started: its arguments and variables, and its descriptors; -1: there is none, standard input is /dev/null."""

    argv: Sequence[str]
    environment: dict[str, str]
    out: int
    err: int
    into: int = -1
    extra: int = -1
    """A further descriptor, which the task finds behind that of the gate."""
    cpus: tuple[int, ...] = ()
    """The processors it runs on; empty: all of the container."""


def start(container: Container, calls: Sequence[Call], joined: Sequence[str], set_limits: Callable[[], None]) -> tuple[list[int], int]:
    """Starts the tasks, all of them once each stands in the cgroups whose files `joined` names; returns their pids, and the gate.

    `set_limits` is called in the process that becomes the runtime, whose resource limits a task inherits. The gate, a descriptor, must
    stay open while they run: they end with it. Raises OSError where the runtime or the kernel refuses.
    """
    pids, gate = begin(container, calls, joined, set_limits)
    open_gate(gate, len(pids))
    return pids, gate


def open_gate(gate: int, tasks: int) -> None:
    """Lets so many tasks through the gate; those that were killed before it are no error: their ends tell."""
    with suppress(BrokenPipeError):
        os.write(gate, b"1" * tasks)


def begin(
    container: Container, calls: Sequence[Call], joined: Sequence[str], set_limits: Callable[[], None]
) -> tuple[list[int], int]:  # fmt: skip
    """Starts the tasks as `start` does, but has them wait at the gate: one byte for each lets them through."""
    opened, gate = os.pipe()
    try:
        pids = [pid for batch in _batches(len(calls)) for pid in _exec(container, calls, batch, opened, set_limits)]
        for pid, call in zip(pids, calls, strict=True):
            _join(pid, joined)
            if call.cpus:
                os.sched_setaffinity(pid, call.cpus)
        for number in range(len(calls)) if container.label else ():
            for kind in ("log", "pid"):
                with suppress(OSError):
                    os.unlink(_file(container, number, kind))
    except BaseException:
        os.close(gate)  # whoever waits at it ends
        raise
    finally:
        os.close(opened)
    return pids, gate


def _batches(count: int) -> Iterator[range]:
    """Cuts the numbers of the tasks into parts that are started beside each other."""
    at_once = max(1, len(os.sched_getaffinity(0)))
    return (range(first, min(first + at_once, count)) for first in range(0, count, at_once))


def _exec(container: Container, calls: Sequence[Call], numbers: range, gate: int, set_limits: Callable[[], None]) -> list[int]:
    """Has the runtime start the tasks of these numbers, all at the same time, and returns their pids once all are in the container; kills
    the runtime's other calls where one fails.
    """
    begun = {number: _begin(container, calls[number], number, gate, set_limits) for number in numbers}
    try:
        for number in numbers:
            _await(container, number, begun[number])
            del begun[number]
    finally:
        for pid in begun.values():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return [_pid_of(container, number) for number in numbers]


def _begin(container: Container, call: Call, number: int, gate: int, set_limits: Callable[[], None]) -> int:
    """Forks the runtime for one task, in the container's cgroup; the variables, Secrets among them, go through memory alone."""
    filter_ = (f"filter={container.filter}",) if container.filter else ()
    document = container.process | {
        "args": [container.stub, *filter_, *container.options, container.workdir, *call.argv],
        "env": [f"{name}={value}" for name, value in call.environment.items()],
    }
    told = os.memfd_create("process")
    try:
        with os.fdopen(os.dup(told), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(document, file)
        pid, _ = forks.fork_into(container.procs)
        if pid == 0:
            with suppress(BaseException):
                set_limits()
                _become_runtime(container, call, number, gate, told)
            os._exit(127)
        return pid
    finally:
        os.close(told)


def _become_runtime(container: Container, call: Call, number: int, gate: int, told: int) -> NoReturn:
    """Turns a fresh fork into the runtime's `exec` of one task, with the task's output, errors and gate as its descriptors; `told`: the
    descriptor from which the runtime reads the process.
    """
    into = call.into if call.into >= 0 else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    ends = (into, call.out, call.err, gate, *((call.extra,) if call.extra >= 0 else ()))
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in ends]
    for place, fd in enumerate(high):
        os.dup2(fd, place)
    told = fcntl.fcntl(told, fcntl.F_DUPFD, HIGH)
    log, pid_file = _file(container, number, "log"), _file(container, number, "pid")
    argv = [container.runtime, "--root", container.state, "--log", log, "--log-format", "json", "exec", "--detach"]
    argv += ["--pid-file", pid_file, "--preserve-fds", str(len(ends) - 3), "--process", f"/proc/self/fd/{told}", container.identifier]
    os.execve(container.runtime, argv, {"PATH": PATH})  # noqa: S606 - the runtime of the administrator's choice


def _file(container: Container, number: int, kind: str) -> str:
    """Returns the path of a file of this kind about one task's `exec`."""
    return os.path.join(container.bundle, f"exec-{container.label}{number}.{kind}")


def _await(container: Container, number: int, pid: int) -> None:
    """Waits until the runtime's process for a task has ended; raises OSError, with what the runtime says, where it failed or hangs."""
    code, program = await_end(pid, EXEC_SECONDS), f"{os.path.basename(container.runtime)} exec"
    if code is None:
        raise OSError(f"the container does not answer for {EXEC_SECONDS:g} s: {program} hangs")
    if code:
        raise OSError(f"{program} has ended with {code}: {last_message(_file(container, number, 'log'))}")


def await_end(pid: int, seconds: float) -> int | None:
    """Waits until a child has ended, so long at most, and reaps it; returns its exit code, below 0 that of a signal; None: it goes on."""
    watched = os.pidfd_open(pid)
    try:
        until = select.poll()
        until.register(watched, select.POLLIN)
        until.poll(1000 * seconds)
    finally:
        os.close(watched)
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def last_message(log: str) -> str:
    """Returns the last message of a runtime's log, as far as it can be printed."""
    said = "it says nothing"
    with suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError, AttributeError):
                said = str(json.loads(line).get("msg") or said)
    return "".join(letter if letter.isprintable() else " " for letter in said)[:500]


def _pid_of(container: Container, number: int) -> int:
    """Returns the pid of a task by the file that the runtime wrote. Raises OSError or ValueError where it has none."""
    with open(_file(container, number, "pid"), encoding="ascii") as file:
        return int(file.read())


def _join(pid: int, joined: Sequence[str]) -> None:
    """Moves a waiting task, which has one thread, into its cgroups, and gives it the score of work for want of memory."""
    for path in joined:
        _write(path, str(pid))
    with suppress(OSError):
        _write(f"/proc/{pid}/oom_score_adj", "0")


def _write(path: str, text: str) -> None:
    """Writes a text into an existing file with one write."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
