"""Explains why a candidate waits: a reason of the closed list, a sentence with the numbers, and who would have to give nodes back.

Candidates of one request shape have the same reason until a node or a reservation changes, so each is found once (`ReasonCache`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.eligibility import census_of
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import NEVER, UNHEARD, Bucket
from lattice.scheduling.cycle.equivalence import NO_NODES, EquivalenceClass, EquivalenceClasses, NoFit, RequestShape
from lattice.scheduling.cycle.never_fits import never_fits
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.model.outcomes import Reclaim, Score, Waiting
from lattice.scheduling.model.policy import SENSITIVE_RESERVATION, Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import REQUIRED, Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_duration, format_time

MOST_TRIED: Final = 8
"""Most walltimes tried to find one that a sentence can recommend."""

ReasonAndMessage = tuple[str, str]
_T = TypeVar("_T")
_SILENCE: Final[ReasonAndMessage] = ("", "")


class ReasonCache:
    """The reasons for waiting that one cycle has found, by request shape; a placement or a change of reservations voids them."""

    __slots__ = ("_by_free", "_by_shape", "_epoch", "_found", "_never", "_reservations")

    def __init__(self, reservations: CycleReservations) -> None:
        self._reservations = reservations
        self._epoch = reservations.epoch
        self._by_shape: dict[RequestShape, ReasonAndMessage] = {}
        self._found: dict[tuple[object, ...], Any] = {}
        self._by_free: dict[tuple[EquivalenceClass, int], tuple[int, ReasonAndMessage]] = {}
        self._never: dict[RequestShape, ReasonAndMessage | None] = {}

    def current(self) -> dict[RequestShape, ReasonAndMessage]:
        """Returns the reasons found since the last placement or change of reservations, by request shape.

        It is the cache itself, for the caller to add to; the next placement or change begins another.
        """
        if self._epoch != self._reservations.epoch:
            self._epoch = self._reservations.epoch
            self._by_shape.clear()
            self._found.clear()
        return self._by_shape

    def once(self, what: str, key: tuple[object, ...], find: Callable[[], _T]) -> _T:
        """Returns the result of `find`; calls it once for each pair of `what` and `key` until nodes or reservations change."""
        self.current()
        full = (what, *key)
        if full not in self._found:
            self._found[full] = find()
        found: _T = self._found[full]
        return found

    def few_free(self, eq_class: EquivalenceClass, wanted: int, free: int) -> ReasonAndMessage | None:
        """Returns the kept reason of a class for which `wanted` nodes were too many when `free` were free; None: none is kept for
        this number.

        Such a reason depends on free nodes alone and stays true when reservations change.
        """
        known = self._by_free.get((eq_class, wanted))
        return known[1] if known is not None and known[0] == free else None

    def keep_few_free(self, eq_class: EquivalenceClass, wanted: int, free: int, found: ReasonAndMessage) -> None:
        """Keeps the reason why `wanted` nodes of a class were not had while `free` were free; `few_free` returns it for the next
        candidate.
        """
        self._by_free[eq_class, wanted] = free, found

    def never(self, shape: RequestShape, find: Callable[[], ReasonAndMessage | None]) -> ReasonAndMessage | None:
        """Returns the reason why a shape could not start even if nothing held nodes, None where it could; `find` is called once in
        a cycle.
        """
        if shape not in self._never:
            self._never[shape] = find()
        return self._never[shape]


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

    def waiting(
        self,
        candidate: Candidate,
        shape: RequestShape,
        score: Score | None,
        fit: NoFit = NO_NODES,
        reservation: BackfillReservation | None = None,
    ) -> Waiting:
        """Makes the outcome of a candidate that was not placed: reason, sentence, and the latest start by its reservation.

        `reservation`: the backfill reservation that it holds (None: none); `fit`: why the search found nothing.
        """
        wake = self._wake(candidate) if candidate.reservation else None
        if self._silent:
            return Waiting(candidate, "", "", wake, score, None if reservation is None else reservation.start)
        reason, message = self.reason_of(candidate, shape, fit)
        if reservation is None:
            return Waiting(candidate, reason, message, wake, score)
        if reason == "BehindHigherPriority":
            message = f"{message}; it starts at the latest {format_time(reservation.start)}"
        reclaims = self._reclaims(candidate, shape.eq_class) if self._policy.home else ()
        if reclaims:
            message = f"{message}; {_lent(reclaims)}"
        return Waiting(candidate, reason, message, wake, score, reservation.start, reclaims)

    def behind(self, candidate: Candidate, shape: RequestShape, score: Score | None) -> Waiting:
        """Makes the outcome of a candidate that strict order of submission keeps behind one that waits for nodes which both could use."""
        if self._silent:
            return Waiting(candidate, "", "", None, score)
        found = self._never(candidate, shape)
        if found is None:
            before = f"needs {_nodes(candidate.minimum)}; work submitted before it waits for nodes that it could use"
            found = "BehindHigherPriority", f'{before}, and vCluster "{self._policy.name}" starts in strict order of submission'
        return Waiting(candidate, *found, None, score)

    def reason_of(self, candidate: Candidate, shape: RequestShape, fit: NoFit = NO_NODES) -> ReasonAndMessage:
        """Returns the reason and sentence of candidates of this shape, and keeps them for the next one unless power is what lacks."""
        current = self.cache.current()
        found = current.get(shape)
        if found is None or fit.watts:
            found = self._find(candidate, shape, fit)
            if not fit.watts:
                current[shape] = found
        return found

    def _find(self, candidate: Candidate, shape: RequestShape, fit: NoFit) -> ReasonAndMessage:
        if self._silent:
            return _SILENCE
        eq_class, wanted = shape.eq_class, candidate.minimum
        free = eq_class.pool.whole.total
        if free >= wanted or candidate.reservation or fit.watts or self._policy.kind == SENSITIVE_RESERVATION:
            return (
                self._never(candidate, shape)
                or self._outside_reservation(candidate, eq_class)
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
        wanted = candidate.minimum
        eligible, useful = eq_class.eligible, eq_class.usable
        if useful >= wanted and not eq_class.borrows and eq_class.conformance != REQUIRED:
            return None
        buckets, eligible, useful = eq_class.within_reach(candidate)
        equal = eq_class.conformance == REQUIRED and wanted > 1
        if eligible < wanted:
            why = never_fits(self._state.node_cache, candidate.need, wanted) or self._away(candidate, eq_class, eligible)
            message = f"needs {_nodes(wanted)}, and {eligible} exist that fit its constraints"
            return "NeverFits", f"{message}: {why}" if why else message
        if equal and (largest := eq_class.largest_equal({bucket: len(bucket.members) for bucket in buckets})) < wanted:
            return "InsufficientConformance", _unequal(wanted, largest, f"{eligible} that fit")
        if useful < wanted:
            states = ", ".join(f"{count} {state}" for state, count in sorted(self._states(buckets).items()) if state != "Ready")
            return "NodesUnavailable", (f"needs {_nodes(wanted)}; of {eligible} that fit, {useful} can be used ({states or UNHEARD})")
        if equal and (largest := eq_class.largest_equal({bucket: bucket.usable for bucket in buckets})) < wanted:
            return "InsufficientConformance", _unequal(wanted, largest, f"{useful} that fit and can be used")
        return None

    def _away(self, candidate: Candidate, eq_class: EquivalenceClass, eligible: int) -> str:
        """Returns a clause on how many nodes fit but are at home in other vclusters; empty: there are none."""
        everywhere = census_of(self._state.node_cache, candidate.need).eligible
        if everywhere <= eligible:
            return ""
        lent = "which lend it none, or not so many, or not for so long" if eq_class.borrows else "which may not use them"
        return f'{everywhere - eligible} more are at home in other vclusters than "{self._policy.name}", {lent}'

    def _states(self, buckets: Iterable[Bucket]) -> dict[str, int]:
        nodes = self._state.node_cache.nodes
        counts: dict[str, int] = {}
        for bucket in buckets:
            for index in bucket.members:
                counts[nodes[index].state] = counts.get(nodes[index].state, 0) + 1
        return counts

    def _outside_reservation(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage | None:
        """Returns the reason why the Reservation that a candidate names cannot take it now; None where it can, or none is named."""
        name = candidate.reservation
        if not name:
            return None
        window = next(window for window in self._state.windows if window.name == name and window.end > self._now)
        if window.start > self._now:
            return "ReservedNodes", f'reservation "{name}" begins {format_time(window.start)}'
        longest = window.end - self._now - candidate.grace - self._state.start_allowance
        if candidate.walltime is None or candidate.walltime > longest:
            asked = "no walltime" if candidate.walltime is None else f"walltime {format_duration(candidate.walltime)}"
            left = f"at most {_minutes(longest)} starts now" if longest >= 60 else "nothing starts in it any more"
            return "ReservedNodes", f'{asked} goes beyond the end of reservation "{name}" at {format_time(window.end)}; {left}'
        inside = sum(
            1 for bucket in eq_class.pool.buckets if window.nodes in bucket.key.marks for _ in range(bucket.usable)
        )  # fmt: skip
        if inside < candidate.minimum:
            return "ReservedNodes", f'needs {_nodes(candidate.minimum)}; reservation "{name}" has {inside} usable that fit'
        return None

    def _power(self, candidate: Candidate, fit: NoFit) -> ReasonAndMessage | None:
        limit = self._state.power.limit
        if not fit.watts or limit is None:
            return None
        used = self._state.node_cache.watts
        message = f"needs {_nodes(candidate.minimum)} that draw {_kw(fit.watts)}"
        if fit.watts > limit:
            return (
                "PowerBudget",
                f"{message}, more than the whole power budget of {_kw(limit)}: ask for fewer nodes, or wait until it is raised",
            )
        return "PowerBudget", f"{message}; {_kw(used)} of the power budget of {_kw(limit)} are in use"

    def _kept(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage | None:
        """Returns the reason where enough nodes are free but kept: by windows, by reservations of others, or taken in this cycle.

        None: too few are free, or they do not fit together, also before this cycle; the caller then explains that.
        """
        wanted, once, pool = candidate.minimum, self.cache.once, eq_class.pool
        free = pool.whole.total
        if free < wanted or not once("fits", (eq_class, pool, wanted), lambda: eq_class.fits(pool, wanted)):
            return self._taken(eq_class, wanted, free)
        if self._profile.windows.crosses(self._now, self._end(candidate)):
            outside = self._profile.free_from_now.unclosed(pool, self._end(candidate), candidate.reservation)
            if not once("fits", (eq_class, outside, wanted), lambda: eq_class.fits(outside, wanted)):
                return self._window(candidate, eq_class, outside)
        usable = eq_class.now_pool(self._state.occupancy(candidate)).whole.total
        own = candidate.uid if candidate.uid in self._profile.reservations else ""
        others = once("sharers", (eq_class, own), lambda: self._profile.table.sharers(pool.members, own))
        message = f"needs {_nodes(wanted)}; {_are(free)} free, and {_are(free - usable, ' of them')} kept for {_jobs(others)} before it"
        return "BehindHigherPriority", message + self._in_order()

    def _taken(self, eq_class: EquivalenceClass, wanted: int, free: int) -> ReasonAndMessage | None:
        """Returns the reason where enough nodes were free when the cycle began and went to others in it; None where too few were."""
        before = eq_class.free_before
        if before >= wanted > free:
            message = f"needs {_nodes(wanted)}; {before} {_was(before)} free, and {before - free} of them went to work that comes first"
            return "BehindHigherPriority", message + self._in_order()
        return None

    def _in_order(self) -> str:
        """Returns the end of the sentence where the vcluster goes by order of submission; empty where scores decide."""
        return f'; vCluster "{self._policy.name}" goes by order of submission' if strategy_of(self._policy).first_come else ""

    def _window(self, candidate: Candidate, eq_class: EquivalenceClass, outside: FreeCounts) -> ReasonAndMessage:
        """Returns the reason where a reservation window keeps a candidate off free nodes, with the longest walltime that would end
        before it.

        `outside`: the free nodes that no window closes to the candidate.
        """
        first, starts = self.cache.once("windows", (eq_class, outside), lambda: self._windows_before(candidate, eq_class))
        what = _what(self._windows().get(first.name), first.name, candidate)
        asked = "no walltime" if candidate.walltime is None else f"walltime {format_duration(candidate.walltime)}"
        if first.start <= self._now:
            free = f"{outside.whole.total} of the {eq_class.pool.whole.total} free that fit"
            message = f"needs {_nodes(candidate.minimum)}; {free} are outside {what}"
            return "ReservedNodes", f"{message}, which lasts until {format_time(first.end)}"
        message = f"{asked} crosses {what} at {format_time(first.start)}"
        key = (eq_class, outside, candidate.minimum, candidate.grace)
        shorter = self.cache.once("shorter", key, lambda: self._shorter(candidate, eq_class, starts))
        return "ReservedNodes", f"{message}; a walltime of at most {_minutes(shorter)} starts now" if shorter is not None else message

    def _windows_before(self, candidate: Candidate, eq_class: EquivalenceClass) -> tuple[ReservationWindow, list[float]]:
        """Returns the earliest window that keeps a candidate off free nodes, and the starts of all such windows, latest first."""
        found = [
            window
            for bucket in eq_class.pool.buckets
            if bucket.free
            and (window := self._profile.windows.closed(bucket, self._now, self._end(candidate), candidate.reservation)) is not None
        ]
        return min(found, key=lambda window: (window.start, window.name)), sorted({window.start for window in found}, reverse=True)

    def _shorter(self, candidate: Candidate, eq_class: EquivalenceClass, starts: list[float]) -> float | None:
        """Returns the longest walltime (whole minutes, in seconds) with which the candidate could start now before a window; None:
        none found.
        """
        extra = candidate.grace + self._state.start_allowance
        for start in starts[:MOST_TRIED]:
            walltime = (start - self._now - extra) // 60 * 60
            if walltime >= 60 and eq_class.fits(eq_class.now_pool(walltime + extra), candidate.minimum):
                return walltime
        return None

    def _short(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage:
        """Returns the reason where too few nodes are free, or too few of one fingerprint or in few enough groups, with the numbers."""
        wanted = candidate.minimum
        pool = eq_class.pool
        free = pool.whole.total
        if eq_class.conformance == REQUIRED and free >= wanted > 1:
            largest = pool.largest_equal()
            if largest < wanted:
                return "InsufficientConformance", _unequal(wanted, largest, f"{free} free that fit")
        if eq_class.tight and free >= wanted:
            limit = eq_class.limit(pool, wanted)
            held = pool.whole.largest(limit)
            message = f"needs {_nodes(wanted)} in {_groups(limit)} (topology Tight); {free} that fit are free"
            return "WaitingForNodes", f"{message}, at most {held} of them in {_groups(limit)}"
        eligible, usable = eq_class.eligible, eq_class.usable
        message = f"needs {_nodes(wanted)}; of {eligible} that fit, {_are(free)} free, {usable - free} in use"
        if eligible > usable:
            message += f", {eligible - usable} unavailable"
        if eq_class.borrows and (idle := sum(len(bucket.free) for bucket in eq_class.lenders(candidate))):
            left = max(0, self._eq_classes.borrowing_left())
            message += f"; {_are(idle)} idle in vclusters that lend" + (f", of which it may borrow {left}" if left < idle else "")
        return "WaitingForNodes", message + self._until(pool, wanted - free)

    def _until(self, pool: FreeCounts, missing: int) -> str:
        """Returns a clause on when `missing` nodes come free at the latest; empty for all but sensitive work, whose reservation tells
        it.
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

    def _reclaims(self, candidate: Candidate, eq_class: EquivalenceClass) -> tuple[Reclaim, ...]:
        """Returns the borrowers to ask for nodes of this vcluster: lowest borrowing priority first, then the latest begun, none
        needlessly.

        Empty where all of them together would not give enough.
        """
        missing = candidate.minimum - eq_class.pool.whole.total
        offers: list[tuple[int, float, str, Reclaim]] = []
        for uid, holder in self._state.holders.items():
            if holder.borrowed and holder.vcluster != self._policy.name and not holder.releasing:
                nodes = tuple(node for node in holder.borrowed if self._mine(node, eq_class))
                if nodes:
                    lent = self._state.policy(holder.vcluster).borrowing
                    reclaim = Reclaim(uid, holder.vcluster, nodes, lent.return_grace)
                    offers.append((lent.priority, -holder.since, uid, reclaim))
        chosen: list[Reclaim] = []
        for _, _, _, reclaim in sorted(offers, key=lambda offer: offer[:3]):
            if missing <= 0:
                break
            chosen.append(reclaim)
            missing -= len(reclaim.nodes)
        for reclaim in reversed(chosen[:-1]):  # what the later ones make needless
            if missing + len(reclaim.nodes) <= 0:
                chosen.remove(reclaim)
                missing += len(reclaim.nodes)
        return tuple(chosen) if missing <= 0 else ()

    def _mine(self, node: int, eq_class: EquivalenceClass) -> bool:
        facts = self._state.node_cache.nodes.get(node)
        return facts is not None and facts.usable and self._state.node_cache.table.of_node[node] in eq_class.pool.members

    def _end(self, candidate: Candidate) -> float:
        return self._now + self._state.occupancy(candidate)

    def _windows(self) -> Mapping[str, ReservationWindow]:
        return {window.name: window for window in self._state.windows}

    def _wake(self, candidate: Candidate) -> float | None:
        """Returns when the next window of the Reservation that a candidate names begins, seconds since the epoch; None: none is to come."""
        if not candidate.reservation:
            return None
        starts = [window.start for window in self._state.windows if window.name == candidate.reservation and window.start > self._now]
        return min(starts, default=None)


def _what(window: ReservationWindow | None, name: str, candidate: Candidate) -> str:
    """Names a window for the owner of a candidate: by name where it is a maintenance or admits him, else "a reservation of others"."""
    if window is not None and window.maintenance:
        return f"maintenance {name}"
    return f"reservation {name}" if window is None or window.admits(candidate) else "a reservation of others"


def _lent(reclaims: Sequence[Reclaim]) -> str:
    """Returns a clause on which borrowers would have to give nodes back, and in which time; reclaims nothing."""
    counts: dict[str, int] = {}
    for one in reclaims:
        counts[one.vcluster] = counts.get(one.vcluster, 0) + len(one.nodes)
    borrowers = ", ".join(f'{_nodes(count)} to vCluster "{name}"' for name, count in sorted(counts.items()))
    longest = max(one.grace for one in reclaims)
    grace = f"within {format_duration(longest)}" if longest else "at once"
    return f"lent are {borrowers}: to be given back {grace} (decided; this release reclaims nothing)"


def _unequal(wanted: int, largest: int, of: str) -> str:
    return f"needs {_nodes(wanted)} of one fingerprint; the largest equal set has {largest} of {of}"


def _minutes(seconds: float) -> str:
    return format_duration(seconds // 60 * 60)


def _kw(watts: int) -> str:
    return f"{watts / 1000:.{3 if watts % 100 else 1}f} kW"


def _are(count: int, of: str = "") -> str:
    return f"{count}{of} {'is' if count == 1 else 'are'}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count} groups"


def _jobs(count: int) -> str:
    return "1 allocation" if count == 1 else f"{count} allocations"
