"""PMIx: the keeper's side of the conversation, data of single ranks through the hub, and real programs served by the real host."""

from __future__ import annotations

import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from lattice_agent.standalone import frames, pmix_start
from lattice_agent.standalone.pmi import pmix_session
from lattice_agent.standalone.pmi.exchange import FETCH, PMIX, NodeExchange
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.pmix_end import MOST_UNREAD, RECEIVE_BYTES, PmixEnd
from lattice_agent.standalone.pmi.pmix_session import PmixJob, PmixSession
from lattice_agent.standalone.pmi.ranks import RankServer, Service
from tests.mpi import programs
from tests.mpi.driver import HOST_VARIABLES, Driver, Outcome

lacking = programs.missing("pmix")
served = pytest.mark.skipif(bool(lacking), reason=lacking or "-")
openmpi4 = pytest.mark.skipif(bool(programs.missing("pmix", "openmpi4")), reason=programs.missing("pmix", "openmpi4") or "-")
LAYOUTS = {"one node": [[0, 1, 2, 3]], "four nodes": [[0], [1], [2], [3]], "cyclic": [[0, 2], [1, 3]], "uneven": [[0, 1, 2], [3]]}
TCP = {
    "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}  # fmt: skip
"""Nodes of these tests share one machine, and so their shared memory."""
CHECKED = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99"}
NUMBERS = itertools.count()


def launch(nodes: list[list[int]], *argv: object, **variables: str) -> Outcome:
    return Driver(nodes, f"pmix-{os.getpid()}-{next(NUMBERS)}", programs.pmix_host()).run([str(word) for word in argv], TCP | variables)


# real programs


@openmpi4
@pytest.mark.parametrize("nodes", LAYOUTS.values(), ids=LAYOUTS)
def test_openmpi_meets_on_every_layout(nodes: list[list[int]]) -> None:
    outcome = launch(nodes, programs.openmpi4_ring())
    assert outcome.failure == "", outcome
    assert outcome.output == {rank: f"rank {rank} of 4: ring {rank + 1 if rank else 4}, sum 6, all 4711\n" for rank in range(4)}


@served
@pytest.mark.parametrize("nodes", LAYOUTS.values(), ids=LAYOUTS)
def test_data_of_single_ranks_large_values_and_fences_of_some_ranks(nodes: list[list[int]]) -> None:
    together = any({0, 1} <= set(ranks) for ranks in nodes)
    outcome = launch(nodes, programs.pmix_calls(), PAIR="served" if together else "refused")
    assert outcome.failure == "", outcome
    assert outcome.output == {rank: f"rank {rank} of 4: right\n" for rank in range(4)}
    assert any("a PMIx fence of some ranks on several nodes is not served" in line for line in outcome.said) == (not together)


@openmpi4
@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (("abort", 2), "rank 2 on n1 called abort with exit code 13"),
        (("exit", 2), "rank 2 on n1 ended with exit code 5 after init and before finalize"),
        (("kill", 2), "rank 2 on n1 was ended by signal 9 after init and before finalize"),
    ],
)
def test_a_rank_that_fails_ends_the_launch(words: tuple[str, int], failure: str) -> None:
    assert launch([[0, 1], [2, 3]], programs.openmpi4_ring(), *words).failure == failure


@openmpi4
def test_a_rank_whose_program_dies_below_a_shell_ends_the_launch() -> None:
    ring = programs.openmpi4_ring()
    shell = f"if [ $PMIX_RANK = 1 ]; then {ring} exit 1; exec sleep 30 > /dev/null 2>&1; fi; exec {ring}"
    assert launch([[0, 1]], "bash", "-c", shell).failure == "rank 1 on n0 closed PMIx after init and before finalize"


@openmpi4
@pytest.mark.parametrize("nodes", [[[0, 1]], [[0], [1]]], ids=["one node", "two"])
def test_a_rank_that_ends_without_pmix_ends_those_who_wait_for_it(nodes: list[list[int]]) -> None:
    failure = launch(nodes, "bash", "-c", f"test $PMIX_RANK = 1 && exit 3; exec {programs.openmpi4_ring()}").failure
    assert "waits in a PMIx fence for rank 1 on" in failure
    assert "which ended with exit code 3 without PMI" in failure


@served
def test_a_rank_that_puts_data_without_end_ends_its_launch_and_not_the_memory_of_the_work() -> None:
    outcome = Driver([[0, 1]], f"pmix-{os.getpid()}-flood", programs.small_pmix_host()).run([programs.pmix_flood()], {})
    assert "the PMIx host on n0, which serves its ranks, has ended: its ranks have put " in outcome.failure, outcome


# the host


@contextmanager
def checked_host() -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A host that checks each access to memory, and the keeper's end of its socket."""
    mine, its = socket.socketpair()
    with its:
        process = subprocess.Popen[bytes](
            [str(programs.checked_pmix_host())], stdin=its.fileno(), stderr=subprocess.PIPE, env=pmix_start.ENVIRONMENT | CHECKED
        )
    with mine, process:
        try:
            yield mine, process
        finally:
            process.kill()


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit code of a host, and what its checks have said."""
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace")
    return process.wait(60), said


def job(name: str = "fuzz") -> PmixJob:
    return PmixJob(name, os.getuid(), os.getgid(), pmix_start.PLACE, [[0, 2], [1]], 0, ["n0", "n1"])


def begun(sock: socket.socket) -> None:
    """Gives the host its job, and waits until it serves."""
    sock.sendall(frames.encode(pmix_session.JOB, job().encode()))
    decoder = frames.Decoder()
    while True:
        data = sock.recv(65536)
        assert data, "the host ended before it served"
        if any(frame.kind == pmix_session.READY for frame in decoder.feed(data)):
            return


def garbage(seed: int) -> bytes:
    """Bytes of a keeper gone wrong: other types, lengths, numbers, pieces that nobody waits for, all cut anywhere."""
    source = random.Random(seed)
    text = bytearray()
    for _ in range(source.randrange(1, 8)):
        kind = source.choice([0, 1, 2, 3, 4, 5, 16, 21, 255])
        piece = struct.pack(">IiB", source.randrange(4), -1, source.randrange(2)) + bytes(source.randrange(99))
        question = struct.pack(">II", source.getrandbits(32), source.choice([0, 2, 3, 0xFFFFFFFF]))
        body = source.choice([source.randbytes(source.randrange(64)), piece, question, job().encode()[: source.randrange(60)]])
        length = source.choice([len(body), len(body), len(body), 1 << 31, (2 << 20) + 1, max(0, len(body) - 1)])
        text += struct.pack(">IB", length, kind) + body
    return bytes(text)


@served
@pytest.mark.parametrize("with_job", [False, True], ids=["before the job", "while it serves"])
def test_garbage_oversize_and_split_frames_end_the_host_and_touch_no_memory(with_job: bool) -> None:
    for seed in range(40):
        with checked_host() as (sock, process):
            if with_job:
                begun(sock)
            data, at = garbage(seed), 0
            try:
                while at < len(data):
                    step = random.Random(seed + at).randrange(1, 20)
                    sock.sendall(data[at : at + step])
                    at += step
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has ended already
            code, said = end_of(process)
            assert code in (0, 2), (seed, code, said)
            assert "Sanitizer" not in said, (seed, said)


@served
@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["", "0", "0", "/tmp", "1", "0", "n0", "0"], "a job with a name of 0 bytes"),
        (["x" * 256, "0", "0", "/tmp", "1", "0", "n0", "0"], "a job with a name of 256 bytes"),
        (["x", "-1", "0", "/tmp", "1", "0", "n0", "0"], "a job with the number -1"),
        (["x", "0", "0", "/tmp", "2", "0", "n0", "0,0"], "a job with the ranks 0"),
        (["x", "0", "0", "/tmp", "2", "0", "n0", "0"], "a job of 2 ranks, 1 of them on 1 nodes"),
        (["x", "0", "0", "/tmp", "1", "1", "n0", "0"], "at node 1"),
        (["x", "0", "0", "/tmp", "1", "0", "a,b", "0"], "a job with the node a,b"),
        (["x", "0", "0"], "a job that is cut off"),
    ],
)
def test_a_job_that_is_none_is_refused_with_a_sentence(texts: list[str], said: str) -> None:
    with checked_host() as (sock, process):
        sock.sendall(frames.encode(pmix_session.JOB, b"".join(text.encode() + b"\0" for text in texts)))
        code, checks = end_of(process)
        (frame,) = frames.Decoder().feed(sock.recv(65536))
        assert (code, frame.kind) == (2, pmix_session.FAILED), checks
        assert said in frame.payload.decode()


@openmpi4
def test_a_checked_host_serves_a_program_without_a_fault() -> None:
    HOST_VARIABLES.update(CHECKED)
    try:
        driver = Driver([[0, 2], [1, 3]], f"pmix-{os.getpid()}-checked", programs.checked_pmix_host())
        outcome = driver.run([str(programs.openmpi4_ring())], TCP)
    finally:
        HOST_VARIABLES.clear()
    assert outcome.failure == "", outcome
    assert [host.returncode for host in driver.hosts] == [0, 0]


# the keeper's side


def session() -> tuple[PmixSession, NodeExchange]:
    exchange = NodeExchange([[0, 2], [1]], 0, "n0")
    return PmixSession(job(), exchange), exchange


NUMBER, TWO, DATA = struct.Struct(">I"), struct.Struct(">II"), struct.Struct(">IiB")


@pytest.mark.parametrize(
    "data",
    [
        frames.encode(77), frames.encode(pmix_session.CONNECTED, NUMBER.pack(1)), frames.encode(pmix_session.CONNECTED, b"x"),
        frames.encode(pmix_session.READY), frames.encode(pmix_session.FENCE, b"short"), struct.pack(">IB", 1 << 30, 16),
        frames.encode(pmix_session.VARIABLES, NUMBER.pack(9) + b"PMIX_RANK=9\0"), frames.encode(pmix_session.ABORTED, b""),
    ],
)  # fmt: skip
def test_a_host_that_sends_what_none_sends_ends_its_launch(data: bytes) -> None:
    pmix, exchange = session()
    pmix.take_bytes(data)
    assert exchange.failure is not None
    assert exchange.failure.reason == "Garbage"
    assert exchange.failure.sentence.startswith("the PMIx host on n0 sent what no host does: ")


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_of_a_host_never_raise_and_keep_little(seed: int) -> None:
    source, (pmix, exchange) = random.Random(seed), session()
    for _ in range(500):
        kind = source.randrange(12, 30)
        body = source.choice([source.randbytes(source.randrange(40)), DATA.pack(source.randrange(9), 0, 1) + bytes(100), TWO.pack(0, 1)])
        pmix.take_bytes(frames.encode(kind, body))
    assert len(pmix.out) < 1 << 20
    assert exchange.failure is not None


@pytest.mark.parametrize(
    ("words", "why"), [([frames.encode(pmix_session.FAILED, b"too much was put")], ": too much was put"), ([], "")], ids=["said", "unsaid"]
)
def test_a_rank_that_ends_for_lack_of_its_host_is_not_the_reason(words: list[bytes], why: str) -> None:
    """A host that ends takes its ranks with it, and the keeper may reap one of them first."""
    server = RankServer(Service("it", [[0, 1]], 0, ["n0"], pmix="it-secret"), select.poll())
    for rank in (0, 1):
        server.connect(rank)
        server.disconnect_child(rank)
    mine, host = socket.socketpair()
    mine.setblocking(False)
    server.open_host(mine, os.getuid(), os.getgid(), pmix_start.PLACE)
    begun = [frames.encode(pmix_session.VARIABLES, NUMBER.pack(rank) + b"PMIX_RANK=0\0") for rank in (0, 1)]
    connected = [frames.encode(pmix_session.CONNECTED, NUMBER.pack(rank)) for rank in (0, 1)]
    host.sendall(b"".join([*begun, frames.encode(pmix_session.READY), *connected, *words]))
    host.close()
    server.ended(1, 2, 0, 0.0)
    assert server.failure is not None
    assert (server.failure.reason, server.failure.sentence) == (
        "PmixHostDied", f"the PMIx host on n0, which serves its ranks, has ended{why}",
    )  # fmt: skip
    server.close()


def test_variables_of_a_host_are_pmix_s_alone() -> None:
    pmix, _ = session()
    pmix.take_bytes(frames.encode(pmix_session.VARIABLES, NUMBER.pack(0) + b"PMIX_RANK=0\0LD_PRELOAD=/x.so\0PMIX_NAMESPACE=a=b\0"))
    assert pmix.variables_of(0, pmi=False) == {"PMIX_RANK": "0", "PMIX_NAMESPACE": "a=b", "JSM_JSRUN_PORT": "1"}
    assert pmix.variables_of(0, pmi=True)["MPIR_CVAR_PMI_VERSION"] == "1"


@pytest.mark.parametrize("seed", range(30))
def test_fences_and_data_of_ranks_bear_loss_repetition_and_any_order(seed: int) -> None:
    source = random.Random(seed)
    nodes, names = [[0, 2], [1], [3]], ["n0", "n1", "n2"]
    exchanges = [NodeExchange(nodes, index, name, part_bytes=64) for index, name in enumerate(names)]
    hub = Hub(nodes, names, part_bytes=64)
    blobs = [source.randbytes(source.randrange(400)) for _ in nodes]
    for exchange, blob in zip(exchanges, blobs, strict=True):
        assert exchange.join_pmix(blob)
        assert not exchange.join_pmix(blob)
    assert exchanges[0].fetch(7, 3)
    found: dict[tuple[int, str], object] = {}
    for _ in range(200):
        mail = [(index, payload) for index, exchange in enumerate(exchanges) for payload in exchange.outgoing]
        for exchange in exchanges:
            exchange.outgoing = []
        source.shuffle(mail)
        for index, payload in mail:
            for _ in range(source.choice([0, 1, 1, 2])):
                replies = hub.receive(index, payload)
                source.shuffle(replies)
                for node, reply in replies:
                    if source.random() < 0.8:
                        exchanges[node].receive(reply)
        for index, exchange in enumerate(exchanges):
            for number, rank in exchange.rank_data.asked:
                exchange.answer_fetch(number, 0, f"data of {rank}".encode() * 20)
            exchange.rank_data.asked.clear()
            for answer in exchange.answers:
                assert (index, answer.subject) not in found, "answered twice"
                found[index, answer.subject] = answer.value
            exchange.answers.clear()
        if source.random() < 0.3:
            hub = Hub(nodes, names, part_bytes=64)
        for exchange in exchanges:
            exchange.receive(hub.again())
        assert hub.failure is None
    assert found == {(index, PMIX): b"".join(blobs) for index in range(3)} | {(0, FETCH): (7, 0, b"data of 3" * 20)}


def test_a_host_that_asks_without_end_and_reads_nothing_is_heard_no_more_until_it_reads() -> None:
    mine, its = socket.socketpair()
    pmix, _ = session()
    mine.setblocking(False)
    its.setblocking(False)
    poll, asked = select.poll(), frames.encode(pmix_session.MODEX, TWO.pack(5, 99)) * 4096
    left = b""
    with mine, its:
        end = PmixEnd(mine, pmix, poll)

        def flood() -> int:
            """Sends as much as is taken, and returns how many bytes that is."""
            nonlocal left
            sent = 0
            while True:
                left = left or asked  # whole frames: a piece of one would be garbage, and end the launch
                with suppress(BlockingIOError):
                    taken = its.send(left)
                    sent, left = sent + taken, left[taken:]
                ready = poll.poll(0)
                if not any(events & select.POLLIN for _, events in ready):
                    return sent
                end.serve_host(ready[0][1])
                end.write_host()  # as the server of ranks does after each turn

        assert flood() > MOST_UNREAD // 2
        assert len(pmix.out) < MOST_UNREAD + 2 * RECEIVE_BYTES
        held = len(pmix.out)
        assert flood() < RECEIVE_BYTES
        assert len(pmix.out) == held
        while pmix.out:
            with suppress(BlockingIOError):
                its.recv(1 << 20)
            end.write_host()
        assert flood() > MOST_UNREAD // 2, "one that reads is heard again"


def test_what_a_host_goes_on_sending_is_not_read_for_ever_at_its_end() -> None:
    mine, its = socket.socketpair()
    pmix, _ = session()
    mine.setblocking(False)
    over, said = threading.Event(), frames.encode(pmix_session.SAID, b"x" * 1000) * 200

    def flood() -> None:
        with suppress(OSError):
            while not over.is_set():
                its.send(said)

    with mine, its:
        end = PmixEnd(mine, pmix, select.poll())
        sender = threading.Thread(target=flood, daemon=True)
        sender.start()
        end.drain()
        over.set()
        end.close()
        sender.join(10)
    assert not sender.is_alive()


def test_a_rank_that_is_none_of_the_launch_is_asked_of_nobody() -> None:
    pmix, exchange = session()
    pmix.out.clear()
    pmix.take_bytes(frames.encode(pmix_session.MODEX, TWO.pack(5, 99)))
    (frame,) = frames.Decoder().feed(bytes(pmix.out))
    assert frame.kind == pmix_session.MODEX_DATA
    assert DATA.unpack(frame.payload) == (5, pmix_session.NOT_FOUND, 0)
    assert not exchange.outgoing
