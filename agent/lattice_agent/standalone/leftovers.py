"""Removes files that an attempt leaves in shared directories, once its user runs nothing else on the machine.

It uses the standard library alone, for the shim. SysV and POSIX message queues, semaphores and segments need no removal: each attempt has
an IPC namespace of its own, which ends with its last process.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH102, PTH104, PTH118, PTH208
from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

VAR_TMP = "/var/tmp"  # noqa: S108
DIRECTORIES = ("/dev/shm", "/tmp", VAR_TMP)  # noqa: S108 - where others leave files
LOCK = "/run/lattice-leftovers.lock"
"""A file of root's: every start of work shares its lock, a removal holds it alone."""
LOCK_SECONDS = 10.0
ASIDE = ".lattice-removed-"
"""The beginning of the names of root's directories in which files are removed out of everybody's way."""
NOBODY = 65534
"""The owner of files that belong to no user of this machine, such as a file server's; none of them is removed."""
AT_FDCWD, AT_SYMLINK_NOFOLLOW, STATX_BTIME = -100, 0x100, 0x800
CLONE_NEWIPC = 0x08000000
CLOCK_GRAIN = 0.05
"""How much coarser the times of files are than clocks, in seconds."""

_libc = ctypes.CDLL(None, use_errno=True)


def separate_ipc() -> None:
    """Moves this process and its future children into a new IPC namespace; does nothing where it lacks the right."""
    _libc.unshare(CLONE_NEWIPC)


@contextmanager
def locked(how: int) -> Iterator[bool]:
    """Holds the machine-wide lock for the block, for a start (LOCK_SH) or a removal (LOCK_EX); yields False where it got none in 10 s.

    A start holds it from its first file until its processes run as the user. It cannot be taken while a start hangs, or without the
    right.
    """
    try:
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _lock(fd, how)
    finally:
        os.close(fd)


def _lock(fd: int, how: int) -> bool:
    """Tries for 10 s to take a lock (LOCK_SH or LOCK_EX) on an open file; returns whether it has it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with suppress(OSError):
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def remove(user: int | None, since: float, keep: Collection[str] = (), directories: Collection[str] = ()) -> int:
    """Removes the entries that a user has made since `since` (seconds since the epoch) in /tmp, /var/tmp and /dev/shm; returns how many.

    Removes nothing of root's, and nothing while a process of the user runs or starts on this machine, since it may be another attempt's; an
    entry at a path of `keep` stays. `directories`: the directories to search; empty: all of `DIRECTORIES`.
    """
    if user is None or user in (0, NOBODY):
        return 0
    with locked(fcntl.LOCK_EX) as alone:
        left = {directory: _made(directory, user, since, keep) for directory in directories or DIRECTORIES} if alone else {}
        if not any(left.values()) or _runs_something(user):
            return 0
        moved = sum(_put_aside(directory, names) for directory, names in left.items() if names)
    for directory in left:
        _empty(directory)
    return moved


def _made(directory: str, user: int, since: float, keep: Collection[str]) -> list[str]:
    """Returns the names of the entries of a directory that the user owns and that were made since `since`, without those of `keep`."""
    found = list[str]()
    with suppress(OSError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            with suppress(OSError):
                if path not in keep and os.lstat(path).st_uid == user and _born(path) >= since - CLOCK_GRAIN:
                    found.append(name)
    return found


def _put_aside(directory: str, names: list[str]) -> int:
    """Renames entries into a new directory of root in the same directory, quick however much they contain; returns how many.

    Where that directory cannot be made, removes the entries at once.
    """
    aside, moved = os.path.join(directory, f"{ASIDE}{os.urandom(8).hex()}"), 0
    try:
        os.mkdir(aside, 0o700)
    except OSError:
        for name in names:
            remove_tree(os.path.join(directory, name))
        return len(names)
    for number, name in enumerate(names):
        with suppress(OSError):
            os.rename(os.path.join(directory, name), os.path.join(aside, str(number)))
            moved += 1
    return moved


def _empty(directory: str) -> None:
    """Removes the directories that `_put_aside` made here, in this process or in an earlier one that was killed."""
    with suppress(OSError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if name.startswith(ASIDE) and (found := os.lstat(path)).st_uid == 0 and stat.S_ISDIR(found.st_mode):
                remove_tree(path)


def remove_tree(path: str) -> None:
    """Removes a file or a directory tree of any depth, without entering other file systems mounted in it; what resists is left."""
    os.spawnv(os.P_WAIT, "/bin/rm", ["rm", "-rf", "--one-file-system", "--", path])  # noqa: S606


def _born(path: str) -> float:
    """Returns the birth time of a file (statx(2); of a link itself), seconds since the epoch; 0 where it is not recorded or cannot be read.

    A missing file gives 0, too: nothing is raised.
    """
    found = ctypes.create_string_buffer(256)
    if _libc.statx(AT_FDCWD, os.fsencode(path), AT_SYMLINK_NOFOLLOW, STATX_BTIME, found) != 0:
        return 0.0
    if not struct.unpack_from("<I", found, 0)[0] & STATX_BTIME:
        return 0.0
    seconds, nanoseconds = struct.unpack_from("<qI", found, 80)
    return float(seconds + nanoseconds / 1e9)


def _runs_something(user: int) -> bool:
    """Tells whether any process on the machine has the user's real uid; True, too, where that of one that is there cannot be read."""
    wanted = str(user).encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fd = os.open(f"/proc/{entry}/status", os.O_RDONLY)
                try:
                    said = os.read(fd, 4096)
                finally:
                    os.close(fd)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended, or is another user's, which /proc hides
            except OSError:
                return True
            if said.partition(b"\nUid:")[2].split(None, 1)[:1] == [wanted] and b"\nState:\tZ" not in said:
                return True
    return False
