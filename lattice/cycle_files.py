"""Cycle logs on disk: a folder of files, each named by its first cycle; written by one process, read by whoever may.

`CycleWriter` keeps the folder below a size and an age by removing whole files, the oldest first. `CycleFolder` reads: files
come and go beside it.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lattice.errors import Corrupt, NotFound, Rejected
from lattice.scheduling.queries.answers import CYCLES_SCHEMA, CycleLog, Cycles, Stretch
from lattice.scheduling.recording.cycle_log import LATEST, OPENING, Scan, excerpt, scan
from lattice.units import format_time, is_digits

_PREFIX, _SUFFIX = "cycles-", ".log"
_PARTS: Final = 8
"""So many files make the largest size and the longest age: what is removed is about that part of all."""


class CycleFolder:
    """Reads the cycle logs of a folder, or one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> list[Path]:
        """Returns the files in the order of their first cycle; raises NotFound where there is none, Rejected where they cannot be read."""
        try:
            if self._path.is_file():
                return [self._path]
            found = sorted(file for file in self._path.iterdir() if _first(file) is not None)
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise Rejected(f"{self._path} cannot be read: {error.strerror}", reason="BadCycleLog") from error
        if not found:
            raise NotFound(f"there is no cycle log in {self._path}", reason="CycleNotRecorded")
        return found

    def cycles(self) -> Cycles:
        """Returns which cycles are recorded, in stretches without a gap, oldest first; does not check the contents of files.

        A damaged file is a stretch that names its damage. Raises as `files` does.
        """
        return Cycles(schema=CYCLES_SCHEMA, stretches=[one for file in self.files() for one in _stretches(file)])

    def cycle(self, number: int = LATEST) -> CycleLog:
        """Returns the log of one cycle (`LATEST`: the last one), as a file of its own; raises NotFound that says what there is instead."""
        log = self._excerpt(number)
        return CycleLog(cycle=scan(log, check=False).frames[-1].cycle, log=log)

    def _excerpt(self, cycle: int) -> bytes:
        """Returns the part of a log with a cycle, and what it needs to be read; LATEST: the last one.

        Raises NotFound where it is not kept any more.
        """
        files = self.files()
        if cycle == LATEST:
            begun = [file for file in files if any(one.last or one.damage for one in _stretches(file))]
            return _excerpt_of((begun or files)[-1], cycle)
        chosen = [file for file in files if (_first(file) or 0) <= cycle]
        if not chosen:
            oldest = _first(files[0])
            raise NotFound(f"cycle {cycle} is not kept any more: the oldest that is kept is {oldest}", reason="CycleNotRecorded")
        return _excerpt_of(chosen[-1], cycle)

    def last(self) -> int:
        """Returns the number of the last cycle that is recorded, 0: none; raises Rejected where the files cannot be read."""
        try:
            return max((one.last for one in self.cycles().stretches), default=0)
        except NotFound:
            return 0


class CycleWriter:
    """Appends frames; every file begins with a whole moment. Raises OSError, and leaves no half frame where it can."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._name = ""
        self._size = 0
        self._began = 0.0

    def due(self, most: int, now: float, age: float) -> bool:
        """Tells whether the next frame begins a file, and so must be whole; sizes in bytes, ages in seconds."""
        return self._file is None or self._size >= most // _PARTS or now - self._began >= age / _PARTS

    def write(self, frames: bytes, first: int, now: float, *, new: bool, most: int) -> int:
        """Appends frames, to a new file (named by the cycle `first`) if `new`; returns the bytes of all files then.

        Removes the oldest files first where the frames would not fit into `most` bytes. Raises OSError, also where they alone take
        more.
        """
        if len(frames) > most:
            raise OSError(errno.EFBIG, f"one cycle takes {len(frames)} bytes, and {most} are allowed (scheduling.recording.maxSize)")
        left = self.trim(most - len(frames) - len(OPENING), now, None)
        if new:
            self._begin(first, now)
        assert self._file is not None, "the first frames begin a file"  # noqa: S101
        try:
            _write_all(self._file, frames)
        except OSError:
            self._take_back(new=new)
            raise
        self._size += len(frames)
        return left + len(frames) + (len(OPENING) if new else 0)

    def trim(self, most: int, now: float, age: float | None) -> int:
        """Removes the oldest files until at most `most` bytes are left, and files last written more than `age` seconds before `now`.

        `age` None: at any age. Returns the bytes that are left; the file being written is never removed.
        """
        sizes: list[tuple[Path, int, float]] = []
        for file in sorted(self._path.iterdir()) if self._path.is_dir() else ():
            if _first(file) is not None:
                status = file.stat()
                sizes.append((file, status.st_size, status.st_mtime))
        total = sum(size for _, size, _ in sizes)
        for file, size, written in sizes:
            if (total > most or (age is not None and now - written > age)) and file.name != self._name:
                file.unlink(missing_ok=True)
                total -= size
        return total

    def close(self) -> None:
        """Ends the file that is being written; the next frames begin another."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._name = None, ""

    def _take_back(self, *, new: bool) -> None:
        """Cuts a half-written frame off the file and ends the file; removes a `new` file, which has no other frame."""
        assert self._file is not None, "something was written"  # noqa: S101
        os.ftruncate(self._file, self._size)
        file = self._path / self._name
        self.close()
        if new:
            file.unlink(missing_ok=True)

    def _begin(self, first: int, now: float) -> None:
        """Closes the present file and begins a new one, named by its first cycle.

        Raises OSError where that fails, and leaves no file then.
        """
        self.close()
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{_PREFIX}{first:012d}{_SUFFIX}"
        self._file = os.open(self._path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(self._file, OPENING)
        except OSError:
            self.close()
            (self._path / name).unlink(missing_ok=True)
            raise
        self._name, self._size, self._began = name, len(OPENING), now


def _first(file: Path) -> int | None:
    """Returns the first cycle of a cycle log by the name of the file; None: the file is no cycle log."""
    number = file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    ours = file.name == f"{_PREFIX}{number}{_SUFFIX}" and is_digits(number)
    return int(number) if ours else None


def _excerpt_of(file: Path, cycle: int) -> bytes:
    """Returns the part of a file with a cycle. Raises NotFound, Corrupt or Rejected with the file's name."""
    try:
        with _contents(file) as data:
            return excerpt(data, cycle)
    except (NotFound, Corrupt, Rejected) as error:
        raise type(error)(f"{file.name}: {error.message}", reason=error.reason) from error


def _stretches(file: Path) -> Iterator[Stretch]:
    """Yields the unbroken stretches of cycles in a file, with what is torn or damaged at its end; one without cycles where it has none."""
    try:
        with _contents(file) as data:
            found, size = scan(data, check=False), len(data)
    except (Rejected, NotFound) as error:
        found, size = Scan((), damage=error.message), 0
    frames = found.frames
    if not frames:
        yield Stretch(file=file.name, first=_first(file) or 0, last=0, bytes=size, torn=found.torn, damage=found.damage)
        return
    begin = 0
    for place in [*(at for at in range(1, len(frames)) if frames[at].cycle > frames[at - 1].cycle + 1), len(frames)]:
        first, last = frames[begin], frames[place - 1]
        ends = place == len(frames)
        yield Stretch(
            file=file.name, first=first.cycle, last=last.cycle, began=format_time(first.at), ended=format_time(last.at),
            bytes=last.end - first.start, torn=found.torn if ends else 0, damage=found.damage if ends else "",
        )  # fmt: skip
        begin = place


@contextmanager
def _contents(file: Path) -> Iterator[bytes]:
    """Yields the frames of a file while the block runs; only the parts that are touched are read.

    Raises NotFound where the file is gone, Rejected where it cannot be read.
    """
    try:
        with file.open("rb") as opened:
            if not os.fstat(opened.fileno()).st_size:
                yield b""
                return
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped  # type: ignore[misc]  # it is sliced and measured as bytes are
    except FileNotFoundError as error:
        raise NotFound(f"{file.name} is gone: older files make room for newer ones", reason="CycleNotRecorded") from error
    except OSError as error:
        raise Rejected(f"{file} cannot be read: {error.strerror}", reason="BadCycleLog") from error


def _write_all(file: int, data: bytes) -> None:
    """Writes all bytes to a file, however many writes that takes. Raises OSError where one fails."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
