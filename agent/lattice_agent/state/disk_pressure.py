"""Checks the disk below the state directory: whether it has room for new work, and which kept output is deleted to make room.

All of it is synchronous file work; `LinuxHost` calls it in a thread with every heartbeat.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice_agent.standalone import durable
from lattice_agent.state import log_store
from lattice_agent.state.journal import Journal

FREE_BYTES, FREE_FILES = 16 << 20, 256
"""A node with less free space, or fewer free inodes, is given no more work until it has twice as many."""
GIVEN_UP_BELOW = 4 * FREE_BYTES
"""With less free space, the output of settled attempts is deleted, the longest settled first."""
_SHIM_WRITES_SECONDS = 1.0
"""A younger exit record in memory may still be on its way to the disk, by its shim."""


@dataclass(frozen=True)
class DiskCheck:
    """The outcome of one check of the disk; attempts are named by their directories.

    `flaw` is a clause on what is wrong (empty: nothing); `given_up` names attempts whose output was deleted.
    """

    flaw: str
    given_up: list[str]
    brought: list[str]
    """Attempts whose exit record was in memory only, and is on the disk now."""
    waiting: int
    """How many exit records are still in memory only."""


def check_disk(journal: Journal, now: float, *, wanting: bool, busy: bool) -> DiskCheck:
    """Copies exit records that are in memory only to the disk, deletes old output where room is short, and returns what it found.

    `wanting`: the last check found a flaw, so that twice the room is needed to clear it. `busy`: work runs, whose own writing is no reason
    to delete anything.
    """
    brought, waiting = _bring_ends(journal, now)
    given_up = [] if busy else free_space(journal, now)
    found = disk_flaw(journal.state_dir, wanting=wanting)
    if waiting:
        said = f"{waiting} attempts" if waiting > 1 else "one attempt"
        found = f"{found or 'its state directory cannot be written'}; the end of {said} stands in {journal.run_dir} only"
    return DiskCheck(found, given_up, brought, waiting)


def _bring_ends(journal: Journal, now: float) -> tuple[list[str], int]:
    """Copies exit records from memory to the disk; returns the attempts that are there now, and how many records could not be copied.

    A record younger than a second is left to its shim and counts as neither.
    """
    brought, waiting = list[str](), 0
    for key in journal.in_memory_only():
        directory = journal.run_directory(key)
        try:
            if now - (directory / durable.EXIT).stat().st_mtime >= _SHIM_WRITES_SECONDS:
                journal.bring_to_disk(key)
                brought.append(directory.name)
        except OSError:
            waiting += 1
    return brought, waiting


def disk_flaw(state_dir: Path, *, wanting: bool = False) -> str:
    """Looks at the disk below the state directory and tries to write; returns a clause on what is wrong with it, empty: nothing.

    It needs 16 MiB and 256 inodes free; twice as much with `wanting`: the last check found a flaw.
    """
    try:
        disk = os.statvfs(state_dir)
    except OSError as error:
        return f"its state directory {state_dir} cannot be looked at: {error.strerror}"
    if disk.f_flag & os.ST_RDONLY:
        return f"its state directory {state_dir} is mounted read-only"
    free, files = disk.f_bavail * disk.f_frsize, disk.f_favail
    least, fewest = (2 * FREE_BYTES, 2 * FREE_FILES) if wanting else (FREE_BYTES, FREE_FILES)
    if free < least:
        return f"its state directory {state_dir} has {free >> 20} MiB free, {least >> 20} MiB are needed"
    if disk.f_files and files < fewest:
        return f"its state directory {state_dir} has room for {files} more files, {fewest} are needed"
    try:
        _try_to_write(state_dir)
    except OSError as error:
        return f"its state directory {state_dir} cannot be written: {error.strerror}"
    return ""


def _try_to_write(state_dir: Path) -> None:
    """Writes one byte and fsyncs it; raises OSError: nothing else shows an error of the device."""
    fd = os.open(state_dir / "probe", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, b"1", 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def free_space(journal: Journal, now: float) -> list[str]:
    """Deletes the output of settled attempts, the longest settled first, while less than 64 MiB are free; returns their directories' names.

    Exit records stay; a reader of the output sees the deleted bytes as dropped.
    """
    given_up: list[str] = []
    if not _is_short(journal.state_dir):
        return given_up
    for key in journal.settled():
        directory = journal.directory(key)
        freed = 0
        for stream in ("stdout", "stderr", "launches"):
            with suppress(OSError):  # another one may give way
                freed += log_store.shed(directory, stream, now)
        if freed:
            given_up.append(directory.name)
            if not _is_short(journal.state_dir):
                break
    return given_up


def _is_short(state_dir: Path) -> bool:
    """Tells whether less than 64 MiB are free on the disk; False where it is read-only or cannot be asked."""
    try:
        disk = os.statvfs(state_dir)
    except OSError:
        return False
    return not disk.f_flag & os.ST_RDONLY and disk.f_bavail * disk.f_frsize < GIVEN_UP_BELOW
