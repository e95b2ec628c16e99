"""Accepts TLS connections for a server of aiohttp routes, limited in number by client address and in all.

A handshake that does not finish, a connection without a request, and one that is no longer used are closed; one with a request under way is
never idle, so that streams last.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

BACKLOG: Final = 512
_NO_DESCRIPTOR_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on clients: open connections (`per_address`, `in_all`), and seconds without use."""

    per_address: int = 512
    in_all: int = 8192
    handshake_seconds: float = 5.0
    idle_seconds: float = 120.0
    """Longer than clients keep theirs (the API server 90 s), so that a connection is not closed under a request on its way."""


@dataclass(slots=True)
class _Open:
    address: str
    used: float
    requests: int = 0


class Connections:
    """The open connections of one listening socket, with their use."""

    def __init__(self, bounds: Bounds, now: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._now = now
        self._open: dict[asyncio.BaseTransport, _Open] = {}
        self._by_address: Counter[str] = Counter()
        self.refused = 0
        """Connections that were closed at once because there were too many."""

    @property
    def middleware(self) -> Any:
        """Returns the aiohttp middleware that counts the requests under way on each connection; the application must be built with it."""

        @web.middleware
        async def counted(request: web.Request, handler: Any) -> web.StreamResponse:
            """Answers a request by its handler, and counts it as one of its connection meanwhile.

            Raises HTTPServiceUnavailable where the client has gone.
            """
            if request.transport is None:
                raise web.HTTPServiceUnavailable  # the client has gone
            entry = self._known(request.transport, request.remote or "")
            entry.requests += 1
            try:
                answer: web.StreamResponse = await handler(request)
                return answer
            finally:
                entry.requests -= 1
                entry.used = self._now()

        return counted

    async def accept(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext) -> None:
        """Accepts TLS connections until cancelled, and gives each to a new `protocol`.

        Connections beyond the bounds are closed at once and counted in `refused`; one whose handshake takes too long, or that is idle too
        long, is closed then. Errors of the listener are passed over.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            while True:
                try:
                    connection, peer = await loop.sock_accept(listener)
                except OSError:  # no descriptor is left, or the client has gone: the next one may be luckier
                    await asyncio.sleep(_NO_DESCRIPTOR_SECONDS)
                    continue
                address = str(peer[0])
                if self._is_full(address):
                    self._drop_closed()
                if self._is_full(address):
                    self.refused += 1
                    connection.close()
                    continue
                self._by_address[address] += 1
                group.create_task(self._enter(connection, address, protocol, context))

    async def _enter(
        self, connection: socket.socket, address: str, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext
    ) -> None:
        """Makes the TLS handshake of an accepted connection and knows it from then on; one that fails or takes too long is no longer
        counted.
        """
        connection.setblocking(False)
        loop, seconds = asyncio.get_running_loop(), self._bounds.handshake_seconds
        try:
            transport, _ = await loop.connect_accepted_socket(protocol, connection, ssl=context, ssl_handshake_timeout=seconds)
        except (OSError, TimeoutError):  # no handshake that ends
            self._by_address[address] -= 1
        else:
            self._known(transport, address)

    def _known(self, transport: asyncio.BaseTransport, address: str) -> _Open:
        """Returns the entry of a connection, and makes it where there is none: at the end of its handshake, or at its first request if that
        comes before.
        """
        return self._open.setdefault(transport, _Open(address, self._now()))

    def _is_full(self, address: str) -> bool:
        """Tells whether this address, or all together, have as many connections as are allowed."""
        return self._by_address[address] >= self._bounds.per_address or self._by_address.total() >= self._bounds.in_all

    async def _sweep(self) -> None:
        """Closes connections that have been idle for too long, one with a request under way never, about once a second; never returns."""
        while True:
            await asyncio.sleep(min(1.0, self._bounds.idle_seconds / 4))
            self._drop_closed()
            limit = self._now() - self._bounds.idle_seconds
            for transport in [one for one, entry in self._open.items() if not entry.requests and entry.used < limit]:
                transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()

    def _drop_closed(self) -> None:
        """Drops the entries of connections that have ended."""
        for transport in [one for one in self._open if one.is_closing()]:
            self._by_address[self._open.pop(transport).address] -= 1
        self._by_address += Counter()


def listen(host: str, port: int) -> socket.socket:
    """Returns a non-blocking listening socket of HOST:PORT; an empty host: of all addresses of both families. Raises OSError."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        listener = socket.create_server(("", port), backlog=BACKLOG)
    listener.setblocking(False)
    return listener
