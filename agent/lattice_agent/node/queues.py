"""The work queues of an agent process, shared by its nodes: one real node, or thousands of hollow ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from lattice.daemon.queue import KeyedQueue
from lattice.kube.clock import Clock
from lattice_agent.attempts import Key


class NodeWorker(Protocol):
    """Does one node's work when its turn comes; `Agent` is the implementation.

    Each method returns the seconds until it is called again; None: only when it is queued again.
    """

    async def carry_out(self, key: Key) -> float | None:
        """Carries out the queued instructions of an attempt in order; returns the seconds until a retry, None: all are done."""

    async def persist(self, key: Key) -> float | None:
        """Writes the status that this node, as the attempt's reporter, concludes; returns the seconds until a retry, None: done."""

    async def beat(self) -> float | None:
        """Renews the node's Lease with the newest report; returns the seconds until the next heartbeat."""

    async def tick(self) -> float | None:
        """Posts to the state machine that time has passed; returns the seconds until a retry, None: done."""

    async def register(self) -> float | None:
        """Writes changed facts into the node's LatticeNode; returns the seconds until a retry, None: done."""


class WorkQueues:
    """Queues the work of all nodes of a process for a few workers; keys begin with the node's name."""

    def __init__(self, clock: Clock, *, workers: int = 8) -> None:
        self.workers: dict[str, NodeWorker] = {}
        self._effects = KeyedQueue(self._carry_out, clock, workers=workers, name="effects")
        self._reports = KeyedQueue(self._persist, clock, workers=workers, name="reports")
        self._heartbeats = KeyedQueue(self._for_node(lambda worker: worker.beat()), clock, workers=workers, name="heartbeats")
        self._deadlines = KeyedQueue(self._for_node(lambda worker: worker.tick()), clock, workers=1, name="deadlines")
        self._registrations = KeyedQueue(self._for_node(lambda worker: worker.register()), clock, workers=workers, name="registration")

    async def run(self) -> None:
        """Works the queues off until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in (self._effects, self._reports, self._heartbeats, self._deadlines, self._registrations):
                group.create_task(queue.run())

    def queue_effects(self, node: str, key: Key) -> None:
        """Queues an attempt of a node, so that a worker carries out its instructions."""
        self._effects.add(_join(node, key))

    def queue_report(self, node: str, key: Key, after: float = 0.0) -> None:
        """Queues an attempt that a node reports, so that a worker writes its status in `after` seconds."""
        self._reports.add(_join(node, key), after)

    def queue_heartbeat(self, node: str, after: float = 0.0) -> None:
        """Queues a renewal of a node's Lease in `after` seconds."""
        self._heartbeats.add(node, after)

    def queue_deadline(self, node: str, after: float) -> None:
        """Queues a check of a node's walltimes and grace periods in `after` seconds."""
        self._deadlines.add(node, after)

    def queue_registration(self, node: str) -> None:
        """Queues an update of the node's LatticeNode."""
        self._registrations.add(node)

    async def _carry_out(self, name: str) -> float | None:
        """Has the node of a queue's key (`NODE/UID/ATTEMPT`) carry out the attempt's instructions; None for an unknown node."""
        node, key = _split(name)
        worker = self.workers.get(node)
        return await worker.carry_out(key) if worker else None

    async def _persist(self, name: str) -> float | None:
        """Has the node of a queue's key (`NODE/UID/ATTEMPT`) write the attempt's status; None for an unknown node."""
        node, key = _split(name)
        worker = self.workers.get(node)
        return await worker.persist(key) if worker else None

    def _for_node(self, call: Callable[[NodeWorker], Awaitable[float | None]]) -> Callable[[str], Awaitable[float | None]]:
        """Returns a function for a queue whose keys are nodes: it calls `call` with the node's worker."""

        async def reconcile(node: str) -> float | None:
            """Calls the worker of a node; returns None for an unknown node."""
            worker = self.workers.get(node)
            return await call(worker) if worker else None

        return reconcile


def _join(node: str, key: Key) -> str:
    """Returns the queue's key of an attempt on a node, `NODE/UID/ATTEMPT`."""
    return f"{node}/{key.uid}/{key.attempt}"


def _split(name: str) -> tuple[str, Key]:
    """Returns node and attempt of a queue's key."""
    node, uid, attempt = name.split("/")
    return node, Key(uid, int(attempt))
