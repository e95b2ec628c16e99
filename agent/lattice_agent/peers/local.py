"""The same conversation between the nodes of one process (hollow nodes): no wire, the same words."""

from __future__ import annotations

from lattice.kube.clock import Clock
from lattice_agent.condition import Bell
from lattice_agent.members import Direction, Member
from lattice_agent.peers.interface import Desk, Seat

RETRY_SECONDS = 0.2


class LocalPeers:
    """Knows the desk of every node of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._desks: dict[str, Desk] = {}

    def join(self, node: str, desk: Desk) -> None:
        """Adds a node."""
        self._desks[node] = desk

    def leave(self, node: str) -> None:
        """Takes a node away, as when its agent dies."""
        self._desks.pop(node, None)

    async def follow(self, reporter: str, address: str, seat: Seat) -> None:
        """Talks for the seat until it is forgotten."""
        reached = self._clock.monotonic()
        while seat.member() is not None:
            desk = self._desks.get(reporter)
            bell = await desk.find(seat.key) if desk is not None else None
            if desk is not None and bell is not None:
                await self._converse(reporter, desk, bell, seat)
            if desk is not None:
                reached = self._clock.monotonic()
            else:
                seat.unreached(self._clock.monotonic() - reached)
            await self._clock.sleep(RETRY_SECONDS)

    async def _converse(self, reporter: str, desk: Desk, bell: Bell, seat: Seat) -> None:
        either = Bell()
        bell.tie(either)
        seat.bell.tie(either)
        told: Member | None = None
        heard: Direction | None = None
        try:
            while self._desks.get(reporter) is desk:
                seen = either.count
                member = seat.member()
                if member is None or (member != told and not desk.hear(member)):
                    return
                told = member
                direction = desk.direction(seat.key)
                if direction is None:
                    return
                if direction != heard:
                    heard = direction
                    seat.directed(direction)
                await either.wait(seen)
        finally:
            bell.untie(either)
            seat.bell.untie(either)
