"""Traces as Slurm's accounting prints them: reads `sacct -P` with a header line, in any order of columns, into jobs.

The header names the columns. Needed are JobID, Submit, a number of nodes (NNodes, AllocNodes or ReqNodes) and a length (Elapsed,
ElapsedRaw, or Start with End); Timelimit is the requested walltime. Steps (`123.batch`, `123.0`) are parts of a job and are
skipped. Account becomes the tenant, Partition the vcluster. Local times are read in the zone that is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final

from lattice.errors import Rejected
from lattice.replay.jobs import Log, TraceJob
from lattice.scheduling.model.hardware import Need
from lattice.units import is_digits, parse_slurm_time

KNOWN: Final = (
    "JobID", "JobName", "User", "Account", "Partition", "QOS", "Submit", "Start", "End", "Elapsed", "ElapsedRaw", "Timelimit",
    "TimelimitRaw", "NNodes", "AllocNodes", "ReqNodes", "State", "ReqTRES", "AllocTRES", "ReqGRES", "AllocGRES",
)  # fmt: skip
"""The columns that are read, in sacct's spelling; all others are ignored."""
_ID: Final = re.compile(r"(\d+(?:_(?:\d+|\[[^\]]*\])|\+\d+)?)(\.[A-Za-z0-9_+-]+)?", re.ASCII)
_STATES: Final = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "CONFIGURING", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD",
    "REVOKED", "RUNNING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED", "TIMEOUT",
})  # fmt: skip
_OPEN: Final = frozenset({
    "COMPLETING", "CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "RUNNING",
    "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED",
})  # fmt: skip
_COUNT: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,3}))?([KMG]?)", re.ASCII)
_FACTORS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
"""sacct writes 1024 nodes as 1K, unless it is asked with --noconvert."""
_UNKNOWN: Final = frozenset({"", "Unknown", "None", "N/A", "INVALID"})
_NO_LIMIT: Final = frozenset({"UNLIMITED", "Partition_Limit"})
_MOST_NODES: Final = 10**6
_LAST_YEAR: Final = 2999
_LONGEST_NUMBER: Final = 11
"""Most digits of a time in seconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Translation:
    """The site's rules for reading its accounting: the time zone, and the preemption class of each QOS."""

    zone: tzinfo = UTC
    """The zone of times that name none."""
    classes: Mapping[str, int] | None = None
    """By QOS; others, and all where it is None, get class 5."""


@dataclass
class _SacctReader:
    header: list[str]
    names: list[str]
    how: Translation
    log: Log
    lines: dict[str, int]

    def read_row(self, at: int, words: list[str]) -> None:
        """Reads the words of one line into a job of the log; repeated headers and steps of jobs are ignored.

        Raises Rejected, with the line, where a field is wrong or a job stands twice.
        """
        if words == self.header:
            return  # of the next of several outputs in one file
        if len(words) != len(self.names):
            raise Rejected(
                f"line {at} has {len(words)} fields, the header names {len(self.names)}: a field with | or a line end in it (leave free "
                "text such as JobName and Comment out of sacct -o), or a cut line",
                reason="BadTrace",
            )
        row = _Row(at, dict(zip(self.names, words, strict=True)))
        found = _ID.fullmatch(row.get("JobID"))
        if found is None:
            raise row.bad("JobID", "is no job id such as 123, 123_4 or 123.batch")
        if found[2]:
            return  # a step of a job that has a line of its own
        name = found[1]
        if name in self.lines:
            raise row.bad(
                "JobID",
                f"stands already in line {self.lines[name]}: leave -D out, which prints every attempt, and put no two outputs "
                "of times that overlap into one file",
            )
        self.lines[name] = at
        self.log.total += 1
        job = self._job(row, name)
        if job is not None:
            self.log.jobs.append(job)

    def _job(self, row: _Row, name: str) -> TraceJob | None:
        """Returns the job of a line; None where it cannot be replayed (no submission, end, run time or nodes; an array not split), which is
        counted. Runs above their limit and jobs without one are counted as changed.

        Raises Rejected, with the line, for a field that does not parse.
        """
        state = row.get("State").partition(" ")[0].rstrip("+")
        if state and state not in _STATES:
            raise row.bad("State", "is no state of sacct")
        if "[" in name:
            self.log.left.note("that are arrays not yet split into tasks", row.at, "JobID")
            return None
        submit = row.time("Submit", self.how.zone)
        if submit is None:
            self.log.left.note("without a submit time", row.at, "Submit")
            return None
        if state in _OPEN:
            self.log.left.note("that had not ended", row.at, "State")
            return None
        run, withdrawn = _run(row, self.how.zone, state, submit)
        nodes = row.number("NNodes", "AllocNodes", "ReqNodes")
        walltime = _walltime(row)
        if withdrawn is not None and walltime and nodes:
            run = walltime
        if run <= 0:
            self.log.left.note("without a run time", row.at, "Elapsed")
            return None
        if nodes <= 0:
            self.log.left.note("without nodes", row.at, "NNodes")
            return None
        if walltime is None:
            self.log.changed.note("jobs without a time limit, on whose end no reservation counts", row.at, "Timelimit")
        elif run > walltime:
            self.log.changed.note("runs cut at their time limit", row.at, "Elapsed")
        return TraceJob(
            id=name, submit=submit, nodes=nodes, run=run, walltime=walltime, tenant=row.get("Account") or "default",
            user=row.get("User"), vcluster=(row.get("Partition").partition(",")[0]) or "default", name=row.get("JobName"),
            preemption_class=(self.how.classes or {}).get(row.get("QOS"), 5), need=_need(row, nodes), withdrawn=withdrawn,
            line=row.at,
        )  # fmt: skip


class _Row:
    """The fields of one line by column name, with its line number for errors."""

    __slots__ = ("_values", "at")

    def __init__(self, at: int, values: dict[str, str]) -> None:
        self.at = at
        self._values = values

    def get(self, name: str) -> str:
        """Returns the text of a column; empty where it is absent or unknown."""
        value = self._values.get(name, "").strip()
        return "" if value in _UNKNOWN else value

    def bad(self, name: str, what: str) -> Rejected:
        """Returns the error for one column of the line."""
        return Rejected(f"line {self.at}: {name}: {self._values.get(name, '')[:60]!r} {what}", reason="BadTrace", fields=(name,))

    def number(self, *names: str) -> int:
        """Returns the number in the first of these columns that has one above 0; 0 where none has.

        Raises Rejected, with the line, where one is no number.
        """
        for name in names:
            text = self.get(name)
            if not text:
                continue
            count = _count(text)
            if count is None or count > _MOST_NODES:
                raise self.bad(name, f"is no number from 0 to {_MOST_NODES}")
            if count:
                return count
        return 0

    def digits(self, name: str, what: str) -> float:
        """Returns the whole number in a column, such as of seconds or minutes (`what`, for the error).

        Raises Rejected, with the line, where it is none or absent.
        """
        text = self.get(name)
        if not is_digits(text, _LONGEST_NUMBER):
            raise self.bad(name, f"is no number of {what}")
        return float(text)

    def time(self, name: str, zone: tzinfo) -> float | None:
        """Returns the time in a column in seconds since the epoch, a number taken for such; None where it is unknown.

        `zone`: of times that name none; raises Rejected, with the line, where it is no time.
        """
        text = self.get(name)
        if not text:
            return None
        if is_digits(text, _LONGEST_NUMBER):
            return float(text)  # SLURM_TIME_FORMAT=%s
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise self.bad(name, "is no time such as 2026-03-01T08:00:00") from error
        if not 1970 <= moment.year <= _LAST_YEAR:
            raise self.bad(name, f"is before 1970 or after {_LAST_YEAR}")
        return max(0.0, ((moment if moment.tzinfo else moment.replace(tzinfo=zone)) - _EPOCH).total_seconds())

    def length(self, name: str) -> float | None:
        """Returns the length of time in a column in whole seconds, a fraction cut off; None where it is unknown or unlimited, 0 for zero.

        Raises Rejected, with the line, where it does not parse.
        """
        text = self.get(name)
        if not text or text in _NO_LIMIT:
            return None
        try:
            return parse_slurm_time(text.partition(".")[0]) or 0.0
        except Rejected as error:
            raise self.bad(name, "is no length of time such as 1-12:30:00") from error


def read(lines: Iterable[bytes], how: Translation | None = None) -> Log:
    """Returns the log of a trace; raises Rejected (`BadTrace`) at the first line that is not valid, and where no job is left to replay.

    `how` None: times are UTC, and every job has class 5.
    """
    reader: _SacctReader | None = None
    for at, text in enumerate(lines, start=1):
        words = _words(text)
        if not words:
            continue
        if reader is None:
            reader = _SacctReader(words, _header(at, words), how or Translation(), Log("sacct"), {})
        else:
            reader.read_row(at, words)
    if reader is None:
        raise Rejected("the trace is empty: sacct -P begins with a line of column names", reason="BadTrace")
    return reader.log.settle()


def _words(text: bytes) -> list[str]:
    """Returns the fields of a line, none of a blank one; a byte that is no UTF-8, as in old names of jobs, is shown as `\\xe9`."""
    line = text.decode(errors="backslashreplace").rstrip("\r\n")
    return line.split("|") if line.strip() else []


def _count(text: str) -> int | None:
    """Returns a whole number as sacct writes it (`1K` is 1024); None for a text that is no number."""
    found = _COUNT.fullmatch(text)
    if found is None:
        return None
    whole, part, unit = found.groups()
    value = int(whole) * _FACTORS[unit]
    return value + round(int(part) * _FACTORS[unit] / 10 ** len(part)) if part else value


def _header(at: int, words: Sequence[str]) -> list[str]:
    """Returns the column names in sacct's spelling; raises Rejected where a column is missing or twice there.

    `sacct -p` ends each line with a separator, which makes an empty last column.
    """
    spelling = {name.lower(): name for name in KNOWN}
    names = [spelling.get(word.strip().lower(), word.strip()) for word in words]
    double = {name for name in names if name in KNOWN and names.count(name) > 1}
    if double:
        raise Rejected(f"line {at}: the column {min(double)} stands there twice", reason="BadTrace", fields=(min(double),))
    if len(words) == 1:
        raise Rejected(f"line {at}: no | stands between the columns: print them with sacct -P, without --delimiter", reason="BadTrace")
    for wanted in (("JobID",), ("Submit",), ("NNodes", "AllocNodes", "ReqNodes"), ("Elapsed", "ElapsedRaw", "Start")):
        if not any(name in names for name in wanted):
            raise Rejected(
                f"line {at}: no column {' or '.join(wanted)}; ask for sacct -a -P -X -o "
                "JobID,JobName,User,Account,Partition,QOS,Submit,Start,End,Elapsed,Timelimit,NNodes,State,ReqTRES,AllocTRES",
                reason="BadTrace",
                fields=wanted,
            )
    return names


def _run(row: _Row, zone: tzinfo, state: str, submit: float) -> tuple[float, float | None]:
    """Returns how long a job ran in seconds, 0 where nothing says it, and, if it was cancelled before it ran, when; else None.

    Raises Rejected, with the line, where it ends before its start.
    """
    start, end = row.time("Start", zone), row.time("End", zone)
    elapsed = row.length("Elapsed")
    if elapsed is None and row.get("ElapsedRaw"):
        elapsed = row.digits("ElapsedRaw", "seconds")
    if elapsed is None and start is not None and end is not None:
        if end < start:
            raise row.bad("End", "is before Start")
        elapsed = end - start
    if state == "CANCELLED" and not elapsed and end is not None and end >= submit:
        return 0.0, end
    return elapsed or 0.0, None


def _walltime(row: _Row) -> float | None:
    """Returns the requested walltime in seconds; None: unlimited or unknown."""
    raw = row.get("TimelimitRaw")
    if raw and raw not in _NO_LIMIT and not row.get("Timelimit"):
        return row.digits("TimelimitRaw", "minutes") * 60 or None
    return row.length("Timelimit") or None


def _need(row: _Row, nodes: int) -> Need:
    """Returns what each node of a job must offer: GPUs and their type, of `gres/gpu:a100=8` in TRES (in all, divided by `nodes`, rounded
    up) or else `gpu:a100:4` in GRES (each node's).

    What was allocated goes before what was asked for; nothing else is read.
    """
    for name in ("AllocTRES", "ReqTRES"):
        total, kind = _gpus_of(row, name)
        if total:
            return Need(gpus=-(-total // nodes), gpu_type=kind)
    for name in ("AllocGRES", "ReqGRES"):
        for part in row.get(name).split(","):
            words = part.partition("(")[0].split(":")
            if words[0].removeprefix("gres/") == "gpu":
                count = _count(words[-1])
                kind = words[1] if len(words) > (1 if count is None else 2) else ""
                return Need(gpus=1 if count is None else count, gpu_type=kind)
    return Need()


def _gpus_of(row: _Row, name: str) -> tuple[int, str]:
    """Returns number and model of the GPUs in a field of resources, 0 and empty for none.

    Raises Rejected, with the line, where it does not parse.
    """
    total, kind = 0, ""
    for part in row.get(name).split(","):
        key, equals, value = part.partition("=")
        if not equals and part:
            raise row.bad(name, f"has no '=' in {part!r}")
        if key == "gres/gpu" or key.startswith("gres/gpu:"):
            count = _count(value)
            if count is None:
                raise row.bad(name, f"has no number of GPUs in {part!r}")
            total = max(total, count)
            kind = key.partition(":")[2] or kind
    return total, kind
