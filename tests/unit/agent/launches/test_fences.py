"""Fences of several nodes: a node that is silent in one ends the launch after the site's time, one that is merely late is waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice_agent.launches.fence_watch import FenceWatch, silence_sentence
from lattice_agent.launches.links import PeerLink
from lattice_agent.launches.node_part import NodePart
from lattice_agent.launches.record import NodePlaces
from lattice_agent.standalone import frames
from lattice_agent.standalone.pmi.exchange import FENCE, NodeExchange
from lattice_agent.standalone.pmi.payloads import unpack
from tests.unit.agent.launches.fakes import FakeAttempts, FakeClient, FakeKeeper
from tests.unit.agent.launches.test_faults import MemoryPeers, Site
from tests.unit.agent.launches.test_head import KEY, Agent, finished, until

OWED = {(FENCE, 0): frozenset({1})}


def parts(*up: bool) -> list[NodePart]:
    """The nodes n0, n1, …, of which these are heard; the others have not been since 100."""
    found = []
    for place, heard in enumerate(up):
        link = PeerLink(MemoryPeers(), FakeAttempts(), f"n{place}", KEY, 0)
        found.append(NodePart(place, NodePlaces(f"n{place}", place, (place,)), link, up=heard, silent_since=100.0))
    return found


def test_a_silent_node_is_told_after_its_time_in_the_fence_and_not_before() -> None:
    watch, nodes = FenceWatch(), parts(True, False)
    watch.note_fences(OWED, 150.0)
    assert watch.silent_parts(nodes, OWED, 209.9, 60.0) == []
    assert watch.silent_parts(nodes, OWED, 210.0, 60.0) == [nodes[1]]


def test_a_node_that_falls_silent_amid_a_fence_has_its_time_from_then_on() -> None:
    watch, nodes = FenceWatch(), parts(True, False)
    watch.note_fences(OWED, 50.0)
    assert watch.silent_parts(nodes, OWED, 159.9, 60.0) == []
    assert watch.silent_parts(nodes, OWED, 160.0, 60.0) == [nodes[1]]


def test_a_node_that_is_heard_or_owes_nothing_is_never_silent() -> None:
    watch, nodes = FenceWatch(), parts(False, True)
    watch.note_fences(OWED, 0.0)
    assert watch.silent_parts(nodes, OWED, 1e6, 60.0) == []


def test_each_fence_has_its_own_time_and_asks_each_late_node_once() -> None:
    watch, nodes = FenceWatch(), parts(True, True)
    watch.note_fences(OWED, 100.0)
    assert watch.late_parts(nodes, OWED, 159.0, 60.0) == []
    assert watch.late_parts(nodes, OWED, 160.0, 60.0) == [(nodes[1], FENCE, 0)]
    assert watch.late_parts(nodes, OWED, 999.0, 60.0) == []
    following = {(FENCE, 1): frozenset({0})}
    watch.note_fences(following, 1000.0)
    assert watch.late_parts(nodes, following, 1059.0, 60.0) == []
    assert watch.late_parts(nodes, following, 1060.0, 60.0) == [(nodes[0], FENCE, 1)]


def test_the_sentence_names_nodes_time_and_option() -> None:
    assert silence_sentence(parts(False), 60.0) == (
        "node n0 has not been heard for 60 s, and the others wait in a PMI fence for it (option mpi.fenceTimeout)"
    )
    assert silence_sentence(parts(False, False), 5.0) == (
        "nodes n0, n1 have not been heard for 5 s, and the others wait in a PMI fence for them (option mpi.fenceTimeout)"
    )


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """The head n1 and the node n2."""
    here = Site(tmp_path).with_nodes("n2")
    yield here
    for keepers in (here.keepers, *here.peers.keepers.values()):
        keepers.close()


async def started(site: Site, agent: Agent) -> FakeClient:
    """A launch with one rank on each node, all of which run."""
    client = agent.call("-n", "2", "-N", "2", "app")
    await client.until(frames.ACCEPTED)
    await site.begun(0)
    return client


def enter(keeper: FakeKeeper, rank: int) -> None:
    """A rank enters its node's first fence."""
    exchange = NodeExchange([[0], [1]], rank, f"n{rank + 1}")
    exchange.join_round(FENCE, rank)
    for payload in exchange.outgoing:
        keeper.last += 1
        keeper.emit(frames.EXCHANGE, frames.encode_numbered(keeper.last, payload))


def cut(site: Site) -> None:
    """The node n2 cannot be reached any more."""
    site.peers.away.add("n2")
    site.peers.cut()


def was_ended(keeper: FakeKeeper) -> bool:
    """Tells whether a keeper was told to end its ranks."""
    return frames.END in {frame.kind for frame in keeper.heard}


async def test_a_node_that_is_silent_in_a_fence_ends_the_launch_everywhere_and_is_named(site: Site) -> None:
    async with site.agent() as agent:
        client = await started(site, agent)
        here, there = site.keepers.keepers[0], site.peers.keepers["n2"].keepers[0]
        enter(here, 0)
        cut(site)
        await site.clock.run_for(59.5)
        assert not was_ended(here)
        await site.clock.run_for(2.0)
        assert await finished(client) == 137
        assert "node n2 has not been heard for 60 s" in client.said
        assert was_ended(here)
        assert not was_ended(there)
        site.peers.away.clear()
        await until(lambda: was_ended(there))
        await until(lambda: 0 not in site.peers.keepers["n2"].keepers)
        await until(agent.head.is_idle)


async def test_a_silent_node_that_was_given_up_is_ended_by_the_next_agent(site: Site) -> None:
    async with site.agent() as agent:
        client = await started(site, agent)
        there = site.peers.keepers["n2"].keepers[0]
        enter(site.keepers.keepers[0], 0)
        cut(site)
        await site.clock.run_for(62.0)
        assert await finished(client) == 137
    site.peers.away.clear()
    async with site.agent():
        await until(lambda: was_ended(there))
        await until(lambda: 0 not in site.peers.keepers["n2"].keepers)


async def test_a_node_that_is_silent_while_nobody_waits_for_it_harms_no_launch(site: Site) -> None:
    async with site.agent() as agent:
        client = await started(site, agent)
        here, there = site.keepers.keepers[0], site.peers.keepers["n2"].keepers[0]
        cut(site)
        await site.clock.run_for(1.0)
        site.clock.advance(1000.0)
        await site.clock.run_for(1.0)
        assert not was_ended(here)
        site.peers.away.clear()
        await until(lambda: there.connection is not None)
        for keeper in (here, there):
            keeper.exit(0)
        assert await finished(client) == 0


async def test_a_node_whose_ranks_are_late_is_asked_for_their_names_and_waited_for(site: Site) -> None:
    async with site.agent() as agent:
        client = await started(site, agent)
        here, there = site.keepers.keepers[0], site.peers.keepers["n2"].keepers[0]
        enter(here, 0)
        await site.clock.run_for(62.0)
        await until(lambda: any(b"late" in frame.payload for frame in there.heard if frame.kind == frames.EXCHANGED))
        (question,) = [unpack(frame.payload) for frame in there.heard if frame.kind == frames.EXCHANGED and b"late" in frame.payload]
        assert question == {"late": FENCE, "round": 0, "seconds": 60.0}
        site.clock.advance(1000.0)
        await site.clock.run_for(1.0)
        assert not was_ended(here)
        enter(there, 1)
        for keeper in (here, there):
            await until(lambda keeper=keeper: any(b"result" in frame.payload for frame in keeper.heard))  # type: ignore[misc]
            keeper.exit(0)
        assert await finished(client) == 0
