"""Puts load on an instance: submits as a user, waits, measures the API server without Lattice, cleans up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from lattice.daemon.clock import SystemClock
from lattice.errors import LatticeError, NotFound, Rejected
from lattice.kube.aiohttp import AiohttpCluster, connect
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, CONFIGS, VCLUSTERS
from lattice_dev.bench import work
from lattice_dev.bench.observe import Watching, watching
from lattice_dev.instance import EXAMPLE_TENANT, Instance

USER = "alice"
NAMESPACE = EXAMPLE_TENANT
CONNECTIONS = 48
BASELINE_OBJECTS = 300
MUCH_MAY_WAIT = {"maxPendingPerUser": 1_000_000, "maxPendingPerTenant": 1_000_000, "maxFinishedPerTenant": 1_000_000}
"""Limits raised because one user submits as much as many would."""


@dataclass(frozen=True)
class Driver:
    """An instance under load, with a connection of the submitting user and one of the administrator."""

    instance: Instance
    user: AiohttpCluster
    admin: AiohttpCluster
    clock: SystemClock

    async def create(self, manifests: Sequence[Mapping[str, Any]], *, at_once: int = CONNECTIONS) -> float:
        """Creates all allocations as the user, `at_once` at a time; returns the seconds that it took."""
        return await self.timed(at_once, (partial(self.user.create, ALLOCATIONS, manifest, NAMESPACE) for manifest in manifests))

    async def baseline(self) -> tuple[float, float]:
        """Returns the creations and the changes a second of lean ConfigMaps, by the administrator and with as many at once; they are
        deleted again.
        """
        names = [f"bench-{number:04d}" for number in range(BASELINE_OBJECTS)]
        maps = [work.lean_config_map(NAMESPACE, name) for name in names]
        admin = self.admin
        created = await self.timed(CONNECTIONS, (partial(admin.create, CONFIG_MAPS, manifest, NAMESPACE) for manifest in maps))
        change = {"data": {"a": "1"}}
        patched = await self.timed(CONNECTIONS, (partial(admin.patch, CONFIG_MAPS, name, change, NAMESPACE) for name in names))
        await self.timed(CONNECTIONS, (partial(admin.delete, CONFIG_MAPS, name, NAMESPACE) for name in names))
        return len(names) / created, len(names) / patched

    async def round_trip(self, count: int = 30) -> list[float]:
        """Returns the seconds of each of `count` changes of one ConfigMap, made one after the other."""
        name, took = "bench-round-trip", []
        await self.admin.create(CONFIG_MAPS, work.lean_config_map(NAMESPACE, name), NAMESPACE)
        for number in range(count):
            began = self.clock.monotonic()
            await self.admin.patch(CONFIG_MAPS, name, {"data": {"a": str(number)}}, NAMESPACE)
            took.append(self.clock.monotonic() - began)
        await self.admin.delete(CONFIG_MAPS, name, NAMESPACE)
        return took

    async def clear(self, seen: Watching) -> None:
        """Deletes every allocation of the namespace that `seen` knows, as the user, and waits until all are gone; raises Retry where that
        takes too long.
        """
        names = list(seen.lives)
        within = 120.0 + len(names) / 5
        await self.timed(CONNECTIONS, (partial(self._delete, name) for name in names))
        await seen.until(lambda: not seen.lives, within=within, what="the end of the measured work")

    async def _delete(self, name: str) -> None:
        """Deletes an Allocation; one that does not exist is ignored."""
        with contextlib.suppress(NotFound):
            await self.user.delete(ALLOCATIONS, name, NAMESPACE)

    async def timed(self, at_once: int, calls: Iterable[Callable[[], Awaitable[object]]]) -> float:
        """Makes all calls, `at_once` at a time; returns the seconds that they took.

        The first error of Lattice's ends the rest, and is raised.
        """
        waiting = iter(calls)

        async def work_off() -> None:
            """Makes one call after another until none is left."""
            for call in waiting:
                await call()

        began = self.clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(work_off())
        except* LatticeError as errors:
            raise errors.exceptions[0] from None
        return self.clock.monotonic() - began

    @asynccontextmanager
    async def watch(self, *, ledger: bool = False, plans: bool = False) -> AsyncIterator[Watching]:
        """Watches the namespace as the administrator for the block."""
        async with watching(self.admin, NAMESPACE, ledger=ledger, plans=plans) as seen:
            yield seen


@asynccontextmanager
async def driver(instance: Instance) -> AsyncIterator[Driver]:
    """Yields a driver of a running instance, whose limits on waiting work are raised for good.

    Raises Rejected where the instance's etcd does not wait for the disk.
    """
    if not instance.site().options.fsync:
        raise Rejected("etcd of this instance does not wait for the disk: no figure of it would be true", reason="NoFsync")
    async with (
        connect(str(instance.kubeconfig(USER)), user_agent="lattice-bench", connections=CONNECTIONS) as user,
        connect(str(instance.kubeconfig()), user_agent="lattice-bench", connections=CONNECTIONS) as admin,
    ):
        await user.list(ALLOCATIONS, NAMESPACE)
        await admin.list(VCLUSTERS)
        await admin.patch(CONFIGS, "lattice", {"spec": {"submission": MUCH_MAY_WAIT}})
        yield Driver(instance, user, admin, SystemClock())
