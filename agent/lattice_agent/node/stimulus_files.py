"""Writes the stimulus logs of a process to files: whole at a signal or a defect, or continuously by a flag.

Encoding and writing run in threads, so that no node waits for them; a file that cannot be written is logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from lattice import __version__
from lattice.daemon.logs import event
from lattice.kube.clock import Clock
from lattice.units import format_time
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.stimulus_log import Segment
from lattice_agent.lifecycle.stimulus_text import FORMAT, CheckpointLine, Header, checkpoint_line, encode, header_line, stimulus_line

log = logging.getLogger(__name__)

DIRECTORY = "stimuli"
"""The folder below the state directory with one file a node."""
FOLLOW_SECONDS = 1.0
FOLLOWED_BYTES, LEAST_BYTES = 64 << 20, 64 << 10
"""Most bytes of all files written continuously together (twice, with the former ones), and least limit of each."""


class KeepsStimuli(Protocol):
    """Has a state machine that may keep its stimuli; `Agent` is the implementation."""

    machine: Lifecycle


class StimulusFiles:
    """Writes the stimulus logs of a process's nodes into DIRECTORY/NODE, each file as a whole."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def header(self, node: str) -> Header:
        """Returns the header for a node's log, with the time now on two clocks."""
        return Header(FORMAT, node, __version__, format_time(self._clock.now()), self._clock.monotonic())

    async def write_log(self, node: str, machine: Lifecycle, why: str) -> None:
        """Writes the stimulus log of a node's machine into DIRECTORY/NODE, replacing an older one; logs the file and `why`, or the failure.

        Does nothing where the machine keeps none.
        """
        if machine.stimuli is not None:
            header, segments = self.header(node), machine.stimuli.segments()
            await asyncio.to_thread(self._write, header, segments, why)

    def _write(self, header: Header, segments: Sequence[Segment], why: str) -> None:
        """Writes a log whole into its file and logs that, or the failure; a half-written file is removed."""
        path = self._directory / header.node
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(encode(header, segments))
            draft.rename(path)
        except OSError as error:
            event(log, "StimuliNotWritten", logging.WARNING, node=header.node, message=str(error))
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        else:
            event(log, "StimuliWritten", node=header.node, reason=why, file=str(path))

    async def follow_logs(self, agents: Mapping[str, KeepsStimuli]) -> None:
        """Appends each second the new events of every node that keeps stimuli to DIRECTORY/NODE, until cancelled, and the rest then; files
        are rotated and limited.

        A failure is logged once in a row, and its events are written by the next call that succeeds.
        """
        limit = max(LEAST_BYTES, FOLLOWED_BYTES // max(1, len(agents)))
        files = {node: FollowedFile(self._directory / node, limit) for node in agents}
        failing: set[str] = set()
        try:
            while True:
                await self._clock.sleep(FOLLOW_SECONDS)
                for node, agent in agents.items():
                    if agent.machine.stimuli is not None:
                        segments = agent.machine.stimuli.segments()
                        await asyncio.to_thread(self._append, files[node], self.header(node), segments, failing)
        finally:
            for node, agent in agents.items():
                if agent.machine.stimuli is not None:
                    self._append(files[node], self.header(node), agent.machine.stimuli.segments(), failing)

    def _append(self, file: FollowedFile, header: Header, segments: Sequence[Segment], failing: set[str]) -> None:
        """Writes a node's new events to its file; logs only the first failure of a file in a row, by the node's name in `failing`."""
        try:
            file.append(header, segments)
            failing.discard(header.node)
        except OSError as error:
            if header.node not in failing:
                event(log, "StimuliNotWritten", logging.WARNING, node=header.node, message=str(error))
            failing.add(header.node)

    def at_failure(self, agents: Mapping[str, KeepsStimuli]) -> AtFailure:
        """Returns a context that writes every node's log when an error leaves it; a process ended by a signal writes none."""
        return AtFailure(self, agents)

    async def write_at_signals(self, agents: Mapping[str, KeepsStimuli]) -> None:
        """Writes the log of every node that keeps stimuli at each SIGUSR1, until cancelled; a process that keeps none logs that."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, asked.set)
        try:
            while True:
                await asked.wait()
                asked.clear()
                kept = {node: agent.machine for node, agent in agents.items() if agent.machine.stimuli is not None}
                if not kept:
                    event(log, "StimuliNotWritten", logging.WARNING, message="this process keeps none (--stimulus-events)")
                for node, machine in kept.items():
                    await self.write_log(node, machine, "Signal")
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)


class AtFailure:
    """A context that writes the logs of all nodes when an error ends the process."""

    def __init__(self, files: StimulusFiles, agents: Mapping[str, KeepsStimuli]) -> None:
        self._files = files
        self._agents = agents

    async def __aenter__(self) -> None:
        """Does nothing before an error."""

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Writes the log of every node where a defect ends the process, and lets the error go on."""
        if error is not None and not isinstance(error, asyncio.CancelledError):
            for node, agent in self._agents.items():
                await self._files.write_log(node, agent.machine, "Failure")


class FollowedFile:
    """Appends one node's stimuli to PATH as they come; at its limit it is renamed to PATH.1, and a new file begins with a checkpoint."""

    def __init__(self, path: Path, limit: int) -> None:
        """Sets the path and the limit in bytes; makes no file before the first `append`, which renames an existing one to PATH.1."""
        self._path, self._limit = path, limit
        self._written = 0
        """How many events are in this file or the ones before it."""
        self._size = 0
        """Bytes of the present file; 0: none was begun."""
        self._appending = threading.Lock()
        """The rest is written once its follower is cancelled, whose thread may be writing."""

    def append(self, header: Header, segments: Sequence[Segment]) -> None:
        """Appends the events since the last call, in a new file once the limit is reached; marks events that the log dropped as a gap.

        Raises OSError; the next call then writes these events again.
        """
        with self._appending:
            self._append_unwritten(header, segments)

    def _append_unwritten(self, header: Header, segments: Sequence[Segment]) -> None:
        """Appends what is not in the file yet. Raises OSError."""
        unwritten = [segment for segment in segments if segment.first + len(segment.stimuli) > self._written]
        if not unwritten:
            return
        begins = not 0 < self._size < self._limit
        lines = [header_line(header)] if begins else []
        for segment in unwritten:
            if begins or segment.first >= self._written:
                gap = segment.first > self._written and not begins
                lines.append(checkpoint_line(CheckpointLine(segment.first, segment.checkpoint, gap)))
            since = 0 if begins else max(0, self._written - segment.first)
            lines += map(stimulus_line, segment.stimuli[since:])
        self._write(b"".join(lines), begins=begins)
        self._written = unwritten[-1].first + len(unwritten[-1].stimuli)

    def _write(self, text: bytes, *, begins: bool) -> None:
        """Appends text to the file; with `begins` the file is renamed to PATH.1 before, and a new one begins. Raises OSError."""
        if begins:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._path.exists():
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._size = 0
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(text)
        self._size += len(text)
