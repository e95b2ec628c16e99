"""What a cycle says of a pending allocation: placed, or waiting and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from lattice.scheduling.work import Candidate


class Score(NamedTuple):
    """The sum of the weighted terms, times the budget multiplier; `terms` are the values f1 to f9, each in [0, 1]."""

    total: float
    terms: tuple[float, ...] = ()
    multiplier: float = 1.0


class Placed(msgspec.Struct, gc=False):  # a cycle makes thousands: structs are made in a quarter of a dataclass's time
    """It fits on these nodes (indices, ascending)."""

    candidate: Candidate
    nodes: tuple[int, ...]
    score: Score | None = None
    backfilled: bool = False
    """Whether it went ahead of one that waits with a reservation."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A proposal: this holder of another vcluster gives borrowed nodes back to the vcluster that they are at home in."""

    uid: str
    vcluster: str
    """The borrower's."""
    nodes: tuple[int, ...]
    """Of its nodes, those at home with the candidate; ascending."""
    grace: float
    """Seconds that the borrower has to give them back."""


class Waiting(msgspec.Struct, gc=False):
    """It does not, and why; `wake` is when to look again if nothing changes, in seconds since the epoch."""

    candidate: Candidate
    reason: str
    message: str
    wake: float | None = None
    score: Score | None = None
    latest: float | None = None
    """When it starts at the latest by its reservation, if nothing ends later than it may; seconds since the epoch."""
    reclaims: tuple[Reclaim, ...] = ()
    """Who would have to give borrowed nodes back so that it starts, in the order in which they are asked."""


Outcome = Placed | Waiting
