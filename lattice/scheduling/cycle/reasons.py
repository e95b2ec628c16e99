"""Explains why a candidate waits: a reason of the closed list, a sentence with the numbers, and who would have to give nodes back.

Candidates of one request shape have the same reason until a node or a reservation changes, so each is found once (`ReasonCache`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.eligibility import census_of
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, UNHEARD, Bucket
from lattice.scheduling.cycle.equivalence import EquivalenceClass, EquivalenceClasses, RequestShape
from lattice.scheduling.cycle.never_fits import never_fits
from lattice.scheduling.cycle.power_fit import NO_NODES, NoFit
from lattice.scheduling.cycle.reason_cache import ReasonAndMessage, ReasonCache
from lattice.scheduling.cycle.reclaims import lent, reclaims_for
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.cycle.window_reasons import WindowReasons
from lattice.scheduling.cycle.wording import are, count_groups, count_jobs, count_nodes, kilowatts, unequal, was
from lattice.scheduling.model.outcomes import Score, Waiting
from lattice.scheduling.model.policy import SENSITIVE_RESERVATION, Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import REQUIRED, Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_time

_SILENCE: Final[ReasonAndMessage] = ("", "")


class Explainer:
    """Finds the reasons for waiting of one cycle; with `silent` every reason and sentence is empty."""

    def __init__(
        self,
        state: ClusterState,
        policy: Policy,
        eq_classes: EquivalenceClasses,
        reservations: CycleReservations,
        now: float,
        *,
        silent: bool,
    ) -> None:
        self._silent = silent
        self._state, self._policy, self._eq_classes, self._profile, self._now = state, policy, eq_classes, reservations.profile, now
        self.cache = ReasonCache(reservations)
        self._windows = WindowReasons(state, reservations.profile, self.cache, now)

    def waiting(
        self, candidate: Candidate, shape: RequestShape, score: Score | None, fit: NoFit = NO_NODES,
        reservation: BackfillReservation | None = None,
    ) -> Waiting:  # fmt: skip
        """Returns the outcome of a candidate that was not placed: reason and sentence (empty in silence), wake-up time and latest start.

        `reservation`: the one that the candidate holds; None: none. Only with one, and in a vcluster with home nodes, the outcome has the
        borrowers to ask for nodes. `fit`: the answer of the search for nodes.
        """
        wake = self._windows.wake(candidate) if candidate.reservation else None
        if self._silent:
            return Waiting(candidate, "", "", wake, score, None if reservation is None else reservation.start)
        reason, message = self.reason_of(candidate, shape, fit)
        if reservation is None:
            return Waiting(candidate, reason, message, wake, score)
        if reason == "BehindHigherPriority":
            message = f"{message}; it starts at the latest {format_time(reservation.start)}"
        reclaims = reclaims_for(self._state, self._policy.name, candidate, shape.eq_class) if self._policy.home else ()
        if reclaims:
            message = f"{message}; {lent(reclaims)}"
        return Waiting(candidate, reason, message, wake, score, reservation.start, reclaims)

    def behind(self, candidate: Candidate, shape: RequestShape, score: Score | None) -> Waiting:
        """Returns the outcome of a candidate that strict order keeps behind an earlier one that waits for nodes which both could use; its
        reason is another where too few nodes exist or may be used, and empty in silence.
        """
        if self._silent:
            return Waiting(candidate, "", "", None, score)
        found = self._never(candidate, shape)
        if found is None:
            before = f"needs {count_nodes(candidate.minimum)}; work submitted before it waits for nodes that it could use"
            found = "BehindHigherPriority", f'{before}, and vCluster "{self._policy.name}" starts in strict order of submission'
        return Waiting(candidate, *found, None, score)

    def reason_of(self, candidate: Candidate, shape: RequestShape, fit: NoFit = NO_NODES) -> ReasonAndMessage:
        """Returns the reason and sentence of candidates of this shape, those known already or new ones, which are kept for the next one.

        Where power is what lacks (`fit` has watts), they are found anew and not kept. Both are empty in silence.
        """
        current = self.cache.current()
        found = current.get(shape)
        if found is None or fit.watts:
            found = self._find(candidate, shape, fit)
            if not fit.watts:
                current[shape] = found
        return found

    def _find(self, candidate: Candidate, shape: RequestShape, fit: NoFit) -> ReasonAndMessage:
        """Computes the reason and sentence of a candidate that found no nodes; both empty in silence.

        Reasons that only counts of free nodes decide are kept for shapes of the same class and number of nodes that last otherwise, unless
        the class borrows.
        """
        if self._silent:
            return _SILENCE
        eq_class, wanted = shape.eq_class, candidate.minimum
        free = eq_class.pool.whole.total
        if free >= wanted or candidate.reservation or fit.watts or self._policy.kind == SENSITIVE_RESERVATION:
            return (
                self._never(candidate, shape)
                or self._windows.outside_reservation(candidate, eq_class)
                or self._power(candidate, fit)
                or self._kept(candidate, eq_class)
                or self._short(candidate, eq_class)
            )
        found = self.cache.few_free(eq_class, wanted, free)
        if found is None:
            found = self._never(candidate, shape) or self._taken(eq_class, wanted, free) or self._short(candidate, eq_class)
            if not eq_class.borrows:  # how many nodes lenders have idle is in the sentence, too
                self.cache.keep_few_free(eq_class, wanted, free, found)
        return found

    def _never(self, candidate: Candidate, shape: RequestShape) -> ReasonAndMessage | None:
        """Returns the reason why too few nodes exist or may be used, whoever holds them; None where there are enough."""
        return self.cache.never(shape, lambda: self._too_few(candidate, shape.eq_class))

    def _too_few(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage | None:
        """Returns the reason where fewer nodes than the candidate's minimum exist, or may be used, or have one fingerprint if it requires
        that; else None.
        """
        wanted = candidate.minimum
        eligible, useful = eq_class.eligible, eq_class.usable
        if useful >= wanted and not eq_class.borrows and eq_class.choice.conformance != REQUIRED:
            return None
        buckets, eligible, useful = eq_class.lent.within_reach(candidate)
        equal = eq_class.choice.conformance == REQUIRED and wanted > 1
        if eligible < wanted:
            why = never_fits(self._state.node_cache, candidate.need, wanted) or self._away(candidate, eq_class, eligible)
            message = f"needs {count_nodes(wanted)}, and {eligible} exist that fit its constraints"
            return "NeverFits", f"{message}: {why}" if why else message
        if equal and (largest := eq_class.largest_equal({bucket: len(bucket.members) for bucket in buckets})) < wanted:
            return "InsufficientConformance", unequal(wanted, largest, f"{eligible} that fit")
        if useful < wanted:
            states = ", ".join(f"{count} {state}" for state, count in sorted(self._states(buckets).items()) if state != "Ready")
            return "NodesUnavailable", (f"needs {count_nodes(wanted)}; of {eligible} that fit, {useful} can be used ({states or UNHEARD})")
        if equal and (largest := eq_class.largest_equal({bucket: bucket.usable for bucket in buckets})) < wanted:
            return "InsufficientConformance", unequal(wanted, largest, f"{useful} that fit and can be used")
        return None

    def _away(self, candidate: Candidate, eq_class: EquivalenceClass, eligible: int) -> str:
        """Returns a clause on how many nodes fit but are at home in other vclusters; empty: there are none."""
        everywhere = census_of(self._state.node_cache, candidate.need).eligible
        if everywhere <= eligible:
            return ""
        lent = "which lend it none, or not so many, or not for so long" if eq_class.borrows else "which may not use them"
        return f'{everywhere - eligible} more are at home in other vclusters than "{self._policy.name}", {lent}'

    def _states(self, buckets: Iterable[Bucket]) -> dict[str, int]:
        """Counts the nodes of these buckets by their state."""
        nodes = self._state.node_cache.nodes
        counts: dict[str, int] = {}
        for bucket in buckets:
            for index in bucket.members:
                counts[nodes[index].state] = counts.get(nodes[index].state, 0) + 1
        return counts

    def _power(self, candidate: Candidate, fit: NoFit) -> ReasonAndMessage | None:
        """Returns the reason of a candidate whose nodes would exceed the power budget, with the watts; None where power is not what
        lacks.
        """
        limit = self._state.power.limit
        if not fit.watts or limit is None:
            return None
        used = self._state.node_cache.watts
        message = f"needs {count_nodes(candidate.minimum)} that draw {kilowatts(fit.watts)}"
        if fit.watts > limit:
            message = f"{message}, more than the whole power budget of {kilowatts(limit)}"
            return "PowerBudget", f"{message}: ask for fewer nodes, or wait until it is raised"
        return "PowerBudget", f"{message}; {kilowatts(used)} of the power budget of {kilowatts(limit)} are in use"

    def _kept(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage | None:
        """Returns the reason where enough nodes are free but kept: by windows, by reservations of others, or taken in this cycle.

        None: too few were free also before this cycle, or those that are do not fit together; the caller then explains that.
        """
        wanted, once, pool = candidate.minimum, self.cache.once, eq_class.pool
        free = pool.whole.total
        if free < wanted or not once("fits", (eq_class, pool, wanted), lambda: eq_class.choice.fits(pool, wanted)):
            return self._taken(eq_class, wanted, free)
        if self._profile.windows.crosses(self._now, self._end(candidate)):
            outside = self._profile.free_from_now.unclosed(pool, self._end(candidate), candidate.reservation)
            if not once("fits", (eq_class, outside, wanted), lambda: eq_class.choice.fits(outside, wanted)):
                return self._windows.crossed(candidate, eq_class, outside)
        usable = eq_class.now_pool(self._state.occupancy(candidate)).whole.total
        own = candidate.uid if candidate.uid in self._profile.reservations else ""
        others = once("sharers", (eq_class, own), lambda: self._profile.table.sharers(pool.members, own))
        kept = f"{are(free - usable, ' of them')} kept by backfill reservations of {count_jobs(others)}"
        message = f"needs {count_nodes(wanted)}; {are(free)} free, and {kept}"
        return "BehindHigherPriority", message + self._in_order()

    def _taken(self, eq_class: EquivalenceClass, wanted: int, free: int) -> ReasonAndMessage | None:
        """Returns the reason where enough nodes were free when the cycle began and went to others in it; None where too few were, or enough
        still are.
        """
        before = eq_class.free_before
        if before >= wanted > free:
            message = f"needs {count_nodes(wanted)}; {before} {was(before)} free, and {before - free} of them went to work that comes first"
            return "BehindHigherPriority", message + self._in_order()
        return None

    def _in_order(self) -> str:
        """Returns the end of the sentence where the vcluster goes by order of submission; empty where scores decide."""
        return f'; vCluster "{self._policy.name}" goes by order of submission' if strategy_of(self._policy).first_come else ""

    def _short(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage:
        """Returns the reason where too few nodes are free, or too few of one fingerprint or in few enough groups, with the numbers."""
        wanted = candidate.minimum
        pool = eq_class.pool
        free = pool.whole.total
        if eq_class.choice.conformance == REQUIRED and free >= wanted > 1:
            largest = pool.largest_equal()
            if largest < wanted:
                return "InsufficientConformance", unequal(wanted, largest, f"{free} free that fit")
        if eq_class.choice.tight and free >= wanted:
            limit = eq_class.choice.limit(pool, wanted)
            held = pool.whole.largest(limit)
            message = f"needs {count_nodes(wanted)} in {count_groups(limit)} (topology Tight); {free} that fit are free"
            return "WaitingForNodes", f"{message}, at most {held} of them in {count_groups(limit)}"
        eligible, usable = eq_class.eligible, eq_class.usable
        message = f"needs {count_nodes(wanted)}; of {eligible} that fit, {are(free)} free, {usable - free} in use"
        if eligible > usable:
            message += f", {eligible - usable} unavailable"
        if eq_class.borrows and (idle := sum(len(bucket.free) for bucket in eq_class.lent.lenders(candidate))):
            left = max(0, self._eq_classes.lending.borrowing_left())
            message += f"; {are(idle)} idle in vclusters that lend" + (f", of which it may borrow {left}" if left < idle else "")
        return "WaitingForNodes", message + self._until(pool, wanted - free)

    def _until(self, pool: FreeCounts, missing: int) -> str:
        """Returns a clause on when `missing` nodes come free at the latest, or how many are held by work without an end; empty but in a
        `SensitiveReservation` vcluster, whose work holds no reservation.
        """
        if self._policy.kind != SENSITIVE_RESERVATION:
            return ""
        ends = sorted((end, count) for bucket in pool.buckets for end, count in bucket.ends.items())
        reached = 0
        for end, count in ends:
            reached += count
            if reached >= missing and end < NEVER:
                return f"; enough of them come free by {format_time(max(end, self._now))}"
        forever = sum(count for end, count in ends if end == NEVER)
        return f"; {forever} of them are held by work without an end"

    def _end(self, candidate: Candidate) -> float:
        """Returns when a candidate's nodes would come free at the latest if it started now, seconds since the epoch."""
        return self._now + self._state.occupancy(candidate)
