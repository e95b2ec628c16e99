"""Decides the next write of UsageRecords, so that each ended attempt stands in them exactly once.

The parts of a tenant's month are a chain. Only its last part is appended to, with compare-and-swap on the version that was read;
before a next part is made the last one is sealed, also by compare-and-swap. A writer with an older reading is refused by one of the
two, or by the name of the next part, which is taken. So no attempt is written twice, whoever else writes, and a kill at any point
loses nothing: attempts that no record holds are settled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from lattice.accounting.charges import Charge, charges_of, fallen_out, settled_only
from lattice.accounting.records import Page, Records, encode_row, month_of, record_name, rows_text
from lattice.views.allocation import Allocation

LARGEST: Final = 64 * 1024
"""Most bytes of the rows of one part, since one write carries them all."""


@dataclass(frozen=True, slots=True)
class Append:
    """The write that replaces the rows of a record (`page`, as it was read) by the same rows with more at the end."""

    page: Page
    text: str
    sealed: bool


@dataclass(frozen=True, slots=True)
class Open:
    """The write that makes a new record, the next part of a tenant's month."""

    name: str
    tenant: str
    month: str
    part: int
    text: str


Write = Append | Open


def unsettled(allocation: Allocation, records: Records) -> list[Charge]:
    """Returns the charges of an allocation's ended attempts that no record holds, oldest first; those that left the status before a record
    held them are one summed charge, the first.
    """
    uid, usage = allocation.metadata.uid, allocation.status.usage
    upto = records.upto(uid)
    charges = [charge for charge in settled_only(charges_of(allocation)) if charge.attempt > upto]
    if usage is None or usage.attempts <= upto:
        return charges
    gap = fallen_out(allocation, upto, *records.amounts(uid, allocation.spec.tenant))
    return charges if gap is None else [gap, *charges]


def is_settled(allocation: Allocation, records: Records) -> bool:
    """Tells whether the records hold the last ended attempt of an allocation, and thus all before it; True where none has ended, or without
    a tenant.
    """
    charges = settled_only(charges_of(allocation))
    return not charges or charges[-1].attempt <= records.upto(allocation.metadata.uid)


def next_write(records: Records, tenant: str, charges: Iterable[Charge], largest: int = LARGEST) -> Write | None:
    """Returns the next write for these unsettled charges of one tenant, of the earliest month alone; None: there are none.

    Where the last part is full, that is the write that seals it, maybe without a row. The caller carries it out, waits until the records
    show it, and asks again until nothing is left.
    """
    month, rows = _first_month(charges)
    if not rows:
        return None
    chain = records.chain(tenant, month)
    last = chain[-1] if chain else None
    if last is None or last.sealed:
        fitting = _fitting(rows, len(rows_text(())), largest) or 1
        return Open(record_name(tenant, month, len(chain)), tenant, month, len(chain), rows_text(rows[:fitting]))
    fitting = _fitting(rows, len(last.text), largest)
    return Append(last, rows_text(rows[:fitting], last.text), sealed=fitting < len(rows))


def _first_month(charges: Iterable[Charge]) -> tuple[str, list[Charge]]:
    """Returns the earliest month with something to write, and its charges: of each allocation the first attempts, without a gap.

    Attempts of an allocation are written in their order whatever the clocks said, since a record that holds one holds all before
    it.
    """
    by_uid: dict[str, list[Charge]] = {}
    for charge in sorted(charges, key=lambda charge: charge.attempt):
        by_uid.setdefault(charge.uid, []).append(charge)
    month = min((_month(group[0]) for group in by_uid.values()), default="")
    groups = sorted(by_uid.values(), key=lambda group: (group[0].ended, group[0].uid))
    return month, [charge for group in groups for charge in takewhile(lambda charge: _month(charge) == month, group)]


def _month(charge: Charge) -> str:
    """Returns the month in which a charge is recorded: of its end, or of its submission where it has no end."""
    return month_of(charge.ended or charge.submitted)


def _fitting(rows: Sequence[Charge], taken: int, largest: int) -> int:
    """Returns how many of the first rows fit into `largest` bytes beside the `taken` bytes; 0: not even the first."""
    for count, charge in enumerate(rows):
        taken += len(encode_row(charge))
        if taken > largest:
            return count
    return len(rows)
