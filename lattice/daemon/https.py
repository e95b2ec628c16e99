"""An HTTPS server of aiohttp routes that starts, says where it listens, and ends without leaving a connection behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext

from aiohttp import web

from lattice.daemon.metrics import split_address
from lattice.errors import Rejected

SHUTDOWN_SECONDS = 3.0
"""How long requests under way may take once the process is asked to end."""
ABORT_SECONDS = 0.05
"""The event loop's time to close what was aborted."""


async def serve(
    app: web.Application, address: str, context: SSLContext, *, on_listen: Callable[[str, int], None], cancel_abandoned: bool = False
) -> None:
    """Serve on `HOST:PORT` until cancelled; `on_listen` hears the real address.

    With `cancel_abandoned` a handler is cancelled when its client leaves. Rejected when the address cannot be had.
    """
    host, port = split_address(address)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=cancel_abandoned)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host or None, port, ssl_context=context).start()
        except OSError as error:
            raise Rejected(f"cannot listen on {address}: {error.strerror or error}", reason="AddressUnavailable") from error
        bound = runner.addresses[0]
        on_listen(bound[0], bound[1])
        await asyncio.Event().wait()
    finally:
        await _end(runner)


async def _end(runner: web.AppRunner) -> None:
    """Let requests end, then abort every connection: a client that does not answer the TLS farewell must not hold the loop."""
    transports = [handler.transport for handler in runner.server.connections] if runner.server is not None else []
    await runner.cleanup()
    for transport in transports:
        if transport is not None:
            transport.abort()
    await asyncio.sleep(ABORT_SECONDS)
