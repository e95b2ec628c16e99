"""What a cycle reads: the machine, who holds it, limits, windows, policies and promises.

`ClusterState` is changed by its own methods only: the scheduler's cache updater calls those that tell of the world, cycles those that claim
nodes and give promises. `validate` rebuilds what they keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from lattice.accounting.budgets import Scope
from lattice.errors import Corrupt
from lattice.quota.forest import Forest
from lattice.scheduling.cluster.availability import AvailabilityProfile, BackfillReservation, BucketWindow
from lattice.scheduling.cluster.free_counts import FreeCountsByNeed
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache, indices_of
from lattice.scheduling.cluster.placement import Counts
from lattice.scheduling.model.outcomes import Score
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.quota_usage import QuotaUsage
from lattice.scheduling.state.reservation_order import Move, ReservationEpoch
from lattice.views.ledger import TenantAccount

START_ALLOWANCE: Final = 60.0
"""Seconds from a placement to the first process that are counted on where nothing has started yet."""
_K = TypeVar("_K")

OVERRUN: Final = 60.0
"""How far past its end a holder is assumed to need its nodes still, seconds."""


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """Nodes that are reserved for a time, [start, end) in seconds since the epoch.

    Work may use them in that time if it names the window (`Candidate.reservation`) and is admitted: by user, tenant or
    vcluster, anybody where all three are empty, nobody where it is a maintenance.
    """

    name: str
    start: float
    end: float
    nodes: int
    """A bit set of node indices."""
    users: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    vclusters: frozenset[str] = frozenset()
    maintenance: bool = False
    ignore_running: bool = False

    def admits(self, candidate: Candidate) -> bool:
        """Whether this work may run in it."""
        if self.maintenance:
            return False
        anybody = not (self.users or self.tenants or self.vclusters)
        return anybody or candidate.user in self.users or candidate.tenant in self.tenants or candidate.vcluster in self.vclusters


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """The most watts that all held nodes may draw at their nominal power; None: no limit."""

    limit: int | None = None


class Scoring(Protocol):
    """The cost function of one vcluster."""

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> Sequence[Score]:
        """A score for each candidate, in their order; where the sequence has `totals`, scores are made only when they are asked for."""
        ...


class ClassThenWaiting:
    """The order without a cost function: the higher class, and among equals who waits longer."""

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> Sequence[Score]:
        """A tenth of the class; who submitted earlier wins a tie."""
        by_class = [Score(rank / 10) for rank in range(11)]
        return [by_class[candidate.preemption_class] for candidate in candidates]


@dataclass(slots=True)
class Use:
    """What somebody holds: nodes and allocations."""

    nodes: int = 0
    running: int = 0


NOTHING: Final = Use()


@dataclass
class Uses:
    """What is held: by vcluster, by (vcluster, user), by (vcluster, tenant), by (tenant, user); and borrowed nodes by vcluster."""

    vclusters: dict[str, Use] = field(default_factory=dict)
    users: dict[tuple[str, str], Use] = field(default_factory=dict)
    tenants: dict[tuple[str, str], Use] = field(default_factory=dict)
    borrowed: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, Use] = field(default_factory=dict)
    """By tenant: what was placed and is not in the ledger's accounts yet."""
    people: dict[tuple[str, str], Use] = field(default_factory=dict)
    """By (tenant, user), in all vclusters, claims included."""

    _of: dict[tuple[str, str, str], tuple[Use, Use, Use, Use, Use]] = field(default_factory=dict)
    """By (vcluster, tenant, user): where such a holder is counted."""

    def count(self, holder: NodeHolder, sign: int, *, claimed: bool) -> None:
        """Count a holder in (+1) or out (−1)."""
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
    """Everything that `lattice.scheduling.cycle.cycle.decide` reads; see the module's docstring."""

    node_cache: NodeCache = field(default_factory=NodeCache)
    accounts: Mapping[str, TenantAccount] = field(default_factory=dict)
    """The ledger's hard limits and use, by tenant."""
    policies: dict[str, Policy] = field(default_factory=dict)
    """By vcluster; one that is not named here schedules by `Policy(name)`."""
    scorings: dict[str, Scoring] = field(default_factory=dict)
    """By vcluster; one that is not named here goes by class, then by waiting."""
    power: PowerBudget = PowerBudget()
    overrun_seconds: float = OVERRUN
    start_allowance: float = START_ALLOWANCE
    holders: dict[str, NodeHolder] = field(default_factory=dict)
    """By uid; changed by `put_holder`, `claim` and `drop_holder`."""
    uses: Uses = field(default_factory=Uses)
    windows: tuple[ReservationWindow, ...] = ()
    """Changed by `set_windows`."""
    promises: dict[str, dict[str, BackfillReservation]] = field(default_factory=dict)
    """By vcluster and uid: what blocked allocations were promised in their vcluster's last cycle; changed by `decide`."""
    heirs: dict[str, dict[str, float]] = field(default_factory=dict)
    """By vcluster and uid: when work that holds no promise at the moment was given one, by an earlier scheduler or before nodes were
    lost: it is planned first; changed by `decide`."""
    moves: dict[str, list[Move]] = field(default_factory=dict)
    """By vcluster: the promises that its last cycle moved later or took back; changed by `decide`."""
    waiting: frozenset[str] = frozenset()
    """The vclusters where work is left that waits for nodes, once all have had their turn: `ranges` reads it."""
    last_reservations: dict[str, tuple[Mapping[str, BackfillReservation], ReservationEpoch]] = field(default_factory=dict)
    """By vcluster: the promises as its last cycle left them, and `reservation_epoch` then; changed by `decide`."""
    lists: dict[str, frozenset[int]] = field(default_factory=dict)
    """By vcluster: the node lists that its last cycle met; changed by `decide`."""
    quota_usage: QuotaUsage | None = None
    """The quota trees and what they are charged with; None where there is none. Changed by `plant`, and by what changes holders."""
    exhausted: Mapping[Scope, Exhausted] = field(default_factory=dict)
    """Budgets that are used up, at whose end work waits."""
    free_counts: FreeCountsByNeed = field(init=False)
    _profile: AvailabilityProfile = field(init=False)
    pending_queues: dict[str, PendingQueue] = field(default_factory=dict)
    """By vcluster: what its last cycle found waiting; changed by `decide`."""
    _claims: set[str] = field(default_factory=set)
    _lost: dict[str, set[int]] = field(default_factory=dict)
    """By uid: nodes of a holder that another holder has taken since."""

    def __post_init__(self) -> None:
        self.free_counts = FreeCountsByNeed(self.node_cache)
        self._profile = AvailabilityProfile(self.node_cache)

    def policy(self, vcluster: str) -> Policy:
        """How a vcluster schedules."""
        return self.policies.get(vcluster) or Policy(vcluster)

    def scoring(self, vcluster: str) -> Scoring:
        """The cost function of a vcluster."""
        return self.scorings.get(vcluster) or _PLAIN

    def plant(self, forest: Forest | None) -> None:
        """These quota trees, which nothing has charged yet, admit work from now on; None: none does."""
        self.quota_usage = None if forest is None else QuotaUsage(forest, self.node_cache)
        if self.quota_usage is not None:
            for holder in self.holders.values():
                self.quota_usage.hold(holder)

    def restore_quota(self, forest: Forest, asked: Iterable[Candidate], now: float) -> None:
        """Plants quota trees that are charged already with what these candidates ask for and what the holders hold."""
        self.quota_usage = QuotaUsage(forest, self.node_cache)
        self.quota_usage.adopt(asked, self.holders.values(), now)

    def configure(self, policies: dict[str, Policy], scorings: dict[str, Scoring], power: PowerBudget | None = None) -> None:
        """Puts these policies and cost functions, both by vcluster, in force from the next cycle on; `power`: and this budget."""
        self.policies = policies
        self.scorings = scorings
        if power is not None:
            self.power = power

    def set_exhausted(self, budgets: Mapping[Scope, Exhausted]) -> None:
        """Replaces the budgets that are used up."""
        self.exhausted = budgets

    def set_waiting(self, vclusters: Iterable[str]) -> None:
        """Replaces the vclusters where work is left that waits for nodes, once all have had their turn."""
        self.waiting = frozenset(vclusters)

    def pending_queue(self, vcluster: str) -> PendingQueue:
        """The columns of what waits in a vcluster."""
        pending_queue = self.pending_queues.get(vcluster)
        if pending_queue is None:
            pending_queue = self.pending_queues[vcluster] = PendingQueue()
        return pending_queue

    def put_holder(self, holder: NodeHolder, *, claimed: bool = False) -> None:
        """This is what the ledger says of an allocation that holds nodes: new, changed, or a claim that it accepted.

        `claimed`: what `claim` made of it, and the ledger has not confirmed yet.
        """
        self._put(holder, claimed=claimed)

    def claims(self) -> frozenset[str]:
        """The uids of what was claimed and is not confirmed."""
        return frozenset(self._claims)

    def claim(
        self, candidate: Candidate, nodes: tuple[int, ...], now: float, borrowed: tuple[int, ...] = (), counts: Counts | None = None
    ) -> None:
        """Nodes go to a candidate; until `put_holder` confirms it, or `drop_holder` takes it back, it counts on top of the accounts.

        `counts`: they are the lowest free ones of these buckets.
        """
        holder = claim_of(candidate, nodes, now, borrowed, self.start_allowance)
        if counts is None or holder.uid in self.holders:
            self._put(holder, claimed=True)
        else:
            self.node_cache.take_free(nodes, _until(holder), counts)
            self._add(holder, claimed=True)

    def drop_holder(self, uid: str) -> None:
        """It holds nothing any more (it ended, or the ledger refused it): its nodes are free unless another took them."""
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
        """Of these, what was claimed and neither confirmed nor refused is given back: their cycle came to no end."""
        for uid in uids:
            if uid in self._claims:
                self.drop_holder(uid)

    def set_windows(self, windows: Iterable[ReservationWindow]) -> None:
        """These nodes are reserved in these times, sorted by start and name."""
        self.windows = tuple(sorted(windows, key=lambda window: (window.start, window.name)))
        self._split()

    def set_lists(self, vcluster: str, lists: frozenset[int]) -> None:
        """These node lists stand in the pending work of a vcluster: buckets are split along them."""
        if lists == self.lists.get(vcluster, _NO_LISTS):
            return
        self.lists[vcluster] = lists
        self._split()

    def profile(self, now: float) -> AvailabilityProfile:
        """The nodes to come: what is held, promised and reserved in advance."""
        bucket_windows = [BucketWindow(window.name, window.start, window.end, window.nodes) for window in self.windows]
        kept = [promise for name in sorted(self.promises) for promise in self.promises[name].values()]
        self._profile.begin(now, bucket_windows, kept, self.overrun_seconds)
        for promises in self.promises.values():
            for uid, promise in promises.items():
                promises[uid] = self._profile.promises.get(uid, promise)  # of buckets as they are now
        return self._profile

    def resume(self, promises: Mapping[str, Mapping[str, BackfillReservation]], heirs: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what another cluster state has promised, whose nodes stood as they stand here."""
        self.promises = {name: dict(some) for name, some in promises.items()}
        self.heirs = {name: dict(some) for name, some in heirs.items()}
        self._profile.stand()

    def restore_promises(self, vcluster: str, promises: Mapping[str, BackfillReservation]) -> None:
        """Replaces the promises of a vcluster, by uid, with some that stood before."""
        self.promises[vcluster] = dict(promises)

    def begin_promises(self, vcluster: str, waiting: Collection[str]) -> dict[str, BackfillReservation]:
        """Begins a cycle of a vcluster: its promises are those that the cycle puts into the dict that is returned.

        Of `heirs`, those stay whose uid is in `waiting`.
        """
        self.heirs[vcluster] = {uid: given for uid, given in self.heirs.get(vcluster, {}).items() if uid in waiting}
        made: dict[str, BackfillReservation] = {}
        self.promises[vcluster] = made
        return made

    def settle_cycle(self, vcluster: str, made: Mapping[str, BackfillReservation], moves: Iterable[Move]) -> None:
        """Ends a cycle of a vcluster: what it promised holds for as long as nothing happens that no cycle knows of."""
        self.last_reservations[vcluster] = made, self.reservation_epoch(self.policy(vcluster))
        self.moves[vcluster] = list(moves)

    def undo_cycles(
        self, promises: Mapping[str, dict[str, BackfillReservation]], heirs: dict[str, dict[str, float]], moves: dict[str, list[Move]],
        waiting: frozenset[str],
    ) -> None:  # fmt: skip
        """Takes back what cycles of a what-if have promised: these stood before, by vcluster."""
        self.promises.clear()
        self.promises.update(promises)
        self.heirs, self.moves, self.waiting = heirs, moves, waiting

    def reserved_since(self, vcluster: str, uid: str) -> float | None:
        """When work that waits in a vcluster was given the reservation that it holds, or will be given anew; None: it has none."""
        promise = self.promises.get(vcluster, {}).get(uid)
        return promise.given if promise is not None else self.heirs.get(vcluster, {}).get(uid)

    def inherit(self, vcluster: str, uid: str, given: float) -> None:
        """An earlier scheduler gave this work a reservation then."""
        if self.reserved_since(vcluster, uid) is None:
            self.heirs.setdefault(vcluster, {})[uid] = given

    def given_away(self) -> tuple[int, int]:
        """Changes with every node that is held or free, and with every promise."""
        return self.node_cache.changes, self._profile.version

    def reservation_epoch(self, policy: Policy) -> ReservationEpoch:
        """What the promises of a vcluster stand on."""
        node_cache = self.node_cache
        return ReservationEpoch((node_cache.tally, node_cache.shape), self.windows, node_cache.losses, policy)

    def occupancy(self, candidate: Candidate) -> float:
        """How long a candidate may hold its nodes: until it starts, its walltime, its grace; seconds."""
        return NEVER if candidate.walltime is None else self.start_allowance + candidate.walltime + candidate.grace

    def validate(self) -> None:
        """Rebuild the counters and the machine from the holders and compare; raises Corrupt on a difference."""
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
        """Count one whose nodes are taken."""
        self.holders[holder.uid] = holder
        if claimed:
            self._claims.add(holder.uid)
        self.uses.count(holder, 1, claimed=claimed)
        if self.quota_usage is not None:
            self.quota_usage.hold(holder)

    def _confirm(self, holder: NodeHolder) -> None:
        """What is held is known already, by whom and until when; only what is said of it is new, and it is in the accounts now."""
        uid = holder.uid
        self.holders[uid] = holder
        if uid in self._claims:
            self._claims.discard(uid)
            use = self.uses.claimed[holder.tenant]
            use.nodes -= len(holder.nodes)
            use.running -= 1

    def _lose(self, taker: NodeHolder) -> None:
        """Whoever holds nodes of this one has them no more."""
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
    """What a candidate is once it holds nodes, before the ledger knows."""
    end = None if candidate.walltime is None else now + allowance + candidate.walltime + candidate.grace
    return NodeHolder(
        uid=candidate.uid, key=candidate.key, tenant=candidate.tenant, user=candidate.user, vcluster=candidate.vcluster,
        preemption_class=candidate.preemption_class, nodes=nodes, since=now, end=end, walltime=candidate.walltime,
        checkpointable=candidate.checkpointable, preemptible=candidate.preemptible, sensitive=candidate.sensitive,
        borrowed=borrowed, name=candidate.name, quota=candidate.quota,
    )  # fmt: skip


def _until(holder: NodeHolder) -> float:
    """When its nodes are free at the latest."""
    return NEVER if holder.end is None else holder.end


def _use(uses: dict[_K, Use], key: _K) -> Use:
    use = uses.get(key)
    if use is None:
        use = uses[key] = Use()
    return use


def mask_of(nodes: Iterable[int]) -> int:
    """Node indices as a bit set."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def nodes_of(window: ReservationWindow) -> tuple[int, ...]:
    """The indices of a window's nodes, ascending."""
    return tuple(indices_of(window.nodes))


def _filled(uses: Uses) -> tuple[object, ...]:
    parts = (uses.vclusters, uses.users, uses.tenants, uses.claimed, uses.people)
    return (*({key: (use.nodes, use.running) for key, use in part.items() if use != NOTHING} for part in parts),
            {key: count for key, count in uses.borrowed.items() if count})  # fmt: skip


_PLAIN: Final = ClassThenWaiting()
_NO_LISTS: Final[frozenset[int]] = frozenset()
