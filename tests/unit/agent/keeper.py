"""The smallest agent: keeps a list of works running through a real host, and notes how each ended. For the kill runs.

python -m tests.unit.agent.keeper STATE NODE WORKS RESULTS
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from lattice.daemon.clock import SystemClock
from lattice.errors import Rejected, Retry, Stale
from lattice_agent.attempts import ExitRecord, Key, Known, NodeWork
from lattice_agent.host.containers import ContainerTools
from lattice_agent.host.linux import LinuxHost, open_host
from lattice_agent.state.image_cache import CacheLimits, ImageCache

AT_ONCE = 6


class Keeper:
    """Starts what is left of the list, a few at once."""

    def __init__(self, host: LinuxHost, works: list[NodeWork], results: Path) -> None:
        self.host, self.results = host, results
        self.pending = {work.key: work for work in works}
        self.flying: set[Key] = set()
        self.ended: asyncio.Queue[tuple[Key, ExitRecord | None]] = asyncio.Queue()
        host.on_exit(lambda key, record: self.ended.put_nowait((key, record)))

    async def adopt(self) -> None:
        """Takes over what an earlier keeper left."""
        for known in await self.host.attempts():
            await self.take_over(known)

    async def take_over(self, known: Known) -> None:
        """Waits for the end of one that runs, and settles one that has ended; one that was not started stays on the list."""
        if known.running is None and known.exit is None and not known.forgotten:
            return
        self.pending.pop(known.key, None)
        if known.alive or known.populated:
            self.flying.add(known.key)
        elif not known.forgotten:
            await self.settle(known.key, known.exit)

    async def keep(self) -> None:
        """Until every work has ended."""
        while self.pending or self.flying:
            while self.pending and len(self.flying) < AT_ONCE:
                await self.begin(self.pending.pop(min(self.pending)))
            if self.flying:
                key, record = await self.ended.get()
                await self.settle(key, record)

    async def begin(self, work: NodeWork) -> None:
        """Prepares and starts one."""
        try:
            await self.host.prepare(work)
            await self.host.start(work)
        except Rejected as refusal:
            self.note(work.key, None, refusal.message)
            await self.forget(work.key)
        except Stale:  # its shim has taken the right to start after this keeper had looked at it
            known = await self.host.recall(work.key)
            assert known is not None
            await self.take_over(known)
        else:
            self.flying.add(work.key)

    async def settle(self, key: Key, record: ExitRecord | None) -> None:
        """Notes the end, then forgets."""
        self.note(key, record.tasks[0].code if record and record.tasks else None, record.failure if record else "")
        await self.forget(key)
        self.flying.discard(key)

    async def forget(self, key: Key) -> None:
        """Again and again until nothing of it is left: a shim that refused a start is still ending."""
        while True:
            try:
                await self.host.forget(key)
            except Retry:
                await asyncio.sleep(0.02)
            else:
                break

    def note(self, key: Key, code: int | None, failure: str) -> None:
        """One line, whole."""
        with self.results.open("a") as file:
            file.write(json.dumps({"uid": key.uid, "code": code, "failure": failure}) + "\n")


async def main(state: str, node: str, works: str, results: str) -> None:
    """Runs one keeper."""
    listed = msgspec.json.decode(await asyncio.to_thread(Path(works).read_bytes), type=list[NodeWork])
    cache = ImageCache(Path(state).with_name("cache"), CacheLimits(free=0))
    tools = ContainerTools(stub=Path(os.environ.get("LATTICE_STUB", "")))
    async with open_host(Path(state), Path(state).with_name("memory"), node=node, clock=SystemClock(), cache=cache, tools=tools) as host:
        keeper = Keeper(host, listed, Path(results))
        await keeper.adopt()
        await keeper.keep()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
