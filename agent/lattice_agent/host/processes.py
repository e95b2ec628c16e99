"""Checks processes by pidfd and start time, and sends signals that cannot reach another process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from lattice_agent.standalone.task_start import start_ticks

AT_ONCE = 256


def open_live(pid: int, ticks: int) -> int | None:
    """Returns a pidfd, which the caller closes, of the process with this pid and start time (`ticks`: field 22 of /proc/PID/stat).

    None: it has ended or is a zombie, or the pid is another process now.
    """
    if pid <= 0:
        return None
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if state(pid) in ("", "Z", "X") or _ticks(pid) != ticks:
        os.close(fd)
        return None
    return fd


def is_live(pid: int, ticks: int) -> bool:
    """Tells whether the process with this pid and start time (`ticks`: field 22 of /proc/PID/stat) lives; a zombie does not."""
    fd = open_live(pid, ticks)
    if fd is None:
        return False
    os.close(fd)
    return True


def state(pid: int) -> str:
    """Returns the state letter of /proc/PID/stat; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def describe(pid: int) -> str:
    """Returns a text that names a process for people: pid, program and state, as `12 (sleep, state S)`."""
    try:
        program = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        program = "?"
    return f"{pid} ({program}, state {state(pid) or 'gone'})"


def send_all(pids: Callable[[], Iterable[int]], number: signal.Signals) -> int:
    """Sends a signal to every process that `pids` returns and, called again, still returns: a reused pid is never hit.

    Returns how many processes were reached.
    """
    return sum(_send_some(some, pids, number) for some in _batches(list(pids())))


def _batches(pids: list[int]) -> list[list[int]]:
    """Cuts the list into parts of 256, since a fork bomb has more processes than this one may open descriptors."""
    return [pids[at : at + AT_ONCE] for at in range(0, len(pids), AT_ONCE)]


def _send_some(some: Iterable[int], pids: Callable[[], Iterable[int]], number: signal.Signals) -> int:
    """Sends a signal to those of these pids that, once opened, `pids` still returns; returns how many were reached."""
    opened: dict[int, int] = {}
    try:
        for pid in some:
            with suppress(OSError):
                opened[pid] = os.pidfd_open(pid)
        sent = 0
        for pid in set(pids()) & opened.keys():
            with suppress(OSError):
                signal.pidfd_send_signal(opened[pid], number)
                sent += 1
        return sent
    finally:
        for fd in opened.values():
            os.close(fd)


def _ticks(pid: int) -> int:
    """Returns the start time of a process (field 22 of /proc/PID/stat); −1 where there is no such process."""
    try:
        return start_ticks(pid)
    except (OSError, IndexError):
        return -1
