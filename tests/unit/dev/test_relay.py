import asyncio
import contextlib
import socket

from lattice_dev import relay


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_bytes_pass_both_ways_and_the_end_of_one_side_reaches_the_other() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    to = server.sockets[0].getsockname()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        listen = probe.getsockname()
    serving = asyncio.ensure_future(relay.serve(listen, to))
    reader, writer = await _connect(listen)
    payload = bytes(range(256)) * 8192
    writer.write(payload)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(-1), 5) == payload
    writer.close()
    await writer.wait_closed()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    server.close()
    await server.wait_closed()


async def test_a_connection_ends_at_once_when_nobody_listens_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        listen, nobody = first.getsockname(), second.getsockname()
    serving = asyncio.ensure_future(relay.serve(listen, nobody))
    reader, writer = await _connect(listen)
    with contextlib.suppress(ConnectionResetError):  # as good as an end: the peer is told
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def _connect(address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(100):
        try:
            return await asyncio.open_connection(*address)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
    raise AssertionError(f"nobody listens on {address}")
