"""Mounts an attempt's scratch space in memory where its tasks alone see it; of standard library alone, for the shim."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lattice_agent.standalone.streams import UserIdentity

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 2, 4, 16384, 1 << 19
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def entered(path: str, size: int, identity: UserIdentity) -> Iterator[None]:
    """Moves this process, which must have one thread, for the block into a mount namespace in which `path` holds `size` bytes in memory.

    They are the user's; nothing keeps them but the processes forked in the block. Raises OSError where the kernel refuses.
    """
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(CLONE_NEWNS))
        try:
            _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None))
            owner = "" if identity.user is None else f",uid={identity.user},gid={identity.group}"
            options = f"size={size},mode=0700{owner}".encode()
            _check(_libc.mount(b"scratch", os.fsencode(path), b"tmpfs", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options), path)
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNS))
    finally:
        os.close(home)


def _check(answer: int, path: str = "") -> None:
    """Raises OSError, with the path where one is given, where a system call's answer is not 0."""
    if answer:
        code = ctypes.get_errno()
        raise OSError(code, f"the scratch space cannot be mounted: {os.strerror(code)}", path or None)
