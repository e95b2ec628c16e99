"""Carries the conversation between hollow nodes of one process: the same values, without a wire."""

from __future__ import annotations

from lattice.kube.clock import Clock
from lattice_agent.condition import VersionedCondition
from lattice_agent.members import Direction, Member
from lattice_agent.peers.interface import MemberSide, ReporterSide

RETRY_SECONDS = 0.2


class LocalPeers:
    """Connects the members and reporters of one process's nodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reporters: dict[str, ReporterSide] = {}

    def join(self, node: str, reporter_side: ReporterSide) -> None:
        """Makes a node's reporter reachable for the members in this process."""
        self._reporters[node] = reporter_side

    def leave(self, node: str) -> None:
        """Makes a node's reporter unreachable, as when its agent dies."""
        self._reporters.pop(node, None)

    async def converse(self, reporter: str, address: str, member_side: MemberSide) -> None:
        """Gives the member's states to the reporter, and its directions to the member, until the member has no state any more.

        Tries again every 0.2 s, and tells the member how long the reporter has been out of reach. `address` is not used.
        """
        reached = self._clock.monotonic()
        while member_side.member() is not None:
            reporter_side = self._reporters.get(reporter)
            changed = await reporter_side.find_condition(member_side.key) if reporter_side is not None else None
            if reporter_side is not None and changed is not None:
                await self._converse(reporter, reporter_side, changed, member_side)
            if reporter_side is not None:
                reached = self._clock.monotonic()
            else:
                member_side.unreached(self._clock.monotonic() - reached)
            await self._clock.sleep(RETRY_SECONDS)

    async def _converse(self, reporter: str, reporter_side: ReporterSide, changed: VersionedCondition, member_side: MemberSide) -> None:
        """Passes states and directions between member and reporter until one of them has none any more, the node is not of the attempt, or
        the reporter is another.
        """
        either = VersionedCondition()
        changed.link(either)
        member_side.changed.link(either)
        told: Member | None = None
        heard: Direction | None = None
        try:
            while self._reporters.get(reporter) is reporter_side:
                seen = either.version
                member = member_side.member()
                if member is None or (member != told and not reporter_side.hear(member)):
                    return
                told = member
                direction = reporter_side.direction(member_side.key)
                if direction is None:
                    return
                if direction != heard:
                    heard = direction
                    member_side.directed(direction)
                await either.wait(seen)
        finally:
            changed.unlink(either)
            member_side.changed.unlink(either)
