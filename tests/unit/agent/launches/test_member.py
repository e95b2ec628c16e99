"""A node's part in a launch: the number is its order's, whatever the launch says."""

from __future__ import annotations

import asyncio

from lattice.daemon.clock import SystemClock
from lattice_agent.attempts import Key
from lattice_agent.launches.member import KeeperRelay
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Frame
from tests.build import uid
from tests.unit.agent.launches.fakes import FakeKeepers
from tests.unit.agent.machine import until


async def test_the_number_of_a_launch_is_the_one_of_its_order() -> None:
    keepers, heard = FakeKeepers(), list[Frame]()
    relay = KeeperRelay(keepers, Key(uid(1), 1), 3, heard.append, SystemClock())
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(relay.run({"number": 9, "ranks": [{"rank": 0}]}))
        await until(lambda: bool(heard))
        assert (keepers.started, heard[0].kind) == ([3], frames.STATE)
        keepers.keepers[3].exit(0)
        relay.send(Frame(frames.HAD, frames.encode_had(0, keepers.keepers[3].last)))
    keepers.close()
