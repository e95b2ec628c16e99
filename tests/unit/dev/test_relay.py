import asyncio
import contextlib
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lattice_dev import relay

PAYLOAD = bytes(range(256)) * 32768
BEGIN_SECONDS, PASS_SECONDS = 120.0, 120.0
"""There for a hang alone."""
MOST_WRITTEN = 1 << 30
"""More than all sockets on the way hold."""


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def free_address() -> tuple[str, int]:
    """A free port of a loopback address of its own: one of 127.0.0.1 may be an outgoing connection's before the relay has it."""
    host = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
    with socket.create_server((host, 0)) as probe:
        return host, probe.getsockname()[1]


@contextlib.contextmanager
def relayed(to: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """The program as an instance starts it."""
    listen = free_address()
    argv = [
        sys.executable, "-I", "-S", str(Path(relay.__file__)), "--listen", f"{listen[0]}:{listen[1]}", "--to", f"{to[0]}:{to[1]}",
    ]  # fmt: skip
    process = subprocess.Popen(argv)
    try:
        yield listen
        assert process.poll() is None, "the relay has ended"
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


async def _connect(address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(int(BEGIN_SECONDS / 0.02)):
        try:
            return await asyncio.open_connection(*address)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
    raise AssertionError(f"nobody listens on {address}")


async def _through(listen: tuple[str, int]) -> None:
    reader, writer = await _connect(listen)
    writer.write(PAYLOAD)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(-1), PASS_SECONDS) == PAYLOAD
    writer.close()
    await writer.wait_closed()


async def test_bytes_pass_both_ways_and_the_end_of_one_side_reaches_the_other() -> None:
    async with echoing() as to:
        with relayed(to) as listen:
            await _through(listen)


async def test_many_connections_pass_at_once_and_none_hears_another() -> None:
    async with echoing() as to:
        with relayed(to) as listen:
            await asyncio.gather(*(_through(listen) for _ in range(8)))


async def _write_unread(writer: asyncio.StreamWriter) -> None:
    """Writes until the sender is held back for a second."""
    for _ in range(MOST_WRITTEN // len(PAYLOAD)):
        writer.write(PAYLOAD)
        await asyncio.wait_for(writer.drain(), 1)


async def test_who_does_not_read_holds_the_sender_back_and_nobody_else() -> None:
    async with echoing() as to:
        with relayed(to) as listen:
            _, writer = await _connect(listen)
            with pytest.raises(TimeoutError):
                await _write_unread(writer)
            await _through(listen)
            writer.transport.abort()
            await _through(listen)


async def test_a_connection_ends_at_once_when_nobody_listens_behind() -> None:
    with (
        relayed(free_address()) as listen,
        contextlib.suppress(ConnectionResetError),
    ):  # as good as an end, also before we look: we are told
        reader, writer = await _connect(listen)
        assert await asyncio.wait_for(reader.read(), BEGIN_SECONDS) == b""
        writer.close()


async def test_a_side_that_vanishes_takes_the_other_with_it() -> None:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        accepted.put_nowait(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        with relayed(server.sockets[0].getsockname()) as listen:
            reader, writer = await _connect(listen)
            writer.write(b"x")
            (await asyncio.wait_for(accepted.get(), BEGIN_SECONDS)).transport.abort()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), BEGIN_SECONDS) == b""
            writer.close()


def test_wrong_arguments_are_refused_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert relay.main(["--listen", "127.0.0.1:1"]) == 2
    assert "--listen HOST:PORT --to HOST:PORT" in capsys.readouterr().err
