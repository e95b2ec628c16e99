"""A node's part in a launch: asks for its keeper, and carries frames between the keeper's socket and the agent that heads the attempt."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lattice.daemon.clock import Clock
from lattice.errors import NotFound, Rejected, Retry
from lattice_agent.attempts import Key
from lattice_agent.launches.interface import KeeperHost
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame

READ_BYTES = 256 << 10
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
RECONNECT_SECONDS = 0.1
"""How long a relay waits before it connects again: another one for the same launch may have taken its place."""


class KeeperRelay:
    """Carries the frames of one launch on this node; `emit` takes those that go to the head, in order.

    A call that breaks leaves keeper and ranks alone: the head's next one goes on.
    """

    def __init__(self, keepers: KeeperHost, key: Key, number: int, emit: Callable[[Frame], None], clock: Clock) -> None:
        self._keepers, self._key, self._number, self._emit, self._clock = keepers, key, number, emit, clock
        self._sock: socket.socket | None = None
        self._unsent = bytearray()
        self._writable = asyncio.Event()
        self._done_number = -1
        self._acknowledged = False

    async def run(self, start: Mapping[str, Any] | None) -> None:
        """Starts the keeper where `start` describes the launch, and carries frames until it has gone; emits CLOSED then.

        A refusal is emitted as REFUSED, and all that was begun is removed.
        """
        if start is not None and not await self._begin(start):
            return
        pause = 0.0
        while True:
            await self._clock.sleep(pause)
            pause = RECONNECT_SECONDS
            try:
                self._sock = await self._keepers.connect(self._key, self._number)
            except NotFound:
                break
            self._writable.set()
            try:
                async with asyncio.TaskGroup() as group:
                    writing = group.create_task(self._write())
                    await self._read()
                    writing.cancel()
            finally:
                self._sock.close()
                self._sock = None
            if self._acknowledged:
                break
        await self._remove()

    async def _begin(self, start: Mapping[str, Any]) -> bool:
        """Has the keeper started; returns False where that is refused, after the refusal was emitted."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._keepers.start(self._key, {**start, "number": self._number})
            except Rejected as error:
                await self._ended()
                self._emit(Frame(frames.REFUSED, frames.encode_refused(1, error.message)))
                return False
            except Retry:
                await self._clock.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
            else:
                return True

    def send(self, frame: Frame) -> None:
        """Sends a frame to the keeper, after those before it; without a connection it is dropped, as the next one begins with STATE."""
        if self._sock is None:
            return
        self._unsent += frames.encode(frame.kind, frame.payload)
        self._writable.set()
        if frame.kind == frames.HAD and self._done_number >= 0:
            with suppress(frames.FrameError):
                self._acknowledged |= frames.decode_had(frame.payload)[1] >= self._done_number

    async def _write(self) -> None:
        """Writes what is to be sent, until cancelled or the keeper has gone."""
        loop = asyncio.get_running_loop()
        while self._sock is not None:
            await self._writable.wait()
            self._writable.clear()
            data, self._unsent = bytes(self._unsent), bytearray()
            try:
                await loop.sock_sendall(self._sock, data)
            except OSError:
                return  # reading tells

    async def _read(self) -> None:
        """Emits the keeper's frames until it closes the connection, or sends what is no frame."""
        loop, decoder = asyncio.get_running_loop(), Decoder()
        assert self._sock is not None  # noqa: S101 - `run` has connected
        while True:
            try:
                data = await loop.sock_recv(self._sock, READ_BYTES)
                found = decoder.feed(data)
            except (OSError, frames.FrameError):
                return
            if not data:
                return
            for frame in found:
                if frame.kind == frames.DONE:
                    with suppress(frames.FrameError):
                        self._done_number = frames.decode_numbered(frame.payload)[0]
                self._emit(frame)

    async def _remove(self) -> None:
        """Removes the launch from this node, and emits CLOSED with what its keeper noted, where nobody has heard its end."""
        noted = await self._ended()
        body = {"heard": self._acknowledged, "noted": dict(noted) if noted is not None else None}
        self._emit(Frame(frames.CLOSED, json.dumps(body).encode()))

    async def _ended(self) -> Mapping[str, Any] | None:
        """Ends the launch on this node, however long its processes take, and returns what its keeper noted."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._keepers.end_launch(self._key, self._number)
            except Retry:
                await self._clock.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
