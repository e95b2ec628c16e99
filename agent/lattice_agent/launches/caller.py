"""Tells whose process asks at the socket of launches, by what the kernel says of it; nothing that the process claims is believed."""

from __future__ import annotations

import os
import re
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import Denied
from lattice_agent.attempts import Key
from lattice_agent.host import processes
from lattice_agent.standalone.task_start import start_ticks
from lattice_agent.state.journal import parse_key

SO_PEERPIDFD = 77
"""The socket option that gives a descriptor of the very process that connected (Linux 6.5)."""
_CREDENTIALS = struct.Struct("3i")
_SCOPE = re.compile(r"/alloc-([0-9A-Za-z-]{1,80})\.scope/work/")
OUTSIDE = "srun runs inside an allocation alone; from elsewhere: lattice submit --ntasks=N --wait -- APP"


@dataclass(frozen=True)
class Caller:
    """A process of an attempt's work on this node; pid and start time (field 22 of /proc/PID/stat) identify it."""

    key: Key
    pid: int
    ticks: int
    uid: int


def identify(connection: socket.socket, root: str) -> tuple[Caller, int]:
    """Returns the process at the other end of a connection, and a pidfd of it, which the caller of this function closes.

    `root` is the path of the node's scopes below the mount of cgroup v2. Raises Denied for a process that has ended, whose pid is another
    process now, or that stands in no attempt's work below `root`.
    """
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    pidfd = _open_peer(connection, pid)
    try:
        before = start_ticks(pid)
        text, owner = _read(pid, "cgroup"), _real_uid(_read(pid, "status"))
        if start_ticks(pid) != before or has_ended(pidfd) or processes.state(pid) in ("", "Z", "X") or owner != uid:
            raise _gone()
    except OSError as error:
        os.close(pidfd)
        raise _gone() from error
    except BaseException:
        os.close(pidfd)
        raise
    key = find_attempt(text, root)
    if key is None:
        os.close(pidfd)
        raise Denied(f"this process is of no allocation on this node: {OUTSIDE}", reason="NotOfAnAllocation")
    return Caller(key, pid, before, uid), pidfd


def find_attempt(text: str, root: str) -> Key | None:
    """Returns the attempt in whose work the text of /proc/PID/cgroup puts a process, where that is below `root`; None: it is in none."""
    line = next((row for row in text.splitlines() if row.startswith("0::")), "")
    path = line[len("0::") :]
    above = root.rstrip("/")
    if not path.startswith(above + "/"):
        return None
    found = _SCOPE.match(path[len(above) :] + "/")
    return parse_key(found[1]) if found else None


def has_ended(pidfd: int) -> bool:
    """Tells whether the process of a pidfd has ended, also where nobody has reaped it yet."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _open_peer(connection: socket.socket, pid: int) -> int:
    """Returns a pidfd of the process that connected; raises Denied where it has ended.

    Where the kernel cannot tell it by the connection it is opened by its pid, which may be another's by now: start time and uid are
    compared after it.
    """
    with suppress(OSError):
        fd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        os.set_inheritable(fd, False)
        return fd
    try:
        return os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise _gone() from error


def _read(pid: int, name: str) -> str:
    """Returns the text of a file of /proc/PID; raises OSError."""
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="surrogateescape")


def _real_uid(status: str) -> int:
    """Returns the real uid in the text of /proc/PID/status; −1: there is none."""
    row = next((line.split() for line in status.splitlines() if line.startswith("Uid:")), [])
    return int(row[1]) if len(row) > 1 else -1


def _gone() -> Denied:
    """Returns the error for a process that has ended or is another now."""
    return Denied("the process that asked has ended", reason="CallerGone")
