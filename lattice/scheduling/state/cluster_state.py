"""The state that a cycle reads: nodes, their holders, limits, windows, policies and backfill reservations.

`ClusterState` is changed by its own methods only: the scheduler's cache updater calls them for events of ledger, objects and nodes,
cycles call those that claim nodes and keep reservations. `validate` rebuilds its counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lattice.accounting.budgets import Scope
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
from lattice.scheduling.state.cycle_memory import CycleMemory
from lattice.scheduling.state.node_holders import NodeHolders
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.quota_usage import QuotaUsage
from lattice.scheduling.state.reservation_order import Move, ReservationEpoch
from lattice.scheduling.state.unschedulable import Opportunities, Unschedulable
from lattice.scheduling.state.uses import Uses
from lattice.views.ledger import TenantAccount

START_ALLOWANCE: Final = 60.0
"""Seconds from a placement to the first process that the end of work includes while nothing has started yet."""

OVERRUN: Final = 60.0
"""Seconds past its end for which a holder is assumed to keep its nodes."""
_TENTHS: Final = [level / 10 for level in range(11)]
_SCORES_BY_CLASS: Final = [Score(tenth) for tenth in _TENTHS]


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
        """Returns the scores of all candidates of one vcluster, in the order in which they are given, and may count them as its backlog.

        A score may be computed only when it is read, so that the caller reads one before nodes or shares change.
        """
        ...


class ClassScores:
    """Implements QueueScores by preemption class alone: a tenth of each candidate's class."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._classes = [candidate.preemption_class for candidate in candidates]

    @property
    def totals(self) -> Sequence[float]:
        """Returns the total score of each candidate, in the order in which they were given."""
        return [_TENTHS[level] for level in self._classes]

    def ordered(self, order: Sequence[int]) -> Iterator[Score]:
        """Yields the scores of the candidates at these places of the given order."""
        return map(_SCORES_BY_CLASS.__getitem__, map(self._classes.__getitem__, order))


class ClassThenWaiting:
    """Scores without a cost function: the higher preemption class first, then the longer wait; used where none is configured."""

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> QueueScores:
        """Returns a tenth of each candidate's preemption class as its score, whatever nodes and time are; the cycle breaks ties by earlier
        submission.
        """
        return ClassScores(candidates)


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
    holders: Mapping[str, NodeHolder] = field(init=False)
    """By uid; changed by `put_holder`, `claim` and `drop_holder`."""
    uses: Uses = field(init=False)
    windows: tuple[ReservationWindow, ...] = ()
    """Changed by `set_windows`."""
    backfill_reservations: dict[str, dict[str, BackfillReservation]] = field(init=False)
    """By vcluster and uid: the backfill reservations of the vcluster's last cycle; changed by `decide`."""
    heirs: dict[str, dict[str, float]] = field(init=False)
    """By vcluster and uid: when work that has no reservation now was first given one, by an earlier scheduler or before nodes were
    lost.

    Such work is evaluated before newcomers; seconds since the epoch. Changed by `decide`.
    """
    moves: Mapping[str, list[Move]] = field(init=False)
    """By vcluster: the backfill reservations that its last cycle moved later or withdrew, with the causes; changed by `decide`."""
    waiting: frozenset[str] = frozenset()
    """The vclusters in which work still waits for nodes after each had its cycle of the round; read by `ranges`."""
    last_reservations: dict[str, tuple[Mapping[str, BackfillReservation], ReservationEpoch]] = field(init=False)
    """By vcluster: the reservations at the end of its last cycle, and the `reservation_epoch` of that time; changed by `decide`."""
    unschedulable: dict[str, Unschedulable] = field(init=False)
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
    _holders: NodeHolders = field(init=False)
    _memory: CycleMemory = field(init=False)

    def __post_init__(self) -> None:
        self.free_counts = FreeCountsByNeed(self.node_cache)
        self._profile = AvailabilityProfile(self.node_cache)
        self._holders = NodeHolders(self.node_cache)
        self.holders, self.uses = self._holders.by_uid, self._holders.uses
        memory = self._memory = CycleMemory()
        self.backfill_reservations, self.heirs, self.moves = memory.backfill_reservations, memory.heirs, memory.moves
        self.last_reservations, self.unschedulable = memory.last_reservations, memory.unschedulable

    def policy(self, vcluster: str) -> Policy:
        """Returns the policy of a vcluster, the default one where none is configured."""
        return self.policies.get(vcluster) or Policy(vcluster)

    def scoring(self, vcluster: str) -> Scoring:
        """Returns the cost function of a vcluster; where none is configured, the order by class and waiting."""
        return self.scorings.get(vcluster) or _PLAIN

    def plant(self, forest: Forest | None) -> None:
        """Puts new quota trees, without any charges, in force, and charges them with all holders; None: no tree.

        Pending work is charged by the next cycles.
        """
        self.quota_usage = None if forest is None else QuotaUsage(forest, self.node_cache)
        self._holders.charge_to(self.quota_usage)

    def restore_quota(self, forest: Forest, asked: Iterable[Candidate], now: float) -> None:
        """Puts quota trees in force that already contain the charges of these candidates (`asked`) and of all holders, as a
        recording has them.
        """
        self.quota_usage = QuotaUsage(forest, self.node_cache)
        self.quota_usage.adopt(asked, self.holders.values(), now)
        self._holders.charge_to(self.quota_usage, charged=True)

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
        """Records a holder as the ledger has it: a new one, a changed one, or the confirmation of a claim; holds its nodes. An equal record
        changes nothing.

        Nodes that another holder holds go over to it. `claimed`: the holder is restored as a claim that the ledger has not confirmed.
        """
        self._holders.put_holder(holder, claimed=claimed)

    def claims(self) -> frozenset[str]:
        """Returns the uids of the claims that the ledger has not confirmed yet."""
        return self._holders.claims()

    def claim(
        self, candidate: Candidate, nodes: tuple[int, ...], now: float, borrowed: tuple[int, ...] = (), counts: Counts | None = None
    ) -> None:
        """Gives nodes (indices) to a candidate before the ledger knows; `put_holder` confirms the claim, `drop_holder` takes it back.

        `now`: seconds since the epoch. `borrowed`: those of the nodes at home in other vclusters. `counts`: how many nodes of each bucket,
        given only where these are its lowest free ones; None: any nodes.
        """
        self._holders.put_claim(claim_of(candidate, nodes, now, borrowed, self.start_allowance), counts)

    def drop_holder(self, uid: str) -> None:
        """Removes a holder that ended or that the ledger refused, and frees its nodes, except those that another holder has taken since.

        An unknown uid is ignored.
        """
        self._holders.drop_holder(uid)

    def drop_claims(self, uids: Iterable[str]) -> None:
        """Removes those of these holders that are still claims; called when a cycle broke off before its claims went to the ledger."""
        self._holders.drop_claims(uids)

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
        self._profile.begin(now, self.windows, self._memory.every_reservation(), self.overrun_seconds)
        self._memory.place_on(self._profile.reservations)
        return self._profile

    def resume(self, reservations: Mapping[str, Mapping[str, BackfillReservation]], heirs: Mapping[str, Mapping[str, float]]) -> None:
        """Replaces backfill reservations and heirs (both by vcluster and uid) by those of a recorded state.

        Its node cache must have had the same buckets as this one has now.
        """
        self._memory.replace_reservations(reservations, heirs)
        self._profile.adopt_buckets()

    def restore_reservations(self, vcluster: str, reservations: Mapping[str, BackfillReservation]) -> None:
        """Replaces the backfill reservations of a vcluster by these, which are all, or some, of those of its last cycle, by uid."""
        self.backfill_reservations[vcluster] = dict(reservations)

    def begin_reservations(self, vcluster: str, waiting: Collection[str]) -> dict[str, BackfillReservation]:
        """Begins the reservations of a vcluster's cycle anew: drops those of its last one, and returns the dict for the new ones, by uid.

        The cycle puts its reservations into it, and they are the vcluster's at once. `waiting`: the uids of the cycle's candidates; heirs
        of other uids are dropped.
        """
        return self._memory.begin_reservations(vcluster, waiting)

    def settle_cycle(self, vcluster: str, made: Mapping[str, BackfillReservation], moves: Iterable[Move]) -> None:
        """Ends a cycle of a vcluster: stores its reservations with the present `reservation_epoch`, and the moves of earlier ones."""
        self._memory.keep_reservations(vcluster, made, self.reservation_epoch(self.policy(vcluster)), moves)

    def keep_unschedulable(self, vcluster: str, found: Unschedulable) -> None:
        """Stores, for the vcluster's next cycle, the candidates that found no nodes in its cycle just ended."""
        self._memory.unschedulable[vcluster] = found

    def opportunities(self, now: float) -> Opportunities:
        """Returns a stamp that is equal only while nothing has changed that could let waiting work start: nodes, reservations, windows,
        ends.
        """
        profile = self._profile
        return self.node_cache.changes, profile.layout, profile.windows, profile.releases.restarts, now // EPOCH

    def undo_cycles(
        self, reservations: Mapping[str, dict[str, BackfillReservation]], heirs: Mapping[str, dict[str, float]],
        moves: Mapping[str, list[Move]], waiting: frozenset[str],
    ) -> None:  # fmt: skip
        """Replaces reservations, heirs, moves and waiting vclusters by these copies, made before a what-if ran cycles on this state."""
        self._memory.undo(reservations, heirs, moves)
        self.waiting = waiting

    def reserved_since(self, vcluster: str, uid: str) -> float | None:
        """Returns when waiting work was first given its reservation, seconds since the epoch, also where it is to be given a new one.

        None: it has none, and no right to one.
        """
        return self._memory.reserved_since(vcluster, uid)

    def inherit(self, vcluster: str, uid: str, given: float) -> None:
        """Records that an earlier scheduler gave this work a reservation at `given`, seconds since the epoch, so that it gets a new one.

        Does nothing for work that has a reservation or the right to one.
        """
        self._memory.inherit(vcluster, uid, given)

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
        self._holders.validate()
        self.node_cache.validate()
        if self.quota_usage is not None:
            self.quota_usage.validate()
        self.free_counts.validate()
        self._profile.validate()

    def _split(self) -> None:
        """Splits the buckets of the node cache along the nodes of all windows and all node lists in force."""
        masks = {window.nodes for window in self.windows}
        self.node_cache.split(frozenset(masks.union(*self.lists.values())))


def claim_of(
    candidate: Candidate, nodes: tuple[int, ...], now: float, borrowed: tuple[int, ...] = (), allowance: float = START_ALLOWANCE
) -> NodeHolder:
    """Returns the holder that a candidate becomes when it is placed on these nodes at `now`, seconds since the epoch.

    `borrowed`: those of the nodes at home in other vclusters. `allowance`: seconds from the placement to its first process.
    """
    end = None if candidate.walltime is None else now + allowance + candidate.walltime + candidate.grace
    return NodeHolder(  # by position, which takes half the time
        candidate.uid, candidate.key, candidate.tenant, candidate.user, candidate.vcluster, candidate.preemption_class, nodes, now, None,
        end, candidate.walltime, candidate.checkpointable, candidate.preemptible, candidate.sensitive, False, borrowed, 0,
        candidate.name, False, None, False, candidate.quota,
    )  # fmt: skip


def mask_of(nodes: Iterable[int]) -> int:
    """Returns node indices as a bit set."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def nodes_of(window: ReservationWindow) -> tuple[int, ...]:
    """Returns the indices of a window's nodes, ascending."""
    return tuple(indices_of(window.nodes))


_PLAIN: Final = ClassThenWaiting()
_NO_LISTS: Final[frozenset[int]] = frozenset()
