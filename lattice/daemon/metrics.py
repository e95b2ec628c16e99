"""Serves /metrics, /readyz and /healthz of a process: a small HTTP server on asyncio; prometheus_client is loaded when asked for.

Metrics name tenants and people's use, so only admitted callers get them. Health is open, and to callers from other machines says only yes
or no.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice.daemon.logs import event
from lattice.errors import Rejected
from lattice.units import is_digits

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
HANDSHAKE_SECONDS = 3.0
_LARGEST_REQUEST = 16 * 1024
_TEXT = "text/plain; charset=utf-8"

_LOCAL = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_REFUSALS = {
    401: b"send a bearer token of the cluster, or a client certificate where the server asks for one\n",
    403: b"the right to get /metrics (nonResourceURLs) is missing\n",
    503: b"the API server does not say who asks: try again\n",
}

Answer = tuple[int, str, bytes]


@dataclass(frozen=True)
class Caller:
    """The caller that asks for metrics: his Authorization header, and his certificate as `ssl` returns it (empty: none)."""

    authorization: str
    certificate: Mapping[str, Any]


Admit = Callable[[Caller], Awaitable[int]]
"""Decides who may read the metrics: returns 200, or the status of the refusal (401, 403, 503)."""


async def serve(
    registry: CollectorRegistry | None,
    address: str,
    ready: Callable[[], tuple[bool, str]],
    *,
    admit: Admit,
    context: ssl.SSLContext | None = None,
    on_listen: Callable[[str], None] | None = None,
) -> None:
    """Serves on `HOST:PORT` until cancelled; with an empty address it serves nothing and returns.

    `ready` tells whether the process does its work, with a sentence; `admit` decides who may read the metrics; with `context` it serves
    over TLS. `on_listen` is called with the address it listens on (port 0 asks for any). Raises Rejected where the address cannot be
    had. `registry` None: it serves no metrics.
    """
    if not address:
        return
    host, port = split_address(address)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        await _converse(registry, ready, admit, reader, writer)

    try:
        handshake = HANDSHAKE_SECONDS if context is not None else None
        server = await asyncio.start_server(answer, host, port, limit=_LARGEST_REQUEST, ssl=context, ssl_handshake_timeout=handshake)
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
    """Returns host (empty for `:PORT`) and port of `HOST:PORT`, `[V6]:PORT` or `:PORT`; raises Rejected for anything else, a port above
    65535 included.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not is_digits(port, 5) or int(port) > 65535:
        raise Rejected(f"{address!r} is no HOST:PORT", reason="AddressWrong")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _converse(
    registry: CollectorRegistry | None,
    ready: Callable[[], tuple[bool, str]],
    admit: Admit,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Reads one HTTP request, answers it with metrics or health, and closes the connection; a client that is gone, or slower than 10 s in
    all, is no error.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            local = str((writer.get_extra_info("peername") or [""])[0]) in _LOCAL
            admitted = await admit(Caller(_authorization(head), writer.get_extra_info("peercert") or {})) if _asks_metrics(head) else 0
            status, kind, body = _answer(head, registry, ready, admitted, local=local)
            lines = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(lines.encode("ascii") + (b"" if head.startswith(b"HEAD ") else body))
            await writer.drain()
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # whoever asked is gone, slow, or speaks something else
    finally:
        writer.close()


_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def _asks_metrics(head: bytes) -> bool:
    """Tells whether the head of a request asks for /metrics."""
    return head.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"/metrics"] or b" /metrics?" in head.split(b"\r\n", 1)[0]


def _authorization(head: bytes) -> str:
    """Returns the value of the Authorization header; empty: there is none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            return value.strip().decode("latin-1")
    return ""


def _answer(
    head: bytes, registry: CollectorRegistry | None, ready: Callable[[], tuple[bool, str]], admitted: int, *, local: bool
) -> Answer:
    """Returns status, content type and body of the answer to a request's head; only GET and HEAD of `/healthz`, `/readyz` and `/metrics`
    are served.

    `admitted`: 200, or the status with which the caller is refused the metrics; `local`: the caller also gets the sentence on readiness.
    Without a registry there are no metrics (404).
    """
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
        return 200 if fine else 503, _TEXT, (sentence + "\n").encode() if local else b"ok\n" if fine else b"not ready\n"
    if path == "/metrics" and registry is not None:
        if admitted != 200:
            return admitted, _TEXT, _REFUSALS[admitted]
        from prometheus_client import exposition

        return 200, exposition.CONTENT_TYPE_PLAIN_0_0_4, exposition.generate_latest(registry)
    return 404, _TEXT, b"served are /metrics, /readyz, /healthz\n"
