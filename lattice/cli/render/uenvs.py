"""Software environments as people read them: one line an image, and the details of one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.cli.render.text import Column, fields, memory, table
from lattice.software.answers import UenvDetails, UenvRow, ViewRow
from lattice.software.labels import ID_LENGTH

_COLUMNS = (
    Column("UENV"),
    Column("SYSTEM", leave=2),
    Column("UARCH"),
    Column("ID"),
    Column("SIZE", right=True, leave=1),
    Column("CREATED", leave=3),
    Column("NAMESPACE"),
    Column("DIGEST"),
)
_DAY = len("2026-11-22")


def uenv_table(rows: Sequence[UenvRow], *, wide: bool, width: int, color: bool) -> list[str]:
    """Returns one line an image, with label, id and size."""
    return table(_COLUMNS, [_cells(row, wide=wide) for row in rows], width=0 if wide else width, color=color)


def uenv_details(found: UenvDetails) -> list[str]:
    """Returns everything that is known of one image, with its views."""
    row = found.row
    views = "\n".join(_view(view) for view in found.views)
    unknown = "" if found.attached else "not attached to this image: its mount point and views are known once it is mounted"
    return fields(
        [
            ("Uenv", _label(row)),
            ("System", row.system),
            ("Uarch", row.uarch),
            ("Digest", row.digest),
            ("Id", _id(row)),
            ("Size", memory(row.size)),
            ("Created", row.created),
            ("Description", found.description),
            ("Mount", found.mount),
            ("Views", views or ("none" if found.attached else "")),
            ("Metadata", unknown),
        ]
    )


def view_lines(found: UenvDetails, name: str) -> list[str] | None:
    """Returns what the view of this name does to variables, a line each; None where there is no such view."""
    for view in found.views:
        if view.name == name:
            return view.changes
    return None


def _view(view: ViewRow) -> str:
    """Returns a view's name, with its description where it has one."""
    return f"{view.name}: {view.description}" if view.description else view.name


def _cells(row: UenvRow, *, wide: bool) -> tuple[str, ...]:
    """Returns the cells of one image; those of the wide table are empty unless asked for."""
    extra = (row.namespace, row.digest) if wide else ("", "")
    return (_label(row), row.system, row.uarch, _id(row), memory(row.size), row.created[:_DAY], *extra)


def _label(row: UenvRow) -> str:
    """Returns an image's name, version and tag as one text."""
    return f"{row.name}/{row.version}:{row.tag}"


def _id(row: UenvRow) -> str:
    """Returns the beginning of an image's digest, by which it can be named."""
    return row.digest.removeprefix("sha256:")[:ID_LENGTH]
