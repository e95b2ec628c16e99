"""Forks a process that begins in a cgroup, so that it need not be moved there.

Moving a process waits until all processors were idle once, 10 to 20 ms where nothing was moved just before; a fork into the cgroup (clone3
with CLONE_INTO_CGROUP, Linux 5.7) waits for nothing. It uses the standard library alone, for runner and shim.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH120
from __future__ import annotations

import ctypes
import errno
import os
import signal

CLONE3 = 435
"""The number of the system call, the same on every architecture."""
CLONE_INTO_CGROUP = 1 << 33
FULL = frozenset({errno.EAGAIN, errno.ENOMEM})
"""The errors of a cgroup at its limits; by others the kernel says that it has no such call, or that the cgroup is gone."""
_libc = ctypes.PyDLL(None, use_errno=True)


class _CloneArguments(ctypes.Structure):
    """The layout of `struct clone_args` in linux/sched.h."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid", "set_tid_size", "cgroup"
        )
    )  # fmt: skip


class CgroupFull(OSError):
    """Raised where a cgroup may have no more processes or memory, for which its work is to blame and not the node."""


def fork_into(procs: str) -> tuple[int, bool]:
    """Forks this process, which must have one thread; returns the child's pid (0 in the child), and whether the child is in the cgroup.

    `procs` is the path of the cgroup's `cgroup.procs`; empty, or where the kernel cannot, the child stays in its parent's cgroup. Raises
    CgroupFull where the cgroup may have no more processes, or no more memory: who is moved there later is not refused.
    """
    if procs:
        try:
            return _clone_into(os.path.dirname(procs)), True
        except OSError as error:
            if error.errno in FULL:
                raise refusal(error) from error
    return os.fork(), False


def refusal(error: OSError) -> OSError:
    """Returns the error of a process that the kernel does not make in a cgroup: CgroupFull where that is at its limits."""
    if error.errno not in FULL:
        return error
    return CgroupFull(error.errno, f"{os.strerror(error.errno)}: the allocation has no process or memory left: start fewer")


def _clone_into(directory: str) -> int:
    """Forks this process into the cgroup of a directory; returns the child's pid, 0 in the child.

    Raises OSError where the kernel refuses.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        arguments = _CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=fd)
        pid: int = _libc.syscall(CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
        if pid < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return pid
    finally:
        os.close(fd)
