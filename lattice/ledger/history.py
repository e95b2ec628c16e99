"""Format 1 of a node's history: the journal of a node as text, which a recovering scheduler reads through the API server."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lattice.errors import Corrupt, Rejected
from lattice.formats import check_format
from lattice.ledger.reports import MOST_ATTEMPT, REASON, STATES, bounded
from lattice.units import LAST_SECOND, decode_uid, encode_uid, expand_nodes, fold_nodes

FORMAT = 1
LARGEST = 64 * 1024
"""Most bytes of the rows of one page."""
_NOTHING = "-"


class HistoryRow(msgspec.Struct, frozen=True, gc=False):
    """One attempt as the journal of one node has it; times in seconds since the epoch, 0: not happened or unknown.

    `state` is a letter of the Lease report. `nodes` are those of the whole attempt in rank order, empty where the journal is
    unreadable; `reason` is a word of END_REASONS where the code alone does not say it; `code` None: unknown, or not ended yet.
    """

    uid: str
    attempt: int
    state: str
    number: int = 0
    namespace: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    prepared: float = 0.0
    start: float = 0.0
    end: float = 0.0
    code: int | None = None
    signal: int = 0
    rank: int = 0
    reason: str = ""

    @property
    def attempt_key(self) -> tuple[str, int]:
        """Returns (uid, attempt), which identifies the attempt whose journal row this is."""
        return (self.uid, self.attempt)


def encode_row(row: HistoryRow) -> str:
    """Returns the line of text for a row."""
    ended = _NOTHING if row.code is None else f"{row.code}:{row.signal}:{row.rank}"
    nodes = fold_nodes(row.nodes) if row.nodes else _NOTHING
    return (
        f"{encode_uid(row.uid)} {row.attempt} {row.state} {row.number} {row.namespace or _NOTHING}/{row.name or _NOTHING} {nodes}"
        f" {row.prepared:.3f} {row.start:.3f} {row.end:.3f} {ended} {row.reason or _NOTHING}"
    )


def pages_of(rows: Iterable[HistoryRow], largest: int = LARGEST) -> list[str]:
    """Returns these rows as pages of text, each at most `largest` bytes; at least one page. A longer row has a page of its own."""
    head = f"{FORMAT}\n"
    pages, size = [[head]], len(head)
    for row in rows:
        line = encode_row(row) + "\n"
        if size + len(line) > largest and len(pages[-1]) > 1:
            pages.append([head])
            size = len(head)
        pages[-1].append(line)
        size += len(line)
    return ["".join(page) for page in pages]


def parse_page(text: str) -> list[HistoryRow]:
    """Returns the rows of a page; further columns are ignored. Raises Corrupt for another format, naming both, or for unreadable rows."""
    number, _, body = text.partition("\n")
    check_format("node history", number, FORMAT)
    try:
        return [_parse_row(line) for line in body.splitlines()]
    except (ValueError, Rejected) as error:
        raise Corrupt(f"node history with an unreadable row: {error}", reason="HistoryUnreadable") from error


def _parse_row(line: str) -> HistoryRow:
    """Returns a row of a node's history from its line.

    Raises ValueError where a column is wrong; columns beyond the eleventh are ignored.
    """
    uid, attempt, state, number, path, nodes, prepared, start, end, ended, reason = line.split(" ")[:11]
    if state not in STATES or not REASON.fullmatch(_text(reason)):
        raise ValueError(f"state {state!r} or reason {reason!r} in {line[:80]!r}")
    namespace, _, name = path.partition("/")
    code, signal, rank = (None, 0, 0) if ended == _NOTHING else _parse_end(ended)
    return HistoryRow(
        decode_uid(uid), bounded(attempt, 1, MOST_ATTEMPT), state, bounded(number), _text(namespace), _text(name),
        () if nodes == _NOTHING else tuple(expand_nodes(nodes)), _parse_time(prepared), _parse_time(start), _parse_time(end),
        code, signal, rank, _text(reason),
    )  # fmt: skip


def _parse_end(text: str) -> tuple[int, int, int]:
    """Returns exit code, signal and rank from the text CODE:SIGNAL:RANK. Raises ValueError where one does not parse or is out of bounds."""
    code, signal, rank = text.split(":")
    return bounded(code, most=255), bounded(signal, most=128), bounded(rank, most=MOST_ATTEMPT)


def _parse_time(text: str) -> float:
    """Returns seconds since the epoch. Raises ValueError where the text is no time between 0 and LAST_SECOND."""
    seconds = float(text)
    if not 0.0 <= seconds <= LAST_SECOND:
        raise ValueError(f"{text[:40]!r} is no time")
    return seconds


def _text(column: str) -> str:
    """Returns the text of a column, empty for the mark of nothing."""
    return "" if column == _NOTHING else column
