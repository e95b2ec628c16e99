"""Image caches as people read them: a line an image, and how far a pull is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.cli.render.text import Column, memory, plural, table
from lattice.software.answers import CacheRecord, CacheRow
from lattice.software.labels import ID_LENGTH, digits_of
from lattice.units import format_time

_COLUMNS = (
    Column("NODE"),
    Column("IMAGE", shrink_to=24),
    Column("ID"),
    Column("SIZE", right=True),
    Column("USED", leave=2),
    Column("STATE", leave=3),
    Column("REGISTRY", leave=1, shrink_to=16),
    Column("DIGEST"),
)
_STEP = 10
"""Percent between two lines about one pull."""


def cache_table(records: Sequence[CacheRecord], *, wide: bool, width: int, color: bool) -> list[str]:
    """Returns one line an image, the one used last first, and for each node how much room is left."""
    cells = [cell for record in records if record.done for cell in _cells(record, wide=wide)]
    return table(_COLUMNS, cells, width=0 if wide else width, color=color)


def progress_line(record: CacheRecord, shown: dict[str, int], waits: dict[str, str]) -> str:
    """Returns what to say of a pull under way, once for each tenth of it, and once of what keeps it; `shown` and `waits` keep what was
    said by node, and are changed.

    Empty: nothing new, or the pull is over.
    """
    if not record.done and not record.reason and record.message != waits.get(record.node, ""):
        waits[record.node] = record.message
        if record.message:
            return f"{record.node} waits: {record.message}"
    if record.done or record.reason or not record.size or not record.pulled:
        return ""
    percent = 100 * record.pulled // record.size // _STEP * _STEP
    if percent <= shown.get(record.node, 0):
        return ""
    shown[record.node] = percent
    return f"{record.node}: {percent} % of {memory(record.size)}"


def _cells(record: CacheRecord, *, wide: bool) -> list[tuple[str, ...]]:
    """Returns the cells of one node's images, those used last first, and of their sum."""
    rows = sorted(record.images, key=lambda row: -row.used)
    cells = [(record.node, *_image(row, wide=wide)) for row in rows]
    held = sum(row.size for row in record.images)
    return [
        *cells,
        (record.node, plural(len(rows), "image"), "", memory(held), "", f"{memory(record.free)} of {memory(record.total)} free", "", ""),
    ]


def _image(row: CacheRow, *, wide: bool) -> tuple[str, ...]:
    """Returns the cells of one image of a cache."""
    state = ", ".join(word for word, is_so in (("in use", row.in_use), ("sticky", row.sticky)) if is_so)
    hexadecimal = row.digest.removeprefix("sha256:")
    return (
        _names(row), hexadecimal[:ID_LENGTH], memory(row.size), format_time(int(row.used)), state, row.registry, row.digest if wide else "",
    )  # fmt: skip


def _names(row: CacheRow) -> str:
    """Returns the names by which an image was asked for, those alone that are no ids where there are such; else its repository's end."""
    said = [name for name in row.names if not digits_of(name)]
    if said:
        return ", ".join(said)
    return "/".join(row.repository.split("/")[-2:])
