"""Equivalence classes: candidates of one cycle that ask for the same nodes in the same way, and differ in size and time only.

An equivalence class knows the free counts that it draws from, and which sizes and durations have failed in this cycle: a failure
rejects every larger request, since availability only falls. How it chooses among nodes is kept from cycle to cycle (`NodeChoice`).
"""

from __future__ import annotations

from collections.abc import Mapping

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, Bucket
from lattice.scheduling.cluster.node_choice import ChoiceKey, NodeChoice
from lattice.scheduling.cluster.releases import round_up
from lattice.scheduling.cycle.lent_nodes import Lending, LentNodes
from lattice.scheduling.cycle.power_fit import NO_NODES, Fit, NoFit, within_power
from lattice.scheduling.model.hardware import Hardware, Need
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import Strategy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.pending_queue import PendingQueue

EquivalenceKey = tuple[Need, str, str, str, float | None, frozenset[Hardware] | None]
"""Need, topology, conformance, reservation, the grace of work that may borrow (None: it may not), and the classes of nodes that
the quota tree leaves to it (None: all)."""


class RequestShape:
    """Candidates of one equivalence class with one size and duration (seconds): if one of them finds no nodes, neither does the next."""

    __slots__ = ("duration", "eq_class", "failed")

    def __init__(self, eq_class: EquivalenceClass, duration: float) -> None:
        self.eq_class, self.duration = eq_class, duration
        self.failed = False
        """Whether a candidate of this shape found no nodes in this cycle."""


class EquivalenceClass:
    """The candidates of one cycle that ask for the same nodes in the same way; finds nodes and reservations for them.

    `choice`: chooses among nodes. `pool`: the free nodes at home that it may use. `free_before`: how many these were when the cycle first
    met it. `eligible`, `usable`: how many nodes at home fit, and how many of those may work. `borrows`: its work may run on nodes of other
    vclusters, `lent` finds those.
    """

    __slots__ = (
        "_eq_classes", "_failed", "_touched", "borrows", "choice", "eligible", "free_before", "lent", "pool", "reservation", "usable",
    )  # fmt: skip

    def __init__(self, eq_classes: EquivalenceClasses, key: EquivalenceKey) -> None:
        need, topology, conformance, self.reservation, grace, classes = key
        self.borrows = grace is not None
        self._eq_classes = eq_classes
        self.choice = eq_classes.choice(need, topology, conformance, classes)
        self.pool = self.choice.pool
        self.lent = LentNodes(eq_classes.lending, self.choice, self.reservation, borrows=self.borrows)
        self.free_before = self.pool.whole.total
        self.eligible, self.usable = self.pool.sizes
        self._failed: list[tuple[int, float]] = []
        self._touched: tuple[int, bool] = (-1, False)

    def fit(self, candidate: Candidate, duration: float, room: int, *, retry: bool, most: int = 0) -> Fit | NoFit:
        """Returns nodes on which a candidate may start now for `duration` seconds without delaying a reservation, else NoFit, with watts
        where it is power that lacks; claims none. Too few nodes are noted as a failure of this size and duration.

        As many as possible from its minimum to `most` (0: its minimum only), and no more than quota leaves (`room`); only its minimum where
        some are borrowed. `retry`: searches even where a request no larger has failed in this cycle.
        """
        nodes = candidate.minimum
        if not retry and self._failed:
            for size, time in self._failed:
                if size <= nodes and time <= duration:
                    return NO_NODES
        most, free = min(most or nodes, room), self.pool.whole.total
        found = self._fit_at_home(nodes, duration, most, free) if free >= nodes else None
        if found is None and self.borrows:
            found = self._fit_with_borrowed(candidate, duration)
        if found is not None:
            power, drawn = self._eq_classes.state.power.limit, self._eq_classes.state.node_cache.watts
            return found if power is None else within_power(self.choice, found, nodes, most, max(0, power - drawn))
        self._failed = [entry for entry in self._failed if entry[0] < nodes or entry[1] < duration]
        self._failed.append((nodes, duration))
        return NO_NODES

    def _fit_at_home(self, nodes: int, duration: float, most: int, free: int) -> Fit | None:
        """Finds nodes at home, of which `free` are free; None where those that nothing keeps are too few, or do not fit together."""
        pool = self.pool
        if self._is_reduced(duration):
            if self._eq_classes.profile.unreserved.known_short(pool, nodes, duration):
                return None
            pool = self.now_pool(duration)
            free = pool.whole.total
        counts = self.choice.choose(pool, nodes, min(free, most))
        return None if counts is None else Fit(pool, counts)

    def _fit_with_borrowed(self, candidate: Candidate, duration: float) -> Fit | None:
        """Returns home and lent nodes for a candidate's minimum, for `duration` seconds from now; None where the vcluster may not borrow
        enough or they do not fit.
        """
        for pool in self.lent.pools(candidate, duration):
            counts = self.choice.choose(pool, candidate.minimum, min(pool.whole.total, candidate.minimum))
            if counts is not None:
                return Fit(pool, counts)
        return None

    def forget_failures(self) -> None:
        """Drops the failed sizes and durations, so that they are searched again; called when reservations were revoked."""
        self._failed.clear()

    def now_pool(self, duration: float) -> FreeCounts:
        """Returns a pool of the home nodes that are free for `duration` seconds from now: kept by no reservation, closed by no window."""
        if not self._is_reduced(duration):
            return self.pool
        return self._eq_classes.profile.free_from_now.of_pool(self.pool, self._eq_classes.now + duration, self.reservation)

    def _is_reduced(self, duration: float) -> bool:
        """Tells whether a reservation or a window may keep some free nodes from work that starts now and lasts so many seconds."""
        profile, now = self._eq_classes.profile, self._eq_classes.now
        if not (profile.reservations or profile.windows.ordered or self.reservation):
            return False
        return bool(self.reservation) or self._is_reserved() or profile.windows.crosses(now, now + duration)

    def earliest(self, candidate: Candidate, before: BackfillReservation | None) -> BackfillReservation | None:
        """Returns the backfill reservation of home nodes, after now, with the earliest start that delays no other; does not add it.

        `before`: the reservation that the candidate had, which the caller has taken out of the table; it is returned, if still possible,
        where no earlier one is found. None: no time is known at which the candidate could start.
        """
        eq_classes = self._eq_classes
        duration, nodes, now = eq_classes.state.occupancy(candidate), candidate.minimum, eq_classes.now
        if before is not None and (before.start <= now or not self._still(before, duration)):
            before = None
        for start in eq_classes.profile.unreserved.starts(self.pool, nodes, duration, NEVER if before is None else before.start):
            found = self.at(candidate, start, duration)
            if found is not None:
                return found
        return before

    def at(self, candidate: Candidate, start: float, duration: float) -> BackfillReservation | None:
        """Returns a backfill reservation of home nodes from `start` (after now) for at least `duration` seconds that delays no other; does
        not add it. None: too few nodes are free then, or they do not fit together.
        """
        profile, nodes = self._eq_classes.profile, candidate.minimum
        end = round_up(start + duration, self._eq_classes.now)
        pool = profile.pool_at(self.pool, start, end, self.reservation, nodes)
        counts = None if pool is None else self.choice.choose(pool, nodes, nodes)
        if counts is None:
            return None
        return BackfillReservation(candidate.uid, candidate.vcluster, start, end, tuple((bucket.key, count) for bucket, count in counts))

    def no_later(self, candidate: Candidate, duration: float, before: BackfillReservation) -> BackfillReservation | None:
        """Returns a backfill reservation for `duration` seconds that starts no later than `before`, which was taken out of the table, and
        delays no other: `before` itself if it is still possible, else the earliest one; None: there is none. Does not add it.
        """
        if self._still(before, duration):
            return before
        starts = self._eq_classes.profile.unreserved.starts(self.pool, candidate.minimum, duration, before.start)
        for start in (*starts, before.start):
            found = self.at(candidate, start, duration)
            if found is not None:
                return found
        return None

    def largest_equal(self, sizes: Mapping[Bucket, int]) -> int:
        """Returns the size of the largest set of nodes of one fingerprint, given how many nodes of each bucket count; an unknown
        one counts 1.
        """
        totals: dict[str, int] = {}
        for bucket, size in sizes.items():
            name = bucket.key.fingerprint
            totals[name] = totals.get(name, 0) + size if name else min(1, totals.get(name, 0) + size)
        return max(totals.values(), default=0)

    def _is_reserved(self) -> bool:
        """Tells whether any backfill reservation keeps nodes of the own pool; remembers the answer until reservations change."""
        layout = self._eq_classes.profile.layout
        if self._touched[0] != layout:
            self._touched = (layout, self._eq_classes.profile.table.touches(self.pool.members))
        return self._touched[1]

    def _still(self, held: BackfillReservation, duration: float) -> bool:
        """Tells whether a reservation that was taken out of the table lasts `duration` seconds, and its nodes are free up to its end.

        False where it is shorter, whatever is free, and where a node has left the pool of this class.
        """
        profile = self._eq_classes.profile
        end = max(held.end, held.start + duration)
        slots = profile.table.slots(held)
        if sum([count for _, count in slots]) < held.nodes:
            return False
        for bucket, count in slots:
            if bucket not in self.pool.members or profile.capacity(bucket, held.start, end, self.reservation) < count:
                return False
        return held.end >= held.start + duration


class EquivalenceClasses:
    """The equivalence classes and request shapes of one cycle, and what they share: profile, choices among nodes, lenders."""

    def __init__(
        self, state: ClusterState, policy: Policy, strategy: Strategy, profile: AvailabilityProfile, queue: PendingQueue, now: float
    ) -> None:
        self.state, self.policy, self.strategy, self.profile, self.now = state, policy, strategy, profile, now
        self.home = policy.name if policy.home else ""
        self.borrowing = policy.borrowing.borrow and strategy.lends
        self.lending = Lending(state, policy, profile, now)
        self.shapes: dict[int, RequestShape] = {}
        """By the number of a request shape in the pending queue; only those of which a candidate has been evaluated."""
        self._choices = queue.choices
        self._choices.begin_cycle(state.free_counts, self.home, queue.asked)
        self._families = queue.families
        self._by_family: dict[int, EquivalenceClass] = {}
        self._narrowed: dict[tuple[int, frozenset[Hardware]], RequestShape] = {}
        self._evaluated: list[RequestShape] = []
        self._by_key: dict[EquivalenceKey, EquivalenceClass] = {}

    def choice(self, need: Need, topology: str, conformance: str, classes: frozenset[Hardware] | None) -> NodeChoice:
        """Returns the choice among nodes for such requests, on these classes of hardware (None: all); it is kept from cycle to cycle."""
        strategy = self.strategy
        key = ChoiceKey(need, topology, conformance, self.home, classes, strategy.conformant, strategy.fullest)
        return self._choices.choice(self.state.free_counts, key)

    def class_of(self, candidate: Candidate, classes: frozenset[Hardware] | None = None) -> EquivalenceClass:
        """Returns the equivalence class of a candidate on nodes of these classes of hardware only (None: of all)."""
        borrows = candidate.grace if self.borrowing and not candidate.non_preemptible else None
        key = (candidate.need, candidate.topology, candidate.conformance, candidate.reservation, borrows, classes)
        eq_class = self._by_key.get(key)
        if eq_class is None:
            eq_class = self._by_key[key] = EquivalenceClass(self, key)
        return eq_class

    def shape(self, number: int, candidate: Candidate, classes: frozenset[Hardware] | None = None) -> RequestShape:
        """Returns the request shape of a candidate; `number`: that of the shape in the pending queue.

        `classes`: only nodes of these classes of hardware, as the quota tree allows (None: of all).
        """
        shape = self.shapes.get(number) if classes is None else self._narrowed.get((number, classes))
        if shape is None:
            eq_class = self._class_of_family(self._families[number], candidate) if classes is None else self.class_of(candidate, classes)
            shape = RequestShape(eq_class, self.state.occupancy(candidate))
            self._evaluated.append(shape)
            if classes is None:
                self.shapes[number] = shape
            else:
                self._narrowed[number, classes] = shape
        return shape

    def _class_of_family(self, family: int, candidate: Candidate) -> EquivalenceClass:
        """Returns the equivalence class of the candidates of one family (a number in the pending queue), on nodes of all classes of
        hardware.
        """
        eq_class = self._by_family.get(family)
        if eq_class is None:
            eq_class = self._by_family[family] = self.class_of(candidate)
        return eq_class

    def forget_failures(self) -> None:
        """Drops the failures of all classes and shapes, so that they are searched again; called when reservations were revoked."""
        for eq_class in self._by_key.values():
            eq_class.forget_failures()
        for shape in self._evaluated:
            shape.failed = False
