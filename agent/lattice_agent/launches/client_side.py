"""The conversation with one client of `srun`: on this node's socket, or forwarded by the agent of another node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lattice.errors import Retry
from lattice_agent.peers.interface import ByteStream
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame, FrameError

WAITING_FRAMES = 4
"""Frames of a client that are read before somebody takes them."""
ANSWER_BYTES, CONTENT_BYTES, NEWS_BYTES = 64, (1 << 20) + 1, (64 << 10) + 8
"""Most bytes of a client's frame before its launch has begun, of the file that it was asked to read, and of one afterwards (INPUT)."""
EARLY_FRAMES = 64
"""Most frames that a client sends at once before its launch has begun."""
FULL_BYTES = 256 << 10
"""Bytes to a client that wait to be written above which output of ranks is held back."""
UNSENT_BYTES = 4 << 20
"""Most bytes to a client that wait to be written; one for which there are more does not read, and its conversation ends."""


@dataclass(frozen=True)
class ClientProcess:
    """The process of a client: its node, and there its pid and start time."""

    node: str
    pid: int = 0
    ticks: int = 0


class ClientSide:
    """Reads a client's frames and sends it frames; `process_ended` tells whether its process has gone, so that it will not come again."""

    def __init__(
        self, stream: ByteStream, process: ClientProcess, process_ended: Callable[[], bool], decoder: Decoder | None = None
    ) -> None:
        self.process = process
        self._stream, self._process_ended = stream, process_ended
        self._decoder = decoder or Decoder()
        self._heard: asyncio.Queue[Frame | None] = asyncio.Queue(WAITING_FRAMES)
        self._heard_bytes = 0
        self._unsent = bytearray()
        self._dropped = asyncio.Event()
        self.drained: Callable[[], None] | None = None
        """Is called whenever what was to be sent is written."""
        self._written = asyncio.Event()
        self._closing = False
        self.hung_up = False
        self.left = False
        """Whether the client has closed the conversation, or it was closed."""
        self._interrupted: asyncio.Timeout | None = None
        self.limit(ANSWER_BYTES)

    def limit(self, most: int) -> None:
        """Refuses frames above `most` bytes from now on; drops a client of which such a one waits or has begun."""
        self._most, rest, self._decoder = most, self._decoder.rest(), Decoder(most)
        try:
            self._decoder.feed(rest)
        except FrameError:
            self.cut_off()
        if self._heard_bytes > WAITING_FRAMES * most:
            self.cut_off()

    @property
    def is_full(self) -> bool:
        """Tells whether so much waits to be written that output of ranks is to be held back."""
        return len(self._unsent) >= FULL_BYTES

    @property
    def is_gone(self) -> bool:
        """Tells whether the client's process has ended, so that nobody will take its launch up again."""
        return self.hung_up or self._process_ended()

    async def run(self, first: list[Frame]) -> None:
        """Reads and writes until the client has left or was dropped, or `close` was called and everything is written; `first` was read
        already.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (self._read(first), self._write(), self._dropped.wait())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        self._leave()

    async def _read(self, first: list[Frame]) -> None:
        """Queues the client's frames until it closes its end, its process has ended, or it sends what is no frame."""
        found = first
        while True:
            self._heard_bytes += sum(len(frame.payload) for frame in found if frame.kind != frames.HANGUP)
            if self._most != NEWS_BYTES and (len(found) > EARLY_FRAMES or self._heard_bytes > WAITING_FRAMES * self._most):
                return
            for frame in found:
                if frame.kind == frames.HANGUP:
                    self.hung_up = True
                    return
                await self._heard.put(frame)
            try:
                data = await self._stream.read_bytes()
                found = self._decoder.feed(data)
            except (Retry, FrameError):
                return
            if not data:
                return

    async def _write(self) -> None:
        """Writes what is to be sent until `close` was called and nothing is left, or the client has gone."""
        while not (self._closing and not self._unsent):
            await self._written.wait()
            self._written.clear()
            data = bytes(self._unsent)
            self._unsent.clear()
            try:
                await self._stream.write_bytes(data)
            except Retry:
                return
            if self.drained is not None:
                self.drained()

    def _leave(self) -> None:
        """Marks the conversation ended, and wakes who waits for its next frame."""
        self.left = True
        while self._heard.full():
            self._heard.get_nowait()
        self._heard.put_nowait(None)
        if self._interrupted is not None:
            with suppress(RuntimeError):
                self._interrupted.reschedule(asyncio.get_running_loop().time())

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Sends a frame, after those before it; nothing where the client has left. One that has not read 4 MiB before is dropped."""
        if self.left or self._dropped.is_set():
            return
        if len(self._unsent) > UNSENT_BYTES:
            self.cut_off()
            return
        self._unsent += frames.encode(kind, payload)
        self._written.set()

    def say(self, text: str) -> None:
        """Sends text for the client's standard error, as whole lines."""
        self.send(frames.SAY, text.rstrip("\n").encode(errors="surrogateescape") + b"\n")

    def close(self) -> None:
        """Ends the conversation once everything is written."""
        self._closing = True
        self._written.set()

    def cut_off(self) -> None:
        """Ends the conversation at once, whatever was to be written."""
        self._unsent.clear()
        self._dropped.set()

    async def next_frame(self) -> Frame | None:
        """Returns the client's next frame; None: it has left."""
        if self.left and self._heard.empty():
            return None
        frame = await self._heard.get()
        self._heard_bytes -= len(frame.payload) if frame is not None else 0
        return frame

    def unless_left(self) -> asyncio.Timeout:
        """Returns a block that is interrupted with TimeoutError once the client leaves."""
        self._interrupted = asyncio.timeout(asyncio.get_running_loop().time() if self.left else None)
        return self._interrupted
