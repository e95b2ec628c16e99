"""Launches whose disk is silent delay no order to end work."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from lattice.daemon.clock import SystemClock
from lattice_agent.attempts import Key
from lattice_agent.host.keepers import Keepers
from lattice_agent.host.threads import Threads
from tests.build import uid
from tests.unit.agent.machine import until


class SilentJournal:
    """A journal on a disk that does not answer until it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0

    def entry(self, key: Key) -> None:
        """Returns nothing, late."""
        self.asked += 1
        self.answers.wait()


async def test_launches_that_wait_for_a_disk_leave_the_threads_of_the_kernel_free() -> None:
    journal, kernel, parts = SilentJournal(), Threads("the kernel", count=4, within=60.0), dict[str, Any](cgroups=None, launcher=None)
    keepers = Keepers(journal=journal, runner=None, kernel=kernel, clock=SystemClock(), **parts)  # type: ignore[arg-type]  # are not reached
    launches = [asyncio.ensure_future(keepers.start(Key(uid(1), 1), {"number": each, "environment": {}})) for each in range(4)]
    try:
        await until(lambda: journal.asked == len(launches))
        assert await kernel.call(len, "kill") == 4
    finally:
        journal.answers.set()
        await asyncio.gather(*launches, return_exceptions=True)
