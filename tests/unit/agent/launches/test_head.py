"""The launches of one attempt, with keepers that outlive their agent: each request once, no byte lost or doubled, CPUs in order."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lattice.daemon.clock import SystemClock
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.launches.head import AttemptLaunches, HeadTools
from lattice_agent.launches.record import RecordStore
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import LaunchRequest
from lattice_agent.state import entry_failure
from tests.build import uid
from tests.unit.agent.launches.fakes import FakeAttempts, FakeClient, FakeKeepers

KEY = Key(uid(1), 1)


def work(**fields: Any) -> NodeWork:
    """The work of an allocation of one node."""
    common: dict[str, Any] = {
        "key": KEY, "number": 12, "namespace": "t", "name": "job", "user": "alice", "tenant": "t", "job_name": "job", "nodes": ("n1",),
        "node": "n1", "rank_of_node": 0, "head": "n1", "tasks": 1, "first_rank": 0, "total_tasks": 1,
    }  # fmt: skip
    return NodeWork(**(common | fields))


@dataclass
class Site:
    """One node's run directory and keepers, which outlive agents."""

    directory: Path
    keepers: FakeKeepers = field(default_factory=FakeKeepers)
    attempts: FakeAttempts = field(default_factory=FakeAttempts)
    work: NodeWork = field(default_factory=work)

    @property
    def entry_failure(self) -> tuple[str, str]:
        """What is noted of the launch of the entrypoint; empty: nothing."""
        file = self.directory / entry_failure.NAME
        found = json.loads(file.read_bytes()) if file.exists() else {}
        return found.get("reason", ""), found.get("message", "")

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """An agent, killed at the end of the block: nothing of it is ended in order."""
        async with asyncio.TaskGroup() as group:
            tools = HeadTools("n1", self.keepers, None, self.attempts, SystemClock(), group)  # type: ignore[arg-type]  # there is one node
            agent = Agent(AttemptLaunches(self.work, RecordStore(self.directory), tools), group)
            agent.head.adopt()
            try:
                yield agent
            finally:
                agent.kill()
        await asyncio.sleep(0.01)


@dataclass
class Agent:
    """The head's part of an agent."""

    head: AttemptLaunches
    group: asyncio.TaskGroup
    clients: list[FakeClient] = field(default_factory=list)

    def call(self, *words: str, request: bytes = b"", client: FakeClient | None = None, **fields: Any) -> FakeClient:
        """A client calls with these words."""
        client = client or FakeClient()
        asked = LaunchRequest(request or os.urandom(16), (b"srun", *map(os.fsencode, words)), **fields)
        self.clients.append(client)

        async def converse() -> None:
            async with asyncio.TaskGroup() as group:
                carrying = group.create_task(client.side.run([]))
                await self.head.serve(client.side, asked)
                client.side.close()
                await carrying

        self.group.create_task(converse())
        return client

    def kill(self) -> None:
        """kill −9, as far as tasks go."""
        for task in list(self.group._tasks):  # a killed process asks nobody
            task.cancel()


async def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds, a minute at most."""
    limit = asyncio.get_running_loop().time() + 60
    while not holds():
        assert asyncio.get_running_loop().time() < limit
        await asyncio.sleep(0.005)


async def started(site: Site, number: int) -> None:
    """Until this launch's keeper stands and is connected."""
    await until(lambda: not (number not in site.keepers.keepers or site.keepers.keepers[number].connection is None))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """One node."""
    here = Site(tmp_path)
    yield here
    here.keepers.close()


async def finished(client: FakeClient) -> int:
    """The client's exit code."""
    return frames.decode_refused((await client.until(frames.FINISHED)).payload)[0]


async def test_output_and_exit_code_of_every_rank_reach_the_client_and_the_keeper_is_removed(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("-n", "2", "-O", "hostname")
        await started(site, 0)
        keeper = site.keepers.keepers[0]
        assert [entry["rank"] for entry in keeper.start["ranks"]] == [0, 1]
        assert (keeper.start["argv"], keeper.start["go"]) == (("hostname",), True)
        assert keeper.start["environment"]["LATTICE_LAUNCH_ID"] == "12.0"
        keeper.print(0, b"n1\n")
        keeper.print(1, b"n1\n")
        keeper.exit(0, 7)
        assert await finished(client) == 7
        assert client.output == {0: b"n1\n", 1: b"n1\n"}
        assert "task 1: Exited with exit code 7" in client.said
        await until_gone(site, 0)


async def test_a_launch_that_is_over_is_freed_at_once_and_not_by_the_collector(site: Site) -> None:
    async with site.agent() as agent:
        gc.disable()
        try:
            client = agent.call("true")
            await started(site, 0)
            run = weakref.ref(next(iter(agent.head._runs.values())))
            site.keepers.keepers[0].exit(0)
            assert await finished(client) == 0
            await until_gone(site, 0)
            await until(lambda: run() is None)
        finally:
            gc.enable()


async def until_gone(site: Site, number: int) -> None:
    """Until the launch is removed."""
    await until(lambda: not (number not in site.keepers.ended))


async def test_an_agent_that_is_killed_amid_a_launch_loses_and_doubles_no_byte_and_starts_nothing_twice(site: Site) -> None:
    request = b"r" * 16
    client = FakeClient()
    async with site.agent() as agent:
        agent.call("cat", request=request, client=client)
        await started(site, 0)
        site.keepers.keepers[0].print(0, b"one ")
        await client.until(frames.OUTPUT, acknowledge=False)
        site.keepers.keepers[0].print(0, b"two ")  # is sent to an agent that dies with it
    site.keepers.keepers[0].print(0, b"three ")
    async with site.agent() as agent:
        again = FakeClient()
        again.output, again.had = dict(client.output), dict(client.had)
        agent.call("cat", request=request, client=again, resumed=tuple(client.had.items()), step=0)
        await again.until(frames.ACCEPTED)
        site.keepers.keepers[0].exit(0)
        assert await finished(again) == 0
        assert again.output == {0: b"one two three "}
        assert site.keepers.started == [0]
        await until_gone(site, 0)
        second = agent.call("true")
        await started(site, 1)
        site.keepers.keepers[1].exit(0)
        assert await finished(second) == 0, "a number is given once"


async def test_a_request_that_is_unknown_after_it_was_accepted_is_refused(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("true", step=3)
        code, why = frames.decode_refused((await client.until(frames.REFUSED)).payload)
        assert (code, "not known any more" in why, site.keepers.started) == (1, True, [])


async def test_a_client_whose_process_has_ended_ends_its_launch(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("sleep", "9")
        await client.until(frames.ACCEPTED)
        await started(site, 0)
        keeper = site.keepers.keepers[0]
        client.ended = True
        await client.leave()
        await until_gone(site, 0)
        assert frames.END in {frame.kind for frame in keeper.heard}


async def test_input_reaches_the_ranks_within_the_room_that_they_gave(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("cat", has_input=True)
        room = frames.decode_room((await client.until(frames.ROOM)).payload)
        assert room == frames.INPUT_WINDOW
        await client.send(frames.INPUT, frames.encode_input(0, b"a" * 1000))
        await client.send(frames.INPUT, frames.encode_input(1000, b""))
        keeper = site.keepers.keepers[0]
        await until(lambda: keeper.input_ended)
        assert bytes(keeper.taken) == b"a" * 1000
        keeper.exit(0)
        assert await finished(client) == 0


async def test_a_client_that_opens_no_file_holds_its_cpus_and_nobody_s_turn(site: Site) -> None:
    cores = len(os.sched_getaffinity(0))
    async with site.agent() as agent:
        slow = agent.call("-n", "1", "--exact", "-o", "file", "slow")
        await slow.until(frames.OPEN)
        hurried = agent.call("-n", str(cores), "--exact", "--immediate=600", "hurried")
        await hurried.until(frames.SAY)
        assert "waits for" in hurried.said, "it is its turn, and it waits for CPUs"
        await slow.leave()
        await hurried.until(frames.ACCEPTED)
        await until(lambda: len(site.keepers.started) == 1)
        (number,) = site.keepers.started
        site.keepers.keepers[number].exit(*[0] * cores)
        assert await finished(hurried) == 0


async def test_launches_wait_for_cpus_in_order_of_asking(site: Site) -> None:
    cores = len(os.sched_getaffinity(0))
    async with site.agent() as agent:
        first = agent.call("-n", str(cores), "--exact", "one")
        await first.until(frames.ACCEPTED)
        await started(site, 0)
        second, third = agent.call("-n", "1", "--exact", "two"), agent.call("-n", str(cores), "--exact", "three")
        await second.until(frames.SAY)
        assert "n1" in second.said
        assert site.keepers.started == [0]
        site.keepers.keepers[0].exit(*[0] * cores)
        assert await finished(first) == 0
        await started(site, 1)
        assert site.keepers.keepers[1].start["argv"] == ("two",)
        await third.until(frames.SAY)
        site.keepers.keepers[1].exit(0)
        assert await finished(second) == 0
        await started(site, 2)
        site.keepers.keepers[2].exit(*[0] * cores)
        assert await finished(third) == 0


async def test_a_launch_that_cannot_start_is_refused_with_the_sentence_of_its_node(site: Site) -> None:
    site.keepers.refusal = "'nothing' cannot be executed: No such file or directory"
    async with site.agent() as agent:
        client = agent.call("nothing")
        code, why = frames.decode_refused((await client.until(frames.REFUSED)).payload)
        assert (code, "cannot be executed" in why) == (1, True)


@pytest.mark.parametrize("is_launched", [True, False], ids=["an entrypoint", "srun in a script"])
async def test_of_an_entrypoint_s_launch_it_is_noted_why_it_did_not_start(site: Site, is_launched: bool) -> None:
    site.work = work(is_launched=is_launched)
    async with site.agent() as agent:
        client = agent.call("-n", "2", "-c", "5000", "true")
        await client.until(frames.REFUSED)
        assert site.entry_failure[0] == ("StartFailed" if is_launched else "")
        assert ("2 tasks of 5000 CPUs do not fit" in site.entry_failure[1]) is is_launched
        site.keepers.refusal = "'nothing' cannot be executed: No such file or directory"
        await agent.call("nothing").until(frames.REFUSED)
        assert ("cannot be executed" in site.entry_failure[1]) is is_launched


async def test_what_a_launched_task_launches_itself_is_no_affair_of_the_attempt_s_end(site: Site) -> None:
    site.work = work(is_launched=True)
    async with site.agent() as agent:
        entry = agent.call("hostname")
        await started(site, 0)
        site.keepers.refusal = "'nothing' cannot be executed: No such file or directory"
        await agent.call("--overlap", "nothing").until(frames.REFUSED)
        await agent.call("-n", "5000", "true").until(frames.REFUSED)
        assert site.entry_failure == ("", "")
        site.keepers.keepers[0].exit(7)
        assert await finished(entry) == 7
        assert site.entry_failure == ("", "")


async def test_options_that_do_not_read_are_refused_and_help_is_printed(site: Site) -> None:
    async with site.agent() as agent:
        client = agent.call("--frobnicate", "true")
        assert "frobnicate" in frames.decode_refused((await client.until(frames.REFUSED)).payload)[1]
        asked = agent.call("--help")
        assert await finished(asked) == 0
        assert b"srun" in asked.output[0]
