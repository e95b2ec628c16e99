"""Gives each attempt scratch space of its own on the node: a directory on `--scratch-dir`, else a file system in memory.

    DIR/NODE/UID-ATTEMPT   an attempt's, owned by its user
    DIR/NODE/.removed/     what is being deleted: a rename takes it out of sight, however much it holds

In memory the agent only makes the mount point, in the run directory; the shim mounts the space where the tasks alone see it
(`standalone/scratch_mount.py`), and it goes with the last of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import stat
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Rejected, Retry
from lattice.units import format_bytes
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host import project_quota
from lattice_agent.host.threads import Threads
from lattice_agent.state.journal import Journal, parse_key
from lattice_agent.state.step_journal import StepJournal
from lattice_agent.work.environment import Account

log = logging.getLogger(__name__)

STEP: Final = "scratch"
REMOVED: Final = ".removed"
MEBIBYTE: Final = 1 << 20
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds between two deletions of what resists."""
DELETION_SECONDS = 60.0
"""How long work waits for room that is being made."""
DELETE: Final = ("nice", "-n", "19", "rm", "-rf", "--one-file-system", "--")
"""Follows no link, enters no other file system, and takes trees of any depth."""


@dataclass(frozen=True)
class ScratchSpace:
    """The scratch space of one attempt: its path, and the bytes of a file system in memory that is mounted there; 0: it is a directory."""

    path: str
    memory_bytes: int = 0


class ScratchDirectory:
    """Makes and removes the directories of attempts below `--scratch-dir`, by blocking file operations."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory, self.place = directory, directory / node
        self.limited = False
        """Whether a quota of the file system holds each attempt to its size."""

    def open(self) -> None:
        """Makes the node's directory.

        Raises Rejected (SettingWrong) where there is none to make it in, or users could rename it; OSError where it is somebody else's.
        """
        if not self.directory.is_dir():
            raise Rejected(f"--scratch-dir {self.directory}: there is no such directory", reason="SettingWrong")
        found = self.directory.stat()
        if found.st_uid != os.geteuid() or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
            said = f"--scratch-dir {self.directory}: users may rename what stands there; make it root's, writable by root alone or sticky"
            raise Rejected(said, reason="SettingWrong")
        _make_own(self.place, 0o711)
        _make_own(self.place / REMOVED, 0o700)
        self.limited = project_quota.is_enforced(self.place)

    @property
    def total_bytes(self) -> int:
        """Returns the bytes of the file system."""
        found = os.statvfs(self.directory)
        return found.f_blocks * found.f_frsize

    @property
    def free_bytes(self) -> int:
        """Returns the bytes of the file system that are free."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def attempt_directory(self, key: Key) -> Path:
        """Returns the path of an attempt's directory, whether it stands there or not."""
        return self.place / f"{key.uid}-{key.attempt}"

    def make(self, key: Key, size: int, account: Account | None) -> None:
        """Makes the directory of an attempt, for its user (None: the agent's own), held to `size` bytes where the file system can."""
        path = self.attempt_directory(key)
        path.mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if self.limited:
                project_quota.limit(fd, size)
            if account is not None:
                os.fchown(fd, account.uid, account.gid)
        finally:
            os.close(fd)

    def put_aside(self, key: Key) -> None:
        """Renames an attempt's directory to where it is deleted; does nothing where there is none."""
        try:
            fd = os.open(self.attempt_directory(key), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            if self.limited:
                with suppress(OSError):  # a limit that stays is taken away with the next directory of that number
                    project_quota.drop_limit(fd)
        finally:
            os.close(fd)
        self.attempt_directory(key).rename(self.place / REMOVED / f"{key.uid}-{key.attempt}.{secrets.token_hex(4)}")

    def put_strays_aside(self, journal: Journal) -> None:
        """Puts aside what no attempt that the journal knows has: the state directory was lost or replaced since."""
        notes = StepJournal(journal)
        for path in self.place.iterdir():
            key = parse_key(path.name)
            if key is not None and STEP not in notes.standing(key):
                self.put_aside(key)

    def to_delete(self) -> list[str]:
        """Returns the paths of what was put aside and is not deleted yet."""
        return [str(path) for path in (self.place / REMOVED).iterdir()]


def _make_own(path: Path, mode: int) -> None:
    """Makes a directory of the agent's own with this mode; raises OSError where what is there is no directory, or somebody else's."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            whose = f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}"
            raise OSError(errno.EPERM, f"it is not the agent's alone ({whose}): remove it", str(path))
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


class Scratch:
    """Gives the attempts of one node their scratch space, and deletes it in the background after them."""

    def __init__(
        self,
        directory: ScratchDirectory | None,
        journal: Journal,
        disk: Threads,
        memory_bytes: int,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Uses `directory`; None: space is in memory, of which the machine has `memory_bytes`."""
        self.directory = directory
        self._journal, self._disk, self._memory_bytes, self._clock, self._spawn = journal, disk, memory_bytes, clock, spawn
        self._total_bytes = 0
        self._deletions = Threads("the deletion of scratch space", count=1, within=86400.0)
        self._deleting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Makes the node's directory, and begins to delete what was left there; raises Rejected (SettingWrong) without a directory.

        A disk that does not serve is logged, and the node offers no scratch space: work that runs waits for its agent.
        """
        if self.directory is None:
            return
        try:
            await self._disk.call(self.directory.open)
            self._total_bytes = await self._disk.call(getattr, self.directory, "total_bytes")
            await self._disk.call(self.directory.put_strays_aside, self._journal)
        except Retry as error:
            event(log, "ScratchUnusable", logging.ERROR, message=error.message)
            return
        self._delete()
        if not self.directory.limited:
            said = f"{self.directory.directory} has no project quota: work may use more scratch space than it asks for"
            event(log, "ScratchNotHeld", logging.WARNING, message=said)

    @property
    def most_bytes(self) -> int:
        """Returns the bytes that one allocation may ask for: the file system's, or half of the machine's memory, in whole MiB."""
        return (self._total_bytes if self.directory is not None else self._memory_bytes // 2) // MEBIBYTE * MEBIBYTE

    @property
    def is_limited(self) -> bool:
        """Tells whether work can use no more than it asks for: by a quota of the file system, or since it is a file system of its own."""
        return self.directory is None or self.directory.limited

    def space(self, work: NodeWork) -> ScratchSpace:
        """Returns the scratch space that an attempt has on this node, made or not."""
        if self.directory is not None:
            return ScratchSpace(str(self.directory.attempt_directory(work.key)))
        return ScratchSpace(str(self._mount_point(work.key)), work.scratch_bytes)

    async def make(self, work: NodeWork, account: Account | None) -> Mapping[str, str]:
        """Makes an attempt's space and returns TMPDIR, which names it; raises Rejected (PrologueFailed) where too little is free."""
        if self.directory is None:
            await self._disk.call(_make_empty, self._mount_point(work.key))
        else:
            await self._check_free(work, self.directory)
            await self._disk.call(self.directory.make, work.key, work.scratch_bytes, account)
        return {"TMPDIR": self.space(work).path}

    async def _check_free(self, work: NodeWork, directory: ScratchDirectory) -> None:
        """Raises Rejected where the file system has less room than is asked for, also after what is being deleted is gone."""
        if await self._disk.call(lambda: directory.free_bytes) < work.scratch_bytes and self._deleting is not None:
            await asyncio.wait((self._deleting,), timeout=DELETION_SECONDS)
        free = await self._disk.call(lambda: directory.free_bytes)
        if free < work.scratch_bytes:
            asked, of = format_bytes(work.scratch_bytes), format_bytes(self.most_bytes)
            said = f"{asked} of scratch space are asked for (spec.data.scratchPerNode), and {free >> 20}Mi of {of} are free"
            raise Rejected(f"node {work.node}: {said} on {directory.directory}", reason="PrologueFailed")

    async def wipe(self, key: Key) -> None:
        """Takes an attempt's space out of sight at once, and deletes it in the background; may be repeated. Raises Retry."""
        await self._disk.call(_remove_empty, self._mount_point(key))
        if self.directory is not None:
            await self._disk.call(self.directory.put_aside, key)
            self._delete()

    def _mount_point(self, key: Key) -> Path:
        """Returns the directory at which an attempt's file system in memory is mounted."""
        return self._journal.run_dir / STEP / f"{key.uid}-{key.attempt}"

    def _delete(self) -> None:
        """Begins to delete what is to be deleted, unless that is under way."""
        if self._deleting is None or self._deleting.done():
            self._deleting = self._spawn(self._delete_all())

    async def _delete_all(self) -> None:
        """Deletes everything that was put aside, also meanwhile; tries again, up to a minute apart, what resists."""
        assert self.directory is not None  # noqa: S101 - only a directory has what is deleted
        delay, before = FIRST_DELAY, set[str]()
        while True:
            try:
                found = set(await self._disk.call(self.directory.to_delete))
                if not found:
                    return
                code = await self._deletions.call(_deleted, sorted(found))
                failed = bool(code) or found == before
            except Retry:
                found, code, failed = before, -1, True
            before = found
            if failed:
                if delay == FIRST_DELAY:
                    event(log, "ScratchNotDeleted", logging.WARNING, message=f"rm has ended with {code}; it is tried again and again")
                await self._clock.sleep(delay)
                delay = min(LONGEST_DELAY, 2 * delay)


def _deleted(paths: list[str]) -> int:
    """Deletes paths in a process of its own, which goes on when the agent ends; returns its exit code."""
    with subprocess.Popen([*DELETE, *paths], stdin=subprocess.DEVNULL, cwd="/", start_new_session=True) as child:
        return child.wait()


def _make_empty(directory: Path) -> None:
    """Makes a directory and the one above it, which others may pass through but not list."""
    directory.parent.mkdir(exist_ok=True)
    directory.parent.chmod(0o711)
    directory.mkdir(mode=0o755, exist_ok=True)


def _remove_empty(directory: Path) -> None:
    """Removes an empty directory; one that is not there is ignored."""
    with suppress(FileNotFoundError):
        directory.rmdir()
