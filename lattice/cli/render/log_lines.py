"""Renders log records: whole lines of each node and stream, with a prefix where several nodes print; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lattice.units import format_time


@dataclass(frozen=True)
class Printed:
    """One line that the work printed."""

    text: str


@dataclass(frozen=True)
class Remark:
    """A sentence for the person about the stream itself."""

    text: str


@dataclass(frozen=True)
class End:
    """The mark that the work has ended and everything was sent."""


Shown = Printed | Remark | End


@dataclass
class LineAssembler:
    """Joins lines that come in parts (records marked `partial`); `prefix`: node before each line, `timestamps`: time before each line."""

    prefix: bool
    timestamps: bool
    _open: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def feed(self, record: Mapping[str, Any]) -> Iterator[Shown]:
        """Yields what one record of the gateway adds to the output; a line that has no end yet is kept for the next record of its node and
        stream.

        A record of the end gives out the kept ones first; an unknown record adds nothing.
        """
        node = str(record.get("node", ""))
        if "end" in record:
            yield from self.flush()
            yield End()
        elif "dropped" in record:
            yield Remark(f"node {node}: {record['dropped']} bytes were dropped, the oldest first (the limit is by stream and node)")
        elif "gone" in record:
            why = record["gone"] if isinstance(record["gone"], str) else ""
            yield Remark(f"node {node} is gone, what it printed cannot be read now" + (f": {why}" if why else ""))
        elif "error" in record:
            yield Remark(f"{'node ' + node + ': ' if node else ''}{record['error']}")
        elif "text" in record:
            text = str(record["text"]) + ("" if record.get("partial") else "\n")
            yield from self._text(node, str(record.get("stream", "")), record.get("time"), text)

    def flush(self) -> Iterator[Shown]:
        """Yields the lines that have no end yet, and forgets them."""
        for (node, _), (time, text) in self._open.items():
            yield Printed(self._line(node, time, text))
        self._open.clear()

    def _text(self, node: str, stream: str, time: object, text: str) -> Iterator[Shown]:
        """Yields the lines that a piece of one node's output completes, and keeps the rest for the next piece.

        A line has the time of its first piece.
        """
        stamp, before = self._open.pop((node, stream), ("", ""))
        stamp = stamp or self._stamp(time)
        *whole, rest = (before + text).split("\n")
        for line in whole:
            yield Printed(self._line(node, stamp, line))
            stamp = self._stamp(time)
        if rest:
            self._open[(node, stream)] = (stamp, rest)

    def _stamp(self, time: object) -> str:
        """Returns a time as text; empty where times are not asked for or not known."""
        if not self.timestamps or time is None:
            return ""
        return time if isinstance(time, str) else format_time(float(str(time)), micro=True)

    def _line(self, node: str, stamp: str, text: str) -> str:
        """Returns a line with its time and node before it, where these are asked for."""
        return f"{stamp + ' ' if stamp else ''}{node + ': ' if self.prefix and node else ''}{text}"
