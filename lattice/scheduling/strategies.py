"""The four policies: what each changes in the one cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lattice.scheduling.policy import BACKFILL, BIN_PACK, INTERACTIVE_FIFO, SENSITIVE_RESERVATION, Policy
from lattice.scheduling.work import Candidate


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a policy orders the queue, reads a candidate, and treats those behind a blocked one."""

    strict: bool = False
    """In order of submission, and nobody passes one that waits for nodes which he could use himself; scores only explain (decision
    "policies")."""
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

    def order(self, candidates: Sequence[Candidate], totals: Sequence[float]) -> list[int]:
        """Their places (candidates in order of namespace/name, with the totals of their scores) in the order in which they are looked at.

        Higher score, then earlier submission, then namespace/name (decision "equal scores").
        """
        submitted = [candidate.submitted for candidate in candidates]
        places = sorted(range(len(submitted)), key=submitted.__getitem__)
        if not self.strict:
            places.sort(key=totals.__getitem__, reverse=True)
        return places


STRATEGIES: Final[dict[str, Strategy]] = {
    BACKFILL: Strategy(),
    BIN_PACK: Strategy(fullest=True),
    SENSITIVE_RESERVATION: Strategy(reserves=False, conformant=True, lends=False),
    INTERACTIVE_FIFO: Strategy(strict=True),
}
