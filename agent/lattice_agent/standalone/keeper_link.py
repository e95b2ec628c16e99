"""Connects a keeper with its node's agent: a socket in the attempt's run directory, and frames that are kept until acknowledged.

It is of standard library alone, for the keeper.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH108, PTH118
from __future__ import annotations

import _socket  # without `socket`, which loads more than a keeper needs
import json
import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Frame, FrameError

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

UNHEARD_BYTES = 1 << 20
"""With so many bytes that the agent has not acknowledged, no more output is read."""
UNHEARD_EXCHANGE_BYTES = 16 << 20
"""With so many bytes that the agent has not acknowledged, nothing more is read of what ranks say by PMI."""
SEND_BYTES = 256 << 10
"""About how many bytes are handed to the socket at a time."""


def socket_name(number: int) -> str:
    """Returns the name of the keeper's socket in the attempt's run directory."""
    return f"keep-{number}"


def end_name(number: int) -> str:
    """Returns the name of the file in which a keeper writes what nobody heard."""
    return f"keep-{number}.end"


class KeptFrames:
    """Numbers the frames that must not be lost, from 1, and keeps each until it is acknowledged."""

    def __init__(self) -> None:
        self.last = 0
        self.unheard_bytes = 0
        self._kept: deque[tuple[int, bytes]] = deque()

    @property
    def first(self) -> int:
        """Returns the number of the oldest frame that is kept; one beyond the last where none is."""
        return self._kept[0][0] if self._kept else self.last + 1

    @property
    def full(self) -> bool:
        """Tells whether so much is kept that no more output is to be read."""
        return self.unheard_bytes >= UNHEARD_BYTES

    @property
    def overfull(self) -> bool:
        """Tells whether so much is kept that ranks may not exchange more."""
        return self.unheard_bytes >= UNHEARD_EXCHANGE_BYTES

    def keep_frame(self, make: Callable[[int], bytes]) -> None:
        """Keeps a frame, made of its number."""
        self.last += 1
        data = make(self.last)
        self._kept.append((self.last, data))
        self.unheard_bytes += len(data)

    def acknowledge(self, number: int) -> None:
        """Drops all frames up to this number."""
        while self._kept and self._kept[0][0] <= number:
            self.unheard_bytes -= len(self._kept.popleft()[1])

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """Returns the kept frames beyond this number, of about 256 KiB, with their numbers."""
        found, size = list[tuple[int, bytes]](), 0
        begin = max(0, number + 1 - self.first)
        for at in range(begin, len(self._kept)):
            if size >= SEND_BYTES:
                break
            found.append(self._kept[at])
            size += len(self._kept[at][1])
        return found


class AgentLink:
    """Listens for the agent, and speaks with the one that connected last."""

    def __init__(self, kept: KeptFrames, poll: select.poll, describe: Callable[[], dict[str, Any]], hear: Callable[[Frame], None]) -> None:
        """Tells an agent that connects what `describe` returns first, and calls `hear` with each of its frames."""
        self._kept, self._poll, self._describe, self._hear = kept, poll, describe, hear
        self._listener: _socket.socket | None = None
        self._agent: _socket.socket | None = None
        self._decoder = frames.Decoder()
        self._sent = 0
        self._buffer = bytearray()
        self._events = 0

    @property
    def connected(self) -> bool:
        """Tells whether an agent is connected."""
        return self._agent is not None

    def listen(self, directory: str, number: int) -> None:
        """Makes the socket in a directory, by which this keeper is the only one of its launch there.

        Raises FileExistsError where there is one, OSError where it cannot be made. The path may be longer than a socket's address.
        """
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        old = os.umask(0o177)
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{place}/{socket_name(number)}")
            listener.listen(4)
        except OSError as error:
            listener.close()
            if "already in use" in str(error):
                raise FileExistsError(socket_name(number)) from error
            raise
        finally:
            os.umask(old)
            os.close(place)
        self._listener = listener
        self._poll.register(listener.fileno(), select.POLLIN)

    def close(self) -> None:
        """Closes listener and connection; the socket's file stays."""
        self._drop()
        if self._listener is not None:
            self._poll.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def owns(self, fd: int) -> bool:
        """Tells whether this descriptor is the listener or the connection."""
        return any(one is not None and one.fileno() == fd for one in (self._listener, self._agent))

    def serve(self, fd: int, events: int) -> None:
        """Accepts an agent, or reads from and writes to the one that is connected, as poll has said."""
        if self._listener is not None and fd == self._listener.fileno():
            self._accept()
            return
        if events & select.POLLOUT:
            self.flush()
        if events & ~select.POLLOUT:
            self._receive()

    def _accept(self) -> None:
        """Takes a new connection in the place of the old one, and begins with the state and all frames that are kept."""
        if self._listener is None:
            return
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return  # it is gone already
        agent = _socket.socket(fileno=fd)
        self._drop()
        agent.setblocking(False)
        self._agent, self._decoder, self._buffer = agent, frames.Decoder(), bytearray()
        self._sent = self._kept.first - 1
        self._events = select.POLLIN
        self._poll.register(agent.fileno(), self._events)
        self.say(frames.STATE, json.dumps(self._describe()).encode())

    def _drop(self) -> None:
        """Closes the connection where there is one."""
        if self._agent is not None:
            self._poll.unregister(self._agent.fileno())
            self._agent.close()
            self._agent = None

    def _receive(self) -> None:
        """Reads what the agent has sent, and passes each frame on; drops the connection at its end, or where it breaks the rules."""
        if self._agent is None:
            return
        try:
            data = self._agent.recv(256 << 10)
            if not data:
                self._drop()
                return
            for frame in self._decoder.feed(data):
                self._hear(frame)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            self._drop()

    def say(self, kind: int, payload: bytes) -> None:
        """Sends a frame that is not kept, to an agent that is connected; nothing where none is."""
        if self._agent is not None:
            self._buffer += frames.encode(kind, payload)
            self.flush()

    def flush(self) -> None:
        """Sends what the socket takes: frames that are not kept, then those kept ones that were not sent on this connection."""
        while self._agent is not None:
            if not self._buffer:
                for number, data in self._kept.after(self._sent):
                    self._buffer += data
                    self._sent = number
            if not self._buffer:
                break
            try:
                sent = self._agent.send(self._buffer)
            except BlockingIOError:
                break
            except OSError:
                self._drop()
                return
            del self._buffer[:sent]
        self._watch(select.POLLIN | (select.POLLOUT if self._buffer else 0))

    def _watch(self, events: int) -> None:
        """Has the poll wait for these events of the connection."""
        if self._agent is not None and events != self._events:
            self._events = events
            self._poll.modify(self._agent.fileno(), events)


def remove_socket(directory: str, number: int) -> None:
    """Removes the socket's file, so that the number may be started again, or is known to be over."""
    with suppress(OSError):
        os.unlink(os.path.join(directory, socket_name(number)))
