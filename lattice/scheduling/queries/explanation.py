"""Explains why an allocation waits: its place in the queue, its blockers in order, and its expected start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from lattice.errors import NotFound
from lattice.quota.gates import RUNTIME
from lattice.quota.gates import WAITING as QUOTA_SHARE
from lattice.scheduling.cluster.node_cache import indices_of
from lattice.scheduling.cycle.gates import counted
from lattice.scheduling.forecast.forecaster import POWER_BUDGET
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.preemption.victims import NoVictims, Victims
from lattice.scheduling.queries.answers import WHY_SCHEMA, Blocker, Change, Preemption, Victim, Whose, Why
from lattice.scheduling.queries.context import (
    ABOUT_NODES,
    QueryContext,
    census,
    eligible_nodes,
    expected_start,
    in_order,
    named,
    position_of,
    ranking,
    reservation_of,
    startable,
    subject,
    time_text,
    whose,
)
from lattice.scheduling.queries.readers import Reader

MOST_NAMED: Final = 12
"""Most obstacles of one kind that are listed one by one; the rest is summed up."""
NOT_YET: Final = ("NotYetEvaluated", "no scheduling cycle has looked at it yet")
QUOTA: Final = "WaitingForQuotaHeadroom"


def why(context: QueryContext, uid: str, reader: Reader, *, changes: Sequence[Change] = (), preemption: Preemption | None = None) -> Why:
    """Returns the scheduler's part of the answer to `why` for the pending allocation `uid`; raises NotFound where it is not pending.

    The caller has checked that the reader may read it. `changes`, `preemption`: what the planner found for it, to be included.
    """
    candidate = context.candidates.get(uid)
    if candidate is None:
        raise not_pending()
    waiting = context.waiting.get(uid)
    reason, message = (waiting.reason, waiting.message) if waiting is not None else NOT_YET
    queue = in_order(context, candidate.vcluster)
    score = waiting.score if waiting is not None else None
    return Why(
        schema=WHY_SCHEMA,
        allocation=subject(context, candidate),
        reason=reason,
        message=message,
        at=time_text(context.now),
        queue=position_of(startable(context, queue), candidate),
        score=ranking(context, score, candidate.vcluster),
        nodes=census(context, candidate),
        blockers=blockers(context, candidate, reason, queue, reader),
        expected_start=expected_start(context, uid, waiting.latest if waiting is not None else None),
        reservation=reservation_of(context, candidate),
        changes=list(changes),
        preemption=preemption,
    )


def not_pending() -> NotFound:
    """Returns the error for an allocation that is not in any queue of the scheduler."""
    return NotFound("the scheduler does not have it in a queue: it runs, has ended, or was submitted this moment", reason="NotPending")


def blockers(context: QueryContext, candidate: Candidate, reason: str, queue: Sequence[Candidate], reader: Reader) -> list[Blocker]:
    """Returns the obstacles before a candidate that waits for `reason`, in the order in which they would have to go.

    For a lack of nodes: earlier work of `queue` (in order), work on nodes that fit, reservation windows, unusable nodes. For a limit, a
    quota share or the power budget: the work that counts against it, by its end. Empty for any other reason. Names are given only where
    the reader may know them; other work is summed up by owner.
    """
    if reason == QUOTA:
        counts = counted(context.state, candidate)
        return _holders(context, ((holder, len(holder.nodes)) for holder in context.holders.values() if counts(holder)), reader)
    if reason == POWER_BUDGET:
        return _holders(context, ((holder, len(holder.nodes)) for holder in context.holders.values()), reader)
    if reason == QUOTA_SHARE:
        return _holders(context, _sharing(context, candidate), reader)
    if reason not in ABOUT_NODES:
        return []
    fitting = eligible_nodes(context, candidate)
    others = (holder for holder in context.holders.values() if holder.uid != candidate.uid)  # not an attempt of its own that ends
    held = ((holder, len(fitting.intersection(holder.nodes))) for holder in others)
    return [
        *_ahead(context, candidate, queue, reader),
        *_holders(context, ((holder, count) for holder, count in held if count), reader),
        *_reserved(context, candidate, fitting, reader),
        *_unavailable(context, fitting),
    ]


def _sharing(context: QueryContext, candidate: Candidate) -> Iterator[tuple[NodeHolder, int]]:
    """Yields (holder, nodes) of the work that uses the quota share which the tree denies to a candidate: work of the group that blocks, or
    of all groups that divide with it.

    Yields nothing where the tree denies nothing.
    """
    quota_usage = context.state.quota_usage
    if quota_usage is None:
        return
    blocked = quota_usage.forest.admits(candidate.quota, quota_usage.asked(candidate), non_preemptible=candidate.non_preemptible)
    if blocked is None:
        return
    forest = quota_usage.forest
    path = forest.path(blocked.gate.quota)
    above = path[0] if blocked.gate.by != RUNTIME else path[1] if len(path) > 1 else ""
    tree, inside = forest.tree_of(candidate.quota), dict[str, bool]()
    for holder in context.holders.values():
        leaf = holder.quota
        if leaf not in inside:
            inside[leaf] = forest.tree_of(leaf) == tree and (not above or above in forest.path(leaf))
        if inside[leaf]:
            yield holder, len(holder.nodes)


@dataclass
class _Sum:
    """The counts of several obstacles of one kind and owner, which the reader may not see one by one."""

    kind: Literal["Holder", "Ahead"]
    whose: Whose
    nodes: int = 0
    allocations: int = 0
    since: float | None = None
    open_ended: bool = False
    ends: list[float] = field(default_factory=list)

    def add_nodes(self, nodes: int, since: float | None = None, until: float | None = None) -> None:
        """Adds one obstacle of so many nodes, with its begin and its end in seconds since the epoch; `since` None: not shown, `until` None:
        nobody knows its end.
        """
        self.nodes += nodes
        self.allocations += 1
        if since is not None:
            self.since = since if self.since is None else min(self.since, since)
        if until is None:
            self.open_ended = True
        else:
            self.ends.append(until)

    def blocker(self) -> Blocker:
        """Returns the sums as one obstacle; its end is left out where the end of one of them is unknown."""
        return Blocker(
            kind=self.kind,
            whose=self.whose,
            nodes=self.nodes,
            allocations=self.allocations,
            since=time_text(self.since),
            until=time_text(max(self.ends)) if self.ends and not self.open_ended else None,
            first=time_text(min(self.ends)) if self.ends and self.allocations > 1 else None,
        )


def _holders(context: QueryContext, held: Iterable[tuple[NodeHolder, int]], reader: Reader) -> list[Blocker]:
    """Returns obstacles for (holder, nodes), the earliest end first: one by one the first 12 that the reader may name, then all others
    summed up by owner.
    """
    ordered = sorted(held, key=lambda pair: (_end(pair[0]), pair[0].key))
    shown: list[Blocker] = []
    sums: dict[Whose, _Sum] = {}
    for holder, count in ordered:
        work = named(context, holder, reader)
        owner = whose(holder, reader)
        if work is not None and len(shown) < MOST_NAMED:
            since, until = time_text(holder.since), time_text(holder.end)
            shown.append(Blocker(kind="Holder", whose=owner, nodes=count, allocations=1, work=work, since=since, until=until))
        else:
            sums.setdefault(owner, _Sum("Holder", owner)).add_nodes(count, holder.since, holder.end)
    return [*shown, *(entry.blocker() for entry in sums.values())]


def _ahead(context: QueryContext, candidate: Candidate, queue: Sequence[Candidate], reader: Reader) -> list[Blocker]:
    """Returns obstacles for the work before the candidate that waits for nodes too, or that no cycle has judged yet: one by one where it is
    12 at most and the reader may name all of it.

    Else all of it is summed up by owner, also what he may name.
    """
    before: list[Candidate] = []
    for one in queue:
        if one.uid == candidate.uid:
            break
        if _wants_nodes(context.waiting.get(one.uid)):
            before.append(one)
    if len(before) <= MOST_NAMED and all(named(context, one, reader) for one in before):
        return [
            Blocker(kind="Ahead", whose=whose(one, reader), nodes=one.minimum, allocations=1, work=named(context, one, reader),
                    since=time_text(one.submitted))
            for one in before
        ]  # fmt: skip
    sums: dict[Whose, _Sum] = {}
    for one in before:
        owner = whose(one, reader)
        sums.setdefault(owner, _Sum("Ahead", owner)).add_nodes(one.minimum, one.submitted)
    return [entry.blocker() for entry in sums.values()]


def _wants_nodes(waiting: Waiting | None) -> bool:
    """Tells whether work waits for nodes by its last outcome; True where no cycle has evaluated it (None)."""
    return waiting is None or waiting.reason in ABOUT_NODES


def _reserved(context: QueryContext, candidate: Candidate, fitting: frozenset[int], reader: Reader) -> Iterator[Blocker]:
    """Yields the windows of other Reservations on nodes that fit, which begin before the candidate could end if it was placed now."""
    longest = candidate.walltime + candidate.grace + context.state.start_allowance if candidate.walltime is not None else float("inf")
    end = context.now + longest
    for window in context.state.windows:
        if window.end <= context.now or window.start >= end or window.name == candidate.reservation:
            continue
        nodes = len(fitting.intersection(indices_of(window.nodes)))
        if nodes:
            name = window.name if is_known(window, reader, candidate) else ""
            start, until = time_text(window.start), time_text(window.end)
            yield Blocker(kind="Reservation", nodes=nodes, name=name, since=start, until=until)


def sacrifice(context: QueryContext, found: Victims | NoVictims, reader: Reader) -> Preemption:
    """Returns the result of a search for victims in the document's form, with names only where the reader may know them."""
    if isinstance(found, NoVictims):
        return Preemption(reason=found.reason, message=found.message)
    victims = [Victim(nodes=one.freed, whose=whose(one.holder, reader), work=named(context, one.holder, reader)) for one in found.victims]
    return Preemption(victims=victims, nodes_freed=found.nodes_freed, cost=round(found.cost, 3), value=round(found.value, 3))


def is_known(window: ReservationWindow, reader: Reader, candidate: Candidate | None = None) -> bool:
    """Tells whether the reader may know the name of a window.

    He may if he may know everything, if the window is a maintenance, is for no users or tenants alone, or names him; or if it admits the
    candidate (None: none).
    """
    if reader.everything or window.maintenance or not (window.users or window.tenants):
        return True
    return reader.user in window.users or (candidate is not None and window.admits(candidate))


def _unavailable(context: QueryContext, fitting: frozenset[int]) -> list[Blocker]:
    """Returns obstacles for the nodes that fit and cannot be used, one for each state."""
    counts: dict[str, int] = {}
    for index in fitting:
        facts = context.nodes[index]
        if not facts.usable:
            counts[facts.state] = counts.get(facts.state, 0) + 1
    return [Blocker(kind="Unavailable", nodes=count, name=state) for state, count in sorted(counts.items())]


def _end(holder: NodeHolder) -> float:
    """Returns when the nodes of a holder are free at the latest, seconds since the epoch; infinite where nobody knows."""
    return holder.end if holder.end is not None else float("inf")
