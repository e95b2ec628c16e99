"""The agent's connection to the runner: starts it, sends requests, and starts another one when it is gone."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from lattice.errors import UnknownOutcome
from lattice_agent.host.threads import whole
from lattice_agent.standalone import runner

_LENGTH = struct.Struct(">I")
_COMMAND = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(runner.__file__).resolve()))


class RunnerClient:
    """Asks one runner at a time; a request that a dying runner had taken raises UnknownOutcome."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._buffer = bytearray()
        self._last = 0
        self._sending = asyncio.Lock()

    @property
    def pid(self) -> int:
        """Returns the runner's pid; 0: there is none."""
        return self._process.pid if self._process else 0

    def open(self) -> None:
        """Starts a runner unless one is running."""
        if self._socket:
            return
        self._end_process(grace_seconds=0.0)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        self._buffer.clear()
        self._loop.add_reader(ours.fileno(), self._readable)

    def close(self) -> None:
        """Closes the connection, waits up to 2 s for the runner to end, then kills it; open requests raise UnknownOutcome, shims go on."""
        self._lost("the agent is ending")
        self._end_process(grace_seconds=2.0)

    def _end_process(self, *, grace_seconds: float) -> None:
        """Waits for the runner's process to end, kills it after the grace, and drops it; nothing where there is none."""
        if self._process:
            try:
                self._process.wait(timeout=grace_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    async def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request to the runner, starts one where none runs, and returns its answer.

        Raises UnknownOutcome when the runner ended before it answered. A request above 64 MiB is not sent: its answer is a failure.
        """
        self.open()
        self._last += 1
        number = self._last
        body = json.dumps({"id": number} | request).encode()
        if len(body) > runner.MAX_FRAME:
            return {"failure": runner.too_long(len(body))}
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            await whole(self._send(body, answer))
        except OSError as error:
            self._lost(f"the runner is gone: {error}")
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _send(self, body: bytes, answer: asyncio.Future[dict[str, Any]]) -> None:
        """Sends one framed request, after those before it; nothing where the connection is lost or the request was answered already."""
        async with self._sending:
            if self._socket and not answer.done():
                await self._loop.sock_sendall(self._socket, _LENGTH.pack(len(body)) + body)

    def _readable(self) -> None:
        """Reads what the runner has sent, and gives each whole answer to the request that waits for it; drops the connection at its end."""
        try:
            data = self._socket.recv(1 << 20) if self._socket else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost("the runner is gone")
            return
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            answer = json.loads(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            waiting = self._waiting.get(answer.pop("id"))
            if waiting and not waiting.done():
                waiting.set_result(answer)

    def _lost(self, why: str) -> None:
        """Closes the connection, and has every open request raise UnknownOutcome with this sentence."""
        if self._socket:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(UnknownOutcome(why))
        self._buffer.clear()
