"""Carries the streams of a launch's ranks: output as whole lines, labelled where that is asked, and the caller's input to its readers.

It is of standard library alone, for the keeper.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from lattice_agent.standalone.frames import INPUT_WINDOW, OUTPUT_BYTES
from lattice_agent.standalone.streams import MAX_PARTIAL, PARTIAL_SECONDS


class RankOutput:
    """Reads one stream of one rank, and passes on whole lines, a partial one after a moment, or with `unbuffered` whatever is there."""

    def __init__(self, fd: int, label: bytes, take: Callable[[bytes], None], *, unbuffered: bool = False) -> None:
        """Reads the non-blocking `fd`. `label` stands before each line (empty: nothing does), which then is never passed on in parts."""
        self.fd = fd
        self._label, self._take, self._unbuffered = label, take, unbuffered
        self._pending, self._since = b"", 0.0
        self.idle = False
        """Whether the pipe was empty when it was last read."""

    def read_rank(self, now: float) -> bool:
        """Reads what is in the pipe, 64 KiB at most, and passes it on; returns False at its end. `now` is a monotonic time."""
        try:
            data = os.read(self.fd, OUTPUT_BYTES)
        except BlockingIOError:
            self.idle = True
            return True
        self.idle = False
        if data:
            self._accept(now, data)
        return bool(data)

    def _accept(self, now: float, data: bytes) -> None:
        """Adds data to the partial line that is held back, and passes on what is complete."""
        if self._unbuffered and not self._label:
            self._take(data)
            return
        whole, newline, rest = (self._pending + data).rpartition(b"\n")
        if newline:
            self._pass(whole + newline)
        if rest and (newline or not self._pending):
            self._since = now
        self._pending = rest
        if len(rest) > MAX_PARTIAL:
            self.flush()

    def _pass(self, lines: bytes) -> None:
        """Passes lines on, each with its label, in parts of at most 64 KiB; a carriage return alone ends no line."""
        if self._label:
            lines = b"".join(self._label + line + b"\n" for line in lines[:-1].split(b"\n"))
        for at in range(0, len(lines), OUTPUT_BYTES):
            self._take(lines[at : at + OUTPUT_BYTES])

    @property
    def held_until(self) -> float | None:
        """Returns when the partial line is to be passed on, a monotonic time; None: there is none, or it waits for its end."""
        return self._since + PARTIAL_SECONDS if self._pending and not self._label else None

    def flush(self) -> None:
        """Passes on a partial line that is held back, as a whole one where lines are labelled."""
        if self._pending:
            text, self._pending = self._pending, b""
            self._pass(text + b"\n" if self._label else text)

    def close(self) -> None:
        """Passes on what is held back, and closes the pipe."""
        self.flush()
        os.close(self.fd)


class RankInput:
    """Writes the caller's input to the ranks that read it; holds no more than 64 KiB of it that the slowest has not taken."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Writes to these pipes, which do not block."""
        self.offset = 0
        """Up to where the input is here."""
        self.ended = not fds
        self._chunks: deque[tuple[int, bytes]] = deque()
        self._at = dict.fromkeys(fds, 0)

    @property
    def room(self) -> int:
        """Returns up to which offset input may be sent."""
        return min(self._at.values(), default=self.offset) + INPUT_WINDOW

    @property
    def writers(self) -> list[int]:
        """Returns the descriptors of those ranks that have not taken all of it."""
        return [fd for fd, at in self._at.items() if at < self.offset]

    def accept(self, offset: int, data: bytes) -> None:
        """Takes input from this offset on; what is here already is dropped, and so is what lies beyond a gap. Empty data ends the input.

        Where no rank reads any more, it is taken and dropped.
        """
        if self.ended or offset > self.offset:
            return
        if not data:
            self.ended = offset == self.offset
        fresh = data[self.offset - offset :]
        if fresh:
            self._chunks.append((self.offset, fresh))
            self.offset += len(fresh)
        self.write_ranks()

    def write_ranks(self) -> None:
        """Writes what the pipes take; a rank that has closed its input gets no more, one that has all of an ended input reads its end."""
        for fd in list(self._at):
            try:
                self._write_to(fd)
            except OSError:  # it reads no more
                self._drop(fd)
            else:
                if self.ended and self._at[fd] == self.offset:
                    self._drop(fd)
        least = min(self._at.values(), default=self.offset)
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= least:
            self._chunks.popleft()

    def _write_to(self, fd: int) -> None:
        """Writes to one pipe what it takes; raises OSError where nobody reads it."""
        for begin, chunk in self._chunks:
            while begin <= self._at[fd] < begin + len(chunk):
                with suppress(BlockingIOError):
                    self._at[fd] += os.write(fd, memoryview(chunk)[self._at[fd] - begin :])
                    continue
                return

    def hung_up(self, fd: int) -> None:
        """Drops a pipe whose reader has gone."""
        self._drop(fd)
        self.write_ranks()

    def _drop(self, fd: int) -> None:
        """Closes one pipe, to which nothing more is written."""
        if self._at.pop(fd, None) is not None:
            os.close(fd)

    def close(self) -> None:
        """Closes all pipes, and keeps nothing."""
        for fd in list(self._at):
            self._drop(fd)
        self._chunks.clear()
        self.ended = True
