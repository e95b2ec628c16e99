"""The backfill reservations of one vcluster in one cycle: who holds one, who is given one, and who loses one to a higher class.

Holders are evaluated before newcomers of their class or a lower one. Only work of a higher class, or an event outside of cycles,
moves a reservation later; `commit` records each move with its cause (`state.reservation_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.node_cache import NEVER, Bucket
from lattice.scheduling.cluster.releases import NEAR
from lattice.scheduling.cycle.equivalence import EquivalenceClass, NoFit, RequestShape
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import HIGHER_CLASS, OVERRUN, OWNER, POWER, UNEXPLAINED, Move, cause_of, holders_first

_HIGHEST: Final = 10
"""The highest preemption class."""


@dataclass(slots=True)
class _Holding:
    """The claim of one candidate at the beginning of a cycle: its reservation of the last cycle, or the right to be given a new one."""

    level: int
    """The preemption class of the candidate."""
    given: float
    """When the candidate was first given a reservation, seconds since the epoch."""
    revoked: BackfillReservation | None = None
    """Its reservation of the last cycle, if it was taken from the backfill table before the candidate was evaluated; None: it was not."""
    placed: bool = False
    cause: str = ""
    """Why its reservation of the last cycle no longer holds; empty: it holds, or the cause is not known."""
    by: str = ""
    """The uid of the work of a higher class that took the reservation; empty: none did."""


class Revocation:
    """The reservations that one candidate revokes for the time of a `with` block; they are restored at its end unless `keep` was called."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        """Makes the revocation final: the holders get new reservations when they are evaluated."""
        self.kept = True


class CycleReservations:
    """The backfill reservations of one cycle of one vcluster; grants, confirms, revokes and ends them."""

    __slots__ = (
        "_awaited", "_before", "_changed", "_depth", "_heirs", "_holdings", "_kept", "_now", "_some_wait", "_standing", "_state", "_strict",
        "_unevaluated", "_vcluster", "epoch", "firm", "lasting", "profile",
    )  # fmt: skip

    def __init__(self, state: ClusterState, policy: Policy, candidates: Sequence[Candidate], now: float) -> None:
        strategy, vcluster = strategy_of(policy), policy.name
        self._state, self._vcluster, self._now = state, vcluster, now
        self._strict, self._depth = strategy.strict, strategy.depth(policy)
        self.epoch = 0
        """Grows with every placement and every change of a reservation in this cycle."""
        kept, epoch = state.last_reservations.pop(vcluster, (None, None))
        before = state.backfill_reservations.get(vcluster)
        waiting = {one.uid: one.preemption_class for one in candidates} if before or state.heirs.get(vcluster) else {}
        if before:
            state.restore_reservations(vcluster, {uid: reservation for uid, reservation in before.items() if uid in waiting})
        self.profile = state.profile(now)
        self._before = state.backfill_reservations.get(vcluster, {})
        """The reservations of the last cycle whose allocations still wait, by uid."""
        self._kept = state.begin_reservations(vcluster, waiting)
        """The reservations that this cycle has given or confirmed, by uid; within the cycle none of them is taken back."""
        self._heirs = state.heirs[vcluster]
        """By uid of work that lost its reservation and may get a new one: when it was first given one, seconds since the epoch."""
        given = {**self._heirs, **{uid: reservation.given for uid, reservation in self._before.items()}}
        self._holdings = {uid: _Holding(waiting[uid], since) for uid, since in given.items()}
        self._unevaluated = set(self._holdings)
        """The uids of holders that this cycle has not evaluated yet; the set only shrinks."""
        self._standing: dict[str, int] = {}
        """The preemption class by uid of unevaluated holders whose reservation of the last cycle is still in the backfill table."""
        self._awaited: set[Bucket] = set()
        """In strict order only: the buckets that an earlier candidate waits for."""
        self._changed = "" if epoch is None else state.reservation_epoch(policy).changed(epoch)
        """The cause by which reservations may have moved since the last cycle; empty: there was none."""
        self.firm = (
            kept is not None and kept is before and epoch is not None and not self._changed
            and state.power.limit is None and not self._strict and not self.profile.late
        )  # fmt: skip
        """Whether nothing happened since the last cycle that could move a reservation, so that a cheap check confirms one."""
        self.lasting = not self._strict and state.power.limit is None
        """Whether nodes are all that candidates wait for, and none of them could have more by now than when it was evaluated."""
        self._some_wait = False
        """Whether a candidate has been evaluated that waits for nodes."""

    @property
    def contested(self) -> bool:
        """Tells whether a remaining candidate may gain, move or lose a reservation, or is kept in strict order; once False, False
        for the cycle.
        """
        return len(self._kept) < self._depth or bool(self._unevaluated) or self._strict

    @property
    def any_kept(self) -> bool:
        """Tells whether this cycle has given or confirmed a reservation."""
        return bool(self._kept)

    def bind(self, newcomers: Sequence[Candidate]) -> bool:
        """Keeps every reservation of the last cycle, where nothing but these candidates is new; returns whether all of them bind them."""
        lowest = min([holding.level for holding in self._holdings.values()], default=_HIGHEST)
        if len(self._holdings) > len(self._before) or min([one.start for one in self._before.values()], default=NEVER) <= self._now:
            return False
        if any(one.preemption_class > lowest or one.uid in self._holdings for one in newcomers):
            return False
        for held in self._before.values():
            self._keep(held)
        self._unevaluated.clear()
        return True

    def decide_order(self, candidates: Sequence[Candidate]) -> bool:
        """Tells whether scores have no part in the order: at most one candidate holds no reservation, and it passes no holder."""
        others = [one for one in candidates if one.uid not in self._holdings]
        if len(others) > 1:
            return False
        lowest = min([holding.level for holding in self._holdings.values()], default=_HIGHEST)
        return all(one.preemption_class <= lowest for one in others)

    def put_holders_first(self, candidates: Sequence[Candidate], order: Sequence[int]) -> Sequence[int]:
        """Returns the order of candidates (places in the list) with holders of reservations first, and revokes all of them if
        overbooked.

        Overbooked: reservations keep more nodes than will be free.
        """
        if not self._holdings:
            return order
        for one in candidates:
            if one.uid in self._holdings and one.uid in self.profile.reservations:
                self._standing[one.uid] = one.preemption_class
        if not self.firm and self.profile.overbooked():
            for uid in self._standing:
                self._revoke(uid)
            self._standing.clear()
        given = {uid: holding.given for uid, holding in self._holdings.items()}
        classes = [one.preemption_class for one in candidates]
        return holders_first([one.uid for one in candidates], order, given, classes, strict=self._strict)

    def begin_evaluation(self, candidate: Candidate) -> BackfillReservation | None:
        """Marks a candidate as evaluated; returns the backfill reservation that it holds in the table, None without one."""
        self._unevaluated.discard(candidate.uid)
        return self.profile.reservations.get(candidate.uid)

    def bars(self, candidate: Candidate, eq_class: EquivalenceClass) -> bool:
        """Tells whether strict order keeps a candidate behind an earlier one that waits for nodes which both could use."""
        return bool(self._awaited) and candidate.uid not in self._holdings and not self._awaited.isdisjoint(eq_class.pool.buckets)

    def overtakes(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None) -> bool:
        """Tells whether a candidate may revoke reservations of lower classes.

        It may if it holds none itself (`held` is None), or if these alone keep it from starting before its own.
        """
        if not self._standing or self._strict or candidate.preemption_class <= min(self._standing.values()):
            return False
        return held is None or self._is_held_up(candidate, shape, held)

    def confirms(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation) -> bool:
        """Confirms the reservation that a candidate holds if a search would only find it again; returns False where a search is needed."""
        if not self.firm or candidate.reservation or shape.eq_class.borrows:
            return False
        if held.start <= self._now or held.end < held.start + shape.duration or held.nodes != candidate.minimum:
            return False
        if self.profile.unreserved.may_improve(held, shape.eq_class.pool, shape.duration):
            return False
        self._standing.pop(held.uid, None)
        self._keep(held)
        self._some_wait = True
        return True

    def take_back(self, uid: str) -> None:
        """Removes a candidate's own reservation from the table before it is searched anew."""
        self.profile.remove(uid)
        self._standing.pop(uid, None)
        self.epoch += 1

    @contextmanager
    def revoked_below(self, candidate: Candidate) -> Iterator[Revocation]:
        """Revokes the standing reservations of lower classes than the candidate's; restores them at the end of the block unless it
        is kept.
        """
        uids = [uid for uid, level in self._standing.items() if level < candidate.preemption_class]
        for uid in uids:
            del self._standing[uid]
            self._revoke(uid)
            self._holdings[uid].cause, self._holdings[uid].by = HIGHER_CLASS, candidate.uid
        revocation = Revocation()
        try:
            yield revocation
        finally:
            if revocation.kept:
                self._note_given_up()
            else:
                self._restore(uids)

    def grant(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None, fit: NoFit) -> BackfillReservation | None:
        """Gives a reservation to a candidate that found no nodes: `held`, its own before, or an earlier one.

        None: it may hold none (the depth is reached), power is what lacks, or no time is known at which it could start.
        """
        found = self._grant(candidate, shape, held, fit)
        if held is not None and found is not held:
            self._note_given_up()
        self._some_wait = True
        return found

    def _grant(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None, fit: NoFit) -> BackfillReservation | None:
        holding = self._holdings.get(candidate.uid)
        if holding is None and not self._strict and len(self._kept) >= self._depth:
            return None
        found = self._seek(candidate, shape, held) if not fit.watts and shape.eq_class.usable >= candidate.minimum else None
        if found is None:
            if holding is not None:
                self._heirs[candidate.uid] = holding.given
                holding.cause, holding.by = (POWER, "") if fit.watts else (holding.cause, holding.by)
            return None
        self.profile.add(found)
        self.epoch += 1
        if found is held:
            self.profile.unreserved.keep_until_changed(found, shape.eq_class.pool, self._state.occupancy(candidate))
        self._keep(found)
        return found

    def end(self, uid: str, reason: str) -> None:
        """Ends the reservation of a candidate that a gate keeps waiting with this reason; others may use its nodes."""
        self.lasting = False
        holding = self._holdings.get(uid)
        if holding is not None:
            self._end(uid)
            holding.cause, holding.by = cause_of(reason), ""

    def note_placed(self, uid: str) -> None:
        """Ends the reservation of a candidate that is placed now."""
        self.epoch += 1
        holding = self._holdings.get(uid)
        if holding is not None:
            self._end(uid)
            holding.placed = True

    def commit(self) -> None:
        """Ends the cycle: stores its reservations in the cluster state, and the moves of those of the last cycle with their causes."""
        moves = [self._move(before) for before in self._before.values() if self._kept.get(before.uid) is not before]
        self._state.settle_cycle(self._vcluster, self._kept, [move for move in moves if move is not None])

    def _move(self, before: BackfillReservation) -> Move | None:
        """Returns the move of a reservation of the last cycle that was not kept unchanged; None: its work was placed, or starts no
        later.
        """
        uid, kept, holding = before.uid, self._kept.get(before.uid), self._holdings[before.uid]
        if holding.placed or (kept is not None and kept.start <= before.start):
            return None
        cause = holding.cause or self._changed
        if not cause:
            cause = OVERRUN if self.profile.late or before.start <= self._now else UNEXPLAINED
        return Move(uid, self._now, before.start, None if kept is None else kept.start, cause, holding.by)

    def _seek(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation | None) -> BackfillReservation | None:
        """Finds the reservation to give to a candidate: its own of before, or an earlier one; None: it may hold none, or no start
        is known.
        """
        if shape.duration <= NEAR:
            self.lasting = False  # its end is rounded less from moment to moment
        eq_class = shape.eq_class
        if self._strict:
            self._awaited.update(eq_class.pool.buckets)
        holding = self._holdings.get(candidate.uid)
        if holding is None:
            found = eq_class.earliest(candidate, None) if len(self._kept) < self._depth else None
            return None if found is None else replace(found, given=self._now)
        before = held or holding.revoked
        if before is not None and (before.end < before.start + self._state.occupancy(candidate) or before.nodes != candidate.minimum):
            holding.cause, holding.by = OWNER, ""
            before = None
        found = eq_class.earliest(candidate, before)
        return found if found is None or found is before else replace(found, given=holding.given)

    def _is_held_up(self, candidate: Candidate, shape: RequestShape, held: BackfillReservation) -> bool:
        """Tells whether enough nodes are free now and reservations of lower classes keep the candidate from them before its own start."""
        if shape.eq_class.pool.whole.total < candidate.minimum:
            return False
        before, reservations = min(held.start, self._now + shape.duration), self.profile.reservations
        return any(reservations[uid].start < before for uid, level in self._standing.items() if level < candidate.preemption_class)

    def _keep(self, reservation: BackfillReservation) -> None:
        self._heirs.pop(reservation.uid, None)
        self._kept[reservation.uid] = reservation

    def _revoke(self, uid: str) -> None:
        self._holdings[uid].revoked = self.profile.remove(uid)
        self.epoch += 1

    def _restore(self, uids: Sequence[str]) -> None:
        self.epoch += 1
        for uid in uids:
            holding = self._holdings[uid]
            if holding.revoked is not None:
                self.profile.add(holding.revoked)
            holding.revoked, holding.cause, holding.by = None, "", ""
            self._standing[uid] = holding.level

    def _note_given_up(self) -> None:
        """Notes that a reservation is given up or moves: those who were evaluated before could have more now."""
        self.lasting = self.lasting and not self._some_wait

    def _end(self, uid: str) -> None:
        self._note_given_up()
        self._heirs.pop(uid, None)
        self._standing.pop(uid, None)
        self.profile.remove(uid)
        self.epoch += 1
