"""Plans allocations that are not submitted: runs production cycles with them, undoes these, and makes the answers of `plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from lattice.models.reasons import never_starts
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import asks_for_more, extended
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.answers import (
    LATER,
    NEVER,
    NOW,
    Change,
    ExpectedStart,
    Group,
    Placement,
    Planned,
    Preemption,
    Quota,
    Use,
    Verdict,
    Work,
)
from lattice.scheduling.queries.context import (
    ABOUT_NODES,
    QueryContext,
    census,
    expected_start,
    in_order,
    position_of,
    ranking,
    startable,
    subject,
    time_text,
)
from lattice.scheduling.queries.explanation import blockers
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.uses import NOTHING
from lattice.units import fold_nodes

MOST_INFLUENTIAL: Final = 1000
"""Most pending allocations, the first in order, that a what-if considers beside the new ones."""


def plans_for(
    context: QueryContext,
    asked: Sequence[Candidate],
    outcomes: Mapping[str, Outcome],
    reader: Reader,
    *,
    changes: Mapping[str, Sequence[Change]] | None = None,
    preemptions: Mapping[str, Preemption] | None = None,
) -> list[Planned]:
    """Returns the answer of `plan` for each candidate in this order, each as if those before it were submitted too.

    `outcomes`: those of `planned_outcomes` by uid. `changes` and `preemptions`: by uid, what was found for those that wait (None: none).
    """
    used_nodes: dict[str, int] = {}
    used_allocations: dict[str, int] = {}
    queues: dict[str, list[Candidate]] = {}
    plans = []
    for candidate in asked:
        outcome = outcomes.get(candidate.uid) or Waiting(candidate, "NotYetEvaluated", "the planner gave no outcome for it")
        tenant, vcluster = candidate.tenant, candidate.vcluster
        before = used_nodes.get(tenant, 0), used_allocations.get(tenant, 0)
        taken = len(outcome.nodes) if isinstance(outcome, Placed) else candidate.minimum
        quota = None
        if may_ever(outcome):
            used_nodes[tenant], used_allocations[tenant] = before[0] + taken, before[1] + 1
            quota = _quota(context, tenant, before, taken)
        match outcome:
            case Placed():
                plans.append(_now(context, outcome, quota))
            case Waiting():
                if vcluster not in queues:
                    queues[vcluster] = in_order(context, vcluster, list(outcomes.values()))
                found, victims = (changes or {}).get(candidate.uid, ()), (preemptions or {}).get(candidate.uid)
                plans.append(_waits(context, outcome, quota, queues[vcluster], reader, found, victims))
    return plans


def planned_outcomes(context: QueryContext, asked: Sequence[Candidate]) -> list[Outcome]:
    """Returns all outcomes of the cycles of these candidates' vclusters as if they were submitted now; the cycles are undone.

    Of other pending work only what may matter is planned with them (`influential`). Candidates that asked for a range have the nodes
    that they would get beyond their least number.
    """
    mine = {candidate.uid for candidate in asked}
    found: list[Outcome] = []
    with undone(context.state) as state:
        for vcluster in dict.fromkeys(candidate.vcluster for candidate in asked):
            queue = [one for one in influential(context, vcluster) if one.uid not in mine]
            new = [one for one in asked if one.vcluster == vcluster]
            found += decide(state, vcluster, [*queue, *new], context.now)
        _extend(context, state, found)
    return found


def _extend(context: QueryContext, state: ClusterState, outcomes: Sequence[Outcome]) -> None:
    """Gives placed candidates that asked for a range the nodes that they would get beyond their least number: changes these outcomes in
    place, and claims the nodes in `state`.

    Sets there also in which vclusters work would still wait for nodes.
    """
    ranges = [one for one in outcomes if isinstance(one, Placed) and asks_for_more(one)]
    if not ranges:
        return
    said: dict[str, Waiting] = {**context.waiting, **{one.candidate.uid: one for one in outcomes if isinstance(one, Waiting)}}
    pending = {**context.candidates, **{one.candidate.uid: one.candidate for one in outcomes}}
    left = ((said.get(uid), one.vcluster) for uid, one in pending.items() if uid not in state.holders)
    state.set_waiting(vcluster for why, vcluster in left if why is None or why.reason in ABOUT_NODES)
    more = {one.candidate.uid: one.nodes for one in extended(state, [one.candidate for one in ranges], context.now)}
    for one in ranges:
        one.nodes = more.get(one.candidate.uid, one.nodes)


def influential(context: QueryContext, vcluster: str) -> list[Candidate]:
    """Returns the pending work of a vcluster, 1,000 at most in order of evaluation, that can change what a cycle decides about other work
    now.

    That is work that holds a reservation or that no cycle has evaluated yet, and of each need without any of these before it the first that
    waits for nodes. The last cycle left all other work waiting without a reservation, so it delays nobody, and what-ifs cost little.
    """
    holding, first = context.state.backfill_reservations.get(vcluster, {}), set[Need]()
    kept = []
    for one in in_order(context, vcluster):
        waiting = context.waiting.get(one.uid)
        leads = waiting is not None and waiting.reason in ABOUT_NODES and one.need not in first
        if waiting is None or one.uid in holding or leads:
            kept.append(one)
            first.add(one.need)
    return kept[:MOST_INFLUENTIAL]


@contextmanager
def undone(state: ClusterState) -> Iterator[ClusterState]:
    """Yields the cluster state for cycles of a what-if, and at the end of the block undoes what these did.

    It restores holders, reservations, heirs, moves, node lists, waiting vclusters and quota requests. What cycles keep to be quicker next
    time (pending queues, `last_reservations`, `unschedulable`) is not restored.
    """
    holders, reservations, lists = dict(state.holders), dict(state.backfill_reservations), dict(state.lists)
    heirs, moves = {name: dict(some) for name, some in state.heirs.items()}, dict(state.moves)
    waiting = state.waiting
    asking = state.quota_usage.asking() if state.quota_usage is not None else {}
    try:
        yield state
    finally:
        for uid in [uid for uid, holder in state.holders.items() if holders.get(uid) is not holder]:
            state.drop_holder(uid)
            if uid in holders:  # an earlier attempt that is still releasing
                state.put_holder(holders[uid])
        for vcluster in [name for name in state.lists if state.lists[name] != lists.get(name)]:
            state.set_lists(vcluster, lists.get(vcluster, frozenset()))
        state.undo_cycles(reservations, heirs, moves, waiting)
        if state.quota_usage is not None:
            state.quota_usage.restore(asking)


def may_ever(outcome: Outcome) -> bool:
    """Tells whether an outcome is a placement, or a wait that may end by itself; False where the work never starts as things are."""
    return isinstance(outcome, Placed) or not never_starts(outcome.reason, outcome.message)


def _now(context: QueryContext, outcome: Placed, quota: Quota | None) -> Planned:
    """Returns the answer of `plan` for a candidate that would start now."""
    candidate = outcome.candidate
    now = time_text(context.now)
    return Planned(
        allocation=planned_work(context, candidate),
        verdict=NOW,
        score=ranking(context, outcome.score, candidate.vcluster),
        nodes=census(context, candidate),
        placement=placement(context, outcome),
        expected_start=ExpectedStart(p50=now, p90=now),
        quota=quota,
    )


def _waits(
    context: QueryContext, outcome: Waiting, quota: Quota | None, queue: Sequence[Candidate], reader: Reader,
    changes: Sequence[Change], preemption: Preemption | None,
) -> Planned:  # fmt: skip
    """Returns the answer of `plan` for a candidate that would wait: later, with its place in the queue and its expected start, or never."""
    candidate = outcome.candidate
    verdict: Verdict = LATER if may_ever(outcome) else NEVER
    return Planned(
        allocation=planned_work(context, candidate),
        verdict=verdict,
        reason=outcome.reason,
        message=outcome.message,
        queue=position_of(startable(context, queue), candidate) if verdict == LATER else None,
        score=ranking(context, outcome.score, candidate.vcluster),
        nodes=census(context, candidate),
        expected_start=expected_start(context, candidate.uid, outcome.latest) if verdict == LATER else None,
        blockers=blockers(context, candidate, outcome.reason, queue, reader),
        changes=list(changes),
        preemption=preemption,
        quota=quota,
    )


def planned_work(context: QueryContext, candidate: Candidate) -> Work:
    """Returns the name of an allocation that is planned; it has neither number nor uid yet."""
    work = subject(context, candidate)
    return Work(namespace=work.namespace, name=work.name, user=work.user, job=work.job)


def placement(context: QueryContext, outcome: Placed) -> Placement:
    """Returns the nodes of a placed candidate for the document: by group, the largest share first, with fingerprints and borrowed
    nodes counted.
    """
    facts = [context.nodes[index] for index in outcome.nodes]
    groups: dict[str, int] = {}
    for node in facts:
        groups[node.group] = groups.get(node.group, 0) + 1
    home = outcome.candidate.vcluster
    return Placement(
        nodes=fold_nodes([node.name for node in facts]),
        count=len(facts),
        least=outcome.candidate.minimum if outcome.candidate.maximum > outcome.candidate.minimum else None,
        most=outcome.candidate.maximum if outcome.candidate.maximum > outcome.candidate.minimum else None,
        groups=[Group(name=name, nodes=count) for name, count in sorted(groups.items(), key=lambda pair: (-pair[1], pair[0]))],
        fingerprints=len({node.fingerprint for node in facts if node.fingerprint}),
        borrowed=sum(node.home not in ("", home) for node in facts),
        backfilled=outcome.backfilled,
    )


def _quota(context: QueryContext, tenant: str, before: tuple[int, int], taken: int) -> Quota | None:
    """Returns the use of the tenant's hard limits before and after the candidate starts, unconfirmed claims included as the gate counts;
    None: the tenant has no account.

    `before`: nodes and allocations of earlier candidates of the same plan. `taken`: the candidate's nodes.
    """
    account = context.state.accounts.get(tenant)
    if account is None:
        return None
    claimed = context.state.uses.claimed.get(tenant, NOTHING)
    nodes, allocations = account.used_nodes + claimed.nodes + before[0], account.used_allocations + claimed.running + before[1]
    return Quota(
        tenant=tenant,
        nodes=Use(used=nodes, after=nodes + taken, limit=account.max_nodes),
        allocations=Use(used=allocations, after=allocations + 1, limit=account.max_allocations),
    )
