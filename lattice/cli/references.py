"""How people name several allocations at once: `12`, `12,14`, `12-17`, names, and lists of them; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lattice.errors import Rejected

_RANGE = re.compile(r"([0-9]{1,12})-([0-9]{1,12})", re.ASCII)


def split_references(references: Iterable[str]) -> list[str]:
    """Each part of comma-separated lists, in order and once."""
    return list(dict.fromkeys(part for reference in references for part in reference.split(",") if part))


def range_of(reference: str) -> tuple[int, int] | None:
    """The first and the last number of `12-17`; None for other texts, Rejected where it runs backwards."""
    found = _RANGE.fullmatch(reference)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    if first > last:
        raise Rejected(f"the range {reference} runs backwards: write {last}-{first}", reason="BadInput")
    return first, last


def numbers_and_names(references: Sequence[str]) -> tuple[list[str], list[str]]:
    """The numbers and ranges of numbers among the references, and the names."""
    parts = split_references(references)
    numbers = [part for part in parts if part.isdigit() or range_of(part) is not None]
    return numbers, [part for part in parts if part not in numbers]
