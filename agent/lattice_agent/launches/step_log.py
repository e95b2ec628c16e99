"""Keeps the step log of an attempt: a row for each launch that is over, on the disk of the node that heads it, beside the work's output.

Each row is a record of a log segment (`standalone.streams`, format 1): a line of JSON with the row, and with how many launches up to it had
each result, so that what rotation or a full disk has dropped is still counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from lattice.errors import Corrupt
from lattice.launches.answers import CANCELLED, COMPLETED, FAILED, NODE_FAIL, RESULTS, TIMEOUT, LaunchRow
from lattice.views.allocation import FailedLaunch, LaunchTotals
from lattice_agent.standalone.streams import SEGMENTS, LogStream
from lattice_agent.state.log_store import LogReader, segments

STREAM: Final = "launches"
MOST_BYTES: Final = 16 << 20
LARGEST_ROW: Final = 8 << 10
KEEP_BYTES: Final = MOST_BYTES - SEGMENTS * LARGEST_ROW
"""A segment ends with the row that exceeds its share."""
FAILURES_KEPT: Final = 5
_FAILURES: Final = frozenset({FAILED, TIMEOUT, NODE_FAIL})


class LoggedLaunch(msgspec.Struct, frozen=True):
    """One record of the log: how many launches had each of `RESULTS` up to this one, and its row."""

    counts: tuple[int, ...]
    row: LaunchRow


@dataclass(frozen=True)
class FoundRows:
    """Rows of a step log, oldest first: how many older ones it has no more (`dropped`), and how many it has beyond these (`left_out`)."""

    rows: list[LaunchRow]
    dropped: int = 0
    left_out: int = 0
    counted: int = 0
    """How many launches were over with the newest row."""
    deleted: bool = False
    """Whether all rows were deleted to make room on the node's disk."""


class StepLog:
    """Writes the step log of one attempt, and counts the launches in it; a disk that refuses a row loses the row, and not its count."""

    def __init__(self, directory: Path | None, allocation: int) -> None:
        """Keeps it in the attempt's directory (None: nowhere), of the allocation of this number, and goes on behind what stands there."""
        self._directory, self._allocation = directory, allocation
        self._counts = dict.fromkeys(RESULTS, 0)
        self._failures: deque[FailedLaunch] = deque(maxlen=FAILURES_KEPT)
        self._found: frozenset[int] = frozenset()
        self._stream: LogStream | None = None
        if directory is not None:
            with suppress(OSError, Corrupt):  # of a newer agent, or unreadable: it is left as it is, and rows are counted alone
                self._stream = self._resume(directory)

    def _resume(self, directory: Path) -> LogStream:
        """Counts what an agent before this one has written, and returns the stream behind its last whole row.

        Raises OSError, and Corrupt for a log of another format.
        """
        stream = LogStream(str(directory), STREAM, KEEP_BYTES)
        numbers = _whole_segments(directory)
        if not numbers:
            return stream
        reader = LogReader(directory, STREAM, first=numbers[-2:][0])
        try:
            found = list(_logged(reader))
            number, size = reader.place
            stream.continue_segment(number, size, reader.position)
        finally:
            reader.close()
        self._found = frozenset(logged.row.number for logged in found)
        for logged in found:
            self._note_failure(logged.row)
        if found:
            self._counts |= dict(zip(RESULTS, found[-1].counts, strict=False))
        return stream

    def append(self, row: LaunchRow, now: float) -> bool:
        """Appends the row of a launch that is over, and counts it; returns False, and does nothing, for one that an agent before this one
        has written.
        """
        if row.number in self._found:
            return False
        self._counts[row.state if row.state in self._counts else FAILED] += 1
        self._note_failure(row)
        if self._stream is not None:
            logged = LoggedLaunch(tuple(self._counts[result] for result in RESULTS), row)
            self._stream.write(now, msgspec.json.encode(logged) + b"\n")
        return True

    def _note_failure(self, row: LaunchRow) -> None:
        """Keeps a launch that failed among the last ones."""
        if row.state in _FAILURES:
            self._failures.append(FailedLaunch(
                step=f"{self._allocation}.{row.number}", result=row.state, code=row.code, signal=row.signal, node=row.node,
                reason=row.reason,
            ))  # fmt: skip

    def totals(self, *, unfinished: int = 0) -> LaunchTotals:
        """Returns how many launches are over, by result; `unfinished` ones end with their allocation, and count as cancelled."""
        counts = self._counts
        return LaunchTotals(
            total=sum(counts.values()) + unfinished, completed=counts[COMPLETED], failed=counts[FAILED],
            cancelled=counts[CANCELLED] + unfinished, timeout=counts[TIMEOUT], node_fail=counts[NODE_FAIL],
            failures=tuple(reversed(self._failures)),
        )  # fmt: skip

    def close(self) -> None:
        """Closes the segment."""
        if self._stream is not None:
            self._stream.close()


def read_rows(directory: Path, limit: int, number: int | None = None) -> FoundRows:
    """Returns the newest `limit` rows of the step log in a directory; with `number` those of this launch alone.

    Reads up to 16 MiB. Raises Corrupt for a log of another format.
    """
    kept: deque[bytes] = deque(maxlen=limit)
    needle, last, rows, lost = f'"row":{{"number":{number},'.encode(), b"", 0, 0
    reader = LogReader(directory, STREAM)
    try:
        while entries := reader.read():
            for entry in entries:
                lost += entry.dropped
                if not entry.data:
                    continue
                rows, last = rows + 1, entry.data
                if number is None or needle in entry.data:
                    kept.append(entry.data)
    finally:
        reader.close()
    found = {logged.row.number: logged.row for logged in map(_read_line, kept) if logged is not None}
    end = _read_line(last)
    counted = sum(end.counts) if end is not None else 0
    left_out = 0 if number is not None else max(0, rows - len(kept))
    return FoundRows(list(found.values()), max(0, counted - rows), left_out, counted, deleted=not rows and lost > 0)


def has_log(directory: Path) -> bool:
    """Tells whether a directory has a step log."""
    return bool(segments(directory, STREAM))


def _logged(reader: LogReader) -> Iterator[LoggedLaunch]:
    """Yields what a reader finds, in order; what does not read is passed over."""
    while entries := reader.read():
        for entry in entries:
            if (logged := _read_line(entry.data)) is not None:
                yield logged


def _read_line(line: bytes) -> LoggedLaunch | None:
    """Returns a record of the log; None where it does not read, or none is left."""
    try:
        found = msgspec.json.decode(line, type=LoggedLaunch) if line else None
    except msgspec.MsgspecError:
        return None
    return found


def _whole_segments(directory: Path) -> list[int]:
    """Returns the numbers of the log's segments, oldest first; removes the last one where its head is torn."""
    numbers = segments(directory, STREAM)
    if numbers:
        path = directory / f"{STREAM}.{numbers[-1]}"
        with path.open("rb") as file:
            torn = not file.readline(64).endswith(b"\n")
        if torn:
            path.unlink()
            numbers.pop()
    return numbers
