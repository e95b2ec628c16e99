"""A node's connection to a reporter on another machine: one gRPC stream an attempt, connected again whenever it breaks.

The streams to one reporter share a connection, which stays open for a minute after the last of them, so that the next attempt on the same
nodes starts without a handshake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio as aio

from lattice.daemon.logs import event
from lattice.daemon.mtls import Files, client_credentials
from lattice.errors import Rejected, Retry
from lattice.kube.clock import Clock
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.rpc.v1 import agent_pb2_grpc as rpc
from lattice.units import dial_target
from lattice_agent.peers import wire
from lattice_agent.peers.interface import LaunchOrder, MemberSide
from lattice_agent.peers.launch_streams import LaunchCall, MessageStream, away

log = logging.getLogger(__name__)

FIRST_BACK_OFF = 0.05
LONGEST_BACK_OFF = 1.0
OPTIONS = [
    ("grpc.keepalive_time_ms", 3000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.client_idle_timeout_ms", 60_000),
    ("grpc.enable_http_proxy", 0),
]

NOT_HERE = grpc.StatusCode.FAILED_PRECONDITION
"""The status of an agent that is reachable but has not read of the attempt yet, or reports it no longer."""

KEPT = 64
"""Most connections that are kept; beyond, unused ones are closed, the oldest first."""

Call = aio.StreamStreamCall[pb.MemberState, pb.ReporterState]


@dataclass(eq=False)
class _Connection:
    """A channel to one reporter, the stamp of the certificates that it was made with, and how many streams use it."""

    channel: aio.Channel
    stamp: object
    streams: int = 0


def _has_failed(error: aio.AioRpcError | Retry) -> bool:
    """Tells whether a stream's error may be its channel's; MessageStream raises Retry with that of gRPC as its cause."""
    if isinstance(error, aio.AioRpcError):
        return error.code() is not NOT_HERE
    return isinstance(error.__cause__, aio.AioRpcError) and error.__cause__.code() is grpc.StatusCode.UNAVAILABLE


class GrpcPeers:
    """Carries members' conversations with their reporters over gRPC; a reporter proves its node's name by its certificate."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._connections: dict[tuple[str, str], _Connection] = {}

    async def converse(self, reporter: str, address: str, member_side: MemberSide) -> None:
        """Sends the member's states to the reporter and passes on its directions until the member has no state any more.

        Reconnects after 1 s at most whenever a stream ends, and tells the member how long the reporter has been out of reach; an agent
        that answers that it does not report the attempt (yet) is in reach.
        """
        delay, said, reached = FIRST_BACK_OFF, "", self._clock.monotonic()
        while member_side.member() is not None:
            answered, heard = False, True
            try:
                answered = await self._converse(reporter, address, member_side)
                why = "the reporter closed the stream"
            except aio.AioRpcError as error:
                heard, why = error.code() is NOT_HERE, f"{error.code().name}: {error.details()}"
            except Rejected as error:
                heard, why = False, error.message
            if answered:
                delay = FIRST_BACK_OFF
            if heard:
                reached = self._clock.monotonic()
            else:
                member_side.unreached(self._clock.monotonic() - reached)
            if why != said:
                event(
                    log,
                    "ReporterAway",
                    allocation=member_side.key.uid,
                    attempt=member_side.key.attempt,
                    reporter=reporter,
                    address=address,
                    message=why,
                )
                said = why
            await self._clock.sleep(delay)
            delay = min(LONGEST_BACK_OFF, delay * 2)

    @asynccontextmanager
    async def _connected(self, reporter: str, address: str) -> AsyncIterator[aio.Channel]:
        """Yields the channel to a reporter for one stream; a channel on which a stream has failed is not given out again."""
        stamp, at = self._files.stamp(), (reporter, address)
        connection = self._connections.pop(at, None)
        if connection is None or connection.stamp != stamp:
            options = [*OPTIONS, ("grpc.ssl_target_name_override", reporter)]
            channel = aio.secure_channel(dial_target(address), client_credentials(self._files), options=options)
            connection = _Connection(channel, stamp)
        self._connections[at] = connection
        connection.streams += 1
        try:
            yield connection.channel
        except (aio.AioRpcError, Retry) as error:
            if _has_failed(error) and self._connections.get(at) is connection:
                del self._connections[at]
            raise
        finally:
            connection.streams -= 1
            await self._close_unused(at, connection)

    async def _close_unused(self, at: tuple[str, str], connection: _Connection) -> None:
        """Closes a channel without streams that is not kept, and, of more than 64 kept ones, the oldest that no stream uses."""
        if not connection.streams and self._connections.get(at) is not connection:
            await connection.channel.close(None)
        while len(self._connections) > KEPT and (unused := [key for key, kept in self._connections.items() if not kept.streams]):
            await self._connections.pop(unused[0]).channel.close(None)

    @asynccontextmanager
    async def open_launch(self, node: str, address: str, order: LaunchOrder, *, forward: bool = False) -> AsyncIterator[MessageStream]:
        """Opens the call Launch, or with `forward` Forward, to the agent of a node, on the connection to it; ends the call with the block.

        Raises Retry where the agent cannot be reached or refuses.
        """
        start = pb.LaunchStart(uid=order.key.uid, attempt=order.key.attempt, number=order.number, describe=order.describe)
        try:
            async with self._connected(node, address) as channel:
                stub = rpc.AgentStub(channel)
                call: LaunchCall = stub.Forward() if forward else stub.Launch()  # type: ignore[call-arg]  # written to, not iterated
                try:
                    await call.write(pb.LaunchMessage(start=start))
                    yield MessageStream(call)
                finally:
                    call.cancel()
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise away(f"the agent of node {node} does not answer at {address}", error) from error
        except Rejected as error:
            raise Retry(error.message, reason="NodeAway") from error

    async def _converse(self, reporter: str, address: str, member_side: MemberSide) -> bool:
        """Runs one stream until it ends; returns whether the reporter has answered on it. Raises an error of a stream without an answer."""
        answered = False
        try:
            async with self._connected(reporter, address) as channel:
                call: Call = rpc.AgentStub(channel).Coordinate()  # type: ignore[call-arg]  # written to, not iterated
                failure = None
                async with asyncio.TaskGroup() as group:
                    telling = group.create_task(self._send(call, member_side))
                    try:
                        async for message in call:
                            answered = True
                            member_side.directed(wire.direction_from_wire(message))
                    except aio.AioRpcError as error:
                        failure = error
                    finally:
                        call.cancel()
                    telling.cancel()
                if failure is not None:
                    raise failure
        except aio.AioRpcError:
            if not answered:
                raise
        return answered

    async def _send(self, call: Call, member_side: MemberSide) -> None:
        """Sends the node's whole state after each change, until it has none or the call has ended."""
        told = None
        while True:
            seen = member_side.changed.version
            member = member_side.member()
            if member is None:
                await call.done_writing()
                return
            if member != told:
                try:
                    await call.write(wire.member_to_wire(member))
                except (aio.AioRpcError, asyncio.InvalidStateError, grpc.RpcError):
                    return
                told = member
            await member_side.changed.wait(seen)
