"""What clients may hold open at a server: real sockets, real TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lattice.daemon import https
from lattice.daemon.certificates import ServerCertificate
from lattice.daemon.connections import Bounds
from tests.unit.gateway.authority import Authority

SMALL = Bounds(per_address=4, in_all=6, handshake_seconds=0.3, idle_seconds=0.6)


@asynccontextmanager
async def server(directory: Path, bounds: Bounds = SMALL) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    authority = Authority(directory)
    pair = authority.pair("localhost", dns=("localhost",))
    app, listening = web.Application(), asyncio.get_running_loop().create_future()

    async def quick(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(12):
            await response.write(b".")
            await asyncio.sleep(0.1)
        return response

    app.router.add_get("/quick", quick)
    app.router.add_get("/slow", slow)
    certificate = ServerCertificate(pair.certificate, pair.key)
    serving = asyncio.ensure_future(
        https.serve(app, "127.0.0.1:0", certificate.context, on_listen=lambda _host, port: listening.set_result(port), bounds=bounds)
    )
    try:
        yield await asyncio.wait_for(listening, 5), ssl.create_default_context(cafile=str(authority.path))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def closed(reader: asyncio.StreamReader, within: float) -> bool:
    """Whether the server has ended the connection by then."""
    try:
        return await asyncio.wait_for(reader.read(1), within) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def fetch(port: int, path: str, trusted: ssl.SSLContext) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"https://localhost:{port}{path}", ssl=trusted) as answer:
        return await answer.text()


async def test_a_connection_without_a_handshake_is_closed(tmp_path: Path) -> None:
    async with server(tmp_path) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await closed(reader, 5)
        writer.close()


async def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    async with server(tmp_path) as (port, trusted):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
        writer.write(b"GET /quick HTTP/1.1\r\nHost:")
        assert await closed(reader, 5)
        writer.close()


async def test_so_many_connections_of_one_address_and_others_are_refused_until_some_end(tmp_path: Path) -> None:
    async with server(tmp_path, Bounds(per_address=4, in_all=6, handshake_seconds=30, idle_seconds=30)) as (port, trusted):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await closed(reader, 5)
        writer.close()
        for _, one in idle:
            one.close()
        for _ in range(50):
            try:
                assert await fetch(port, "/quick", trusted) == "ok"
                return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
        pytest.fail("connections that have ended still count")


async def test_a_stream_lasts_longer_than_an_idle_connection(tmp_path: Path) -> None:
    async with server(tmp_path) as (port, trusted):
        assert await fetch(port, "/slow", trusted) == "." * 12
