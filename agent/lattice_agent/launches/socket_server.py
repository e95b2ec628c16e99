"""The socket at which work on this node calls `srun`, and the directory that holds both, as work sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import stat
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.daemon.logs import event
from lattice.errors import Denied, Retry
from lattice_agent.launches import caller
from lattice_agent.launches.caller import Caller
from lattice_agent.peers.interface import ByteStream
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame, FrameError
from lattice_agent.work import mpi_launchers

log = logging.getLogger(__name__)

SOCKET: Final = "socket"
PROGRAMS: Final = "bin"
SRUN: Final = "srun"
SCONTROL: Final = "scontrol"
"""The other name of the program, by which it prints names of nodes."""
LAUNCHER: Final = mpi_launchers.LAUNCHER
BACKLOG = 4096
READ_BYTES = 256 << 10
REQUEST_BYTES = 8 << 20
"""Most bytes of a request: the kernel takes 6 MiB of arguments and variables."""
REQUEST_SECONDS = 10.0
READING, WAITING = 8, 4096
"""Requests of one attempt that are read at a time, and connections of one attempt."""
HELD_BYTES = 64 << 20
"""Most bytes of all requests of one attempt that wait or run: a thousand with a large environment."""


class SocketStream:
    """A client's connection as a stream of bytes (peers.interface.ByteStream)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def write_bytes(self, data: bytes) -> None:
        """Sends bytes; raises Retry where the client has gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._connection, data)
        except OSError as error:
            raise Retry(f"the client has gone: {error}") from error

    async def read_bytes(self) -> bytes:
        """Returns the next bytes; empty: the client has closed its end. Raises Retry where it has gone."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._connection, READ_BYTES)
        except OSError as error:
            raise Retry(f"the client has gone: {error}") from error


def install(directory: Path, srun: Path) -> str:
    """Makes the directory of launches, with a copy of the program `srun`, which bears the name of MPI's launcher, too.

    Returns why there is none, as a clause; empty: there is. A program that is there already is replaced only by another one. Raises
    OSError where the directory cannot be made.
    """
    programs = directory / PROGRAMS
    for made in (directory, programs):
        made.mkdir(mode=0o755, exist_ok=True)
        made.chmod(0o755)
    for name in (SCONTROL, LAUNCHER):
        with suppress(FileExistsError):
            (programs / name).symlink_to(SRUN)
    target = programs / SRUN
    try:
        wanted = srun.read_bytes()
    except OSError as error:
        target.unlink(missing_ok=True)
        return f"{srun} cannot be read: {error.strerror} (--srun)"
    with suppress(OSError):
        if target.read_bytes() == wanted and stat.S_IMODE(target.stat().st_mode) == 0o755:
            return ""
    draft = programs / f".{SRUN}.{os.getpid()}"
    shutil.copyfile(srun, draft)
    draft.chmod(0o755)
    draft.rename(target)
    return ""


def listen(directory: Path) -> socket.socket:
    """Returns a listening socket in the directory, in place of one that an agent before has left; everybody may connect.

    The path may be longer than an address of a socket: it is bound through the directory's descriptor. Raises OSError.
    """
    (directory / SOCKET).unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made.bind(f"/proc/self/fd/{fd}/{SOCKET}")
        (directory / SOCKET).chmod(0o666)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    finally:
        os.close(fd)
    return made


async def read_request(stream: ByteStream, decoder: Decoder, turn: asyncio.Semaphore) -> list[Frame]:
    """Reads a request (LAUNCH) and the frames that come with it, once it is its turn; empty: none comes in time, or something else."""
    read = list[Frame]()
    with suppress(Retry, TimeoutError, FrameError):
        async with turn, asyncio.timeout(REQUEST_SECONDS):
            while not read and (data := await stream.read_bytes()):
                read = decoder.feed(data)
    return read if read and read[0].kind == frames.LAUNCH else []


Serve = Callable[[Caller, int, SocketStream, bytes, list[Frame], Decoder], Awaitable[None]]
"""Serves one request: its caller, a pidfd of it, the connection, the request, frames that came with it, and the decoder for the rest."""


class SocketServer:
    """Accepts clients, tells who they are, reads their requests, and has each served in a task of its own."""

    def __init__(self, listener: socket.socket, root: str, serve: Serve, group: asyncio.TaskGroup, clock: Clock) -> None:
        """Takes callers for work that stand below `root`, the path of the node's scopes below the mount of cgroup v2."""
        self._listener, self._root, self._serve, self._group, self._clock = listener, root, serve, group, clock
        self._guard = Guard(clock, "a request of srun")
        self._connections: Counter[object] = Counter()
        self._reading: dict[object, asyncio.Semaphore] = {}
        self._held: Counter[object] = Counter()

    async def run(self) -> None:
        """Accepts connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptor is free
                event(log, "LaunchSocketWaits", logging.WARNING, message=str(error))
                await self._clock.sleep(0.1)
                continue
            self._group.create_task(self._guarded(connection))

    async def _guarded(self, connection: socket.socket) -> None:
        """Serves one connection; an error in it is logged, and concerns no other."""
        name = str(connection.fileno())
        await self._guard.attempt_async(name, lambda: self._handle(connection))
        self._guard.drop(name)

    async def _handle(self, connection: socket.socket) -> None:
        """Serves one connection, and closes it; after an error others of the same attempt are closed unread for a moment."""
        with connection:
            try:
                found, pidfd = caller.identify(connection, self._root)
            except Denied as error:
                with suppress(Retry, TimeoutError):
                    async with asyncio.timeout(REQUEST_SECONDS):
                        await SocketStream(connection).write_bytes(frames.encode(frames.REFUSED, frames.encode_refused(1, error.message)))
                return
            name = f"{found.key.uid}-{found.key.attempt}"
            self._connections[found.key] += 1
            try:
                if self._connections[found.key] <= WAITING and self._guard.waits(name) is None:
                    await self._guard.attempt_async(name, lambda: self._read_and_serve(connection, found, pidfd))
            finally:
                os.close(pidfd)
                self._connections[found.key] -= 1
                if not self._connections[found.key]:
                    del self._connections[found.key]
                    self._reading.pop(found.key, None)
                    if self._guard.waits(name) is None:
                        self._guard.drop(name)

    async def _read_and_serve(self, connection: socket.socket, found: Caller, pidfd: int) -> None:
        """Reads one request, of few of the same attempt at a time, and has it served; drops a connection that sends none in time."""
        stream, decoder = SocketStream(connection), Decoder(REQUEST_BYTES)
        read = await read_request(stream, decoder, self._reading.setdefault(found.key, asyncio.Semaphore(READING)))
        if read:
            await self._serve_request(found, pidfd, stream, read, decoder)

    async def _serve_request(self, found: Caller, pidfd: int, stream: SocketStream, read: list[Frame], decoder: Decoder) -> None:
        """Has a request served, unless those of its attempt take too much memory already: then it is refused with a sentence."""
        size = len(read[0].payload)
        if self._held[found.key] + size > HELD_BYTES:
            why = f"the launches of this allocation that wait or run take {HELD_BYTES >> 20} MiB of arguments and variables: wait for some"
            with suppress(Retry):
                await stream.write_bytes(frames.encode(frames.REFUSED, frames.encode_refused(1, why)))
            return
        self._held[found.key] += size
        try:
            await self._serve(found, pidfd, stream, read[0].payload, read[1:], decoder)
        finally:
            self._held[found.key] -= size
            if not self._held[found.key]:
                del self._held[found.key]
