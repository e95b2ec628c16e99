"""Orders the holders of reservations for planning, and names the causes that may move a reservation later.

Work that holds a reservation is planned before newcomers of its class or a lower one, whatever their score; among holders the higher
class goes first, then whose reservation was given earlier (decision "who may move a reservation").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

HIGHER_CLASS: Final = "HigherClass"
NODES_LOST: Final = "NodesLost"
WINDOW: Final = "Maintenance"
MORE_WALLTIME: Final = "WalltimeGranted"
OWNER: Final = "OwnerChange"
POLICY: Final = "PolicyChange"
OVERRUN: Final = "Overrun"
QUOTA: Final = "QuotaGone"
POWER: Final = "PowerBudget"
UNEXPLAINED: Final = "Unexplained"
CAUSES: Final[Mapping[str, str]] = {
    HIGHER_CLASS: "work of a higher preemption class came first",
    NODES_LOST: "nodes were lost, drained, disabled or given another home",
    WINDOW: "a maintenance or reservation of nodes was made or changed",
    MORE_WALLTIME: "running work was granted more time, or nodes were taken otherwise than by a cycle",
    OWNER: "its owner changed it",
    POLICY: "the policy, the limits or the home nodes of its vCluster were changed",
    OVERRUN: "running work outlives its end",
    QUOTA: "its tenant's or user's quota, share or budget does not allow it at the moment",
    POWER: "the power budget does not allow it at the moment",
    UNEXPLAINED: "none of the causes that may move a reservation was found: this is a defect",
}
"""By cause: the sentence for people; `Unexplained` marks a defect."""

_OF_REASON: Final[Mapping[str, str]] = {
    "Held": OWNER, "NotBefore": OWNER, "RetryBackOff": OWNER, "VClusterClosed": POLICY, "ReservedNodes": WINDOW,
    "PowerBudget": POWER,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Move:
    """A backfill reservation of allocation `uid` that a cycle moved later or withdrew (`after` None); times in seconds since the
    epoch.

    `before`: its start until then. `cause`: one of `CAUSES`.
    """

    uid: str
    at: float
    before: float
    after: float | None
    cause: str
    by: str = ""
    """The uid of the work of a higher class for which it was moved; empty: another cause."""


class ReservationEpoch(NamedTuple):
    """The stamp of a vcluster's reservations: while it stays equal, only cycles have taken nodes, so that the reservations hold."""

    nodes: tuple[int, int]
    """The node cache's `tally` and `shape`: they grow when nodes come, go or change usability, and when buckets do."""
    windows: Sequence[object]
    losses: int
    """The node cache's `losses`: grows when nodes become held otherwise than by a cycle, or for longer than was known."""
    policy: object

    def changed(self, before: ReservationEpoch) -> str:
        """Returns the cause (of `CAUSES`) by which reservations may have moved since the stamp `before`; empty: none."""
        if self.windows != before.windows:
            return WINDOW
        if self.policy is not before.policy and self.policy != before.policy:
            return POLICY
        if self.nodes != before.nodes:
            return NODES_LOST
        return MORE_WALLTIME if self.losses != before.losses else ""


def cause_of(reason: str) -> str:
    """Returns the cause (of `CAUSES`) of a lost reservation whose allocation a gate now keeps waiting with this reason.

    `OwnerChange` for a hold or delay, `PolicyChange` for a closed vcluster, `Maintenance` for reserved nodes, `PowerBudget` for power,
    and `QuotaGone` for every other reason.
    """
    return _OF_REASON.get(reason, QUOTA)


def holders_first(
    uids: Sequence[str], order: Sequence[int], given: Mapping[str, float], classes: Sequence[int], *, strict: bool
) -> Sequence[int]:
    """Returns the places of candidates in the order of evaluation: by score, with holders of reservations before newcomers.

    `order` is by score; `given` says when each reservation was given, equal times in their order; `classes` is the preemption class
    of every place. A holder goes before the first candidate that holds none and is of its class or a lower one, at the latest where
    its score puts it; in strict order of submission (`strict`) holders go first, whatever their class.
    """
    ranks = {uid: rank for rank, uid in enumerate(sorted(given, key=given.__getitem__))}
    holders = {place: ranks[uid] for place, uid in enumerate(uids) if uid in ranks}
    if not holders:
        return order
    waiting = sorted(holders, key=lambda place: (-classes[place], holders[place]))
    if strict:
        return [*waiting, *(place for place in order if place not in holders)]
    found: list[int] = []
    done = 0
    for at, place in enumerate(order):
        while done < len(waiting) and classes[waiting[done]] >= classes[place]:
            found.append(waiting[done])
            done += 1
        if place not in holders:
            found.append(place)
        if done == len(waiting):
            found.extend(place for place in order[at + 1 :] if place not in holders)
            break
    return found
