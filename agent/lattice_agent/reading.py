"""Reads the Allocation of a plan row: each node for itself, or once for the many hollow nodes of a process."""

from __future__ import annotations

import asyncio
from typing import Protocol

from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger.plans import PlanRow
from lattice.views.work import Work as Allocation

KEPT = 256
"""Allocations that a hollow process keeps."""


class Reads(Protocol):
    """How the Allocation of a row is read."""

    async def get(self, cluster: Cluster, row: PlanRow) -> Allocation:
        """The object at the row's generation, or a newer one."""
        ...


class OwnReads:
    """A GET each time."""

    async def get(self, cluster: Cluster, row: PlanRow) -> Allocation:
        """The object as it is now."""
        return await cluster.get(ALLOCATIONS, row.name, row.namespace, type=Allocation)


class SharedReads:
    """One GET for all nodes of a row: what one has read at the row's generation is as good for the others."""

    def __init__(self) -> None:
        self._found: dict[str, Allocation] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, cluster: Cluster, row: PlanRow) -> Allocation:
        """The object as the first of the row's nodes has read it."""
        lock = self._locks.setdefault(row.uid, asyncio.Lock())
        async with lock:
            found = self._found.get(row.uid)
            if found is None or found.metadata.generation < row.generation:
                found = await cluster.get(ALLOCATIONS, row.name, row.namespace, type=Allocation)
                self._found.pop(row.uid, None)
                if found.metadata.uid == row.uid:
                    self._found[row.uid] = found
                self._drop_old()
        return found

    def _drop_old(self) -> None:
        while len(self._found) > KEPT:
            self._found.pop(next(iter(self._found)))
        for uid in [uid for uid, lock in self._locks.items() if uid not in self._found and not lock.locked()]:
            del self._locks[uid]
