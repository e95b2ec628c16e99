"""Divides the runtime of parents among their children, top down, where a question needs it and a figure has changed.

A set of siblings is divided again when a limit in it changed, or when its parent's runtime differs from the one it was divided
with. Large sets, and many sets at once, are divided as vectors where numpy is installed; else, and where 64-bit integers would not
do, one by one by `lattice.quota.division`, which is the rule.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Final

from lattice.quota.columns import TreeColumns
from lattice.quota.division import Claim, divide, scale_mins

LARGE_SET: Final = 24
"""A set of at least so many siblings is divided as vectors."""
LARGE_TREE: Final = 2000
"""From so many groups × resources on, vectors are worth the time and memory that numpy takes to load."""


def divide_path(columns: TreeColumns, slot: int) -> None:
    """Divides, where needed, every set of siblings on the way from the root to a slot; the set to which the slot belongs is the last."""
    for p in columns.path(slot):
        if _is_due(columns, p):
            divide_set(columns, p)


def divide_all(columns: TreeColumns) -> None:
    """Divides, where needed, every set of siblings of the tree."""
    due = [p for p, first in enumerate(columns.first) if columns.last[p] > first and columns.stale[p]]
    vectors = _vectors(columns) if len(due) > 1 or _is_due(columns, 0) else None
    if vectors is not None:
        for batch in vectors.batches(columns):
            for k, p in vectors.divide(columns, batch):
                divide_one(columns, k, p)
        columns.stale[:] = bytes(len(columns.stale))
        return
    for p, first in enumerate(columns.first):
        if columns.last[p] > first and _is_due(columns, p):
            divide_set(columns, p)


def divide_set(columns: TreeColumns, p: int) -> None:
    """Divides the runtime of slot p among its children, for every resource."""
    vectors = _vectors(columns) if columns.last[p] - columns.first[p] >= LARGE_SET else None
    again = [(k, p) for k in range(len(columns.keys))]
    if vectors is not None:
        again = vectors.divide(columns, vectors.batch_of(columns, p))
    for k, parent in again:
        divide_one(columns, k, parent)
    columns.stale[p] = 0


def divide_one(columns: TreeColumns, k: int, p: int) -> None:
    """Divides resource k of slot p among its children by the rule itself (`division`)."""
    first, last, base = columns.first[p], columns.last[p], k * columns.width
    start, end = base + first, base + last
    available = columns.runtime[base + p]
    mins = list(columns.least[start:end])
    if sum(mins) > available and columns.counts(k, p):
        mins = scale_mins(available, mins, columns.scales[first:last])
    floors = mins
    if columns.guaranteeing:
        floors = list(map(max, mins, columns.floor[start:end], columns.guaranteed[start:end]))
    claims = map(Claim, columns.names[first:last], floors, columns.limit[start:end], columns.weight[start:end], columns.lends[first:last])
    columns.store(columns.effective, start, mins)
    columns.store(columns.runtime, start, divide(available, list(claims)))
    columns.given[base + p] = available


def _is_due(columns: TreeColumns, p: int) -> bool:
    """Tells whether the children of the group at slot `p` must be divided again: marked as stale, or its runtime differs from what they
    were given.
    """
    if columns.stale[p]:
        return True
    width, runtime, given = columns.width, columns.runtime, columns.given
    return any(runtime[at] != given[at] for at in range(p, len(columns.keys) * width, width))


def _vectors(columns: TreeColumns) -> ModuleType | None:
    """Returns the module that divides as vectors; None where the tree is small, numpy not installed, or a number too large."""
    if columns.exact or not _NUMPY or len(columns.runtime) < LARGE_TREE:
        return None
    from lattice.quota import sweep  # loads numpy

    return sweep


_NUMPY: Final = importlib.util.find_spec("numpy") is not None
