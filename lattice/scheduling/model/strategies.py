"""The four scheduling policies, each as a set of switches in the one cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.scheduling.model.policy import BACKFILL, BIN_PACK, INTERACTIVE_FIFO, SENSITIVE_RESERVATION, Policy


@dataclass(frozen=True, slots=True)
class Strategy:
    """The switches that one policy sets in the cycle: the order of the queue, and what may pass a blocked candidate."""

    first_come: bool = False
    """The queue stands in order of submission, and scores only explain (decision "policies")."""
    strict: bool = False
    """No candidate passes an earlier one that waits for nodes which both could use."""
    reserves: bool = True
    """Blocked work holds reservations, up to the policy's depth."""
    conformant: bool = False
    """Work gets nodes of one known fingerprint only, whatever it asks for (book, "Node Conformance", "Per-vCluster Policy")."""
    fullest: bool = False
    """Placement prefers, among groups that suffice, the one with the largest share in use to the one with the smallest rest."""
    lends: bool = True
    """The vcluster's nodes may be lent, and its work may run on borrowed ones."""

    def depth(self, policy: Policy) -> int:
        """Returns how many blocked allocations of the vcluster hold a reservation at most; 0: none does."""
        return policy.depth if self.reserves else 0

    def order(self, totals: Sequence[float]) -> Sequence[int]:
        """Returns the order in which a cycle evaluates candidates: their places in `totals`, highest total first, or as they came
        (`first_come`).

        `totals` are the scores of the candidates in order of submission, then namespace/name; that order decides among equal totals
        (decision "equal scores").
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
"""The policy of first come on shared nodes, where strict order would keep nodes idle: smaller work passes where it delays nobody."""


def strategy_of(policy: Policy) -> Strategy:
    """Returns the strategy of a vcluster's policy; `InteractiveFifo` without home nodes keeps the order of submission, but lets later work
    pass.
    """
    return _SHARED_FIFO if policy.kind == INTERACTIVE_FIFO and not policy.home else STRATEGIES[policy.kind]


def lenders_for(policies: Mapping[str, Policy], vcluster: str, walltime: float | None) -> Iterator[str]:
    """Yields the vclusters whose idle nodes preemptible work of `vcluster` may borrow: others that lend and have home nodes, where neither
    side's longest duration is below `walltime` (seconds; None: unbounded, which any such limit excludes).

    Yields none where `vcluster` is unknown, borrows nothing or 0 nodes at most. A `SensitiveReservation` neither borrows nor lends. How
    many nodes are borrowed already is not checked.
    """
    mine = policies.get(vcluster) or Policy(vcluster)
    if not mine.borrowing.borrow or mine.borrowing.max_borrowed == 0 or not STRATEGIES[mine.kind].lends:
        return
    for name, other in policies.items():
        if name == vcluster or not (other.home and other.borrowing.lend and STRATEGIES[other.kind].lends):
            continue
        limits = [limit for limit in (mine.borrowing.max_duration, other.borrowing.max_duration) if limit is not None]
        if not limits or (walltime is not None and walltime <= min(limits)):
            yield name
