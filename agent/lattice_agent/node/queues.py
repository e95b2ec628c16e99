"""The queues of an agent process, shared by its nodes: one for a real node, thousands for a hollow process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from lattice.daemon.queue import KeyedQueue
from lattice.kube.clock import Clock
from lattice_agent.attempts import Key


class Hand(Protocol):
    """What a node does when its turn comes; the seconds that are returned are when to come again."""

    async def act(self, key: Key) -> float | None:
        """Carries out what the machine has ordered for this attempt."""

    async def say(self, key: Key) -> float | None:
        """Persists what the head of this attempt concludes."""

    async def beat(self) -> float | None:
        """Renews the node's Lease."""

    async def tick(self) -> float | None:
        """Tells the machine that time has passed."""

    async def register(self) -> float | None:
        """Keeps the node's own object."""


class Crew:
    """Workers for all nodes of a process; a key names the node first."""

    def __init__(self, clock: Clock, *, workers: int = 8) -> None:
        self.hands: dict[str, Hand] = {}
        self._acts = KeyedQueue(self._act, clock, workers=workers, name="effects")
        self._says = KeyedQueue(self._say, clock, workers=workers, name="reports")
        self._beats = KeyedQueue(self._of_node(lambda hand: hand.beat()), clock, workers=workers, name="heartbeats")
        self._ticks = KeyedQueue(self._of_node(lambda hand: hand.tick()), clock, workers=1, name="deadlines")
        self._registers = KeyedQueue(self._of_node(lambda hand: hand.register()), clock, workers=workers, name="registration")

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in (self._acts, self._says, self._beats, self._ticks, self._registers):
                group.create_task(queue.run())

    def act(self, node: str, key: Key) -> None:
        """There is something to carry out."""
        self._acts.add(_join(node, key))

    def say(self, node: str, key: Key, after: float = 0.0) -> None:
        """There may be something to persist."""
        self._says.add(_join(node, key), after)

    def beat(self, node: str, after: float = 0.0) -> None:
        """The Lease is due."""
        self._beats.add(node, after)

    def tick(self, node: str, after: float) -> None:
        """A walltime or a grace period ends then."""
        self._ticks.add(node, after)

    def register(self, node: str) -> None:
        """The node's own object has changed."""
        self._registers.add(node)

    async def _act(self, name: str) -> float | None:
        node, key = _split(name)
        hand = self.hands.get(node)
        return await hand.act(key) if hand else None

    async def _say(self, name: str) -> float | None:
        node, key = _split(name)
        hand = self.hands.get(node)
        return await hand.say(key) if hand else None

    def _of_node(self, call: Callable[[Hand], Awaitable[float | None]]) -> Callable[[str], Awaitable[float | None]]:
        async def reconcile(node: str) -> float | None:
            hand = self.hands.get(node)
            return await call(hand) if hand else None

        return reconcile


def _join(node: str, key: Key) -> str:
    return f"{node}/{key.uid}/{key.attempt}"


def _split(name: str) -> tuple[str, Key]:
    node, uid, attempt = name.split("/")
    return node, Key(uid, int(attempt))
