"""Parses references to allocations (`12`, `12,14`, `12-17`, names), states and times; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lattice.errors import Rejected
from lattice.models.conditions import PHASES
from lattice.units import expand_nodes, is_digits, parse_duration, parse_time

ENDED_SECONDS = 3600.0
"""How long ended allocations are listed by default."""
_RANGE = re.compile(r"([0-9]{1,12})-([0-9]{1,12})", re.ASCII)
_KIND_AND_NAME = re.compile(r"([a-z]+?)s?\.lattice\.dev/(.+)")
"""As `-o name` prints an object, here and in kubectl."""


class StatusQuery(NamedTuple):
    """The allocations that `lattice status` is to list: namespace (empty: all), user (empty: all, or the person's own with `mine`),
    filters.
    """

    namespace: str
    user: str
    mine: bool
    states: frozenset[str]
    vcluster: str
    after: float | None
    """Allocations that ended before this, seconds since the epoch, are left out; None: none is."""

    @property
    def fields(self) -> str:
        """Returns the field selector for the API server; empty: none."""
        return f"spec.user={self.user}" if self.user else ""


def bare_name(text: str, kind: str) -> str:
    """Returns a name without the kind that `-o name` puts before it (`allocation.lattice.dev/x`); other texts as they are.

    Raises Rejected where the name is one of another kind.
    """
    found = _KIND_AND_NAME.fullmatch(text)
    if found is None:
        return text
    if found[1] != kind.lower():
        raise Rejected(f"{text!r} names a {found[1]}, and a name of kind {kind} is wanted", reason="BadInput")
    return found[2]


def named_nodes(texts: Iterable[str]) -> list[str]:
    """Returns the nodes that names, node sets and lines of `-o name` stand for, each once, in order; raises Rejected for other texts."""
    return list(dict.fromkeys(name for text in texts for name in expand_nodes(bare_name(text, "LatticeNode"))))


def split_references(references: Iterable[str]) -> list[str]:
    """Returns the parts of comma-separated lists, in order, each once; empty parts are dropped, ranges stay as they are."""
    parts = (part for reference in references for part in reference.split(",") if part)
    return list(dict.fromkeys(bare_name(part, "Allocation") for part in parts))


def range_of(reference: str) -> tuple[int, int] | None:
    """Returns first and last number of `12-17`; None for other texts. Raises Rejected where the range runs backwards."""
    found = _RANGE.fullmatch(reference)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    if first > last:
        raise Rejected(f"the range {reference} runs backwards: write {last}-{first}", reason="BadInput")
    return first, last


def numbers_and_names(references: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the references as numbers with ranges of numbers, and names, each once; lists with commas are taken apart.

    Raises Rejected for a range that runs backwards.
    """
    parts = split_references(references)
    numbers = [part for part in parts if is_digits(part) or range_of(part) is not None]
    return numbers, [part for part in parts if part not in numbers]


def parse_states(text: str | None) -> frozenset[str]:
    """Returns the phases in a text such as `running,pending`, in any case; empty: all. Raises Rejected for an unknown one."""
    known = {phase.lower(): phase for phase in PHASES}
    wanted = [word.strip().lower() for word in (text or "").split(",") if word.strip()]
    for word in wanted:
        if word not in known:
            raise Rejected(f"--state={word}: no such state. States: {', '.join(known)}", reason="BadInput")
    return frozenset(known[word] for word in wanted)


def oldest_end(text: str | None, now: float) -> float:
    """Returns from when on ended allocations are shown, seconds since the epoch; `text`: a duration (so long before `now`) or a time; None
    or empty: one hour ago.

    Raises Rejected for other text.
    """
    if not text:
        return now - ENDED_SECONDS
    try:
        return now - parse_duration(text)
    except Rejected:
        pass  # no length of time: it may be a time
    try:
        return parse_time(text)
    except Rejected as error:
        sentence = f"--since={text}: say how long ago, such as 24h or 7d, or a time, such as 2026-12-01T08:00:00Z"
        raise Rejected(sentence, reason="BadInput") from error
