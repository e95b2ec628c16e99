"""What the host's tests share: work for the user nobody, a state directory that this user can traverse."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Retry
from lattice_agent.attempts import ExitRecord, Key, NodeWork, Ordered
from lattice_agent.host.containers import ContainerTools
from lattice_agent.host.controllers import NO_RESERVES, Reserves
from lattice_agent.host.hooks import HookDirectories
from lattice_agent.host.linux import LinuxHost, open_host
from lattice_agent.host.scopes import CgroupScopes, choose
from lattice_agent.state.image_cache import ImageCache
from lattice_dev.build import build_starter
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock
from tests.killed_runs import open_directory as open_directory

STOPPED = Ordered("stop", 1.0)
UID = "7d3c1f52-0b6e-4f0b-9a55-3a1f6d0c2e11"


def work(uid: str = UID, **changes: Any) -> NodeWork:
    """One task of nobody's on one node, unless changed."""
    fields: dict[str, Any] = {
        "key": Key(uid, 1),
        "number": 7,
        "namespace": "physics",
        "name": "run-42",
        "user": "oidc:nobody",
        "account": "nobody",
        "tenant": "physics",
        "job_name": "run 42",
        "nodes": ("n1",),
        "node": "n1",
        "rank_of_node": 0,
        "head": "n1",
        "tasks": 1,
        "first_rank": 0,
        "total_tasks": 1,
        "workdir": "/tmp",
        "open_files": 1024,
        "vcluster": "batch",
    }
    if {"entrypoint", "script"}.isdisjoint(changes):
        changes = {"entrypoint": "true"} | changes
    return NodeWork(**fields | changes)


def needs_root() -> pytest.MarkDecorator:
    """Skips without root: users, cgroups and mounts are real here."""
    return pytest.mark.skipif(os.geteuid() != 0, reason="starts work as another user, which needs root")


@cache
def rank_starter() -> Path:
    """The program that forks ranks, compiled where it is not cached."""
    return build_starter(terminal(HostClock()), os.environ)


class AheadClock(SystemClock):
    """The machine's clock, which a test sets forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Ends:
    """What the host delivered."""

    def __init__(self, host: LinuxHost) -> None:
        self._queue: asyncio.Queue[tuple[Key, ExitRecord | None]] = asyncio.Queue()
        host.on_exit(lambda key, record: self._queue.put_nowait((key, record)))

    async def next(self, within: float = 90.0) -> tuple[Key, ExitRecord | None]:
        """The next end."""
        async with asyncio.timeout(within):
            return await self._queue.get()

    async def record(self, within: float = 90.0) -> ExitRecord:
        """The next end, which has a record."""
        _, record = await self.next(within)
        assert record is not None
        return record

    def none(self) -> bool:
        """Whether nothing was delivered."""
        return self._queue.empty()


@asynccontextmanager
async def machine(
    directory: Path,
    node: str = "",
    *,
    swept: bool = True,
    reserves: Reserves = NO_RESERVES,
    hooks: HookDirectories | None = None,
    cache: ImageCache | None = None,
    scratch_dir: Path | None = None,
    tools: ContainerTools | None = None,
    starter: str | None = None,
    clock: SystemClock | None = None,
    disk_seconds: float = 120.0,
) -> AsyncIterator[tuple[LinuxHost, Ends]]:
    """A host on this machine, with scopes of its own that are gone afterwards; its ranks are forked by the starter, or another program.

    It waits longer for its disk than an agent does: no test is about how fast that is.
    """
    node = node or directory.name
    state, memory = directory / "state", directory / "memory"
    async with open_host(
        state, memory, node=node, clock=clock or SystemClock(), reserves=reserves, hooks=hooks, cache=cache, scratch_dir=scratch_dir,
        tools=tools, disk_seconds=disk_seconds,
    ) as host:  # fmt: skip
        if host.keepers is not None:
            host.keepers.starter = str(rank_starter()) if starter is None else starter
        try:
            yield host, Ends(host)
        finally:
            if swept:
                await asyncio.to_thread(sweep, host)


def sweep(host: LinuxHost) -> None:
    """Kills and removes what a failed test left."""
    for key in host.scopes.standing_scopes():
        for _ in range(200):
            host.scopes.kill(key, whole=True)
            if host.scopes.remove_scope(key):
                break
            time.sleep(0.01)


def has_cgroups() -> bool:
    """Whether scopes are cgroups here."""
    scopes = choose("lattice-probe", None)
    scopes.close()
    return isinstance(scopes, CgroupScopes)


async def until(true: Callable[[], object], within: float = 60.0) -> None:
    """Waits for a predicate of files and processes, which tell nobody when they change."""
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def cleared(host: LinuxHost, key: Key) -> None:
    """Clears an attempt as the agent does: again while the kernel has not yet taken the last process out of its scope."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await host.clear(key)
            except Retry as error:
                if error.reason != "Populated":
                    raise
            await asyncio.sleep(0.01)


def await_nothing(left: Callable[[], Collection[str]], within: float = 60.0) -> list[str]:
    """Waits until nothing is left, and returns what is left then: the kernel removes mounts, loop devices and processes after the fact."""
    end = time.monotonic() + within
    while (found := left()) and time.monotonic() < end:
        time.sleep(0.02)
    return list(found)
