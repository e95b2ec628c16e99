"""The parts that launches need of others: keepers of the node, its attempts, and the exchange of ranks."""

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

    def doubt_address(self, node: str) -> None:
        """Has the address of a node read anew when it is asked for next: a call to it has failed."""
        ...


class RankExchange(Protocol):
    """Joins the PMI servers of a launch's nodes; `standalone.pmi.hub.Hub` is the implementation."""

    def receive(self, node: int, payload: bytes) -> list[tuple[int, bytes]]:
        """Takes a node's message; returns what goes to which node."""
        ...

    def again(self) -> bytes:
        """Returns the message that brings a node up to date, whenever the way to it stands anew."""
        ...

    def lose(self, node: int) -> None:
        """Notes that a node's ranks were killed with their keeper."""
        ...

    @property
    def fences(self) -> int:
        """Returns how many fences have ended."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Tells whether a fence has the part of some node, and not of all."""
        ...

    @property
    def owed(self) -> Mapping[tuple[str, int], frozenset[int]]:
        """Returns the nodes whose part is missing of each open fence, given by kind and number, in which others wait for it."""
        ...

    def ask_for_late(self, kind: str, number: int, seconds: float) -> bytes:
        """Returns the message that has a node name its ranks for which others have waited so long in this fence."""
        ...

    @property
    def failure(self) -> Any:
        """Returns why the launch is to end at once, with a `sentence`; None: it is not."""
        ...


class LaunchMetrics(Protocol):
    """Counts launches and fences; `metrics.AgentMetrics` is the implementation."""

    def launch_ended(self, result: str, seconds: float) -> None:
        """Counts a launch that is over, with its result and its length."""
        ...

    def fence_ended(self, seconds: float) -> None:
        """Counts a fence of several nodes, from the first node's part to the last."""
        ...


class NoMetrics:
    """Counts nothing."""

    def launch_ended(self, result: str, seconds: float) -> None:
        """Does nothing."""

    def fence_ended(self, seconds: float) -> None:
        """Does nothing."""
