"""Parses and formats the texts that people write: durations, clocks, quantities, node sets, ranges, times and uids.

Pure and free of pydantic, so that every process can load it. Text that does not parse raises `errors.Rejected`, with the text and the
place in the sentence.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

from lattice.errors import Rejected

if TYPE_CHECKING:
    from decimal import Decimal

MAX_NODES_IN_A_SET = 16_384
"""Most names of a node set; a set that expands to more is refused."""
_MOST_DIGITS = 18
"""Most digits of a number in a range."""

_DURATION = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,12})s)?", re.ASCII)
_QUANTITY = re.compile(r"\+?([0-9]{1,30})(?:\.([0-9]{1,30}))?(m|k|Ki|[MGTPE]i?)?", re.ASCII)
_NODE_COUNT = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?", re.ASCII)
_NODE_TEXT = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_NODE_MARKS = re.compile(r"[\[\],]")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]+)", re.ASCII | re.DOTALL)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_SECOND = 253402300799.0
"""The last second that RFC 3339 can write; sums of times and durations that people choose go beyond it."""
_MULTIPLES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    unit: 1 << (10 * power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)
}
_SLURM_UNLIMITED = frozenset({"unlimited", "infinite", "-1"})


def shown(text: object) -> str:
    """Returns a text in quotes, cut to 60 characters."""
    shown = str(text)
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")


# Durations and clocks


def parse_duration(text: str) -> float:
    """Returns the seconds of `45s`, `30m`, `1h30m`, `72h`, `7d`: at least one whole number with its unit, the larger units first; `0s` is
    0.

    Raises Rejected for other text, blanks and fractions included.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise Rejected(f"{shown(text)} is not a duration: write for example 45s, 30m, 1h30m, 72h or 7d", reason="BadDuration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def format_duration(seconds: float) -> str:
    """Returns the duration as text, `1h30m` for 5400: whole seconds (rounded), the larger units first, `0s` for nothing or less."""
    rest = max(0, round(seconds))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_slurm_time(text: str) -> float | None:
    """Returns the seconds of a Slurm time: `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; None: unlimited (`unlimited`,
    `infinite`, `-1`).

    Any zero is unlimited, too. Raises Rejected for other text, `1h30m` included.
    """
    word = text.strip()
    if word.lower() in _SLURM_UNLIMITED:
        return None
    days, dash, clock = word.rpartition("-")
    fields = clock.split(":")
    numbers = [days, *fields] if dash else fields
    if len(fields) > 3 or not all(is_digits(number, 9) for number in numbers):
        raise Rejected(
            f"{shown(text)} is not a time: write 30m, 1h30m or 7d, or as Slurm MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS",
            reason="BadTime",
        )
    values = [int(number) for number in fields]
    if dash:
        hours, minutes, seconds = (*values, 0, 0)[:3]
    elif len(values) == 3:
        hours, minutes, seconds = values
    else:
        hours, (minutes, seconds) = 0, (*values, 0)[:2]
    total = int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    return float(total) if total else None


def format_clock(seconds: float) -> str:
    """Returns the duration as a clock, `72:00:00` for 259200: hours, minutes, seconds, rounded down; `00:00:00` for less than nothing."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02d}:{minute:02d}:{second:02d}"


# Quantities


def parse_quantity(value: int | str) -> int | Decimal:
    """Returns the exact number of a Kubernetes quantity (`500Gi`, `150m`, `24`): an int where it is whole.

    Raises Rejected for other text and for what is below 0.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Rejected(f"{shown(value)} is not a quantity: write for example 24, 500Gi, 1.5Ti or 150m", reason="BadQuantity")
    whole, fraction, unit = match[1], match[2] or "", match[3] or ""
    scale = len(fraction) + (3 if unit == "m" else 0)
    number = int(whole + fraction) * _MULTIPLES.get(unit, 1)
    parts: int = 10**scale
    if number % parts == 0:
        return number // parts
    from decimal import Decimal  # few quantities are no whole number

    return Decimal((0, tuple(map(int, str(number))), -scale))


def quantity_bytes(value: int | str) -> int:
    """Returns a quantity as whole bytes, rounded up as Kubernetes does; raises Rejected as `parse_quantity` does."""
    number = parse_quantity(value)
    if isinstance(number, int):
        return number
    numerator, denominator = number.as_integer_ratio()
    return -(-numerator // denominator)


def format_bytes(count: int) -> str:
    """Returns the bytes in the largest binary unit that divides the count exactly: `128Gi`; without a unit where none does."""
    for unit in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if count and count % _MULTIPLES[unit] == 0:
            return f"{count // _MULTIPLES[unit]}{unit}"
    return str(count)


# Node sets and ranges


def expand_nodes(text: str) -> list[str]:
    """Returns the names of `nid[001-064],gpu7` in the order written; several brackets in one name multiply; empty text has no name.

    Raises Rejected for other text, and for more than 16,384 names.
    """
    names: list[str] = []
    for pieces in _node_parts(text):
        names.extend("".join(choice) for choice in product(*map(_choices, pieces)))
    return names


def count_nodes(text: str) -> int:
    """Returns how many names a node set writes, repeated ones counted again; makes none of the names. Raises as `expand_nodes` does."""
    return sum(prod(map(_choice_count, pieces)) for pieces in _node_parts(text))


def fold_nodes(names: Sequence[str]) -> str:
    """Returns a short node set of this grammar that expands to exactly these names, in this order: neighbours with the same prefix share a
    bracket.
    """
    parts: list[str] = []
    run: list[tuple[str, str]] = []
    prefix = ""
    for name in names:
        match = _TRAILING_NUMBER.fullmatch(name)
        if match is None:
            _close(parts, prefix, run)
            parts.append(name)
            continue
        if match[1] != prefix:
            _close(parts, prefix, run)
            prefix = match[1]
        digits = match[2]
        if run and digits == str(int(run[-1][1]) + 1).zfill(len(run[-1][0])):
            run[-1] = (run[-1][0], digits)
        else:
            run.append((digits, digits))
    _close(parts, prefix, run)
    return ",".join(parts)


def parse_ranges(text: str) -> list[int]:
    """Returns the numbers of `0-3,7`, in the order written, repeated ones too; none for empty text.

    Raises Rejected for other text, for numbers of more than 18 digits, for a range that runs backwards, and for more than 16,384 numbers.
    """
    if not text:
        return []
    numbers: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not is_digits(low, len(low)) or (dash and not is_digits(high, len(high))):
            raise Rejected(f"{shown(text)} is not a list of ranges such as 0-3,7: {shown(part)} is no number or range", reason="BadRange")
        if len(low) > _MOST_DIGITS or len(high) > _MOST_DIGITS:
            raise Rejected(f"a number in {shown(part)} has more than {_MOST_DIGITS} digits", reason="BadRange")
        first = int(low)
        last = int(high) if dash else first
        if last < first or last - first >= MAX_NODES_IN_A_SET - len(numbers):
            raise Rejected(
                f"the range {shown(part)} in {shown(text)} runs backwards, or makes more than {MAX_NODES_IN_A_SET} numbers",
                reason="BadRange",
            )
        numbers.extend(range(first, last + 1))
    return numbers


def format_ranges(numbers: Iterable[int]) -> str:
    """Returns the numbers as ranges, ascending, each number once: `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_node_count(value: int | str) -> tuple[int, int]:
    """Returns minimum and maximum of `64` (both the same) or `"32-128"`; raises Rejected for all else: zero, negative, backward ranges."""
    match = _NODE_COUNT.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if match is None:
        raise Rejected(f"{shown(value)} is not a number of nodes: write for example 4, or 32-128 for a range", reason="BadNodeCount")
    low, high = int(match[1]), int(match[2] or match[1])
    if low > high:
        raise Rejected(
            f"the range of nodes {shown(value)} runs backwards: its minimum {low} is above its maximum {high}", reason="BadNodeCount"
        )
    return low, high


def is_digits(text: str | bytes, most: int = _MOST_DIGITS) -> bool:
    """Tells whether a text is a number in the digits 0 to 9 alone, at least one and at most `most` of them.

    Superscripts and the digits of other scripts, which `str.isdigit` accepts and `int` reads or refuses, are none.
    """
    return 0 < len(text) <= most and text.isascii() and text.isdigit()


def whole_number(text: str | bytes, least: int = 0, most: int = 10**_MOST_DIGITS - 1) -> int | None:
    """Returns the number from `least` to `most` that a text writes in the digits 0 to 9; None for other text.

    Zeros before it count as digits: a text of more digits than `most` has is none.
    """
    if not is_digits(text, len(str(most))):
        return None
    number = int(text)
    return number if least <= number <= most else None


def _bad_set(text: str, position: int, what: str) -> Rejected:
    """Returns the error that says what is wrong at a position (from 0) of a node set."""
    return Rejected(f"{shown(text)} is not a node set such as nid[001-064],gpu7: {what} at position {position + 1}", reason="BadNodeSet")


def _split_outside_brackets(text: str) -> Iterator[tuple[int, str]]:
    """Yields the parts of a node set between commas outside brackets, each with its position.

    Raises Rejected for brackets that do not match.
    """
    start, inside = 0, False
    for mark in _NODE_MARKS.finditer(text):
        position, character = mark.start(), mark[0]
        if character in "[]":
            if inside == (character == "["):
                raise _bad_set(text, position, f"unexpected {character!r}")
            inside = not inside
        elif not inside:
            yield start, text[start:position]
            start = position + 1
    if inside:
        raise _bad_set(text, len(text), "a missing ']'")
    yield start, text[start:]


_Runs = list[tuple[int, int, int]]
"""The ranges in a bracket: first and last number, and the least number of digits."""


def _node_parts(text: str) -> Iterator[list[str | _Runs]]:
    """Yields each name of a node set as its literal pieces and its brackets; raises Rejected where they write too many names."""
    total = 0
    for start, part in _split_outside_brackets(text) if text else ():
        pieces = list(_node_pieces(text, start, part, MAX_NODES_IN_A_SET - total))
        yield pieces
        total += prod(map(_choice_count, pieces))


def _node_pieces(text: str, start: int, part: str, room: int) -> Iterator[str | _Runs]:
    """Yields the pieces of one part of a node set: texts, and the numbers of each bracket.

    Raises Rejected where it does not parse or names more than `room` nodes.
    """
    if not part:
        raise _bad_set(text, start, "a missing name")
    if _NODE_TEXT.fullmatch(part):
        yield part
        if room < 1:
            raise _bad_set(text, start, f"more than {MAX_NODES_IN_A_SET} nodes")
        return
    size = 1
    for piece in re.finditer(r"\[([^\]]*)\]|[^\[]+", part):
        position = start + piece.start()
        if piece[1] is None:
            bad = _NODE_TEXT.match(piece[0])
            if bad is None or bad.end() < len(piece[0]):
                raise _bad_set(text, position + (bad.end() if bad else 0), f"unexpected {piece[0][bad.end() if bad else 0]!r}")
            yield piece[0]
        else:
            runs = _runs(text, position + 1, piece[1], room)
            size *= _choice_count(runs)
            yield runs
        if size > room:
            raise _bad_set(text, position, f"more than {MAX_NODES_IN_A_SET} nodes")


def _runs(text: str, start: int, inner: str, room: int) -> _Runs:
    """Returns the ranges of numbers in a bracket, each with its width.

    Raises Rejected where one does not parse or they are more than `room` numbers.
    """
    runs: _Runs = []
    position = start
    for part in inner.split(","):
        low, dash, high = part.partition("-")
        last = high if dash else low
        if not is_digits(low) or not is_digits(last):
            raise _bad_set(text, position, f"{shown(part)}, which is no number or range,")
        if int(last) < int(low) or len(last) < len(low) or (last.startswith("0") and len(last) != len(low)):
            raise _bad_set(text, position, f"the range {shown(part)}, which runs backwards or changes its width,")
        room -= int(last) - int(low) + 1
        if room < 0:
            raise _bad_set(text, position, f"more than {MAX_NODES_IN_A_SET} nodes")
        runs.append((int(low), int(last), len(low)))
        position += len(part) + 1
    return runs


def _choices(piece: str | _Runs) -> list[str]:
    """Returns the texts that a piece stands for: itself, or each number of a bracket with leading zeros."""
    if isinstance(piece, str):
        return [piece]
    return [str(number).zfill(width) for low, high, width in piece for number in range(low, high + 1)]


def _choice_count(piece: str | _Runs) -> int:
    """Returns for how many texts a piece stands."""
    return 1 if isinstance(piece, str) else sum(high - low + 1 for low, high, _ in piece)


def _close(parts: list[str], prefix: str, run: list[tuple[str, str]]) -> None:
    """Appends the collected numbers of one prefix to `parts` as one part, and empties `run`; nothing where it is empty."""
    if not run:
        return
    if len(run) == 1 and run[0][0] == run[0][1]:
        parts.append(prefix + run[0][0])
    else:
        parts.append(f"{prefix}[{','.join(low if low == high else f'{low}-{high}' for low, high in run)}]")
    run.clear()


# Times and uids


def parse_time(text: str) -> float:
    """Returns the seconds since the epoch of an RFC 3339 time; raises Rejected for a time without a zone, a date alone, and other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text.upper():
        raise Rejected(f"{shown(text)} is not a time with a zone: write for example 2026-12-01T08:00:00Z", reason="BadTime")
    return moment.timestamp()


def format_time(epoch: float, *, micro: bool = False) -> str:
    """Returns the time as RFC 3339 in UTC with whole seconds (rounded down), or with microseconds.

    Times outside the years 1970 to 9999 become their first or last second.
    """
    moment = _EPOCH + timedelta(microseconds=round(min(max(epoch, 0.0), LAST_SECOND) * 1_000_000))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if micro else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


_URL_SAFE: Final = str.maketrans({"-": "+", "_": "/", "+": "!", "/": "!", "=": "!"})
"""Translates the URL-safe alphabet to the one that `binascii` reads; other characters become unreadable."""


def encode_uid(uid: str) -> str:
    """Returns the 22 characters of a uid in the ledger: 16 bytes, URL-safe base64 without padding; raises Rejected for what is no uid."""
    digits = uid.replace("-", "")
    if len(digits) != 32 or not re.fullmatch(r"[0-9a-fA-F]{32}", digits):
        raise Rejected(f"{shown(uid)} is not a uid", reason="BadUid")
    return binascii.b2a_base64(bytes.fromhex(digits), newline=False).decode().rstrip("=").replace("+", "-").replace("/", "_")


def decode_uid(text: str) -> str:
    """Returns the uid, as `metadata.uid` has it, of its 22 characters; raises Rejected for other text."""
    try:
        digits = binascii.a2b_base64(text.translate(_URL_SAFE) + "==", strict_mode=True).hex()
    except ValueError:
        digits = ""
    if len(digits) != 32:
        raise Rejected(f"{shown(text)} is not a uid of 22 characters", reason="BadUid")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


ADDRESS_PATTERN: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}"
"""Matches HOST:PORT and nothing else: no scheme, no path."""
_ADDRESS: Final = re.compile(ADDRESS_PATTERN)


def dial_target(address: str) -> str:
    """Returns the gRPC target of HOST:PORT, in which a host such as `unix` is no scheme; raises Rejected for anything else."""
    if not _ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) > 65535:
        raise Rejected(f"{address!r} is no HOST:PORT", reason="AddressInvalid")
    return f"dns:///{address}"
