r"""Reads the output of work back from the log segments that its shim writes (log segment, format 1).

A segment is `1 START\n` and records: `<dQI` (time of reading, bytes lost before it to a full disk, length) and the bytes. START counts the
stream's bytes before the segment, so that what rotation dropped shows as a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lattice.errors import Corrupt
from lattice.units import is_digits, whole_number
from lattice_agent.attempts import Key
from lattice_agent.standalone import streams

FORMAT = streams.FORMAT
_SHED_BYTES = 64
"""The largest segment that is left of output that was deleted."""
MAX_UID = 64
"""The longest uid; a longer one is made up by a caller, and no file name."""


class LogStore:
    """The output of all attempts below one state directory; implements `peers.interface.Logs` for the agent's server."""

    def __init__(self, state_dir: Path, ended: Callable[[Key], bool]) -> None:
        self._attempts = state_dir / "attempts"
        self._ended = ended

    def newest(self, uid: str) -> int:
        """Returns the newest attempt of the Allocation that has a directory here; 0: none."""
        try:
            names = [path.name for path in self._attempts.iterdir() if path.name.startswith(f"{uid}-")]
        except FileNotFoundError:
            return 0
        return max((whole_number(name.rpartition("-")[2]) or 0 for name in names), default=0)

    def directory(self, key: Key) -> Path | None:
        """Returns the directory of the attempt's log segments; None: this node has none, or the uid cannot be part of a file name."""
        if "/" in key.uid or key.uid.startswith(".") or len(key.uid) > MAX_UID:
            return None
        path = self._attempts / f"{key.uid}-{key.attempt}"
        return path if path.is_dir() else None

    def ended(self, key: Key) -> bool:
        """Tells whether the attempt has ended on this node, or is unknown to it, so that its output is complete."""
        return self._ended(key)


@dataclass(frozen=True)
class LogEntry:
    """Some output of one stream, read at `time` (seconds since the epoch), in whole lines where possible.

    `dropped` bytes of the stream are missing before it.
    """

    time: float
    data: bytes
    dropped: int = 0


class LogReader:
    """Reads one stream of one attempt, oldest first, while it grows; each call goes on where the last one ended."""

    def __init__(self, directory: Path, stream: str, *, first: int = 0) -> None:
        """Begins before segment `first` of the log of `stream` (stdout or stderr), 0: before the oldest; opens nothing yet."""
        self._directory, self._stream = directory, stream
        self._file: BinaryIO | None = None
        self._number, self._position, self._gap = max(0, first - 1), 0, 0
        self._first = first

    def read(self, max_bytes: int = 1 << 20) -> list[LogEntry]:
        """Returns the next entries, of about `max_bytes` bytes together; empty when there is nothing new now.

        Raises Corrupt for a segment of another format.
        """
        found: list[LogEntry] = []
        size = 0
        while size < max_bytes:
            entry = self._next()
            if entry is None:
                break
            found.append(entry)
            size += len(entry.data)
        return found

    @property
    def position(self) -> int:
        """Returns how many bytes of the stream lie before the next entry."""
        return self._position

    @property
    def place(self) -> tuple[int, int]:
        """Returns the number of the open segment, and how many of its bytes were read; zeros: none is open."""
        return (self._number, self._file.tell()) if self._file is not None else (0, 0)

    def close(self) -> None:
        """Closes the open segment."""
        if self._file:
            self._file.close()
            self._file = None

    def _next(self) -> LogEntry | None:
        """Returns the next entry, from the next segment where this one is read to its end; None: nothing new is there now."""
        while True:
            if self._file:
                if entry := self._record(self._file):
                    return entry
                later = [number for number in segments(self._directory, self._stream) if number > self._number]
                if not later:
                    return None
                if entry := self._record(self._file):  # written before the next segment was made
                    return entry
                self.close()
            if not self._open_next():
                return None

    def _open_next(self) -> bool:
        """Opens the next segment that exists, and counts bytes that are missing before it; returns False where there is none, or its head
        is not whole yet.

        Raises Corrupt for another format.
        """
        for number in segments(self._directory, self._stream):
            if number <= self._number:
                continue
            try:
                file = (self._directory / f"{self._stream}.{number}").open("rb")
            except FileNotFoundError:
                continue  # dropped in this moment
            head = file.readline()
            if not head.endswith(b"\n"):
                file.close()
                return False
            try:
                start = _parse_head(head, file.name)
            except Corrupt:
                file.close()
                raise
            if self._position or not self._first:
                self._gap += max(0, start - self._position)
            self._file, self._number, self._position = file, number, start
            return True
        return False

    def _record(self, file: BinaryIO) -> LogEntry | None:
        """Returns the next record of a segment; None, with the file where it was, where no whole one is there yet."""
        at = file.tell()
        head = file.read(streams.RECORD.size)
        if len(head) == streams.RECORD.size:
            time, lost, length = streams.RECORD.unpack(head)
            data = file.read(length)
            if len(data) == length:
                dropped, self._gap = self._gap + lost, 0
                self._position += lost + length
                return LogEntry(time, data, dropped)
        file.seek(at)
        return None


def tail(directory: Path, stream: str, lines: int) -> tuple[list[LogEntry], LogReader]:
    """Returns entries with the last `lines` lines of a stream that exist now, and a reader that goes on behind them.

    Only the segments that hold these lines are read; the caller closes the reader.
    """
    numbers = segments(directory, stream)
    for first in reversed(numbers[1:]):
        entries, reader = _tail_from(directory, stream, lines, first)
        if sum(entry.data.count(b"\n") for entry in entries) > lines:
            return _cut(entries, lines), reader
        reader.close()
    entries, reader = _tail_from(directory, stream, lines, 0)
    return _cut(entries, lines), reader


def _tail_from(directory: Path, stream: str, lines: int, first: int) -> tuple[list[LogEntry], LogReader]:
    """Returns the last lines of these segments, and a little more, with the reader behind them; `first` is the first segment read."""
    reader = LogReader(directory, stream, first=first)
    kept: deque[LogEntry] = deque()
    count = 0
    while entries := reader.read():
        for entry in entries:
            kept.append(entry)
            count += entry.data.count(b"\n")
            while kept and count - kept[0].data.count(b"\n") > lines:
                count -= kept.popleft().data.count(b"\n")
    return list(kept), reader


def _cut(entries: list[LogEntry], lines: int) -> list[LogEntry]:
    """Returns the last `lines` lines; one without an end of line counts as a line."""
    text = b"".join(entry.data for entry in entries)
    whole = text.count(b"\n") + (0 if text.endswith(b"\n") or not text else 1)
    surplus, result = max(0, whole - lines), list[LogEntry]()
    for entry in entries:
        if not surplus:
            result.append(entry)
            continue
        pieces = entry.data.split(b"\n", surplus)
        surplus -= len(pieces) - 1
        if not surplus and pieces[-1]:
            result.append(LogEntry(entry.time, pieces[-1]))
    return result


def shed(directory: Path, stream: str, now: float) -> int:
    """Replaces one stream of an ended attempt's output by a segment that tells how many bytes it had; returns the bytes freed.

    0: there is no output, it was replaced before, or it is of another format. Raises OSError.
    """
    numbers = segments(directory, stream)
    paths = [directory / f"{stream}.{number}" for number in numbers]
    freed = sum(path.stat().st_size for path in paths)
    if freed <= _SHED_BYTES:
        return 0  # it has been given up before
    reader = LogReader(directory, stream, first=numbers[-1])
    try:
        while reader.read():
            pass  # only where it ends is of interest
    except Corrupt:
        return 0  # of another format: not ours to touch
    finally:
        reader.close()
    for path in paths[:-1]:
        path.unlink(missing_ok=True)
    text = f"{FORMAT} {reader.position}\n".encode() + streams.RECORD.pack(now, 0, 0)
    with paths[-1].open("r+b", buffering=0) as last:  # in place: a full disk has no room for another file
        last.truncate(_SHED_BYTES)
        last.write(text)
        last.truncate(len(text))
    return freed


def segments(directory: Path, stream: str) -> list[int]:
    """Returns the numbers of the stream's segments, oldest first; empty: there are none."""
    prefix = stream + "."
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(number) for name in names if name.startswith(prefix) and is_digits(number := name.removeprefix(prefix)))


def _parse_head(head: bytes, name: str) -> int:
    """Returns how many bytes of the stream lie before a segment, by its first line; raises Corrupt for another format."""
    number, _, start = head.strip().partition(b" ")
    if number != str(FORMAT).encode() or not is_digits(start):
        raise Corrupt(f"{name} begins with {head[:40]!r}; this agent reads log segments of format {FORMAT}")
    return int(start)
