"""The event loop of every daemon: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import Callable
from typing import Any


def factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of the event loop; None: asyncio's own.

    A socket that uvloop is given for a connection is uvloop's from then on, and closed by it. Where the peer resets the
    connection before it is made (an API server that is being killed), uvloop 0.21 to 0.23 closes the descriptor and leaves
    its number in the socket object, whose own end closes the number again: then it is a stranger's, of a connection, a pipe
    or a file. So the number is taken away from the object, whatever comes of the connection.
    """
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    class Loop(uvloop.Loop):
        async def create_connection(self, *args: Any, **options: Any) -> Any:
            sock: socket.socket | None = options.get("sock")
            try:
                return await super().create_connection(*args, **options)
            finally:
                if sock is not None:
                    sock.detach()

    return Loop
