"""Makes records of lines from the chunks of a node's output, without loss or repetition over reconnects; pure."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.rpc.v1 import agent_pb2 as pb
from lattice.units import format_time

Record = dict[str, Any]

NAMES: Final = {pb.STDOUT: "stdout", pb.STDERR: "stderr"}
LONGEST_LINE: Final = 65536
"""Characters after which a line without an end is sent in parts."""


@dataclass
class _OutputStream:
    """The state of one stream (stdout or stderr): its unfinished line, and up to which moment it has been read."""

    name: str
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace"))
    text: str = ""
    began: float = 0.0
    last: float = 0.0
    at_last: int = 0
    skip: int = 0


class OutputLines:
    """Makes records from the chunks of one node and attempt; after a reconnect it skips chunks that it has had."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._streams = {value: _OutputStream(name) for value, name in NAMES.items()}
        self.begun = False
        """Whether anything has come yet."""

    @property
    def position(self) -> float:
        """Returns the time from which a reconnect must read, seconds since the epoch: that of the stream that is behind.

        0: nothing has come, it reads from the beginning.
        """
        return min((stream.last for stream in self._streams.values() if stream.last), default=0.0)

    @property
    def unfinished(self) -> bool:
        """Tells whether some line has no end yet."""
        return any(stream.text for stream in self._streams.values())

    def resume(self) -> None:
        """Prepares for a new connection that reads from `position` on: chunks that were had before are then skipped by `feed`."""
        for stream in self._streams.values():
            stream.skip = stream.at_last

    def feed(self, chunk: pb.LogChunk) -> list[Record]:
        """Returns the records of one chunk; the last line is held back until its end comes, or it is 65,536 characters long.

        Where bytes were dropped before the chunk, a record tells how many, behind the line that they cut. Empty for a chunk that was had
        before the last reconnect, or of an unknown stream.
        """
        stream = self._streams.get(chunk.stream)
        if stream is None or self._had(stream, chunk):
            return []
        self.begun = True
        records: list[Record] = []
        if chunk.dropped_bytes:
            records += self._part(stream)
            records.append({"node": self.node, "stream": stream.name, "dropped": chunk.dropped_bytes})
        *whole, rest = (stream.text + stream.decoder.decode(chunk.data)).split("\n")
        for index, line in enumerate(whole):
            began = stream.began if index == 0 and stream.text else chunk.time
            records.append(self._record(stream, began, line))
        if not (stream.text and not whole):
            stream.began = chunk.time
        stream.text = rest
        if len(rest) >= LONGEST_LINE:
            records += self._part(stream)
        return records

    def flush(self) -> list[Record]:
        """Returns the unfinished lines as records marked `partial`, and keeps them no longer; empty: there are none."""
        return [record for stream in self._streams.values() for record in self._part(stream)]

    def finish(self) -> list[Record]:
        """Returns the unfinished lines at the end of the output as records marked `partial`, with bytes that make no whole character
        replaced; empty: there are none.
        """
        for stream in self._streams.values():
            stream.text += stream.decoder.decode(b"", final=True)
        return self.flush()

    def _had(self, stream: _OutputStream, chunk: pb.LogChunk) -> bool:
        """Tells whether a chunk was read before the reconnect, and notes it as read; chunks with the same time are counted."""
        if chunk.time < stream.last:
            return stream.skip > 0
        if chunk.time == stream.last and stream.skip > 0:
            stream.skip -= 1
            return True
        stream.skip = 0
        stream.at_last = stream.at_last + 1 if chunk.time == stream.last else 1
        stream.last = chunk.time
        return False

    def _part(self, stream: _OutputStream) -> list[Record]:
        """Returns the record of the unfinished line of a stream, marked as partial, and empties it; nothing where there is none."""
        if not stream.text:
            return []
        record = self._record(stream, stream.began, stream.text) | {"partial": True}
        stream.text = ""
        return [record]

    def _record(self, stream: _OutputStream, began: float, text: str) -> Record:
        """Returns the record of a line that began at `began`, seconds since the epoch."""
        return {"node": self.node, "stream": stream.name, "time": format_time(began, micro=True), "text": text}
