"""The policy of a vcluster: the weights of the cost function, backfill depth, limits, borrowing.

The weight profiles are the table of the book's chapter "Scheduling Algorithm"; where it and its tuning guide differ, the table holds
(decision "weight profiles").
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

BACKFILL, BIN_PACK, SENSITIVE_RESERVATION, INTERACTIVE_FIFO = "Backfill", "BinPack", "SensitiveReservation", "InteractiveFifo"
POLICIES: Final = (BACKFILL, BIN_PACK, SENSITIVE_RESERVATION, INTERACTIVE_FIFO)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights w1 to w9 of the terms of the score; they sum to 1 once `normalised`."""

    priority: float = 0.20
    wait_time: float = 0.20
    fair_share: float = 0.20
    topology: float = 0.15
    data_readiness: float = 0.10
    backlog: float = 0.05
    energy: float = 0.0
    checkpoint: float = 0.0
    conformance: float = 0.10

    def normalised(self) -> Weights:
        """Returns weights of the same proportions that sum to 1; weights that are all zero stay so and give equal scores."""
        total = sum(astuple(self))
        return self if total in (0.0, 1.0) else Weights(*(weight / total for weight in astuple(self)))


BALANCED: Final = Weights()
PROFILES: Final[dict[str, Weights]] = {
    "HpcBatch": Weights(0.15, 0.20, 0.20, 0.15, 0.10, 0.05, 0.00, 0.05, 0.10),
    "MlTraining": Weights(0.10, 0.10, 0.10, 0.25, 0.15, 0.05, 0.05, 0.10, 0.10),
    "Service": Weights(0.15, 0.05, 0.10, 0.05, 0.10, 0.05, 0.10, 0.10, 0.30),
    "Sensitive": Weights(0.90, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.10),
    "Interactive": Weights(0.10, 0.30, 0.10, 0.00, 0.05, 0.15, 0.00, 0.00, 0.30),
}


@dataclass(frozen=True, slots=True)
class Borrowing:
    """The rules by which a vcluster lends and borrows nodes (book, "Elastic Resource Sharing"; decision on soft vclusters)."""

    lend: bool = False
    borrow: bool = False
    max_borrowed: int | None = None
    """Most nodes of other vclusters that its work holds at one time; None: no limit."""
    priority: int = 5
    """A higher number borrows first; loans of a lower number are reclaimed first."""
    max_duration: float | None = None
    """Longest walltime of work on borrowed nodes, seconds; None: no limit."""
    return_grace: float = 0.0
    """Seconds that the borrower has to give a node back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one vcluster on running work and nodes: of all, of one user, of one tenant; None: no limit."""

    max_nodes: int | None = None
    max_running: int | None = None
    max_running_per_user: int | None = None
    max_nodes_per_user: int | None = None
    max_running_per_tenant: int | None = None
    max_nodes_per_tenant: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of one vcluster as a cycle reads it; times in seconds.

    `kind`: one of `POLICIES`. `interval`: time between cycles. `max_preemptions`: how often one allocation may be preempted; None:
    no limit.
    """

    name: str
    kind: str = BACKFILL
    weights: Weights = BALANCED
    interval: float = 1.0
    depth: int = 10
    """How many blocked allocations hold a reservation; 1 is EASY backfill, 0 plain first fit in order of score."""
    home: bool = False
    """Whether the vcluster has home nodes of its own; without any, its home is every node that is at home nowhere."""
    borrowing: Borrowing = Borrowing()
    limits: Limits = Limits()
    min_runtime_before_preemption: float = 0.0
    max_preemptions: int | None = None
