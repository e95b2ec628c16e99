"""The pending allocations of one term: what waits in which vcluster, why, with which score, and what of it is being claimed.

The scheduling loop, the reconciler of allocations, forecasts, revocations and queries share this one object. The reconciler enqueues
and withdraws candidates; the loop records what its cycles decided; all others read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from lattice.daemon.clock import Clock
from lattice.scheduling.model.outcomes import Score, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import Move
from lattice.units import parse_time
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.write_budget import WriteBudget

EXPLAIN_AGAIN_SECONDS = 30.0
OF_NODES = frozenset({"WaitingForNodes", "NodesUnavailable", "BehindHigherPriority", "NeverFits"})
"""Reasons that may be untrue until nodes have been heard; they are not shown in the first moments of a term."""


class CandidateSource(Protocol):
    """Makes candidates from allocations; the reconciler `Allocations` is the implementation."""

    def candidate(self, allocation: Allocation) -> Candidate:
        """Makes the candidate of an allocation as cycles read it; changes nothing."""
        ...


class ReconcileQueue(Protocol):
    """The work queue of the reconciler of allocations."""

    def add(self, key: str, after: float = 0.0, *, late: bool = False) -> None:
        """Enqueues an allocation, by uid, to be reconciled in `after` seconds; with `late` only once nothing more urgent is queued."""
        ...


class PendingWork:
    """The candidates of one term by uid and by vcluster, each with the reason and the score that the last cycle found for it.

    `cycle_due` is set whenever a cycle may place more than the last one. `budget` limits status writes that only reword a reason.
    """

    def __init__(
        self, clock: Clock, state: ClusterState, metrics: SchedulerMetrics, cycle_due: asyncio.Event, *, budget: WriteBudget | None = None
    ) -> None:
        self.cycles = 0
        """How many cycles this term has run."""
        self.candidates: dict[str, Candidate] = {}
        self.claiming: set[str] = set()
        """Uids of allocations whose claim the ledger has not answered yet."""
        self.reasons: dict[str, Waiting] = {}
        self.scores: dict[str, Score] = {}
        """Scores by uid: of pending work, and of placed work until its status shows the placement (`clear_placed`)."""
        self.moves: dict[str, Move] = {}
        """The last time that a candidate's backfill reservation was moved later or dropped, by uid."""
        self.awaiting_nodes = False
        """True in the first moments of a term, while nodes are still being heard: waiting for nodes is no reason to show then."""
        self.budget = budget or WriteBudget(clock)
        """Limits the status writes that only inform."""
        self._clock = clock
        self._state = state
        self._metrics = metrics
        self._cycle_due = cycle_due
        self._queues: dict[str, dict[str, Candidate]] = {}
        self._shown: dict[str, tuple[Waiting, float]] = {}
        self._reserved: dict[str, float] = {}
        """When each candidate was given its backfill reservation, as its status shows it, by uid."""

    # -- what waits -----------------------------------------------------------------------------------

    def enqueue(self, candidate: Candidate, reserved_at: str | None = None) -> None:
        """Adds or updates a candidate, and sets `cycle_due`; nothing where it is unchanged, or its claim is under way.

        `reserved_at` (RFC 3339) is when an earlier scheduler gave it a backfill reservation: a new candidate keeps that rank.
        """
        known = self.candidates.get(candidate.uid)
        if candidate.uid in self.claiming or known == candidate:
            return
        if known is None:
            if reserved_at:
                self._state.inherit(candidate.vcluster, candidate.uid, parse_time(reserved_at))
        elif known.vcluster != candidate.vcluster:
            self._leave_queue(known)
        self.candidates[candidate.uid] = candidate
        queue = self._queues.setdefault(candidate.vcluster, {})
        queue[candidate.uid] = candidate
        self._metrics.queue_depth.labels(candidate.vcluster).set(len(queue))
        self._cycle_due.set()

    def withdraw(self, uid: str) -> None:
        """Removes an allocation, by uid, from the queues, with its reason and, if it waits, its score; an unknown uid changes nothing."""
        if self._state.quota_usage is not None:
            self._state.quota_usage.drop(uid)
        candidate = self.candidates.pop(uid, None)
        if candidate is not None:
            self._leave_queue(candidate)
            self.scores.pop(uid, None)
        self.reasons.pop(uid, None)
        self._shown.pop(uid, None)
        self._reserved.pop(uid, None)
        self.moves.pop(uid, None)

    def clear_placed(self, uid: str) -> None:
        """Removes candidate, reason and score, also that kept of placed work, of an allocation, by uid; called when its status shows its
        placement, or its object is gone.
        """
        self.withdraw(uid)
        self.scores.pop(uid, None)

    def queue(self, vcluster: str) -> Iterable[Candidate]:
        """Returns the candidates of a vcluster in the order in which this process first saw them."""
        return self._queues.get(vcluster, {}).values()

    def vclusters(self) -> list[str]:
        """Returns the vclusters in which something waits."""
        return [name for name, queue in self._queues.items() if queue]

    def known_vclusters(self) -> list[str]:
        """Returns the vclusters in which something waits or has waited since the last cycle."""
        return list(self._queues)

    def remove_empty_queues(self) -> list[str]:
        """Drops the queues in which nothing waits any more; returns the names of their vclusters."""
        empty = [name for name, queue in self._queues.items() if not queue]
        for name in empty:
            del self._queues[name]
        return empty

    def _leave_queue(self, candidate: Candidate) -> None:
        """Takes a candidate out of the queue of its vcluster, and shows the new length in the metric."""
        queue = self._queues.get(candidate.vcluster)
        if queue is not None:
            queue.pop(candidate.uid, None)
            self._metrics.queue_depth.labels(candidate.vcluster).set(len(queue))

    # -- why it waits ---------------------------------------------------------------------------------

    def shown(self, uid: str) -> Waiting | None:
        """Returns the reason that the status of an allocation, by uid, is to show; it may lag behind `reasons`. None: there is none yet."""
        shown = self._shown.get(uid)
        return shown[0] if shown is not None else None

    def record_reason(self, waiting: Waiting) -> bool:
        """Keeps the reason that a cycle found for a candidate; returns True where the status of the allocation is to be written for that.

        A new reason is always written, a new reservation only within the write budget, a new wording only so, too, and not within 30 s of
        the last reason or wording. While `awaiting_nodes` is set, reasons of `OF_NODES` are neither kept nor written.
        """
        uid, now = waiting.candidate.uid, self._clock.monotonic()
        if waiting.score is not None:
            self.scores[uid] = waiting.score
        if self.awaiting_nodes and waiting.reason in OF_NODES:
            return False
        self.reasons[uid] = waiting
        shown, since = self._shown.get(uid, (None, 0.0))
        reworded = shown is not None and shown.message != waiting.message and now - since > EXPLAIN_AGAIN_SECONDS
        if shown is None or shown.reason != waiting.reason or (reworded and self.budget.try_spend()):
            self._shown[uid] = (waiting, now)
            self._note_reservation(waiting.candidate)
            return True
        if self._reserved.get(uid) != self._state.reserved_since(waiting.candidate.vcluster, uid) and self.budget.try_spend():
            self._note_reservation(waiting.candidate)
            return True
        return False

    def _note_reservation(self, candidate: Candidate) -> None:
        """Notes that the next write of the status shows since when the candidate has its backfill reservation."""
        given = self._state.reserved_since(candidate.vcluster, candidate.uid)
        if given is None:
            self._reserved.pop(candidate.uid, None)
        else:
            self._reserved[candidate.uid] = given
