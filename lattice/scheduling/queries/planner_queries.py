"""Computes the long answers, `why`, `plan` and `queue`, on a cluster state of their own, so that no cycle waits for them.

The scheduler's loop takes a `QuerySnapshot` of itself in a few milliseconds; nothing in it changes afterwards. `PlannerQueries` makes a
cluster state of it and asks the planner there, in whatever process it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.outcomes import Outcome, Score, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.preemption.scope import preemption_scope
from lattice.scheduling.preemption.victims import PreemptionLimits, preemption
from lattice.scheduling.queries import explanation, queueing
from lattice.scheduling.queries.answers import Change, Planned, Preemption, Queues, Why
from lattice.scheduling.queries.changes import changes
from lattice.scheduling.queries.context import ABOUT_NODES, Expected, QueryContext
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.what_if import may_ever, planned_outcomes, plans_for
from lattice.scheduling.recording.record import Snapshot, rebuild
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import Move

MOST_CHANGED: Final = 4
"""Most allocations of one `plan` for which changes of the request and victims are searched."""


@dataclass(frozen=True)
class QuerySnapshot:
    """The scheduler's state at one moment with the facts that answers need beside it; later changes of the scheduler do not show in it."""

    moment: Snapshot
    """The nodes, work and limits, taken by `lattice.scheduling.recording.record.take_query_snapshot`."""
    waiting: Mapping[str, Waiting]
    """The outcome of pending work in its last cycle, by uid."""
    expected: Mapping[str, Expected]
    """The last forecast of pending work, by uid."""
    open_to: Mapping[str, Collection[str]]
    """By tenant: the vclusters that start its work."""
    bursting: Mapping[str, int]
    """How far tenants exceed their fair share, of those that do: 1 within their burst allowance, 2 beyond it."""
    limits: PreemptionLimits
    number: Callable[[str], int | None] = lambda _uid: None
    """Returns the number that people type for a uid, None without one; may be called from any thread."""
    moves: Mapping[str, Move] = field(default_factory=dict)
    """The last move of a pending allocation's backfill reservation to a later time, by uid."""

    def context(self, state: ClusterState) -> QueryContext:
        """Returns the context of answers for a cluster state that was rebuilt from this snapshot."""
        moment = self.moment
        return QueryContext(
            now=moment.now,
            state=state,
            candidates={candidate.uid: candidate for candidate in moment.candidates},
            waiting=self.waiting,
            holders=moment.holders,
            expected=self.expected,
            moves=self.moves,
            number=self.number,
        )


def queues(snapshot: QuerySnapshot, vclusters: Sequence[str], reader: Reader, limit: int, only: str) -> Queues:
    """Returns the document of `queue` for these vclusters, or for `only`; raises NotFound where `only` is none of them.

    `only` empty: all of them. `limit`: most entries shown of each queue.
    """
    moment = snapshot.moment
    shown = ClusterState(NodeCache(dict(moment.nodes)), moment.accounts, dict(moment.policies), windows=moment.windows)  # nobody
    # plans with it
    shown.resume(moment.backfill_reservations, moment.heirs)
    return queueing.queues(snapshot.context(shown), vclusters, reader, limit, only=only)


class PlannerQueries:
    """Answers `why` and `plan` for one reader from one snapshot, on a cluster state rebuilt from it."""

    def __init__(self, snapshot: QuerySnapshot, reader: Reader) -> None:
        self._snapshot = snapshot
        self._reader = reader
        self.context = snapshot.context(rebuild(snapshot.moment))

    def why(self, uid: str) -> Why:
        """Returns the document of `why` for the allocation `uid`; raises NotFound where it is not pending.

        Unless no cycle has evaluated it yet, with changes of its request and, where it waits for nodes, victims or why there are none.
        """
        context = self.context
        candidate, waiting = context.candidates.get(uid), context.waiting.get(uid)
        if candidate is None or waiting is None:
            return explanation.why(context, uid, self._reader)
        found, victims = self._changes(candidate), self._victims(waiting)
        return explanation.why(context, uid, self._reader, changes=found, preemption=victims)

    def planned_outcomes(self, asked: Sequence[Candidate]) -> list[Outcome]:
        """Returns all outcomes of the cycles of these candidates' vclusters as if they were submitted now, those of the other pending work
        that may matter included; undoes the cycles.
        """
        return planned_outcomes(self.context, asked)

    def plans_for(self, asked: Sequence[Candidate], outcomes: Sequence[Outcome], supposed: Mapping[str, Expected]) -> list[Planned]:
        """Returns the answer of `plan` for each candidate, in this order, with changes for four of those that wait at most, ones that may
        ever start first, and victims for those of these that may.

        `outcomes`: those of `planned_outcomes`. `supposed`: forecasts for those that wait, by uid, which go before those of the snapshot.
        """
        mine = {candidate.uid for candidate in asked}
        found = {one.candidate.uid: one for one in outcomes if one.candidate.uid in mine}
        waiting = [one for one in found.values() if isinstance(one, Waiting)]
        waiting.sort(key=lambda one: not may_ever(one))
        sought = {one.candidate.uid: self._changes(one.candidate) for one in waiting[:MOST_CHANGED]}
        victims = {one.candidate.uid: self._victims(one) for one in waiting[:MOST_CHANGED] if may_ever(one)}
        chosen = {uid: one for uid, one in victims.items() if one is not None}
        context = replace(self.context, expected={**self.context.expected, **supposed})
        return plans_for(context, asked, found, self._reader, changes=sought, preemptions=chosen)

    def _changes(self, candidate: Candidate) -> Sequence[Change]:
        """Returns the smallest changes of a candidate's request with which it would start now; empty: none was found."""
        context = self.context
        types = {facts.gpu_type for facts in context.nodes.values() if facts.gpu_type}
        queues: dict[str, list[Candidate]] = {}
        for one in context.candidates.values():
            queues.setdefault(one.vcluster, []).append(one)
        return changes(context.state, candidate, context.now, types, self._snapshot.open_to.get(candidate.tenant, ()), queues)

    def _victims(self, waiting: Waiting) -> Preemption | None:
        """Returns the victims whose preemption would start a waiting candidate, or why there are none.

        None: it waits for something other than nodes, so preemption is no answer.
        """
        if waiting.reason not in ABOUT_NODES:
            return None
        candidate, context, snapshot = waiting.candidate, self.context, self._snapshot
        within = preemption_scope(context.state, candidate, context.now)
        eligible = within.eligible()
        holders = [msgspec.structs.replace(holder, burst=snapshot.bursting.get(holder.tenant, 0)) for holder in context.holders.values()]
        score = waiting.score or Score(candidate.preemption_class / 10)
        found = preemption(
            candidate, holders, within.nodes, eligible, within.free(eligible), context.state.policies, context.now,
            score=score.total, limits=snapshot.limits,
        )  # fmt: skip
        return explanation.sacrifice(context, found, self._reader)
