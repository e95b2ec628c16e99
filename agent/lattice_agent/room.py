"""The disk below the state directory: when a node has too little room to take work, and what it gives up before that.

Synchronous file work; `LinuxHost` calls it in a thread with every heartbeat.
"""

from __future__ import annotations

import os
from pathlib import Path

from lattice_agent import outputs
from lattice_agent.journal import Journal

FREE_BYTES, FREE_FILES = 16 << 20, 256
"""A node with less room for its state is given no more work, until there is twice as much."""
GIVEN_UP_BELOW = 4 * FREE_BYTES
"""With less, the output of settled work is given up, the longest settled first."""


def flaw(state_dir: Path, *, wanting: bool = False) -> str:
    """What is wrong with the disk, as a clause; empty: nothing. `wanting`: it was wrong at the last look, so more has to be free."""
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
    return ""


def make_room(journal: Journal, now: float) -> list[str]:
    """Gives up the output of settled attempts while room is short, and names them; exit records stay, what goes is counted as dropped."""
    given_up: list[str] = []
    if not _is_short(journal.state_dir):
        return given_up
    for key in journal.settled():
        directory = journal.directory(key)
        if sum(outputs.shed(directory, stream, now) for stream in ("stdout", "stderr")):
            given_up.append(directory.name)
            if not _is_short(journal.state_dir):
                break
    return given_up


def _is_short(state_dir: Path) -> bool:
    try:
        disk = os.statvfs(state_dir)
    except OSError:
        return False
    return not disk.f_flag & os.ST_RDONLY and disk.f_bavail * disk.f_frsize < GIVEN_UP_BELOW
