"""Estimates what a write costs the API server from rounds of writes: pure.

The garbage collector of the API server takes as much processor time at once as a hundred writes do, and falls into one round or the
next by chance. What a collection takes is estimated over all rounds, and charged to each kind of write by the bytes that it allocates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class Round:
    """Holds one round: so many writes of one kind, and what the API server took meanwhile, its background taken off."""

    kind: str
    writes: int
    seconds: float
    """Of its processor."""
    allocated: float
    """Bytes."""
    collections: float
    """Garbage collections that ended in this round."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Holds what a write of one kind takes: milliseconds, collections among them, and KiB allocated."""

    milliseconds: float
    collecting: float
    """Milliseconds of them that are the kind's part of all collections, by what it allocates."""
    kib: float
    least: float
    most: float
    """Milliseconds of the cheapest and of the dearest round, both with the same part of collections."""
    writes: int
    rounds: int


def costs(rounds: Sequence[Round]) -> dict[str, Cost]:
    """Returns the cost of a write of each kind, its part of all collections by what it allocates included; a round without a write raises
    ZeroDivisionError.
    """
    each = collection_seconds(rounds)
    allocated = sum(max(0.0, one.allocated) for one in rounds)
    rate = each * sum(one.collections for one in rounds) / allocated if allocated > 0 else 0.0
    return {kind: _cost(mine, each, rate) for kind, mine in _by_kind(rounds).items()}


def collection_seconds(rounds: Iterable[Round]) -> float:
    """Returns the processor time of one collection, at least 0: the slope of a round's time over its collections, within each kind; 0 where
    no kind's rounds differ in these.
    """
    product = squares = 0.0
    for mine in _by_kind(rounds).values():
        time = sum(one.seconds for one in mine) / len(mine)
        count = sum(one.collections for one in mine) / len(mine)
        product += sum((one.collections - count) * (one.seconds - time) for one in mine)
        squares += sum((one.collections - count) ** 2 for one in mine)
    return max(0.0, product / squares) if squares else 0.0


def _by_kind(rounds: Iterable[Round]) -> Mapping[str, list[Round]]:
    """Returns rounds by the kind of their writes."""
    found: dict[str, list[Round]] = {}
    for one in rounds:
        found.setdefault(one.kind, []).append(one)
    return found


def _cost(mine: Sequence[Round], each: float, rate: float) -> Cost:
    """Returns the cost of one kind; `each`: seconds of a collection, `rate`: seconds of collections for each byte allocated."""
    writes = sum(one.writes for one in mine)
    bytes_each = sum(max(0.0, one.allocated) for one in mine) / writes
    collecting = 1000 * rate * bytes_each
    plain = [1000 * (one.seconds - each * one.collections) / one.writes for one in mine]
    whole = 1000 * sum(one.seconds - each * one.collections for one in mine) / writes
    return Cost(
        max(0.0, whole) + collecting, collecting, bytes_each / KIB, max(0.0, min(plain)) + collecting, max(plain) + collecting,
        writes, len(mine),
    )  # fmt: skip
