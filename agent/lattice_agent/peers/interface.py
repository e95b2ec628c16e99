"""Defines the two sides of a conversation between agents, and what carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lattice_agent.attempts import Key
from lattice_agent.condition import VersionedCondition
from lattice_agent.members import Direction, Member


class MemberSide(Protocol):
    """Plays a node's part in the conversation about one attempt."""

    key: Key
    changed: VersionedCondition
    """Notified when `member` has changed."""

    def member(self) -> Member | None:
        """Gives the node's whole state of the attempt; None: the node has forgotten it, and nothing follows."""
        ...

    def directed(self, direction: Direction) -> None:
        """Takes the reporter's whole answer."""
        ...

    def unreached(self, seconds: float) -> None:
        """Notes for how many seconds calls to the reporter have failed; `directed` ends that."""
        ...


class ReporterSide(Protocol):
    """Plays the reporter's part for every attempt that this agent reports for."""

    async def find_condition(self, key: Key) -> VersionedCondition | None:
        """Gives the condition that is notified when the attempt's direction changes; None: this agent does not report for it.

        Waits a moment for the plan row.
        """
        ...

    def hear(self, member: Member) -> bool:
        """Takes a node's whole state; False: this agent does not report for it, or the node is not of the attempt."""
        ...

    def direction(self, key: Key) -> Direction | None:
        """Gives what the nodes of the attempt are told; None: this agent no longer reports for it."""
        ...

    def left(self, key: Key, node: str) -> None:
        """Notes that the node's call has ended; whether it should have, the node's last state tells."""
        ...


class Logs(Protocol):
    """Finds what this node keeps of the output of attempts."""

    def newest(self, uid: str) -> int:
        """Finds the newest attempt of the Allocation that this node has; 0: none."""
        ...

    def directory(self, key: Key) -> Path | None:
        """Finds the directory of the attempt's log segments; None: this node has nothing of it."""
        ...

    def ended(self, key: Key) -> bool:
        """Tells whether nothing more will be printed."""
        ...


class Peers(Protocol):
    """Carries a member's words to its reporter."""

    async def converse(self, reporter: str, address: str, member_side: MemberSide) -> None:
        """Talks for the member until it is forgotten, and connects again for ever when it is cut off; back-off at most 1 s."""
        ...
