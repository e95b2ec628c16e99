"""Holds the keeper's end of the socket to a launch's PMIx host, in the keeper's poll loop."""

from __future__ import annotations

import _socket
import select

from lattice_agent.standalone.pmi.pmix_session import PmixSession

RECEIVE_BYTES = 256 << 10
MOST_UNREAD = 4 << 20
"""Bytes of answers that the host has not read, beyond which nothing more is heard of it: it is the user's process."""
DRAIN_READS = 512
"""Most reads of what a host has left, which another process may go on writing: more than one fence may have."""


class PmixEnd:
    """The keeper's end of the socket, and the conversation over it."""

    def __init__(self, sock: _socket.socket, session: PmixSession, poll: select.poll) -> None:
        """Takes a connected socket that does not block."""
        self.fd, self.session = sock.fileno(), session
        self._sock, self._poll = sock, poll
        self._mask, self._paused = select.POLLIN, False
        poll.register(self.fd, self._mask)

    def serve_host(self, events: int) -> None:
        """Reads and writes as `events` of the poll allow."""
        if events & select.POLLOUT:
            self.write_host()
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._read()

    def drain(self) -> None:
        """Reads what the host has sent so far, as much as an honest one may have sent."""
        for _ in range(DRAIN_READS):
            if not self._read():
                break

    def write_host(self) -> None:
        """Writes to the host what it takes now."""
        out = self.session.out
        while out and self.fd >= 0:
            try:
                del out[: self._sock.send(memoryview(out)[:RECEIVE_BYTES])]
            except BlockingIOError:
                break
            except OSError:
                out.clear()  # its end tells
        self._watch()

    def pause(self, *, paused: bool) -> None:
        """Reads nothing more of the host while paused."""
        self._paused = paused
        self._watch()

    def close(self) -> None:
        """Closes the socket."""
        if self.fd >= 0:
            self._poll.unregister(self.fd)
            self._sock.close()
            self.fd = -1

    def _read(self) -> bool:
        """Reads what the host has sent; returns False where there is nothing more."""
        if self.fd < 0:
            return False
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()  # its process ends, which tells why
            return False
        self.session.take_bytes(data)
        return True

    def _watch(self) -> None:
        """Sets what the poll is to watch."""
        deaf = self._paused or len(self.session.out) > MOST_UNREAD
        mask = (0 if deaf else select.POLLIN) | (select.POLLOUT if self.session.out else 0)
        if self.fd >= 0 and mask != self._mask:
            self._mask = mask
            self._poll.modify(self.fd, mask)
