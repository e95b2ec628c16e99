"""The gRPC side of the gateway: answers the questions of nodes for their work; each node is known by its certificate."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

import grpc
import grpc.aio as aio

from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.mtls import AGENT, HOLLOW, Files, ServerCredentials, peer_name
from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry
from lattice.rpc.v1 import gateway_pb2 as pb
from lattice.rpc.v1 import gateway_pb2_grpc as rpc
from lattice.views import Node
from lattice_gateway.metrics import Metrics
from lattice_gateway.scripts import Scripts
from lattice_gateway.variables import Secrets
from lattice_gateway.works import WorkQuestion, Works

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Questions of one node that are answered at a time; more are refused with Retry."""
OPTIONS: Final = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 1_800_000),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_receive_message_length", 65_536),
    ("grpc.so_reuseport", 0),
]
STOP_SECONDS: Final = 0.5

Context = aio.ServicerContext[pb.GetWorkRequest, pb.Work]


class WorkService(rpc.GatewayServicer):
    """Answers the GetWork calls of nodes; `nodes` is a live view of the LatticeNodes by name."""

    def __init__(self, works: Works, secrets: Secrets, scripts: Scripts, nodes: Mapping[str, Node], clock: Clock, metrics: Metrics) -> None:
        self._works = works
        self._secrets = secrets
        self._scripts = scripts
        self._nodes = nodes
        self._clock = clock
        self._metrics = metrics
        self._asking: Counter[str] = Counter()

    async def GetWork(self, request: pb.GetWorkRequest, context: Context) -> pb.Work:  # type: ignore[override]  # noqa: N802 - the protobuf's name
        """Returns the work of an attempt to one of its nodes; aborts the call with a gRPC status where it may not, or cannot. Counts, times
        and, where denied, logs it.
        """
        begun, status = self._clock.monotonic(), grpc.StatusCode.OK
        starts.reached(self._clock, "ask", request.uid, node=request.node)
        self._asking[request.node] += 1
        try:
            return await self._answer(peer_name(context), request)
        except LatticeError as error:
            status = _code(error)
            if isinstance(error, Denied):
                event(log, "WorkRefused", logging.WARNING, node=request.node, allocation=request.uid, attempt=request.attempt,
                      reason=error.reason, message=error.message)  # fmt: skip
            await context.abort(status, f"{error.reason}: {error.message}")
        finally:
            self._asking[request.node] -= 1
            if not self._asking[request.node]:
                del self._asking[request.node]
            self._metrics.requests.labels("GetWork", status.name).inc()
            self._metrics.seconds.labels("GetWork").observe(max(0.0, self._clock.monotonic() - begun))

    async def _answer(self, caller: str, request: pb.GetWorkRequest) -> pb.Work:
        """Returns the work that a node asks for, with the values of its variables and its script where it starts and asks for them; where
        these are refused, with the sentence why.

        Raises Denied for a node that asks for another's work.
        """
        self._check(caller, request)
        asked = WorkQuestion(request.node, request.uid, request.attempt, request.generation, request.namespace, request.name, request.stale)
        found = await self._works.find(asked)
        if not (request.variables and found.starts):
            return pb.Work(allocation=found.body)
        key = asked.uid, asked.attempt
        try:
            values = await self._secrets.values(key, found.namespace, found.sources) if found.sources else {}
            script = await self._scripts.text(key, found.namespace, found.script) if found.script is not None else ""
        except Rejected as error:
            return pb.Work(allocation=found.body, refusal=error.message)
        return pb.Work(allocation=found.body, variables=values, script=script)

    def _check(self, caller: str, request: pb.GetWorkRequest) -> None:
        """Raises Denied unless the caller's certificate is the node's, or that of the process of a hollow node.

        Raises Retry where the node is not registered, or asks more than 16 questions at a time.
        """
        node = self._nodes.get(request.node)
        hollow = caller == HOLLOW and node is not None and node.status.hollow
        if caller != AGENT + request.node and not hollow:
            raise Denied(f"{caller or 'nobody'} does not ask for node {request.node}", reason="NotYourNode")
        if node is None:
            raise Retry(f"node {request.node} is not registered, or was forgotten", reason="NodeUnknown")
        if not hollow and self._asking[request.node] > AT_ONCE:
            raise Retry(f"node {request.node} asks more than {AT_ONCE} questions at a time", reason="TooManyRequests")


def _code(error: LatticeError) -> grpc.StatusCode:
    """Returns the gRPC status for an error: NOT_FOUND, PERMISSION_DENIED for work or a node not the caller's, UNAVAILABLE for all else."""
    if isinstance(error, NotFound):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, Denied) and error.reason in ("NotYourWork", "NotYourNode"):
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.UNAVAILABLE


async def serve(listen: str, files: Files, service: WorkService) -> None:
    """Serves `service` to nodes over gRPC with mTLS at HOST:PORT until cancelled; raises Rejected when the address cannot be had."""
    server = aio.server(options=OPTIONS)
    rpc.add_GatewayServicer_to_server(service, server)
    try:
        server.add_secure_port(listen, ServerCredentials(files).credentials)
    except RuntimeError as error:
        raise Rejected(f"cannot listen on {listen}: {error}", reason="AddressUnavailable") from error
    await server.start()
    event(log, "ListeningForNodes", address=listen)
    try:
        await asyncio.Event().wait()  # wait_for_termination, once cancelled, makes stop() return before the calls have ended
    finally:
        await server.stop(STOP_SECONDS)
