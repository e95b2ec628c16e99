"""The four policies: what each changes in the one cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.scheduling.model.policy import BACKFILL, BIN_PACK, INTERACTIVE_FIFO, SENSITIVE_RESERVATION, Policy


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a policy orders the queue, reads a candidate, and treats those behind a blocked one."""

    first_come: bool = False
    """In order of submission; scores only explain (decision "policies")."""
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

    def order(self, totals: Sequence[float]) -> Sequence[int]:
        """The places of candidates in the order in which they are looked at, by the totals of their scores.

        They stand in order of submission, then namespace/name: that decides among equals (decision "equal scores").
        """
        places = range(len(totals))
        return places if self.first_come else sorted(places, key=totals.__getitem__, reverse=True)


STRATEGIES: Final[dict[str, Strategy]] = {
    BACKFILL: Strategy(),
    BIN_PACK: Strategy(fullest=True),
    SENSITIVE_RESERVATION: Strategy(reserves=False, conformant=True, lends=False),
    INTERACTIVE_FIFO: Strategy(first_come=True, strict=True),
}
_SHARED_FIFO: Final = Strategy(first_come=True)
"""Strict order on nodes that others use too makes them and its own work wait: there smaller work passes where it delays nobody."""


def strategy_of(policy: Policy) -> Strategy:
    """How a vcluster schedules: strict order of submission holds on home nodes only."""
    return _SHARED_FIFO if policy.kind == INTERACTIVE_FIFO and not policy.home else STRATEGIES[policy.kind]


def lenders_for(policies: Mapping[str, Policy], vcluster: str, walltime: float | None) -> Iterator[str]:
    """The vclusters whose idle nodes preemptible work of another one may get; its walltime in seconds, None: unbounded."""
    mine = policies.get(vcluster) or Policy(vcluster)
    if not mine.borrowing.borrow or mine.borrowing.max_borrowed == 0 or not STRATEGIES[mine.kind].lends:
        return
    for name, other in policies.items():
        if name == vcluster or not (other.home and other.borrowing.lend and STRATEGIES[other.kind].lends):
            continue
        limits = [limit for limit in (mine.borrowing.max_duration, other.borrowing.max_duration) if limit is not None]
        if not limits or (walltime is not None and walltime <= min(limits)):
            yield name
