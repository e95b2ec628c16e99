"""kill -9 of runner, keepers, ranks, shim and the agent's ends at random moments: no rank begins twice, no code is lost, nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from lattice.errors import NotFound, Rejected
from lattice_agent.attempts import Key
from lattice_agent.host.linux import LinuxHost
from tests.unit.agent.launch_listener import Listener, keepers_of, shell
from tests.unit.agent.machine import UID, has_cgroups, machine, needs_root, open_directory, until, work

pytestmark = [
    pytest.mark.root, pytest.mark.faults, needs_root(), pytest.mark.skipif(not has_cgroups(), reason="launches need cgroups"),
]  # fmt: skip
KEY = Key(UID, 1)
LAUNCHES, AT_ONCE, RANKS, LINES = 30, 6, 3, 2000
KILLED_EVERY = 10
"""Launches between two kills of the runner, at most."""


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        path.chmod(0o777)
        yield path


class Torment:
    """Launches of one attempt, and what is killed meanwhile."""

    def __init__(self, host: LinuxHost, place: Path, seed: int) -> None:
        self.host, self.witness, self.random = host, place / "witness", random.Random(seed)
        self.harmed: set[int] = set()
        self.kills: Counter[str] = Counter()
        self.over = False

    async def launch(self, number: int) -> None:
        """Starts one, hears it however often it is cut off, and removes it; one that was harmed has its end, too.

        It waits until there were enough kills, however fast the machine is.
        """
        await until(lambda: self.kills["runner"] >= number // KILLED_EVERY)
        code = number % 200
        text = f"echo {number}-$R >> {self.witness}; seq 1 {LINES}; sleep 0.0{self.random.randrange(10)}; exit {code}"
        asked = shell(text, number=number)
        asked["ranks"] = [{"rank": rank, "environment": {"R": str(rank)}} for rank in range(RANKS)]
        try:
            await keepers_of(self.host).start(KEY, asked)
        except Rejected as refused:
            if number not in self.harmed:
                pytest.fail(refused.message)
            return
        output, ended = await self.heard(number)
        if number not in self.harmed:
            assert ended == dict.fromkeys(range(RANKS), (code, 0))
            assert output == dict.fromkeys(range(RANKS), b"".join(b"%d\n" % line for line in range(1, LINES + 1)))
        await keepers_of(self.host).end_launch(KEY, number)

    async def heard(self, number: int) -> tuple[dict[int, bytes], dict[int, tuple[int, int]]]:
        """The whole output and the ends of a launch, by connections that break."""
        had, output, ended = 0, dict[int, bytes](), dict[int, tuple[int, int]]()
        while True:
            try:
                listener = await Listener.connect(self.host, KEY, number, hearing=False)
            except NotFound:
                assert number in self.harmed
                return output, ended
            await asyncio.to_thread(listener.listen, self.random.choice((0.01, 0.1, 1.0)), until="done")
            for rank, data, end in listener.fresh(had):
                output[rank] = output.get(rank, b"") + data
                ended |= {rank: end} if end else {}
            had = max((had, *listener.numbers))
            with suppress(OSError):
                listener.had(had)
            listener.close()
            if listener.done:
                return output, ended

    async def kill_around(self) -> None:
        """Kills until all launches are over."""
        while not self.over:
            await asyncio.sleep(self.random.choice((0.01, 0.05, 0.2)))
            match self.random.choice(("runner", "runner", "keeper", "rank")):
                case "runner":
                    with suppress(ProcessLookupError):
                        os.kill(self.host.runner_client.pid, signal.SIGKILL)
                        self.kills["runner"] += 1
                case whom:
                    self.kill_one(whom)

    def kill_one(self, whom: str) -> None:
        """Kills some launch's keeper, or one of its ranks."""
        pattern = "keep/*/cgroup.procs" if whom == "keeper" else "work/launch-*/cgroup.procs"
        found = list(keepers_of(self.host).cgroups.scope(KEY).glob(pattern))
        if self.random.random() > 0.2 or not found:
            return
        path = self.random.choice(found)
        with suppress(OSError):
            pids = path.read_text().split()
            self.harmed.add(int(path.parent.name.removeprefix("launch-")))
            if pids:
                os.kill(int(self.random.choice(pids)), signal.SIGKILL)
                self.kills[whom] += 1


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_rank_begins_twice_no_byte_and_no_code_is_lost_and_nothing_is_left(place: Path, seed: int) -> None:
    async with machine(place) as (host, ends):
        await host.prepare(work(entrypoint="sleep 300", grace_seconds=0.5))
        await host.start(work(entrypoint="sleep 300", grace_seconds=0.5))
        run = Torment(host, place, seed)
        run.witness.touch()
        run.witness.chmod(0o666)
        numbers = iter(range(1, LAUNCHES + 1))

        async def worker() -> None:
            for number in numbers:
                await run.launch(number)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.kill_around())
            try:
                await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
            finally:
                run.over = True
                Listener.close_all()
        begun = Counter(run.witness.read_text().split())
        assert set(begun.values()) <= {1}
        whole = {f"{number}-{rank}" for number in range(1, LAUNCHES + 1) if number not in run.harmed for rank in range(RANKS)}
        assert whole <= begun.keys()
        assert run.kills["runner"] >= LAUNCHES // KILLED_EVERY
        await host.kill(KEY)
        await ends.next()
        assert host.scopes.whole(KEY) == []
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


@pytest.mark.parametrize("seed", range(4))
async def test_an_attempt_that_ends_at_any_moment_leaves_no_rank_no_keeper_and_no_scope(place: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with machine(place) as (host, ends):
        script = f"sleep 0.{chance.randrange(2, 9)}"
        await host.prepare(work(entrypoint=script, grace_seconds=0.3))
        running = await host.start(work(entrypoint=script, grace_seconds=0.3))

        async def worker(first: int) -> None:
            for number in range(first, 1000, 4):
                try:
                    await keepers_of(host).start(KEY, shell("trap '' TERM; setsid sleep 300 & sleep 300", number=number, ranks=2))
                except Rejected:
                    return

        async with asyncio.TaskGroup() as tasks:
            for first in range(4):
                tasks.create_task(worker(first))
            if seed % 2:
                await asyncio.sleep(chance.random() / 2)
                os.kill(running.pid, signal.SIGKILL)
        await ends.next()
        assert host.scopes.whole(KEY) == []
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []
