"""Tells which ranks of a launch are stopped on their way to their programs, and what then to do; of standard library alone, for the keeper.

A rank runs as the user before it executes its program, so any process of that user may stop it, as kill(-1, SIGSTOP) does to all of them.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH115, PTH208
from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

ADVICE = "have it stop only processes that it has started, then start the launch again"
STOPPED = frozenset({"T", "t"})
"""States of a process in /proc/PID/stat that has stopped: by a signal, and for who traces it."""
NAMED = 8
"""How many ranks a sentence names."""


def stopped_sentence(pids: Mapping[int, int], pipe: int, node: str, seconds: float) -> str:
    """Returns the sentence on ranks that are stopped, and so did not reach their start on a node within so many seconds; empty: none is.

    `pids` are by rank; `pipe` is a descriptor of a pipe that a rank has open until it is that far.
    """
    inode = os.fstat(pipe).st_ino
    found = [rank for rank, pid in sorted(pids.items()) if is_stopped(pid) and has_pipe(pid, inode)]
    if not found:
        return ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    who = f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(map(str, found[:NAMED]))}{more}"
    are, their = ("is", "its") if len(found) == 1 else ("are", "their")
    return (
        f"{who} on node {node or os.uname().nodename} {are} stopped (state T in /proc/PID/stat) and did not reach {their} start within "
        f"{seconds:g} s: a process of the same user has stopped {'it' if len(found) == 1 else 'them'}, as kill(-1, SIGSTOP) does; {ADVICE}"
    )


def silence(pid: int, node: str, seconds: float) -> str:
    """Returns why a process of the user's, the PMIx host on this node, has not answered for so many seconds, as far as that can be seen."""
    if is_stopped(pid):
        who = f"its host on node {node or os.uname().nodename}"
        return f"{who} is stopped (state T in /proc/PID/stat) for {seconds:g} s, as kill(-1, SIGSTOP) of the same user does; {ADVICE}"
    return f"it does not answer for {seconds:g} s"


def is_stopped(pid: int) -> bool:
    """Tells whether a process is stopped."""
    with suppress(OSError, IndexError):
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 4096).rpartition(b")")[2].split()[0].decode() in STOPPED
        finally:
            os.close(fd)
    return False


def has_pipe(pid: int, inode: int) -> bool:
    """Tells whether a process has a pipe open; True where nobody may look, or it is too late to."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == f"pipe:[{inode}]":
                    return True
    except OSError:
        return True
    return False
