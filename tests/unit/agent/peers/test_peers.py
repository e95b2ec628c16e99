"""Agents and the gateway over real gRPC with real certificates on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio as aio
import pytest

from lattice.daemon.clock import SystemClock
from lattice.daemon.mtls import Files, client_credentials
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.rpc.v1 import agent_pb2_grpc as rpc
from lattice_agent.attempts import Key
from lattice_agent.condition import VersionedCondition
from lattice_agent.members import Direction, Member, Order, Phase, TaskEnd
from lattice_agent.peers import wire
from lattice_agent.peers.client import GrpcPeers
from lattice_agent.peers.server import AgentService, serve
from lattice_agent.state.log_store import LogStore
from lattice_dev import ports
from lattice_dev.pki import Authority, Identity
from tests.build import uid

KEY = Key(uid(1), 2)
READY = Member(KEY, "n2", 7, Phase.READY)


class OneDesk:
    """A reporter with one attempt on n1 and n2."""

    def __init__(self) -> None:
        self.changed = VersionedCondition()
        self.heard: list[Member] = []
        self.gone: list[str] = []
        self.said: Direction | None = Direction()

    async def find_condition(self, key: Key) -> VersionedCondition | None:
        return self.changed if key == KEY else None

    def hear(self, member: Member) -> bool:
        if member.node not in ("n1", "n2"):
            return False
        self.heard.append(member)
        return True

    def direction(self, key: Key) -> Direction | None:
        return self.said

    def left(self, key: Key, node: str) -> None:
        self.gone.append(node)

    def say(self, direction: Direction | None) -> None:
        self.said = direction
        self.changed.notify()


class OneSeat:
    """A node with one attempt."""

    def __init__(self, state: Member | None) -> None:
        self.key = KEY
        self.changed = VersionedCondition()
        self.state = state
        self.told: list[Direction] = []
        self.cut_for: list[float] = []

    def member(self) -> Member | None:
        return self.state

    def directed(self, direction: Direction) -> None:
        self.told.append(direction)

    def unreached(self, seconds: float) -> None:
        self.cut_for.append(seconds)

    def become(self, state: Member | None) -> None:
        self.state = state
        self.changed.notify()


class Net:
    """Certificates of one site, and an agent n1 that serves at this port of loopback."""

    def __init__(self, path: Path, port: int) -> None:
        self.path, self.address = path, f"127.0.0.1:{port}"
        self.authority = Authority(path, "agents-ca", time.time())
        self.reporter_side = OneDesk()

    def files(self, name: str, host: str = "", *, force: bool = False) -> Files:
        identity = Identity(name, hosts=(host,) if host else (), server=bool(host))
        pair, _ = self.authority.issue(name.replace(":", "-"), identity, force=force)
        return Files(pair.certificate, pair.key, self.authority.pair.certificate)

    def node(self, node: str, *, force: bool = False) -> Files:
        return self.files(f"lattice:agent:{node}", node, force=force)

    @asynccontextmanager
    async def serving(self, ended: Callable[[Key], bool] = lambda key: True) -> AsyncIterator[OneDesk]:
        service = AgentService(self.reporter_side, LogStore(self.path, ended), SystemClock())
        task = asyncio.ensure_future(serve(self.address, self.node("n1"), service))
        try:
            await until(self.listens)
            yield self.reporter_side
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def listens(self) -> bool:
        """Whether the server takes connections."""
        host, _, port = self.address.partition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    @asynccontextmanager
    async def following(self, member_side: OneSeat, node: str = "n2", reporter: str = "n1") -> AsyncIterator[asyncio.Task[None]]:
        peers = GrpcPeers(self.node(node), SystemClock())
        task = asyncio.ensure_future(peers.converse(reporter, self.address, member_side))
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @asynccontextmanager
    async def gateway(self, name: str = "lattice:gateway") -> AsyncIterator[rpc.AgentStub]:
        options = [("grpc.ssl_target_name_override", "n1")]
        async with aio.secure_channel(self.address, client_credentials(self.files(name)), options=options) as channel:
            yield rpc.AgentStub(channel)


async def until(holds: Callable[[], object], within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.01)


Away = Callable[[], list[str]]


@pytest.fixture
def away(caplog: pytest.LogCaptureFixture) -> Away:
    """Why no reporter was reached, each time that this was noticed."""
    caplog.set_level(logging.INFO, "lattice_agent.peers.client")
    return lambda: [record.__dict__["lattice_fields"]["message"] for record in caplog.records if record.getMessage() == "ReporterAway"]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with ports.claimed(1) as (port,):
        yield Net(tmp_path, port)


def segment(path: Path, key: Key, stream: str, lines: list[bytes]) -> None:
    directory = path / "attempts" / f"{key.uid}-{key.attempt}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{stream}.1").open("ab") as file:
        if file.tell() == 0:
            file.write(b"1 0\n")
        for line in lines:
            file.write(struct.pack("<dQI", 100.0, 0, len(line)) + line)


def test_every_field_of_a_state_survives_the_wire() -> None:
    member = Member(KEY, "n2", 7, Phase.GONE, "why", "what", 1.5, (TaskEnd(3, 143, 15, False, 2.5), TaskEnd(unknown=True)), True, True)
    assert wire.member_from_wire(pb.MemberState.FromString(wire.member_to_wire(member).SerializeToString())) == member
    for direction in (Direction(Order.END, "NodeLost", True), Direction(Order.START), Direction()):
        assert wire.direction_from_wire(wire.direction_to_wire(direction)) == direction


async def test_a_node_tells_each_state_and_hears_each_direction(net: Net) -> None:
    member_side = OneSeat(READY)
    async with net.serving() as reporter_side, net.following(member_side) as task:
        await until(lambda: reporter_side.heard == [READY] and member_side.told == [Direction()])
        reporter_side.say(Direction(Order.START))
        await until(lambda: member_side.told[-1].order is Order.START)
        member_side.become(Member(KEY, "n2", 7, Phase.RUNNING, started=5.0))
        await until(lambda: reporter_side.heard[-1].started == 5.0)
        reporter_side.say(Direction(Order.START, settled=True))
        await until(lambda: member_side.told[-1].settled)
        member_side.become(None)
        await until(task.done)


async def test_a_node_connects_again_and_says_everything_again(net: Net, away: Away) -> None:
    member_side = OneSeat(READY)
    async with net.following(member_side):
        await until(away)
        async with net.serving() as reporter_side:
            await until(lambda: reporter_side.heard == [READY])
        reporter_side.heard.clear()
        async with net.serving():
            await until(lambda: reporter_side.heard == [READY])


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def counting(address: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A way to the address on which every connection is counted."""
    host, _, port = address.partition(":")
    made: list[str] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(str(writer.get_extra_info("peername")))
        to_reader, to_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, to_writer), pump(to_reader, writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", made


async def talked(net: Net, peers: GrpcPeers, address: str) -> None:
    """One conversation from its first word to its end."""
    member_side = OneSeat(READY)
    task = asyncio.ensure_future(peers.converse("n1", address, member_side))
    await until(lambda: member_side.told)
    member_side.become(None)
    await until(task.done)


async def test_attempts_that_one_reporter_has_share_a_connection_until_certificates_are_renewed(net: Net) -> None:
    async with net.serving(), counting(net.address) as (address, made):
        peers = GrpcPeers(net.node("n2"), SystemClock())
        await asyncio.gather(*(talked(net, peers, address) for _ in range(3)))
        await talked(net, peers, address)
        assert len(made) == 1
        net.node("n2", force=True)
        await talked(net, peers, address)
        assert len(made) == 2


async def test_a_connection_that_has_failed_is_not_used_again(net: Net) -> None:
    peers, member_side = GrpcPeers(net.node("n2"), SystemClock()), OneSeat(READY)
    async with net.serving():
        await talked(net, peers, net.address)
    task = asyncio.ensure_future(peers.converse("n1", net.address, member_side))
    await until(lambda: member_side.cut_for)
    async with net.serving():
        await until(lambda: member_side.told)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_reporter_that_reports_no_longer_ends_the_conversation_and_the_node_tries_on(net: Net, away: Away) -> None:
    member_side = OneSeat(READY)
    async with net.serving() as reporter_side, net.following(member_side):
        await until(lambda: len(reporter_side.heard) == 1)
        reporter_side.say(None)
        await until(away)
        reporter_side.said = Direction()
        await until(lambda: len(reporter_side.heard) >= 2)


async def test_a_reporter_that_is_not_there_is_told_of_and_one_that_only_does_not_know_yet_is_not(net: Net, away: Away) -> None:
    member_side = OneSeat(READY)
    async with net.following(member_side):
        await until(lambda: len(member_side.cut_for) > 1 and member_side.cut_for[-1] > member_side.cut_for[0])
    stranger = OneSeat(READY)
    stranger.key = Key(uid(2), 1)
    stranger.state = Member(stranger.key, "n2", 7, Phase.READY)
    async with net.serving(), net.following(stranger):
        await until(lambda: any("does not report for" in why for why in away()))
        assert stranger.cut_for == []


async def test_the_end_of_a_call_is_told_to_the_reporter(net: Net) -> None:
    async with net.serving() as reporter_side:
        async with net.following(OneSeat(READY)):
            await until(lambda: reporter_side.heard == [READY])
        await until(lambda: reporter_side.gone == ["n2"])


async def test_a_node_cannot_speak_for_another(net: Net, away: Away) -> None:
    member_side = OneSeat(READY)
    async with net.serving() as reporter_side, net.following(member_side, node="n3"):
        await until(lambda: any("lattice:agent:n3 speaks for node n2" in why for why in away()))
        assert reporter_side.heard == []
        assert member_side.told == []


async def test_a_reporter_of_another_name_is_not_believed(net: Net, away: Away) -> None:
    member_side = OneSeat(READY)
    async with net.serving() as reporter_side, net.following(member_side, reporter="n9"):
        await until(away)
        assert reporter_side.heard == []


async def test_a_renewed_certificate_is_used_for_the_next_connection(net: Net) -> None:
    async with net.serving() as reporter_side:
        before = net.node("n1").certificate.read_bytes()
        net.node("n1", force=True)
        os.utime(net.node("n1").certificate)
        assert net.node("n1").certificate.read_bytes() != before
        member_side = OneSeat(READY)
        async with net.following(member_side):
            await until(lambda: reporter_side.heard == [READY])
        host, _, port = net.address.partition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(net.authority.pair.certificate)
        files = net.node("n2")
        context.load_cert_chain(files.certificate, files.key)
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        assert shown == ssl.PEM_cert_to_DER_cert(net.node("n1").certificate.read_text())


async def test_the_gateway_reads_what_was_printed_and_nobody_else_does(net: Net) -> None:
    segment(net.path, KEY, "stdout", [b"one\n", b"two\n"])
    segment(net.path, KEY, "stderr", [b"oops\n"])
    async with net.serving():
        async with net.gateway() as stub:
            chunks = [chunk async for chunk in stub.ReadLogs(pb.ReadLogsRequest(uid=KEY.uid, tail_lines=-1))]
            assert b"".join(chunk.data for chunk in chunks if chunk.stream == pb.STDOUT) == b"one\ntwo\n"
            assert b"".join(chunk.data for chunk in chunks if chunk.stream == pb.STDERR) == b"oops\n"
            assert chunks[-1].end
            assert {chunk.attempt for chunk in chunks} == {2}
            last = [chunk async for chunk in stub.ReadLogs(pb.ReadLogsRequest(uid=KEY.uid, stream=pb.STDOUT, tail_lines=1))]
            assert b"".join(chunk.data for chunk in last) == b"two\n"
            with pytest.raises(aio.AioRpcError) as unknown:
                [chunk async for chunk in stub.ReadLogs(pb.ReadLogsRequest(uid=uid(9)))]
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            for odd in ("x" * 5000, "../../etc", "", "a/b", "a\\0b"):
                with pytest.raises(aio.AioRpcError) as invalid:
                    [chunk async for chunk in stub.ReadLogs(pb.ReadLogsRequest(uid=odd))]
                assert invalid.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert len(invalid.value.details() or "") < 200
        async with net.gateway("lattice:agent:n2") as stub:
            with pytest.raises(aio.AioRpcError) as refused:
                [chunk async for chunk in stub.ReadLogs(pb.ReadLogsRequest(uid=KEY.uid))]
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_follower_gets_what_comes_later_and_the_end(net: Net) -> None:
    over = False
    segment(net.path, KEY, "stdout", [b"early\n"])
    async with net.serving(lambda key: over), net.gateway() as stub:
        seen: list[bytes] = []

        async def follow() -> bool:
            async for chunk in stub.ReadLogs(pb.ReadLogsRequest(uid=KEY.uid, attempt=2, follow=True, tail_lines=-1)):
                seen.append(chunk.data)
                if chunk.end:
                    return True
            return False

        task = asyncio.ensure_future(follow())
        await until(lambda: b"early\n" in seen)
        segment(net.path, KEY, "stdout", [b"late\n"])
        await until(lambda: b"late\n" in seen)
        over = True
        assert await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("uid", ["x" * 5000, "../state", ".", ""], ids=["long", "a path", "a dot", "empty"])
def test_what_a_caller_makes_up_is_no_file_name(tmp_path: Path, uid: str) -> None:
    assert LogStore(tmp_path, ended=lambda _: True).directory(Key(uid, 1)) is None


async def test_sockets_that_end_no_handshake_are_closed_and_take_nobodys_place(net: Net) -> None:
    host, _, port = net.address.partition(":")
    async with net.serving() as reporter_side:
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
        async with net.following(OneSeat(READY)):
            await until(lambda: reporter_side.heard)
        async with asyncio.timeout(90):  # below the two minutes of a server that sets no limit
            for reader, writer in idle:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b"", "nothing is said to who says nothing"
                writer.close()
