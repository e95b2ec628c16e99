"""Chooses the event loop of every daemon: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import Callable
from typing import Any


def factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's event loop; None where uvloop is not installed, which means asyncio's own.

    uvloop owns a socket that it is given for a connection, and closes it. Where the peer resets the connection before it is made (an
    API server that is being killed), uvloop 0.21 to 0.23 closes the descriptor and leaves its number in the socket object, which closes
    the number again at its end, when it may belong to another connection, pipe or file. So the number is detached from the object,
    whatever becomes of the connection.
    """
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    class Loop(uvloop.Loop):
        async def create_connection(self, *args: Any, **options: Any) -> Any:
            """Opens a connection; a socket that was given is detached afterwards, so that only the transport closes it."""
            sock: socket.socket | None = options.get("sock")
            try:
                return await super().create_connection(*args, **options)
            finally:
                if sock is not None:
                    sock.detach()

    return Loop
