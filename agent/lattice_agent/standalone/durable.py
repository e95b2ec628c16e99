"""Writes what must outlive a crash: files written whole, the right to start an attempt, its exit record and the room kept for it.

It is of standard library alone, for shim and agent. An attempt has two directories: one below the state directory, on a disk, and
one below the run directory, in memory, where the right to start is taken and where the end stands at once, so that a disk that is
full, read-only or slow hinders neither. Formats (docs/explanation/formats.md): exit record, claim and state directory are written in
format 1 here, and read in formats 1 and 2 by `state.journal`, so that a node may go back from the next agent to this one.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH104, PTH108, PTH110, PTH112, PTH118
from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
"""The format that is written; `state.journal.NEWEST` and the one before are read."""
EXIT, RESERVE, CLAIM, CLOSED, TASKS = "exit", "reserve", "shim", "closed", "tasks"
RESERVE_BYTES, TASK_BYTES = 4 << 10, 256
"""Bytes reserved for an exit record, and for each task in it."""


def write_durably(directory: str, name: str, data: bytes, *, mode: int = 0o600) -> None:
    """Writes DIRECTORY/NAME whole and durably, by a temporary file, fsync and rename; replaces a file of that name. Raises OSError."""
    path, draft = os.path.join(directory, name), os.path.join(directory, f".{name}.{os.getpid()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, path)
    finally:
        with suppress(OSError):
            os.unlink(draft)
    sync_directory(directory)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of the data to the descriptor, in as many writes as that takes; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(directory: str) -> None:
    """Syncs a directory to disk, so that files made, renamed or removed in it are so after a crash too."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# the right to start


def encode_claim(pid: int, ticks: int, started: float, boottime: float) -> bytes:
    """Returns the content of a claim (the file `shim`), which names the process that has the right to start an attempt.

    `ticks`: field 22 of /proc/PID/stat; `started` in seconds since the epoch; `boottime`: the same moment on CLOCK_BOOTTIME.
    """
    return f"{FORMAT}\n{pid} {ticks} {started!r} {boottime!r}\n".encode()


def take_right(run_directory: str, directory: str, data: bytes) -> None:
    """Takes the right to start an attempt, by making the file `shim` with `data`, a claim, in both of its directories.

    Raises FileExistsError when it is taken, FileNotFoundError without a directory. After any other OSError it is taken if the file is in
    the run directory. The copy on disk is for an older agent; a copy alone means that somebody had the right before.
    """
    _link(run_directory, data)
    try:
        _link(directory, data)
    except (FileExistsError, FileNotFoundError):
        os.unlink(os.path.join(run_directory, CLAIM))
        raise


def has_right(run_directory: str, data: bytes) -> bool:
    """Tells whether the claim in the run directory is this one (`data`), so that who wrote it has the right to start, and nobody else."""
    try:
        fd = os.open(os.path.join(run_directory, CLAIM), os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.read(fd, len(data) + 1) == data
    except OSError:
        return False
    finally:
        os.close(fd)


def _link(directory: str, data: bytes) -> None:
    """Makes the claim once, whole, without fsync: it matters only until the next boot.

    Raises FileExistsError where there is one, other OSErrors of the disk.
    """
    draft = os.path.join(directory, f".{CLAIM}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, data)
        os.link(draft, os.path.join(directory, CLAIM))
    finally:
        os.close(fd)
        os.unlink(draft)


# the end of launches


def close_launches(run_directory: str) -> None:
    """Notes that no launch begins in this attempt any more; may be repeated. Raises OSError where its run directory is gone.

    Who ends an attempt writes this before it counts the processes that are left; a keeper joins the scope before it looks for this.
    So either the keeper begins nothing, or it is counted.
    """
    os.close(os.open(os.path.join(run_directory, CLOSED), os.O_WRONLY | os.O_CREAT, 0o600))


def are_launches_closed(run_directory: str) -> bool:
    """Tells whether no launch may begin in this attempt any more; True where its run directory is gone."""
    return os.path.exists(os.path.join(run_directory, CLOSED)) or not os.path.isdir(run_directory)


# the tasks, until the end is written


def note_tasks(run_directory: str, tasks: list[dict[str, Any]]) -> None:
    """Writes the tasks that were started (`rank`, `pid`, `start`) into the run directory, where `note_task_end` adds their ends.

    By these an exit code is known even where the shim is killed after the end of its tasks and before its exit record. Raises OSError.
    """
    lines = [str(FORMAT), *map(json.dumps, tasks)]
    write_in_memory(run_directory, TASKS, "".join(f"{line}\n" for line in lines).encode())


def note_task_end(run_directory: str, task: dict[str, Any]) -> None:
    """Adds the end of a task, as the exit record will have it; raises OSError, also where `note_tasks` has written nothing."""
    fd = os.open(os.path.join(run_directory, TASKS), os.O_WRONLY | os.O_APPEND)
    try:
        write_all(fd, f"{json.dumps(task)}\n".encode())
    finally:
        os.close(fd)


# the end


def encode_exit(
    uid: str, attempt: int, boot: str, tasks: list[dict[str, Any]], end: float, failure: str = "", *, unfit: bool = False,
    reason: str = "", use: dict[str, float] | None = None,
) -> bytes:  # fmt: skip
    """Returns the content of an exit record; `unfit`: the node's own fault, not the work's; `reason`: a word for a failure that is neither.

    `use`: as `meters.read` has it.
    """
    body: dict[str, Any] = {"uid": uid, "attempt": attempt, "boot": boot, "tasks": tasks, "end": end}
    if failure:
        body["failure"] = failure
    if unfit:
        body["unfit"] = True
    if use:
        body["use"] = use
    if reason:
        body["reason"] = reason
    return f"{FORMAT}\n{json.dumps(body)}\n".encode()


def reserve(directory: str, tasks: int) -> None:
    """Writes and allocates blanks for the exit record of so many tasks, so that a full disk still has room for it."""
    path, size = os.path.join(directory, RESERVE), RESERVE_BYTES + TASK_BYTES * tasks
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        write_all(fd, b" " * size)
    finally:
        os.close(fd)


def keep_exit(run_directory: str, directory: str, data: bytes) -> None:
    """Writes the exit record in memory and on disk; repeats that, for ever, while neither takes it and the directories exist."""
    delay, kept = 0.02, False
    while True:
        with suppress(OSError):
            write_in_memory(run_directory, EXIT, data)
            kept = True
        try:
            write_exit(directory, data)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            if kept:
                return  # the agent brings it to the disk when that is well again
            time.sleep(delay)
            delay = min(2 * delay, 2.0)
        else:
            return


def write_in_memory(directory: str, name: str, data: bytes) -> None:
    """Writes DIRECTORY/NAME whole, without fsync: it lasts until the next boot."""
    draft = os.path.join(directory, f".{name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
    os.rename(draft, os.path.join(directory, name))


def write_exit(directory: str, data: bytes) -> None:
    """Writes the exit record into its reserved file in place and renames that; where there is none, or it is too small or fails, by a
    temporary file, fsync and rename, with OSError raised if that fails too.

    A crash in between leaves a torn reserve and no record; blanks that stay behind the record are no part of it.
    """
    path = os.path.join(directory, RESERVE)
    try:
        fd = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        write_durably(directory, EXIT, data)
        return
    try:
        if os.fstat(fd).st_size < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(fd, data)
        os.fsync(fd)
        with suppress(OSError):
            os.ftruncate(fd, len(data))
    except OSError:
        os.close(fd)
        write_durably(directory, EXIT, data)
        os.unlink(path)
        return
    os.close(fd)
    os.rename(path, os.path.join(directory, EXIT))
    sync_directory(directory)
