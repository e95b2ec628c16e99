"""Holds a directory to a number of bytes by the project quota of its file system (ext4 or xfs, mounted with prjquota).

Everything goes through descriptors (quotactl_fd(2), Linux 5.14), so that no device and no mount point need be known.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

QUOTACTL_FD: Final = 443
"""Number of the system call, the same on every architecture."""
PROJECT: Final = 2
GET_STATE, GET_QUOTA, SET_QUOTA = 0x5805, 0x800007, 0x800008
ENFORCED: Final = 1 << 5
"""Of the flags of Q_XGETQSTAT: limits of projects hold."""
GET_ATTRIBUTES, SET_ATTRIBUTES = 0x801C581F, 0x401C5820
INHERITED: Final = 0x200
"""FS_XFLAG_PROJINHERIT: everything made in the directory is of its project."""
ATTRIBUTES: Final = struct.Struct("<IIIII8x")
"""struct fsxattr: flags, extent size, extents, project, copy-on-write extent size."""
LIMITS: Final = struct.Struct("<QQQQQQQQI4x")
"""struct if_dqblk, blocks of 1 KiB: hard and soft limit, bytes used, the same of inodes, times, and which of them are valid."""
BLOCK_LIMITS: Final = 1
FIRST_PROJECT, PROJECTS = 1 << 30, 1 << 29
"""Projects of ours have these numbers, far from those that a site gives by hand."""
_libc = ctypes.CDLL(None, use_errno=True)


def is_enforced(directory: Path) -> bool:
    """Tells whether limits of projects hold on the file system of a directory; False where the kernel or the file system has none."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        state = ctypes.create_string_buffer(512)
        _control(fd, GET_STATE, 0, state)
    except OSError:
        return False
    else:
        return bool(struct.unpack_from("<H", state, 2)[0] & ENFORCED)
    finally:
        os.close(fd)


def limit(directory: int, size: int) -> None:
    """Gives an empty directory (a descriptor) a project of its own that may hold `size` bytes, rounded up to KiB; raises OSError."""
    project = _free_project(directory)
    flags, extent, extents, _, copied = _attributes(directory)
    _set_limit(directory, project, -(-size // 1024))
    fcntl.ioctl(directory, SET_ATTRIBUTES, ATTRIBUTES.pack(flags | INHERITED, extent, extents, project, copied))


def drop_limit(directory: int) -> None:
    """Takes the limit from the project of a directory (a descriptor) that `limit` was called for; does nothing for any other."""
    project = _attributes(directory)[3]
    if FIRST_PROJECT <= project < FIRST_PROJECT + PROJECTS:
        _set_limit(directory, project, 0)


def _free_project(directory: int) -> int:
    """Returns a project that holds nothing and has no limit: the first such one from the number that the directory's inode gives.

    Raises OSError where there is none.
    """
    begin = os.fstat(directory).st_ino
    for step in range(PROJECTS):
        project = FIRST_PROJECT + (begin + step) % PROJECTS
        found = ctypes.create_string_buffer(LIMITS.size)
        try:
            _control(directory, GET_QUOTA, project, found)
        except (FileNotFoundError, ProcessLookupError):  # nothing is known of it
            return project
        hard, soft, used, *_ = LIMITS.unpack(found.raw)
        if not (hard or soft or used):
            return project
    raise OSError("every number of a project is taken")


def _attributes(fd: int) -> tuple[int, int, int, int, int]:
    """Returns the five attributes of an open file that project quotas are part of, as the kernel orders them."""
    found = ATTRIBUTES.unpack(fcntl.ioctl(fd, GET_ATTRIBUTES, bytes(ATTRIBUTES.size)))
    return found[0], found[1], found[2], found[3], found[4]


def _set_limit(fd: int, project: int, blocks: int) -> None:
    """Sets the limit of a project to so many blocks, both soft and hard, on the file system of an open file.

    Raises OSError where the kernel refuses.
    """
    wanted = ctypes.create_string_buffer(LIMITS.pack(blocks, blocks, 0, 0, 0, 0, 0, 0, BLOCK_LIMITS), LIMITS.size)
    _control(fd, SET_QUOTA, project, wanted)


def _control(fd: int, command: int, project: int, buffer: ctypes.Array[ctypes.c_char]) -> None:
    """Calls quotactl for a project on the file system of an open file. Raises OSError where the kernel refuses."""
    number = command << 8 | PROJECT
    if _libc.syscall(QUOTACTL_FD, fd, ctypes.c_uint(number), ctypes.c_uint(project), buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
