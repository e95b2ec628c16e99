"""Ends the processes of cgroups: TERM to each, KILL to all, a wait until none is left; standard library alone, for shim and keeper."""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH118, PTH120, PTH207
from __future__ import annotations

import glob
import os
import select
import signal
import time
from contextlib import suppress

from lattice_agent.standalone import meters
from lattice_agent.standalone.task_start import read_file, write_file

AGAIN_SECONDS = 0.02
LOOK_SECONDS = 1.0
"""How often a cgroup is looked at that says nothing by itself."""


def members(pattern: str) -> set[int]:
    """Returns the pids in the cgroups whose files `cgroup.procs` match the pattern, which is a path where it holds no wildcards."""
    found = set[int]()
    for path in glob.glob(pattern):
        with suppress(OSError):
            found |= set(map(int, read_file(path).split()))
    return found - {0}


def send_signal(pattern: str, number: int) -> int:
    """Sends a signal to each process of the cgroups that match (`members`), never to one that has taken over a pid; returns how many had
    it.
    """
    opened: dict[int, int] = {}
    sent = 0
    try:
        for pid in members(pattern):
            with suppress(OSError):
                opened[pid] = os.pidfd_open(pid)
        for pid in members(pattern) & opened.keys():
            with suppress(OSError):
                signal.pidfd_send_signal(opened[pid], number)
                sent += 1
    finally:
        for fd in opened.values():
            os.close(fd)
    return sent


def terminate(pattern: str) -> None:
    """Sends TERM to the processes of the cgroups that match, and CONT so that stopped ones receive it."""
    send_signal(pattern, signal.SIGTERM)
    send_signal(pattern, signal.SIGCONT)


def kill(path: str) -> None:
    """Sends KILL to all processes in a cgroup and below it, by the path of its file `cgroup.kill`; passes over a cgroup that is gone."""
    with suppress(OSError):
        write_file(path, b"1")


def end(pattern: str, path: str, grace_seconds: float, *, terminates: bool = True) -> None:
    """Ends the processes of the cgroups that match, which stand below the cgroup of the file `cgroup.kill` at `path`: TERM, and after
    the grace KILL to that whole cgroup again and again; returns once no process is left in it. `terminates` False: others send TERM.
    """
    if not meters.is_populated(path):
        return
    if terminates:
        terminate(pattern)
    await_empty(path, grace_seconds)
    while meters.is_populated(path):
        kill(path)
        await_empty(path, AGAIN_SECONDS)


def await_empty(path: str, seconds: float) -> None:
    """Waits until no process is left in the cgroup whose file `cgroup.kill` this is, or so many seconds have passed."""
    until = time.monotonic() + seconds
    with suppress(OSError):  # it is gone
        events = os.open(os.path.join(os.path.dirname(path), "cgroup.events"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while b"populated 1" in os.pread(events, 4096, 0) and (left := until - time.monotonic()) > 0:
                poll.poll(1000 * min(left, LOOK_SECONDS))
        finally:
            os.close(events)
