"""The parts of the agent that launches need: keepers of the node, and its attempts."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lattice_agent.attempts import Key, NodeWork


class KeeperHost(Protocol):
    """Starts, finds and ends the keepers of this node; `host.keepers.Keepers` is the implementation."""

    async def start(self, key: Key, launch: Mapping[str, Any]) -> tuple[int, int]:
        """Starts the keeper of a launch and its ranks, or finds the one that stands; returns its pid and start time.

        Raises Rejected (StartFailed, NodeUnfit, LaunchesClosed), Retry where the kernel is silent.
        """
        ...

    async def connect(self, key: Key, number: int) -> socket.socket:
        """Returns a connection to a launch's keeper, non-blocking; raises NotFound where none listens."""
        ...

    async def end_launch(self, key: Key, number: int) -> Mapping[str, Any] | None:
        """Removes a launch from this node: its ranks are killed, its cgroups and files go. Returns what its keeper noted that nobody heard.

        Raises Retry while a process is left.
        """
        ...


@dataclass(frozen=True)
class AttemptHere:
    """An attempt that runs on this node: its work as the journal has it, and its user's uid."""

    work: NodeWork
    uid: int


class AttemptSource(Protocol):
    """Finds the attempts that run on this node; `service.RunningAttempts` is the implementation."""

    async def find_attempt(self, key: Key) -> AttemptHere | None:
        """Returns an attempt that runs here, from its start to its end; None: there is none."""
        ...

    def is_over(self, key: Key) -> bool:
        """Tells whether an attempt has ended on this node, or is not known here."""
        ...

    async def address(self, node: str) -> str:
        """Returns where the agent of another node listens; raises NotFound, Retry."""
        ...
