"""Writes the output of one attempt: to log segments of the agent, and to files of the user with the user's rights.

It uses the standard library alone, for the shim. Formats: docs/explanation/formats.md (log segment 1).
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH108, PTH116, PTH118
from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lattice_agent.standalone.records import Record

FORMAT = 1
SEGMENTS = 8
RECORD = struct.Struct("<dQI")
"""The head of a record in a log segment: time of reading, bytes lost before it, bytes that follow."""
MAX_RECORD = 256 << 10
MAX_PARTIAL = 64 << 10
PARTIAL_SECONDS = 0.2
PIPE_BYTES = 256 << 10
NULL_DEVICE = os.makedev(1, 3)
KERNEL_FILES = frozenset(
    {
        0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11, 0x62656570, 0xDE5E81E4, 0x6E736673,
        0xF97CFF8C, 0x42494E4D, 0x6165676C, 0x65735543,
    }
)  # fmt: skip
"""Types (statfs(2)) of the file systems whose files change the kernel: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs,
bpf, configfs, efivarfs, nsfs, selinuxfs, binfmt_misc, pstore, fusectl."""

_libc = ctypes.CDLL(None, use_errno=True)


class StartFailure(Exception):
    """Raised when the work cannot be started; its text is the sentence for people."""


class UserIdentity(Record):
    """The user that the work runs as; `user` or `group` None: the process keeps its own ids."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()

    def become(self) -> None:
        """Makes this process the user's for good, with his groups; does nothing where no user is given. Raises OSError."""
        if self.user is not None and self.group is not None:
            os.setgroups(self.groups)
            os.setgid(self.group)
            os.setuid(self.user)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Runs the block with the user's file rights and without capabilities; for single-threaded processes only."""
        if self.user is None or self.group is None:
            yield
            return
        own = os.getgroups()
        os.setgroups(self.groups)
        os.setegid(self.group)
        os.seteuid(self.user)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(own)


def check_output(path: str) -> bool:
    """Raises StartFailure for a file that cannot take output; returns whether it is a pipe, whose reader would see a probe as its end.

    False too where there is no such file.
    """
    try:
        found = os.stat(path)
    except OSError:
        return False  # opening it says why, or makes it
    if not (_takes_output(found) or stat.S_ISDIR(found.st_mode)):
        raise unsuitable_output(path)
    if stat.S_ISFIFO(found.st_mode) and not os.access(path, os.W_OK, effective_ids=True):
        raise unopened_output(path, errno.EACCES)
    return stat.S_ISFIFO(found.st_mode)


def open_output(path: str, *, truncate: bool) -> int:
    """Returns a descriptor for appending to an output file, which is made where it is missing; waits for no reader of a pipe.

    Raises StartFailure, a sentence, for a file that cannot be opened or cannot take output.
    """
    check_output(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | (os.O_TRUNC if truncate else 0)
    try:
        fd = os.open(path, flags, 0o644)
    except OSError as error:
        raise unopened_output(path, error.errno or 0) from error
    found = os.fstat(fd)
    if not _takes_output(found) or is_of_kernel(fd):
        os.close(fd)
        raise unsuitable_output(path)
    os.set_blocking(fd, stat.S_ISREG(found.st_mode))  # a pipe that nobody empties must not hold the work up
    return fd


def _takes_output(found: os.stat_result) -> bool:
    """Tells whether a file of this status is a regular file, a pipe or /dev/null."""
    is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == NULL_DEVICE
    return is_null or stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)


def unopened_output(path: str, error: int) -> StartFailure:
    """Makes the error for a file for output that the kernel does not open."""
    why = "is a pipe that nobody reads" if error == errno.ENXIO else f"cannot be opened: {os.strerror(error)}"
    return StartFailure(f"the output file {path!r} {why}")


def unsuitable_output(path: str) -> StartFailure:
    """Makes the error for a file that may not take output."""
    return StartFailure(f"the output file {path!r} is a device or belongs to the kernel; name a regular file, a pipe or /dev/null")


def unopened_input(path: str, error: int) -> StartFailure:
    """Makes the error for a file for input that the kernel does not open."""
    return StartFailure(f"the input file {path!r} cannot be opened: {os.strerror(error)}")


def unsuitable_input(path: str) -> StartFailure:
    """Makes the error for a file that may not be input."""
    return StartFailure(f"the input file {path!r} belongs to the kernel; let the program itself open it, or name a copy of it")


def is_of_kernel(fd: int) -> bool:
    """Tells whether a file belongs to a file system of the kernel's own, such as proc."""
    return _file_system(fd) in KERNEL_FILES


def _file_system(fd: int) -> int:
    """Returns the type of the file system, which is the first word of struct statfs; 0: unknown."""
    found = (ctypes.c_long * 32)()
    return int(found[0]) if _libc.fstatfs(fd, found) == 0 else 0


class OutputFile:
    """Copies the output to a file of the user's; bytes that the file does not take are counted, and the work goes on."""

    def __init__(self, path: str, fd: int, identity: UserIdentity) -> None:
        self.path, self.fd, self.identity, self.lost, self.error = path, fd, identity, 0, ""

    def write(self, data: bytes) -> None:
        """Writes the data with the user's rights, so that his quota holds; bytes that the file does not take are counted in `lost`."""
        view = memoryview(data)
        try:
            with self.identity.acting():
                while view:
                    view = view[os.write(self.fd, view) :]
        except OSError as error:
            self.lost += len(view)
            self.error = error.strerror or str(error)


class LogStream:
    """Writes one stream's rotating segments; beyond `keep_bytes` the oldest is deleted, and bytes that a full disk refuses are counted."""

    def __init__(self, directory: str, name: str, keep_bytes: int) -> None:
        self._prefix = os.path.join(directory, name + ".")
        self._segment_bytes = max(4096, keep_bytes // SEGMENTS)
        self._fd, self._number, self._size = -1, 0, 0
        self._position, self._lost = 0, 0

    def continue_segment(self, number: int, size: int, position: int) -> None:
        """Goes on behind the first `size` bytes of a segment that an earlier process began; `position`: the stream's bytes up to there.

        Raises OSError.
        """
        fd = os.open(f"{self._prefix}{number}", os.O_WRONLY | os.O_APPEND)
        try:
            os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._number, self._size, self._position = fd, number, size, position

    def write(self, now: float, data: bytes) -> None:
        """Appends the data as records of at most 256 KiB with the time `now` (seconds since the epoch); counts bytes that are refused."""
        for at in range(0, len(data), MAX_RECORD):
            self._append(now, data[at : at + MAX_RECORD])

    def close(self) -> None:
        """Writes a last record where bytes were lost at the end, and closes the segment."""
        if self._lost:
            self._append(time.time(), b"")
        if self._fd >= 0:
            os.close(self._fd)

    def _append(self, now: float, part: bytes) -> None:
        """Appends one record to the current segment, with how many bytes were lost before it; bytes that the disk refuses are counted as
        lost.
        """
        try:
            if self._fd < 0 or self._size >= self._segment_bytes:
                self._rotate()
            head = RECORD.pack(now, self._lost, len(part))
            written = os.writev(self._fd, [head, part])
        except OSError:
            written = -1
        if written != RECORD.size + len(part):
            self._lost += len(part)
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            return
        self._size += written
        self._position += self._lost + len(part)
        self._lost = 0

    def _rotate(self) -> None:
        """Begins the next segment; raises OSError on a full disk, and the old one stays current."""
        number = self._number + 1
        path = f"{self._prefix}{number}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        head = f"{FORMAT} {self._position}\n".encode()
        try:
            if os.write(fd, head) != len(head):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number, self._size = fd, number, len(head)
        with suppress(FileNotFoundError):
            os.unlink(f"{self._prefix}{number - SEGMENTS}")


class OutputStream:
    """Writes one of the two streams: to log segments, and to a file where the user asks for one."""

    def __init__(self, log: LogStream) -> None:
        self.log = log
        self.file: OutputFile | None = None

    def write(self, now: float, data: bytes) -> None:
        """Writes data to the log segments, and to the user's file where there is one; a failure of either raises nothing."""
        self.log.write(now, data)
        if self.file:
            self.file.write(data)


class Inlet:
    """Reads one task's pipe: passes whole lines on, and a partial line after a moment."""

    def __init__(self, fd: int, stream: OutputStream) -> None:
        self.fd, self._stream, self._pending, self.since = fd, stream, b"", 0.0
        os.set_blocking(fd, False)

    def read_pipe(self, now: float) -> bool:
        """Reads what is in the pipe, 256 KiB at most, and passes whole lines on; returns False at the pipe's end."""
        try:
            data = os.read(self.fd, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._accept(now, data)
        return bool(data)

    def _accept(self, now: float, data: bytes) -> None:
        """Adds data to the partial line that is held back; passes whole lines on, and a partial one of more than 64 KiB."""
        whole, newline, rest = (self._pending + data).rpartition(b"\n")
        if newline:
            self._stream.write(now, whole + newline)
        if rest and (newline or not self._pending):
            self.since = now
        self._pending = rest
        if len(rest) > MAX_PARTIAL:
            self.flush(now)

    def overdue(self, now: float) -> bool:
        """Tells whether a partial line has been held back for 0.2 s, so that it is to be passed on."""
        return bool(self._pending) and not 0 <= now - self.since < PARTIAL_SECONDS

    @property
    def waiting(self) -> bool:
        """Tells whether a partial line is held back."""
        return bool(self._pending)

    def flush(self, now: float) -> None:
        """Passes on a partial line that is held back, if there is one."""
        if self._pending:
            self._stream.write(now, self._pending)
            self._pending = b""

    def drain(self, now: float) -> None:
        """Passes on everything that is left in the pipe without waiting, then closes it."""
        with suppress(BlockingIOError):
            while data := os.read(self.fd, PIPE_BYTES):
                self._accept(now, data)
        self.flush(now)
        os.close(self.fd)
