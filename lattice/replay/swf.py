"""The Standard Workload Format: reads lines into columns; a line that is not valid is refused with its number and its field.

One job a line, 18 numbers, `-1` where a value is not known; lines that start with `;` are the header. The fields' meaning is that
of the Parallel Workloads Archive (version 2.2). Jobs keep the order of their lines.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lattice.errors import Rejected
from lattice.replay.tally import Tally

FIELDS: Final = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time used",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
LARGEST: Final = 10**12
"""A greater number is taken for an error: as seconds it would be 31,000 years."""
PARTIAL: Final = frozenset({2, 3, 4})
"""The statuses of a line that is one part of a job which stands above it as a whole."""
_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d*)?|-?\.\d+")
_ROUNDED: Final = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
"""The form of large numbers that awk and spreadsheets write; it loses digits, so it is accepted only in fields that nobody reads."""
_WHOLE: Final = frozenset({0, 4, 7, 10, 11, 12})
"""The fields in which a fraction is an error; in times it is cut off."""
_UNREAD: Final = frozenset({2, 5, 6, 9, 13, 14, 15, 16, 17})
"""The fields that a replay ignores."""
_HEADER: Final = re.compile(rb";\s*(MaxNodes|MaxProcs)\s*:\s*(\d{1,12})(?:[\s(,;].*)?$", re.IGNORECASE)


def _column() -> array[int]:
    """Returns an empty column of 64-bit integers."""
    return array("q")


@dataclass
class Trace:
    """The columns of an SWF log that a replay needs, one entry for each job in the order of the lines."""

    job: array[int] = field(default_factory=_column)
    submit: array[int] = field(default_factory=_column)
    run: array[int] = field(default_factory=_column)
    allocated: array[int] = field(default_factory=_column)
    requested: array[int] = field(default_factory=_column)
    """Requested processors."""
    estimate: array[int] = field(default_factory=_column)
    """Requested time in seconds."""
    user: array[int] = field(default_factory=_column)
    group: array[int] = field(default_factory=_column)
    line: array[int] = field(default_factory=_column)
    header: dict[str, int] = field(default_factory=dict)
    """`maxnodes` and `maxprocs`, where the header has them."""
    changed: Tally = field(default_factory=Tally)
    """How many lines were changed or skipped in reading, by rule."""


def parse(lines: Iterable[bytes]) -> Trace:
    """Returns the columns of a log, without lines that are parts of a job above them, which are counted; values are not checked against
    each other, −1 stays.

    Raises Rejected (`BadTrace`) at the first line that is not valid.
    """
    trace = Trace()
    numbers = _JobNumbers(trace)
    job, submit, run, line = trace.job.append, trace.submit.append, trace.run.append, trace.line.append
    allocated, requested, estimate = trace.allocated.append, trace.requested.append, trace.estimate.append
    user, group = trace.user.append, trace.group.append
    for at, text in enumerate(lines, start=1):
        words = text.split()
        if not words:
            continue
        if words[0].startswith(b";"):
            _read_header(trace, text)
            continue
        values = _values(trace, words, at) if b"_" not in text else _careful(trace, words, at)
        if numbers.is_part(values[0], values[10], at):
            trace.changed.note("lines left out that are parts of a job above them", at, "field 11")
            continue
        job(values[0])
        submit(values[1])
        run(values[3])
        allocated(values[4])
        requested(values[7])
        estimate(values[8])
        user(values[11])
        group(values[12])
        line(at)
    return trace


class _JobNumbers:
    """Finds job numbers that occur twice; while they grow, as they should, it remembers only the last."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._last = -LARGEST - 1
        self._seen: set[int] | None = None

    def is_part(self, number: int, status: int, at: int) -> bool:
        """Tells whether a line is a part of a job that was read before, and notes its number; raises Rejected where it repeats a job."""
        if number > self._last and self._seen is None:
            self._last = number
            return False
        if self._seen is None:
            self._seen = set(self._trace.job)
        if number not in self._seen:
            self._seen.add(number)
            return False
        if status in PARTIAL:
            return True
        first = self._trace.line[self._trace.job.index(number)]
        raise Rejected(f"line {at}: job number {number} stands already in line {first}", reason="BadTrace")


def _read_header(trace: Trace, line: bytes) -> None:
    """Stores the number of a header line, by its name in lower case; other comment lines are ignored."""
    found = _HEADER.match(line.strip())
    if found:
        trace.header[found[1].decode().lower()] = int(found[2])


def _values(trace: Trace, words: list[bytes], at: int) -> list[int]:
    """Returns the 18 numbers of a line; fractions are treated as `_careful` says. Raises Rejected, which names the first wrong field."""
    if len(words) == len(FIELDS):
        try:
            values = list(map(int, words))
        except ValueError:
            return _careful(trace, words, at)
        if max(values) <= LARGEST and min(values) >= -LARGEST:
            return values
    return _careful(trace, words, at)


def _careful(trace: Trace, words: list[bytes], at: int) -> list[int]:
    """Returns the 18 numbers of a line that has fractions: those of times are cut, which is counted, fields that nobody reads become −1;
    raises Rejected that names the first wrong field.
    """
    for place, word in enumerate(words[: len(FIELDS)]):
        if not (_ROUNDED if place in _UNREAD else _NUMBER).fullmatch(word):
            raise _wrong(at, place, word, "is no number")
        if place not in _UNREAD and abs(float(word)) > LARGEST:
            raise _wrong(at, place, word, "is above 10^12, which no log means")
    if len(words) != len(FIELDS):
        raise _wrong_count(at, words)
    words = [b"-1" if place in _UNREAD else word for place, word in enumerate(words)]
    broken = [place for place, word in enumerate(words) if b"." in word and not float(word).is_integer()]
    for place in _WHOLE.intersection(broken):
        raise _wrong(at, place, words[place], "is no whole number")
    if broken:
        trace.changed.note("lines with parts of seconds cut to whole ones", at, f"field {broken[0] + 1}")
    return [_whole(float(word)) if b"." in word else int(word) for word in words]


def _whole(value: float) -> int:
    """Returns a value without its fraction; a value between 0 and 1 becomes 1."""
    return 1 if 0 < value < 1 else int(value)


def _wrong_count(at: int, words: list[bytes]) -> Rejected:
    """Returns the error for a line with too few or too many fields, naming the first that is missing or too much."""
    wanted, count = len(FIELDS), len(words)
    what = f"{FIELDS[count]} (field {count + 1}) is missing" if count < wanted else f"field {wanted + 1} is '{_shown(words[wanted])}'"
    return Rejected(f"line {at} has {count} fields, a line of SWF has {wanted}: {what}", reason="BadTrace")


def _wrong(at: int, place: int, word: bytes, what: str) -> Rejected:
    """Returns the error that says what is wrong with a field (`place` from 0) of a line."""
    name = FIELDS[place]
    return Rejected(f"line {at}: {name} (field {place + 1}): '{_shown(word)}' {what}", reason="BadTrace", fields=(name,))


def _shown(word: bytes) -> str:
    """Returns the beginning of a word as printable text."""
    return repr(word[:40])[2:-1] + ("…" if len(word) > 40 else "")
