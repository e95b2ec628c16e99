"""Two agents never work on one state directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Rejected
from lattice_agent.host.lock import PATIENCE_SECONDS, alone_on


async def test_a_second_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    clock = ManualClock()
    async with alone_on(tmp_path, clock):
        second = await waiting(tmp_path, clock)
        await clock.run_for(PATIENCE_SECONDS + 1)
        with pytest.raises(Rejected, match="another agent works on the state directory") as refused:
            await second
    assert refused.value.reason == "StateDirectoryInUse"


async def test_one_that_waits_while_the_other_ends_has_it_then(tmp_path: Path) -> None:
    clock = ManualClock()
    async with alone_on(tmp_path, clock):
        second = await waiting(tmp_path, clock)
        await clock.run_for(1)
        assert not second.done()
    await clock.run_for(1)
    await second


async def waiting(directory: Path, clock: ManualClock) -> asyncio.Future[None]:
    """One that has found the directory taken, and sleeps."""
    second = asyncio.ensure_future(enter(directory, clock))
    async with asyncio.timeout(90):
        while not clock.sleepers:  # it opens the directory in a thread, which the manual clock does not wait for
            await clock.settle()
    return second


async def enter(directory: Path, clock: ManualClock) -> None:
    async with alone_on(directory, clock):
        pass
