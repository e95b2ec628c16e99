"""The gate of the quota tree as `quota explain` shows it: every level and resource in the order in which they are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lattice.quota.forest import DEFAULT, Forest
from lattice.quota.gates import Blocked
from lattice.quota.gates import Gate as Comparison
from lattice.scheduling.quota_answers import BLOCKS, PASSES, UNLIMITED, Borrower, Gate, Limit
from lattice.scheduling.quota_view import sees_all
from lattice.scheduling.readers import Reader

MOST_BORROWERS = 12
"""Borrowers that are named one by one; the rest is summed up."""


class Place(NamedTuple):
    """Where an allocation stands in the quota tree: its group, and the amounts that are charged to it."""

    forest: Forest
    leaf: str
    amounts: Mapping[str, int]


def waiting_at(forest: Forest, leaf: str, amounts: Mapping[str, int], reader: Reader, *, non_preemptible: bool) -> Gate:
    """What the tree says to so much more at a leaf."""
    blocked = forest.admits(leaf, amounts, non_preemptible=non_preemptible)
    limits = [_compared(forest, one) for one in forest.gates(leaf, amounts, non_preemptible=non_preemptible)]
    if blocked is not None:
        message = blocked.message_with_names() if sees_all(reader) else blocked.message
        return Gate("QuotaTree", BLOCKS, False, blocked.reason, message, limits, _borrowers(blocked, reader))
    return Gate(gate="QuotaTree", verdict=PASSES if limits else UNLIMITED, message="" if limits else unbound(leaf), limits=limits)


def holding_at(forest: Forest, leaf: str, amounts: Mapping[str, int]) -> Gate:
    """Where the groups of work that holds these amounts stand, itself included."""
    limits = list(_levels(forest, leaf, amounts))
    over = next((one for one in limits if one.used > one.limit), None)
    message = "" if limits else unbound(leaf)
    if over is not None:
        message = f'group "{over.of}" uses {over.used} of {over.resource} and may use {over.limit}: what it borrows may be taken back'
    return Gate(gate="QuotaTree", verdict=PASSES if limits else UNLIMITED, message=message, limits=limits)


def unbound(leaf: str) -> str:
    """Why no level of the tree bounds it."""
    return "no group of a quota tree is bound to it" if leaf == DEFAULT else f'group "{leaf}" bounds nothing that it asks for'


def _compared(forest: Forest, one: Comparison) -> Limit:
    return Limit(
        of=one.quota,
        name=one.by.lower(),
        resource=one.resource,
        used=one.used,
        requested=one.asked,
        limit=one.limit,
        blocks=not one.passes,
        depth=forest.standing(one.quota).depth,
        request=one.request,
        min=one.min,
        max=one.max,
    )


def _levels(forest: Forest, leaf: str, amounts: Mapping[str, int]) -> Iterator[Limit]:
    for name in forest.path(leaf):
        one = forest.standing(name)
        for key in sorted(key for key, amount in amounts.items() if amount > 0 and key in one.max):
            runtime, most = one.runtime.get(key, 0), one.max[key]
            yield Limit(
                of=name,
                name="max" if most <= runtime else "runtime",
                resource=key,
                used=one.used.get(key, 0),
                requested=0,
                limit=min(most, runtime),
                depth=one.depth,
                request=one.request.get(key, 0),
                min=one.min.get(key, 0),
                max=most,
            )


def _borrowers(blocked: Blocked, reader: Reader) -> list[Borrower]:
    """Who uses more than his guarantee where this one may not: by name for those who may know, else in one sum."""
    those, resource = blocked.borrowers, blocked.gate.resource
    named = those[:MOST_BORROWERS] if sees_all(reader) else ()
    rest = those[len(named) :]
    found = [Borrower(one.amount, resource, name=one.quota) for one in named]
    if rest:
        found.append(Borrower(sum(one.amount for one in rest), resource, count=len(rest)))
    return found
