"""The outcome of a cycle for one pending allocation: placed, or waiting with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from lattice.scheduling.model.work import Candidate


class Makeup(Protocol):
    """Computes the terms of a score when somebody asks for them: a cycle scores many candidates in columns and few terms are read."""

    def terms_of(self, entry: Any) -> tuple[tuple[float, ...], float]:
        """Returns the terms f1 to f9 and the budget multiplier of the candidate at `entry`, its place in the scored columns."""
        ...


class Score(msgspec.Struct, gc=False, eq=False):  # a cycle makes thousands: structs are made in a quarter of a dataclass's time
    """The score of one candidate in one cycle: the sum of its weighted terms, times the budget multiplier.

    `given` and `factor` hold the terms and the multiplier; with a `makeup` these are computed from `entry` when they are asked for.
    """

    total: float
    given: tuple[float, ...] = ()
    factor: float = 1.0
    makeup: Makeup | None = None
    entry: Any = None

    def made_of(self) -> tuple[tuple[float, ...], float]:
        """Returns the terms f1 to f9 and the budget multiplier of this score."""
        return (self.given, self.factor) if self.makeup is None else self.makeup.terms_of(self.entry)

    @property
    def terms(self) -> tuple[float, ...]:
        """Returns the values f1 to f9, each in [0, 1]; empty where the policy weighs nothing."""
        return self.made_of()[0]

    @property
    def multiplier(self) -> float:
        """Returns the factor (0.05 to 1) by which the use of budgets multiplies the sum of the weighted terms; 1 where none applies."""
        return self.made_of()[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Score) and self.total == other.total and self.made_of() == other.made_of()

    def __hash__(self) -> int:
        return hash(self.total)

    def __repr__(self) -> str:
        terms, multiplier = self.made_of()
        return f"Score({self.total!r}, {terms!r}, {multiplier!r})"


class Placed(msgspec.Struct, gc=False):
    """The outcome of a candidate that starts now on these nodes (indices, ascending)."""

    candidate: Candidate
    nodes: tuple[int, ...]
    score: Score | None = None
    backfilled: bool = False
    """Whether it starts ahead of a candidate that waits with a reservation."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A proposal that a holder in another vcluster gives borrowed nodes back to the vcluster of their home."""

    uid: str
    vcluster: str
    """The vcluster of the borrower."""
    nodes: tuple[int, ...]
    """The borrower's nodes that are at home in the candidate's vcluster; indices, ascending."""
    grace: float
    """Seconds that the borrower has to give the nodes back."""


class Waiting(msgspec.Struct, gc=False):
    """The outcome of a candidate that keeps waiting: a reason and a sentence.

    `wake`: when the loop decides on it again even if nothing changes, seconds since the epoch; None: only after a change.
    """

    candidate: Candidate
    reason: str
    message: str
    wake: float | None = None
    score: Score | None = None
    latest: float | None = None
    """The latest start by its backfill reservation, if no work outruns its walltime; seconds since the epoch.

    None: it has no reservation.
    """
    reclaims: tuple[Reclaim, ...] = ()
    """The holders in other vclusters that would have to give borrowed nodes back so that the candidate starts, in the order of asking."""


Outcome = Placed | Waiting
