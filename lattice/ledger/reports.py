"""Format 1 of a node's report in its heartbeat Lease (docs/explanation/formats.md)."""

from __future__ import annotations

import msgspec

from lattice.errors import Corrupt
from lattice.units import decode_uid, encode_uid

FORMAT = 1
ANNOTATION = "lattice.dev/report"
UNHEARD = "lattice.dev/unheard-nodes"
"""On the operator's own Lease: how many of the nodes that it calls Ready it has not heard itself; absent or "-": it does not know yet."""
LIMIT = 1000

PREPARING = "p"
RUNNING = "r"
ENDING = "t"
ENDED = "e"
UNKNOWN_EXIT = "x"
START_FAILED = "f"
LOST = "l"
UNNAMED = "u"
GONE = "g"
STATES = frozenset("prtexflug")
NO_PROCESS_LEFT = frozenset((ENDED, UNKNOWN_EXIT, START_FAILED, LOST, GONE))
"""States in which the node vouches that nothing of the attempt runs."""

_KEPT_FIRST = {UNNAMED: 0, LOST: 1, GONE: 1, RUNNING: 2, ENDING: 2, PREPARING: 2}


class ReportRow(msgspec.Struct, frozen=True, gc=False):
    """One attempt as its node sees it; `detail` is the exit code of `e`, the reason of `f`."""

    uid: str
    attempt: int
    state: str
    detail: str = ""


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """What a node says with each heartbeat."""

    hb: int
    seq: int
    boot: str
    inst: str
    rows: tuple[ReportRow, ...] = ()
    more: bool = False


def format_report(report: NodeReport, *, limit: int = LIMIT) -> str:
    """The annotation's text, at most `limit` characters; what does not fit is left out and said with `more=1`."""
    head = f"{FORMAT} hb={report.hb} seq={report.seq} boot={report.boot or '-'} inst={report.inst or '-'} rows="
    room = limit - len(head) - len(" more=1")
    kept: list[str] = []
    more = report.more
    for row in sorted(report.rows, key=lambda row: _KEPT_FIRST.get(row.state, 3)):
        text = f"{encode_uid(row.uid)}:{row.attempt}:{row.state}{row.detail}"
        if len(text) + 1 > room:
            more = True
            continue
        room -= len(text) + 1
        kept.append(text)
    return head + ",".join(kept) + (" more=1" if more else "")


def parse_report(text: str) -> NodeReport:
    """The report; unknown trailing columns are ignored. Raises Corrupt for another format, naming both, or unreadable text."""
    number, *columns = text.split(" ")
    if number != str(FORMAT):
        raise Corrupt(f"node report of format {number[:12]!r}: this program reads format {FORMAT}", reason="FormatUnknown")
    fields: dict[str, str] = {name: value for name, _, value in (column.partition("=") for column in columns)}
    try:
        rows = tuple(_parse_row(item) for item in fields["rows"].split(",")) if fields["rows"] else ()
        return NodeReport(int(fields["hb"]), int(fields["seq"]), fields["boot"], fields["inst"], rows, fields.get("more") == "1")
    except (KeyError, ValueError) as error:
        raise Corrupt(f"unreadable node report: {error} in {text[:80]!r}", reason="ReportUnreadable") from error


def _parse_row(item: str) -> ReportRow:
    uid, attempt, state = item.split(":", 2)
    if state[:1] not in STATES:
        raise ValueError(f"state {state!r}")
    return ReportRow(decode_uid(uid), int(attempt), state[0], state[1:])
