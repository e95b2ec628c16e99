"""Counts every attempt's charge once, from the Allocation or from the record that holds it, whichever comes first.

Attempts that no record holds are counted from the Allocations, and counted again as they change; attempts in a record are counted
from their row and never again. An Allocation that is gone before its record was read stays counted until that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from lattice.accounting.charges import RUNNING, Charge, charges_of, fallen_out
from lattice.accounting.records import Page, Records, month_of, read_rows
from lattice.views.allocation import Allocation


class Tally:
    """Tells a counter (shares, meters) every charge once: calls `count` with a charge that begins to count (+1) or ceases to (−1)."""

    def __init__(self, records: Records, count: Callable[[Charge, int], None]) -> None:
        self._records = records
        self._count = count
        self._open: dict[str, tuple[Charge, ...]] = {}
        """By uid: the counted charges that no record holds yet."""

    def see(self, allocation: Allocation) -> None:
        """Counts the charges of an Allocation that is new or has changed, in place of those counted before; none that a record holds.

        Attempts that left its status before a record held them count as one.
        """
        uid = allocation.metadata.uid
        upto, usage = self._records.upto(uid), allocation.status.usage
        charges = [charge for charge in charges_of(allocation) if charge.attempt > upto]
        if usage is not None and usage.attempts > upto:
            gap = fallen_out(allocation, upto, *self._records.amounts(uid, allocation.spec.tenant))
            charges = [gap, *charges] if gap is not None else charges
        self._replace(uid, tuple(charges))

    def end_charges(self, uid: str, at: float) -> None:
        """Ends the charges of an Allocation that is gone: its use stays counted until a record holds it, running attempts end at `at`
        (seconds).

        Ignored for an unknown uid.
        """
        charges = self._open.get(uid)
        if charges is not None:
            self._replace(uid, tuple(_ended(charge, at) for charge in charges))

    def settle(self, rows: Iterable[Charge]) -> None:
        """Counts rows that records hold now, each at every call, in place of the charges of the same and earlier attempts."""
        for row in rows:
            self._count(row, 1)
            charges = self._open.get(row.uid)
            if charges is not None:
                self._replace(row.uid, tuple(charge for charge in charges if charge.attempt > row.attempt))

    def unsettled(self) -> Iterator[Charge]:
        """Yields the counted charges that no record holds yet."""
        for charges in self._open.values():
            yield from charges

    def tell_open(self) -> None:
        """Calls `count` again for every charge that no record holds, for a counter that starts anew; `Recount` does the same for
        records.
        """
        for charge in self.unsettled():
            self._count(charge, 1)

    def _replace(self, uid: str, charges: tuple[Charge, ...]) -> None:
        """Replaces the open charges of an allocation and counts the difference; equal charges change nothing, an empty tuple
        removes them.
        """
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


class Recount:
    """Counts the rows of all records again, one record a step so that other tasks run in between; rows written meanwhile come last.

    Months that ended before `since` (seconds since the epoch) are skipped: records are never deleted, and every question has a
    beginning.
    """

    def __init__(self, records: Records, since: float, count: Callable[[Charge], None]) -> None:
        self._records = records
        self._first = month_of(max(0, int(since)))
        self._count = count
        self._restarts = records.restarts
        self._counted: dict[str, int] = {}
        """By name of a record: how many characters of its rows have been counted."""
        self._left = sorted(records.pages.values(), key=lambda page: (page.month, page.tenant, page.part), reverse=True)

    @property
    def stale(self) -> bool:
        """Tells whether known rows have vanished meanwhile, so that the recount must start again."""
        return self._restarts != self._records.restarts

    def step(self) -> bool:
        """Counts one more record, those of months before `since` skipped; returns False, and counts nothing, when only rows are left that
        were written meanwhile.
        """
        while self._left:
            page = self._left.pop()
            if page.month >= self._first:
                self._take(page)
                return True
        return False

    def finish(self) -> None:
        """Counts the remaining records, and rows written meanwhile; from then on the caller counts new rows."""
        while self.step():
            pass  # one more
        for page in self._records.pages.values():
            if page.month >= self._first:
                self._take(page)

    def _take(self, page: Page) -> None:
        """Counts the rows that a page has more than when it was last counted."""
        known = self._counted.get(page.name, 0)
        if len(page.text) > known:
            self._counted[page.name] = len(page.text)
            for row in read_rows(page.text, page.tenant, known):
                self._count(row)


def _ended(charge: Charge, at: float) -> Charge:
    """Returns a charge as ended at this second, but not before it got its nodes, with the amounts up to then and still in the state
    Running; one that is not running or has an end is returned as it is.
    """
    if charge.state != RUNNING or charge.ended:
        return charge
    charge = charge.at(at)
    return msgspec.structs.replace(charge, ended=max(int(at), charge.committed))
