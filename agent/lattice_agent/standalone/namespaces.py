"""Enters the mount namespace that an attempt's `hold` keeps, and calls the kernel's functions for mounts; of standard library alone.

Whoever stands in such a namespace as root sees files that a user has chosen wherever an image is mounted. So nothing is imported there
(`entered`), no path is opened there by name but below directories that no image may cover (`mount_targets`), and tasks that are
forked there have no way to gain privileges.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH123
from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import warnings  # noqa: F401 - os.get_exec_path imports it in the task, where nothing may be imported
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNS = 0x00020000
MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 16384, 1 << 19, 2, 4
OPENAT2, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, OPEN_TREE, MOUNT_SETATTR = 437, 429, 430, 431, 432, 428, 442
"""Numbers of system calls, the same on every architecture."""
FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 0, 1, 6
CLOEXEC = 1
"""Of fsopen and fsmount."""
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
"""Attributes of a mount (`MOUNT_ATTR_*`)."""
EMPTY_PATHS = 0x04 | 0x40
"""Of move_mount: both of its descriptors are the places themselves."""
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
CLONE_NEWUSER = 0x10000000
OPEN_TREE_CLONE, AT_EMPTY_PATH, AT_RECURSIVE = 1, 0x1000, 0x8000
MOUNT_ATTRIBUTES = struct.Struct("<QQQQ")
"""struct mount_attr: what is set, what is cleared, the propagation, the descriptor of a user namespace."""
ID_MAPPED = 0x00100000
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """The layout of `struct open_how` in linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


GONE = "the process that keeps the work's software is gone"


def separate() -> None:
    """Moves this process (of one thread) into a new mount namespace: it sees later mounts of the machine, which sees none of its own."""
    _checked(_libc.unshare(CLONE_NEWNS))
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None))


@contextmanager
def entered(procs: str) -> Iterator[None]:
    """Moves this process (of one thread) for the block into the mount namespace of the only process in the cgroup file `procs`.

    Raises OSError where there is none. Nothing can be imported inside.
    """
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        theirs = _opened(procs)
        try:
            _checked(_libc.setns(theirs, CLONE_NEWNS))
        finally:
            os.close(theirs)
        try:
            with without_imports():
                yield
        finally:
            _checked(_libc.setns(home, CLONE_NEWNS))
    finally:
        os.close(home)


def _opened(procs: str) -> int:
    """Opens the mount namespace of the process that a cgroup file names, and reads the file again afterwards, since the pid may be reused.

    Raises ProcessLookupError where it names another process then, or none.
    """
    pid = _only_pid(procs)
    try:
        fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:  # it ended since the file was read
        raise ProcessLookupError(GONE) from error
    if _only_pid(procs) == pid:
        return fd
    os.close(fd)
    raise ProcessLookupError(f"the process that keeps the work's software is another one than a moment ago: {procs}")


def _only_pid(procs: str) -> int:
    """Returns the pid of the only process that a cgroup file names; raises ProcessLookupError where there is not exactly one."""
    with open(procs, encoding="utf-8") as file:
        pids = file.read().split()
    if len(pids) != 1:
        raise ProcessLookupError(GONE)
    return int(pids[0])


@contextmanager
def without_imports() -> Iterator[None]:
    """Forbids imports during the block in this process and its forks, since an image may be mounted over the code's own directory."""
    kept = sys.meta_path[:], sys.path[:], sys.path_hooks[:], dict(sys.path_importer_cache)
    forbid_imports()
    try:
        yield
    finally:
        sys.meta_path[:], sys.path[:], sys.path_hooks[:] = kept[:3]
        sys.path_importer_cache.update(kept[3])


def forbid_imports() -> None:
    """Makes every import of a module that is not loaded yet fail in this process from now on."""
    for names in (sys.meta_path, sys.path, sys.path_hooks):
        names.clear()
    sys.path_importer_cache.clear()


def open_at(directory: int, path: str, flags: int, resolve: int) -> int:
    """Opens a path by openat2(2) and returns its descriptor; `directory` is a descriptor, or -100 for the working directory.

    `resolve`: flags RESOLVE_* that restrict the way to it. Raises OSError.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    call = _libc.syscall(OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    return _checked(call, path)


def mounted(kind: str, source: str) -> int:
    """Mounts a device (`source`) of file system `kind` read-only, without setuid programs and device files, and without a mount point.

    Returns the mount's descriptor, for `attach`. Raises OSError, with what the file system said where it did.
    """
    made = _checked(_libc.syscall(FSOPEN, kind.encode(), CLOEXEC))
    try:
        _checked(_libc.syscall(FSCONFIG, made, FSCONFIG_SET_STRING, b"source", source.encode(), 0))
        _checked(_libc.syscall(FSCONFIG, made, FSCONFIG_SET_FLAG, b"ro", None, 0))
        if _libc.syscall(FSCONFIG, made, FSCONFIG_CMD_CREATE, None, None, 0):
            code = ctypes.get_errno()
            raise OSError(code, _said(made) or os.strerror(code))
        return _checked(_libc.syscall(FSMOUNT, made, CLOEXEC, READ_ONLY | NO_SUID | NO_DEVICES))
    finally:
        os.close(made)


def attach(mount: int, target: int) -> None:
    """Moves a mount without a mount point (`mounted`) to a directory; both are descriptors. Raises OSError."""
    _checked(_libc.syscall(MOVE_MOUNT, mount, b"", target, b"", EMPTY_PATHS))


def mount(kind: str, target: str, flags: int, data: str) -> None:
    """Mounts a file system of this kind, which has no device, at a path; `data` are its options. Raises OSError."""
    done = _libc.mount(kind.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(data))
    _checked(done, target)


def cloned(place: int) -> int:
    """Returns a mount, attached nowhere, of what an open descriptor shows, with all that is mounted below it. Raises OSError."""
    flags = OPEN_TREE_CLONE | AT_EMPTY_PATH | AT_RECURSIVE | os.O_CLOEXEC
    return _checked(_libc.syscall(OPEN_TREE, place, b"", flags))


def show_as(mount: int, user: int, group: int) -> bool:
    """Lets root's files in a mount that is attached nowhere appear as those of a user; returns False where the kernel cannot."""
    try:
        names = _user_namespace(user, group)
    except OSError:
        return False
    try:
        wanted = MOUNT_ATTRIBUTES.pack(ID_MAPPED, 0, 0, names)
        return bool(_libc.syscall(MOUNT_SETATTR, mount, b"", AT_EMPTY_PATH, wanted, len(wanted)) == 0)
    finally:
        os.close(names)


def _user_namespace(user: int, group: int) -> int:
    """Returns the descriptor of a user namespace in which root is this user and group; a process that made it ends before."""
    made_r, made_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(made_w, b"1" if _libc.unshare(CLONE_NEWUSER) == 0 else b"0")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(made_w)
        if os.read(made_r, 1) != b"1":
            raise OSError("the kernel makes no user namespace")
        for name, number in (("uid_map", user), ("gid_map", group)):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {number} 1\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(made_r)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _said(made: int) -> str:
    """Returns the file system's last message about a mount, without its mark of severity; empty: it gave none."""
    last = b""
    try:
        while line := os.read(made, 1024):
            last = line
    except OSError:
        pass  # no message is left
    text = last[2:].decode(errors="replace").strip()
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def _checked(answer: int, path: str = "") -> int:
    """Returns the answer of a system call; raises OSError, with the path it was about, where that is negative."""
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path or None)
    return answer
