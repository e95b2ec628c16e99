"""The state that a cycle reads: nodes, their holders, limits, windows, policies and backfill reservations.

`ClusterState` is changed by its own methods only: the scheduler's cache updater calls them for events of ledger, objects and nodes,
cycles call those that claim nodes and keep reservations. `validate` rebuilds its counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from lattice.accounting.budgets import Scope
from lattice.errors import Corrupt
from lattice.quota.forest import Forest
from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.free_counts import FreeCountsByNeed
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache, indices_of
from lattice.scheduling.cluster.placement import Counts
from lattice.scheduling.cluster.releases import EPOCH
from lattice.scheduling.model.outcomes import Score
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.quota_usage import QuotaUsage
from lattice.scheduling.state.reservation_order import Move, ReservationEpoch
from lattice.scheduling.state.unschedulable import Opportunities, Unschedulable
from lattice.views.ledger import TenantAccount

START_ALLOWANCE: Final = 60.0
"""Seconds from a placement to the first process that the end of work includes while nothing has started yet."""
_K = TypeVar("_K")

OVERRUN: Final = 60.0
"""Seconds past its end for which a holder is assumed to keep its nodes."""


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """The most watts that all held nodes together may draw at their nominal power; None: no limit."""

    limit: int | None = None


class QueueScores(Protocol):
    """The scores of the candidates of one cycle; an implementation may compute a score only when it is read."""

    @property
    def totals(self) -> Sequence[float]:
        """Returns the total score of each candidate, in the order in which they were given."""
        ...

    def ordered(self, order: Sequence[int]) -> Iterator[Score]:
        """Yields the scores of the candidates at these places of the given order."""
        ...


class ScoreList:
    """Implements QueueScores with scores that are all computed beforehand."""

    def __init__(self, scores: Sequence[Score]) -> None:
        self._scores = scores

    @property
    def totals(self) -> Sequence[float]:
        """Returns the total score of each candidate, in the order in which they were given."""
        return [score.total for score in self._scores]

    def ordered(self, order: Sequence[int]) -> Iterator[Score]:
        """Yields the scores of the candidates at these places of the given order."""
        return map(self._scores.__getitem__, order)


class Scoring(Protocol):
    """A cost function, as a cycle asks it: the production one, or the order of a vcluster without any."""

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> QueueScores:
        """Returns the scores of the candidates of one vcluster, in the order in which they are given."""
        ...


class ClassThenWaiting:
    """Scores without a cost function: the higher preemption class first, then the longer wait; used where none is configured."""

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> QueueScores:
        """Returns a tenth of each candidate's preemption class as its score; the cycle breaks ties by earlier submission."""
        by_class = [Score(rank / 10) for rank in range(11)]
        return ScoreList([by_class[candidate.preemption_class] for candidate in candidates])


@dataclass(slots=True)
class Use:
    """Counts of the nodes held and of the allocations that hold them (`running`), of one vcluster, user or tenant."""

    nodes: int = 0
    running: int = 0


NOTHING: Final = Use()


@dataclass
class Uses:
    """Counts of the nodes and allocations in use: by vcluster, by (vcluster, user), by (vcluster, tenant) and by (tenant, user).

    The gates compare them with limits. `borrowed`: by vcluster, the nodes that its work borrows.
    """

    vclusters: dict[str, Use] = field(default_factory=dict)
    users: dict[tuple[str, str], Use] = field(default_factory=dict)
    tenants: dict[tuple[str, str], Use] = field(default_factory=dict)
    borrowed: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, Use] = field(default_factory=dict)
    """By tenant: work placed by cycles that the ledger's accounts do not count yet."""
    people: dict[tuple[str, str], Use] = field(default_factory=dict)
    """By (tenant, user), over all vclusters, claims included."""

    _of: dict[tuple[str, str, str], tuple[Use, Use, Use, Use, Use]] = field(default_factory=dict)
    """By (vcluster, tenant, user): the five counters that such a holder changes."""

    def count(self, holder: NodeHolder, sign: int, *, claimed: bool) -> None:
        """Adds the nodes and the allocation of a holder to every counter that it belongs to (`sign` +1), or subtracts them (−1).

        `claimed`: the ledger has not confirmed the holder, so its tenant's `claimed` counts it too.
        """
        nodes = sign * len(holder.nodes)
        vcluster, tenant, user = who = holder.vcluster, holder.tenant, holder.user
        uses = self._of.get(who)
        if uses is None:
            uses = self._of[who] = (
                _use(self.vclusters, vcluster), _use(self.users, (vcluster, user)), _use(self.tenants, (vcluster, tenant)),
                _use(self.people, (tenant, user)), _use(self.claimed, tenant),
            )  # fmt: skip
        for use in uses if claimed else uses[:4]:
            use.nodes += nodes
            use.running += sign
        if holder.borrowed:
            self.borrowed[vcluster] = self.borrowed.get(vcluster, 0) + sign * len(holder.borrowed)


@dataclass
class ClusterState:
    """All that a cycle (`lattice.scheduling.cycle.cycle.decide`) reads and changes; a leading scheduler keeps one, a replay makes
    its own.
    """

    node_cache: NodeCache = field(default_factory=NodeCache)
    accounts: Mapping[str, TenantAccount] = field(default_factory=dict)
    """The ledger's hard limits and use, by tenant."""
    policies: dict[str, Policy] = field(default_factory=dict)
    """By vcluster; a vcluster without an entry schedules by `Policy(name)`."""
    scorings: dict[str, Scoring] = field(default_factory=dict)
    """By vcluster; a vcluster without an entry orders by class, then by waiting."""
    power: PowerBudget = PowerBudget()
    overrun_seconds: float = OVERRUN
    start_allowance: float = START_ALLOWANCE
    holders: dict[str, NodeHolder] = field(default_factory=dict)
    """By uid; changed by `put_holder`, `claim` and `drop_holder`."""
    uses: Uses = field(default_factory=Uses)
    windows: tuple[ReservationWindow, ...] = ()
    """Changed by `set_windows`."""
    backfill_reservations: dict[str, dict[str, BackfillReservation]] = field(default_factory=dict)
    """By vcluster and uid: the backfill reservations of the vcluster's last cycle; changed by `decide`."""
    heirs: dict[str, dict[str, float]] = field(default_factory=dict)
    """By vcluster and uid: when work that has no reservation now was first given one, by an earlier scheduler or before nodes were
    lost.

    Such work is evaluated before newcomers; seconds since the epoch. Changed by `decide`.
    """
    moves: dict[str, list[Move]] = field(default_factory=dict)
    """By vcluster: the backfill reservations that its last cycle moved later or withdrew, with the causes; changed by `decide`."""
    waiting: frozenset[str] = frozenset()
    """The vclusters in which work still waits for nodes after each had its cycle of the round; read by `ranges`."""
    last_reservations: dict[str, tuple[Mapping[str, BackfillReservation], ReservationEpoch]] = field(default_factory=dict)
    """By vcluster: the reservations at the end of its last cycle, and the `reservation_epoch` of that time; changed by `decide`."""
    unschedulable: dict[str, Unschedulable] = field(default_factory=dict)
    """By vcluster: who found no nodes in its last cycle, where that is kept; changed by `decide`."""
    lists: dict[str, frozenset[int]] = field(default_factory=dict)
    """By vcluster: the node lists (bit sets) that the needs of its last cycle named; changed by `decide`."""
    quota_usage: QuotaUsage | None = None
    """The quota trees and their charges; None without a tree. Changed by `plant`, and by every change of holders."""
    exhausted: Mapping[Scope, Exhausted] = field(default_factory=dict)
    """Budgets that are used up and make work wait."""
    free_counts: FreeCountsByNeed = field(init=False)
    _profile: AvailabilityProfile = field(init=False)
    pending_queues: dict[str, PendingQueue] = field(default_factory=dict)
    """By vcluster: the pending work of its last cycle; changed by `decide`."""
    _claims: set[str] = field(default_factory=set)
    _lost: dict[str, set[int]] = field(default_factory=dict)
    """By uid: nodes of a holder that another holder has taken since, so that dropping the first does not free them."""

    def __post_init__(self) -> None:
        self.free_counts = FreeCountsByNeed(self.node_cache)
        self._profile = AvailabilityProfile(self.node_cache)

    def policy(self, vcluster: str) -> Policy:
        """Returns the policy of a vcluster, the default one where none is configured."""
        return self.policies.get(vcluster) or Policy(vcluster)

    def scoring(self, vcluster: str) -> Scoring:
        """Returns the cost function of a vcluster; where none is configured, the order by class and waiting."""
        return self.scorings.get(vcluster) or _PLAIN

    def plant(self, forest: Forest | None) -> None:
        """Puts new quota trees, without any charges, in force, and charges them with all holders; None: no tree.

        The next cycles charge them with pending work.
        """
        self.quota_usage = None if forest is None else QuotaUsage(forest, self.node_cache)
        if self.quota_usage is not None:
            for holder in self.holders.values():
                self.quota_usage.hold(holder)

    def restore_quota(self, forest: Forest, asked: Iterable[Candidate], now: float) -> None:
        """Puts quota trees in force that already contain the charges of these candidates (`asked`) and of all holders, as a
        recording has them.
        """
        self.quota_usage = QuotaUsage(forest, self.node_cache)
        self.quota_usage.adopt(asked, self.holders.values(), now)

    def configure(self, policies: dict[str, Policy], scorings: dict[str, Scoring], power: PowerBudget | None = None) -> None:
        """Puts these policies and cost functions, both by vcluster, in force from the next cycle on; with `power`, this budget too.

        `power` None: the power budget stays as it is.
        """
        self.policies = policies
        self.scorings = scorings
        if power is not None:
            self.power = power

    def set_exhausted(self, budgets: Mapping[Scope, Exhausted]) -> None:
        """Replaces the budgets that are used up and make work wait, by the scope (tenant, project or user) that they are of."""
        self.exhausted = budgets

    def set_waiting(self, vclusters: Iterable[str]) -> None:
        """Replaces the vclusters in which work still waits for nodes after each had its cycle of the round."""
        self.waiting = frozenset(vclusters)

    def pending_queue(self, vcluster: str) -> PendingQueue:
        """Returns the pending queue of a vcluster, a new and empty one at the first call."""
        pending_queue = self.pending_queues.get(vcluster)
        if pending_queue is None:
            pending_queue = self.pending_queues[vcluster] = PendingQueue()
        return pending_queue

    def put_holder(self, holder: NodeHolder, *, claimed: bool = False) -> None:
        """Records a holder as the ledger has it: a new one, a changed one, or the confirmation of a claim; holds its nodes.

        Nodes that another holder holds go over to it. `claimed`: the holder is restored as a claim that the ledger has not confirmed.
        """
        self._put(holder, claimed=claimed)

    def claims(self) -> frozenset[str]:
        """Returns the uids of the claims that the ledger has not confirmed yet."""
        return frozenset(self._claims)

    def claim(
        self, candidate: Candidate, nodes: tuple[int, ...], now: float, borrowed: tuple[int, ...] = (), counts: Counts | None = None
    ) -> None:
        """Gives nodes (indices) to a candidate before the ledger knows; `put_holder` confirms the claim, `drop_holder` takes it back.

        `now`: seconds since the epoch. `borrowed`: those of the nodes at home in other vclusters. `counts`: how many nodes of each bucket,
        given only where these are its lowest free ones; None: any nodes.
        """
        holder = claim_of(candidate, nodes, now, borrowed, self.start_allowance)
        if counts is None or holder.uid in self.holders:
            self._put(holder, claimed=True)
        else:
            self.node_cache.take_free(nodes, _until(holder), counts)
            self._add(holder, claimed=True)

    def drop_holder(self, uid: str) -> None:
        """Removes a holder that ended or that the ledger refused, and frees its nodes, except those that another holder has taken since.

        An unknown uid is ignored.
        """
        holder = self.holders.pop(uid, None)
        if holder is None:
            return
        self.uses.count(holder, -1, claimed=uid in self._claims)
        self._claims.discard(uid)
        if self.quota_usage is not None:
            self.quota_usage.release(uid)
        lost = self._lost.pop(uid, None)
        self.node_cache.give(holder.nodes if lost is None else [node for node in holder.nodes if node not in lost])

    def drop_claims(self, uids: Iterable[str]) -> None:
        """Removes those of these holders that are still claims; called when a cycle broke off before its claims went to the ledger."""
        for uid in uids:
            if uid in self._claims:
                self.drop_holder(uid)

    def set_windows(self, windows: Iterable[ReservationWindow]) -> None:
        """Replaces the reservation windows, sorts them by start and name, and splits the buckets along their nodes."""
        self.windows = tuple(sorted(windows, key=lambda window: (window.start, window.name)))
        self._split()

    def set_lists(self, vcluster: str, lists: frozenset[int]) -> None:
        """Replaces the node lists that pending work of a vcluster names, and splits the buckets along them."""
        if lists == self.lists.get(vcluster, _NO_LISTS):
            return
        self.lists[vcluster] = lists
        self._split()

    def profile(self, now: float) -> AvailabilityProfile:
        """Returns the availability profile from `now` on: nodes that are held, kept by backfill reservations, and closed by windows.

        It is the same object at each call: what was added to it or removed from it since is undone. Reservations on buckets that have
        changed are put on the present ones, also in `backfill_reservations`.
        """
        kept = [reservation for name in sorted(self.backfill_reservations) for reservation in self.backfill_reservations[name].values()]
        self._profile.begin(now, self.windows, kept, self.overrun_seconds)
        for reservations in self.backfill_reservations.values():
            for uid, reservation in reservations.items():
                reservations[uid] = self._profile.reservations.get(uid, reservation)  # of buckets as they are now
        return self._profile

    def resume(self, reservations: Mapping[str, Mapping[str, BackfillReservation]], heirs: Mapping[str, Mapping[str, float]]) -> None:
        """Replaces backfill reservations and heirs (both by vcluster and uid) by those of a recorded state.

        Its node cache must have had the same buckets as this one has now.
        """
        self.backfill_reservations = {name: dict(some) for name, some in reservations.items()}
        self.heirs = {name: dict(some) for name, some in heirs.items()}
        self._profile.adopt_buckets()

    def restore_reservations(self, vcluster: str, reservations: Mapping[str, BackfillReservation]) -> None:
        """Replaces the backfill reservations of a vcluster by these, which are all, or some, of those of its last cycle, by uid."""
        self.backfill_reservations[vcluster] = dict(reservations)

    def begin_reservations(self, vcluster: str, waiting: Collection[str]) -> dict[str, BackfillReservation]:
        """Begins the reservations of a vcluster's cycle anew: drops those of its last one, and returns the dict for the new ones, by uid.

        The cycle puts its reservations into it, and they are the vcluster's at once. `waiting`: the uids of the cycle's candidates; heirs
        of other uids are dropped.
        """
        self.heirs[vcluster] = {uid: given for uid, given in self.heirs.get(vcluster, {}).items() if uid in waiting}
        made: dict[str, BackfillReservation] = {}
        self.backfill_reservations[vcluster] = made
        return made

    def settle_cycle(self, vcluster: str, made: Mapping[str, BackfillReservation], moves: Iterable[Move]) -> None:
        """Ends a cycle of a vcluster: stores its reservations with the present `reservation_epoch`, and the moves of earlier ones."""
        self.last_reservations[vcluster] = made, self.reservation_epoch(self.policy(vcluster))
        self.moves[vcluster] = list(moves)

    def keep_unschedulable(self, vcluster: str, found: Unschedulable) -> None:
        """Stores, for the vcluster's next cycle, the candidates that found no nodes in its cycle just ended."""
        self.unschedulable[vcluster] = found

    def opportunities(self, now: float) -> Opportunities:
        """Returns a stamp that is equal only while nothing has changed that could let waiting work start: nodes, reservations, windows,
        ends.
        """
        profile = self._profile
        return self.node_cache.changes, profile.layout, profile.windows, profile.releases.restarts, now // EPOCH

    def undo_cycles(
        self, reservations: Mapping[str, dict[str, BackfillReservation]], heirs: dict[str, dict[str, float]], moves: dict[str, list[Move]],
        waiting: frozenset[str],
    ) -> None:  # fmt: skip
        """Replaces reservations, heirs, moves and waiting vclusters by these copies, made before a what-if ran cycles on this state."""
        self.backfill_reservations.clear()
        self.backfill_reservations.update(reservations)
        self.heirs, self.moves, self.waiting = heirs, moves, waiting

    def reserved_since(self, vcluster: str, uid: str) -> float | None:
        """Returns when waiting work was first given its reservation, seconds since the epoch, also where it is to be given a new one.

        None: it has none, and no right to one.
        """
        reservation = self.backfill_reservations.get(vcluster, {}).get(uid)
        return reservation.given if reservation is not None else self.heirs.get(vcluster, {}).get(uid)

    def inherit(self, vcluster: str, uid: str, given: float) -> None:
        """Records that an earlier scheduler gave this work a reservation at `given`, seconds since the epoch, so that it gets a new one.

        Does nothing for work that has a reservation or the right to one.
        """
        if self.reserved_since(vcluster, uid) is None:
            self.heirs.setdefault(vcluster, {})[uid] = given

    def given_away(self) -> tuple[int, int]:
        """Returns a stamp that changes whenever a node is taken or freed, its end changes, or a backfill reservation changes."""
        return self.node_cache.changes, self._profile.layout

    def reservation_epoch(self, policy: Policy) -> ReservationEpoch:
        """Returns the stamp of a vcluster's reservations; while it is equal, only cycles have taken nodes, so the reservations
        still hold.
        """
        node_cache = self.node_cache
        return ReservationEpoch((node_cache.tally, node_cache.shape), self.windows, node_cache.losses, policy)

    def occupancy(self, candidate: Candidate) -> float:
        """Returns the seconds for which a candidate may hold its nodes: start allowance + walltime + grace; `NEVER` where it is
        unbounded.
        """
        return NEVER if candidate.walltime is None else self.start_allowance + candidate.walltime + candidate.grace

    def validate(self) -> None:
        """Rebuilds counters, node cache, quota charges, pools and profile from holders and nodes; raises Corrupt on a difference."""
        again = Uses()
        for uid, holder in self.holders.items():
            again.count(holder, 1, claimed=uid in self._claims)
        if _filled(again) != _filled(self.uses):
            raise Corrupt("the counters of the scene differ from its holders", reason="CountersDiffer")
        self.node_cache.validate()
        if self.quota_usage is not None:
            self.quota_usage.validate()
        self.free_counts.validate()
        self._profile.validate()

    def _put(self, holder: NodeHolder, *, claimed: bool = False) -> None:
        before = self.holders.get(holder.uid)
        planned = claimed
        if before is not None:
            if not claimed and holder.uid not in self._claims and before == holder:
                return
            if not claimed and before.holds_as(holder) and holder.uid not in self._lost:
                self._confirm(holder)
                return
            planned = before.nodes == holder.nodes and _until(holder) <= _until(before)
            self.drop_holder(holder.uid)
        if not self.node_cache.taken.keys().isdisjoint(holder.nodes):
            self._lose(holder)
            planned = False
        self.node_cache.take(holder.nodes, _until(holder), planned=planned)
        self._add(holder, claimed=claimed)

    def _add(self, holder: NodeHolder, *, claimed: bool) -> None:
        """Adds a holder, whose nodes the node cache holds already, to the holders, the sums of use, and the quota trees.

        `claimed`: it was proposed by a cycle, and its usage is not accounted for yet.
        """
        self.holders[holder.uid] = holder
        if claimed:
            self._claims.add(holder.uid)
        self.uses.count(holder, 1, claimed=claimed)
        if self.quota_usage is not None:
            self.quota_usage.hold(holder)

    def _confirm(self, holder: NodeHolder) -> None:
        """Confirms a claim: same nodes, same end; moves its usage from claimed to accounted."""
        uid = holder.uid
        self.holders[uid] = holder
        if uid in self._claims:
            self._claims.discard(uid)
            use = self.uses.claimed[holder.tenant]
            use.nodes -= len(holder.nodes)
            use.running -= 1

    def _lose(self, taker: NodeHolder) -> None:
        """Notes which nodes of other holders a new holder has taken over, so that dropping those holders does not free them."""
        nodes = set(taker.nodes)
        for uid, holder in self.holders.items():
            shared = nodes.intersection(holder.nodes)
            if shared:
                self._lost.setdefault(uid, set()).update(shared)

    def _split(self) -> None:
        masks = {window.nodes for window in self.windows}
        self.node_cache.split(frozenset(masks.union(*self.lists.values())))


def claim_of(
    candidate: Candidate, nodes: tuple[int, ...], now: float, borrowed: tuple[int, ...] = (), allowance: float = START_ALLOWANCE
) -> NodeHolder:
    """Returns the holder that a candidate becomes when it is placed on these nodes at `now`, seconds since the epoch.

    `borrowed`: those of the nodes at home in other vclusters. `allowance`: seconds from the placement to its first process.
    """
    end = None if candidate.walltime is None else now + allowance + candidate.walltime + candidate.grace
    return NodeHolder(
        uid=candidate.uid, key=candidate.key, tenant=candidate.tenant, user=candidate.user, vcluster=candidate.vcluster,
        preemption_class=candidate.preemption_class, nodes=nodes, since=now, end=end, walltime=candidate.walltime,
        checkpointable=candidate.checkpointable, preemptible=candidate.preemptible, sensitive=candidate.sensitive,
        borrowed=borrowed, name=candidate.name, quota=candidate.quota,
    )  # fmt: skip


def _until(holder: NodeHolder) -> float:
    """Returns the end of a holder, NEVER where it has none."""
    return NEVER if holder.end is None else holder.end


def _use(uses: dict[_K, Use], key: _K) -> Use:
    use = uses.get(key)
    if use is None:
        use = uses[key] = Use()
    return use


def mask_of(nodes: Iterable[int]) -> int:
    """Returns node indices as a bit set."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def nodes_of(window: ReservationWindow) -> tuple[int, ...]:
    """Returns the indices of a window's nodes, ascending."""
    return tuple(indices_of(window.nodes))


def _filled(uses: Uses) -> tuple[object, ...]:
    parts = (uses.vclusters, uses.users, uses.tenants, uses.claimed, uses.people)
    return (*({key: (use.nodes, use.running) for key, use in part.items() if use != NOTHING} for part in parts),
            {key: count for key, count in uses.borrowed.items() if count})  # fmt: skip


_PLAIN: Final = ClassThenWaiting()
_NO_LISTS: Final[frozenset[int]] = frozenset()
