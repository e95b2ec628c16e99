"""What a cycle says of a pending allocation: placed, or waiting and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from lattice.scheduling.model.work import Candidate


class Makeup(Protocol):
    """What a cost function found out once for many scores."""

    def of(self, entry: Any) -> tuple[tuple[float, ...], float]:
        """The terms and the budget multiplier of one of them."""
        ...


class Score(msgspec.Struct, gc=False, eq=False):  # a cycle makes thousands: structs are made in a quarter of a dataclass's time
    """The sum of the weighted terms, times the budget multiplier.

    A cost function gives `makeup` and `entry`: few ask what a score is made of, so that it is worked out for those who do.
    """

    total: float
    given: tuple[float, ...] = ()
    factor: float = 1.0
    makeup: Makeup | None = None
    entry: Any = None

    def made_of(self) -> tuple[tuple[float, ...], float]:
        """Its terms and its multiplier."""
        return (self.given, self.factor) if self.makeup is None else self.makeup.of(self.entry)

    @property
    def terms(self) -> tuple[float, ...]:
        """The values f1 to f9, each in [0, 1]; none where nothing was weighed."""
        return self.made_of()[0]

    @property
    def multiplier(self) -> float:
        """Of the budgets."""
        return self.made_of()[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Score) and self.total == other.total and self.made_of() == other.made_of()

    def __hash__(self) -> int:
        return hash(self.total)

    def __repr__(self) -> str:
        terms, multiplier = self.made_of()
        return f"Score({self.total!r}, {terms!r}, {multiplier!r})"


class Placed(msgspec.Struct, gc=False):
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
