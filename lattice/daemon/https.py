"""Serves aiohttp routes over HTTPS: tells where it listens, and ends without leaving a connection behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from math import ceil
from ssl import SSLContext
from typing import Final

import msgspec
from aiohttp import web

from lattice.daemon.connections import Bounds, Connections, listen
from lattice.daemon.logs import event
from lattice.daemon.metrics import split_address
from lattice.errors import Corrupt, Denied, LatticeError, NotFound, Rejected, Retry, Stale, TooMany, UnknownOutcome

USUAL: Final = Bounds()
SHUTDOWN_SECONDS = 3.0
"""Time for requests under way once the process is asked to end."""
ABORT_SECONDS = 0.05
"""Time for the event loop to close aborted connections."""
_STATUS: Final[tuple[tuple[type[LatticeError], int], ...]] = (
    (Denied, 403), (NotFound, 404), (Stale, 409), (Rejected, 400), (TooMany, 429), (Retry, 503), (UnknownOutcome, 502), (Corrupt, 500),
)  # fmt: skip


class Listening:
    """The address at which a server listens: the future `address` is done once it does."""

    def __init__(self, log: logging.Logger) -> None:
        self.address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._log = log

    def set(self, host: str, port: int) -> None:
        """Sets and logs the address at which the server listens."""
        event(self._log, "Listening", address=f"{host}:{port}")
        self.address.set_result((host, port))


async def serve(
    app: web.Application, address: str, context: SSLContext, *, on_listen: Callable[[str, int], None], cancel_abandoned: bool = False,
    bounds: Bounds = USUAL, now: Callable[[], float] = time.monotonic,
) -> None:  # fmt: skip
    """Serves on `HOST:PORT` until cancelled; calls `on_listen` with the host and port it listens on (port 0 asks for any).

    With `cancel_abandoned` a handler is cancelled when its client leaves; `bounds` limits clients, whose idle seconds are those of `now`.
    Raises Rejected when the address cannot be had.
    """
    host, port = split_address(address)
    connections = Connections(bounds, now)
    app.middlewares.insert(0, connections.middleware)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=cancel_abandoned)
    await runner.setup()
    try:
        try:
            listener = listen(host, port)
        except OSError as error:
            raise Rejected(f"cannot listen on {address}: {error.strerror or error}", reason="AddressUnavailable") from error
        with listener:
            bound = listener.getsockname()
            on_listen(bound[0], bound[1])
            assert runner.server is not None, "the runner was set up"  # noqa: S101
            await connections.accept(listener, runner.server, context)
    finally:
        await _end(runner)


async def _end(runner: web.AppRunner) -> None:
    """Waits for requests under way, 3 s at most, then aborts every connection: a client that ignores the TLS close must not hold the loop
    up.
    """
    transports = [handler.transport for handler in runner.server.connections] if runner.server is not None else []
    await runner.cleanup()
    for transport in transports:
        if transport is not None:
            transport.abort()
    await asyncio.sleep(ABORT_SECONDS)


def error_response(error: LatticeError) -> web.Response:
    """Returns the response for an error: JSON (`reason`, `message`) with the status code of its kind (500: no other fits; 401 for a Denied
    with the reason Unauthenticated).

    `Retry-After` is set where a Retry names a time, in whole seconds, 1 at least.
    """
    unauthenticated = isinstance(error, Denied) and error.reason == "Unauthenticated"
    status = 401 if unauthenticated else next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    headers = {"WWW-Authenticate": "Bearer"} if unauthenticated else {}
    if isinstance(error, Retry) and error.after_seconds is not None:
        headers["Retry-After"] = str(max(1, ceil(error.after_seconds)))
    body = msgspec.json.encode({"reason": error.reason, "message": error.message})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
