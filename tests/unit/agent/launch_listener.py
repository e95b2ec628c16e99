"""The agent's end of a keeper's socket, and the launches of which tests have one started."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from typing import Any, ClassVar

from lattice_agent.attempts import Key
from lattice_agent.host.keepers import Keepers
from lattice_agent.host.linux import LinuxHost
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Frame

PATIENCE = 240.0
"""Seconds that nothing healthy comes near: they end a test that hangs."""


def launch(*argv: str, ranks: int = 1, number: int = 1, **changes: Any) -> dict[str, Any]:
    """A launch of so many ranks with the same program, unless changed."""
    return {
        "number": number, "argv": list(argv), "environment": {"PATH": "/usr/bin:/bin"}, "workdir": "/tmp",
        "ranks": [{"rank": rank} for rank in range(ranks)],
    } | changes  # fmt: skip


def shell(text: str, **changes: Any) -> dict[str, Any]:
    """A launch of a line of shell."""
    return launch("/bin/sh", "-c", text, **changes)


def keepers_of(host: LinuxHost) -> Keepers:
    """The keepers of a host with cgroups."""
    assert host.keepers is not None
    return host.keepers


class Listener:
    """Collects what a keeper tells, and acknowledges it where `hearing` is set."""

    _opened: ClassVar[list[Listener]] = []

    def __init__(self, connection: socket.socket, *, hearing: bool = True) -> None:
        self._socket, self.hearing = connection, hearing
        self._opened.append(self)
        self._decoder = frames.Decoder()
        self.output: dict[tuple[int, int], bytes] = {}
        self.ended: dict[int, tuple[int, int]] = {}
        self.numbers: list[int] = []
        self.kept: list[tuple[int, int, bytes]] = []
        self.said: list[str] = []
        self.exchanged: list[bytes] = []
        self.state: dict[str, Any] = {}
        self.started: list[bytes] = []
        self.room = 0
        self.done: dict[str, Any] | None = None
        self.closed = False

    @classmethod
    async def connect(cls, host: LinuxHost, key: Key, number: int = 1, *, hearing: bool = True) -> Listener:
        """Connects to the keeper of a launch."""
        return cls(await keepers_of(host).connect(key, number), hearing=hearing)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Sends one frame."""
        self._socket.setblocking(True)
        self._socket.sendall(frames.encode(kind, payload))

    def had(self, number: int) -> None:
        """Acknowledges all frames up to this number."""
        self.send(frames.HAD, frames.encode_had(0, number))

    def listen(self, seconds: float = PATIENCE, *, until: str | Callable[[], object] = "") -> None:
        """Takes frames for so long, or until something is set: `done`, `closed`, `ended`, `output`; or until a predicate of them is true."""
        end = time.monotonic() + seconds
        while not self._has_met(until) and (left := end - time.monotonic()) > 0 and not self.closed:
            if select.select([self._socket], [], [], left)[0]:
                self._receive()

    def _has_met(self, until: str | Callable[[], object]) -> object:
        """Whether what is listened for has come."""
        return until() if callable(until) else until and getattr(self, until)

    def said_by_all(self, ranks: int, text: bytes) -> bool:
        """Whether each of so many ranks has written exactly this to its standard output."""
        return all(self.output.get((1, rank)) == text for rank in range(ranks))

    def _receive(self) -> None:
        """Takes what the socket holds."""
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        for frame in self._decoder.feed(data):
            self._accept(frame)
        if self.hearing and self.numbers and not self.closed:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledges what has come; a keeper may be gone whose end was acknowledged before, though a frame followed that end."""
        try:
            self.had(self.numbers[-1])
        except BrokenPipeError:
            if self.done is None:
                raise
            self.closed = True

    def _accept(self, frame: Frame) -> None:
        """Notes one frame."""
        before = len(self.numbers)
        self._note(frame)
        if len(self.numbers) > before:
            self.kept.append((self.numbers[-1], frame.kind, frame.payload))

    def _note(self, frame: Frame) -> None:
        """Notes what a frame says."""
        match frame.kind:
            case frames.OUTPUT:
                output = frames.decode_output(frame.payload)
                self.numbers.append(output.number)
                place = (output.stream, output.rank)
                self.output[place] = self.output.get(place, b"") + output.data
            case frames.ENDED:
                ended = frames.decode_ended(frame.payload)
                self.numbers.append(ended.number)
                self.ended[ended.rank] = (ended.code, ended.signal)
            case frames.DONE:
                number, told = frames.decode_numbered(frame.payload)
                self.numbers.append(number)
                self.done = json.loads(told)
            case frames.EXCHANGE:
                number, payload = frames.decode_numbered(frame.payload)
                self.numbers.append(number)
                self.exchanged.append(payload)
            case frames.STATE:
                self.state = json.loads(frame.payload)
            case frames.STARTED:
                self.started.append(frame.payload)
            case frames.ROOM:
                self.room = frames.decode_room(frame.payload)
            case frames.KEEPER_SAY:
                self.said.append(frame.payload.decode())

    def fresh(self, had: int) -> list[tuple[int, bytes, tuple[int, int] | None]]:
        """What this connection brought beyond the frame `had`: each a rank, what it wrote, and its end."""
        found: list[tuple[int, bytes, tuple[int, int] | None]] = []
        for number, kind, payload in self.kept:
            if number > had and kind == frames.OUTPUT:
                output = frames.decode_output(payload)
                found.append((output.rank, output.data, None))
            elif number > had and kind == frames.ENDED:
                end = frames.decode_ended(payload)
                found.append((end.rank, b"", (end.code, end.signal)))
        return found

    @classmethod
    def close_all(cls) -> None:
        """Closes the sockets of all listeners."""
        while cls._opened:
            cls._opened.pop().close()

    def close(self) -> None:
        """Goes, as an agent that is killed."""
        self._socket.close()
        self.closed = True
