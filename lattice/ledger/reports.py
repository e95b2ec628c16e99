"""Format 1 of a node's report in its heartbeat Lease (docs/explanation/formats.md): the agent writes it, scheduler and operator read it."""

from __future__ import annotations

import re

import msgspec

from lattice.errors import Corrupt, Rejected
from lattice.formats import check_format
from lattice.units import decode_uid, encode_uid, expand_nodes, fold_nodes, whole_number

FORMAT = 1
ANNOTATION = "lattice.dev/report"
UNHEARD = "lattice.dev/unheard-nodes"
"""The annotation of the operator's own Lease that says how many Ready nodes it has not heard itself; absent or "-": not known yet."""
LIMIT = 1000
LARGEST = 4 * LIMIT
"""Most characters of a report that a reader accepts."""
MOST = (1 << 63) - 1
"""The largest number in a report: the largest that the objects hold into which it is copied."""
MOST_ATTEMPT = (1 << 31) - 1

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
READY = "r"
"""Detail of `p`: the node has prepared everything and waits for the other nodes."""
UNSERVED = "g"
"""Detail of `p`: no gateway gives the node its work."""
PULLING = "m"
"""Detail of `p`: images of the attempt are on their way to the node."""
IDLE = "i"
"""Detail of `r`: the node has no task of the attempt, and ends with the others."""
BEGUN = "b"
"""Detail of `g`: the node had started the attempt before it was stopped, which the status may not show yet."""
AWAY_LIMIT = 200
"""Most characters of the names of unreachable peers; further names are left out."""
NO_PROCESS_LEFT = frozenset((ENDED, UNKNOWN_EXIT, START_FAILED, LOST, GONE))
"""States by which the node guarantees that no process of the attempt runs on it."""

REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,63}|", re.ASCII)
_KEPT_FIRST = {UNNAMED: 0, LOST: 1, GONE: 1, RUNNING: 2, ENDING: 2, PREPARING: 2}


class ReportRow(msgspec.Struct, frozen=True, gc=False):
    """One attempt in a node's report: its state on the node.

    `detail`: the exit code of `e`, the reason of `f`, `READY`, `UNSERVED` or `PULLING` of a `p`, `IDLE` of an `r`, `BEGUN` of a `g`.
    `at_walltime`: the node ended the attempt because its walltime was over.
    """

    uid: str
    attempt: int
    state: str
    detail: str = ""
    at_walltime: bool = False


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """A node's report, which every heartbeat carries: one row for each attempt that the node knows.

    `hb`: the number of the heartbeat. `seq`: the highest commit of the ledger that the node has ever seen in a plan; `epoch` and
    `term` are those of that plan (0 and empty: unknown). `boot`, `inst`: ids of the machine's boot and of the agent process.
    `more`: rows were left out. `away`: nodes of its attempts that it cannot reach.
    """

    hb: int
    seq: int
    boot: str
    inst: str
    rows: tuple[ReportRow, ...] = ()
    more: bool = False
    epoch: int = 0
    term: str = ""
    away: tuple[str, ...] = ()


def format_report(report: NodeReport, *, limit: int = LIMIT) -> str:
    """Returns the text of the annotation, at most `limit` characters; rows that do not fit are left out, and `more=1` says so.

    Unnamed attempts are kept first, then lost and gone ones, then those that are going on.
    """
    head = f"{FORMAT} hb={report.hb} seq={report.seq} boot={report.boot or '-'} inst={report.inst or '-'} rows="
    tail = (f" epoch={report.epoch} term={report.term}" if report.epoch else "") + _away(report.away)
    room = limit - len(head) - len(tail) - len(" more=1 walltime=")
    kept: list[str] = []
    at_walltime: list[str] = []
    more = report.more
    for row in sorted(report.rows, key=lambda row: _KEPT_FIRST.get(row.state, 3)):
        text = f"{encode_uid(row.uid)}:{row.attempt}:{row.state}{row.detail}"
        place = str(len(kept))
        needed = len(text) + 1 + (len(place) + 1 if row.at_walltime else 0)
        if needed > room:
            more = True
            continue
        room -= needed
        kept.append(text)
        if row.at_walltime:
            at_walltime.append(place)
    return head + ",".join(kept) + (" more=1" if more else "") + tail + (f" walltime={','.join(at_walltime)}" if at_walltime else "")


def _away(names: tuple[str, ...]) -> str:
    """Returns the column of unreachable nodes, each once, with a space before it; of too many names half are left out until it has 200
    characters at most.

    Empty where all are reachable; readers may ignore it.
    """
    kept = list(dict.fromkeys(names))
    while kept and len(fold_nodes(kept)) > AWAY_LIMIT:
        kept = kept[: len(kept) // 2]
    return f" away={fold_nodes(kept)}" if kept else ""


def parse_report(text: str) -> NodeReport:
    """Returns the report of an annotation; unknown trailing columns are ignored.

    Raises Corrupt for another format, naming both, or unreadable text. Anybody with the node's key may have written the text, so
    every number is held to the bounds of the objects that store it.
    """
    if len(text) > LARGEST:
        raise Corrupt(f"a node report of {len(text)} characters (limit: {LARGEST})", reason="ReportUnreadable")
    number, *columns = text.split(" ")
    check_format("node report", number, FORMAT)
    fields: dict[str, str] = {name: value for name, _, value in (column.partition("=") for column in columns)}
    try:
        rows = tuple(_parse_row(item) for item in fields["rows"].split(",")) if fields["rows"] else ()
        epoch, term = bounded(fields.get("epoch", "0")), fields.get("term", "")
        hb, seq, more = bounded(fields["hb"]), bounded(fields["seq"]), fields.get("more") == "1"
        away = tuple(expand_nodes(fields["away"])) if fields.get("away") else ()
        if fields.get("walltime"):
            at_walltime = {bounded(place, most=len(rows) - 1) for place in fields["walltime"].split(",")}
            rows = tuple(msgspec.structs.replace(row, at_walltime=True) if place in at_walltime else row for place, row in enumerate(rows))
        return NodeReport(hb, seq, fields["boot"], fields["inst"], rows, more, epoch, term, away)
    except (KeyError, ValueError, Rejected) as error:
        raise Corrupt(f"unreadable node report: {error} in {text[:80]!r}", reason="ReportUnreadable") from error


def bounded(text: str, least: int = 0, most: int = MOST) -> int:
    """Returns a number of a node's text; raises ValueError for text that is no whole number from `least` to `most`."""
    number = whole_number(text, least, most)
    if number is None:
        raise ValueError(f"{text[:40]!r} is no number from {least} to {most}")
    return number


def _parse_row(item: str) -> ReportRow:
    """Returns one attempt's row of a node's report from its text UID:ATTEMPT:STATE. Raises ValueError where it does not parse."""
    uid, attempt, state = item.split(":", 2)
    letter, detail = state[:1], state[1:]
    if letter not in STATES or (letter == START_FAILED and not REASON.fullmatch(detail)):
        raise ValueError(f"state {state[:80]!r}")
    if letter == ENDED and detail:
        bounded(detail, most=255)
    return ReportRow(decode_uid(uid), bounded(attempt, 1, MOST_ATTEMPT), letter, detail)
