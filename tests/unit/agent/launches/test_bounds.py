"""The bounds of launches on the head's node: what a client or another node's agent sends takes no memory, log or time without end."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Rejected, Retry
from lattice_agent.attempts import Key
from lattice_agent.launches import client_side, head, launch_run, socket_server
from lattice_agent.launches.client_side import ClientProcess, ClientSide
from lattice_agent.launches.launch_run import LaunchRun
from lattice_agent.launches.links import Receive
from lattice_agent.launches.record import LaunchRecord, NodePlaces, RecordStore
from lattice_agent.launches.socket_server import SocketStream
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame
from tests.build import uid
from tests.unit.agent.launches.fakes import FakeClient, FakeStream, Pipe
from tests.unit.agent.launches.test_head import Site, finished, site, started, until

__all__ = ["site"]

BLOCK = b"x" * frames.OUTPUT_BYTES


class HandLink:
    """A way to a keeper that a test moves by hand."""

    def __init__(self) -> None:
        self.receive: Receive | None = None
        self.sent: list[Frame] = []
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def carry(self, start: Mapping[str, Any] | None, receive: Receive) -> None:
        """Stands until the test breaks it."""
        self.receive = receive
        await asyncio.shield(self.broken)

    def send(self, frame: Frame) -> None:
        """Notes a frame to the keeper."""
        self.sent.append(frame)

    def hear(self, kind: int, payload: bytes) -> None:
        """The keeper sends a frame."""
        assert self.receive is not None
        self.receive(Frame(kind, payload))

    def print(self, number: int, data: bytes = BLOCK) -> None:
        """The keeper passes output of its rank on."""
        self.hear(frames.OUTPUT, frames.encode_output(frames.Output(0, number, frames.STDOUT, 0, data)))

    def flood(self) -> None:
        """The keeper passes 64 MiB of output on."""
        for number in range(1, 1000):
            self.print(number)

    def of(self, kind: int) -> list[bytes]:
        """The payloads of one type that were sent to the keeper."""
        return [frame.payload for frame in self.sent if frame.kind == kind]


@asynccontextmanager
async def running(directory: Path, clock: ManualClock | None = None) -> AsyncIterator[tuple[LaunchRun, HandLink]]:
    """A launch of one rank whose keeper stands, in a time that a test moves."""
    link = HandLink()
    record = LaunchRecord(0, "00", "job", "cat", (NodePlaces("n1", 0, (0,)),), input="all")
    run = LaunchRun(
        Key(uid(1), 1),
        record,
        [link],
        store=RecordStore(directory),
        clock=clock or ManualClock(),
        attempt_over=lambda: False,
        on_over=lambda _: None,
    )
    run.describe([{}])
    task = asyncio.ensure_future(run.run())
    await until(lambda: link.receive is not None)
    link.hear(frames.STATE, json.dumps({"room": frames.INPUT_WINDOW, "execed": True}).encode())
    try:
        yield run, link
    finally:
        task.cancel()
        await asyncio.wait([task])


class SocketClient:
    """A client of srun over a real connection, which reads only when it is told to."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.connection.setblocking(False)
        theirs.setblocking(False)
        self.side = ClientSide(SocketStream(theirs), ClientProcess("n1"), lambda: False)
        self.decoder = Decoder()
        self.theirs = theirs

    async def converse(self, run: LaunchRun) -> None:
        """Is served, until it leaves."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.side.run([]))
            await run.attend(self.side, had={})
            self.side.close()

    async def send(self, kind: int, payload: bytes = b"") -> None:
        """Sends a frame, as far as the agent takes it; waits while an agent that has not closed the connection does not read."""
        with suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self.connection, frames.encode(kind, payload))

    async def read(self) -> list[Frame]:
        """The frames that have come."""
        return self.decoder.feed(await asyncio.get_running_loop().sock_recv(self.connection, 1 << 20))

    def close(self) -> None:
        """Closes both ends."""
        self.connection.close()
        self.theirs.close()


@pytest.fixture
async def client() -> AsyncIterator[SocketClient]:
    """A client of srun."""
    made = SocketClient()
    yield made
    made.close()


# what a launch holds


async def test_a_launch_that_no_message_holds_is_refused_with_its_size_and_prepares_nothing(site: Site) -> None:
    async with site.agent() as agent:
        asked = agent.call("true", variables=(b"A=" + b"\1" * (3 << 20),))
        code, why = frames.decode_refused((await asked.until(frames.REFUSED)).payload)
        assert code == 1
        assert why.startswith("the arguments, variables and programs of this launch take 18.")
        assert "MiB on node n1, and the limit is 15.9 MiB: pass less of them (--export)" in why
        assert site.keepers.started == []
        again = agent.call("true")
        await started(site, 1)
        site.keepers.keepers[1].exit(0)
        assert await finished(again) == 0


async def test_requests_count_until_their_launches_are_over_also_after_their_clients_hang_up(site: Site) -> None:
    variables = (b"A=" + b"a" * (7 << 20),)
    async with site.agent() as agent:
        first = agent.call("--overlap", "true", variables=variables)
        await first.until(frames.ACCEPTED)
        await first.leave()
        for _ in range(8):
            await agent.call("--overlap", "true", variables=variables).until(frames.ACCEPTED)
        refused = agent.call("--overlap", "true", variables=variables)
        why = frames.decode_refused((await refused.until(frames.REFUSED)).payload)[1]
        assert "this launch has 7.0 MiB" in why
        assert "have 63.0 MiB, and the limit is 64.0 MiB: wait for some of them" in why
        await started(site, 1)
        site.keepers.keepers[1].exit(0)
        await finished(agent.clients[1])
        await until(lambda: len(agent.head._runs) == 8)
        await agent.call("--overlap", "true", variables=variables).until(frames.ACCEPTED)


async def test_launches_have_a_limited_number_of_places_together(site: Site) -> None:
    async with site.agent() as agent:
        await agent.call("true").until(frames.ACCEPTED)
        agent.head._check_parts(head.MOST_PARTS - 1)
        with pytest.raises(Rejected, match=r"on 65536 nodes, the others of this allocation are on 1 together .* the limit is 65536: wait"):
            agent.head._check_parts(head.MOST_PARTS)


# what clients send


async def test_a_client_sends_nothing_large_before_its_launch_begins(client: SocketClient) -> None:
    sending = asyncio.ensure_future(client.send(frames.INPUT, b"a" * (1 << 20)))
    async with asyncio.timeout(60):
        await client.side.run([])
    assert client.side.left
    sending.cancel()  # nobody reads the rest


async def test_a_client_whose_large_frame_has_begun_with_its_request_is_dropped() -> None:
    decoder = Decoder(8 << 20)
    decoder.feed(frames.encode(frames.INPUT, b"a" * (4 << 20))[: 1 << 20])
    side = ClientSide(FakeStream(Pipe(), Pipe()), ClientProcess("n1"), lambda: False, decoder)
    async with asyncio.timeout(60):
        await side.run([])
    assert side.left


async def test_a_client_sends_few_frames_before_its_launch_begins() -> None:
    side = ClientSide(FakeStream(Pipe(), Pipe()), ClientProcess("n1"), lambda: False)
    async with asyncio.timeout(60):
        await side.run([Frame(frames.SIGNAL, b"\1")] * 10_000)
    assert side.left


async def test_contents_that_wait_when_the_file_was_read_end_the_conversation(client: SocketClient) -> None:
    client.side.limit(client_side.CONTENT_BYTES)
    serving = asyncio.ensure_future(client.side.run([]))
    for _ in range(2):
        await client.send(frames.CONTENT, b"\0" + b"a" * (1 << 20))
    assert (await client.side.next_frame()) is not None
    await until(lambda: client.side._heard.qsize() == 1)
    client.side.limit(client_side.ANSWER_BYTES)
    async with asyncio.timeout(60):
        await serving
    assert client.side.left


async def test_input_that_overlaps_is_passed_on_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (run, link):
        asked = FakeClient()
        async with asyncio.TaskGroup() as group:
            group.create_task(asked.side.run([]))
            group.create_task(run.attend(asked.side, had={}))
            for length in range(1, 1001):
                await asked.send(frames.INPUT, frames.encode_input(0, b"a" * length))
            for _ in range(100):
                await asked.send(frames.INPUT, frames.encode_input(0, b"a" * 1000))
                await asked.send(frames.INPUT, frames.encode_input(1000, b""))
            await asked.leave()
        pieces = [frames.decode_input(payload) for payload in link.of(frames.INPUT)]
        assert b"".join(data for _, data in pieces) == b"a" * 1000
        assert [offset for offset, data in pieces if not data] == [1000]
        link.sent.clear()
        link.hear(frames.STATE, b'{"room": 65536}')
        assert [frames.decode_input(each) for each in link.of(frames.INPUT)] == [(0, b"a" * 1000), (1000, b"")]


async def test_signals_without_end_reach_ranks_ten_times_a_second_and_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    async with running(tmp_path, clock) as (run, link):
        for burst in (launch_run.SIGNAL_BURST, launch_run.SIGNALS_PER_SECOND):
            for _ in range(10_000):
                run.send_signal(10)
            assert len(link.of(frames.SIGNAL)) == burst
            link.sent.clear()
            clock.advance(1.0)
        run.send_signal(15)
        assert link.of(frames.SIGNAL) == [frames.encode_signal(15)]
        assert sum("LaunchSignalled" in record.getMessage() for record in caplog.records) == 2


# clients that do not read


async def test_output_waits_for_a_client_that_does_not_read_whatever_it_acknowledges(tmp_path: Path, client: SocketClient) -> None:
    async with running(tmp_path) as (run, link):
        serving = asyncio.ensure_future(client.converse(run))
        for number in range(1, 61):
            link.print(number)
            await client.send(frames.HAD, frames.encode_had(0, 1000))
            await asyncio.sleep(0)
        await until(lambda: client.side.is_full and bool(link.of(frames.HAD)))
        assert max(frames.decode_had(payload)[1] for payload in link.of(frames.HAD)) < 20
        numbers = list[int]()
        async with asyncio.timeout(60):
            while len(numbers) < 60:
                got = [frames.decode_output(frame.payload).number for frame in await client.read() if frame.kind == frames.OUTPUT]
                numbers += got
                for number in got:
                    await client.send(frames.HAD, frames.encode_had(0, number))
        assert numbers == list(range(1, 61))
        await until(lambda: frames.encode_had(0, 60) in link.of(frames.HAD))
        client.connection.close()
        await serving


async def test_an_older_client_is_dropped_unread(tmp_path: Path, client: SocketClient) -> None:
    newer = SocketClient()
    async with running(tmp_path) as (run, link):
        older = asyncio.ensure_future(client.converse(run))
        for number in range(1, 30):
            link.print(number)
            await asyncio.sleep(0)
        serving = asyncio.ensure_future(newer.converse(run))
        async with asyncio.timeout(60):
            await older
        assert client.side.left
        assert not newer.side.left
        newer.connection.close()
        await serving
    newer.close()


async def test_a_client_that_leaves_sentences_unread_is_dropped(client: SocketClient) -> None:
    serving = asyncio.ensure_future(client.side.run([]))
    for _ in range(200):
        client.side.say("a" * (64 << 10))
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await serving
    assert client.side.left


# what other nodes' agents send


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (frames.STATE, b"[]"),
        (frames.STATE, b"[" * 100_000),
        (frames.DONE, frames.encode_numbered(1, b'{"ranks": [[0]]}')),
        (frames.DONE, frames.encode_numbered(1, b'{"ranks": [[0, "a"]]}')),
        (frames.DONE, frames.encode_numbered(1, b'{"ranks": [[0, 0], [1, 0], [2, 0]]}')),
        (frames.DONE, frames.encode_numbered(1, b'["failure"]')),
        (frames.OUTPUT, frames.encode_output(frames.Output(0, 1, 1, 0, BLOCK + b"x"))),
    ],
)
async def test_malformed_frames_of_a_node_are_dropped_and_the_first_is_logged(
    tmp_path: Path, kind: int, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (run, link):
        for _ in range(100):
            link.hear(kind, payload)
        assert sum("FrameRefused" in record.getMessage() for record in caplog.records) == 1
        link.hear(frames.DONE, frames.encode_numbered(2, b'{"failure": "", "ranks": [[0, 3, 0]]}'))
        assert (run.record.state, run.record.code) == ("over", 3)


@pytest.mark.parametrize("payload", [b"[]", b'{"noted": 7}', b'{"noted": {"ranks": [[]]}}', b"\xff"])
async def test_a_node_that_says_no_end_of_its_launch_has_lost_its_ranks(tmp_path: Path, payload: bytes) -> None:
    async with running(tmp_path) as (run, link):
        link.hear(frames.CLOSED, payload)
        assert (run.record.state, run.record.code) == ("over", 137)


async def test_output_that_a_keeper_should_hold_back_breaks_its_way(tmp_path: Path) -> None:
    async with running(tmp_path) as (run, link):
        with pytest.raises(Retry, match="sends output that nobody has asked for"):
            link.flood()
        assert run.parts[0].kept_bytes <= launch_run.KEPT_BYTES + launch_run.KEPT_BYTES_OF_RANK + (65 << 10)


async def test_a_request_is_a_launch_that_comes_whole() -> None:
    turn, pipe = asyncio.Semaphore(1), Pipe()
    stream = FakeStream(pipe, Pipe())
    for said, found in ((frames.encode(frames.SIGNAL, b"\1"), []), (b"", []), (frames.encode(frames.LAUNCH), [frames.LAUNCH])):
        pipe.data.put_nowait(said)
        assert [frame.kind for frame in await socket_server.read_request(stream, Decoder(), turn)] == found
    assert not turn.locked()
