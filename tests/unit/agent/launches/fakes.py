"""A keeper that a test moves by hand, and a client of srun without a process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound, Rejected
from lattice_agent.attempts import Key
from lattice_agent.launches.client_side import ClientProcess, ClientSide
from lattice_agent.launches.interface import AttemptHere
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame

TICK_SECONDS = 0.005


class PassingClock(ManualClock):
    """A clock that passes while a test waits, and only then: a machine that is held up lets no time pass, and a test sets it forward."""

    def __init__(self) -> None:
        super().__init__()
        self._stands = False

    async def tick(self) -> None:
        """Lets time pass, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self._stands:
                self.advance(TICK_SECONDS)

    async def run_for(self, seconds: float) -> None:
        """Advances by exactly so much, step by step."""
        self._stands = True
        try:
            await super().run_for(seconds)
        finally:
            self._stands = False


@dataclass
class FakeKeeper:
    """One launch's keeper on one node: its numbered frames are kept until they are acknowledged, as a real one does."""

    start: Mapping[str, Any]
    kept: list[tuple[int, Frame]] = field(default_factory=list)
    heard: list[Frame] = field(default_factory=list)
    last: int = 0
    begun: bool = False
    taken: bytearray = field(default_factory=bytearray)
    input_ended: bool = False
    connection: socket.socket | None = None
    exited: bool = False
    over: bool = False
    heeds_end: bool = True

    def emit(self, kind: int, payload: bytes) -> None:
        """Sends one numbered frame, which has its number already."""
        self.kept.append((self.last, Frame(kind, payload)))
        self._send(kind, payload)

    def _send(self, kind: int, payload: bytes) -> None:
        if self.connection is not None:
            with suppress(OSError):
                self.connection.sendall(frames.encode(kind, payload))

    def print(self, rank: int, data: bytes, stream: int = frames.STDOUT) -> None:
        """A rank's output."""
        self.last += 1
        self.emit(frames.OUTPUT, frames.encode_output(frames.Output(0, self.last, stream, rank, data)))

    def exit(self, *codes: int) -> None:
        """The end of all ranks, with these codes."""
        self.exited = True
        for entry, code in zip(self.start["ranks"], codes, strict=True):
            self.last += 1
            self.emit(
                frames.ENDED, frames.encode_ended(frames.RankEnded(0, self.last, entry["rank"], code, code - 128 if code > 128 else 0))
            )
        rows = [[entry["rank"], code, 0, 0, 0, 0, 0, 0] for entry, code in zip(self.start["ranks"], codes, strict=True)]
        self.last += 1
        self.emit(frames.DONE, frames.encode_numbered(self.last, json.dumps({"failure": "", "ranks": rows}).encode()))

    def attach(self) -> socket.socket:
        """A new connection, which begins with the state and all that was not acknowledged."""
        ours, theirs = socket.socketpair()
        if self.connection is not None:
            self.connection.close()
        self.connection = ours
        ours.setblocking(False)
        state = {"number": self.start["number"], "execed": True, "input": len(self.taken), "room": len(self.taken) + frames.INPUT_WINDOW}
        self._send(frames.STATE, json.dumps(state).encode())
        for _, frame in self.kept:
            self._send(frame.kind, frame.payload)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._read, ours, Decoder())
        theirs.setblocking(False)
        return theirs

    def _read(self, connection: socket.socket, decoder: Decoder) -> None:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.close()
            return
        for frame in decoder.feed(data):
            self.heard.append(frame)
            self._take(frame, connection)

    def _take(self, frame: Frame, connection: socket.socket) -> None:
        if frame.kind == frames.HAD:
            number = frames.decode_had(frame.payload)[1]
            self.kept = [(each, kept) for each, kept in self.kept if each > number]
            if not self.kept and self.exited and number == self.last:
                self.over = True
                if connection.fileno() >= 0:
                    asyncio.get_running_loop().remove_reader(connection.fileno())
                connection.close()
        elif frame.kind == frames.INPUT:
            offset, data = frames.decode_input(frame.payload)
            if offset <= len(self.taken):
                self.taken += data[len(self.taken) - offset :]
                self.input_ended |= not data
                self._send(frames.ROOM, frames.encode_room(len(self.taken) + frames.INPUT_WINDOW))
        elif frame.kind == frames.GO:
            self.begun = True
        elif frame.kind == frames.END and self.heeds_end and not any(kept.kind == frames.DONE for _, kept in self.kept):
            self.exit(*[137] * len(self.start["ranks"]))


class FakeKeepers:
    """The keepers of one node (interface.KeeperHost); they outlive the agent that asked for them."""

    def __init__(self) -> None:
        self.keepers: dict[int, FakeKeeper] = {}
        self.started: list[int] = []
        self.ended: list[int] = []
        self.refusal = ""

    def close(self) -> None:
        """Closes what is open."""
        for keeper in self.keepers.values():
            if keeper.connection is not None:
                keeper.connection.close()

    async def start(self, key: Key, launch: Mapping[str, Any]) -> tuple[int, int]:
        if self.refusal:
            raise Rejected(self.refusal, reason="StartFailed")
        number = int(launch["number"])
        if number not in self.keepers:
            self.keepers[number] = FakeKeeper(launch)
            self.started.append(number)
        return 1, 1

    async def connect(self, key: Key, number: int) -> socket.socket:
        keeper = self.keepers.get(number)
        if keeper is None or keeper.over:
            raise NotFound("no keeper")
        return keeper.attach()

    async def end_launch(self, key: Key, number: int) -> dict[str, Any] | None:
        self.ended.append(number)
        keeper = self.keepers.pop(number, None)
        if keeper is not None and keeper.connection is not None:
            keeper.connection.close()
        return None


class Pipe:
    """One direction of bytes."""

    def __init__(self) -> None:
        self.data: asyncio.Queue[bytes] = asyncio.Queue()


class FakeStream:
    """One end of a conversation in memory (peers.interface.ByteStream)."""

    def __init__(self, reads: Pipe, writes: Pipe) -> None:
        self._reads, self._writes = reads, writes

    async def write_bytes(self, data: bytes) -> None:
        self._writes.data.put_nowait(data)

    async def read_bytes(self) -> bytes:
        return await self._reads.data.get()


class FakeClient:
    """srun: reads frames, acknowledges what it was told to, and keeps the output."""

    def __init__(self, *, node: str = "n1", ended: bool = False) -> None:
        there, back = Pipe(), Pipe()
        self._stream = FakeStream(back, there)
        self.ended = ended
        self.side = ClientSide(FakeStream(there, back), ClientProcess(node, 1, 1), lambda: self.ended)
        self._decoder = Decoder()
        self.frames: list[Frame] = []
        self.output: dict[int, bytes] = {}
        self.had: dict[int, int] = {}
        self.said = ""

    async def send(self, kind: int, payload: bytes = b"") -> None:
        await self._stream.write_bytes(frames.encode(kind, payload))

    async def leave(self) -> None:
        """Closes the connection."""
        await self._stream.write_bytes(b"")

    async def until(self, kind: int, *, acknowledge: bool = True) -> Frame:
        """The next frame of this type; what came before it is noted, and acknowledged."""
        async with asyncio.timeout(60):
            while True:
                while self.frames:
                    frame = self.frames.pop(0)
                    await self._note(frame, acknowledge)
                    if frame.kind == kind:
                        return frame
                self.frames += self._decoder.feed(await self._stream.read_bytes())

    async def _note(self, frame: Frame, acknowledge: bool) -> None:
        if frame.kind == frames.SAY:
            self.said += frame.payload.decode()
        elif frame.kind == frames.OUTPUT:
            output = frames.decode_output(frame.payload)
            if output.number > self.had.get(output.index, 0):
                self.output[output.rank] = self.output.get(output.rank, b"") + output.data
            await self._had(output.index, output.number, acknowledge)
        elif frame.kind == frames.ENDED:
            ended = frames.decode_ended(frame.payload)
            await self._had(ended.index, ended.number, acknowledge)

    async def _had(self, index: int, number: int, acknowledge: bool) -> None:
        self.had[index] = max(number, self.had.get(index, 0))
        if acknowledge:
            await self.send(frames.HAD, frames.encode_had(index, number))


class FakeAttempts:
    """Attempts that run until a test says otherwise (interface.AttemptSource)."""

    def __init__(self) -> None:
        self.here: dict[Key, AttemptHere] = {}
        self.over = False
        self.doubted = list[str]()

    async def find_attempt(self, key: Key) -> AttemptHere | None:
        return self.here.get(key)

    def is_over(self, key: Key) -> bool:
        return self.over

    async def address(self, node: str) -> str:
        return f"{node}:1"

    def doubt_address(self, node: str) -> None:
        self.doubted.append(node)
