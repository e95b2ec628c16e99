"""Formats columns as Slurm's programs do: `%.8i` and `%20j` of squeue and sinfo, `JobID:20` of `--Format`, and sacct's tables; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from lattice.units import is_digits

T = TypeVar("T")
_CODE = re.compile(r"%(\.?)([0-9]*)([A-Za-z#])([^%]*)")
LONG_WIDTH: Final = 20
"""The width of a field of `--Format` that names none."""
Text = Callable[[T], str]


class PrintedColumn(NamedTuple, Generic[T]):
    """One column: its heading, its cells, the width (0: as wide as the text), the side of its text, and what stands behind it."""

    heading: str
    text: Text[T]
    width: int = 0
    right: bool = False
    behind: str = ""

    def cell(self, text: str) -> str:
        """Returns a text cut and padded to the width, with what stands behind the column."""
        if not self.width:
            return text + self.behind
        return (text[: self.width].rjust(self.width) if self.right else text[: self.width].ljust(self.width)) + self.behind


def read_codes(spec: str, known: dict[str, tuple[str, Text[T]]], what: str) -> tuple[str, list[PrintedColumn[T]], list[str]]:
    """Returns the text before the first code of a format such as `%.18i %j`, its columns, and a sentence for each code that is not known.

    A text that is no code stays as it is; `what` names the kind of format in the sentences.
    """
    columns: list[PrintedColumn[T]] = []
    wrong: list[str] = []
    lead = spec[: spec.find("%")] if "%" in spec else spec
    at = len(lead)
    while at < len(spec):
        found = _CODE.match(spec, at)
        if found is None or found[3] not in known:
            end = spec.find("%", at + 1)
            end = len(spec) if end < 0 else end
            piece = spec[at:end]
            wrong.append(f"Invalid {what} format specification: {(found[3] if found is not None else piece[1:2])}")
            if columns:
                columns[-1] = columns[-1]._replace(behind=columns[-1].behind + piece)
            else:
                lead += piece
            at = end
            continue
        heading, text = known[found[3]]
        columns.append(PrintedColumn(heading, text, int(found[2] or 0), bool(found[1]), found[4]))
        at = found.end()
    return lead, columns, wrong


def read_names(spec: str, known: dict[str, tuple[str, Text[T]]], what: str) -> tuple[list[PrintedColumn[T]], list[str]]:
    """Returns the columns of a `--Format` such as `JobID,Name:5,State:.10`, whose names may be in any case, and a sentence for each name
    that is not known.
    """
    columns: list[PrintedColumn[T]] = []
    wrong: list[str] = []
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        name, _, size = part.partition(":")
        if name.lower() not in known:
            wrong.append(f"Invalid {what} format specification: {name}")
            continue
        heading, text = known[name.lower()]
        digits = size.lstrip(".")
        columns.append(PrintedColumn(heading, text, int(digits) if is_digits(digits) else LONG_WIDTH, size.startswith("."), ""))
    return columns, wrong


def lines(columns: Sequence[PrintedColumn[T]], rows: Iterable[T], *, lead: str = "", header: bool = True) -> list[str]:
    """Returns the heading, unless it is left out, and a line for each row."""
    found = ["".join([lead, *(column.cell(column.heading) for column in columns)])] if header else []
    return found + ["".join([lead, *(column.cell(column.text(row)) for column in columns)]) for row in rows]


def table(columns: Sequence[PrintedColumn[T]], rows: Iterable[T], *, header: bool, separator: str = "", ends: bool = False) -> list[str]:
    """Returns a table of sacct or sacctmgr: padded to its widths, cut with a `+`, with a line of dashes below the heading; with a
    `separator` as wide as the texts, and with one at the end of each line where `ends`.
    """
    if separator:
        tail = separator if ends else ""
        found = [separator.join(column.heading for column in columns) + tail] if header else []
        return found + [separator.join(column.text(row) for column in columns) + tail for row in rows]
    found = []
    if header:
        found.append("".join(_padded(column.heading, column) for column in columns))
        found.append("".join("-" * column.width + " " for column in columns))
    return found + ["".join(_padded(column.text(row), column) for column in columns) for row in rows]


def _padded(text: str, column: PrintedColumn[T]) -> str:
    """Returns a text in a column of sacct: cut with a `+` as its last character, and a blank behind it."""
    shown = text if len(text) <= column.width else text[: column.width - 1] + "+"
    return (shown.rjust(column.width) if column.right else shown.ljust(column.width)) + " "
