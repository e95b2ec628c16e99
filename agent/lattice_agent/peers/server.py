"""Serves the agent's gRPC: Coordinate, by which other nodes talk to this reporter, and ReadLogs for the gateway."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio as aio

from lattice.daemon.logs import event
from lattice.daemon.mtls import AGENT, GATEWAY, Files, ServerCredentials, peer_name
from lattice.errors import Corrupt, Denied, NotFound, Rejected, Retry
from lattice.kube.clock import Clock
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.rpc.v1 import agent_pb2_grpc as rpc
from lattice_agent.attempts import Key
from lattice_agent.condition import VersionedCondition
from lattice_agent.peers import image_wire, logs, wire
from lattice_agent.peers.client import NOT_HERE
from lattice_agent.peers.interface import ImageShelf, Inspector, LaunchBook, LaunchOrder, LaunchSide, Logs, ReporterSide, Steps
from lattice_agent.peers.launch_streams import LaunchContext, MessageStream
from lattice_agent.peers.launch_wire import end_to_wire, pages_to_wire
from lattice_agent.peers.node_wire import node_to_wire
from lattice_agent.work.image_sources import ImageSources

log = logging.getLogger(__name__)

OPTIONS = [
    ("grpc.keepalive_time_ms", 3000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.max_allowed_incoming_connections", 8192),
]
"""Sockets that end no handshake are closed, and there are never more than descriptors: everybody's work can reach this port."""
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
STOP_SECONDS = 0.5

CoordinateContext = aio.ServicerContext[pb.MemberState, pb.ReporterState]
LogsContext = aio.ServicerContext[pb.ReadLogsRequest, AsyncIterator[pb.LogChunk]]
StepsContext = aio.ServicerContext[pb.ReadStepsRequest, AsyncIterator[pb.StepsReport]]
NodeContext = aio.ServicerContext[pb.ReadNodeRequest, AsyncIterator[pb.NodeReport]]
CacheContext = aio.ServicerContext[pb.CacheRequest, AsyncIterator[pb.CacheReport]]
LaunchesContext = aio.ServicerContext[pb.ReadLaunchesRequest, AsyncIterator[pb.LaunchesReport]]
EndContext = aio.ServicerContext[pb.EndLaunchRequest, AsyncIterator[pb.EndLaunchReport]]
LONGEST_WHY = 512


class AgentService(rpc.AgentServicer):
    """Answers other agents and the gateway, whose certificates say who they are."""

    def __init__(
        self,
        reporter_side: ReporterSide,
        kept: Logs,
        clock: Clock,
        images: ImageShelf | None = None,
        sources: Callable[[], ImageSources] = lambda: ImageSources(""),
        steps: Steps | None = None,
        inspector: Inspector | None = None,
        launches: LaunchSide | None = None,
        book: LaunchBook | None = None,
    ) -> None:
        """Serves the cache of `images` (None: the node keeps none), which come from `sources`, asked at each pull.

        `steps` are those of attempts' prologues; None: nothing is prepared here. `inspector` None: the node is not shown to people.
        `launches` None: it runs none, and `book` None: it tells of none.
        """
        self._reporter = reporter_side
        self._steps, self._inspector, self._launches = steps, inspector, launches
        self._book = book
        self._logs = kept
        self._clock = clock
        self._images, self._sources = images, sources

    async def Coordinate(  # type: ignore[override]  # noqa: N802 - the protobuf's name; grpc.aio's other form: it reads and writes the context
        self, request_iterator: AsyncIterator[pb.MemberState], context: CoordinateContext
    ) -> None:
        """Serves one node of one attempt: receives its states and sends directions, until either side has no more.

        Aborts the call of a node that speaks for another or is not of the attempt, or where this agent does not report for it.
        """
        first = await context.read()
        if not isinstance(first, pb.MemberState):  # the end of the stream
            return
        caller, key = peer_name(context), Key(first.uid, first.attempt)
        if caller != AGENT + first.node:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{caller or 'nobody'} speaks for node {first.node}")
        changed = await self._reporter.find_condition(key)
        if changed is None:
            await context.abort(NOT_HERE, f"this agent does not report for {first.uid}, attempt {first.attempt}")
            return
        if not self._hear(first, first.node):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"node {first.node} is not of {first.uid}, attempt {first.attempt}")
        try:
            async with asyncio.TaskGroup() as group:
                both = {group.create_task(self._listen(context, first.node)), group.create_task(self._send(context, key, changed))}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in both:
                    task.cancel()
        finally:
            self._reporter.left(key, first.node)

    async def _listen(self, context: CoordinateContext, node: str) -> None:
        """Receives a node's states until its stream ends, or a state is refused."""
        while isinstance(message := await context.read(), pb.MemberState) and self._hear(message, node):
            pass  # heard

    def _hear(self, message: pb.MemberState, node: str) -> bool:
        """Passes a node's state to the reporter; returns False where it is of another node than the stream's, or refused."""
        try:
            return message.node == node and self._reporter.hear(wire.member_from_wire(message))
        except Rejected as error:
            event(log, "MemberStateRefused", logging.WARNING, node=node, reason=error.reason, message=error.message)
            return False

    async def _send(self, context: CoordinateContext, key: Key, changed: VersionedCondition) -> None:
        """Sends the attempt's direction after each change, until this agent does not report it any more."""
        told = None
        while True:
            seen = changed.version
            direction = self._reporter.direction(key)
            if direction is None:
                return
            if direction != told:
                await context.write(wire.direction_to_wire(direction))
                told = direction
            await changed.wait(seen)

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: LogsContext) -> AsyncIterator[pb.LogChunk]:  # noqa: N802 - the protobuf's name
        """Streams an attempt's output on this node (attempt 0: the newest's), to the gateway alone, which has checked the reader.

        Aborts the call of another caller, for a malformed uid, and where this node has no output of the attempt.
        """
        caller = peer_name(context)
        if caller != GATEWAY:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"logs are read through the gateway, not by {caller or 'nobody'}")
        if not _UID.fullmatch(request.uid):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.uid[:64]!r} is no uid: up to 64 letters, digits and '-'")
        attempt = request.attempt or self._logs.newest(request.uid)
        key = Key(request.uid, attempt)
        directory = self._logs.directory(key)
        if directory is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this node has no output of {request.uid}, attempt {attempt}")
            return
        async for chunk in logs.read(directory, attempt, logs.wanted(request), lambda: self._logs.ended(key), self._clock):
            yield chunk

    async def ReadSteps(self, request: pb.ReadStepsRequest, context: StepsContext) -> AsyncIterator[pb.StepsReport]:  # noqa: N802 - the protobuf's name
        """Reports the steps of an attempt's prologue once, none where nothing is prepared here, to the gateway alone, which has checked the
        reader's rights.

        Aborts the call of another caller.
        """
        caller = peer_name(context)
        if caller != GATEWAY:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"steps are read through the gateway, not by {caller or 'nobody'}")
        found = self._steps.progress(Key(request.uid, request.attempt)) if self._steps is not None else ()
        yield pb.StepsReport(steps=map(wire.step_to_wire, found))

    async def ReadNode(self, request: pb.ReadNodeRequest, context: NodeContext) -> AsyncIterator[pb.NodeReport]:  # noqa: N802 - the protobuf's name
        """Reports the node and its attempts, or one of them, once, to the gateway alone, which shows each reader the attempts that he may
        see.

        Aborts the call for another caller, a wrong uid, or where this agent looks at nothing.
        """
        caller = peer_name(context)
        if caller != GATEWAY:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"nodes are read through the gateway, not by {caller or 'nobody'}")
        if request.uid and not _UID.fullmatch(request.uid):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.uid[:64]!r} is no uid: up to 64 letters, digits and '-'")
        if self._inspector is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this agent looks at nothing")
            return
        yield node_to_wire(await self._inspector.look(Key(request.uid, request.attempt) if request.uid else None))

    async def ReadLaunches(self, request: pb.ReadLaunchesRequest, context: LaunchesContext) -> AsyncIterator[pb.LaunchesReport]:  # noqa: N802 - the protobuf's name
        """Reports the launches of an attempt, to the gateway alone, which has checked the reader.

        Aborts the call of another caller, for a malformed uid, and where this node has nothing of the attempt.
        """
        book = await self._checked_book(request.uid, context)
        number = request.number if request.HasField("number") else None
        try:
            found = await book.read_launches(Key(request.uid, request.attempt), request.limit, number)
        except (NotFound, Corrupt) as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, error.message)
            return
        for page in pages_to_wire(found):
            yield page

    async def EndLaunch(self, request: pb.EndLaunchRequest, context: EndContext) -> AsyncIterator[pb.EndLaunchReport]:  # noqa: N802 - the protobuf's name
        """Ends a launch of an attempt, for the gateway alone, which has checked the right to it.

        Aborts the call of another caller, for a malformed uid, and where there is no such launch.
        """
        book = await self._checked_book(request.uid, context)
        try:
            yield end_to_wire(await book.end_launch(Key(request.uid, request.attempt), request.number, request.why[:LONGEST_WHY]))
        except (NotFound, Corrupt) as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, error.message)

    async def _checked_book(self, uid: str, context: LaunchesContext | EndContext) -> LaunchBook:
        """Returns what tells of launches; aborts the call of everybody but the gateway, for a wrong uid, and where nothing tells of any."""
        caller = peer_name(context)
        if caller != GATEWAY:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"launches are seen through the gateway, not by {caller or 'nobody'}")
        if not _UID.fullmatch(uid):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{uid[:64]!r} is no uid: up to 64 letters, digits and '-'")
        if self._book is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this node runs no launches: its agent may make no cgroups")
            raise NotFound("this node runs no launches")
        return self._book

    async def ServeCache(self, request: pb.CacheRequest, context: CacheContext) -> AsyncIterator[pb.CacheReport]:  # noqa: N802 - the protobuf's name
        """Lists, brings or evicts images of the node's cache, for the gateway alone, which has checked the right to it; a node that keeps
        no images reports that.

        Aborts the call of another caller.
        """
        caller = peer_name(context)
        if caller != GATEWAY:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the cache is served through the gateway, not to {caller or 'nobody'}")
        if self._images is None:
            yield pb.CacheReport(reason="NoCache", message="this node keeps no images")
            return
        async for report in image_wire.carry_out(request, self._images, self._sources(), self._clock):
            yield report

    async def Launch(  # type: ignore[override]  # noqa: N802 - the protobuf's name; grpc.aio's other form, as Coordinate
        self, request_iterator: AsyncIterator[pb.LaunchMessage], context: LaunchContext
    ) -> None:
        """Keeps a launch on this node for the agent that heads its attempt; aborts the call of everybody else."""
        await self._serve_launches(context, forward=False)

    async def Forward(  # type: ignore[override]  # noqa: N802 - the protobuf's name; grpc.aio's other form, as Coordinate
        self, request_iterator: AsyncIterator[pb.LaunchMessage], context: LaunchContext
    ) -> None:
        """Serves a client of `srun` that called another node of an attempt which this node heads; aborts the call of everybody else."""
        await self._serve_launches(context, forward=True)

    async def _serve_launches(self, context: LaunchContext, *, forward: bool) -> None:
        """Serves a call about a launch, until either side ends it; aborts it where the caller is no agent, or is refused."""
        first, caller = await context.read(), peer_name(context)
        if not isinstance(first, pb.LaunchMessage):
            return
        if not caller.startswith(AGENT) or not _UID.fullmatch(first.start.uid):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"launches are between agents, not for {caller or 'nobody'}")
        if self._launches is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this agent serves no launches")
            return
        order = LaunchOrder(Key(first.start.uid, first.start.attempt), first.start.number, first.start.describe)
        serve_call = self._launches.hear_client if forward else self._launches.keep_launch
        try:
            await serve_call(caller.removeprefix(AGENT), order, MessageStream(context))
        except Denied as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
        except Retry as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, error.message)


async def serve(listen: str, files: Files, service: AgentService) -> None:
    """Serves gRPC on HOST:PORT until cancelled, then ends calls within 0.5 s. Raises Rejected when the address cannot be had."""
    server = aio.server(options=OPTIONS)
    rpc.add_AgentServicer_to_server(service, server)
    credentials = ServerCredentials(files)
    try:
        server.add_secure_port(listen, credentials.credentials)
    except RuntimeError as error:
        raise Rejected(f"cannot listen on {listen}: {error}", reason="AddressUnavailable") from error
    await server.start()
    event(log, "Listening", address=listen)
    try:
        await asyncio.Event().wait()  # wait_for_termination, once cancelled, makes stop() return before the calls have ended
    finally:
        await server.stop(STOP_SECONDS)
