"""The head's ways to the keepers of a launch: on its own node by a relay in this process, on others through their agents."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from lattice.daemon.clock import Clock
from lattice.errors import LatticeError, Rejected, Retry
from lattice_agent.attempts import Key
from lattice_agent.launches.interface import AttemptSource, KeeperHost
from lattice_agent.launches.member import KeeperRelay
from lattice_agent.peers.interface import ByteStream, LaunchOrder, LaunchPeers
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame

WRITE_BYTES = 256 << 10
"""Bytes of frames that are joined before they are written."""

Receive = Callable[[Frame], None]
"""Is called on the loop with each frame of a node, in order."""


class NodeLink(Protocol):
    """A way to one launch's keeper on one node."""

    async def carry(self, start: Mapping[str, Any] | None, receive: Receive) -> None:
        """Starts the keeper where `start` describes it, and gives its frames to `receive` until CLOSED or REFUSED; returns then.

        Raises Retry where the way breaks: the next call goes on.
        """
        ...

    def send(self, frame: Frame) -> None:
        """Sends a frame to the keeper; without a connection it is dropped."""
        ...


class OwnLink:
    """The way to a keeper on the head's own node."""

    def __init__(self, keepers: KeeperHost, key: Key, number: int, clock: Clock) -> None:
        self._keepers, self._key, self._number, self._clock = keepers, key, number, clock
        self._relay: KeeperRelay | None = None

    async def carry(self, start: Mapping[str, Any] | None, receive: Receive) -> None:
        """Starts the keeper where `start` describes it, and gives its frames to `receive` until CLOSED or REFUSED."""
        self._relay = KeeperRelay(self._keepers, self._key, self._number, receive, self._clock)
        try:
            await self._relay.run(start)
        except ExceptionGroup as group:
            if isinstance(first := group.exceptions[0], LatticeError):
                raise first from group
            raise
        finally:
            self._relay = None

    def send(self, frame: Frame) -> None:
        """Sends a frame to the keeper; without a connection it is dropped."""
        if self._relay is not None:
            self._relay.send(frame)


class PeerLink:
    """The way to a keeper on another node, through that node's agent."""

    def __init__(self, peers: LaunchPeers, attempts: AttemptSource, node: str, key: Key, number: int) -> None:
        self._peers, self._attempts, self._node = peers, attempts, node
        self._order = LaunchOrder(key, number)
        self._unsent: deque[bytes] | None = None
        self._written = asyncio.Event()

    async def carry(self, start: Mapping[str, Any] | None, receive: Receive) -> None:
        """Calls the node's agent, and gives its frames to `receive` until CLOSED or REFUSED; raises Retry where the call breaks before.

        Raises Rejected for what is too large for a frame.
        """
        try:
            address = await self._attempts.address(self._node)
        except LatticeError as error:
            raise Retry(error.message, reason="NodeAway") from error
        try:
            async with self._peers.open_launch(self._node, address, self._order) as stream:
                self._unsent = deque()
                self.send(Frame(frames.LAUNCH, json.dumps(start).encode() if start is not None else b""))
                await self._exchange(stream, receive)
        except Retry:
            self._attempts.doubt_address(self._node)
            raise
        finally:
            self._unsent = None

    async def _exchange(self, stream: ByteStream, receive: Receive) -> None:
        """Carries frames both ways until the node says that the launch is over there; raises Retry where the call breaks before, and
        Rejected for a frame that is too large.
        """
        failure: LatticeError | None = None
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(stream))
            try:
                await _receive_all(stream, receive)
            except (Retry, Rejected) as error:
                failure = error
            writing.cancel()
        if failure is not None:
            raise failure

    async def _write(self, stream: ByteStream) -> None:
        """Writes what is to be sent, until cancelled or the call has ended."""
        while self._unsent is not None:
            await self._written.wait()
            self._written.clear()
            while self._unsent:
                try:
                    await stream.write_bytes(_next_bytes(self._unsent))
                except Retry:
                    return  # reading tells

    def send(self, frame: Frame) -> None:
        """Sends a frame to the keeper, whose payload is not copied before; without a connection it is dropped.

        Raises Rejected for a frame that is too large.
        """
        if len(frame.payload) > frames.MAX_PAYLOAD:
            raise Rejected(f"a message of {len(frame.payload)} bytes is above the limit of {frames.MAX_PAYLOAD}")
        if self._unsent is not None:
            self._unsent += (frames.HEAD.pack(len(frame.payload), frame.kind), frame.payload)
            self._written.set()


def _next_bytes(unsent: deque[bytes]) -> bytes:
    """Takes the next bytes that wait to be written: a large piece, or small ones joined."""
    found, size = [unsent.popleft()], 0
    while unsent and (size := size + len(found[-1])) < WRITE_BYTES:
        found.append(unsent.popleft())
    return b"".join(found)


async def _receive_all(stream: ByteStream, receive: Receive) -> None:
    """Gives the frames of a stream to `receive` until CLOSED or REFUSED; raises Retry where it ends before."""
    decoder = Decoder()
    while True:
        data = await stream.read_bytes()
        if not data:
            raise Retry("the node's agent has ended the call", reason="NodeAway")
        try:
            found = decoder.feed(data)
        except frames.FrameError as error:
            raise Retry(f"the node's agent sends no frames: {error}", reason="NodeAway") from error
        for frame in found:
            receive(frame)
            if frame.kind in (frames.CLOSED, frames.REFUSED):
                return


async def describe_node(peers: LaunchPeers, address: str, node: str, key: Key, *, within: float) -> Mapping[str, Any]:
    """Asks another node what the attempt has there; raises Retry where it does not answer in time."""
    try:
        async with asyncio.timeout(within), peers.open_launch(node, address, LaunchOrder(key, describe=True)) as stream:
            return await _first_document(stream)
    except TimeoutError as error:
        raise Retry(f"the agent of node {node} has not answered for {within:g} s", reason="NodeAway") from error


async def _first_document(stream: ByteStream) -> Mapping[str, Any]:
    """Returns the JSON of the first frame of a stream; raises Retry where there is none."""
    found = list[Mapping[str, Any]]()

    def note(frame: Frame) -> None:
        """Notes the document of the frame that says it all."""
        found.append(json.loads(frame.payload))

    await _receive_all(stream, note)
    return found[0]


async def serve_keeper(
    keepers: KeeperHost,
    order: LaunchOrder,
    stream: ByteStream,
    clock: Clock,
    refusal: Callable[[], Awaitable[str]],
    replaced: asyncio.Event,
) -> None:
    """Keeps a launch on this node for another node's agent, until all of it is removed or the call breaks; raises Retry for the latter.

    `refusal` says why the attempt may start nothing here; empty: it may. Once `replaced` is set, a newer call keeps the launch.
    """
    unsent, written, finished = bytearray(), asyncio.Event(), asyncio.Event()

    def emit(frame: Frame) -> None:
        """Queues a frame for the head's agent."""
        unsent.extend(frames.encode(frame.kind, frame.payload))
        if frame.kind in (frames.CLOSED, frames.REFUSED):
            finished.set()
        written.set()

    async def write() -> None:
        """Writes what is queued until the last frame was written, or the call has ended."""
        while not (finished.is_set() and not unsent):
            await written.wait()
            written.clear()
            data = bytes(unsent)
            unsent.clear()
            await stream.write_bytes(data)

    decoder, relay = Decoder(), KeeperRelay(keepers, order.key, order.number, emit, clock)
    start, rest = await _first_frame(stream, decoder)
    if start and (why := await refusal()):
        await stream.write_bytes(frames.encode(frames.REFUSED, frames.encode_refused(1, why)))
        return
    async with asyncio.TaskGroup() as group:
        running = group.create_task(relay.run(json.loads(start) if start else None))
        hearing = group.create_task(_hear(stream, decoder, rest, relay))
        writing = group.create_task(_until_broken(write()))
        replacing = group.create_task(replaced.wait())
        await asyncio.wait({hearing, writing, replacing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, hearing, writing, replacing):
            task.cancel()
    if not finished.is_set():
        raise Retry("the call has ended", reason="NodeAway")


async def _until_broken(writing: Awaitable[None]) -> None:
    """Awaits a writer; returns also where its stream breaks."""
    try:
        await writing
    except Retry:
        return


async def _first_frame(stream: ByteStream, decoder: Decoder) -> tuple[bytes, list[Frame]]:
    """Returns the payload of the LAUNCH that begins a stream, and the frames that came with it; raises Retry where there is none."""
    while data := await stream.read_bytes():
        try:
            found = decoder.feed(data)
        except frames.FrameError as error:
            raise Retry(f"no frame: {error}") from error
        if found and found[0].kind != frames.LAUNCH:
            break
        if found:
            return found[0].payload, found[1:]
    raise Retry("the call began with no launch", reason="NodeAway")


async def _hear(stream: ByteStream, decoder: Decoder, first: list[Frame], relay: KeeperRelay) -> None:
    """Gives the head's frames to the relay, until the call ends."""
    found = first
    while True:
        for frame in found:
            relay.send(frame)
        try:
            data = await stream.read_bytes()
            found = decoder.feed(data)
        except (Retry, frames.FrameError):
            return
        if not data:
            return
