"""Notes that ranks ask for PMIx, which is not served: without a server each is silently a world of size 1, with exit code 0.

It listens where a PMIx client without a server looks for one, believes only processes of the work's own user, and answers nothing.
PMIX_NAMESPACE must not be set: MPICH 5 refuses to start where it finds that beside PMI_SIZE.
"""

from __future__ import annotations

import _socket
import os
import select

MOST_CALLERS, MOST_BYTES = 16, 4096
URIS = ("PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI21", "PMIX_SERVER_URI2")
CALLS = b"singleton."
"""The beginning of the name that a client gives itself which has none from a server."""
CONNECTIONS = "/proc/self/net/tcp"


class PmixListener:
    """Listens on this node's loopback, in the poll loop of a keeper, for processes of one user; nowhere, where that cannot be."""

    def __init__(self, poll: select.poll, user: int | None) -> None:
        self._poll, self._user = poll, os.getuid() if user is None else user
        self._callers: dict[int, tuple[_socket.socket, int]] = {}
        self._listening: _socket.socket | None = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self._port = 0
        try:
            self._listening.setblocking(False)
            self._listening.bind(("127.0.0.1", 0))
            self._listening.listen(128)
            self._port = self._listening.getsockname()[1]
            poll.register(self._listening.fileno(), select.POLLIN)
        except OSError:
            self._listening.close()
            self._listening = None

    def __contains__(self, fd: int) -> bool:
        """Returns whether a descriptor is one of this listener's."""
        return fd in self._callers or (self._listening is not None and fd == self._listening.fileno())

    def variables(self) -> dict[str, str]:
        """Returns the variables by which a PMIx client calls here; none where nobody listens."""
        return dict.fromkeys(URIS, f"lattice.0;tcp4://127.0.0.1:{self._port}") if self._port else {}

    def take_call(self, fd: int) -> bool:
        """Takes a call, or what a caller says; returns whether a PMIx client of the user has called."""
        if fd not in self._callers:
            self._answer_call()
            return False
        caller, port = self._callers[fd]
        try:
            said = caller.recv(MOST_BYTES)
        except OSError:
            said = b""
        believed = CALLS in said and caller_user(port, self._port) == self._user
        self._hang_up(fd)
        return believed

    def close(self) -> None:
        """Closes all descriptors."""
        for fd in list(self._callers):
            self._hang_up(fd)
        if self._listening is not None:
            self._poll.unregister(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def _answer_call(self) -> None:
        """Accepts one connection; of too many the oldest is closed."""
        try:
            fd, (_, port) = self._listening._accept()  # type: ignore[union-attr]
        except OSError:
            return
        caller = _socket.socket(fileno=fd)
        caller.setblocking(False)
        if len(self._callers) >= MOST_CALLERS:
            self._hang_up(next(iter(self._callers)))
        self._callers[fd] = (caller, port)
        self._poll.register(fd, select.POLLIN)

    def _hang_up(self, fd: int) -> None:
        """Closes a connection."""
        self._poll.unregister(fd)
        self._callers.pop(fd)[0].close()


def caller_user(caller: int, listener: int) -> int | None:
    """Returns the uid of the process whose end of a TCP connection has this port, with the listener's at the other end; None: unknown."""
    try:
        fd = os.open(CONNECTIONS, os.O_RDONLY)
        with os.fdopen(fd, "rb") as connections:
            for line in connections:
                words = line.split()
                if words[1].endswith(b":%04X" % caller) and words[2].endswith(b":%04X" % listener):
                    return int(words[7])
    except (OSError, IndexError, ValueError):
        pass  # nobody is believed then
    return None
