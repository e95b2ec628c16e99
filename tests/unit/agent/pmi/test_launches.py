"""Real MPI programs in launches that real keepers keep; two keepers stand for two nodes, and the test is the head's agent."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lattice_agent.attempts import Key
from lattice_agent.host.linux import LinuxHost
from lattice_agent.standalone import frames
from lattice_agent.standalone.keeper_link import UNHEARD_EXCHANGE_BYTES
from lattice_agent.standalone.pmi.exchange import FENCE, NodeExchange
from lattice_agent.standalone.pmi.hub import Hub
from tests.mpi import programs
from tests.unit.agent.launch_listener import PATIENCE, Listener, keepers_of, launch
from tests.unit.agent.machine import UID, has_cgroups, machine, needs_root, open_directory, work


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    if not programs.missing("mpich", "mpi4py"):
        programs.mpi4py()
    if not programs.missing("libpmi2"):
        programs.every_call()


pytestmark = [pytest.mark.root, needs_root(), pytest.mark.skipif(not has_cgroups(), reason="launches need cgroups")]
KEY = Key(UID, 1)
NAMES = ["n0", "n1"]
mpich = pytest.mark.skipif(bool(programs.missing("mpich", "mpi4py")), reason=programs.missing("mpich", "mpi4py") or "-")
libpmi2 = pytest.mark.skipif(bool(programs.missing("libpmi2")), reason=programs.missing("libpmi2") or "-")


@pytest.fixture(autouse=True)
def _no_shared_memory_is_left() -> Iterator[None]:
    with programs.without_leftovers():
        yield


@asynccontextmanager
async def attempt() -> AsyncIterator[tuple[LinuxHost, Path]]:
    """A host with an attempt that sleeps, and a directory with the programs."""
    with open_directory() as place, open_directory() as installed:
        programs.install(installed)
        async with machine(place, swept=True) as (host, _):
            fields: dict[str, Any] = {"grace_seconds": 0.5, "entrypoint": "sleep 300"}
            await host.prepare(work(**fields))
            await host.start(work(**fields))
            try:
                yield host, installed
            finally:
                Listener.close_all()


def asked(identity: str, argv: Sequence[object], nodes: list[list[int]], node: int) -> dict[str, Any]:
    """The launch of one node; its number is one more than the node's."""
    fields = launch(*map(str, argv), number=node + 1)
    fields["environment"] |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "PMI_FD": "77"}
    fields["ranks"] = [{"rank": rank} for rank in nodes[node]]
    return fields | {"pmi": {"identity": identity, "nodes": nodes, "node": node, "names": NAMES[: len(nodes)]}}


async def ran(host: LinuxHost, nodes: list[list[int]], *argv: object, breaks: random.Random | None = None) -> tuple[list[Listener], Hub]:
    """Starts the launch on all nodes and is the head's agent until its end; with `breaks` connections and hubs are lost again and again."""
    identity = f"lattice-{os.urandom(8).hex()}-1-0"
    for node in range(len(nodes)):
        await keepers_of(host).start(KEY, asked(identity, argv, nodes, node))
    listeners = [await Listener.connect(host, KEY, node + 1) for node in range(len(nodes))]
    hub = Hub(nodes, NAMES)
    for listener in listeners:
        listener.send(frames.EXCHANGED, hub.again())
    ended = set[int]()
    for _ in range(6000):
        for node, listener in enumerate(listeners):
            if not listener.done:
                await asyncio.to_thread(listener.listen, 0.01, until="exchanged")
            payloads, listener.exchanged = listener.exchanged, []
            for payload in payloads:
                for to, reply in hub.receive(node, payload):
                    if not listeners[to].closed and not listeners[to].done:
                        listeners[to].send(frames.EXCHANGED, reply)
        if hub.failure and not ended:
            ended = set(range(len(nodes)))
            for listener in listeners:
                if not listener.done:
                    listener.send(frames.END, b"\1")
        if all(listener.done for listener in listeners):
            break
        if breaks and breaks.random() < 0.3:
            node = breaks.randrange(len(nodes))
            if not listeners[node].done:
                before = listeners[node]
                before.close()
                listeners[node] = after = await Listener.connect(host, KEY, node + 1)
                after.output, after.ended, after.said = before.output, before.ended, before.said
                if breaks.random() < 0.3:
                    hub = Hub(nodes, NAMES)
                for listener in listeners:
                    if not listener.done:
                        listener.send(frames.EXCHANGED, hub.again())
    assert all(listener.done for listener in listeners)
    for node in range(len(nodes)):
        await keepers_of(host).end_launch(KEY, node + 1)
    return listeners, hub


def told(listeners: list[Listener]) -> dict[int, str]:
    """The output of every rank."""
    return {rank: text.decode() for listener in listeners for (_, rank), text in sorted(listener.output.items())}


@mpich
@pytest.mark.parametrize("nodes", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]]], ids=["one node", "block", "cyclic"])
async def test_mpich_meets_in_launches(nodes: list[list[int]]) -> None:
    async with attempt() as (host, here):
        listeners, hub = await ran(host, nodes, here / programs.ring().name)
        assert told(listeners) == {rank: f"rank {rank} of 4: ring {rank + 1 if rank else 4}, sum 6, all 4711\n" for rank in range(4)}
        assert [code for listener in listeners for code, _ in listener.ended.values()] == [0] * 4
        assert hub.failure is None


@pytest.mark.skipif(bool(programs.missing("mpich", "mpi4py", "python")), reason=programs.missing("mpich", "mpi4py", "python") or "-")
async def test_mpi4py_meets_in_a_launch() -> None:
    async with attempt() as (host, here):
        listeners, _ = await ran(host, [[0], [1]], *(word.replace("HERE", str(here)) for word in programs.mpi4py()))
        assert told(listeners) == {rank: f"rank {rank} of 2: ring 2, sum 1, all 4711\n" for rank in range(2)}


@libpmi2
@pytest.mark.parametrize("seed", range(3))
async def test_agents_that_come_and_go_and_hubs_that_start_anew_cost_time_only(seed: int) -> None:
    async with attempt() as (host, here):
        listeners, hub = await ran(host, [[0, 1], [2, 3]], here / programs.every_call().name, "fences", 60, breaks=random.Random(seed))
        lines = {rank: set(text.splitlines()) for rank, text in told(listeners).items()}  # unacknowledged frames come twice
        assert lines == {rank: {f"rank {rank} of 4: right"} for rank in range(4)}
        assert hub.failure is None


@libpmi2
async def test_every_call_of_libpmi2_is_served_in_a_launch() -> None:
    async with attempt() as (host, here):
        listeners, _ = await ran(host, [[0, 1], [2, 3]], here / programs.every_call().name)
        assert told(listeners) == {rank: f"rank {rank} of 4: right\n" for rank in range(4)}


@mpich
@pytest.mark.parametrize(
    ("nodes", "words", "sentence"),
    [
        ([[0, 1]], ("abort", 1), "rank 1 on n0 called abort with exit code 13"),
        ([[0], [1]], ("exit", 1), "rank 1 on n1 ended with exit code 5 after init and before finalize"),
        ([[0], [1]], ("kill", 0), "rank 0 on n0 was ended by signal 9 after init and before finalize"),
    ],
)  # fmt: skip
async def test_a_rank_that_fails_ends_the_launch_on_all_nodes(nodes: list[list[int]], words: tuple[object, ...], sentence: str) -> None:
    async with attempt() as (host, here):
        listeners, hub = await ran(host, nodes, here / programs.ring().name, *words)
        assert (hub.failure.sentence if hub.failure else listeners[0].said[-1]).removeprefix("srun: error: ").startswith(sentence)
        assert {rank for listener in listeners for rank in listener.ended} == {0, 1}


async def test_a_rank_that_ends_without_a_word_breaks_a_fence_that_others_wait_in() -> None:
    script = 'if [ $PMI_RANK = 0 ]; then printf "cmd=init pmi_version=1 pmi_subversion=1\\ncmd=barrier_in\\n" >&$PMI_FD; exec sleep 300; fi'
    async with attempt() as (host, _):
        listeners, hub = await ran(host, [[0], [1]], "/bin/bash", "-c", script)
        assert hub.failure is not None
        assert hub.failure.sentence == "node n0 waits in a PMI fence for rank 1 on n1, which ended with exit code 0 without PMI"
        assert listeners[0].ended == {0: (137, 9)}


FENCES = r"""
import os, socket
way = socket.socket(fileno=int(os.environ["PMI_FD"]))
told = way.makefile("rb")
def ask(line):
    way.sendall(line + b"\n")
    return told.readline()
ask(b"cmd=init pmi_version=1 pmi_subversion=1")
for _ in range(12):
    for key in range(128):
        ask(b"cmd=put kvsname=k key=%d value=%s" % (key, b"v" * 16000))
    ask(b"cmd=barrier_in")
ask(b"cmd=finalize")
"""
"""A rank that gives the others 2 MiB in each of twelve fences."""


async def test_a_rank_exchanges_no_more_while_nothing_of_it_is_acknowledged() -> None:
    nodes = [[0], [1]]
    hub, other = Hub(nodes, NAMES), NodeExchange(nodes, 1, "n1")
    async with attempt() as (host, _):
        await keepers_of(host).start(KEY, asked("lattice-fences-1-0", ("/usr/bin/python3", "-c", FENCES), nodes, 0))
        listener = await Listener.connect(host, KEY, hearing=False)

        async def exchange(enough: float = math.inf, seconds: float = PATIENCE) -> int:
            """Meets the rank in its fences until it has given so many bytes, or for a while; returns how many it has given."""
            given, end = 0, time.monotonic() + seconds
            while given < enough and time.monotonic() < end and not listener.done:
                await asyncio.to_thread(listener.listen, 0.05, until="exchanged")
                other.join_round(FENCE, 1)
                replies = [reply for payload in other.outgoing for reply in hub.receive(1, payload)]
                replies += [reply for payload in listener.exchanged for reply in hub.receive(0, payload)]
                given += sum(map(len, listener.exchanged))
                other.outgoing, other.answers, listener.exchanged = [], [], []
                for to, reply in replies:
                    other.receive(reply) if to else listener.send(frames.EXCHANGED, reply)
            return given

        held = await exchange(UNHEARD_EXCHANGE_BYTES)
        held += await exchange(seconds=1.0)
        assert UNHEARD_EXCHANGE_BYTES <= held < UNHEARD_EXCHANGE_BYTES + (3 << 20)
        listener.hearing = True
        listener.had(listener.numbers[-1])
        assert held + await exchange() > 12 * 128 * 16000
        assert listener.ended == {0: (0, 0)}
