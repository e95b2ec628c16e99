"""The two ends of a conversation between agents, and what carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lattice_agent.attempts import Key
from lattice_agent.condition import VersionedCondition
from lattice_agent.members import Direction, Member


class MemberSide(Protocol):
    """A node's end: one attempt there."""

    key: Key
    changed: VersionedCondition
    """Notified when `member` has changed."""

    def member(self) -> Member | None:
        """The node's whole state of the attempt; None: it has forgotten it, nothing follows."""
        ...

    def directed(self, direction: Direction) -> None:
        """The reporter's whole answer."""
        ...

    def unreached(self, seconds: float) -> None:
        """Calls to the reporter have failed for so long; `directed` ends that."""
        ...


class ReporterSide(Protocol):
    """The reporter's end: every attempt that this agent reports for."""

    async def find(self, key: Key) -> VersionedCondition | None:
        """The condition that is notified when the attempt's direction changes; waits a moment for its plan row; None: not here."""
        ...

    def hear(self, member: Member) -> bool:
        """Takes a node's whole state; False: this agent does not report for it, or the node is not of the attempt."""
        ...

    def direction(self, key: Key) -> Direction | None:
        """What the nodes of the attempt are told; None: this agent no longer reports for it."""
        ...

    def left(self, key: Key, node: str) -> None:
        """The node's call has ended; whether it should have, its last state tells."""
        ...


class Logs(Protocol):
    """What this node keeps of the output of attempts."""

    def newest(self, uid: str) -> int:
        """The newest attempt of the Allocation that this node has; 0: none."""
        ...

    def directory(self, key: Key) -> Path | None:
        """Where its segments are; None: this node has nothing of it."""
        ...

    def ended(self, key: Key) -> bool:
        """Whether nothing more will be printed."""
        ...


class Peers(Protocol):
    """Carries a member's words to its reporter."""

    async def follow(self, reporter: str, address: str, member_side: MemberSide) -> None:
        """Talks for the member until it is forgotten, and connects again for ever when it is cut off; back-off at most 1 s."""
        ...
