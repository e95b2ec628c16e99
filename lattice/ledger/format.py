"""Formats 1 and 2 of a ledger shard (docs/explanation/formats.md): converts text to rows and rows to text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec

from lattice.errors import Corrupt
from lattice.formats import check_format
from lattice.units import decode_uid, encode_uid, format_ranges, is_digits, parse_ranges, whole_number
from lattice.views.ledger import LedgerStatus

FORMAT = 2
FIRST_FORMAT = 1
SHARDS = 64

HELD = "h"
CANCELLED = "c"
DELETED = "d"
NODE_LOST = "l"
DISABLED = "o"
UNNAMED = "n"
WITHDRAWN = "w"
RECLAIMED = "q"
"""The quota tree takes back the nodes: the attempt ends, and its allocation waits again."""
CAUSES = CANCELLED + DELETED + NODE_LOST + DISABLED + UNNAMED + WITHDRAWN + RECLAIMED
KINDS = {"B": "Bounded", "U": "Unbounded", "R": "Reactive"}

SENSITIVE = "s"
_NOTHING = "-"
_MUTEXES = re.compile(r"[A-Za-z0-9_-]{11}(\+[A-Za-z0-9_-]{11})*")

Key = tuple[str, int]


class Row(msgspec.Struct, frozen=True, gc=False):
    """One row of the ledger: an attempt of an allocation and the nodes (indices, ascending) that it holds.

    `state`: HELD, or the letter of the cause for which it is releasing them. `reporter`: the index of the node that writes the
    status. `sensitive`: the nodes count against the sensitive pool. `walltime`: the admitted seconds, which agents obey; None: no
    limit. `mutex`: the digests of the mutexes that it has, joined by `+`; no other row has one of them.
    """

    uid: str
    attempt: int
    generation: int
    user: str
    tenant: str
    vcluster: str
    kind: str
    state: str
    reporter: int
    nodes: tuple[int, ...]
    sensitive: bool = False
    walltime: int | None = None
    mutex: str = ""

    @property
    def mutexes(self) -> tuple[str, ...]:
        """Returns the digests of the mutexes that the row has."""
        return tuple(self.mutex.split("+")) if self.mutex else ()

    @property
    def key(self) -> Key:
        """Returns (uid, attempt), which identifies the row in the ledger."""
        return (self.uid, self.attempt)

    @property
    def held(self) -> bool:
        """Tells whether the attempt may run; False: it is releasing its nodes."""
        return self.state == HELD


def shard_of(key: Key) -> int:
    """Returns the number of the shard into which a new row goes; readers look for rows in all shards."""
    return crc32(f"{key[0]}-{key[1]}".encode()) % SHARDS


def encode_shard(rows: Iterable[Row], number: int = FORMAT) -> str:
    """Returns the text of a shard with these rows in their order; `number`: the format."""
    names: dict[str, int] = {}
    lines: list[str] = []
    for row in rows:
        user, tenant, vcluster = (names.setdefault(name, len(names)) for name in (row.user, row.tenant, row.vcluster))
        lines.append(
            f"{encode_uid(row.uid)} {row.attempt} {row.generation} {user} {tenant} {vcluster}"
            f" {row.kind} {row.state} {_reporter(row, number)} {format_ranges(row.nodes)}{_trailing(row, number)}"
        )
    return f"{number}|{','.join(quote(name, safe=':@.-_~/+') for name in names)}|{';'.join(lines)}"


def _reporter(row: Row, number: int) -> str:
    """Returns the reporter's column of a row; from format 2 on `-` where it is the first node."""
    return _NOTHING if number > FIRST_FORMAT and row.reporter == row.nodes[0] else str(row.reporter)


def _trailing(row: Row, number: int) -> str:
    """Returns the columns after the tenth: the walltime, the mark of sensitive work, the mutexes.

    In format 1 the mark stands first, and all only where needed, since older readers ignore them.
    """
    walltime = _NOTHING if row.walltime is None else str(row.walltime)
    if row.mutex:
        mark = SENSITIVE if row.sensitive else _NOTHING
        return f" {walltime} {mark} {row.mutex}" if number > FIRST_FORMAT else f" {mark} {walltime} {row.mutex}"
    if number > FIRST_FORMAT:
        return f" {walltime} {SENSITIVE}" if row.sensitive else f" {walltime}"
    if row.walltime is not None:
        return f" {SENSITIVE if row.sensitive else _NOTHING} {walltime}"
    return f" {SENSITIVE}" if row.sensitive else ""


def format_of(texts: Iterable[str]) -> int:
    """Returns the highest format number among these shards; 1 where none has a number."""
    found = (whole_number(text.partition("|")[0]) for text in texts)
    return max((number for number in found if number is not None), default=FIRST_FORMAT)


def decode_shard(text: str) -> list[Row]:
    """Returns the rows of a shard.

    Of the columns after the tenth it reads the walltime, the mark of sensitive work, and the mutexes. Raises Corrupt for another format
    number (naming both) or for text that is no shard.
    """
    found, _, rest = text.partition("|")
    number = check_format("ledger shard", found, FORMAT)
    head, bar, body = rest.partition("|")
    if not bar:
        raise Corrupt(f"ledger shard without rows part: {text[:80]!r}", reason="ShardUnreadable")
    names = [unquote(name) for name in head.split(",")] if head else []
    try:
        return [_decode_row(line, names, number) for line in body.split(";")] if body else []
    except (ValueError, IndexError) as error:
        raise Corrupt(f"ledger shard with an unreadable row: {error}", reason="ShardUnreadable") from error


def _decode_row(line: str, names: Sequence[str], number: int) -> Row:
    """Returns a row from its text in this format (`number`); `names` are the shard's interned names.

    Raises ValueError where it does not parse.
    """
    uid, attempt, generation, user, tenant, vcluster, kind, state, reporter, nodes, *more = line.split(" ")
    if kind not in KINDS or (state != HELD and state not in CAUSES) or len(state) != 1:
        raise ValueError(f"kind {kind!r}, state {state!r} in {line[:60]!r}")
    if number > FIRST_FORMAT:
        walltime, mark = more[0], more[1:2]
    else:
        walltime, mark = more[1] if more[1:] and is_digits(more[1]) else _NOTHING, more[:1]
    indices = tuple(parse_ranges(nodes))
    return Row(
        decode_uid(uid), int(attempt), int(generation), names[int(user)], names[int(tenant)], names[int(vcluster)],
        kind, state, indices[0] if reporter == _NOTHING else int(reporter), indices, mark == [SENSITIVE],
        None if walltime == _NOTHING else int(walltime), more[2] if more[2:] and _MUTEXES.fullmatch(more[2]) else "",
    )  # fmt: skip


def rows_of(status: LedgerStatus) -> Iterator[Row]:
    """Yields the rows of all shards of a stored ledger; raises Corrupt for a shard of another format, or one that is unreadable."""
    for shard in status.shards:
        yield from decode_shard(shard)
