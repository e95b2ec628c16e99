"""Moves backfill reservations to other nodes, so that a holder before them in the order starts earlier and none of them later.

A reservation keeps nodes of certain buckets. Where nodes come free early, those of work behind a holder may split what it needs,
although there are enough nodes in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cluster.placement import nodes_of
from lattice.scheduling.cluster.releases import round_up
from lattice.scheduling.cycle.equivalence import EquivalenceClass, RequestShape
from lattice.scheduling.cycle.gates import Admission, GateChain
from lattice.scheduling.cycle.placer import Placer
from lattice.scheduling.cycle.power_fit import Fit
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.model.hardware import Key
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.pending_queue import PendingQueue

_Holder = tuple[Candidate, RequestShape, BackfillReservation]
"""A candidate behind another one, its request shape under its gates, and its reservation."""


class Rearrangement:
    """Searches earlier starts for the holders of one cycle of one vcluster by moving the reservations of holders behind them."""

    __slots__ = ("_gates", "_node_cache", "_placer", "_queue", "_reservations")

    def __init__(
        self, queue: PendingQueue, reservations: CycleReservations, placer: Placer, gates: GateChain, node_cache: NodeCache
    ) -> None:
        self._queue, self._reservations, self._placer, self._gates = queue, reservations, placer, gates
        self._node_cache = node_cache

    def earlier(
        self, candidate: Candidate, shape: RequestShape, admission: Admission, held: BackfillReservation
    ) -> Fit | BackfillReservation | None:
        """Returns nodes for a candidate to start on now, or a reservation with an earlier start than its own (`held`, in the table).

        The table then holds the moved reservations, and the returned one (for nodes one from now on, which the caller ends by placing the
        candidate). It tries the first start that the totals of free nodes leave, and at which nodes are found without the reservations
        behind. None, and the table is as before: there is no such start, or a holder behind would start later.
        """
        profile, pool = self._reservations.profile, shape.eq_class.pool
        trial = _Trial(profile)
        trial.take_out(held)
        starts = list(profile.unreserved.starts_from_now(pool, candidate.minimum, shape.duration, held.start))
        behind = self._behind(shape.eq_class) if starts else []
        for _, _, reservation in behind:
            trial.take_out(reservation)
        found = self._first(candidate, shape, admission, starts) if behind else None
        if found is not None:
            starts_now = isinstance(found, Fit)
            earlier = self._from_now(candidate, shape, found) if isinstance(found, Fit) else replace(found, given=held.given)
            trial.put_in(earlier)
            if self._moved(trial, behind):
                self._placer.classes.forget_failures()
                self._reservations.note_rearranged(candidate.uid, None if starts_now else earlier)
                return found if isinstance(found, Fit) else earlier
        trial.undo()
        return None

    def _behind(self, eq_class: EquivalenceClass) -> list[_Holder]:
        """Returns the holders, in their order, whose reservations may be revoked, keep nodes that the class could use, and can move: which
        pass the gates, and have the length and the nodes that the work asks for and a start to come.
        """
        found: list[_Holder] = []
        queue, holders, now = self._queue, self._reservations.holders, self._placer.classes.now
        table, members = self._reservations.profile.table, eq_class.pool.members
        for reservation in holders.list_standing():
            place = holders.places[reservation.uid]
            candidate = queue.candidates[place]
            if reservation.start <= now or reservation.nodes != candidate.minimum or not table.nodes_of(reservation.uid, members):
                continue
            admission = self._gates.evaluate(candidate, queue.people[place], queue.opens[place])
            if isinstance(admission, Waiting):
                continue
            shape = self._placer.shape(queue.shapes[place], candidate, admission)
            if reservation.end >= reservation.start + shape.duration and shape.eq_class.usable >= candidate.minimum:
                found.append((candidate, shape, reservation))
        return found

    def _first(
        self, candidate: Candidate, shape: RequestShape, admission: Admission, starts: Iterable[float]
    ) -> Fit | BackfillReservation | None:
        """Returns nodes, or a reservation that is not in the table, for the first of these starts (now or later) at which some are found.

        None: there are none, or power or the quota tree keeps the candidate from those that it could start on now.
        """
        for start in starts:
            if start > self._placer.classes.now:
                found = shape.eq_class.at(candidate, start, shape.duration)
                if found is not None:
                    return found
                continue
            fit = shape.eq_class.fit(candidate, shape.duration, admission.nodes, retry=True)
            if isinstance(fit, Fit):
                return fit if self._placer.refusal(candidate, fit) is None else None
            if fit.watts:
                return None
        return None

    def _from_now(self, candidate: Candidate, shape: RequestShape, fit: Fit) -> BackfillReservation:
        """Returns a reservation of just the nodes that a candidate would take of this fit, from now on."""
        counts: dict[Key, int] = {bucket.key: count for bucket, count in fit.counts}
        if self._node_cache.masks:
            nodes = nodes_of(fit.counts, fit.pool, split=True)
            by_bucket = {bucket.key: sum(node in bucket.members for node in nodes) for bucket in fit.pool.buckets}
            counts = {key: count for key, count in by_bucket.items() if count}
        now = self._placer.classes.now
        return BackfillReservation(candidate.uid, candidate.vcluster, now, round_up(now + shape.duration, now), tuple(counts.items()))

    def _moved(self, trial: _Trial, behind: Iterable[_Holder]) -> bool:
        """Adds to the table, for each of these holders in order, a reservation that starts no later than its own; False: one has none."""
        for candidate, shape, reservation in behind:
            found = shape.eq_class.no_later(candidate, shape.duration, reservation)
            if found is None:
                return False
            trial.put_in(found if found is reservation else replace(found, given=reservation.given))
        return True


class _Trial:
    """Changes of the backfill table that may be undone."""

    __slots__ = ("_changes", "_profile")

    def __init__(self, profile: AvailabilityProfile) -> None:
        self._profile = profile
        self._changes: list[tuple[BackfillReservation, bool]] = []
        """Each reservation that was added (True) or removed."""

    def put_in(self, reservation: BackfillReservation) -> None:
        """Adds a reservation of work that has none in the table."""
        self._profile.add(reservation)
        self._changes.append((reservation, True))

    def take_out(self, reservation: BackfillReservation) -> None:
        """Removes a reservation that is in the table."""
        self._profile.remove(reservation.uid)
        self._changes.append((reservation, False))

    def undo(self) -> None:
        """Makes the table as it was; it gets the number of the layout of before."""
        for reservation, added in reversed(self._changes):
            if added:
                self._profile.remove(reservation.uid)
            else:
                self._profile.add(reservation)
