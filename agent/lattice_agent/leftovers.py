"""What an attempt leaves outside its processes: files in the directories for everybody, removed when the user runs nothing else here.

Of standard library alone, for the shim. SysV and POSIX message queues, semaphores and segments need no removal: each attempt has
an IPC namespace of its own, which goes with its last process.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH208
from __future__ import annotations

import ctypes
import os
import shutil
import stat
import struct
from contextlib import suppress

DIRECTORIES = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - where others leave files
NOBODY = 65534
"""Who owns what no user here owns, such as files of a file server: nothing of his is removed."""
AT_SYMLINK_NOFOLLOW, STATX_BTIME = 0x100, 0x800
CLONE_NEWIPC = 0x08000000
CLOCK_GRAIN = 0.05
"""Times of files are so much coarser than clocks."""

_libc = ctypes.CDLL(None, use_errno=True)


def separate_ipc() -> None:
    """Gives this process and its children an IPC namespace of their own; without the right nothing changes."""
    _libc.unshare(CLONE_NEWIPC)


def remove(user: int | None, since: float) -> int:
    """Removes what the user has made in the directories for everybody since then, unless a process of his runs; how many entries."""
    if user is None or user in (0, NOBODY):
        return 0
    removed, checked = 0, False
    for directory in DIRECTORIES:
        with suppress(OSError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                names = _made(fd, user, since)
                if names and not checked and _runs_something(user):
                    return 0
                checked = checked or bool(names)
                removed += sum(_remove_entry(fd, name) for name in names)
            finally:
                os.close(fd)
    return removed


def _made(fd: int, user: int, since: float) -> list[str]:
    """What the user has made in a directory since then."""
    found = []
    for name in os.listdir(fd):
        with suppress(OSError):
            owner = os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid
            if owner == user and _born(fd, name) >= since - CLOCK_GRAIN:
                found.append(name)
    return found


def _remove_entry(fd: int, name: str) -> bool:
    with suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)
        return True
    return False


def _born(fd: int, name: str) -> float:
    """When it was made, by statx(2); 0 where the file system does not know: then it stays."""
    found = ctypes.create_string_buffer(256)
    if _libc.statx(fd, name.encode(errors="surrogateescape"), AT_SYMLINK_NOFOLLOW, STATX_BTIME, found) != 0:
        return 0.0
    if not struct.unpack_from("<I", found, 0)[0] & STATX_BTIME:
        return 0.0
    seconds, nanoseconds = struct.unpack_from("<qI", found, 80)
    return float(seconds + nanoseconds / 1e9)


def _runs_something(user: int) -> bool:
    """Whether any process of the machine is the user's, by its real uid."""
    wanted = str(user).encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError):
                fd = os.open(f"/proc/{entry}/status", os.O_RDONLY)
                try:
                    said = os.read(fd, 4096)
                finally:
                    os.close(fd)
                if said.partition(b"\nUid:")[2].split(None, 1)[0] == wanted and b"\nState:\tZ" not in said:
                    return True
    return False
