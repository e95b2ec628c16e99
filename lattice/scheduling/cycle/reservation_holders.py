"""The candidates that begin a cycle with a reservation of the last cycle, or with the right to one, and what becomes of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import HIGHER_CLASS, OVERRUN, OWNER, UNEXPLAINED, Move, holders_first

_HIGHEST: Final = 10
"""The highest preemption class."""


class Holding(msgspec.Struct, gc=False):  # a cycle makes one for each holder
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

    def lose(self, cause: str, by: str = "") -> None:
        """Records why the reservation no longer holds; `by`: the uid of the work of a higher class that took it."""
        self.cause, self.by = cause, by

    def still_wanted(self, held: BackfillReservation | None, candidate: Candidate, occupancy: float) -> BackfillReservation | None:
        """Returns the candidate's reservation of before, `held` or else the revoked one, if it still has its length and its nodes.

        None: it had none, or the owner has changed the work, so that it is shorter than `occupancy` (seconds) or has not
        `candidate.minimum` nodes; the latter is recorded as the cause of its loss.
        """
        before = held or self.revoked
        if before is not None and (before.end < before.start + occupancy or before.nodes != candidate.minimum):
            self.lose(OWNER)
            return None
        return before


class LastReservations:
    """The reservations that the last cycle of a vcluster left, less those whose allocations wait no more.

    `by_uid`: these reservations. `waiting`: the preemption class of each candidate by uid; empty where no work has a claim on a
    reservation. `changed`: the cause by which reservations may have moved since; empty: there was none. `untouched`: all reservations
    are still there and no cause could have moved one.
    """

    __slots__ = ("by_uid", "changed", "profile", "untouched", "waiting")

    def __init__(self, state: ClusterState, policy: Policy, candidates: Iterable[Candidate], now: float) -> None:
        vcluster = policy.name
        kept, epoch = state.last_reservations.pop(vcluster, (None, None))
        before = state.backfill_reservations.get(vcluster)
        self.waiting = {one.uid: one.preemption_class for one in candidates} if before or state.heirs.get(vcluster) else {}
        if before:
            state.restore_reservations(vcluster, {uid: reservation for uid, reservation in before.items() if uid in self.waiting})
        self.profile = state.profile(now)
        self.by_uid = state.backfill_reservations.get(vcluster, {})
        self.changed = "" if epoch is None else state.reservation_epoch(policy).changed(epoch)
        self.untouched = kept is not None and kept is before and epoch is not None and not self.changed


class ReservationHolders:
    """The holdings of one cycle by uid, which of them no evaluation has reached yet, and which may be revoked.

    `waiting`: the preemption class of each candidate by uid. `before`: the reservations of the last cycle by uid. `heirs`: by uid of
    work that lost its reservation, when it was first given one, seconds since the epoch.
    """

    __slots__ = ("_profile", "_standing", "by_uid", "places", "unevaluated")

    def __init__(
        self,
        waiting: Mapping[str, int],
        before: Mapping[str, BackfillReservation],
        heirs: Mapping[str, float],
        profile: AvailabilityProfile,
    ) -> None:
        self._profile = profile
        given = {**heirs, **{uid: reservation.given for uid, reservation in before.items()}}
        self.by_uid = {uid: Holding(waiting[uid], since) for uid, since in given.items()}
        self.unevaluated = set(self.by_uid)
        """The uids of holders that this cycle has not evaluated yet; the set only shrinks."""
        self._standing: dict[str, int] = {}
        """The preemption class by uid of unevaluated holders that have a reservation in the backfill table."""
        self.places: dict[str, int] = {}
        """By uid of those that have been in `_standing`: the place among the candidates."""

    # The order of evaluation

    def all_precede(self, candidates: Iterable[Candidate]) -> bool:
        """Tells whether none of these candidates is of a higher preemption class than some holder, so that all holders go before them.

        True without candidates, and without holders.
        """
        lowest = min([holding.level for holding in self.by_uid.values()], default=_HIGHEST)
        return all(one.preemption_class <= lowest for one in candidates)

    def decide_order(self, candidates: Sequence[Candidate]) -> bool:
        """Tells whether scores have no part in the order of evaluation, which holders of reservations then decide alone.

        True where at most one candidate is no holder, and it goes before no holder.
        """
        others = [one for one in candidates if one.uid not in self.by_uid]
        return len(others) <= 1 and self.all_precede(others)

    def put_first(self, candidates: Sequence[Candidate], order: Sequence[int], *, strict: bool) -> Sequence[int]:
        """Returns the order of candidates (places in the list) with holders before newcomers of their class or a lower one.

        `order`: the places by score, highest first. `strict`: holders go before all newcomers.
        """
        given = {uid: holding.given for uid, holding in self.by_uid.items()}
        classes = [one.preemption_class for one in candidates]
        return holders_first([one.uid for one in candidates], order, given, classes, strict=strict)

    # Standing reservations

    def note_standing(self, candidates: Iterable[Candidate]) -> None:
        """Notes which of these candidates hold a reservation in the backfill table: those may be revoked until they are evaluated."""
        for place, one in enumerate(candidates):
            if one.uid in self.by_uid and one.uid in self._profile.reservations:
                self._standing[one.uid] = one.preemption_class
                self.places[one.uid] = place

    def list_standing(self) -> list[BackfillReservation]:
        """Returns the reservations that may be revoked, in the order in which their holders are evaluated."""
        uids = sorted([uid for uid in self.by_uid if uid in self._standing], key=lambda uid: self.by_uid[uid].given)
        uids.sort(key=lambda uid: -self._standing[uid])
        return [self._profile.reservations[uid] for uid in uids]

    def protect(self, uid: str) -> None:
        """Ends the right of others to revoke an allocation's reservation, which is confirmed, searched anew or ended; changes no table."""
        self._standing.pop(uid, None)

    def stands_below(self, level: int) -> bool:
        """Tells whether a reservation of a lower preemption class than `level` may be revoked."""
        return bool(self._standing) and level > min(self._standing.values())

    def keeps_before(self, time: float, level: int) -> bool:
        """Tells whether a reservation of a lower class than `level` that may be revoked begins before `time` (seconds since the epoch)."""
        reservations = self._profile.reservations
        return any(reservations[uid].start < time for uid, standing in self._standing.items() if standing < level)

    def revoke_all(self) -> int:
        """Takes every standing reservation from the backfill table, so that its holder may get a new one; returns how many.

        Records no cause.
        """
        for uid in self._standing:
            self.by_uid[uid].revoked = self._profile.remove(uid)
        count = len(self._standing)
        self._standing.clear()
        return count

    def revoke_below(self, candidate: Candidate) -> list[str]:
        """Takes the standing reservations of lower classes than the candidate's from the backfill table; returns their uids."""
        uids = [uid for uid, level in self._standing.items() if level < candidate.preemption_class]
        for uid in uids:
            del self._standing[uid]
            holding = self.by_uid[uid]
            holding.revoked = self._profile.remove(uid)
            holding.lose(HIGHER_CLASS, candidate.uid)
        return uids

    def restore(self, uids: Collection[str]) -> None:
        """Puts the revoked reservations of these holders (uids) back into the backfill table, where they may be revoked again."""
        for uid in uids:
            holding = self.by_uid[uid]
            if holding.revoked is not None:
                self._profile.add(holding.revoked)
            holding.revoked = None
            holding.lose("")
            self._standing[uid] = holding.level

    # What became of them

    def move_of(self, before: BackfillReservation, kept: BackfillReservation | None, now: float, changed: str) -> Move | None:
        """Returns the move of a reservation of the last cycle that became `kept` (None: withdrawn), with its cause.

        None: its work was placed, or starts no later. `changed`: the cause that holds for all reservations of the cycle; empty: none.
        """
        holding = self.by_uid[before.uid]
        if holding.placed or (kept is not None and kept.start <= before.start):
            return None
        cause = holding.cause or changed
        if not cause:
            cause = OVERRUN if self._profile.late or before.start <= now else UNEXPLAINED
        return Move(before.uid, now, before.start, None if kept is None else kept.start, cause, holding.by)
