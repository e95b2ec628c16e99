"""The event loop of daemons: what it closes is its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator

import pytest

from lattice.daemon import loops

ROUNDS = 30


@pytest.fixture
def dying() -> Iterator[tuple[tuple[str, int], threading.Semaphore]]:
    """Where a server listens that resets each connection once it may, as the kernel does for one that was killed."""
    may = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    may.acquire(timeout=60)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        threading.Thread(target=reset, daemon=True).start()
        yield server.getsockname(), may
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("tls", [True, False])
def test_a_connection_that_its_peer_resets_at_once_leaves_no_socket_that_would_close_a_strangers_descriptor(
    dying: tuple[tuple[str, int], threading.Semaphore], tls: bool
) -> None:
    pytest.importorskip("uvloop")
    address, may_reset = dying
    context, name = (ssl.create_default_context(), "x") if tls else (None, None)

    async def once() -> socket.socket:
        loop, one = asyncio.get_running_loop(), socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, address)
        may_reset.release()
        assert select.select([one], [], [], 60)[0], "the reset is here"
        with contextlib.suppress(OSError):
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=one, ssl=context, server_hostname=name)
            transport.abort()
        await asyncio.sleep(0)
        return one

    async def several() -> list[socket.socket]:
        return [await once() for _ in range(ROUNDS)]

    with asyncio.Runner(loop_factory=loops.factory()) as runner:
        tried = runner.run(several())
    assert [one.fileno() for one in tried] == [-1] * len(tried)


def test_a_connection_over_a_given_socket_works_and_its_end_closes_the_descriptor() -> None:
    async def talk() -> tuple[bytes, int]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            number = client.fileno()
            accepted, _ = server.accept()
            reader, writer = await asyncio.open_connection(sock=client)
            accepted.sendall(b"word\n")
            said = await reader.readline()
            writer.close()
            await writer.wait_closed()
            accepted.close()
        return said, number

    with asyncio.Runner(loop_factory=loops.factory()) as runner:
        said, number = runner.run(talk())
    assert said == b"word\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
