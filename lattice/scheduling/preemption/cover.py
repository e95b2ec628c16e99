"""Finds the cheapest set of at most K items that together free enough nodes: an exact knapsack cover.

Dynamic programming over (items used, nodes freed). An item is left out beforehand if K others free as many nodes and cost no more:
a set with this item could use one of them instead. A few dozen items of hundreds stay, and fewer nodes freed than wanted, so that
the states are few. Costs are integers: sums are exact in any order.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """One possible victim as a knapsack item: the nodes that it frees here, its cost (above 0), its number of nodes, its place by uid."""

    freed: int
    cost: int
    size: int
    ident: int


class Cover(NamedTuple):
    """A set of items; sets compare by least cost, then fewest items, largest sizes, first places."""

    cost: int
    used: int
    smallness: int
    """The negated sum of the sizes."""
    idents: tuple[int, ...]


_NOTHING = Cover(0, 0, 0, ())


def cheapest_cover(items: Iterable[Item], wanted: int, most: int, at_most: int | None = None) -> Cover | None:
    """Returns the best set (see `Cover`) of at most `most` items that free at least `wanted` nodes, at a cost of at most `at_most`.

    None: there is no such set. `wanted` is above 0; `at_most` None: any cost.
    """
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
    """Returns the items that the best set may contain, those that free most first, without those that free nothing; an item that frees more
    than `wanted` nodes is returned as freeing `wanted`.
    """
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
