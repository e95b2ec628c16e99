"""What a hollow node remembers while its process lives, so that recoveries can be tried at scale."""

from __future__ import annotations

import asyncio

from lattice.daemon.clock import ManualClock
from lattice_agent.attempts import Key
from lattice_agent.cluster.history import rows_of
from lattice_agent.host.hollow import EXIT, KEPT, SECONDS, HollowHost, HollowTimers
from lattice_agent.host.interface import MachineFacts
from tests.unit.agent.machine import UID, work


async def test_a_hollow_node_tells_what_goes_on_and_what_has_ended_unless_it_was_settled_before() -> None:
    clock = ManualClock()
    timers = HollowTimers(clock)
    host = HollowHost("n1", clock=clock, timers=timers, facts=MachineFacts(1, 1, "k", "x86_64", "b"), instance="i")
    running = asyncio.ensure_future(timers.run())
    for attempt, seconds in ((1, "1"), (2, "1"), (3, "900"), (4, "1")):
        one = work(key=Key(UID, attempt), variables={SECONDS: seconds, EXIT: "7"})
        await host.prepare(one)
        if attempt != 4:
            await host.start(one)
    await clock.run_for(2)
    await host.forget(Key(UID, 1), seq=40)
    await host.forget(Key(UID, 2), seq=41)
    told = {row.attempt: (row.state, row.code, row.nodes, bool(row.start), bool(row.end)) for row in rows_of(await host.history(40), {})}
    assert told == {2: ("e", 7, ("n1",), True, True), 3: ("u", None, ("n1",), True, False), 4: ("p", None, ("n1",), False, False)}
    for attempt in range(10, 12 + KEPT):
        one = work(key=Key(UID, attempt), variables={SECONDS: "0"})
        await host.prepare(one)
        await host.start(one)
    await clock.run_for(2)
    assert len(await host.history(41)) == KEPT + 2
    running.cancel()
