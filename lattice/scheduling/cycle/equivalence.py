"""Equivalence classes: candidates of one cycle that ask for the same nodes in the same way, and differ in size and time only.

A equivalence class knows the pools that it draws from, what has failed in this cycle (a failed size and duration rejects every larger
one: availability only falls), and what its groups would be on an empty machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import fsum
from typing import Literal

from lattice.scheduling.cluster.availability import AvailabilityProfile, BackfillReservation, round_up
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.group_counts import Groups
from lattice.scheduling.cluster.node_cache import NEVER, Bucket
from lattice.scheduling.cluster.placement import Ask, Counts, Found, counts_of, find, inside
from lattice.scheduling.cycle.gates import NO_LIMIT
from lattice.scheduling.model.hardware import Hardware, Need
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import STRATEGIES, Strategy
from lattice.scheduling.model.work import IGNORED, REQUIRED, SPREAD, TIGHT, Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.pending_queue import PendingQueue

EquivalenceKey = tuple[Need, str, str, str, float | None, frozenset[Hardware] | None]
"""Need, topology, conformance, reservation, the grace of work that may borrow (None: it may not), and the classes of nodes that
the quota tree leaves to it (None: all)."""

Alike = list[tuple[frozenset[str] | None, Groups]]
"""Nodes by group, of these fingerprints (None: whatever they are)."""


class RequestShape:
    """Candidates of one equivalence class that are of one size and time: what one of them may not have now, the next may not either."""

    __slots__ = ("cached", "duration", "eq_class", "failed", "never", "reason_epoch")

    def __init__(self, eq_class: EquivalenceClass, duration: float) -> None:
        self.eq_class, self.duration = eq_class, duration
        self.failed = False
        """Whether one of them found no nodes: availability only falls."""
        self.cached: tuple[str, str] | None = None
        """Why they wait; true until something is placed or promised after that (`reason_epoch`)."""
        self.reason_epoch = -1
        self.never: tuple[str, str] | Literal[False] | None = False
        """Why none of them could ever start on the nodes that there are; None: they could; False: not looked at yet."""


class EquivalenceClass:
    """One equivalence class; see the module's docstring."""

    __slots__ = (
        "_alike",
        "_classes",
        "_eq_classes",
        "_failed",
        "_idle_of",
        "_known",
        "_lent",
        "_limits",
        "_now_pools",
        "_ordinary",
        "_own_ask",
        "_plain",
        "_pressures",
        "_reach",
        "_spread",
        "_touched",
        "borrows",
        "cached",
        "conformance",
        "eligible",
        "free_before",
        "home",
        "kinds",
        "need",
        "pool",
        "power_short",
        "reservation",
        "taken_from",
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
        self.pool = eq_classes.state.free_counts.of(self.need, self.home, known=self._known, classes=self._classes)
        self.taken_from = self.pool
        self.free_before = self.pool.whole.total
        self.kinds = self.pool.kinds
        self._pressures: dict[str, float] | None = None
        self._now_pools: dict[float, tuple[tuple[int, int, int], FreeCounts]] = {}
        self.eligible, self.usable = self.pool.sizes
        self.cached: dict[int, tuple[int, tuple[str, str]]] = {}
        """By nodes that are needed, more than are free: how many were free, and why such work waited, where nothing else matters."""
        self.power_short = 0
        """Watts that the last attempt would have drawn and the power budget did not have; 0: power is not what blocks."""
        self._failed: list[tuple[int, float]] = []
        self._limits: dict[tuple[int, int], int] = {}
        self._touched: tuple[int, bool] = (-1, False)
        self._spread = topology == SPREAD
        self._own_ask = self._ask(self.pool)
        self._plain: list[FreeCounts] | None = None
        self._ordinary = not (self.tight or self._spread or eq_classes.strategy.fullest)
        self._alike: tuple[FreeCounts, Alike, Alike] | None = None
        """The pool of the plainest hardware; its fingerprints, the least pressed first; all of them as one."""
        self._lent: dict[frozenset[str], list[Bucket]] = {}
        """Buckets of lenders, by whose homes."""
        self._idle_of: tuple[list[Bucket], int, int] = ([], -1, 0)
        self._reach: dict[frozenset[str], tuple[list[Bucket], int, int]] = {}

    def start(self, candidate: Candidate, duration: float, room: int, *, retry: bool, most: int = 0) -> Counts | None:
        """Nodes that it may start on now for so long, delaying no promise: its least number, or up to `most`; None if there are too few."""
        nodes = candidate.minimum
        if not retry and self._failed:
            for size, time in self._failed:
                if size <= nodes and time <= duration:
                    return None
        self.power_short = 0
        most = min(most or nodes, room)
        pool, chosen = self.pool, None
        if pool.whole.total >= nodes:
            pool = self.now_pool(duration)
            chosen = self._choose(pool, nodes, most)
        if chosen is None and self.borrows:
            for pool in self._with_borrowed(candidate, duration):
                chosen = self._choose(pool, nodes, nodes)
                if chosen is not None:
                    break
        if chosen is not None:
            self.taken_from = pool
            chosen = self._within_power(pool, chosen, nodes, most)
            if chosen is not None or self.power_short:
                return chosen
        self._failed = [entry for entry in self._failed if entry[0] < nodes or entry[1] < duration]
        self._failed.append((nodes, duration))
        return None

    def forget_failures(self) -> None:
        """More is free again than was: try everything anew."""
        self._failed.clear()
        self.cached.clear()

    def now_pool(self, duration: float) -> FreeCounts:
        """What is free now for so long."""
        profile, now = self._eq_classes.profile, self._eq_classes.now
        if not (profile.promises or profile.bucket_windows or self.reservation):
            return self.pool
        if not self.reservation and not self._promised() and not profile.crosses(now, now + duration):
            return self.pool
        node_cache = self._eq_classes.state.node_cache
        stamp = (profile.version, node_cache.changes, node_cache.shape)
        known = self._now_pools.get(duration)
        if known is None or known[0] != stamp:
            pool = self.pool
            pool = pool.reduced(profile.reductions(pool.members, now + duration, self.reservation))
            known = self._now_pools[duration] = (stamp, pool)
        return known[1]

    def fits(self, pool: FreeCounts, nodes: int) -> bool:
        """Whether a pool has a place for so many."""
        return find(pool, nodes, self._ask(pool)) is not None

    def may_reserve(self, candidate: Candidate) -> bool:
        """Whether nodes are what it waits for, and usable ones for it exist at home."""
        return not self.power_short and self.usable >= candidate.minimum

    def promise(self, candidate: Candidate, before: BackfillReservation | None) -> BackfillReservation | None:
        """The earliest nodes that delay no other promise; those promised `before` where nothing is earlier."""
        eq_classes = self._eq_classes
        duration, nodes, now = eq_classes.state.occupancy(candidate), candidate.minimum, eq_classes.now
        if before is not None and (before.start <= now or not self._still(before, duration)):
            before = None
        for start in eq_classes.profile.starts(self.pool.members, nodes, duration, NEVER if before is None else before.start):
            end = round_up(start + duration, now)
            caps = eq_classes.profile.capacities(self.pool.members, start, end, self.reservation, nodes)
            if sum(caps.values()) < nodes:
                continue
            counts = self._choose(self.pool.capped(caps), nodes, nodes)
            if counts is not None:
                by_key = tuple((bucket.key, count) for bucket, count in counts)
                return BackfillReservation(candidate.uid, candidate.vcluster, start, end, by_key)
        return before

    def limit(self, pool: FreeCounts, nodes: int) -> int:
        """The fewest groups that so many would need if all usable nodes of the pool were free."""
        key = (len(pool.buckets), nodes)
        known = self._limits.get(key)
        if known is None:
            empty = pool.capped({bucket: bucket.usable for bucket in pool.buckets})
            parts = [part for name, part in empty.parts.items() if name] if self.conformance == REQUIRED and nodes > 1 else [empty.whole]
            known = self._limits[key] = min((part.fewest(nodes) for part in parts if part.total >= nodes), default=0)
        return known

    def largest_equal(self, sizes: Mapping[Bucket, int]) -> int:
        """The largest set of nodes of one known fingerprint, by the given size of each bucket."""
        totals: dict[str, int] = {}
        for bucket, size in sizes.items():
            name = bucket.key.fingerprint
            totals[name] = totals.get(name, 0) + size if name else min(1, totals.get(name, 0) + size)
        return max(totals.values(), default=0)

    def lenders(self, candidate: Candidate | None = None) -> list[Bucket]:
        """The buckets of others that it may borrow nodes of; with a candidate: for as long as it may run."""
        homes = self._eq_classes.lenders if candidate is None else self._eq_classes.lending_for(candidate.walltime)
        found = self._lent.get(homes)
        if found is None:
            found = self._lent[homes] = [
                bucket
                for bucket in self._eq_classes.state.node_cache.admitted(self.need)
                if bucket.key.home in homes
                and (bucket.key.fingerprint or not self._known)
                and (self._classes is None or bucket.key.hardware in self._classes)
            ]
        return found

    def within_reach(self, candidate: Candidate) -> tuple[list[Bucket], int, int]:
        """All buckets that it may ever use, its own and those of lenders; how many nodes of them it may have at a time, and how many
        usable ones."""
        homes = self._eq_classes.lending_for(candidate.walltime) if self.borrows else frozenset()
        found = self._reach.get(homes)
        if found is None:
            lent, most = self.lenders(candidate) if homes else [], self._eq_classes.policy.borrowing.max_borrowed
            others, ready = sum(len(bucket.members) for bucket in lent), sum(bucket.usable for bucket in lent)
            if most is not None:
                others, ready = min(others, most), min(ready, most)
            found = self._reach[homes] = [*self.pool.buckets, *lent], self.eligible + others, self.usable + ready
        return found

    def _promised(self) -> bool:
        version = self._eq_classes.profile.version
        if self._touched[0] != version:
            self._touched = (version, self._eq_classes.profile.touches(self.pool.members))
        return self._touched[1]

    def _with_borrowed(self, candidate: Candidate, duration: float) -> Iterator[FreeCounts]:
        """Nodes at home and idle ones of lenders: first no more of these than it lacks at home, then as many as may be borrowed."""
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
        """How many nodes of these buckets are free; the last answer is remembered, many ask the same."""
        changes = self._eq_classes.state.node_cache.changes
        asked, at, idle = self._idle_of
        if asked is not buckets or at != changes:
            idle = sum([len(bucket.free) for bucket in buckets])
            self._idle_of = buckets, changes, idle
        return idle

    def _still(self, promise: BackfillReservation, duration: float) -> bool:
        """Whether promised nodes are still there at that time, for as long as it may run now."""
        profile = self._eq_classes.profile
        end = max(promise.end, promise.start + duration)
        slots = profile.slots(promise)
        if sum([count for _, count in slots]) < promise.nodes:
            return False
        for bucket, count in slots:
            if bucket not in self.pool.members or profile.capacity(bucket, promise.start, end, self.reservation) < count:
                return False
        return promise.end >= promise.start + duration

    def _ask(self, pool: FreeCounts) -> Ask:
        usable = None
        if self._eq_classes.strategy.fullest:
            by_group = pool.by_group
            usable = lambda rank: max(1, sum(bucket.usable for bucket in by_group[rank]))  # noqa: E731
        limit = (lambda nodes: self.limit(pool, nodes)) if self.tight else None
        return Ask(self.conformance, limit, self._spread, usable)

    def _choose(self, pool: FreeCounts, least: int, most: int) -> Counts | None:
        """Between `least` and `most` nodes of a pool, as many as fit; the plainest hardware that needs no more groups."""
        size = min(pool.whole.total, most)
        if size < least:
            return None
        if pool is self.pool and self._ordinary and (counts := self._in_one_group(size)):
            return counts
        ask = self._own_ask if pool is self.pool else self._ask(pool)
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

    def _in_one_group(self, nodes: int) -> Counts | None:
        """A place in one group, of one fingerprint and the plainest hardware, if there is one: no other is preferred to that."""
        if self._alike is None:
            plainest = self.pool if len(self.kinds) <= 1 else next(self._plainer(self.pool))
            names = sorted(filter(None, plainest.parts), key=lambda name: (self._pressure_on(name), name))
            self._alike = plainest, [(frozenset((name,)), plainest.parts[name]) for name in names], [(None, plainest.whole)]
        plainest, alike, whole = self._alike
        for within, part in whole if nodes == 1 or self.conformance == IGNORED else alike:
            rank = part.holding(nodes)
            if rank is not None:
                return inside(plainest, within, rank, nodes, self._prefer)
        return None

    def _find(self, pool: FreeCounts, nodes: int, ask: Ask) -> tuple[FreeCounts, Found] | None:
        """The part of a pool to take so many from, of the plainest hardware that allows it."""
        found = find(pool, nodes, ask, self._pressure_on)
        return None if found is None else self._plainest(pool, nodes, ask, found)

    def _plainest(self, pool: FreeCounts, nodes: int, ask: Ask, found: Found) -> tuple[FreeCounts, Found]:
        """The pool without the scarcest hardware that still allows the same groups and fingerprints."""
        if len(pool.kinds) <= 1:
            return pool, found
        for part in self._plainer(pool):
            plain = find(part, nodes, ask, self._pressure_on)
            if plain is not None and plain.kinds == found.kinds and plain.span == found.span:
                return part, plain
        return pool, found

    def _plainer(self, pool: FreeCounts) -> Iterator[FreeCounts]:
        """The pool of the least pressed hardware alone, of the two least pressed, and so on."""
        if pool.members is not self.pool.members:
            counts = {bucket: pool.cap(bucket) for bucket in pool.buckets}
            classes = self._eq_classes.by_pressure(pool.kinds)
            for last in range(1, len(classes)):
                some = frozenset(classes[:last])
                yield pool.capped({bucket: count if bucket.key.hardware in some else 0 for bucket, count in counts.items()})
            return
        if self._plain is None:
            classes, free_counts = self._eq_classes.by_pressure(self.kinds), self._eq_classes.state.free_counts
            some_of = [frozenset(classes[:last]) for last in range(1, len(classes))]
            self._plain = [free_counts.of(self.need, self.home, known=self._known, classes=some) for some in some_of]
        caps = pool.caps
        for plain in self._plain:
            if caps is None:
                yield plain
            elif len(caps) == len(pool.members):
                yield plain.capped(caps)
            else:
                yield plain.reduced({bucket: count for bucket, count in caps.items() if bucket in plain.members})

    def _pressure_on(self, fingerprint: str) -> float:
        """The mean pressure on the usable nodes at home of one fingerprint; 0 where all hardware is the same."""
        if len(self.kinds) <= 1:
            return 0.0
        if self._pressures is None:
            self._pressures = {name: self._mean(alike) for name, alike in self.pool.mixture.items()}
        return self._pressures.get(fingerprint, 0.0)

    def _mean(self, sizes: Mapping[Hardware, int]) -> float:
        some = sorted((hardware for hardware, size in sizes.items() if size), key=lambda hardware: hardware.worth)
        pressures = [self._eq_classes.pressure(hardware) for hardware in some]
        if len(set(pressures)) <= 1:
            return pressures[0] if pressures else 0.0  # exactly: sums of equal numbers differ in their last digits
        return sum(sizes[hardware] * pressure for hardware, pressure in zip(some, pressures, strict=True)) / sum(sizes.values())

    def _prefer(self, bucket: Bucket) -> tuple[object, ...]:
        return (bucket.key.home != self.home, self._eq_classes.pressure(bucket.key.hardware), bucket.order)

    def _within_power(self, pool: FreeCounts, counts: Counts, least: int, most: int) -> Counts | None:
        """The same, or what power is left for: fewer nodes down to `least`, nodes that draw less; None with `power_short`."""
        state = self._eq_classes.state
        if state.power.limit is None:
            return counts
        left, short = max(0, state.power.limit - state.node_cache.watts), _watts(counts)
        if short <= left:
            return counts
        found: Counts | None = None
        for part, surely in _thriftier(pool, left, least):
            some = self._choose(part, least, min(most, max(least, surely)))
            if some is not None and _watts(some) <= left and (found is None or _size(some) > _size(found)):
                found = some
            short = short if some is None else min(short, _watts(some))
        self.power_short = 0 if found is not None else short
        return found


def _thriftier(pool: FreeCounts, left: int, least: int) -> Iterator[tuple[FreeCounts, int]]:
    """Parts of a pool that draw less and less, with how many nodes of each `left` watts surely allow; at last the thriftiest nodes,
    as many as they allow together, and `least` at least."""
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
    """Nominal power of so many nodes."""
    return sum(bucket.key.hardware.watts * count for bucket, count in counts)


def _size(counts: Counts) -> int:
    return sum(count for _, count in counts)


class EquivalenceClasses:
    """The equivalence classes of one cycle, and what they share: the profile, the pressure on hardware, who lends."""

    def __init__(
        self, state: ClusterState, policy: Policy, strategy: Strategy, profile: AvailabilityProfile, pending_queue: PendingQueue, now: float
    ) -> None:
        self.state, self.policy, self.strategy, self.profile, self.now = state, policy, strategy, profile, now
        self.home = policy.name if policy.home else ""
        self.placed = 0
        """How many were placed in this cycle."""
        self.borrowing = policy.borrowing.borrow and strategy.lends
        self.lenders = self._lenders() if self.borrowing else frozenset()
        self.shapes: list[RequestShape | None] = [None] * pending_queue.numbers
        """By their numbers in the pending queue; None: nobody of it was looked at yet."""
        self._families = pending_queue.families
        self._family: dict[int, EquivalenceClass] = {}
        self._narrowed: dict[tuple[int, frozenset[Hardware]], RequestShape] = {}
        self._looked_at: list[RequestShape] = []
        self._asked = pending_queue.asked
        self._eq_classes: dict[EquivalenceKey, EquivalenceClass] = {}
        self._pressure: dict[Hardware, float] | None = None
        self._contested: set[Bucket] = set()
        self._lending: dict[float | None, frozenset[str]] = {}

    def of(self, candidate: Candidate, classes: frozenset[Hardware] | None = None) -> EquivalenceClass:
        """The equivalence class of a candidate, on nodes of these classes only."""
        borrows = candidate.grace if self.borrowing and not candidate.non_preemptible else None
        key = (candidate.need, candidate.topology, candidate.conformance, candidate.reservation, borrows, classes)
        eq_class = self._eq_classes.get(key)
        if eq_class is None:
            eq_class = self._eq_classes[key] = EquivalenceClass(self, key)
        return eq_class

    def shape(self, number: int, candidate: Candidate, classes: frozenset[Hardware] | None = None) -> RequestShape:
        """The kind of this number, of which a candidate is one, on nodes of these classes only."""
        shape = self.shapes[number] if classes is None else self._narrowed.get((number, classes))
        if shape is None:
            eq_class = self._of_family(self._families[number], candidate) if classes is None else self.of(candidate, classes)
            shape = RequestShape(eq_class, self.state.occupancy(candidate))
            self._looked_at.append(shape)
            if classes is None:
                self.shapes[number] = shape
            else:
                self._narrowed[number, classes] = shape
        return shape

    def _of_family(self, family: int, candidate: Candidate) -> EquivalenceClass:
        eq_class = self._family.get(family)
        if eq_class is None:
            eq_class = self._family[family] = self.of(candidate)
        return eq_class

    def forget_failures(self) -> None:
        """More is free again than was: try everything anew."""
        for eq_class in self._eq_classes.values():
            eq_class.forget_failures()
        for shape in self._looked_at:
            shape.failed, shape.cached = False, None

    def contend(self, eq_class: EquivalenceClass) -> None:
        """Somebody waits for the nodes of this equivalence class."""
        self._contested.update(eq_class.pool.buckets)

    def contested(self, eq_class: EquivalenceClass) -> bool:
        """Whether somebody waits for a node of this equivalence class."""
        return not self._contested.isdisjoint(eq_class.pool.buckets)

    def borrowing_left(self) -> int:
        """How many nodes more the vcluster may borrow."""
        most = self.policy.borrowing.max_borrowed
        return NO_LIMIT if most is None else most - self.state.uses.borrowed.get(self.policy.name, 0)

    def lending_for(self, walltime: float | None) -> frozenset[str]:
        """Who lends to work of this walltime."""
        found = self._lending.get(walltime)
        if found is None:
            found = self._lending[walltime] = frozenset(lender for lender in self.lenders if self.lends_for(lender, walltime))
        return found

    def lends_for(self, lender: str, walltime: float | None) -> bool:
        """Whether work of this walltime may borrow of a vcluster."""
        limits = (self.policy.borrowing.max_duration, self.state.policy(lender).borrowing.max_duration)
        longest = min((limit for limit in limits if limit is not None), default=NEVER)
        return (NEVER if walltime is None else walltime) <= longest

    def pressure(self, hardware: Hardware) -> float:
        """Nodes that the queue asks of this hardware, over those that it could get instead: each need spread evenly."""
        if self._pressure is None:
            self._pressure = self._pressures()
        return self._pressure.get(hardware, 0.0)

    def by_pressure(self, classes: Collection[Hardware]) -> list[Hardware]:
        """Classes of nodes, the ones to take first at the front: the least pressed, then the plainest."""
        return sorted(classes, key=lambda hardware: (self.pressure(hardware), hardware.worth))

    def _pressures(self) -> dict[Hardware, float]:
        shares: dict[Hardware, list[float]] = {}
        for need, nodes in self._asked.items():
            pool = self.state.free_counts.of(need, self.home)
            usable = max(1, pool.sizes[1])
            for hardware in pool.kinds:
                shares.setdefault(hardware, []).append(nodes / usable)
        return {hardware: fsum(some) for hardware, some in shares.items()}  # exact: the same in whatever order they came

    def _lenders(self) -> frozenset[str]:
        return frozenset(
            name
            for name, policy in self.state.policies.items()
            if name != self.policy.name and policy.borrowing.lend and policy.home and STRATEGIES[policy.kind].lends
        )
