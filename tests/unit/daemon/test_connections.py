"""What clients may hold open at a server: real sockets, real TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
from aiohttp import web

from lattice.daemon import https
from lattice.daemon.certificates import ServerCertificate
from lattice.daemon.connections import Bounds
from tests.unit.gateway.authority import Authority

PATIENT = Bounds(per_address=4, in_all=6, handshake_seconds=600, idle_seconds=600)
SWEPT_OFTEN = Bounds(per_address=4, in_all=6, handshake_seconds=600, idle_seconds=0.2)
"""Idle connections are looked for every 0.05 s; how long each was idle is a matter of the test's time."""


class HandTime:
    """The seconds that a test sets; counts how often they were asked for."""

    def __init__(self) -> None:
        self.seconds, self.asked = 0.0, 0

    def __call__(self) -> float:
        self.asked += 1
        return self.seconds

    async def swept(self) -> None:
        """Until idle connections were looked for several times more: each time asks once."""
        wanted = self.asked + 4
        async with asyncio.timeout(60):
            while self.asked < wanted:  # noqa: ASYNC110 - the sweep tells nobody
                await asyncio.sleep(0.01)


@asynccontextmanager
async def server(
    directory: Path, bounds: Bounds, now: HandTime | None = None, go_on: asyncio.Event | None = None
) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    """A server of /quick and of /slow, whose answer ends once it may go on."""
    authority = Authority(directory)
    pair = authority.pair("localhost", dns=("localhost",))
    app, listening = web.Application(), asyncio.get_running_loop().create_future()

    async def quick(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def slow(request: web.Request) -> web.StreamResponse:
        assert go_on is not None
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun ")
        await go_on.wait()
        await response.write(b"and ended")
        return response

    app.router.add_get("/quick", quick)
    app.router.add_get("/slow", slow)
    certificate = ServerCertificate(pair.certificate, pair.key)
    serving = asyncio.ensure_future(
        https.serve(
            app, "127.0.0.1:0", certificate.context, on_listen=lambda _host, port: listening.set_result(port), bounds=bounds,
            now=now or HandTime(),
        )
    )  # fmt: skip
    try:
        yield await asyncio.wait_for(listening, 60), ssl.create_default_context(cafile=str(authority.path))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends the connection before anything else is waited for."""
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def fetch(port: int, path: str, trusted: ssl.SSLContext) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"https://localhost:{port}{path}", ssl=trusted) as answer:
        return await answer.text()


async def test_a_connection_without_a_handshake_is_closed(tmp_path: Path) -> None:
    async with server(tmp_path, replace(PATIENT, handshake_seconds=0.1)) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await closed(reader)
        writer.close()


async def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    now = HandTime()
    async with server(tmp_path, SWEPT_OFTEN, now) as (port, trusted):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
        writer.write(b"GET /quick HTTP/1.1\r\nHost:")
        now.seconds = 0.1
        await now.swept()
        assert not reader.at_eof()
        now.seconds = 100.0
        assert await closed(reader)
        writer.close()


async def test_so_many_connections_of_one_address_and_others_are_refused_until_some_end(tmp_path: Path) -> None:
    async with server(tmp_path, PATIENT) as (port, trusted):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await closed(reader)
        writer.close()
        for _, one in idle:
            one.close()
        async with asyncio.timeout(60):  # connections that have ended would count for ever
            while True:
                with suppress(aiohttp.ClientError):
                    assert await fetch(port, "/quick", trusted) == "ok"
                    return
                await asyncio.sleep(0.01)


async def test_a_stream_lasts_longer_than_an_idle_connection(tmp_path: Path) -> None:
    now, go_on = HandTime(), asyncio.Event()
    async with (
        server(tmp_path, SWEPT_OFTEN, now, go_on) as (port, trusted),
        aiohttp.ClientSession() as session,
        session.get(f"https://localhost:{port}/slow", ssl=trusted) as answer,
    ):
        assert await answer.content.readexactly(6) == b"begun "
        now.seconds = 100.0
        await now.swept()
        go_on.set()
        assert await answer.text() == "and ended"
