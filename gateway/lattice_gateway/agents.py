"""The agents as the gateway calls them: at their address, by a certificate that must be the node's, for a stream of output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio as aio

from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.rpc.v1.agent_pb2_grpc import AgentStub
from lattice.units import dial_target
from lattice.views import Node

T = TypeVar("T")
CONNECT_SECONDS: Final = 5.0
OUT_OF_SERVICE: Final = frozenset({"Down", "Failed"})
"""States of a node from which no more output is expected."""


class Agents(Protocol):
    """The agents of all nodes, from which output is read; `GrpcAgents` is the implementation."""

    def state(self, node: str) -> str:
        """Returns the state of a node's LatticeNode, by name; empty when there is no such node, or it shows no state yet."""
        raise NotImplementedError

    def read_logs(self, node: str, request: pb.ReadLogsRequest) -> AsyncGenerator[pb.LogChunk, None]:
        """Yields the output that the node's agent sends; raises Retry, NotFound, Denied or Rejected when the call fails."""
        raise NotImplementedError

    def serve_cache(self, node: str, request: pb.CacheRequest) -> AsyncGenerator[pb.CacheReport, None]:
        """Yields what the node's agent reports of its image cache; raises Retry, NotFound, Denied or Rejected when the call fails."""
        raise NotImplementedError

    def read_steps(self, node: str, request: pb.ReadStepsRequest) -> AsyncGenerator[pb.StepsReport, None]:
        """Yields the node's one report of an attempt's steps; raises Retry, NotFound, Denied or Rejected when the call fails."""
        raise NotImplementedError

    def read_node(self, node: str, request: pb.ReadNodeRequest) -> AsyncGenerator[pb.NodeReport, None]:
        """Yields the one report of what the node is doing; raises Retry, NotFound, Denied or Rejected when the call fails."""
        raise NotImplementedError

    def read_launches(self, node: str, request: pb.ReadLaunchesRequest) -> AsyncGenerator[pb.LaunchesReport, None]:
        """Yields the node's report of an attempt's launches in pages; raises Retry, NotFound, Denied or Rejected when the call fails."""
        raise NotImplementedError

    def end_launch(self, node: str, request: pb.EndLaunchRequest) -> AsyncGenerator[pb.EndLaunchReport, None]:
        """Yields the node's one answer to an order to end a launch; raises Retry, NotFound, Denied or Rejected when the call fails."""
        raise NotImplementedError


@dataclass(frozen=True)
class AgentFiles:
    """PEM files for calls to agents and scheduler: the gateway's certificate and key, and the CA of the others."""

    certificate: str
    key: str
    authority: str

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns gRPC credentials from the files as they are now; raises Rejected where one cannot be read."""
        try:
            certificate, key, authority = (Path(path).read_bytes() for path in (self.certificate, self.key, self.authority))
        except OSError as error:
            raise Rejected(f"{error.filename} cannot be read: {error.strerror}", reason="CertificateUnreadable") from error
        return grpc.ssl_channel_credentials(authority, key, certificate)


class GrpcAgents:
    """Calls agents over gRPC with mTLS; `nodes` is a live view of the LatticeNodes by name."""

    def __init__(self, nodes: Mapping[str, Node], files: AgentFiles) -> None:
        self._nodes = nodes
        self._files = files

    def state(self, node: str) -> str:
        """Returns the state of a node's LatticeNode, by name; empty when there is no such node, or it shows no state yet."""
        found = self._nodes.get(node)
        return found.status.state if found is not None else ""

    async def read_logs(self, node: str, request: pb.ReadLogsRequest) -> AsyncGenerator[pb.LogChunk, None]:
        """Yields the output that the node's agent sends in one call; its certificate must name the node.

        Raises NotFound for an unknown node or output, Retry where the agent cannot be reached or is lost, Denied where it refuses the
        gateway, Rejected for a bad question or unreadable files.
        """
        async with aclosing(self._call(node, lambda stub: stub.ReadLogs(request))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def serve_cache(self, node: str, request: pb.CacheRequest) -> AsyncGenerator[pb.CacheReport, None]:
        """Yields the reports that the node's agent sends on its image cache in one call.

        Raises NotFound for an unknown node, Retry where the agent cannot be reached or is lost, Denied where it refuses the gateway,
        Rejected for a bad question or unreadable files.
        """
        async with aclosing(self._call(node, lambda stub: stub.ServeCache(request))) as reports:
            async for report in reports:
                yield report

    async def read_steps(self, node: str, request: pb.ReadStepsRequest) -> AsyncGenerator[pb.StepsReport, None]:
        """Yields the agent's report of an attempt's steps in one call.

        Raises NotFound for an unknown node, Retry where the agent cannot be reached or is lost, Denied where it refuses the gateway,
        Rejected for a bad question or unreadable files.
        """
        async with aclosing(self._call(node, lambda stub: stub.ReadSteps(request))) as reports:
            async for report in reports:
                yield report

    async def read_node(self, node: str, request: pb.ReadNodeRequest) -> AsyncGenerator[pb.NodeReport, None]:
        """Yields the agent's report of its node in one call.

        Raises NotFound for an unknown node, Retry where the agent cannot be reached or is lost, Denied where it refuses the gateway,
        Rejected for a bad question or unreadable files.
        """
        async with aclosing(self._call(node, lambda stub: stub.ReadNode(request))) as reports:
            async for report in reports:
                yield report

    async def read_launches(self, node: str, request: pb.ReadLaunchesRequest) -> AsyncGenerator[pb.LaunchesReport, None]:
        """Yields the agent's report of an attempt's launches, page by page, in one call.

        Raises NotFound for an unknown node or attempt, and where the agent is of an older release; Retry where it cannot be reached or is
        lost, Denied where it refuses the gateway, Rejected for a bad question or unreadable files.
        """
        async with aclosing(self._call(node, lambda stub: stub.ReadLaunches(request))) as reports:
            async for report in reports:
                yield report

    async def end_launch(self, node: str, request: pb.EndLaunchRequest) -> AsyncGenerator[pb.EndLaunchReport, None]:
        """Yields the agent's answer to an order to end a launch in one call.

        Raises NotFound for an unknown node or launch, and where the agent is of an older release; Retry where it cannot be reached or is
        lost, Denied where it refuses the gateway, Rejected for a bad question or unreadable files.
        """
        async with aclosing(self._call(node, lambda stub: stub.EndLaunch(request))) as reports:
            async for report in reports:
                yield report

    async def _call(self, node: str, begin: Callable[[AgentStub], aio.UnaryStreamCall[Any, T]]) -> AsyncGenerator[T, None]:
        """Yields the messages of a call to a node's agent over a connection of its own.

        Raises the error of a node without address, a connection that fails, or an agent that refuses.
        """
        address = self._address(node)
        options = [
            ("grpc.ssl_target_name_override", node),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", 8 * 1024 * 1024),
        ]
        async with aio.secure_channel(dial_target(address), self._files.credentials(), options=options) as channel:
            await _connected(channel, node, address)
            try:
                async with aclosing(_messages(begin(AgentStub(channel)))) as messages:
                    async for message in messages:
                        yield message
            except aio.AioRpcError as error:
                raise _translated(error, node) from error

    def _address(self, node: str) -> str:
        """Returns the address of a node's agent. Raises NotFound for an unknown node, Retry where it has not said where it listens."""
        found = self._nodes.get(node)
        if found is None:
            raise NotFound(f"node {node} is not registered any more", reason="NodeUnknown")
        if not found.status.address:
            raise Retry(f"the agent of node {node} has not said where it listens", reason="NoAddress")
        return found.status.address


async def _connected(channel: aio.Channel, node: str, address: str) -> None:
    """Returns once a connection stands. Raises Retry where it does not within 5 s."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await channel.channel_ready()
    except TimeoutError as error:
        sentence = f"the agent of node {node} does not answer at {address} within {CONNECT_SECONDS:g} s"
        raise Retry(sentence, reason="AgentSilent") from error


async def _messages(call: aio.UnaryStreamCall[Any, T]) -> AsyncGenerator[T, None]:
    """Yields the messages of a call, which is cancelled when the caller reads no further."""
    try:
        async for message in call:
            yield message
    finally:
        call.cancel()


def _translated(error: aio.AioRpcError, node: str) -> LatticeError:
    """Returns the error of Lattice for one of a call to a node: NotFound, Rejected, Denied, else Retry."""
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"node {node}: {details}", reason="NoOutput")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NotFound(f"the agent of node {node} is of an older release, which does not answer this", reason="NotServed")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return Rejected(f"node {node}: {details}", reason="QuestionInvalid")
    if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return Denied(f"node {node} refuses the gateway: {details}", reason="AgentRefused")
    return Retry(f"the connection to node {node} was lost: {details}", reason="AgentLost")
