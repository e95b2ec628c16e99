"""Renders tables, ages and colours; pure: nothing here fetches, prints or asks a clock."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lattice.units import format_bytes, format_clock, parse_duration, parse_time, quantity_bytes

NOTHING: Final = "—"
"""The text of a cell without a value."""
_EMPTY: Final = frozenset({"", NOTHING})
_GAP = "  "
_SPANS: Final = (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))
"""Each unit of time with its seconds, and the next smaller unit with its seconds."""
_COLORS: Final = {
    "Running": "32",
    "Completed": "32",
    "Ready": "32",
    "Pending": "33",
    "Staging": "33",
    "Degraded": "33",
    "Draining": "33",
    "Booting": "33",
    "Failed": "31",
    "Down": "31",
    "Disabled": "31",
    "Cancelled": "35",
    "Drained": "36",
    "Suspended": "36",
    "Unknown": "31",
}


_TURNING: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters beyond ASCII, marks that change the direction of text, line separators, halves of characters."""
_UNPRINTABLE: Final = f"[\x00-\x08\x0b-\x1f{_TURNING}]"
_UNPRINTABLE_IN_A_CELL: Final = f"[\x00-\x1f{_TURNING}]"
"""Patterns; compiled by the first text that is not plain, as that takes longer than a table."""


class Painted(str):
    """A line with colours in it, whose own text was made printable before."""

    __slots__ = ()


def printable(text: str) -> str:
    """Returns the text with each character that a terminal would obey as `\u001b`, the way JSON and YAML write it; newlines and tabs stay,
    and a Painted text as it is.
    """
    if isinstance(text, Painted) or (text.isascii() and text.isprintable()):
        return text
    return re.sub(_UNPRINTABLE, _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    r"""Returns the character found as an escape such as \u001b."""
    return f"\\u{ord(found.group()):04x}"


def _cell(text: str) -> str:
    """Returns a value in one line: newline and tab are escaped, too."""
    return text if text.isascii() and text.isprintable() else re.sub(_UNPRINTABLE_IN_A_CELL, _escaped, text)


class Column(NamedTuple):
    """A column of a table: its title, whether it is right-aligned, and how it gives way on a narrow terminal.

    `shrink_to`: the least width it may be cut to (0: it is never cut). `leave`: where that is not enough, columns are left out in the order
    of this number (0: never). `cut_middle`: a cell that is cut keeps both its ends, as paths and digests need.
    """

    title: str
    right: bool = False
    shrink_to: int = 0
    leave: int = 0
    cut_middle: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int = 0, color: bool = False) -> list[str]:
    """Returns the lines of a table, the titles first; columns without any value are left out (not if there are no rows), and those that may
    leave, one after another, until the rest fits.

    `width` 0 is unlimited; a table that does not fit even so is wider. Only state words are coloured.
    """
    columned: list[Sequence[str]] = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    kept = [at for at, texts in enumerate(columned) if not rows or not _EMPTY.issuperset(texts)]
    drawn = {at: _Drawn(columned[at]) for at in kept}
    while True:
        heads = [columns[at] for at in kept]
        widths = [max(_width(columns[at].title), drawn[at].width) for at in kept]
        leaving = [at for at in kept if columns[at].leave]
        if _fit(heads, widths, width) or not leaving:
            break
        kept.remove(min(leaving, key=lambda at: columns[at].leave))
    shown = [drawn[at] for at in kept]
    cells = list(zip(*(one.cells for one in shown), strict=True)) if shown else [()] * len(rows)
    lines = [_line([head.title for head in heads], heads, widths, color=False)]
    if not color and all(one.is_plain and one.width <= width for one, width in zip(shown, widths, strict=True)):
        form = _GAP.join(f"%{'' if head.right else '-'}{width}s" for head, width in zip(heads, widths, strict=True))
        return lines + [(form % row).rstrip() for row in cells]
    return lines + [_line(row, heads, widths, color=color) for row in cells]


class _Drawn:
    """One column as shown: its cells and width, and whether each character is one place wide (`is_plain`)."""

    def __init__(self, texts: Sequence[str]) -> None:
        joined = "".join(texts)
        self.is_plain = joined.isascii() and joined.isprintable()
        if self.is_plain:
            self.cells = [text or NOTHING for text in texts]
            self.width = max(map(len, self.cells), default=0)
        else:
            self.cells = [_cell(text) or NOTHING for text in texts]
            self.width = max(map(_width, self.cells), default=0)


def fields(pairs: Sequence[tuple[str, str]], width: int = 0) -> list[str]:
    """Returns `Name: value` lines about one object; pairs without a value are left out.

    A line longer than `width` (0: no limit) goes on under its value.
    """
    shown = [(_cell(name), value) for name, value in pairs if value]
    margin = max((len(name) for name, _ in shown), default=0) + 3
    lines: list[str] = []
    for name, value in shown:
        first, *rest = (part for line in printable(value).split("\n") for part in _wrap(line, width - margin if width else 0))
        lines.append(f"{name + ':':<{margin}}{first}")
        lines += [" " * margin + line for line in rest]
    return lines


def _wrap(line: str, width: int) -> list[str]:
    """Returns a line as lines of at most `width` places, broken at blanks, or inside a longer word; `width` 0: unbroken."""
    if width <= 0 or _width(line) <= width:
        return [line]
    lines: list[str] = []
    for word in (piece for whole in line.split() for piece in _pieces(whole, width)):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and _width(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    """Yields a word in pieces of at most `width` characters."""
    for at in range(0, len(word), width):
        yield word[at : at + width]


def hang(line: str, width: int) -> list[str]:
    """Returns a line of prose as lines of at most `width` places (0: as it is), those after the first indented by two more."""
    if width <= 0 or _width(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    first, *rest = _wrap(line.lstrip(), max(1, width - indent - 2))
    return [" " * indent + first, *(" " * (indent + 2) + part for part in rest)]


def paint(word: str, color: bool) -> str:
    """Returns a state word in its colour where `color` is set; other words as they are."""
    code = _COLORS.get(word)
    return f"\x1b[{code}m{word}\x1b[0m" if color and code else word


def age(text: str | None, now: float) -> str:
    """Returns how long ago a time (RFC 3339) was, in its two largest units: `3d4h`, `12m`, `5s`; empty without a time, `0s` for one to
    come.
    """
    if not text:
        return ""
    return span(now - parse_time(text))


def span(seconds: float) -> str:
    """Returns a number of seconds in its two largest units: `3d4h`, `12m`, `5s`; `0s` for less than nothing."""
    return _span(max(0, int(seconds)))


@functools.lru_cache(maxsize=4096)
def _span(rest: int) -> str:
    """Returns whole seconds, from 0 on, as one unit or two neighbouring ones, such as 1h30m."""
    for unit, size, finer, least in _SPANS:
        if rest >= size:
            count, second = rest // size, rest % size // least
            return f"{count}{unit}{second}{finer}" if second else f"{count}{unit}"
    return f"{rest}s"


def relative(text: str | None, now: float) -> str:
    """Returns a time as `in 12m`, `5m ago`, or `now` within a second; empty without a time."""
    if not text:
        return ""
    seconds = parse_time(text) - now
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def ahead(text: str | None, now: float) -> str:
    """Returns an expected start as `in 12m`, never in the past: once its time has come, `now`; empty without a time."""
    return relative(text, now) if not text or parse_time(text) > now else "now"


def start_cell(p50: str | None, p90: str | None, now: float) -> str:
    """Returns an expected start as `in 12m–1h17m`, at even odds to nine of ten, one time where the second is absent or the same; `≤ 1h17m`
    without the first, empty without either.
    """
    second = ahead(p90, now).removeprefix("in ")
    if not p50:
        return f"≤ {second}" if second else ""
    first = ahead(p50, now)
    return first if not second or second == first.removeprefix("in ") else f"{first}–{second}"


@functools.lru_cache(maxsize=256)
def clock(duration: str | None) -> str:
    """Returns a duration such as `72h` as a clock, `72:00:00`; empty without a duration."""
    return format_clock(parse_duration(duration)) if duration else ""


def memory(quantity: int | str) -> str:
    """Returns bytes for people: `503.6Gi`, exact where a whole number of units is; empty for 0."""
    count = quantity_bytes(quantity)
    if not count:
        return ""
    exact = format_bytes(count)
    if len(exact) <= 6:
        return exact
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def plural(count: int, word: str) -> str:
    """Returns a count with its word: `1 node`, `2 nodes`; the plural is the word with an s."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


@functools.lru_cache(maxsize=8192)
def _width(text: str) -> int:
    """Returns how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _fit(heads: list[Column], widths: list[int], width: int) -> bool:
    """Narrows `widths` in place until the table fits into `width` places (0: no limit), the widest first of the columns that may be cut,
    none below its `shrink_to`.

    Returns False where it then still does not fit.
    """
    while width and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        able = [at for at, head in enumerate(heads) if head.shrink_to and widths[at] > head.shrink_to]
        if not able:
            return False
        widths[max(able, key=lambda at: widths[at])] -= 1
    return True


def _line(cells: Sequence[str], heads: list[Column], widths: list[int], *, color: bool) -> str:
    """Returns one line of a table; a cell that is too wide is cut, and coloured by its text if asked for."""
    parts: list[str] = []
    for text, head, width in zip(cells, heads, widths, strict=True):
        taken, shown = _width(text), text
        if taken > width:
            shown = _cut_middle(text, width) if head.cut_middle else _cut(text, width)
            taken = _width(shown)
        pad = " " * (width - taken)
        painted = paint(shown, color) if color else shown
        parts.append(pad + painted if head.right else painted + pad)
    line = _GAP.join(parts).rstrip()
    return Painted(line) if color else line


def _cut(text: str, width: int) -> str:
    """Returns as much of a text as fits in one column less than `width`, with … after it."""
    kept = ""
    for char in text:
        if _width(kept + char) > width - 1:
            break
        kept += char
    return kept + "…"


def _cut_middle(text: str, width: int) -> str:
    """Returns both ends of a text, with … between them, in `width` columns at the most."""
    tail = _cut(text[::-1], width - width // 2)[-2::-1]
    return _cut(text, width - _width(tail)) + tail
