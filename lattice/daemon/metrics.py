"""/metrics, /readyz and /healthz of a process: a small HTTP server on asyncio; prometheus_client is loaded when asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from lattice.daemon.logs import event
from lattice.errors import Rejected

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
_LARGEST_REQUEST = 16 * 1024
_TEXT = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]


async def serve(
    registry: CollectorRegistry | None,
    address: str,
    ready: Callable[[], tuple[bool, str]],
    *,
    on_listen: Callable[[str], None] | None = None,
) -> None:
    """Serve on `HOST:PORT` until cancelled; an empty address serves nothing and returns.

    `ready` gives whether the process does its work, and a sentence. `on_listen` hears the real address (port 0).
    """
    if not address:
        return
    host, port = split_address(address)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _converse(registry, ready, reader, writer)

    try:
        server = await asyncio.start_server(answer, host, port, limit=_LARGEST_REQUEST)
    except OSError as error:
        raise Rejected(f"cannot serve metrics on {address}: {error.strerror or error}", reason="AddressUnavailable") from error
    async with server:
        bound = server.sockets[0].getsockname()
        shown = f"{bound[0]}:{bound[1]}"
        event(log, "MetricsServed", address=shown)
        if on_listen:
            on_listen(shown)
        await server.serve_forever()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[V6]:PORT` or `:PORT`; Rejected names what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Rejected(f"{address!r} is no HOST:PORT", reason="AddressWrong")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _converse(
    registry: CollectorRegistry | None,
    ready: Callable[[], tuple[bool, str]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """One request, one answer, and the connection is closed."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            status, kind, body = _answer(head, registry, ready)
            lines = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(lines.encode("ascii") + (b"" if head.startswith(b"HEAD ") else body))
            await writer.drain()
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # whoever asked is gone, slow, or speaks something else
    finally:
        writer.close()


_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _answer(head: bytes, registry: CollectorRegistry | None, ready: Callable[[], tuple[bool, str]]) -> Answer:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return 400, _TEXT, b"this is no HTTP request\n"
    method, path = words[0], words[1].split("?", 1)[0]
    if method not in ("GET", "HEAD"):
        return 405, _TEXT, b"only GET is served\n"
    if path == "/healthz":
        return 200, _TEXT, b"ok\n"
    if path == "/readyz":
        fine, sentence = ready()
        return 200 if fine else 503, _TEXT, (sentence + "\n").encode()
    if path == "/metrics" and registry is not None:
        from prometheus_client import exposition

        return 200, exposition.CONTENT_TYPE_PLAIN_0_0_4, exposition.generate_latest(registry)
    return 404, _TEXT, b"served are /metrics, /readyz, /healthz\n"
