"""The rows of a list of allocations: as the gateway sends them, in order, and as a table; loads little, as a list is shown quickly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lattice.cli.render.status_table import status_table
from lattice.scheduling.queries.row_shapes import STATUS_SCHEMA, StatusDetail, StatusRow

if TYPE_CHECKING:
    from lattice.cli.console import Console

T = TypeVar("T", StatusRow, StatusDetail)
_LEAST_FIELDS = len(StatusRow._fields) - len(StatusRow._field_defaults)
row_order: Callable[[StatusRow], tuple[float, int, str]] = attrgetter("submitted", "number", "name")
"""The order of a list: by submission, the oldest first."""


class Listed(NamedTuple):
    """Holds the rows of a list, in order, with as many details for the wide table, and who asked for them (empty: it was not asked)."""

    user: str
    rows: Sequence[StatusRow]
    details: Sequence[StatusDetail]
    led: bool
    """Whether the scheduler itself has answered, and so leads."""


def read_rows(body: bytes) -> Listed | None:
    """Returns the rows of the gateway's answer, in order; None where it is one of another version than this program."""
    try:
        answer = json.loads(body)
        if not isinstance(answer, dict) or answer.get("schema") != STATUS_SCHEMA:
            return None
        rows = _tuples(StatusRow, answer["rows"], _LEAST_FIELDS)
        details = _tuples(StatusDetail, answer["details"], len(StatusDetail._fields))
        user = str(answer["user"])
        if not details:
            return Listed(user, sorted(rows, key=row_order), [], led=True)
        pairs = sorted(zip(rows, details, strict=True), key=lambda pair: row_order(pair[0]))
        return Listed(user, [row for row, _ in pairs], [detail for _, detail in pairs], led=True)
    except (ValueError, TypeError, KeyError):
        return None


def _tuples(form: type[T], found: Sequence[Sequence[Any]], least: int) -> list[T]:
    """Returns each row in its form, without the fields that a later version has added; ValueError where one has fewer."""
    if any(len(row) < least for row in found):
        raise ValueError(f"a row has fewer than {least} fields")
    most = len(form._fields)
    return [form(*row[:most]) for row in found]


def rows_table(console: Console, found: Listed, *, users: bool) -> list[str]:
    """Returns the table of listed rows, as wide as the flags and the terminal say; `users`: with a column of users."""
    return status_table(
        found.rows,
        found.details,
        now=console.outside.now(),
        users=users,
        namespaces=len({row.namespace for row in found.rows}) > 1,
        width=0 if console.format == "wide" else console.outside.columns,
        color=console.color,
    )


def say_silence(console: Console) -> None:
    """Warns where no scheduler is alive, since when; for lists in which work waits. Nothing where one is, or nobody can tell."""
    from lattice.cli.leadership import leadership

    sentence = leadership(console).sentence
    if sentence:
        console.warn([sentence])
