"""The backfill reservations, rights to one, moves and searches without success that cycles leave to later ones, by vcluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.state.reservation_order import Move, ReservationEpoch
from lattice.scheduling.state.unschedulable import Unschedulable

_V = TypeVar("_V")


class CycleMemory:
    """The memory of all vclusters' cycles, by vcluster; a part of the cluster state, which alone calls its methods.

    Its dicts stay the same objects, so that the cluster state shows them as its own.
    """

    def __init__(self) -> None:
        self.backfill_reservations: dict[str, dict[str, BackfillReservation]] = {}
        """By vcluster and uid: the backfill reservations of the vcluster's last cycle."""
        self.heirs: dict[str, dict[str, float]] = {}
        """By vcluster and uid: when work that has no reservation now was first given one, seconds since the epoch."""
        self.moves: dict[str, list[Move]] = {}
        """By vcluster: the backfill reservations that its last cycle moved later or withdrew."""
        self.last_reservations: dict[str, tuple[Mapping[str, BackfillReservation], ReservationEpoch]] = {}
        """By vcluster: the reservations at the end of its last cycle, and the stamp of that time."""
        self.unschedulable: dict[str, Unschedulable] = {}
        """By vcluster: who found no nodes in its last cycle, where that is kept."""

    def every_reservation(self) -> list[BackfillReservation]:
        """Returns the backfill reservations of all vclusters, by the vclusters' names."""
        return [one for name in sorted(self.backfill_reservations) for one in self.backfill_reservations[name].values()]

    def place_on(self, present: Mapping[str, BackfillReservation]) -> None:
        """Replaces reservations by those of the same uid in `present`, which name the buckets of today; others stay."""
        for reservations in self.backfill_reservations.values():
            for uid, reservation in reservations.items():
                reservations[uid] = present.get(uid, reservation)

    def replace_reservations(
        self, reservations: Mapping[str, Mapping[str, BackfillReservation]], heirs: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Replaces backfill reservations and heirs, both by vcluster and uid, by copies of these."""
        kept, inherited = {name: dict(some) for name, some in reservations.items()}, {name: dict(some) for name, some in heirs.items()}
        _refill(self.backfill_reservations, kept)
        _refill(self.heirs, inherited)

    def undo(
        self, reservations: Mapping[str, dict[str, BackfillReservation]], heirs: Mapping[str, dict[str, float]],
        moves: Mapping[str, list[Move]],
    ) -> None:  # fmt: skip
        """Replaces reservations, heirs and moves by these, which were copied before a what-if ran cycles."""
        _refill(self.backfill_reservations, dict(reservations))
        _refill(self.heirs, dict(heirs))
        _refill(self.moves, dict(moves))

    def begin_reservations(self, vcluster: str, waiting: Collection[str]) -> dict[str, BackfillReservation]:
        """Drops the reservations of a vcluster, and heirs that are not in `waiting` (uids); returns the dict for the new reservations."""
        self.heirs[vcluster] = {uid: given for uid, given in self.heirs.get(vcluster, {}).items() if uid in waiting}
        made: dict[str, BackfillReservation] = {}
        self.backfill_reservations[vcluster] = made
        return made

    def keep_reservations(
        self, vcluster: str, made: Mapping[str, BackfillReservation], epoch: ReservationEpoch, moves: Iterable[Move]
    ) -> None:
        """Stores the reservations of a cycle that has ended, with the stamp of this time, and the moves of earlier ones."""
        self.last_reservations[vcluster] = made, epoch
        self.moves[vcluster] = list(moves)

    def reserved_since(self, vcluster: str, uid: str) -> float | None:
        """Returns when waiting work was first given its reservation, or the right to one, seconds since the epoch; None: it has neither."""
        reservation = self.backfill_reservations.get(vcluster, {}).get(uid)
        return reservation.given if reservation is not None else self.heirs.get(vcluster, {}).get(uid)

    def inherit(self, vcluster: str, uid: str, given: float) -> None:
        """Gives work the right to a reservation since `given`, seconds since the epoch, unless it has one or the right to one."""
        if self.reserved_since(vcluster, uid) is None:
            self.heirs.setdefault(vcluster, {})[uid] = given


def _refill(known: dict[str, _V], content: dict[str, _V]) -> None:
    """Replaces the content of a dict, which stays the same object."""
    known.clear()
    known.update(content)
