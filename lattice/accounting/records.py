"""UsageRecords: their rows as text (format 1, docs/explanation/formats.md), and the index of the attempts that they hold.

A record belongs to one tenant and the month (UTC) in which the attempts ended; its rows are only ever appended to. When it is full
it is sealed, and the next part is opened: so the parts of a month are one chain, of which only the last one is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from lattice.accounting.charges import FINAL, Charge
from lattice.errors import Corrupt, Rejected
from lattice.units import decode_uid, encode_uid, is_digits
from lattice.views.usage import UsageRecord

FORMAT: Final = 1
_OPENING: Final = f"{FORMAT}\n"
_COLUMNS: Final = 22
"""Of every row; what was used (CPU, memory, kills) follows in rows that know it."""
_NONE: Final = "-"
_SAFE: Final = "!#$&'()*+,/:;=?@[]~"
NEVER: Final = -1
"""Stands for the last attempt of an allocation of which no record holds any."""


def month_of(second: int) -> str:
    """Returns the month (UTC) of a time in seconds since the epoch, such as `2026-11`."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m")


def record_name(tenant: str, month: str, part: int) -> str:
    """Returns the name of a part of a tenant's month: `physics-2026-11`, then `physics-2026-11-1` and so on."""
    return f"{tenant}-{month}" + (f"-{part}" if part else "")


def encode_row(charge: Charge) -> str:
    """Returns the line of a record's row for one charge, with its newline; the tenant is not in it, since the record names it."""
    numbers = (charge.nodes, charge.gpus, charge.submitted, charge.committed, charge.started, charge.ended)
    used = (charge.cpu_milliseconds, charge.peak_memory, charge.oom_kills)
    columns = (
        encode_uid(charge.uid), charge.attempt, charge.first, charge.number, word(charge.namespace), word(charge.name),
        word(charge.job), word(charge.user), word(charge.project), word(charge.vcluster), *numbers, charge.state, word(charge.reason),
        _NONE if charge.exit is None else charge.exit, charge.node_seconds, charge.gpu_seconds, charge.preemption_class,
        *(used if any(used) else ()),
    )  # fmt: skip
    return " ".join(map(str, columns)) + "\n"


def decode_row(line: str, tenant: str) -> Charge:
    """Returns the charge of a line without its newline; raises Corrupt where the line is no row.

    Columns of CPU, memory and kills that an older row lacks count as 0.
    """
    parts = line.split(" ")
    if len(parts) < _COLUMNS:
        raise Corrupt(f"a usage row has {len(parts)} columns instead of {_COLUMNS}: {line[:80]!r}", reason="UsageRecordBroken")
    try:
        return Charge(
            decode_uid(parts[0]), int(parts[1]), int(parts[2]), int(parts[3]), tenant, _text(parts[4]), _text(parts[5]), _text(parts[6]),
            _text(parts[7]), _text(parts[8]), _text(parts[9]), int(parts[10]), int(parts[11]), int(parts[12]), int(parts[13]),
            int(parts[14]), int(parts[15]), parts[16], _text(parts[17]), None if parts[18] == _NONE else int(parts[18]),
            int(parts[19]), int(parts[20]), int(parts[21]), *map(int, parts[_COLUMNS : _COLUMNS + 3]),
        )  # fmt: skip
    except (ValueError, Rejected) as error:
        raise Corrupt(f"a usage row cannot be read: {line[:80]!r}: {error}", reason="UsageRecordBroken") from error


def rows_text(charges: Iterable[Charge], before: str = "") -> str:
    """Returns the text of a record's rows: those of `before` (empty: the line that names the format), then these."""
    return (before or _OPENING) + "".join(map(encode_row, charges))


def read_rows(text: str, tenant: str, begin: int = 0) -> Iterator[Charge]:
    """Yields the charges of a record's rows, from the character `begin` on (0: all; else the beginning of a row).

    Raises Corrupt where one cannot be read, or, with 0, for text of another format.
    """
    for line in lines_of(text, begin):
        yield decode_row(line, tenant)


def lines_of(text: str, begin: int = 0) -> list[str]:
    """Returns a record's rows as lines, from the character `begin` on (0: all); raises Corrupt for text of another format, which is checked
    only with 0.

    A last line without a newline is left out.
    """
    if not begin:
        opening, newline, _ = text.partition("\n")
        if not newline or opening != str(FORMAT):
            raise Corrupt(
                f"the rows of a UsageRecord have format {opening[:20]!r}, and this program reads {FORMAT}; use the version that wrote them",
                reason="UsageRecordBroken",
            )
        begin = len(_OPENING)
    return text[begin:].split("\n")[:-1]


@dataclass(frozen=True, slots=True)
class Page:
    """One UsageRecord as it was last seen; `version`: its resourceVersion, `text`: its rows, `part`: its place in the chain of the
    month.
    """

    name: str
    tenant: str
    month: str
    part: int
    version: str
    sealed: bool
    text: str

    def is_older(self, other: Page) -> bool:
        """Tells whether the other copy of the record has a higher resourceVersion."""
        return int(self.version) < int(other.version)


@dataclass(frozen=True, slots=True)
class Fresh:
    """The rows that a record has gained since it was last seen, decoded only when they are read."""

    tenant: str = ""
    text: str = ""
    begin: int = 0

    @property
    def count(self) -> int:
        """Returns how many rows are new."""
        return self.text.count("\n", self.begin or len(_OPENING))

    def rows(self) -> list[Charge]:
        """Returns the new charges; raises Corrupt where a row cannot be read."""
        return list(read_rows(self.text, self.tenant, self.begin)) if self.count else []


NOTHING_NEW: Final = Fresh()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Allocations that are looked for in the rows of a tenant: by uid, by number, or by namespace and name."""

    uids: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    names: frozenset[tuple[str, str]] = frozenset()

    def found(self, text: str, tenant: str) -> Iterator[Charge]:
        """Yields the final charges among a record's rows that are wanted, in their order; rows that do not read are passed over."""
        uids, numbers = {encode_uid(uid) for uid in self.uids}, {str(number) for number in self.numbers}
        names = {(word(namespace), word(name)) for namespace, name in self.names}
        for line in text.split("\n")[1:]:
            columns = line.split(" ", 6)
            if len(columns) < 7 or not (columns[0] in uids or columns[3] in numbers or (columns[4], columns[5]) in names):
                continue
            with suppress(Corrupt):  # said where the record is taken over
                charge = decode_row(line, tenant)
                if charge.state in FINAL:
                    yield charge


class Records:
    """All UsageRecords as last seen, and the last attempt of each allocation that they hold; changed by `put` and `drop` only.

    An attempt stands in one row: the writer makes sure of it (`settlement`), and `validate` finds violations. Records are never
    deleted, so that there are millions of rows in time: `put` reads only their first two columns.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        """The records by name."""
        self.restarts = 0
        """How often known rows have vanished, which only a restored or tampered server causes; counters of rows then start again."""
        self.version = "0"
        """The newest resourceVersion among the records."""
        self._upto: dict[str, int] = {}
        """By encoded uid (22 characters): the last attempt that the records hold."""

    def put(self, record: UsageRecord) -> Fresh:
        """Takes over a record as the API server has it now, and returns the rows that are new; raises Corrupt where rows cannot be read,
        after the record has been taken over.

        Where known rows have vanished (a restore of the server), none are returned: the index is made anew, `restarts` grows, and counters
        of rows start again. The caller sees to it that no older copy comes after a newer one.
        """
        page = page_of(record)
        before = self.pages.get(page.name)
        known = before.text if before is not None else ""
        self.pages[page.name] = page
        if int(page.version) > int(self.version):
            self.version = page.version
        if not page.text.startswith(known):
            self._restart()
            return NOTHING_NEW
        self._take(page, len(known))
        return Fresh(page.tenant, page.text, len(known))

    def drop(self, name: str) -> None:
        """Removes a record that does not exist any more, nothing if unknown; where it had rows, the index is made anew and `restarts`
        grows.
        """
        page = self.pages.pop(name, None)
        if page is not None and page.text:
            self._restart()

    def upto(self, uid: str) -> int:
        """Returns the last attempt of an allocation that the records hold, which hold all before it too; −1: none."""
        return self._upto.get(encode_uid(uid), NEVER)

    def holds(self, uid: str, attempt: int) -> bool:
        """Tells whether the records hold this attempt of an allocation; True also for every earlier number than the last that they hold."""
        return attempt <= self.upto(uid)

    def amounts(self, uid: str, tenant: str) -> tuple[int, int]:
        """Returns the node-seconds and GPU-seconds of all of one allocation's attempts in the records; searches the text of all of the
        tenant's rows.

        Raises Corrupt where one cannot be read.
        """
        key = encode_uid(uid)
        node_seconds = gpu_seconds = 0
        for page in self.pages.values():
            if page.tenant != tenant or key not in page.text:
                continue
            for line in page.text.split("\n"):
                if line.startswith(key):
                    charge = decode_row(line, tenant)
                    node_seconds, gpu_seconds = node_seconds + charge.node_seconds, gpu_seconds + charge.gpu_seconds
        return node_seconds, gpu_seconds

    def ended(self, tenant: str, wanted: Wanted) -> Iterator[Charge]:
        """Yields the last charge of each allocation of a tenant that is wanted and has ended for good; reads all of its rows once.

        Of several allocations with one name they all come, the one that was recorded last at the end.
        """
        for page in sorted((page for page in self.pages.values() if page.tenant == tenant), key=lambda page: (page.month, page.part)):
            yield from wanted.found(page.text, tenant)

    def chain(self, tenant: str, month: str) -> list[Page]:
        """Returns the parts of a tenant's month in their order, up to the first that is missing; empty: there are none."""
        pages: list[Page] = []
        while (page := self.pages.get(record_name(tenant, month, len(pages)))) is not None:
            pages.append(page)
        return pages

    def all_rows(self) -> Iterator[Charge]:
        """Yields the charge of every row, the oldest months first; raises Corrupt where one cannot be read."""
        for page in sorted(self.pages.values(), key=lambda page: (page.month, page.tenant, page.part)):
            if page.text:
                yield from read_rows(page.text, page.tenant)

    def validate(self) -> None:
        """Reads all rows again; raises Corrupt where an attempt is in two rows, or the index differs from the rows."""
        upto: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        for charge in self.all_rows():
            for attempt in range(charge.first, charge.attempt + 1):
                if (charge.uid, attempt) in seen:
                    raise Corrupt(f"attempt {attempt} of {charge.uid} stands in the usage records twice", reason="UsageCountedTwice")
                seen.add((charge.uid, attempt))
            key = encode_uid(charge.uid)
            upto[key] = max(charge.attempt, upto.get(key, NEVER))
        if upto != self._upto:
            raise Corrupt("the index of the usage records differs from their rows", reason="UsageIndexDiffers")

    def _take(self, page: Page, begin: int = 0) -> None:
        """Enters the rows of a record from the character `begin` on into the index, by their first two columns; raises Corrupt where those
        are no uid and attempt.
        """
        upto = self._upto
        for line in lines_of(page.text, begin) if page.text else ():
            columns = line.split(" ", 2)
            if len(columns) < 3 or not is_digits(columns[1]):
                decode_row(line, page.tenant)  # raises
            attempt = int(columns[1])
            if attempt > upto.get(columns[0], NEVER):
                upto[columns[0]] = attempt

    def _restart(self) -> None:
        """Builds the index anew from all pages, counts the restart, and takes the highest version of a page as the newest."""
        self.restarts += 1
        self.version = max((page.version for page in self.pages.values()), key=int, default="0")
        self._upto = {}
        for page in self.pages.values():
            self._take(page)


def page_of(record: UsageRecord) -> Page:
    """Returns a UsageRecord in the form that `Records` keeps."""
    spec, metadata = record.spec, record.metadata
    return Page(metadata.name, spec.tenant, spec.month, spec.part, metadata.resource_version or "0", spec.sealed, spec.rows)


def word(text: str) -> str:
    """Returns a text in the form of a row's column, ASCII without blanks: percent-encoded where needed, `-` for an empty one.

    Different texts give different words, and `_text` gives the text back.
    """
    return "%2D" if text == _NONE else quote(text, safe=_SAFE) or _NONE


def _text(word: str) -> str:
    """Returns the text of a column, with its escapes undone (the reverse of `word`); empty for `-`."""
    if word == _NONE:
        return ""
    return unquote(word) if "%" in word else word
