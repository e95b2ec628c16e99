"""Calls about launches over real gRPC: an outage, a client's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Retry
from lattice_agent.launches import service
from lattice_agent.launches.client_side import ClientProcess, ClientSide
from lattice_agent.peers.client import GrpcPeers
from lattice_agent.peers.interface import UNSERVED, ByteStream, LaunchOrder
from lattice_agent.peers.server import AgentService, serve
from lattice_agent.standalone import frames
from lattice_agent.state.log_store import LogStore
from tests.unit.agent.launches.fakes import FakeStream, Pipe
from tests.unit.agent.peers.test_peers import KEY, Net, OneDesk, net, until

__all__ = ["net"]


class HeadSide:
    """The agent of a node that heads an attempt: notes its clients (peers.interface.LaunchSide)."""

    def __init__(self) -> None:
        self.clients: list[ClientSide] = []

    async def keep_launch(self, caller: str, order: LaunchOrder, stream: ByteStream) -> None:
        """Answers one frame."""
        await stream.write_bytes(frames.encode(frames.CLOSED, b"{}"))

    async def hear_client(self, caller: str, order: LaunchOrder, stream: ByteStream) -> None:
        """Serves a client until it leaves."""
        client = ClientSide(stream, ClientProcess(caller), lambda: False)
        self.clients.append(client)
        await client.run([])


@asynccontextmanager
async def serving(net: Net, launches: HeadSide | None) -> AsyncIterator[None]:
    """The agent n1, which serves."""
    agent = AgentService(OneDesk(), LogStore(net.path, lambda key: True), SystemClock(), launches=launches)
    task = asyncio.ensure_future(serve(net.address, net.node("n1"), agent))
    try:
        await until(net.listens)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answered(net: Net, peers: GrpcPeers) -> bool:
    """Whether a call is answered."""
    try:
        async with peers.open_launch("n1", net.address, LaunchOrder(KEY)) as stream:
            return bool(await stream.read_bytes())
    except Retry:
        return False


async def test_a_node_that_was_away_is_reached_as_soon_as_it_is_back(net: Net) -> None:
    peers = GrpcPeers(net.node("n2"), SystemClock())
    for _ in range(3):
        assert not await answered(net, peers)
    async with serving(net, HeadSide()):
        # A connection that has failed is tried again after seconds, and all calls on it fail at once until then.
        answers = [await answered(net, peers) for _ in range(3)]
        assert True in answers


async def test_the_head_hears_of_a_forwarded_client_whose_process_has_ended(net: Net) -> None:
    head, up, down = HeadSide(), Pipe(), Pipe()
    process = await asyncio.create_subprocess_exec("sleep", "600")
    peers = GrpcPeers(net.node("n2"), SystemClock())
    async with serving(net, head), peers.open_launch("n1", net.address, LaunchOrder(KEY), forward=True) as peer:
        carrying = asyncio.ensure_future(
            service.carry_both(FakeStream(up, down), peer, lambda: process.returncode is not None, SystemClock())
        )
        await until(lambda: head.clients)
        head.clients[0].say("begun")
        assert await down.data.get()
        up.data.put_nowait(b"")  # the socket's end comes before that of the process
        process.kill()
        await process.wait()
        await asyncio.wait_for(carrying, 60)
        await until(lambda: head.clients[0].left)
        assert head.clients[0].is_gone


async def test_an_agent_that_serves_no_launches_says_so(net: Net) -> None:
    peers = GrpcPeers(net.node("n2"), SystemClock())
    async with serving(net, None):
        with pytest.raises(Retry) as refused:
            async with peers.open_launch("n1", net.address, LaunchOrder(KEY)) as stream:
                await stream.read_bytes()
        assert refused.value.reason == UNSERVED
