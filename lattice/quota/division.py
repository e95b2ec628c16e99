"""Divides one resource among siblings: the exact water level, then one largest-remainder step.

Each sibling first has its floor (or its request, where that is less and it lends the rest). The rest rises as water does: each
hungry sibling gets weight × level, at most its request. The level is a fraction, found exactly from one sort and running sums; only
then are shares rounded, once: down, and the units left over go to the largest remainders, ties by name. So equals differ by at most
one unit, and nothing stays idle beside a hungry sibling that has weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """The claim of one sibling in the division of one resource."""

    name: str
    floor: int
    """Its share before the rest is divided: its effective min, or its guarantee."""
    request: int
    """The most that it could use, no more than its max."""
    weight: int
    lends: bool = True
    """Whether others may use the part of the floor that it does not ask for."""


def divide(total: int, claims: Sequence[Claim]) -> list[int]:
    """Returns the share of each claim in `total`, in their order; together they exceed `total` only where the floors do. One without weight
    gets no more than its floor.
    """
    shares: list[int] = []
    hungry: list[int] = []
    wanted = 0
    for at, (_, floor, request, weight, lends) in enumerate(claims):
        shares.append(request if lends and request < floor else floor)
        if request > floor and weight:
            hungry.append(at)
            wanted += request - floor
    pool = total - sum(shares)
    if pool <= 0:
        return shares
    if wanted <= pool:
        for at in hungry:
            shares[at] = claims[at].request
        return shares
    _pour(pool, claims, hungry, shares)
    return shares


def _pour(pool: int, claims: Sequence[Claim], hungry: list[int], shares: list[int]) -> None:
    """Adds the pool, which is less than the hungry siblings still ask for, to their shares."""
    weight = sum(claims[at].weight for at in hungry)
    fine = max(claims[at].weight for at in hungry) ** 2  # two ratios that differ, differ by at least 1/fine
    hungry.sort(key=lambda at: (claims[at].request - claims[at].floor) * fine // claims[at].weight)
    full = 0
    for at in hungry:
        need = claims[at].request - claims[at].floor
        if need * weight > pool * claims[at].weight:
            break  # the level pool ÷ weight stays below what it needs, and so for all that follow
        shares[at] = claims[at].request
        pool -= need
        weight -= claims[at].weight
        full += 1
    _round(pool, weight, claims, hungry[full:], shares)


def _round(pool: int, weight: int, claims: Sequence[Claim], rest: list[int], shares: list[int]) -> None:
    """Adds weight_i × pool ÷ weight to the shares of the claims at the places `rest`.

    Rounded down; then the largest remainders get one unit more each.
    """
    remainders: list[tuple[int, str, int]] = []
    for at in rest:
        share, remainder = divmod(claims[at].weight * pool, weight)
        shares[at] += share
        remainders.append((-remainder, claims[at].name, at))
    left = -sum(remainder for remainder, _, _ in remainders) // weight
    for _, _, at in sorted(remainders)[:left]:
        shares[at] += 1


def scale_mins(available: int, mins: Sequence[int], scalable: Sequence[bool]) -> list[int]:
    """Returns the mins in effect: where their sum exceeds what is available, the scalable ones shrink in proportion, rounded down.

    Mins that are not scalable stay whole and come first.
    """
    if sum(mins) <= available:
        return list(mins)
    least = sum(amount for amount, able in zip(mins, scalable, strict=True) if able)
    rest = max(0, available - (sum(mins) - least))
    return [amount * rest // least if able and amount else amount for amount, able in zip(mins, scalable, strict=True)]
