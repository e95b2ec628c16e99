"""The cheapest set of at most K things that together free enough: an exact knapsack cover.

Dynamic programming over (things used, nodes freed). Before it, a thing goes for which K others free as much and cost
no more: a set that used it could use one of those instead. What is left is a few dozen of hundreds, and fewer nodes
freed than wanted, so that the states are few. Costs are integers: sums are exact in any order.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """One that may be used: nodes it frees here, cost (above 0), its whole size, its place in the order of ids."""

    freed: int
    cost: int
    size: int
    ident: int


class Cover(NamedTuple):
    """A set of items, in the order by which sets are compared: least cost, fewest, largest, first ids."""

    cost: int
    used: int
    smallness: int
    """Minus the sum of the sizes."""
    idents: tuple[int, ...]


_NOTHING = Cover(0, 0, 0, ())


def cheapest_cover(items: Iterable[Item], wanted: int, most: int, at_most: int | None = None) -> Cover | None:
    """The first in order of the sets of at most `most` items that free at least `wanted` (above 0) and cost no more than
    `at_most`; None without one."""
    kept = undominated(items, wanted, most)
    if sum(item.freed for item in kept[:most]) < wanted:
        return None
    best: Cover | None = None
    limit = math.inf if at_most is None else at_most
    levels: list[dict[int, Cover]] = [{0: _NOTHING}, *({} for _ in range(most - 1))]
    for item in kept:  # falling in `freed`: what follows frees no more than this one
        for used in range(most - 1, -1, -1):
            least = wanted - (most - used) * item.freed  # with less than this no completion is left
            for have, cover in levels[used].items():
                cost = cover.cost + item.cost
                if have < least or cost > limit:
                    continue
                longer = Cover(cost, used + 1, cover.smallness - item.size, tuple(sorted((*cover.idents, item.ident))))
                freed = have + item.freed
                if freed >= wanted:
                    best = longer if best is None else min(best, longer)
                    limit = best.cost
                elif used + 1 < most:
                    known = levels[used + 1].get(freed)
                    if known is None or longer < known:
                        levels[used + 1][freed] = longer
    return best


def undominated(items: Iterable[Item], wanted: int, most: int) -> list[Item]:
    """The items that some first set may need, the most freed first; nodes beyond `wanted` count for nothing."""
    capped = (item if item.freed <= wanted else item._replace(freed=wanted) for item in items if item.freed > 0)
    kept: list[Item] = []
    cheapest: list[tuple[int, int, int]] = []  # the `most` first so far, all of which free at least as much
    for item in sorted(capped, key=lambda item: (-item.freed, item.cost, -item.size, item.ident)):
        rank = (item.cost, -item.size, item.ident)
        if len(cheapest) == most:
            if rank > cheapest[-1]:
                continue
            cheapest.pop()
        insort(cheapest, rank)
        kept.append(item)
    return kept
