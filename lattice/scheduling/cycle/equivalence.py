"""Equivalence classes: candidates of one cycle that ask for the same nodes in the same way, and differ in size and time only.

An equivalence class knows the free counts that it draws from, which sizes and durations have failed in this cycle (a failure
rejects every larger request: availability only falls), and how many groups its nodes would take on an empty machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import fsum
from typing import Final, NamedTuple

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, Bucket
from lattice.scheduling.cluster.placement import Ask, Counts, Found, counts_of, find, inside
from lattice.scheduling.cluster.releases import round_up
from lattice.scheduling.model.hardware import Hardware, Need
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import Strategy, lenders_for
from lattice.scheduling.model.work import IGNORED, REQUIRED, SPREAD, TIGHT, Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.headroom import NO_LIMIT
from lattice.scheduling.state.pending_queue import PendingQueue

EquivalenceKey = tuple[Need, str, str, str, float | None, frozenset[Hardware] | None]
"""Need, topology, conformance, reservation, the grace of work that may borrow (None: it may not), and the classes of nodes that
the quota tree leaves to it (None: all)."""


class Fit(NamedTuple):
    """Nodes that a candidate may start on now: how many of which bucket (`counts`), taken from the pool in which they were found."""

    pool: FreeCounts
    counts: Counts


class NoFit(NamedTuple):
    """The answer that a candidate cannot start now. `watts`: 0 where nodes are missing.

    Else the power budget is exceeded, and `watts` is what the nodes found would draw.
    """

    watts: int = 0


NO_NODES: Final = NoFit()


class RequestShape:
    """Candidates of one equivalence class with one size and duration (seconds): if one of them finds no nodes, neither does the next."""

    __slots__ = ("duration", "eq_class", "failed")

    def __init__(self, eq_class: EquivalenceClass, duration: float) -> None:
        self.eq_class, self.duration = eq_class, duration
        self.failed = False
        """Whether a candidate of this shape found no nodes in this cycle."""


class EquivalenceClass:
    """The candidates of one cycle that ask for the same nodes in the same way; finds nodes and reservations for them.

    `pool`: the free nodes at home that it may use. `free_before`: how many these were when the cycle first met it. `eligible`,
    `usable`: how many nodes at home fit, and how many of those may work. `borrows`: its work may run on nodes of other vclusters.
    """

    __slots__ = (
        "_classes",
        "_eq_classes",
        "_failed",
        "_idle_of",
        "_known",
        "_lent",
        "_limits",
        "_members",
        "_names",
        "_ordinary",
        "_own_ask",
        "_plain",
        "_pressures",
        "_reach",
        "_spread",
        "_touched",
        "borrows",
        "conformance",
        "eligible",
        "free_before",
        "home",
        "kinds",
        "need",
        "pool",
        "reservation",
        "tight",
        "usable",
    )  # fmt: skip

    def __init__(self, eq_classes: EquivalenceClasses, key: EquivalenceKey) -> None:
        self.need, topology, conformance, self.reservation, grace, self._classes = key
        self.borrows = grace is not None
        self._eq_classes = eq_classes
        self._known = eq_classes.strategy.conformant
        self.conformance = REQUIRED if self._known else conformance
        self.tight = topology == TIGHT
        self.home = eq_classes.home
        self.pool = eq_classes.state.free_counts.pool_for(self.need, self.home, known=self._known, classes=self._classes)
        self.free_before = self.pool.whole.total
        self.kinds = self.pool.kinds
        self._pressures: dict[str, float] | None = None
        self.eligible, self.usable = self.pool.sizes
        self._failed: list[tuple[int, float]] = []
        self._limits: dict[tuple[int, int], int] = {}
        self._touched: tuple[int, bool] = (-1, False)
        self._spread = topology == SPREAD
        self._own_ask = self._ask(self.pool)
        self._plain: list[FreeCounts] | None = None
        self._ordinary = not (self.tight or self._spread or eq_classes.strategy.fullest)
        self._members = self.pool.members
        self._names: list[tuple[str, frozenset[str]]] | None = None
        """The known fingerprints of the plainest hardware, the least pressed first; None: to be found."""
        self._lent: dict[frozenset[str], list[Bucket]] = {}
        """The buckets of lending vclusters that admit the need, by the set of these vclusters."""
        self._idle_of: tuple[list[Bucket], int, int] = ([], -1, 0)
        self._reach: dict[frozenset[str], tuple[list[Bucket], int, int]] = {}

    def fit(self, candidate: Candidate, duration: float, room: int, *, retry: bool, most: int = 0) -> Fit | NoFit:
        """Returns nodes on which a candidate may start now for `duration` seconds without delaying a reservation, else NoFit; claims none.

        As many as possible from its minimum to `most` (0: its minimum only), and no more than quota leaves (`room`); only its minimum
        where some are borrowed. `retry`: searches even where a request no larger has failed in this cycle.
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
            return found if self._eq_classes.state.power.limit is None else self._within_power(found, nodes, most)
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
        counts = self._choose(pool, nodes, min(free, most))
        return None if counts is None else Fit(pool, counts)

    def _fit_with_borrowed(self, candidate: Candidate, duration: float) -> Fit | None:
        """Returns home and lent nodes for a candidate's minimum, for `duration` seconds from now; None where the vcluster may not borrow
        enough or they do not fit.
        """
        for pool in self._with_borrowed(candidate, duration):
            counts = self._choose(pool, candidate.minimum, min(pool.whole.total, candidate.minimum))
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

    def fits(self, pool: FreeCounts, nodes: int) -> bool:
        """Tells whether `nodes` nodes of a pool satisfy topology and conformance of this class together."""
        return find(pool, nodes, self._ask(pool)) is not None

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
            end = round_up(start + duration, now)
            pool = eq_classes.profile.pool_at(self.pool, start, end, self.reservation, nodes)
            counts = None if pool is None else self._choose(pool, nodes, nodes)
            if counts is not None:
                by_key = tuple((bucket.key, count) for bucket, count in counts)
                return BackfillReservation(candidate.uid, candidate.vcluster, start, end, by_key)
        return before

    def limit(self, pool: FreeCounts, nodes: int) -> int:
        """Returns the fewest groups that `nodes` nodes would take if all usable nodes of the pool were free; 0: so many do not exist.

        Where this class requires equal fingerprints, several nodes are counted only within one known fingerprint; a single one needs none.
        """
        key = (len(pool.buckets), nodes)
        known = self._limits.get(key)
        if known is None:
            empty = pool.capped({bucket: bucket.usable for bucket in pool.buckets})
            parts = [part for name, part in empty.parts.items() if name] if self.conformance == REQUIRED and nodes > 1 else [empty.whole]
            known = self._limits[key] = min((part.fewest(nodes) for part in parts if part.total >= nodes), default=0)
        return known

    def largest_equal(self, sizes: Mapping[Bucket, int]) -> int:
        """Returns the size of the largest set of nodes of one fingerprint, given how many nodes of each bucket count; an unknown
        one counts 1.
        """
        totals: dict[str, int] = {}
        for bucket, size in sizes.items():
            name = bucket.key.fingerprint
            totals[name] = totals.get(name, 0) + size if name else min(1, totals.get(name, 0) + size)
        return max(totals.values(), default=0)

    def lenders(self, candidate: Candidate) -> list[Bucket]:
        """Returns the buckets, free nodes or not, of other vclusters whose nodes a candidate may borrow for its whole walltime.

        Whether the candidate is preemptible, as it must be to borrow, is not checked.
        """
        homes = self._eq_classes.lenders(candidate.walltime)
        found = self._lent.get(homes)
        if found is None:
            found = self._lent[homes] = [
                bucket
                for bucket in self._eq_classes.state.node_cache.table.admitted(self.need)
                if bucket.key.home in homes
                and (bucket.key.fingerprint or not self._known)
                and (self._classes is None or bucket.key.hardware in self._classes)
            ]
        return found

    def within_reach(self, candidate: Candidate) -> tuple[list[Bucket], int, int]:
        """Returns the buckets that a candidate may ever use, its own and those of lenders; how many of their nodes fit; and how
        many may work.

        Nodes of lenders count at most as many as the vcluster may borrow.
        """
        homes = self._eq_classes.lenders(candidate.walltime) if self.borrows else frozenset()
        found = self._reach.get(homes)
        if found is None:
            lent, most = self.lenders(candidate) if homes else [], self._eq_classes.policy.borrowing.max_borrowed
            others, ready = sum(len(bucket.members) for bucket in lent), sum(bucket.usable for bucket in lent)
            if most is not None:
                others, ready = min(others, most), min(ready, most)
            found = self._reach[homes] = [*self.pool.buckets, *lent], self.eligible + others, self.usable + ready
        return found

    def _is_reserved(self) -> bool:
        """Tells whether any backfill reservation keeps nodes of the own pool; remembers the answer until reservations change."""
        layout = self._eq_classes.profile.layout
        if self._touched[0] != layout:
            self._touched = (layout, self._eq_classes.profile.table.touches(self.pool.members))
        return self._touched[1]

    def _with_borrowed(self, candidate: Candidate, duration: float) -> Iterator[FreeCounts]:
        """Yields pools of nodes at home and of lenders: first with as many lent nodes as lack at home, then with all that may be borrowed.

        Yields nothing where both together have fewer free nodes than the candidate's minimum.
        """
        eq_classes = self._eq_classes
        left = eq_classes.borrowing_left()
        others = self.lenders(candidate) if left > 0 else []
        if self.pool.whole.total + min(left, self._idle(others)) < candidate.minimum:
            return
        pool = FreeCounts(eq_classes.state.node_cache, [*self.pool.buckets, *others])
        free = eq_classes.profile.capacities(pool.members, eq_classes.now, eq_classes.now + duration, self.reservation)
        lacking = candidate.minimum - sum(free[bucket] for bucket in self.pool.members)
        for most in (lacking, left) if 0 < lacking < left else (left,):
            caps, still = dict(free), most
            for bucket in others:
                caps[bucket] = min(caps[bucket], still)
                still -= caps[bucket]
            yield pool.capped(caps)

    def _idle(self, buckets: list[Bucket]) -> int:
        """Returns how many nodes of these buckets are free; remembers the last answer."""
        changes = self._eq_classes.state.node_cache.changes
        asked, at, idle = self._idle_of
        if asked is not buckets or at != changes:
            idle = sum([len(bucket.free) for bucket in buckets])
            self._idle_of = buckets, changes, idle
        return idle

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

    def _ask(self, pool: FreeCounts) -> Ask:
        """Returns the relation that nodes of a pool must have to each other for this class: conformance, most groups, spread."""
        usable = None
        if self._eq_classes.strategy.fullest:
            by_group = pool.by_group
            usable = lambda rank: max(1, sum(bucket.usable for bucket in by_group[rank]))  # noqa: E731
        limit = (lambda nodes: self.limit(pool, nodes)) if self.tight else None
        return Ask(self.conformance, limit, self._spread, usable)

    def _choose(self, pool: FreeCounts, least: int, most: int) -> Counts | None:
        """Chooses `least` to `most` nodes of a pool, which has `most`: as many as fit, of the plainest hardware that takes no more
        groups; None: they do not fit.
        """
        size = most
        if size < least:
            return None
        own = pool.members is self._members
        if own and self._ordinary and (pool.caps is None or pool.adjustment is not None) and (counts := self._in_one_group(pool, size)):
            return counts
        ask = self._own_ask if own else self._ask(pool)
        while size >= least:
            found = self._find(pool, size, ask)
            if found is not None:
                return counts_of(*found, size, ask, self._prefer)
            smaller = size - 1
            if self.conformance == REQUIRED:
                smaller = min(smaller, pool.largest_equal())
            if self.tight and (limit := self.limit(pool, size)):
                smaller = min(smaller, pool.whole.largest(limit))
            size = smaller
        return None

    def _in_one_group(self, pool: FreeCounts, nodes: int) -> Counts | None:
        """Chooses nodes of one fingerprint (of any, for one node or where conformance is ignored) and the plainest hardware in one group,
        the best possible choice; None where no group has enough.
        """
        plainest = pool if len(self.kinds) <= 1 else _adjusted_alike(self._plain_pools()[0], pool)
        if nodes == 1 or self.conformance == IGNORED:
            rank = plainest.whole.holding(nodes)
            return None if rank is None else inside(plainest, None, rank, nodes, self._prefer)
        if self._names is None:
            names = sorted(filter(None, plainest.parts), key=lambda name: (self._pressure_on(name), name))
            self._names = [(name, frozenset((name,))) for name in names]
        for name, alone in self._names:
            rank = plainest.parts[name].holding(nodes)
            if rank is not None:
                return inside(plainest, alone, rank, nodes, self._prefer)
        return None

    def _find(self, pool: FreeCounts, nodes: int, ask: Ask) -> tuple[FreeCounts, Found] | None:
        """Finds the part of a pool to take `nodes` nodes from, of the plainest hardware that allows it; None: they do not fit."""
        found = find(pool, nodes, ask, self._pressure_on)
        return None if found is None else self._plainest(pool, nodes, ask, found)

    def _plainest(self, pool: FreeCounts, nodes: int, ask: Ask, found: Found) -> tuple[FreeCounts, Found]:
        """Returns the pool without the scarcest hardware, as far as the rest allows as few groups and fingerprints as `found`, and
        its part.
        """
        if len(pool.kinds) <= 1:
            return pool, found
        for part in self._plainer(pool):
            plain = find(part, nodes, ask, self._pressure_on)
            if plain is not None and plain.kinds == found.kinds and plain.span == found.span:
                return part, plain
        return pool, found

    def _plainer(self, pool: FreeCounts) -> Iterator[FreeCounts]:
        """Yields parts of a pool: the class of hardware under the least pressure alone, then the two under the least, and so on,
        without the whole.
        """
        if pool.members is self._members:
            for plain in self._plain_pools():
                yield _adjusted_alike(plain, pool)
            return
        counts = {bucket: pool.cap(bucket) for bucket in pool.buckets}
        classes = self._eq_classes.by_pressure(pool.kinds)
        for last in range(1, len(classes)):
            some = frozenset(classes[:last])
            yield pool.capped({bucket: count if bucket.key.hardware in some else 0 for bucket, count in counts.items()})

    def _plain_pools(self) -> list[FreeCounts]:
        """Returns the parts of the own pool that `_plainer` yields, with all their free nodes."""
        if self._plain is None:
            classes, free_counts = self._eq_classes.by_pressure(self.kinds), self._eq_classes.state.free_counts
            some_of = [frozenset(classes[:last]) for last in range(1, len(classes))]
            self._plain = [free_counts.pool_for(self.need, self.home, known=self._known, classes=some) for some in some_of]
        return self._plain

    def _pressure_on(self, fingerprint: str) -> float:
        """Returns the mean pressure on the usable home nodes of one fingerprint; 0 where all hardware is the same."""
        if len(self.kinds) <= 1:
            return 0.0
        if self._pressures is None:
            self._pressures = {name: self._mean(alike) for name, alike in self.pool.mixture.items()}
        return self._pressures.get(fingerprint, 0.0)

    def _mean(self, sizes: Mapping[Hardware, int]) -> float:
        """Returns the mean pressure on classes of hardware, weighted by how many nodes each has; 0 without nodes."""
        some = sorted((hardware for hardware, size in sizes.items() if size), key=lambda hardware: hardware.worth)
        pressures = [self._eq_classes.pressure(hardware) for hardware in some]
        if len(set(pressures)) <= 1:
            return pressures[0] if pressures else 0.0  # exactly: sums of equal numbers differ in their last digits
        return sum(sizes[hardware] * pressure for hardware, pressure in zip(some, pressures, strict=True)) / sum(sizes.values())

    def _prefer(self, bucket: Bucket) -> tuple[object, ...]:
        """Returns the sort key of a bucket: nodes at home first, then the least pressure on its hardware, then the order of buckets."""
        return (bucket.key.home != self.home, self._eq_classes.pressure(bucket.key.hardware), bucket.order)

    def _within_power(self, fit: Fit, least: int, most: int) -> Fit | NoFit:
        """Returns a fit within the power budget: the given one, one of fewer nodes down to `least`, or of nodes that draw less;
        else NoFit.
        """
        state, (pool, counts) = self._eq_classes.state, fit
        if state.power.limit is None:
            return fit
        left, short = max(0, state.power.limit - state.node_cache.watts), _watts(counts)
        if short <= left:
            return fit
        found: Counts | None = None
        for part, surely in _thriftier(pool, left, least):
            some = self._choose(part, least, min(part.whole.total, most, max(least, surely)))
            if some is not None and _watts(some) <= left and (found is None or _size(some) > _size(found)):
                found = some
            short = short if some is None else min(short, _watts(some))
        return NoFit(short) if found is None else Fit(pool, found)


def _adjusted_alike(part: FreeCounts, pool: FreeCounts) -> FreeCounts:
    """Returns a part of all free nodes with as many nodes of each bucket as `pool` has."""
    if pool.caps is None:
        return part
    return part.capped(pool.caps) if pool.adjustment is None else pool.adjustment.pool_of(part)


def _thriftier(pool: FreeCounts, left: int, least: int) -> Iterator[tuple[FreeCounts, int]]:
    """Yields parts of a pool that draw less and less, each with how many of its nodes `left` watts surely allow.

    The last is the thriftiest nodes, as many as the watts allow together, and at least `least`.
    """
    thrifty = sorted(pool.buckets, key=lambda bucket: (bucket.key.hardware.watts, bucket.order))
    for hungriest in sorted({hardware.watts for hardware in pool.kinds}, reverse=True):
        caps = {bucket: pool.cap(bucket) if bucket.key.hardware.watts <= hungriest else 0 for bucket in thrifty}
        yield pool.capped(caps), left // hungriest if hungriest else NO_LIMIT
    taken: dict[Bucket, int] = {}
    for bucket in thrifty:
        watts, cap = bucket.key.hardware.watts, pool.cap(bucket)
        taken[bucket] = min(cap, max(left // watts, least - sum(taken.values()), 0)) if watts else cap
        left -= taken[bucket] * watts
    yield pool.capped(taken), sum(taken.values())


def _watts(counts: Counts) -> int:
    """Returns the nominal power of the chosen nodes."""
    return sum(bucket.key.hardware.watts * count for bucket, count in counts)


def _size(counts: Counts) -> int:
    """Returns how many nodes were chosen, of all buckets together."""
    return sum(count for _, count in counts)


class EquivalenceClasses:
    """The equivalence classes and request shapes of one cycle, and what they share: profile, pressure on hardware, lenders."""

    def __init__(
        self, state: ClusterState, policy: Policy, strategy: Strategy, profile: AvailabilityProfile, queue: PendingQueue, now: float
    ) -> None:
        self.state, self.policy, self.strategy, self.profile, self.now = state, policy, strategy, profile, now
        self.home = policy.name if policy.home else ""
        self.borrowing = policy.borrowing.borrow and strategy.lends
        self.shapes: dict[int, RequestShape] = {}
        """By the number of a request shape in the pending queue; only those of which a candidate has been evaluated."""
        self._queue = queue
        self._families = queue.families
        self._by_family: dict[int, EquivalenceClass] = {}
        self._narrowed: dict[tuple[int, frozenset[Hardware]], RequestShape] = {}
        self._evaluated: list[RequestShape] = []
        self._by_key: dict[EquivalenceKey, EquivalenceClass] = {}
        self._pressure: dict[Hardware, float] | None = None
        self._lenders: dict[float | None, frozenset[str]] = {}

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

    def borrowing_left(self) -> int:
        """Returns how many more nodes the vcluster may borrow; `NO_LIMIT` without a limit, negative where it has borrowed more."""
        most = self.policy.borrowing.max_borrowed
        return NO_LIMIT if most is None else most - self.state.uses.borrowed.get(self.policy.name, 0)

    def lenders(self, walltime: float | None) -> frozenset[str]:
        """Returns the names of the vclusters that lend to work of this walltime (seconds; None: unbounded)."""
        found = self._lenders.get(walltime)
        if found is None:
            found = self._lenders[walltime] = frozenset(lenders_for(self.state.policies, self.policy.name, walltime))
        return found

    def pressure(self, hardware: Hardware) -> float:
        """Returns the demand on a class of hardware, 0 without any: a sum over the vcluster's pending needs that the class satisfies.

        Each adds the nodes asked for ÷ the usable home nodes that satisfy it.
        """
        if self._pressure is None:
            self._pressure = self._pressures()
        return self._pressure.get(hardware, 0.0)

    def by_pressure(self, classes: Collection[Hardware]) -> list[Hardware]:
        """Returns classes of hardware in the order of taking: the least pressure first, then the plainest."""
        return sorted(classes, key=lambda hardware: (self.pressure(hardware), hardware.worth))

    def _pressures(self) -> dict[Hardware, float]:
        """Returns the demand on each class of hardware that a pending need of the queue admits, as `pressure` defines it."""
        shares: dict[Hardware, list[float]] = {}
        for need, nodes in self._queue.asked.items():
            pool = self.state.free_counts.pool_for(need, self.home)
            usable = max(1, pool.sizes[1])
            for hardware in pool.kinds:
                shares.setdefault(hardware, []).append(nodes / usable)
        return {hardware: fsum(some) for hardware, some in shares.items()}  # exact: the same in whatever order they came
