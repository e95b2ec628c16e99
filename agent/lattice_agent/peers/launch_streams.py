"""The byte stream of a call Launch or Forward between two agents: frames of launches, cut into messages."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio as aio

from lattice.errors import Retry
from lattice.rpc.v1 import agent_pb2 as pb
from lattice_agent.peers.interface import AWAY, UNSERVED

LARGEST = 1 << 20
"""Most bytes of one message: gRPC takes 4 MiB."""

LaunchContext = aio.ServicerContext[pb.LaunchMessage, pb.LaunchMessage]
LaunchCall = aio.StreamStreamCall[pb.LaunchMessage, pb.LaunchMessage]


def away(what: str, error: Exception) -> Retry:
    """Returns the error for a call about a launch that has failed."""
    unserved = isinstance(error, aio.AioRpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED
    return Retry(f"{what}: {error}", reason=UNSERVED if unserved else AWAY)


class MessageStream:
    """One agent's side of a call: bytes in, bytes out."""

    def __init__(self, ends: LaunchCall | LaunchContext) -> None:
        """Wraps a call, or the context of a called one."""
        self._ends = ends

    async def write_bytes(self, data: bytes) -> None:
        """Sends bytes to the other agent; raises Retry where the call has ended."""
        try:
            for at in range(0, len(data), LARGEST):
                await self._ends.write(pb.LaunchMessage(frames=data[at : at + LARGEST]))
        except (grpc.RpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError) as error:
            raise away("the other agent is away", error) from error

    async def read_bytes(self) -> bytes:
        """Returns the next bytes of the other agent; empty: it sends nothing more. Raises Retry where the call fails."""
        try:
            message = await self._ends.read()
        except (grpc.RpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError) as error:
            raise away("the other agent is away", error) from error
        return message.frames if isinstance(message, pb.LaunchMessage) else b""
