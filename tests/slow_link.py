"""A link to a server that carries a few bytes at a time, or none: for what must be interrupted amid a transfer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

CHUNK = 16384


class SlowLink:
    """Passes connections to a server on; while `slow`, its answers come at some KiB a second, and while `still`, no more of them come."""

    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self.slow = threading.Event()
        self.still = threading.Event()
        self._listener, self._target = listener, (host, port)

    @property
    def address(self) -> str:
        """HOST:PORT where it listens."""
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def serve(self) -> None:
        """Takes connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            asking = threading.Thread(target=self._carry, args=(client, server), daemon=True)
            asking.start()
            self._carry(server, client, answers=True)
            asking.join()

    def _carry(self, source: socket.socket, sink: socket.socket, *, answers: bool = False) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if answers and self.slow.is_set():
                    time.sleep(0.2)
                while answers and self.still.is_set():
                    time.sleep(0.05)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def slow_link(address: str, to: str) -> Iterator[SlowLink]:
    """A link on a free port of `address` to the server `to` (HOST:PORT), which is quick until it is told to be slow."""
    host, _, port = to.rpartition(":")
    with socket.create_server((address, 0)) as listener:
        link = SlowLink(listener, host, int(port))
        threading.Thread(target=link.serve, daemon=True).start()
        yield link
