"""The four policies: what each changes in the one cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lattice.scheduling.outcomes import Score
from lattice.scheduling.policy import BACKFILL, BIN_PACK, INTERACTIVE_FIFO, SENSITIVE_RESERVATION, Policy
from lattice.scheduling.work import Candidate

Ranked = tuple[Candidate, Score]


def by_score(entry: Ranked) -> tuple[float, float, str]:
    """Higher score, then earlier submission, then namespace/name (decision "equal scores")."""
    candidate, score = entry
    return (-score.total, candidate.submitted, candidate.key)


def by_submission(entry: Ranked) -> tuple[float, str]:
    """Earlier submission, then namespace/name: weights only explain (decision "policies")."""
    return (entry[0].submitted, entry[0].key)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a policy orders the queue, reads a candidate, and treats those behind a blocked one."""

    key: Callable[[Ranked], tuple[float | str, ...]]
    strict: bool = False
    """Nobody passes one that waits for nodes which he could use himself."""
    reserves: bool = True
    """Blocked work holds reservations, to the policy's depth."""
    conformant: bool = False
    """Nodes of one known fingerprint only, whatever the allocation asks for (book, "Node Conformance", "Per-vCluster Policy")."""
    fullest: bool = False
    """Among groups that hold it, the one with the largest share in use, not the smallest remainder."""
    lends: bool = True

    def depth(self, policy: Policy) -> int:
        """How many blocked allocations hold a reservation."""
        return policy.depth if self.reserves else 0


STRATEGIES: Final[dict[str, Strategy]] = {
    BACKFILL: Strategy(by_score),
    BIN_PACK: Strategy(by_score, fullest=True),
    SENSITIVE_RESERVATION: Strategy(by_score, reserves=False, conformant=True, lends=False),
    INTERACTIVE_FIFO: Strategy(by_submission, strict=True),
}
