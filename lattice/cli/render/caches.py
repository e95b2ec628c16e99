"""Image caches as people read them: a line an image, and how far a pull is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.cli.render.text import Column, memory, plural, table
from lattice.software.answers import CacheRecord, CacheRow
from lattice.software.labels import ID_LENGTH
from lattice.units import format_time

_COLUMNS = (
    Column("NODE"),
    Column("IMAGE"),
    Column("ID"),
    Column("SIZE", right=True),
    Column("USED", leave=1),
    Column("STATE", leave=2),
    Column("DIGEST"),
)
_STEP = 10
"""Percent between two lines about one pull."""


def cache_table(records: Sequence[CacheRecord], *, wide: bool, width: int, color: bool) -> list[str]:
    """Returns one line an image, the one used last first, and for each node how much room is left."""
    cells = [cell for record in records if record.done for cell in _cells(record, wide=wide)]
    return table(_COLUMNS, cells, width=0 if wide else width, color=color)


def progress_line(record: CacheRecord, shown: dict[str, int]) -> str:
    """Returns what to say of a pull under way, once for each tenth of it; `shown` keeps what was said by node, and is changed.

    Empty: nothing new, or the pull is over.
    """
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
        (record.node, plural(len(rows), "image"), "", memory(held), "", f"{memory(record.free)} of {memory(record.total)} free", ""),
    ]


def _image(row: CacheRow, *, wide: bool) -> tuple[str, ...]:
    """Returns the cells of one image of a cache."""
    state = ", ".join(word for word, is_so in (("in use", row.in_use), ("sticky", row.sticky)) if is_so)
    name, version = row.repository.split("/")[-2:] if row.repository.count("/") else (row.repository, "")
    hexadecimal = row.digest.removeprefix("sha256:")
    return (
        f"{name}/{version}".rstrip("/"), hexadecimal[:ID_LENGTH], memory(row.size), format_time(int(row.used)), state,
        row.digest if wide else "",
    )  # fmt: skip
