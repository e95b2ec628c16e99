"""The context of which answers are computed: the loop's live state at one moment, and the parts that several answers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lattice.scheduling.cluster.eligibility import admitted_nodes
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Score, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import lenders_for, strategy_of
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.queries.answers import Census, ExpectedStart, Held, Position, Ranking, Whose, Work
from lattice.scheduling.queries.readers import OTHER_TENANTS, YOU, YOUR_TENANT, Reader
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import CAUSES, Move, holders_first
from lattice.units import format_time

ABOUT_NODES: Final = frozenset(
    {"WaitingForNodes", "BehindHigherPriority", "NodesUnavailable", "ReservedNodes", "InsufficientConformance", "WaitingForVictims"}
)
"""Reasons of waiting work that would start if nodes were free."""
IN_NOBODYS_WAY: Final = frozenset({"Held", "NotBefore", "RetryBackOff", "NeverFits", "VClusterClosed", "NotAdmitted", "RecoveryUncertain"})
"""Reasons of waiting work that free nodes would not start now."""
_TERMS: Final = ("priority", "waitTime", "fairShare", "topology", "dataReadiness", "backlog", "energy", "checkpoint", "conformance")
_WHOSE: Final[dict[str, Whose]] = {YOU: "you", YOUR_TENANT: "your tenant", OTHER_TENANTS: "other tenants"}


class Expected(Protocol):
    """A forecast of one start, as answers read it; times in seconds since the epoch, None where none is foreseen."""

    @property
    def p50(self) -> float | None:
        """Returns the time that the start precedes in five of ten cases; None: no start is foreseen."""
        ...

    @property
    def p90(self) -> float | None:
        """Returns the time that the start precedes in nine of ten cases; None: no start is foreseen."""
        ...

    @property
    def reason(self) -> str:
        """Returns the reason why no start is foreseen; empty where one is."""
        ...


@dataclass(frozen=True)
class QueryContext:
    """The scheduler's state at one moment, of which answers are computed; they only read it, and what-ifs undo what they did."""

    now: float
    state: ClusterState
    candidates: Mapping[str, Candidate]
    """Pending work by uid."""
    waiting: Mapping[str, Waiting]
    """The outcome of pending work in its last cycle, by uid; absent: no cycle has evaluated it."""
    holders: Mapping[str, NodeHolder]
    """Work on nodes, by uid."""
    expected: Mapping[str, Expected] = field(default_factory=dict)
    """The last forecast of pending work, by uid."""
    moves: Mapping[str, Move] = field(default_factory=dict)
    """The last move of a pending allocation's backfill reservation to a later time, by uid."""
    number: Callable[[str], int | None] = lambda _uid: None
    """Returns the number that people type for the allocation with this uid; None: it has none."""

    @property
    def nodes(self) -> Mapping[int, NodeFacts]:
        """Returns the facts of each node by index."""
        return self.state.node_cache.nodes

    def policy(self, vcluster: str) -> Policy:
        """Returns the policy of a vcluster, the default one where none is configured."""
        return self.state.policy(vcluster)


def in_order(context: QueryContext, vcluster: str, more: Sequence[Outcome] = ()) -> list[Candidate]:
    """Returns the pending work of a vcluster in the order in which its cycle evaluates it.

    Holders of reservations first, then by score (none counts as 0), submission, name; under a first-come policy by submission. `more`:
    outcomes of a what-if, whose candidates are added with their scores.
    """
    scores = {outcome.candidate.uid: outcome.score.total for outcome in more if outcome.score is not None}
    asked = (outcome.candidate for outcome in more)
    mine = [one for one in (*context.candidates.values(), *asked) if one.vcluster == vcluster]
    if strategy_of(context.policy(vcluster)).first_come:
        return planned(context.state, vcluster, sorted(mine, key=lambda one: (one.submitted, one.key)))
    for one in mine:
        waiting = context.waiting.get(one.uid)
        if waiting is not None and waiting.score is not None:
            scores[one.uid] = waiting.score.total
    return planned(context.state, vcluster, sorted(mine, key=lambda one: (-scores.get(one.uid, 0.0), one.submitted, one.key)))


def planned(state: ClusterState, vcluster: str, queue: list[Candidate]) -> list[Candidate]:
    """Returns a queue, given in order of score, in order of evaluation: holders of reservations before newcomers of their class or lower.

    Under strict order of submission, holders go before all others.
    """
    given = {**state.heirs.get(vcluster, {}), **{uid: one.given for uid, one in state.backfill_reservations.get(vcluster, {}).items()}}
    if not given:
        return queue
    uids, classes = [one.uid for one in queue], [one.preemption_class for one in queue]
    order = holders_first(uids, range(len(queue)), given, classes, strict=strategy_of(state.policy(vcluster)).strict)
    return [queue[place] for place in order]


def unable(context: QueryContext, one: Candidate) -> str:
    """Returns the reason why free nodes would not start a pending allocation now (one of `IN_NOBODYS_WAY`); empty: they would."""
    if one.held:
        return "Held"
    if one.not_before > context.now:
        return "NotBefore"
    said = context.waiting.get(one.uid)
    return said.reason if said is not None and said.reason in IN_NOBODYS_WAY else ""


def startable(context: QueryContext, queue: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates of a queue, in order, for which `unable` gives no reason: those that wait for nodes, a quota, a limit or a
    budget, or that no cycle has evaluated.
    """
    return [one for one in queue if not unable(context, one)]


def position_of(queue: Sequence[Candidate], candidate: Candidate) -> Position | None:
    """Returns the candidate's place in `queue`, counted from 1, and the length of the queue; None: it is not in the queue."""
    place = next((at for at, one in enumerate(queue, 1) if one.uid == candidate.uid), None)
    return Position(vcluster=candidate.vcluster, position=place, of=len(queue)) if place is not None else None


def subject(context: QueryContext, candidate: Candidate | NodeHolder) -> Work:
    """Returns the allocation that the question is about, by name, number and owner; the caller has checked that the reader may read it."""
    return _work(context, candidate)


def named(context: QueryContext, work: Candidate | NodeHolder, reader: Reader) -> Work | None:
    """Returns an allocation by name, number and owner; None where the reader may not know it."""
    return _work(context, work) if reader.may_name(work.user, work.key) else None


def whose(work: Candidate | NodeHolder, reader: Reader) -> Whose:
    """Returns whose an allocation is to the reader: "you", "your tenant" or "other tenants"."""
    return _WHOSE[reader.whose(work.user, work.key)]


def _work(context: QueryContext, work: Candidate | NodeHolder) -> Work:
    """Returns an allocation by name, number and owner, whoever reads the answer."""
    namespace, _, name = work.key.rpartition("/")
    return Work(namespace=namespace, name=name, number=context.number(work.uid), uid=work.uid, user=work.user, job=work.name)


def ranking(context: QueryContext, score: Score | None, vcluster: str) -> Ranking | None:
    """Returns a score with its terms and the vcluster's weights, as the document shows it; None: it was not scored."""
    if score is None:
        return None
    weights = context.policy(vcluster).weights.normalised()
    given = (
        weights.priority, weights.wait_time, weights.fair_share, weights.topology, weights.data_readiness, weights.backlog,
        weights.energy, weights.checkpoint, weights.conformance,
    )  # fmt: skip
    return Ranking(
        total=round(score.total, 4),
        multiplier=round(score.multiplier, 4),
        terms={f"f{at}": round(value, 4) for at, value in enumerate(score.terms, 1)},
        weights={name: round(weight, 4) for name, weight in zip(_TERMS, given, strict=True)} if score.terms else {},
    )


def expected_start(context: QueryContext, uid: str, latest: float | None = None) -> ExpectedStart | None:
    """Returns the forecast of an allocation's start, else `latest` of its reservation, in the document's form; None: neither is known."""
    found = context.expected.get(uid)
    if found is not None:
        return ExpectedStart(p50=time_text(found.p50), p90=time_text(found.p90), reason=found.reason)
    if latest is not None:
        return ExpectedStart(p90=time_text(latest), reason="by its reservation; not forecast yet")
    return None


def reservation_of(context: QueryContext, candidate: Candidate) -> Held | None:
    """Returns the backfill reservation that a candidate holds and its last move to a later time.

    None: it holds none, is to be given none anew, and no move is known.
    """
    uid, state = candidate.uid, context.state
    reservation, given = state.backfill_reservations.get(candidate.vcluster, {}).get(uid), state.reserved_since(candidate.vcluster, uid)
    move = context.moves.get(uid)
    if given is None and move is None:
        return None
    return Held(
        given=time_text(given),
        start=time_text(None if reservation is None else reservation.start),
        moved_at=time_text(None if move is None else move.at),
        moved_from=time_text(None if move is None else move.before),
        moved_to=time_text(None if move is None else move.after),
        cause="" if move is None else move.cause,
        because="" if move is None else CAUSES[move.cause],
    )


def census(context: QueryContext, candidate: Candidate) -> Census:
    """Returns how many nodes a candidate needs, and how many fit it, at home or of vclusters that lend to it: all, usable, free."""
    node_cache, wanted = context.state.node_cache, candidate.minimum
    if candidate.need.lists <= node_cache.masks:
        homes = _homes(context, candidate)
        buckets = [bucket for bucket in node_cache.table.admitted(candidate.need) if bucket.key.home in homes]
        exist, ready = sum(len(bucket.members) for bucket in buckets), sum(bucket.usable for bucket in buckets)
        return Census(needed=wanted, eligible=exist, usable=ready, free=sum(len(bucket.free) for bucket in buckets))
    fitting = eligible_nodes(context, candidate)
    usable = [index for index in fitting if node_cache.nodes[index].usable]
    free = sum(index not in node_cache.taken for index in usable)
    return Census(needed=wanted, eligible=len(fitting), usable=len(usable), free=free)


def eligible_nodes(context: QueryContext, candidate: Candidate) -> frozenset[int]:
    """Returns the indices of the nodes that fit a candidate, usable or not: at home in its vcluster, or in one that lends to it.

    Non-preemptible work borrows none.
    """
    homes, nodes = _homes(context, candidate), context.nodes
    return frozenset(index for index in admitted_nodes(context.state.node_cache, candidate.need) if nodes[index].home in homes)


def _homes(context: QueryContext, candidate: Candidate) -> frozenset[str]:
    """Returns the vclusters whose home nodes a candidate may use ("": nodes without a home)."""
    home = candidate.vcluster if context.policy(candidate.vcluster).home else ""
    if candidate.non_preemptible:
        return frozenset((home,))
    return frozenset((home, *lenders_for(context.state.policies, candidate.vcluster, candidate.walltime)))


def time_text(moment: float | None) -> str | None:
    """Returns a time (seconds since the epoch) as RFC 3339 text; None for None."""
    return format_time(moment) if moment is not None else None
