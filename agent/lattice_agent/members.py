"""The values that a node of an attempt (a member) and the attempt's reporter exchange, in process and on the wire alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lattice.views.allocation import LaunchTotals
from lattice_agent.attempts import NO_USE, Key, ResourceUse


class Phase(Enum):
    """The phase of an attempt on one node; the values are those of the protobuf's MemberPhase."""

    PREPARING = 1
    READY = 2
    RUNNING = 3
    ENDING = 4
    GONE = 5
    START_FAILED = 6
    LOST = 7


FINAL = frozenset({Phase.GONE, Phase.START_FAILED, Phase.LOST})
"""Phases in which no process of the attempt is left on the node, and which never change."""


class Order(Enum):
    """The order of a reporter to the nodes of an attempt; the values are those of the protobuf's Order."""

    WAIT = 1
    START = 2
    END = 3


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of one task; `code` is 128+n for signal n; `unknown`: nobody knows it any more. `ended` in seconds since the epoch."""

    rank: int = 0
    code: int = 0
    signal: int = 0
    unknown: bool = False
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """The whole state of an attempt on one node, as the node sends it to the reporter after each change.

    `started`: seconds since the epoch, 0: not yet. `reason` and `message` say why it failed or was ended. `walltime`: its walltime ended
    it; `ordered`: a stop row of the plan did.
    """

    key: Key
    node: str
    seq: int = field(compare=False)
    phase: Phase
    reason: str = ""
    message: str = ""
    started: float = 0.0
    exits: tuple[TaskEnd, ...] = ()
    walltime: bool = False
    ordered: bool = False
    use: ResourceUse = NO_USE
    launches: LaunchTotals | None = None
    """The launches of the attempt, of the node that heads it once the attempt is over there; None: there were none."""
    cpus: int = 0
    """Processors that work has on the node; 0: it has not said."""


@dataclass(frozen=True, slots=True)
class Direction:
    """The reporter's answer to every node of an attempt: what to do, and whether the attempt's end is persisted (`settled`).

    `cause` names why an END is ordered; empty for the other orders.
    """

    order: Order = Order.WAIT
    cause: str = ""
    settled: bool = False


def first_failure(exits: tuple[TaskEnd, ...]) -> TaskEnd | None:
    """Returns the end of the task that failed first (code other than 0, or unknown), by the time of its end; None: none failed."""
    failed = [end for end in exits if end.unknown or end.code != 0]
    return min(failed, key=lambda end: (end.ended, end.rank)) if failed else None
