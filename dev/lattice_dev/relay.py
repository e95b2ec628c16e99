"""Carries bytes from the bridge to the apiserver on loopback, so that nodes reach it and the network outside does not.

    relay.py --listen 10.213.0.1:21003 --to 127.0.0.1:21003

TLS passes through unread: the apiserver's certificate names both addresses. It is one file of standard library on epoll, started by path
with `-I -S`: asyncio, which loads TLS, would double its memory.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import sys
import time
from typing import Final

CHUNK: Final = 256 * 1024
MOST_HELD: Final = 1024 * 1024
"""Bytes that wait for one end, above which the other end is not read."""
CONNECT_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
"""Time between two looks at connections that are being made."""
FULL_SECONDS: Final = 0.05
"""Pause where no file descriptor is left for another connection."""
_GONE: Final = select.EPOLLHUP | select.EPOLLERR
_NO_LINGERING: Final = b"\1\0\0\0\0\0\0\0"
"""struct linger: on, 0 s: the other side is told by a reset."""


class RelayEnd:
    """One socket of a carried connection, with the bytes that wait to be sent to it; `other` is the end that they come from."""

    __slots__ = ("connecting_until", "ended", "held", "other", "shut", "socket", "watched")

    def __init__(self, sock: socket.socket, *, connecting_until: float = 0.0) -> None:
        self.socket = sock
        self.other = self
        self.held = bytearray()
        self.ended = False
        """It has said all that it will say."""
        self.shut = False
        """It was told that nothing more comes."""
        self.watched = 0
        self.connecting_until = connecting_until
        """Until when its connection may take to be made; 0: it is made."""

    def wanted(self) -> int:
        """Returns the events of epoll that this end waits for."""
        reads = not self.connecting_until and not self.ended and len(self.other.held) < MOST_HELD
        return (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self.connecting_until or self.held else 0)


class Relay:
    """All connections that are accepted on one address, each carried to another address."""

    def __init__(self, listen: tuple[str, int], to: tuple[str, int]) -> None:
        """Listens at once; carries nothing before `serve`."""
        self._to = to
        self._listener = socket.create_server(listen, backlog=4096)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._ends: dict[int, RelayEnd] = {}
        self._connecting: set[RelayEnd] = set()

    def serve(self) -> None:
        """Carries connections until the process ends.

        It accepts after all other events of a round: a new connection has the number of one that was closed before, and would take its
        events for its own.
        """
        while True:
            accepts = False
            for number, event in self._epoll.poll(LOOK_SECONDS if self._connecting else -1):
                if number == self._listener.fileno():
                    accepts = True
                elif end := self._ends.get(number):
                    self._handle(end, event)
            if accepts:
                self._accept()
            if self._connecting:
                self._give_up(time.monotonic())

    def _accept(self) -> None:
        """Accepts a connection and begins one to the other side for it; resets both where that is refused at once, and waits a moment where
        no descriptor is left.
        """
        try:
            accepted, _ = self._listener.accept()
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            time.sleep(FULL_SECONDS)
            return
        for sock in (accepted, made):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near, far = RelayEnd(accepted), RelayEnd(made, connecting_until=time.monotonic() + CONNECT_SECONDS)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends[end.socket.fileno()] = end
        self._connecting.add(far)
        if made.connect_ex(self._to) not in (0, errno.EINPROGRESS):
            self._reset(near)
            return
        self._watch(near)
        self._watch(far)

    def _handle(self, end: RelayEnd, event: int) -> None:
        """Does what an event asks of an end: goes on connecting, reads, sends, and passes its end on; resets both ends where the connection
        breaks.
        """
        try:
            if end.connecting_until:
                self._connected(end)
            if event & (select.EPOLLIN | _GONE) and not end.ended:
                self._read(end)
            if end.held and not end.connecting_until:
                self._send(end)
            if event & _GONE and end.ended:
                self._unwatch(end)
            self._finish(end)
            self._finish(end.other)
        except BlockingIOError:
            pass
        except OSError:
            self._reset(end)
            return
        if end.shut and end.other.shut:
            self._close(end)
            return
        self._watch(end)
        self._watch(end.other)

    def _connected(self, end: RelayEnd) -> None:
        """Ends the making of a connection; raises OSError where it could not be made."""
        failure = end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, "not connected")
        end.connecting_until = 0.0
        self._connecting.discard(end)

    def _read(self, end: RelayEnd) -> None:
        """Takes what an end says and passes it on, or keeps it while the other end is not connected; notes the end of what it says.

        Raises OSError where it has gone.
        """
        data = end.socket.recv(CHUNK)
        if not data:
            end.ended = True
            return
        other = end.other
        other.held += data
        if not other.connecting_until:
            self._send(other)

    def _send(self, end: RelayEnd) -> None:
        """Sends as much of what waits as the end takes; raises OSError where it has gone."""
        with contextlib.suppress(BlockingIOError):
            while end.held:
                del end.held[: end.socket.send(end.held)]

    def _finish(self, end: RelayEnd) -> None:
        """Tells an end that nothing more comes, once the other has ended and everything is sent."""
        if end.other.ended and not end.held and not end.shut and not end.connecting_until:
            end.shut = True
            with contextlib.suppress(OSError):  # it has gone already
                end.socket.shutdown(socket.SHUT_WR)

    def _watch(self, end: RelayEnd) -> None:
        """Has the events that an end waits for told, and no others."""
        wanted = end.wanted()
        if wanted == end.watched:
            return
        number = end.socket.fileno()
        if not end.watched:
            self._epoll.register(number, wanted)
        elif wanted:
            self._epoll.modify(number, wanted)
        else:
            self._epoll.unregister(number)
        end.watched = wanted

    def _unwatch(self, end: RelayEnd) -> None:
        """Has no events of an end told any more."""
        if end.watched:
            self._epoll.unregister(end.socket.fileno())
            end.watched = 0

    def _give_up(self, now: float) -> None:
        """Resets the connections whose other half could not be made in time."""
        for end in [end for end in self._connecting if end.connecting_until <= now]:
            self._reset(end)

    def _reset(self, end: RelayEnd) -> None:
        """Ends a connection at once on both sides by a reset; what waits to be sent is lost."""
        for one in (end, end.other):
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
        self._close(end)

    def _close(self, end: RelayEnd) -> None:
        """Closes both ends and forgets them."""
        for one in (end, end.other):
            self._unwatch(one)
            self._connecting.discard(one)
            del self._ends[one.socket.fileno()]
            one.socket.close()


def _address(text: str) -> tuple[str, int]:
    """Returns host and port of a text HOST:PORT."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(argv: list[str]) -> int:
    """Reads the two addresses from the arguments and serves until a signal ends it; returns 2 where the arguments are wrong."""
    if len(argv) != 4 or (argv[0], argv[2]) != ("--listen", "--to"):
        print("usage: relay.py --listen HOST:PORT --to HOST:PORT", file=sys.stderr)
        return 2
    with contextlib.suppress(KeyboardInterrupt):
        Relay(_address(argv[1]), _address(argv[3])).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
