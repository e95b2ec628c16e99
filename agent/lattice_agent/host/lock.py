"""Admits one agent at a time to a state directory; the kernel holds the lock as long as the process lives."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from lattice.daemon.clock import Clock
from lattice.errors import Rejected

PATIENCE_SECONDS: Final = 5.0
"""Time for an agent that is being restarted to end."""
POLL_SECONDS: Final = 0.1


@asynccontextmanager
async def alone_on(directory: Path, clock: Clock) -> AsyncIterator[None]:
    """Makes the directory where it is missing, and holds its lock for the block; no file is made, so that a full disk does not matter.

    Raises Rejected (StateDirectoryInUse) where another process still has the lock after 5 s.
    """
    held = await asyncio.to_thread(_opened, directory)
    try:
        until = clock.monotonic() + PATIENCE_SECONDS
        while not _taken(held):
            if clock.monotonic() >= until:
                hint = "stop one of the two, or give this one its own (--state-dir)"
                raise Rejected(f"another agent works on the state directory {directory}: {hint}", reason="StateDirectoryInUse")
            await clock.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(held)


def _opened(directory: Path) -> int:
    """Makes the directory where it is missing, and returns a descriptor of it."""
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY)


def _taken(descriptor: int) -> bool:
    """Takes the lock of an open directory; returns False where another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
