"""Holds what a node of an attempt tells its reporter, and what it is told: pure values, the same in process and on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lattice_agent.attempts import Key


class Phase(Enum):
    """Names where an attempt stands on one node; the values are those of the protobuf's MemberPhase."""

    PREPARING = 1
    READY = 2
    RUNNING = 3
    ENDING = 4
    GONE = 5
    START_FAILED = 6
    LOST = 7


FINAL = frozenset({Phase.GONE, Phase.START_FAILED, Phase.LOST})
"""No process is left, and nothing will change."""


class Order(Enum):
    """Names what the reporter wants of a node; the values are those of the protobuf's Order."""

    WAIT = 1
    START = 2
    END = 3


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """Tells how one task ended; `code` is 128+n for signal n; `unknown`: nobody knows it any more."""

    rank: int = 0
    code: int = 0
    signal: int = 0
    unknown: bool = False
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """Holds the whole state of an attempt on one node; `started` is 0 before; `reason` says why it failed or was ended."""

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


@dataclass(frozen=True, slots=True)
class Direction:
    """Holds the reporter's whole answer to one node."""

    order: Order = Order.WAIT
    cause: str = ""
    settled: bool = False


def first_failure(exits: tuple[TaskEnd, ...]) -> TaskEnd | None:
    """Finds the task that failed first, by its end; None when every one ended with 0."""
    failed = [end for end in exits if end.unknown or end.code != 0]
    return min(failed, key=lambda end: (end.ended, end.rank)) if failed else None
