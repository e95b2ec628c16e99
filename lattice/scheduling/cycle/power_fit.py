"""Nodes for one candidate within the power budget: the plainest first choice, else fewer nodes, or nodes that draw less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import Bucket
from lattice.scheduling.cluster.node_choice import NodeChoice
from lattice.scheduling.cluster.placement import Counts
from lattice.scheduling.state.headroom import NO_LIMIT


class Fit(NamedTuple):
    """Nodes that a candidate may start on now: how many of which bucket (`counts`), taken from the pool in which they were found."""

    pool: FreeCounts
    counts: Counts


class NoFit(NamedTuple):
    """The answer that a candidate cannot start now. `watts`: 0 where nodes are missing.

    Else the power budget is exceeded, and `watts` is what the nodes found would draw.
    """

    watts: int = 0


NO_NODES: Final = NoFit()


def within_power(choice: NodeChoice, fit: Fit, least: int, most: int, left: int) -> Fit | NoFit:
    """Returns a fit that draws at most `left` watts: the given one, one of fewer nodes down to `least`, or of nodes that draw less; else
    NoFit with the least watts of the choices that were tried.

    `most`: the most nodes that it may have. `choice`: chooses the nodes.
    """
    pool, counts = fit
    short = _watts(counts)
    if short <= left:
        return fit
    found: Counts | None = None
    for part, surely in _thriftier(pool, left, least):
        some = choice.choose(part, least, min(part.whole.total, most, max(least, surely)))
        if some is not None and _watts(some) <= left and (found is None or _size(some) > _size(found)):
            found = some
        short = short if some is None else min(short, _watts(some))
    return NoFit(short) if found is None else Fit(pool, found)


def _thriftier(pool: FreeCounts, left: int, least: int) -> Iterator[tuple[FreeCounts, int]]:
    """Yields parts of a pool that draw less and less, each with how many of its nodes `left` watts surely allow.

    The last is the thriftiest nodes, as many as the watts allow together, and at least `least`.
    """
    thrifty = sorted(pool.buckets, key=lambda bucket: (bucket.key.hardware.watts, bucket.order))
    for hungriest in sorted({hardware.watts for hardware in pool.kinds}, reverse=True):
        caps = {bucket: pool.cap(bucket) if bucket.key.hardware.watts <= hungriest else 0 for bucket in thrifty}
        yield pool.capped(caps), left // hungriest if hungriest else NO_LIMIT
    taken: dict[Bucket, int] = {}
    for bucket in thrifty:
        watts, cap = bucket.key.hardware.watts, pool.cap(bucket)
        taken[bucket] = min(cap, max(left // watts, least - sum(taken.values()), 0)) if watts else cap
        left -= taken[bucket] * watts
    yield pool.capped(taken), sum(taken.values())


def _watts(counts: Counts) -> int:
    """Returns the nominal power of the chosen nodes."""
    return sum(bucket.key.hardware.watts * count for bucket, count in counts)


def _size(counts: Counts) -> int:
    """Returns how many nodes were chosen, of all buckets together."""
    return sum(count for _, count in counts)
