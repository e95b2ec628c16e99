"""The descriptors of ranks in a poll loop: replies, ends, what stays unread, and launches on one node, whose hub is inside."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lattice_agent.standalone.pmi.exchange import FENCE, LaunchFailure
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.ranks import END_SECONDS, LATE_SECONDS, RankServer, Service
from lattice_agent.standalone.pmi.session import UNREAD_BYTES

INIT = b"cmd=init pmi_version=1 pmi_subversion=1\n"
TOLD = b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"


class Node:
    """A keeper's loop without a keeper: ranks are sockets of this process."""

    def __init__(self, nodes: list[list[int]], node: int = 0, user: int | None = None, late_seconds: float = LATE_SECONDS) -> None:
        self.poll, self.now = select.poll(), 100.0
        names = [f"n{index}" for index in range(len(nodes))]
        self.server = RankServer(Service("lattice-uid-1-0", nodes, node, names, late_seconds), self.poll, user)
        self.ranks = {}
        for rank in nodes[node]:
            self.ranks[rank] = socket.socket(fileno=os.dup(self.server.connect(rank)))
            self.server.disconnect_child(rank)

    def turn(self) -> int:
        """Serves all that is ready; returns how often."""
        turns = 0
        while ready := self.poll.poll(0):
            turns += 1
            assert turns < 10_000, "the poll never rests"
            for fd, events in ready:
                if fd in self.server:
                    self.server.serve(fd, events, self.now)
        self.server.tick(self.now)
        return turns

    def ask(self, rank: int, data: bytes) -> bytes:
        self.ranks[rank].sendall(data)
        self.turn()
        return self.heard(rank)

    def heard(self, rank: int) -> bytes:
        try:
            return self.ranks[rank].recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""

    def end(self, rank: int, code: int = 0, signal: int = 0) -> None:
        """The process of a rank has ended."""
        self.ranks[rank].close()
        self.server.ended(rank, code, signal, self.now)
        self.turn()


@contextmanager
def node(nodes: list[list[int]], index: int = 0, user: int | None = None, late_seconds: float = LATE_SECONDS) -> Iterator[Node]:
    made = Node(nodes, index, user, late_seconds)
    before = len(list(Path("/proc/self/fd").iterdir()))
    try:
        yield made
    finally:
        made.server.close()
        for each in made.ranks.values():
            each.close()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before - len(made.ranks)


def test_a_rank_on_one_node_is_served_from_init_to_finalize() -> None:
    with node([[0, 1]]) as keeper:
        for rank in (0, 1):
            assert keeper.ask(rank, INIT) == TOLD
        assert keeper.ask(0, b"cmd=put kvsname=k key=a value=1\ncmd=barrier_in\n") == b"cmd=put_result rc=0 msg=success\n"
        assert keeper.server.waiting
        assert (
            keeper.ask(1, b"cmd=barrier_in\ncmd=get kvsname=k key=a\n")
            == b"cmd=barrier_out rc=0\ncmd=get_result rc=0 msg=success value=1\n"
        )
        assert keeper.heard(0) == b"cmd=barrier_out rc=0\n"
        assert not keeper.server.waiting
        for rank in (0, 1):
            assert keeper.ask(rank, b"cmd=finalize\n") == b"cmd=finalize_ack rc=0\n"
            keeper.end(rank)
        assert keeper.server.failure is None
        assert keeper.server.outgoing() == []


def test_the_variables_are_those_of_hydra_and_slurm() -> None:
    with node([[0, 2], [1, 3]], 1) as keeper:
        variables = keeper.server.variables(3, 5)
        assert {name: value for name, value in variables.items() if not name.startswith("PMIX_")} == {
            "PMI_FD": "5", "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_SPAWNED": "0", "PMI_JOBID": "lattice-uid-1-0", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2",
        }  # fmt: skip


def test_the_end_of_a_rank_is_not_inherited_by_accident() -> None:
    server = RankServer(Service("x", [[0]], 0, ["n0"]), select.poll())
    end = server.connect(0)
    assert not os.get_inheritable(end)
    server.disconnect_child(0)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(end)
    server.close()


@pytest.mark.parametrize(
    ("code", "signal", "failure"),
    [
        (0, 0, LaunchFailure(1, "n0", "RankDied", "rank 1 on n0 ended with exit code 0 after init and before finalize", 1)),
        (5, 0, LaunchFailure(1, "n0", "RankDied", "rank 1 on n0 ended with exit code 5 after init and before finalize", 5)),
        (139, 11, LaunchFailure(1, "n0", "RankDied", "rank 1 on n0 was ended by signal 11 after init and before finalize", 139)),
    ],
)
def test_a_rank_that_dies_between_init_and_finalize_ends_the_launch(code: int, signal: int, failure: LaunchFailure) -> None:
    with node([[0, 1]]) as keeper:
        keeper.ask(1, INIT)
        keeper.end(1, code, signal)
        assert (keeper.server.failure or LaunchFailure(-1, "", "", "")).as_json() == failure.as_json()


def test_the_last_words_of_a_rank_are_heard_before_its_death_is_judged() -> None:
    with node([[0, 1]]) as keeper:
        keeper.ask(1, INIT)
        keeper.ranks[1].sendall(b"cmd=abort exitcode=13 message=no grid\n")
        keeper.end(1, 13)
        assert keeper.server.failure is not None
        assert keeper.server.failure.sentence == "rank 1 on n0 called abort with exit code 13: no grid"


def test_ranks_that_never_speak_pmi_end_as_they_like() -> None:
    with node([[0, 1]]) as keeper:
        keeper.end(0, 3)
        keeper.end(1, 137, 9)
        assert keeper.server.failure is None


def test_a_rank_that_waits_for_one_that_has_ended_ends_the_launch() -> None:
    with node([[0, 1]]) as keeper:
        keeper.ask(0, INIT + b"cmd=barrier_in\n")
        keeper.end(1)
        assert keeper.server.failure is not None
        assert keeper.server.failure.reason == "FenceBroken"


def test_a_rank_that_closes_its_end_and_lives_on_ends_the_launch_after_a_moment() -> None:
    with node([[0, 1]]) as keeper:
        keeper.ask(0, INIT)
        keeper.ranks[0].close()
        keeper.turn()
        assert keeper.server.waiting
        assert keeper.server.failure is None
        keeper.now += END_SECONDS
        keeper.turn()
        assert keeper.server.failure is not None
        assert keeper.server.failure.sentence == "rank 0 on n0 closed PMI after init and before finalize"


def test_ranks_that_others_wait_for_are_named_once_and_waited_for() -> None:
    with node([[0, 1, 2]]) as keeper:
        keeper.ask(1, INIT + b"cmd=barrier_in\n")
        keeper.turn()
        assert keeper.server.said() == []
        for _ in range(3):
            keeper.now += LATE_SECONDS
            keeper.turn()
        assert keeper.server.said() == ["a PMI fence waits on n0 for rank 0, 2 since 60 s; it goes on waiting"]
        assert keeper.server.failure is None


def test_the_site_says_after_which_time_late_ranks_are_named() -> None:
    with node([[0, 1]], late_seconds=5.0) as keeper:
        keeper.ask(1, INIT + b"cmd=barrier_in\n")
        keeper.now += 4.9
        keeper.turn()
        assert keeper.server.said() == []
        keeper.now += 0.1
        keeper.turn()
        assert keeper.server.said() == ["a PMI fence waits on n0 for rank 0 since 5 s; it goes on waiting"]


def test_ranks_of_which_none_has_entered_are_named_where_the_hub_asks_once_a_fence() -> None:
    nodes = [[0], [1, 2]]
    hub = Hub(nodes, ["n0", "n1"])
    with node(nodes, 0) as first, node(nodes, 1) as second:
        first.ask(0, INIT + b"cmd=barrier_in\n")
        for payload in first.server.outgoing():
            assert hub.receive(0, payload) == []
        assert hub.owed == {(FENCE, 0): frozenset({1})}
        question = hub.ask_for_late(FENCE, 0, 60.0)
        for _ in range(2):
            second.server.receive(question)
        assert second.server.said() == ["a PMI fence waits on n1 for rank 1, 2 since 60 s; it goes on waiting"]
        second.server.receive(hub.ask_for_late(FENCE, 1, 60.0))
        assert second.server.said() == []
        for rank in (1, 2):
            second.ask(rank, INIT + b"cmd=barrier_in\n")
        second.server.receive(question)
        assert second.server.said() == []
        for payload in second.server.outgoing():
            hub.receive(1, payload)
        assert hub.owed == {}


def test_a_rank_that_never_reads_is_not_read_either_and_the_poll_rests() -> None:
    with node([[0]]) as keeper:
        value = b"v" * 16000
        keeper.ask(0, INIT + b"cmd=put kvsname=k key=a value=" + value + b"\ncmd=barrier_in\n")
        keeper.ranks[0].setblocking(False)
        asked = 0
        with suppress(BlockingIOError):
            for _ in range(100_000):
                asked += keeper.ranks[0].send(b"cmd=get kvsname=k key=a\n") // 24
                if not asked % 50:
                    keeper.turn()
        assert 100 < asked < 100_000
        assert all(len(end.session.out) < UNREAD_BYTES + 40_000 for end in keeper.server._by_rank.values())
        got = 0
        for _ in range(1000 * 1000):
            data = keeper.heard(0)
            got += data.count(b"cmd=get_result")
            if not keeper.turn() and not data:
                break
        assert got == asked


def test_a_server_that_is_paused_reads_nothing_and_goes_on_later() -> None:
    with node([[0], [1]]) as keeper:
        keeper.ask(0, INIT)
        keeper.server.pause(paused=True)
        assert keeper.ask(0, b"cmd=barrier_in\n") == b""
        assert keeper.server.outgoing() == []
        keeper.server.pause(paused=False)
        keeper.turn()
        assert len(keeper.server.outgoing()) == 1


def test_garbage_ends_the_launch_or_only_its_rank() -> None:
    with node([[0, 1]]) as keeper:
        keeper.ask(0, b"GET / HTTP/1.1\r\n\r\n")
        assert keeper.server.said() == ["rank 0 on n0 sent 'GET / HTTP/1.1\\r' is no PMI message; PMI is closed for it"]
        assert keeper.server.failure is None
        keeper.ask(1, INIT + b"x" * 40_000)
        assert keeper.server.failure is not None
        assert keeper.server.failure.reason == "Garbage"


def test_two_nodes_meet_through_a_hub_and_a_death_on_one_is_known_to_it() -> None:
    nodes = [[0], [1]]
    with node(nodes, 0) as first, node(nodes, 1) as second:
        hub = Hub(nodes, ["n0", "n1"])

        def carry() -> None:
            for index, keeper in enumerate((first, second)):
                for payload in keeper.server.outgoing():
                    for to, reply in hub.receive(index, payload):
                        (first, second)[to].server.receive(reply)

        for rank, keeper in enumerate((first, second)):
            keeper.ask(
                rank, INIT + b"cmd=put kvsname=k key=%d value=%d\ncmd=barrier_in\ncmd=get kvsname=k key=%d\n" % (rank, rank, 1 - rank)
            )
        carry()
        for rank, keeper in enumerate((first, second)):
            assert keeper.heard(rank) == b"cmd=barrier_out rc=0\ncmd=get_result rc=0 msg=success value=%d\n" % (1 - rank)
        second.end(1, 139, 11)
        carry()
        assert hub.failure is not None
        assert hub.failure.sentence == "rank 1 on n1 was ended by signal 11 after init and before finalize"


OPENMPI = (
    bytes.fromhex("ffffffffffffffff4000000000000000")
    + b"native\0\0\0\0\x08"
    + bytes(13)
    + b"singleton.vm.1528\0\0\0\0\0"
    + b"5.0.11rc1\0v41\0\x01shmem2\0"
)
"""The first words of OpenMPI 5.0.11's PMIx client, recorded."""


def call(keeper: Node, said: bytes) -> socket.socket:
    """Connects as a PMIx client does, and says something."""
    (address,) = {value for name, value in keeper.server.variables(1, 3).items() if name.startswith("PMIX_")}
    caller = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    caller.sendall(said)
    for _ in range(2):
        keeper.poll.poll(20)
        keeper.turn()
    return caller


def test_ranks_that_ask_for_pmix_end_the_launch_before_they_are_alone() -> None:
    with node([[0, 1]]) as keeper, call(keeper, OPENMPI):
        assert keeper.server.failure is not None
        assert keeper.server.failure.reason == "SilentSingletons"
        assert keeper.server.failure.sentence.startswith(
            "SilentSingletons: a rank on n0 asks for PMIx (as OpenMPI does), which is not served"
        )


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1", b"x" * 5000])
def test_whoever_says_something_else_is_no_rank(said: bytes) -> None:
    with node([[0, 1]]) as keeper, call(keeper, said):
        assert keeper.server.failure is None


def test_another_user_s_process_is_not_believed() -> None:
    with node([[0, 1]], user=os.getuid() + 1) as keeper, call(keeper, OPENMPI):
        assert keeper.server.failure is None


def test_ranks_that_have_found_the_others_may_ask_for_pmix_too() -> None:
    with node([[0, 1]]) as keeper:
        keeper.ask(1, INIT)
        with call(keeper, OPENMPI):
            assert keeper.server.failure is None


def test_callers_that_say_nothing_are_few_and_a_single_rank_is_not_listened_for() -> None:
    with node([[0, 1]]) as keeper:
        before = len(list(Path("/proc/self/fd").iterdir()))
        callers = [call(keeper, b"") for _ in range(40)]
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 40 + 16
        for caller in callers:
            caller.close()
    with node([[0]]) as keeper:
        assert not any(name.startswith("PMIX_") for name in keeper.server.variables(0, 3))
