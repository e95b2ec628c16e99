"""The gateway as people meet it: TLS in front, agents behind mTLS, records as they come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc import aio

from lattice.daemon.clock import Clock, ManualClock, SystemClock
from lattice.errors import Retry, TooMany, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, NODES
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.rpc.v1.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from lattice_gateway.__main__ import Gateway, Outside, Settings, build
from lattice_gateway.identity import Identity
from lattice_gateway.server import MOST_UNCHECKED
from tests.unit.gateway.authority import Authority, Pair
from tests.unit.gateway.reviews import ReviewingCluster

API = "lattice.dev/v1alpha1"
PATH = "/v1/namespaces/physics/allocations/job/logs"


class Silence:
    """Never answers, and counts who waits: now, and at most."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    async def wait(self) -> None:
        """Waits until the caller gives up."""
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1


class FakeAgent(AgentServicer):
    """Sends the chunks it is given; `script` gets each request and yields chunks."""

    def __init__(self, script: Callable[[pb.ReadLogsRequest], AsyncIterator[pb.LogChunk]]) -> None:
        self.script = script
        self.requests: list[pb.ReadLogsRequest] = []
        self.callers: list[str] = []
        self.steps: list[pb.StepProgress] = []
        self.report = pb.NodeReport()
        self.silence: Silence | None = None
        self.launches: list[pb.LaunchesReport] = []
        self.asked_launches: list[pb.ReadLaunchesRequest] = []
        self.ended_launches: list[pb.EndLaunchRequest] = []

    async def Coordinate(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ReporterState]:  # noqa: N802 - the protocol's name
        """Not served by this fake."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only logs")
        yield pb.ReporterState()

    async def ServeCache(self, request: pb.CacheRequest, context: Any) -> AsyncIterator[pb.CacheReport]:  # noqa: N802 - the protocol's name
        """Keeps no images."""
        del context
        yield pb.CacheReport(done=request.action == pb.LIST_IMAGES)

    async def ReadSteps(self, request: pb.ReadStepsRequest, context: Any) -> AsyncIterator[pb.StepsReport]:  # noqa: N802 - the protocol's name
        """The steps that it was given, of any attempt."""
        del context
        yield pb.StepsReport(steps=self.steps if request.attempt else [])

    async def Launch(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.LaunchMessage]:  # noqa: N802 - the protocol's name
        """Not served by this fake."""
        del request_iterator, context
        yield pb.LaunchMessage()

    async def Forward(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.LaunchMessage]:  # noqa: N802 - the protocol's name
        """Not served by this fake."""
        del request_iterator, context
        yield pb.LaunchMessage()

    async def ReadLaunches(self, request: pb.ReadLaunchesRequest, context: Any) -> AsyncIterator[pb.LaunchesReport]:  # noqa: N802 - the protocol's name
        """The pages that it was given; none: an agent of a release without launches."""
        self.asked_launches.append(request)
        if not self.launches:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        for page in self.launches:
            yield page

    async def EndLaunch(self, request: pb.EndLaunchRequest, context: Any) -> AsyncIterator[pb.EndLaunchReport]:  # noqa: N802 - the protocol's name
        """Ends launch 3, and knows no other."""
        self.ended_launches.append(request)
        if request.number != 3:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no launch {request.number}")
        yield pb.EndLaunchReport(ending=True, grace_seconds=30.0)

    async def ReadNode(self, request: pb.ReadNodeRequest, context: Any) -> AsyncIterator[pb.NodeReport]:  # noqa: N802 - the protocol's name
        """The report that it was given; a silent agent never answers."""
        del request, context
        if self.silence is not None:
            await self.silence.wait()
        yield self.report

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.LogChunk]:  # noqa: N802 - the protocol's name
        """What the script says."""
        self.requests.append(request)
        self.callers.append(context.auth_context()["x509_common_name"][0].decode())
        try:
            async for chunk in self.script(request):
                yield chunk
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))


def says(*lines: str, end: bool = True, start: float = 1.0) -> Callable[[pb.ReadLogsRequest], AsyncIterator[pb.LogChunk]]:
    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        for index, line in enumerate(lines):
            if start + index >= request.since:
                yield pb.LogChunk(stream=pb.STDOUT, time=start + index, data=f"{line}\n".encode(), attempt=request.attempt)
        yield pb.LogChunk(end=end, attempt=request.attempt)

    return script


class World:
    """A gateway that runs, its cluster, and agents."""

    def __init__(self, directory: Path, cluster: ReviewingCluster, authority: Authority, clients: Authority) -> None:
        self.directory, self.cluster, self.authority, self.clients = directory, cluster, authority, clients
        self.servers: list[aio.Server] = []
        self.port = 0
        self.gateway: Gateway | None = None

    async def node(self, name: str, address: str = "127.0.0.1:1", state: str = "Ready") -> None:
        await self.cluster.create(NODES, {"apiVersion": API, "kind": "LatticeNode", "metadata": {"name": name}})
        await self.cluster.patch(NODES, name, {"status": {"address": address, "state": state}}, subresource="status")

    async def agent(
        self, name: str, script: Callable[[pb.ReadLogsRequest], AsyncIterator[pb.LogChunk]], certificate_of: str = ""
    ) -> FakeAgent:
        agent = FakeAgent(script)
        owner = certificate_of or name
        pair = self.authority.pair(f"lattice:agent:{owner}", dns=(owner,))
        server = aio.server()
        add_AgentServicer_to_server(agent, server)
        credentials = grpc.ssl_server_credentials([pair.contents()], self.authority.pem.encode(), require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        self.servers.append(server)
        await self.node(name, f"127.0.0.1:{port}")
        return agent

    async def allocation(self, user: str = "alice", **status: Any) -> None:
        spec = {"user": user, "tenant": "physics"}
        await self.cluster.create(
            ALLOCATIONS, {"apiVersion": API, "kind": "Allocation", "metadata": {"name": "job"}, "spec": spec}, "physics"
        )
        await self.status(**status)

    async def status(self, **status: Any) -> None:
        conditions = [{"type": kind, "status": value} for kind, value in status.pop("conditions", {}).items()]
        await self.cluster.patch(ALLOCATIONS, "job", {"status": {**status, "conditions": conditions}}, "physics", subresource="status")

    @asynccontextmanager
    async def get(self, path: str = PATH, *, user: str = "alice", client: Pair | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        trust = ssl.create_default_context(cadata=self.authority.pem)
        if client is not None:
            trust.load_cert_chain(client.certificate, client.key)
        headers = {"Authorization": f"Bearer {user}-token"} if user else {}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.get(f"https://localhost:{self.port}{path}", ssl=trust, headers=headers) as response,
        ):
            yield response

    async def records(self, query: str = "", **options: Any) -> list[dict[str, Any]]:
        async with asyncio.timeout(60), self.get(PATH + query, **options) as response:
            body = await response.read()
            assert response.status == 200, body
            return [json.loads(line) for line in body.splitlines()]

    async def refusal(self, query: str = "", **options: Any) -> tuple[int, str, str]:
        async with self.get(PATH + query, **options) as response:
            body = await response.json()
            return response.status, body["reason"], body["message"]

    def metric(self, name: str, **labels: str) -> float | None:
        assert self.gateway is not None
        return self.gateway._metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def started(tmp_path: Path, clock: Clock) -> AsyncIterator[World]:
    cluster = ReviewingCluster(clock)
    cluster.tokens = {"alice-token": "alice", "bob-token": "bob", "eve-token": "eve"}
    cluster.grants = {("alice", "get", "allocations/logs", "*"), ("bob", "get", "allocations/logs", "*")}
    authority, clients = Authority(tmp_path), Authority(tmp_path, "client-ca")
    name = {"name": "extension-apiserver-authentication"}
    await cluster.create(
        CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"client-ca-file": clients.pem}}, "kube-system"
    )
    serving, shown = authority.pair("gateway-server", dns=("localhost",)), authority.pair("lattice:gateway")
    settings = Settings(
        listen="127.0.0.1:0", agent_listen="127.0.0.1:0", certificate=serving.certificate, key=serving.key,
        agent_certificate=shown.certificate, agent_key=shown.key, agent_ca=str(authority.path),
    )  # fmt: skip
    found = World(tmp_path, cluster, authority, clients)
    async with asyncio.TaskGroup() as group:
        found.gateway = build(settings, Outside(cluster, clock))
        task = group.create_task(found.gateway.run())
        async with asyncio.timeout(60):
            found.port = (await found.gateway.listening.address)[1]
        yield found
        task.cancel()
    for server in found.servers:
        await server.stop(None)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started(tmp_path, SystemClock()) as found:
        yield found


RUNNING: dict[str, Any] = {"attempt": 1, "nodes": "n1", "conditions": {"Scheduled": "True", "Started": "True"}}
DONE: dict[str, Any] = {"attempt": 1, "nodes": "n1", "conditions": {"Scheduled": "True", "Finished": "True", "Ready": "True"}}


def texts(records: list[dict[str, Any]]) -> list[str]:
    return [record["text"] for record in records if "text" in record]


async def test_the_owner_reads_what_the_work_printed(world: World) -> None:
    agent = await world.agent("n1", says("one", "two"))
    await world.allocation(**DONE)
    assert await world.records("?tail=10&stream=stdout") == [
        {"node": "n1", "stream": "stdout", "time": "1970-01-01T00:00:01.000000Z", "text": "one"},
        {"node": "n1", "stream": "stdout", "time": "1970-01-01T00:00:02.000000Z", "text": "two"},
        {"end": True},
    ]
    assert agent.callers == ["lattice:gateway"]
    assert (agent.requests[0].attempt, agent.requests[0].tail_lines, agent.requests[0].stream) == (1, 10, pb.STDOUT)
    assert world.metric("lattice_api_requests_total", method="GET logs", status="200") == 1
    assert world.metric("lattice_api_active_streams", stream_type="logs") == 0


async def test_several_nodes_are_merged_and_one_can_be_chosen(world: World) -> None:
    await world.agent("n1", says("from n1"))
    await world.agent("n2", says("from n2"))
    await world.allocation(**{**DONE, "nodes": "n[1-2]"})
    records = await world.records()
    assert sorted(texts(records)) == ["from n1", "from n2"]
    assert records[-1] == {"end": True}
    assert texts(await world.records("?node=n2")) == ["from n2"]
    assert (await world.refusal("?node=n3"))[:2] == (400, "NodeNotOfAllocation")


async def test_a_node_that_cannot_be_reached_is_named_and_the_others_are_read(world: World) -> None:
    await world.agent("n1", says("from n1"))
    await world.allocation(**{**DONE, "nodes": "n1,lost"})
    records = await world.records()
    assert texts(records) == ["from n1"]
    assert {"node": "lost", "gone": "node lost is not registered any more"} in records


async def test_an_agent_with_another_nodes_certificate_is_not_believed(world: World) -> None:
    await world.agent("n1", says("forged"), certificate_of="n2")
    await world.allocation(**DONE)
    records = await world.records()
    assert texts(records) == []
    assert "does not answer" in records[0]["gone"]


async def test_following_waits_for_a_pending_one_and_ends_with_the_work(world: World) -> None:
    printed = asyncio.Event()

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        yield pb.LogChunk(stream=pb.STDOUT, time=1.0, data=b"begun\n")
        await printed.wait()
        yield pb.LogChunk(stream=pb.STDOUT, time=2.0, data=b"done\n")
        yield pb.LogChunk(end=True)

    await world.agent("n1", script)
    await world.allocation()
    assert (await world.refusal())[:2] == (409, "NotStarted")
    async with asyncio.timeout(60), world.get(PATH + "?follow=true") as response:
        assert world.metric("lattice_api_active_streams", stream_type="logs") == 1
        await world.status(**RUNNING)
        assert json.loads(await response.content.readline())["text"] == "begun"
        printed.set()
        assert json.loads(await response.content.readline())["text"] == "done"
        await world.status(**DONE)
        assert json.loads(await response.content.readline()) == {"end": True}
        assert await response.content.read() == b""


async def test_following_goes_on_with_the_next_attempt(world: World) -> None:
    await world.agent("n1", says("first"))
    await world.agent("n2", says("second"))
    await world.allocation(**RUNNING)
    async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:
        assert json.loads(await response.content.readline())["text"] == "first"
        await world.status(attempt=2, nodes="", attempts=[{"attempt": 1, "nodes": "n1"}], conditions={"Scheduled": "False"})
        await world.status(attempt=2, nodes="n2", conditions={"Scheduled": "True"})
        assert json.loads(await response.content.readline())["text"] == "second"
        await world.status(attempt=2, nodes="n2", conditions={"Scheduled": "True", "Finished": "True", "Stalled": "True"})
        assert json.loads(await response.content.readline()) == {"end": True}


async def test_a_lost_connection_is_taken_up_where_it_broke(world: World) -> None:
    broken = False

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        nonlocal broken
        for time, line in ((1.0, b"one\n"), (2.0, b"two\n"), (3.0, b"three\n")):
            if time >= request.since:
                yield pb.LogChunk(stream=pb.STDOUT, time=time, data=line)
            if time == 2.0 and not broken:
                broken = True
                return
        yield pb.LogChunk(end=True)

    agent = await world.agent("n1", script)
    await world.allocation(**RUNNING)
    async with asyncio.timeout(60), world.get(PATH + "?follow=1&tail=5") as response:
        lines = [json.loads(await response.content.readline())["text"] for _ in range(3)]
        assert lines == ["one", "two", "three"]
        await world.status(**DONE)
        assert json.loads(await response.content.readline()) == {"end": True}
    assert [(request.since, request.tail_lines) for request in agent.requests] == [(0.0, 5), (2.0, -1)]


async def test_an_attempt_that_the_node_does_not_know_yet_is_waited_for(world: World) -> None:
    asked = 0

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise LookupError("no output yet")
        yield pb.LogChunk(stream=pb.STDERR, time=1.0, data=b"now\n")
        yield pb.LogChunk(end=True)

    await world.agent("n1", script)
    await world.allocation(**RUNNING)
    async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:
        assert json.loads(await response.content.readline())["stream"] == "stderr"


async def test_a_deleted_allocation_ends_the_stream(world: World) -> None:
    await world.agent("n1", says("one"))
    await world.allocation()
    async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:
        await world.cluster.delete(ALLOCATIONS, "job", "physics")
        assert json.loads(await response.content.readline()) == {"end": True}


async def test_a_reader_that_leaves_frees_the_agent(world: World) -> None:
    left = asyncio.Event()

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        yield pb.LogChunk(stream=pb.STDOUT, time=1.0, data=b"begun\n")
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    await world.agent("n1", script)
    await world.allocation(**RUNNING)
    async with asyncio.timeout(60):
        async with world.get(PATH + "?follow=1") as response:
            assert b"begun" in await response.content.readline()
            assert not left.is_set(), "the agent goes on while somebody reads"
        await left.wait()


async def test_a_slow_reader_slows_the_agent_down(world: World) -> None:
    sent = 0

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        nonlocal sent
        for index in range(2000):
            yield pb.LogChunk(stream=pb.STDOUT, time=1.0 + index, data=b"x" * 65000 + b"\n")
            sent += 1
        yield pb.LogChunk(end=True)

    await world.agent("n1", script)
    await world.allocation(**RUNNING)
    async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:
        await response.content.readline()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.5)  # the kernel's buffers fill in real time
        assert sent < 1000


@pytest.mark.parametrize("user", ["", "unknown"])
async def test_who_is_not_known_is_not_served(world: World, user: str) -> None:
    await world.allocation(**DONE)
    assert (await world.refusal(user=user))[:2] == (401, "Unauthenticated")


async def test_a_client_certificate_of_the_clusters_ca_tells_who_asks(world: World) -> None:
    await world.agent("n1", says("mine"))
    await world.allocation(**DONE)
    alice = world.clients.pair("alice", organizations=("physics",))
    assert texts(await world.records(user="", client=alice)) == ["mine"]
    assert "token" not in world.cluster.reviews


async def test_a_client_certificate_of_another_ca_is_not_believed(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    forged = Authority(tmp_path / "other", "client-ca").pair("alice")
    with pytest.raises(aiohttp.ClientError):
        await world.records(user="", client=forged)


async def test_without_the_right_to_logs_nothing_is_said_about_the_object(world: World) -> None:
    assert (await world.refusal(user="eve"))[:2] == (403, "LogsForbidden")


async def test_rights_come_before_the_reading_of_a_question_and_sets_of_nodes_are_bounded(world: World) -> None:
    assert (await world.refusal("?node=n[1-262144]", user="eve"))[:2] == (403, "LogsForbidden")
    await world.allocation(**DONE)
    status, reason, message = await world.refusal("?node=n[1-262144]")
    assert (status, reason) == (400, "BadNodeSet")
    assert "more than 16384 nodes" in message


async def test_a_person_has_one_plan_answered_at_a_time(world: World) -> None:
    assert world.gateway is not None
    turns = world.gateway._server._turn
    with turns(Identity("alice"), "POST plan", 1):
        with pytest.raises(TooMany, match="limit: 1") as refused, turns(Identity("alice"), "POST plan", 1):
            pass
        assert refused.value.reason == "TooManyQuestions"
        with turns(Identity("bob"), "POST plan", 1), turns(Identity("alice"), "GET why", 8):
            pass
    with turns(Identity("alice"), "POST plan", 1):
        pass


async def test_who_asks_too_much_at_a_time_is_answered_429_with_when_to_ask_again(world: World) -> None:
    assert world.gateway is not None
    with contextlib.ExitStack() as asked:
        for _ in range(8):
            asked.enter_context(world.gateway._server._turn(Identity("alice"), "GET queue", 8))
        async with world.get("/v1/queue") as response:
            assert (response.status, response.headers.get("Retry-After")) == (429, "1")
            assert (await response.json())["reason"] == "TooManyQuestions"


async def test_other_peoples_work_is_read_by_its_admins_only(world: World) -> None:
    await world.agent("n1", says("hers"))
    await world.allocation(**DONE)
    status, reason, message = await world.refusal(user="bob")
    assert (status, reason) == (403, "NotYourWork")
    assert "admins of tenant" in message
    world.cluster.grants.add(("eve", "get", "allocations/logs", "*"))
    world.cluster.grants.add(("eve", "manage", "tenants", "physics"))
    assert texts(await world.records(user="eve")) == ["hers"]


async def test_answers_about_tokens_and_rights_are_kept_for_a_while(world: World) -> None:
    await world.agent("n1", says("x"))
    await world.allocation(**DONE)
    await world.records()
    asked = list(world.cluster.reviews)
    await world.records()
    assert world.cluster.reviews == asked == ["token", "alice get allocations/logs job"]


async def test_errors_are_json_with_their_status(world: World) -> None:
    assert (await world.refusal())[0] == 404
    await world.allocation(**DONE)
    assert (await world.refusal("?tail=-1"))[:2] == (400, "ParameterInvalid")
    assert world.metric("lattice_api_requests_total", method="GET logs", status="404") == 1


async def test_a_cancellation_that_nobody_asked_for_is_an_answer_and_no_closed_connection(world: World) -> None:
    await world.agent("n1", says("x"))
    await world.allocation(**DONE)
    world.cluster.leaks = 1
    assert (await world.refusal())[:2] == (503, "Cancelled")
    assert await world.records()


async def test_a_node_that_goes_down_is_named_while_it_is_followed(world: World) -> None:
    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        yield pb.LogChunk(stream=pb.STDOUT, time=1.0, data=b"begun, not")
        await asyncio.Event().wait()

    await world.agent("n1", script)
    await world.allocation(**RUNNING)
    async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:
        assert json.loads(await response.content.readline())["partial"] is True
        await world.cluster.patch(NODES, "n1", {"status": {"state": "Down"}}, subresource="status")
        await world.servers[0].stop(None)
        assert json.loads(await response.content.readline())["node"] == "n1"
        await world.status(**DONE)
        assert json.loads(await response.content.readline()) == {"end": True}


async def test_a_right_that_is_taken_away_ends_a_long_stream(tmp_path: Path) -> None:
    clock = ManualClock()

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        yield pb.LogChunk(stream=pb.STDOUT, time=1.0, data=b"begun\n")
        await asyncio.Event().wait()

    async with started(tmp_path, clock) as world:
        await world.agent("n1", script)
        await world.allocation(**RUNNING)
        async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:
            assert json.loads(await response.content.readline())["text"] == "begun"
            await clock.run_for(301)
            world.cluster.grants.clear()
            await clock.run_for(301)
            last = json.loads(await response.content.readline())
            assert ("end" in last, last["reason"]) == (False, "LogsForbidden")


@asynccontextmanager
async def followed(tmp_path: Path) -> AsyncIterator[tuple[World, ManualClock, Callable[[], Any]]]:
    """A stream that has begun and goes on: its world, the clock, and what reads its next record."""
    clock = ManualClock()

    async def script(request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        yield pb.LogChunk(stream=pb.STDOUT, time=1.0, data=b"begun\n")
        await asyncio.Event().wait()

    async with started(tmp_path, clock) as world:
        await world.agent("n1", script)
        await world.allocation(**RUNNING)
        async with asyncio.timeout(60), world.get(PATH + "?follow=1") as response:

            async def record() -> Any:
                return json.loads(await response.content.readline())

            assert (await record())["text"] == "begun"
            yield world, clock, record


@pytest.mark.parametrize("error", [Retry("etcd elects", reason="Unavailable"), UnknownOutcome("cut off", reason="Timeout")])
async def test_a_passing_error_of_the_check_of_rights_ends_no_stream_and_a_refusal_does(tmp_path: Path, error: Exception) -> None:
    async with followed(tmp_path) as (world, clock, record):
        for _ in range(2):  # a check that is made begins the count anew
            world.cluster.failures = [error] * MOST_UNCHECKED
            await clock.run_for(MOST_UNCHECKED * 300 + 1)
            assert world.cluster.failures == []
            await clock.run_for(300)
        world.cluster.failures = [error]
        await clock.run_for(300)
        world.cluster.grants.clear()
        await clock.run_for(300)
        assert (await record())["reason"] == "LogsForbidden"


async def test_rights_that_cannot_be_checked_for_long_end_a_stream(tmp_path: Path) -> None:
    async with followed(tmp_path) as (world, clock, record):
        world.cluster.failures = [Retry("etcd is away", reason="Unavailable")] * (MOST_UNCHECKED + 1)
        await clock.run_for((MOST_UNCHECKED + 1) * 300 + 1)
        assert (await record())["reason"] == "Unavailable"


async def test_an_error_that_is_not_lattices_own_counts_as_500(world: World) -> None:
    world.cluster.failures = [ZeroDivisionError("a defect")]
    async with world.get() as response:
        assert response.status == 500
    assert world.metric("lattice_api_requests_total", method="GET logs", status="500") == 1
    assert world.metric("lattice_api_requests_total", method="GET logs", status="499") is None
