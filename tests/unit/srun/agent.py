"""An agent for the client `srun`: a socket in its place, on which a test says each frame itself."""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

LAUNCH, INPUT, SIGNAL, HAD, OPENED, CONTENT = range(1, 7)
ACCEPTED, OUTPUT, ENDED, SAY, OPEN, ROOM, FINISHED, REFUSED, READ = range(16, 25)
PATIENCE = 120.0
"""Seconds that nothing healthy comes near: they end a test that hangs."""
TIMES = ("-DINTERRUPT_PAUSE=600000", "-DSAY_LOST_AFTER=600000", "-DPIPE_GRACE=200", "-DLONGEST_PAUSE=1")
"""Flags of the compiler for a client that takes no slow machine for a slow user or a lost agent, and that makes nobody wait."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IB", len(payload), kind) + payload


def accepted(nodes: int = 1, step: int = 7, flags: bytes = b"") -> bytes:
    return frame(ACCEPTED, struct.pack(">IH", step, nodes) + flags)


def output(number: int, data: bytes, *, node: int = 0, stream: int = 1, rank: int = 0) -> bytes:
    return frame(OUTPUT, struct.pack(">HQBI", node, number, stream, rank) + data)


def ended(number: int, *, node: int = 0, rank: int = 0, code: int = 0, signal: int = 0) -> bytes:
    return frame(ENDED, struct.pack(">HQIBB", node, number, rank, code, signal))


def room(offset: int) -> bytes:
    return frame(ROOM, struct.pack(">Q", offset))


def finished(code: int = 0) -> bytes:
    return frame(FINISHED, bytes([code]))


def fields(payload: bytes) -> list[tuple[int, bytes]]:
    """The fields of a LAUNCH, in order."""
    found, at = [], 0
    while at < len(payload):
        tag, length = struct.unpack_from(">BI", payload, at)
        found.append((tag, payload[at + 5 : at + 5 + length]))
        at += 5 + length
    assert at == len(payload)
    return found


class Call:
    """One connection of a client."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(PATIENCE)
        kind, payload = self.receive()
        self.fields = fields(payload) if kind == LAUNCH else []

    def field(self, tag: int) -> list[bytes]:
        return [value for known, value in self.fields if known == tag]

    def send(self, *frames: bytes) -> None:
        self.connection.sendall(b"".join(frames))

    def receive(self) -> tuple[int, bytes]:
        length, kind = struct.unpack(">IB", self._exactly(5))
        return kind, self._exactly(length)

    def expect(self, kind: int) -> bytes:
        got, payload = self.receive()
        assert got == kind, (got, payload[:80])
        return payload

    def had(self, number: int, node: int = 0) -> None:
        """Waits until the client has acknowledged this frame."""
        while (told := struct.unpack(">HQ", self.expect(HAD))) != (node, number):
            assert told[0] != node or told[1] < number, told

    def close(self) -> None:
        self.connection.close()

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self.connection.recv(length - len(data))
            assert piece, "the client closed the connection"
            data += piece
        return data


class Agent:
    """A directory with `bin/srun` and `socket`, and the clients started from it."""

    def __init__(self, place: Path, program: Path) -> None:
        self.program = place / "launch/bin/srun"
        self.program.parent.mkdir(parents=True)
        shutil.copy(program, self.program)
        self.path = place / "launch/socket"
        self.listener: socket.socket | None = None
        self.clients: list[subprocess.Popen[bytes]] = []
        self.calls: list[Call] = []

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self.clients:
            client.kill()
            client.wait()
            for pipe in (client.stdin, client.stdout, client.stderr):
                if pipe is not None:
                    pipe.close()
        for call in self.calls:
            call.close()
        self.stop()

    def listen(self) -> None:
        """Listens at the path of the socket, which may be longer than an address holds."""
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        directory = os.open(self.path.parent, os.O_PATH)
        self.listener.bind(f"/proc/self/fd/{directory}/{self.path.name}")
        os.close(directory)
        self.listener.listen(64)
        self.listener.settimeout(PATIENCE)

    def listen_anew(self) -> None:
        """Forgets the calls of clients that are gone."""
        self.stop()
        self.listen()

    def stop(self) -> None:
        if self.listener is not None:
            self.listener.close()
        self.listener = None

    def start(
        self,
        *words: str,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        line: str = "",
    ) -> subprocess.Popen[bytes]:
        """Starts a client that ignores no signal, as under a terminal, however these tests were started; with `line` in a shell's command,
        in which `$SRUN` is it.
        """
        environ = {"PATH": os.environ["PATH"], "LATTICE_JOB_ID": "3", "SRUN": str(self.program)} | dict(environ or {})
        unignored = ["env", "--default-signal=HUP,INT,QUIT,TERM"]
        argv: Sequence[str] = [*unignored, "sh", "-c", line] if line else [*unignored, str(self.program), *words]
        client = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environ, cwd=cwd, start_new_session=True)
        self.clients.append(client)
        return client

    def is_called(self, client: subprocess.Popen[bytes]) -> bool:
        """Waits until a client calls, and returns True; False: it has ended instead."""
        assert self.listener is not None
        ended = os.pidfd_open(client.pid)
        try:
            waited: list[socket.socket | int] = [self.listener, ended]
            ready, _, _ = select.select(waited, [], [], PATIENCE)
        finally:
            os.close(ended)
        assert ready, "the client neither calls nor ends"
        return self.listener in ready

    def accept(self) -> Call:
        assert self.listener is not None
        self.calls.append(Call(self.listener.accept()[0]))
        return self.calls[-1]
