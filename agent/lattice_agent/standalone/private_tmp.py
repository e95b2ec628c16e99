"""Gives the tasks of an attempt a /tmp and a /dev/shm of their own, which go with their last process.

It is of standard library alone, for the shim; the agent takes `remove` and `remove_older` from it. The tasks' /tmp is a directory of root's
in the machine's /tmp, on the same disk, whose name follows from the attempt's directory and the boot: who finds the attempt finds it, and
making or removing it twice does no more than once. Their /dev/shm is a file system in memory. Both stand in a mount namespace that the
shim enters, forks its tasks in, and leaves: nothing keeps it but the tasks. Mounts of the machine reach it, and none of its own leave it.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH118, PTH120, PTH207, PTH208, S108
from __future__ import annotations

import binascii
import ctypes
import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from lattice_agent.standalone import leftovers
from lattice_agent.standalone.streams import UserIdentity

TMP, SHM = "/tmp", "/dev/shm"
PREFIX = ".lattice-tmp-"
"""Begins the names of root's directories in /tmp that are some attempt's /tmp."""
MAKE_TRIES = 1000
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_SLAVE = 2, 4, 4096, 16384, 1 << 19
_libc = ctypes.CDLL(None, use_errno=True)


def path_of(directory: str, boot: str) -> str:
    """Returns the path, below the machine's /tmp, of the directory that holds an attempt's /tmp; makes nothing.

    `directory`: the attempt's state directory; `boot`: the boot id.
    """
    attempts, name = os.path.split(directory)
    return os.path.join(TMP, f"{beginning(attempts)}{_digest(boot)}-{name}")


def beginning(attempts: str) -> str:
    """Returns the beginning of the directory names (see `path_of`) of all attempts whose state directories lie in `attempts`."""
    return f"{PREFIX}{_digest(attempts)}-"


def _digest(text: str) -> str:
    """Returns a short digest of a text, 8 hexadecimal digits (CRC-32), for names."""
    return f"{binascii.crc32(text.encode()):08x}"


@contextmanager
def entered(made: str, identity: UserIdentity, keep: Sequence[str], places: Sequence[str]) -> Iterator[None]:
    """Moves this process, which must have one thread, into a mount namespace with the /tmp in `made` and a new /dev/shm for the block.

    `keep`: patterns of entries of the machine's /tmp and /dev/shm that stay visible if they belong to the user or root; so do the
    directories `places` below them. Raises OSError where the kernel refuses a namespace or a mount.
    """
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(CLONE_NEWNS))
        try:
            _cover(make(made), identity, keep, places)
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNS))
    finally:
        os.close(home)


def make(made: str) -> str:
    """Makes the directory `made`, owned by root, with a /tmp in it, and returns that one's path; renames whatever else is at `made`.

    The name is known beforehand, so whoever wants to be in the way is: only a directory that root has made and nobody else may write to is
    taken, and once it stands nobody but root can put another in its place. Raises OSError where somebody is in the way again and again.
    """
    for _ in range(MAKE_TRIES):
        with suppress(FileExistsError):
            os.mkdir(made, 0o700)
        with suppress(FileNotFoundError):
            fd = _opened(made)
            if fd is not None:
                try:
                    return _make_inside(made, fd)
                finally:
                    os.close(fd)
            os.rename(made, os.path.join(TMP, f"{leftovers.ASIDE}{os.urandom(8).hex()}"))
    raise OSError(errno.EEXIST, "a private /tmp cannot be made: somebody puts something else there again and again", made)


def _opened(made: str) -> int | None:
    """Opens the directory of root's that holds an attempt's /tmp; returns None for anything else at its path."""
    try:
        fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
        return fd
    os.close(fd)
    return None


def _make_inside(made: str, fd: int) -> str:
    """Makes the /tmp in the open directory `fd` of root's, whose path is `made`, and returns its path."""
    with suppress(FileExistsError):
        os.mkdir("tmp", 0o700, dir_fd=fd)
    inside = os.open("tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.fchmod(inside, 0o1777)  # as /tmp is
    finally:
        os.close(inside)
    return os.path.join(made, "tmp")


def _cover(inside: str, identity: UserIdentity, keep: Sequence[str], places: Sequence[str]) -> None:
    """Mounts the directory `inside` over /tmp and a new file system over /dev/shm in this mount namespace, and shows in them what is kept.

    Raises OSError.
    """
    _mount("none", "/", "", MS_REC | MS_SLAVE)
    kept = dict(kept_entries(identity, keep, places))
    try:
        _mount(inside, TMP, "", MS_BIND)
        if os.path.isdir(SHM):  # noqa: PTH112
            _mount("tmpfs", SHM, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        for path, fd in kept.items():
            _show(path, fd)
    finally:
        for fd in kept.values():
            os.close(fd)


def kept_entries(identity: UserIdentity, keep: Sequence[str], places: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields (path, open descriptor) of each entry to keep, opened with the user's rights so that no link leads beyond them."""
    with identity.acting():
        below = [path for path in map(os.path.realpath, places) if path.startswith((f"{TMP}/", f"{SHM}/"))]
        owners = (0, identity.user if identity.user is not None else os.geteuid())
        for path in dict.fromkeys((*below, *(found for pattern in keep for found in glob.glob(pattern)))):
            with suppress(OSError):
                fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                found = os.fstat(fd)
                if stat.S_ISLNK(found.st_mode) or (path not in below and found.st_uid not in owners):
                    os.close(fd)
                else:
                    yield path, fd


def _show(path: str, fd: int) -> None:
    """Mounts an opened file or directory at its old path again, and makes the mount point where it is missing; raises OSError."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, 0o755, exist_ok=True)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    _mount(f"/proc/self/fd/{fd}", path, "", MS_BIND | MS_REC)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Calls mount(2); raises OSError where the kernel refuses."""
    _check(_libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None), target)


def _check(answer: int, path: str = "") -> None:
    """Raises OSError, with the path it was about, where a system call has failed (`answer` not 0)."""
    if answer:
        code = ctypes.get_errno()
        raise OSError(code, f"a private /tmp cannot be made: {os.strerror(code)}", path or None)


def remove(made: str) -> None:
    """Removes an attempt's /tmp, the directory `made`, with its content; leaves what another user has put there. May be repeated."""
    with suppress(OSError):
        os.rmdir(os.path.join(made, "tmp"))
    try:
        os.rmdir(made)
    except FileNotFoundError:
        return
    except OSError:
        if os.lstat(made).st_uid == os.geteuid():
            leftovers.remove_tree(made)


def remove_older(attempts: str, boot: str) -> int:
    """Removes the /tmp directories of attempts below `attempts` that boots other than `boot` have left; returns how many."""
    found = list(_older(attempts, boot))
    for path in found:
        remove(path)
    return len(found)


def _older(attempts: str, boot: str) -> Iterable[str]:
    """Yields the /tmp directories of attempts below `attempts` that are of other boots."""
    begin = beginning(attempts)
    for name in os.listdir(TMP):
        if name.startswith(begin) and not name.startswith(begin + _digest(boot)):
            yield os.path.join(TMP, name)
