"""Launches whose parts fail: an agent inside, the way to another node, a client that comes and goes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock, SystemClock
from lattice.errors import Denied, NotFound, Rejected, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import NODES
from lattice_agent.attempts import Key
from lattice_agent.launches import head, links, topology
from lattice_agent.launches.head import AttemptLaunches, HeadTools
from lattice_agent.launches.interface import AttemptHere
from lattice_agent.launches.launch_run import LaunchRun
from lattice_agent.launches.links import PeerLink
from lattice_agent.launches.record import STARTED, LaunchRecord, NodePlaces, RecordStore
from lattice_agent.launches.service import LaunchService, RunningAttempts
from lattice_agent.peers.interface import UNSERVED, ByteStream, LaunchOrder
from lattice_agent.standalone import frames
from tests.unit.agent.launches.fakes import FakeAttempts, FakeClient, FakeKeepers, FakeStream, PassingClock, Pipe
from tests.unit.agent.launches.test_head import KEY, Agent, finished, until, work


class FlawedKeepers(FakeKeepers):
    """Keepers of a node on which the agent fails where it reaches for them, so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.failing_starts = self.failing_connects = 0
        self.slow = False

    async def start(self, key: Key, launch: Mapping[str, Any]) -> tuple[int, int]:
        if self.slow:
            raise Retry("the kernel is silent")
        if self.failing_starts:
            self.failing_starts -= 1
            raise RuntimeError("a flaw")
        return await super().start(key, launch)

    async def connect(self, key: Key, number: int) -> socket.socket:
        if self.failing_connects:
            self.failing_connects -= 1
            raise OSError("too many open files")
        return await super().connect(key, number)


class FlawedAttempts(FakeAttempts):
    """Attempts whose nodes' addresses the API server refuses, so many times."""

    refusals = 0

    async def address(self, node: str) -> str:
        if self.refusals:
            self.refusals -= 1
            raise Denied("no token")
        return await super().address(node)


class MemoryPeers:
    """The agents of other nodes, in this process (peers.interface.LaunchPeers); calls can be cut, and nodes be away."""

    def __init__(self) -> None:
        self.keepers: dict[str, FlawedKeepers] = {}
        self.away: set[str] = set()
        self.reason = ""
        self.calls: list[tuple[Pipe, Pipe]] = []

    @asynccontextmanager
    async def open_launch(self, node: str, address: str, order: LaunchOrder, *, forward: bool = False) -> AsyncIterator[ByteStream]:
        if node in self.away:
            raise Retry(f"node {node} is away", reason=self.reason)
        there, back = Pipe(), Pipe()
        self.calls.append((there, back))
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(self._serve(node, order, FakeStream(there, back)))
                try:
                    yield FakeStream(back, there)
                finally:
                    serving.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # what the caller has raised, as a real call does

    async def _serve(self, node: str, order: LaunchOrder, stream: FakeStream) -> None:
        if order.describe:
            await stream.write_bytes(frames.encode(frames.CLOSED, json.dumps(topology.describe_cores(frozenset(), 0)).encode()))
            return

        async def refusal() -> str:
            return ""

        try:
            await links.serve_keeper(self.keepers[node], order, stream, SystemClock(), refusal, asyncio.Event())
        except Retry:
            await stream.write_bytes(b"")

    def cut(self) -> None:
        """Cuts all calls."""
        for pipe in (pipe for call in self.calls for pipe in call):
            pipe.data.put_nowait(b"")
        self.calls.clear()


@dataclass
class Site:
    """Nodes n1 (the head) and others, which outlive their agents."""

    directory: Path
    keepers: FlawedKeepers = field(default_factory=FlawedKeepers)
    attempts: FlawedAttempts = field(default_factory=FlawedAttempts)
    peers: MemoryPeers = field(default_factory=MemoryPeers)
    nodes: tuple[str, ...] = ("n1",)
    clock: PassingClock = field(default_factory=PassingClock)

    def with_nodes(self, *others: str) -> Site:
        """The same with other nodes."""
        self.nodes, self.peers.keepers = ("n1", *others), {node: FlawedKeepers() for node in others}
        return self

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """An agent, killed at the end of the block."""
        async with asyncio.TaskGroup() as group:
            tools = HeadTools("n1", self.keepers, self.peers, self.attempts, self.clock, group)
            agent = Agent(AttemptLaunches(work(nodes=self.nodes), RecordStore(self.directory), tools), group)
            agent.head.adopt()
            group.create_task(self.clock.tick())
            try:
                yield agent
            finally:
                agent.kill()
        await asyncio.sleep(0.01)

    async def begun(self, number: int) -> None:
        """Until the ranks of a launch were told to begin on every node."""
        for keepers in (self.keepers, *self.peers.keepers.values()):
            await until(partial(_has_begun, keepers, number))

    def exit(self, number: int, code: int = 0) -> None:
        """The end of all ranks of a launch, on all nodes."""
        for keepers in (self.keepers, *self.peers.keepers.values()):
            keeper = keepers.keepers[number]
            keeper.exit(*[code] * len(keeper.start["ranks"]))


def _has_begun(keepers: FakeKeepers, number: int) -> bool:
    """Tells whether the ranks of a launch were told to begin."""
    return number in keepers.keepers and keepers.keepers[number].begun


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """One node, or more."""
    here = Site(tmp_path)
    yield here
    for keepers in (here.keepers, *here.peers.keepers.values()):
        keepers.close()


async def refused(client: FakeClient) -> tuple[int, str]:
    """The client's exit code, and why."""
    return frames.decode_refused((await client.until(frames.REFUSED)).payload)


async def test_a_run_that_fails_goes_on_with_its_ranks_and_invents_no_exit_code(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("sleep", "9")
        await client.until(frames.ACCEPTED)
        await until(lambda: 0 in site.keepers.keepers and site.keepers.keepers[0].connection is not None)
        keeper = site.keepers.keepers[0]
        site.keepers.failing_connects = 1
        assert keeper.connection is not None
        keeper.connection.close()  # the agent connects again, and fails at it
        await until(lambda: site.keepers.failing_connects == 0)
        waiting = agent.call("-n", "1", "--exact", "--immediate=0.2", "true")
        assert "--immediate" in (await refused(waiting))[1], "the CPUs of ranks that live are not given away"
        keeper.exit(7)
        assert await finished(client) == 7


async def test_a_run_that_fails_before_its_ranks_begin_is_refused(site: Site) -> None:
    site.keepers.failing_starts = 1
    async with site.agent() as agent:
        client = agent.call("true")
        code, why = await refused(client)
        assert (code, site.keepers.started) == (1, [])
        assert "n1 has failed at it" in why


async def test_a_run_that_fails_until_its_attempt_is_over_ends_with_the_code_of_unknown_ranks(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("sleep", "9")
        await client.until(frames.ACCEPTED)
        await until(lambda: 0 in site.keepers.keepers and site.keepers.keepers[0].connection is not None)
        site.keepers.failing_connects, site.attempts.over = 1000, True
        connection = site.keepers.keepers[0].connection
        assert connection is not None
        connection.close()
        assert await finished(client) == 137
        assert "n1 has failed at it" in client.said


async def test_an_api_server_that_refuses_only_delays_the_way_to_a_node(site: Site) -> None:
    async with site.with_nodes("n2").agent() as agent:
        client = agent.call("-n", "2", "-N", "2", "true")
        await client.until(frames.ACCEPTED)
        await site.begun(0)
        site.attempts.refusals = 2
        site.peers.cut()
        await until(lambda: site.attempts.refusals == 0)
        site.exit(0)
        assert await finished(client) == 0


async def test_a_launch_too_large_for_a_frame_is_refused_and_nothing_stays(site: Site) -> None:
    async with site.with_nodes("n2").agent() as agent:
        client = agent.call("-n", "2", "-N", "2", "true", "é" * (3 << 20))
        code, why = await refused(client)
        assert code == 1
        assert "the limit is 15.9 MiB" in why
        await until(lambda: not site.keepers.keepers)


def signals(keepers: FakeKeepers, number: int) -> list[int]:
    """The signals that the ranks of a launch have had on a node."""
    return [frames.decode_signal(frame.payload) for frame in keepers.keepers[number].heard if frame.kind == frames.SIGNAL]


async def test_a_signal_reaches_each_node_once_however_often_the_way_there_breaks(site: Site) -> None:
    async with site.with_nodes("n2").agent() as agent:
        client = agent.call("-n", "2", "-N", "2", "sleep", "9")
        await client.until(frames.ACCEPTED)
        await site.begun(0)
        there = site.peers.keepers["n2"]
        await client.send(frames.SIGNAL, frames.encode_signal(10))
        await until(lambda: signals(there, 0) == [10])
        site.peers.away.add("n2")
        site.peers.cut()
        await site.clock.run_for(0.2)
        await client.send(frames.SIGNAL, frames.encode_signal(12))
        await until(lambda: signals(site.keepers, 0) == [10, 12])
        site.peers.away.clear()
        await until(lambda: signals(there, 0)[-1] == 12)
        site.exit(0)
        assert await finished(client) == 0
        assert signals(there, 0) == [10, 12]


async def called(site: Site, agent: Agent, request: bytes) -> FakeClient:
    """A client of the launch of this request, which it has begun or begins."""
    client = agent.call("sleep", "9", request=request)
    await client.until(frames.ACCEPTED)
    await site.begun(0)
    return client


async def test_a_client_that_came_back_has_a_minute_anew_when_it_is_cut_again(site: Site) -> None:
    async with site.agent() as agent:
        client = await called(site, agent, b"r" * 16)
        await client.leave()
        await site.clock.run_for(24.0)
        client = await called(site, agent, b"r" * 16)
        await site.clock.run_for(24.0)
        await client.leave()
        await site.clock.run_for(36.0)  # the first minute is over
        client = await called(site, agent, b"r" * 16)
        await site.clock.run_for(61.0)  # it stays for longer than it may be away
        site.exit(0)
        assert await finished(client) == 0
        await until(agent.head.is_idle)


async def test_a_client_that_comes_back_to_a_launch_that_was_given_up_is_told_so(site: Site) -> None:
    async with site.agent() as agent:
        client = await called(site, agent, b"r" * 16)
        keeper = site.keepers.keepers[0]
        keeper.heeds_end = False  # its ranks take their time to end
        await client.leave()
        await site.clock.run_for(59.0)
        assert frames.END not in {frame.kind for frame in keeper.heard}
        await site.clock.run_for(2.0)
        await until(lambda: frames.END in {frame.kind for frame in keeper.heard})
        client = await called(site, agent, b"r" * 16)
        keeper.exit(0)
        assert await refused(client) == (1, "the launch was ended: its srun was away for 60 s; start it again")
        await until(agent.head.is_idle)
        late = agent.call("sleep", "9", request=b"r" * 16)
        assert (await refused(late))[0] == 1


async def test_a_client_that_comes_back_late_to_a_launch_that_has_ended_by_itself_hears_its_end(site: Site) -> None:
    async with site.agent() as agent:
        client = await called(site, agent, b"r" * 16)
        await client.leave()
        site.exit(0)
        await site.clock.run_for(61.0)
        await until(agent.head.is_idle)
        assert await finished(agent.call("sleep", "9", request=b"r" * 16)) == 0


async def test_a_launch_waits_for_a_node_whose_agent_is_started_again(site: Site) -> None:
    site.with_nodes("n2").peers.away.add("n2")
    async with site.agent() as agent:
        client = agent.call("-N", "1", "-n", "1", "true")
        await site.clock.run_for(head.SAY_SECONDS + head.LONGEST_PAUSE)
        await client.until(frames.SAY)
        assert "waiting: node n2" in client.said
        site.peers.away.clear()
        await site.clock.run_for(head.LONGEST_PAUSE)
        await client.until(frames.ACCEPTED)
        await until(lambda: 0 in site.keepers.keepers and site.keepers.keepers[0].connection is not None)
        site.keepers.keepers[0].exit(0)
        assert await finished(client) == 0


async def test_a_launch_does_not_wait_for_a_node_that_serves_none_nor_for_longer_than_a_minute(site: Site) -> None:
    site.with_nodes("n2").peers.away.add("n2")
    async with site.agent() as agent:
        site.peers.reason = UNSERVED
        assert "n2 cannot take part" in (await refused(agent.call("true")))[1]
        site.peers.reason = ""
        client = agent.call("true")
        await site.clock.run_for(head.AWAY_SECONDS - 1.0)
        assert not agent.head.is_idle()
        await site.clock.run_for(1.0 + head.LONGEST_PAUSE)
        assert "n2 cannot take part" in (await refused(client))[1]


class CountingKeepers(FakeKeepers):
    """Keepers of a node on which connections are counted."""

    connections = 0

    async def connect(self, key: Key, number: int) -> socket.socket:
        self.connections += 1
        return await super().connect(key, number)


async def test_a_second_call_for_a_launch_takes_the_place_of_the_first(tmp_path: Path) -> None:
    keepers, attempts, clock = CountingKeepers(), FakeAttempts(), ManualClock()
    attempts.here[KEY] = AttemptHere(work(node="n2", nodes=("n1", "n2")), 1)
    service = LaunchService(
        "n2", directory=tmp_path, srun=tmp_path, root="/", run_directory=lambda key: tmp_path, keepers=keepers, attempts=attempts,
        peers=MemoryPeers(), clock=clock,
    )  # fmt: skip
    start = frames.encode(frames.LAUNCH, json.dumps({"number": 3, "ranks": [{"rank": 0}]}).encode())
    calls = list[asyncio.Task[None]]()
    for first in (start, frames.encode(frames.LAUNCH)):
        there = Pipe()
        there.data.put_nowait(first)
        calls.append(asyncio.ensure_future(service.keep_launch("n1", LaunchOrder(KEY, 3), FakeStream(there, Pipe()))))
        await until(lambda: keepers.connections >= len(calls))
    await until(calls[0].done)
    await clock.run_for(60.0)
    assert (keepers.connections, [call.done() for call in calls]) == (2, [True, False])
    calls[1].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    keepers.close()


async def test_a_client_that_waits_and_comes_again_waits_on_also_where_its_former_call_still_stands(site: Site) -> None:
    cores = str(len(os.sched_getaffinity(0)))
    async with site.agent() as agent:
        first = agent.call("-n", cores, "--exact", "sleep", "9")
        await first.until(frames.ACCEPTED)
        await site.begun(0)
        older = agent.call("-n", "1", "--exact", "true", request=b"r" * 16)
        await older.until(frames.SAY)
        newer = agent.call("-n", "1", "--exact", "true", request=b"r" * 16)
        await newer.until(frames.SAY)
        site.exit(0)
        await newer.until(frames.ACCEPTED)
        await site.begun(1)
        site.exit(1)
        assert await finished(newer) == 0
        assert (site.keepers.started, older.side.left) == ([0, 1], True)


async def test_the_user_of_an_attempt_that_runs_is_known_while_nobody_answers_for_accounts() -> None:
    work_here = work(user="nobody-of-this-name")
    attempts = RunningAttempts(FakeCluster(SystemClock()), lambda key: True, lambda key: work_here, lambda key: {"user": 4711})
    assert await attempts.find_attempt(KEY) == AttemptHere(work_here, 4711)
    placeless = RunningAttempts(FakeCluster(SystemClock()), lambda key: True, lambda key: work_here, lambda key: None)
    with pytest.raises(Rejected):
        await placeless.find_attempt(KEY)


async def test_the_address_of_a_node_is_read_once_and_anew_after_a_call_to_it_has_failed() -> None:
    cluster = FakeCluster(SystemClock())
    attempts = RunningAttempts(cluster, lambda key: True, lambda key: None, lambda key: None)
    with pytest.raises(NotFound):
        await attempts.address("n1")
    await cluster.create(NODES, {"metadata": {"name": "n1"}})
    await cluster.patch(NODES, "n1", {"status": {"address": "10.0.0.1:7"}}, subresource="status")
    assert await attempts.address("n1") == "10.0.0.1:7"
    await cluster.patch(NODES, "n1", {"status": {"address": "10.0.0.2:7"}}, subresource="status")
    assert await attempts.address("n1") == "10.0.0.1:7"
    attempts.doubt_address("n1")
    assert await attempts.address("n1") == "10.0.0.2:7"
    attempts.doubt_address("n1")
    cluster.fail(Retry("the API server is away"))
    assert await attempts.address("n1") == "10.0.0.2:7"


class LateAttempts(FakeAttempts):
    """Attempts of which nobody can say at first whose they are."""

    unread = 2

    async def find_attempt(self, key: Key) -> AttemptHere | None:
        if self.unread:
            self.unread -= 1
            raise Rejected("no such user")
        return await super().find_attempt(key)


async def test_an_agent_takes_launches_up_as_soon_as_their_attempt_can_be_read(tmp_path: Path) -> None:
    attempts, keepers = LateAttempts(), FakeKeepers()
    attempts.here[KEY] = AttemptHere(work(), 1)
    places = (NodePlaces("n1", 0, (0,)),)
    RecordStore(tmp_path).keep_record(LaunchRecord(0, "00" * 16, "true", "true", places, state=STARTED))
    service = LaunchService(
        "n1", directory=tmp_path / "launch", srun=tmp_path, root="/", run_directory=lambda key: tmp_path, keepers=keepers,
        attempts=attempts, peers=MemoryPeers(), clock=SystemClock(),
    )  # fmt: skip
    running = asyncio.ensure_future(service.run([KEY]))
    await until(lambda: keepers.ended == [0])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_launch_that_is_being_ended_is_ended_by_the_next_agent_on_nodes_that_were_away(site: Site) -> None:
    async with site.with_nodes("n2").agent() as agent:
        client = agent.call("-n", "2", "-N", "2", "sleep", "9")
        await client.until(frames.ACCEPTED)
        await site.begun(0)
        site.peers.away.add("n2")
        site.peers.cut()
        client.ended = True
        await client.leave()
        await until(lambda: frames.END in {frame.kind for frame in site.keepers.keepers[0].heard})
    there = site.peers.keepers["n2"].keepers[0]
    assert frames.END not in {frame.kind for frame in there.heard}
    site.peers.away.clear()
    async with site.agent():
        await until(lambda: frames.END in {frame.kind for frame in there.heard})


class LossNotes:
    """An exchange of ranks that notes which nodes are lost (interface.RankExchange)."""

    failure = None
    fences = 0
    is_waiting = False
    owed: Mapping[tuple[str, int], frozenset[int]] = {}

    def __init__(self) -> None:
        self.lost: list[int] = []

    def receive(self, node: int, payload: bytes) -> list[tuple[int, bytes]]:
        """Joins nothing."""
        return []

    def again(self) -> bytes:
        """Asks nothing."""
        return b""

    def ask_for_late(self, kind: str, number: int, seconds: float) -> bytes:
        """Asks nothing."""
        return b""

    def lose(self, node: int) -> None:
        """Notes the node."""
        self.lost.append(node)


def test_the_exchange_of_an_agent_that_is_started_again_hears_of_lost_nodes(tmp_path: Path) -> None:
    places = (NodePlaces("n1", 0, (0,)), NodePlaces("n2", 1, (1,)))
    record = LaunchRecord(0, "00" * 16, "true", "true", places, state=STARTED, pmi=True, done={1: None})
    peers, attempts, notes = MemoryPeers(), FakeAttempts(), LossNotes()
    ways = [PeerLink(peers, attempts, node, KEY, 0) for node in ("n1", "n2")]
    LaunchRun(
        KEY, record, ways, store=RecordStore(tmp_path), clock=SystemClock(), attempt_over=lambda: False, on_over=lambda _: None,
        exchange=notes,
    )  # fmt: skip
    assert notes.lost == [1]


async def test_a_launch_of_several_programs_that_was_begun_reads_them_again_after_a_restart(site: Site) -> None:
    request = b"r" * 16
    programs = bytes(1) + b"0 true\n1 false\n"
    site.with_nodes("n2").peers.keepers["n2"].slow = True
    async with site.agent() as agent:
        client = agent.call("-n", "2", "-N", "2", "--multi-prog", "file", request=request)
        await client.until(frames.READ)
        await client.send(frames.CONTENT, programs)
        await client.until(frames.ACCEPTED)
    site.peers.keepers["n2"].slow = False
    async with site.agent() as agent:
        client = agent.call("-n", "2", "-N", "2", "--multi-prog", "file", request=request, step=0)
        await client.until(frames.READ)
        await client.send(frames.CONTENT, programs)
        await site.begun(0)
        site.exit(0)
        assert await finished(client) == 0


async def test_a_number_is_given_once_also_where_a_later_one_was_refused_before_it_was_noted(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("-O", "true")
        await client.until(frames.ACCEPTED)
        await site.begun(0)
        second = agent.call("--overlap", "-o", "/nowhere/file", "true")
        await second.until(frames.OPEN)
        await second.send(frames.OPENED, bytes([frames.STDOUT, 2]))
        await refused(second)
        site.exit(0)
        assert await finished(client) == 0
        await until(agent.head.is_idle)
    async with site.agent() as agent:
        third = agent.call("true")
        accepted = await third.until(frames.ACCEPTED)
        assert frames.decode_accepted(accepted.payload)[0] > 0
