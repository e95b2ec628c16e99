"""The gate of the quota tree for `quota explain`: every level and resource in the order in which they are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from lattice.quota.declared import DEFAULT
from lattice.quota.forest import Forest
from lattice.quota.gates import Blocked
from lattice.quota.gates import Gate as Comparison
from lattice.scheduling.queries.quota_answers import BLOCKS, PASSES, UNLIMITED, Borrower, Gate, Limit
from lattice.scheduling.queries.quota_view import sees_all
from lattice.scheduling.queries.readers import Reader

WAITS: Final = "waiting for quota share: "
"""The beginning of the sentence, the same as in the condition of the allocation."""
MOST_BORROWERS: Final = 12
"""Most borrowers that are named one by one; the rest is summed up."""


class Place(NamedTuple):
    """The place of one allocation in the quota trees."""

    forest: Forest
    leaf: str
    """The group that the allocation is charged to."""
    amounts: Mapping[str, int]
    """The resources of its nodes; while it is pending, those of the plainest nodes that fit."""
    blocked: Blocked | None = None
    """The first level that blocks it; None: the tree admits it, or it holds nodes."""


def waiting_at(place: Place, reader: Reader, *, non_preemptible: bool) -> Gate:
    """Returns the row of the quota tree for waiting work: each comparison of its request with a level, and the one that blocks it.

    Groups that the reader may not know are in the sentence and the borrowers without their names.
    """
    compared = place.forest.gates(place.leaf, place.amounts, non_preemptible=non_preemptible)
    limits, blocked = [_compared(place.forest, one) for one in compared], place.blocked
    if blocked is not None:
        told = blocked.message_with_names() if sees_all(reader) else blocked.message
        borrowers = _borrowers(blocked, reader)
        message = f"{WAITS}{told}"
        return Gate(gate="QuotaTree", verdict=BLOCKS, reason=blocked.reason, message=message, limits=limits, borrowers=borrowers)
    message = "" if limits else unbound(place.leaf)
    if any(one.blocks for one in limits):
        limits = [msgspec.structs.replace(one, blocks=False) for one in limits]
        message = "the plainest nodes that fit are beyond its share; others that fit are within it"
    return Gate(gate="QuotaTree", verdict=PASSES if limits else UNLIMITED, message=message, limits=limits)


def holding_at(place: Place) -> Gate:
    """Returns the row of the quota tree for work that holds nodes: the use of each level beside its limit."""
    leaf = place.leaf
    limits = list(_levels(place.forest, leaf, place.amounts))
    over = next((one for one in limits if one.used > one.limit), None)
    message = "" if limits else unbound(leaf)
    if over is not None:
        message = f'group "{over.of}" uses {over.used} of {over.resource} and may use {over.limit}: what it borrows may be taken back'
    return Gate(gate="QuotaTree", verdict=PASSES if limits else UNLIMITED, message=message, limits=limits)


def unbound(leaf: str) -> str:
    """Returns the sentence for work of a leaf that no level of the tree bounds."""
    return "no group of a quota tree is bound to it" if leaf == DEFAULT else f'group "{leaf}" bounds nothing that it asks for'


def _compared(forest: Forest, one: Comparison) -> Limit:
    """Returns one comparison of a request with a level of the tree as a row of numbers."""
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
    """Yields, for the leaf and each group above it, every resource of these amounts that it bounds: its use beside the lower of max and
    runtime.
    """
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
    """Returns the other groups above their guarantee at the level that blocks, most first: 12 at most by name, the rest in one sum.

    A reader who may not know every group gets that sum alone, without names. Empty: nobody borrows, or what blocks is a
    group's max or min.
    """
    those, resource = blocked.borrowers, blocked.gate.resource
    named = those[:MOST_BORROWERS] if sees_all(reader) else ()
    rest = those[len(named) :]
    found = [Borrower(one.amount, resource, name=one.quota) for one in named]
    if rest:
        found.append(Borrower(sum(one.amount for one in rest), resource, count=len(rest)))
    return found
