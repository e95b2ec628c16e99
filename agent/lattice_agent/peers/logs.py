"""Streams the output of work on this node from its log segments, with back pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from lattice.kube.clock import Clock
from lattice.rpc.v1 import agent_pb2 as pb
from lattice_agent.state.log_store import LogEntry, LogReader, tail

POLL_SECONDS = 0.1
LARGEST_CHUNK = 1 << 18

STREAMS: dict[str, pb.Stream.ValueType] = {"stdout": pb.STDOUT, "stderr": pb.STDERR}


@dataclass(frozen=True, slots=True)
class LogSelection:
    """The output that a request asks for: streams, the last `tail_lines` lines (−1: all), from `since` on (seconds since the epoch).

    `follow`: go on until the work has ended.
    """

    streams: tuple[str, ...]
    follow: bool
    tail_lines: int
    since: float


def wanted(request: pb.ReadLogsRequest) -> LogSelection:
    """Returns what output a request asks for."""
    streams = tuple(name for name, value in STREAMS.items() if request.stream in (pb.STREAM_UNSPECIFIED, value))
    return LogSelection(streams, request.follow, request.tail_lines, request.since)


async def read(directory: Path, attempt: int, want: LogSelection, ended: Callable[[], bool], clock: Clock) -> AsyncIterator[pb.LogChunk]:
    """Yields the output of one attempt in chunks, oldest first within a stream, and last a chunk without output.

    The `end` of the last one says whether the work had ended, as `ended` tells. Raises Corrupt for a log segment of another format.
    """
    readers: dict[str, LogReader] = {}
    try:
        for stream in want.streams:
            if want.tail_lines >= 0:
                entries, readers[stream] = await asyncio.to_thread(tail, directory, stream, want.tail_lines)
            else:
                readers[stream] = LogReader(directory, stream)
                entries = []
            for chunk in _chunks(stream, attempt, entries, want.since):
                yield chunk
        while True:
            over = ended()  # asked before the last look: what was written before the end is then seen
            found = False
            for stream, reader in readers.items():
                entries = reader.read(LARGEST_CHUNK)
                found = found or bool(entries)
                for chunk in _chunks(stream, attempt, entries, want.since):
                    yield chunk
            if found:
                await clock.sleep(0.0)  # others' turn, also while all that is read is older than wanted
                continue
            if over or not want.follow:
                yield pb.LogChunk(attempt=attempt, end=over)
                return
            await clock.sleep(POLL_SECONDS)
    finally:
        for reader in readers.values():
            reader.close()


def _chunks(stream: str, attempt: int, entries: list[LogEntry], since: float) -> list[pb.LogChunk]:
    """Returns one message an entry, cut where it is large; entries older than `since` are left out, and not counted as dropped."""
    found = []
    for entry in entries:
        if entry.time < since:
            continue
        dropped = entry.dropped
        for start in range(0, max(1, len(entry.data)), LARGEST_CHUNK):
            data = entry.data[start : start + LARGEST_CHUNK]
            found.append(pb.LogChunk(stream=STREAMS[stream], time=entry.time, data=data, dropped_bytes=dropped, attempt=attempt))
            dropped = 0
    return found
