"""The backfill reservations of one vcluster in one cycle: who holds one, who is given one, and who loses one to a higher class.

Holders are evaluated before newcomers of their class or a lower one. Only work of a higher class, or an event outside of cycles,
moves a reservation later; `commit` records each move with its cause (`state.reservation_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.node_cache import NEVER, Bucket
from lattice.scheduling.cluster.releases import NEAR
from lattice.scheduling.cycle.equivalence import EquivalenceClass, RequestShape
from lattice.scheduling.cycle.power_fit import NoFit
from lattice.scheduling.cycle.reservation_holders import LastReservations, ReservationHolders
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import POWER, cause_of


class Revocation:
    """The reservations that one candidate revokes for a `with` block; its end restores them unless `make_final` was called."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def make_final(self) -> None:
        """Makes the end of the block leave the reservations revoked; their holders may get new ones when they are evaluated."""
        self.kept = True


class CycleReservations:
    """The backfill reservations of one cycle of one vcluster; grants, confirms, revokes and ends them."""

    __slots__ = (
        "_awaited", "_depth", "_heirs", "_kept", "_last", "_now", "_some_wait", "_state", "_strict", "_vcluster",
        "epoch", "firm", "holders", "lasting", "profile", "unimproved",
    )  # fmt: skip

    def __init__(self, state: ClusterState, policy: Policy, candidates: Sequence[Candidate], now: float) -> None:
        strategy, vcluster = strategy_of(policy), policy.name
        self._state, self._vcluster, self._now = state, vcluster, now
        self._strict, self._depth = strategy.strict, strategy.depth(policy)
        self.epoch = 0
        """Grows with every placement and every change of a reservation in this cycle."""
        last = self._last = LastReservations(state, policy, candidates, now)
        self.profile = last.profile
        self._kept = state.begin_reservations(vcluster, last.waiting)
        """The reservations that this cycle has given or confirmed, by uid; within the cycle none of them is taken back."""
        self._heirs = state.heirs[vcluster]
        """By uid of work that lost its reservation and may get a new one: when it was first given one, seconds since the epoch."""
        self.holders = ReservationHolders(last.waiting, last.by_uid, self._heirs, self.profile)
        self._awaited: set[Bucket] = set()
        """In strict order only: the buckets that an earlier candidate waits for."""
        self.lasting = not self._strict and state.power.limit is None
        """Whether nodes are all that candidates wait for, and none of them could have more by now than when it was evaluated."""
        self.firm = last.untouched and self.lasting and not self.profile.late
        """Whether nothing happened since the last cycle that could move a reservation, so that a cheap check confirms one."""
        self._some_wait = False
        """Whether a candidate has been evaluated that waits for nodes."""
        self.unimproved: BackfillReservation | None = None
        """The reservation to which the last `grant` found no better one; None: it gave another or none, or the last search found no
        better one either, and nothing has changed since.
        """

    @property
    def contested(self) -> bool:
        """Tells whether a remaining candidate may gain, move or lose a reservation, or is kept in strict order; False stays False."""
        return len(self._kept) < self._depth or bool(self.holders.unevaluated) or self._strict

    @property
    def any_kept(self) -> bool:
        """Tells whether this cycle has given or confirmed a reservation."""
        return bool(self._kept)

    def bind(self, newcomers: Sequence[Candidate]) -> bool:
        """Confirms all reservations of the last cycle at once where only `newcomers` need evaluation; then returns True.

        Returns False, and changes nothing, where holders must be evaluated: one waits for a new reservation, the start of one has come,
        or a newcomer is a holder itself or of a higher preemption class than one.
        """
        holders, before = self.holders, self._last.by_uid
        if len(holders.by_uid) > len(before) or min([one.start for one in before.values()], default=NEVER) <= self._now:
            return False
        if not holders.all_precede(newcomers) or any(one.uid in holders.by_uid for one in newcomers):
            return False
        for held in before.values():
            self._keep(held)
        holders.unevaluated.clear()
        return True

    def put_holders_first(self, candidates: Sequence[Candidate], order: Sequence[int]) -> Sequence[int]:
        """Returns the order of candidates (places in the list) with holders of reservations before newcomers of their class or lower.

        `order`: the places by score. Revokes all reservations of holders if these keep more nodes than will be free.
        """
        if not self.holders.by_uid:
            return order
        self.holders.note_standing(candidates)
        if not self.firm and self.profile.overbooked():
            self.epoch += self.holders.revoke_all()
        return self.holders.put_first(candidates, order, strict=self._strict)

    def begin_evaluation(self, candidate: Candidate) -> BackfillReservation | None:
        """Marks a candidate as evaluated; returns the backfill reservation that it holds in the table, None without one."""
        self.holders.unevaluated.discard(candidate.uid)
        return self.profile.reservations.get(candidate.uid)

    def bars(self, candidate: Candidate, eq_class: EquivalenceClass) -> bool:
        """Tells whether strict order keeps a candidate behind an earlier one that waits for nodes which both could use.

        False for holders of reservations, and where the vcluster has no strict order.
        """
        return bool(self._awaited) and candidate.uid not in self.holders.by_uid and not self._awaited.isdisjoint(eq_class.pool.buckets)

    def overtakes(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None) -> bool:
        """Tells whether a candidate may revoke reservations of lower classes, to start now or to hold a reservation itself; revokes none.

        It may if it holds none itself (`held` is None), or if these alone keep it from starting before its own; never in strict order.
        """
        if self._strict or not self.holders.stands_below(candidate.preemption_class):
            return False
        if held is None:
            return True
        is_free = shape.eq_class.pool.whole.total >= candidate.minimum
        return is_free and self.holders.keeps_before(min(held.start, self._now + shape.duration), candidate.preemption_class)

    def confirms(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation) -> bool:
        """Confirms the reservation that a candidate holds if a search would only find the same one again; then returns True.

        Returns False, and changes nothing, where a search may find another or is needed to tell.
        """
        if not self.firm or candidate.reservation or shape.eq_class.borrows:
            return False
        if held.start <= self._now or held.end < held.start + shape.duration or held.nodes != candidate.minimum:
            return False
        if self.profile.unreserved.may_improve(held, shape.eq_class.pool, shape.duration):
            return False
        self.holders.protect(held.uid)
        self._keep(held)
        self._some_wait = True
        return True

    def take_back(self, uid: str) -> None:
        """Removes the reservation of a candidate (uid) from the table, so that a search for a new one may use its nodes."""
        self.profile.remove(uid)
        self.holders.protect(uid)
        self.epoch += 1

    @contextmanager
    def revoked_below(self, candidate: Candidate) -> Iterator[Revocation]:
        """Revokes, for a `with` block, the reservations of lower classes that may be revoked; its end puts them back into the table.

        They stay revoked where the block has called `make_final` on the Revocation that it is given.
        """
        uids = self.holders.revoke_below(candidate)
        self.epoch += len(uids)
        revocation = Revocation()
        try:
            yield revocation
        finally:
            if revocation.kept:
                self._note_given_up()
            else:
                self.holders.restore(uids)
                self.epoch += 1

    def grant(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None, fit: NoFit) -> BackfillReservation | None:
        """Gives a candidate that found no nodes its reservation of before or one with an earlier start, else a first one; returns it.

        `held`: its own of before, which the caller has taken out of the table; None: none. Returns None where a newcomer finds the depth
        reached, power is what lacks (`fit`), or no start is known; a holder then has only the right to a new one left.
        """
        self.unimproved = None
        found = self._grant(candidate, shape, held, fit)
        if held is not None and found is not held:
            self._note_given_up()
        self._some_wait = True
        return found

    def _grant(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None, fit: NoFit) -> BackfillReservation | None:
        """Searches a reservation for a candidate, adds the one found to the table and returns it.

        None: none is allowed or found; a holder keeps the right to a new one then, and has lost its own for want of power where that is the
        cause.
        """
        holding = self.holders.by_uid.get(candidate.uid)
        if holding is None and not self._strict and len(self._kept) >= self._depth:
            return None
        found = self._seek(candidate, shape, held) if not fit.watts and shape.eq_class.usable >= candidate.minimum else None
        if found is None:
            if holding is not None:
                self._heirs[candidate.uid] = holding.given
                if fit.watts:
                    holding.lose(POWER)
            return None
        self.profile.add(found)
        self.epoch += 1
        if found is held:
            anew = self.profile.unreserved.keep_until_changed(found, shape.eq_class.pool, self._state.occupancy(candidate))
            self.unimproved = found if anew or not self._last.untouched else None
        self._keep(found)
        return found

    def note_rearranged(self, uid: str, earlier: BackfillReservation | None) -> None:
        """Notes that reservations in the table have moved so that a holder (uid) starts before its own: at that of `earlier`, which is in
        the table, or now (None), for which `note_placed` is to follow.
        """
        self.epoch += 1
        self._note_given_up()
        del self._kept[uid]
        if earlier is not None:
            self._keep(earlier)

    def end(self, uid: str, reason: str) -> None:
        """Ends the reservation, or the right to one, of a candidate that a gate keeps waiting with this reason; none: nothing to end.

        Others may use its nodes. The reason gives the cause of the loss.
        """
        self.lasting = False
        holding = self.holders.by_uid.get(uid)
        if holding is not None:
            self._end(uid)
            holding.lose(cause_of(reason))

    def note_placed(self, uid: str) -> None:
        """Ends the reservation, or the right to one, of a candidate that is placed now; its loss counts as no move."""
        self.epoch += 1
        holding = self.holders.by_uid.get(uid)
        if holding is not None:
            self._end(uid)
            holding.placed = True

    def commit(self) -> None:
        """Ends the cycle: stores its reservations in the cluster state, and the moves of those of the last cycle with their causes."""
        lost = [(before, self._kept.get(uid)) for uid, before in self._last.by_uid.items() if self._kept.get(uid) is not before]
        moves = [self.holders.move_of(before, kept, self._now, self._last.changed) for before, kept in lost]
        self._state.settle_cycle(self._vcluster, self._kept, [move for move in moves if move is not None])

    def _seek(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None) -> BackfillReservation | None:
        """Returns the reservation to give, without adding it to the table: an earlier one than the candidate's own of before (`held`, which
        the caller has taken out of the table, or a revoked one), else its own; the earliest possible one, even a later one, where it has
        none or its own is no longer possible.

        It returns None where a newcomer finds the depth reached, or no start is known; in strict order it notes the buckets that the
        candidate waits for.
        """
        if shape.duration <= NEAR:
            self.lasting = False  # its end is rounded less from moment to moment
        eq_class = shape.eq_class
        if self._strict:
            self._awaited.update(eq_class.pool.buckets)
        holding = self.holders.by_uid.get(candidate.uid)
        if holding is None:
            found = eq_class.earliest(candidate, None) if len(self._kept) < self._depth else None
            return None if found is None else replace(found, given=self._now)
        before = holding.still_wanted(held, candidate, self._state.occupancy(candidate))
        found = eq_class.earliest(candidate, before)
        return found if found is None or found is before else replace(found, given=holding.given)

    def _keep(self, reservation: BackfillReservation) -> None:
        """Notes that this cycle has given or confirmed a reservation; its holder has no right to another one."""
        self._heirs.pop(reservation.uid, None)
        self._kept[reservation.uid] = reservation

    def _note_given_up(self) -> None:
        """Notes that a reservation is given up or moves: those who were evaluated before could have more now."""
        self.lasting = self.lasting and not self._some_wait

    def _end(self, uid: str) -> None:
        """Removes an allocation's reservation from the table, and its right to a new one."""
        self._note_given_up()
        self._heirs.pop(uid, None)
        self.holders.protect(uid)
        self.profile.remove(uid)
        self.epoch += 1
