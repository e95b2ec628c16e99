"""When the head of a launch on several nodes tells their keepers what they need to keep no longer, and what it has them send again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.daemon.clock import SystemClock
from lattice_agent.attempts import Key
from lattice_agent.launches.launch_run import LaunchRun
from lattice_agent.launches.record import OVER, LaunchRecord, NodePlaces, RecordStore
from lattice_agent.standalone import frames
from lattice_agent.standalone.pmi.exchange import FENCE, NodeExchange
from lattice_agent.standalone.pmi.hub import Hub
from tests.build import uid
from tests.unit.agent.launches.test_bounds import HandLink
from tests.unit.agent.launches.test_head import until

NODES, NAMES = [(0,), (1,)], ["n1", "n2"]


class TwoNodes:
    """A launch of one rank on each of two nodes, whose keepers speak by hand."""

    def __init__(self, directory: Path) -> None:
        self.links = [HandLink(), HandLink()]
        self.store = RecordStore(directory)
        places = tuple(NodePlaces(name, place, NODES[place]) for place, name in enumerate(NAMES))
        self.run = LaunchRun(
            Key(uid(1), 1), LaunchRecord(0, "00", "job", "app", places, pmi=True), self.links, store=self.store, clock=SystemClock(),
            attempt_over=lambda: False, on_over=lambda _: None, exchange=Hub(NODES, NAMES),
        )  # fmt: skip
        self.run.describe([{}, {}])

    def stand(self, place: int, kept: int) -> None:
        """A keeper is heard, which has kept so many frames."""
        self.links[place].hear(frames.STATE, json.dumps({"room": 65536, "frames": kept}).encode())

    def enter(self, place: int, number: int) -> None:
        """A node's rank enters the first fence, which its keeper tells in its frame of this number."""
        exchange = NodeExchange(NODES, place, NAMES[place])
        exchange.join_round(FENCE, place)
        self.links[place].hear(frames.EXCHANGE, frames.encode_numbered(number, exchange.outgoing[0]))

    def end(self, place: int, number: int) -> None:
        """A node's ranks have ended."""
        report = {"ranks": [[place, 0, 0, 1.0, 2.0, 0.1, 0.1, 4096]]}
        self.links[place].hear(frames.DONE, frames.encode_numbered(number, json.dumps(report).encode()))


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[TwoNodes]:
    """A launch whose keepers both stand."""
    found = TwoNodes(tmp_path)
    task = asyncio.ensure_future(found.run.run())
    await until(lambda: all(link.receive is not None for link in found.links))
    for place in range(2):
        found.stand(place, 0)
    yield found
    task.cancel()
    await asyncio.wait([task])


async def test_only_a_keeper_that_has_sent_something_is_asked_to_send_it_again(launch: TwoNodes) -> None:
    assert not launch.links[0].of(frames.EXCHANGED)
    launch.stand(0, 3)
    assert launch.links[0].of(frames.EXCHANGED) == [Hub(NODES, NAMES).again()]


async def test_the_part_of_a_fence_is_acknowledged_behind_its_result(launch: TwoNodes) -> None:
    launch.enter(0, 1)
    assert not launch.links[0].of(frames.HAD)
    launch.enter(1, 1)
    for link in launch.links:
        assert [frame.kind for frame in link.sent][-2:] == [frames.EXCHANGED, frames.HAD]


async def test_what_has_no_answer_is_acknowledged_within_a_moment(launch: TwoNodes) -> None:
    launch.enter(0, 1)
    await until(lambda: launch.links[0].of(frames.HAD) == [frames.encode_had(0, 1)])
    assert not launch.links[1].of(frames.HAD)


async def test_a_keeper_goes_once_the_ranks_of_all_nodes_have_ended_and_what_it_told_is_on_disk_before(launch: TwoNodes) -> None:
    launch.end(0, 1)
    await until(lambda: 0 in launch.store.read_all()[0].done)
    assert not launch.links[0].of(frames.HAD)
    launch.end(1, 1)
    assert [link.of(frames.HAD) for link in launch.links] == [[frames.encode_had(0, 1)], [frames.encode_had(0, 1)]]
    assert launch.store.read_all()[0].state == OVER
