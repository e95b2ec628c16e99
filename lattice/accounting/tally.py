"""Counts every attempt once, whoever tells of it first: the object, or the record that holds it.

What no record holds is counted from the objects, and counted again as they change; what a record holds is counted from its row and
never again. An object that is gone before its record was read stays counted until that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from lattice.accounting.charges import RUNNING, Charge, charges_of, fallen_out
from lattice.accounting.records import Records
from lattice.views.allocation import Allocation


class Tally:
    """Tells `count` each charge that counts (+1), or counts no longer (-1)."""

    def __init__(self, records: Records, count: Callable[[Charge, int], None]) -> None:
        self._records = records
        self._count = count
        self._open: dict[str, tuple[Charge, ...]] = {}
        """By uid: what is counted that no record holds."""

    def see(self, allocation: Allocation) -> None:
        """An object is there, or has changed."""
        uid = allocation.metadata.uid
        upto, usage = self._records.upto(uid), allocation.status.usage
        charges = [charge for charge in charges_of(allocation) if charge.attempt > upto]
        if usage is not None and usage.attempts > upto:
            gap = fallen_out(allocation, upto, *self._records.amounts(uid, allocation.spec.tenant))
            charges = [gap, *charges] if gap is not None else charges
        self._replace(uid, tuple(charges))

    def forget(self, uid: str, at: float) -> None:
        """An object is gone: what it used stays counted, what still ran ends now."""
        charges = self._open.get(uid)
        if charges is not None:
            self._replace(uid, tuple(_ended(charge, at) for charge in charges))

    def settle(self, rows: Iterable[Charge]) -> None:
        """Records hold these rows now."""
        for row in rows:
            self._count(row, 1)
            charges = self._open.get(row.uid)
            if charges is not None:
                self._replace(row.uid, tuple(charge for charge in charges if charge.attempt > row.attempt))

    def unsettled(self) -> Iterator[Charge]:
        """What is counted that no record holds."""
        for charges in self._open.values():
            yield from charges

    def count_again(self) -> None:
        """Tell everything anew to whoever has forgotten all of it."""
        for row in self._records.all_rows():
            self._count(row, 1)
        for charge in self.unsettled():
            self._count(charge, 1)

    def _replace(self, uid: str, charges: tuple[Charge, ...]) -> None:
        before = self._open.get(uid, ())
        if before == charges:
            return
        for charge in before:
            self._count(charge, -1)
        for charge in charges:
            self._count(charge, 1)
        if charges:
            self._open[uid] = charges
        else:
            self._open.pop(uid, None)


def _ended(charge: Charge, at: float) -> Charge:
    if charge.state != RUNNING or charge.ended:
        return charge
    charge = charge.at(at)
    return msgspec.structs.replace(charge, ended=max(int(at), charge.committed))
