"""The division of many sets at once, as vectors of 64-bit integers: the same answers as `lattice.quota.division`, to the unit.

A row is one resource of one set. The level is searched in floating point from where it was last, and what it says is
then checked in integers: the share rounded down and its remainder are exact, whatever the sizes. Rows whose weights are
too large, or whose check does not come to an end, are divided by the rule itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lattice.quota.columns import LIGHT, Columns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

_SEARCHES: Final = 100
_CHECKS: Final = 4
_SURE: Final = 1 - 1e-12
"""A ratio below this part of the level is below it, whatever floating point rounds."""


@dataclass(slots=True)
class Views:
    """The columns of a tree as matrices [resource, slot] over the same memory."""

    least: Ints
    limit: Ints
    floor: Ints
    guaranteed: Ints
    weight: Ints
    runtime: Ints
    effective: Ints
    given: Ints
    level: Floats
    keeps: Marks
    """By slot: whether it keeps its idle floor."""
    able: Marks
    """By slot: whether its min shrinks."""
    keeping: bool
    """Whether anybody does."""
    plan: list[Batch] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """Sets of one depth and of about one size: their parents, and their members as [set, place]; empty places are the last slot."""

    parents: Ints
    members: Ints | slice
    sets: int


def batches(columns: Columns) -> Sequence[Batch]:
    """All sets, from the top; those of one batch are divided at once."""
    views = _views(columns)
    if not views.plan:
        views.plan = list(_plan(columns))
    return views.plan


def batch_of(columns: Columns, p: int) -> Batch:
    """The set below one slot."""
    return Batch(np.array([p]), slice(columns.first[p], columns.last[p]), 1)


def divide(columns: Columns, batch: Batch) -> list[tuple[int, int]]:
    """Divide what each parent may use among its children, every resource; resource and parent of what must be divided by the rule."""
    with np.errstate(all="ignore"):  # rows that are not fit for this are divided again
        wrong = _divide(columns, _views(columns), batch)
    again = [(k, p) for k, p in columns.heavy if p in batch.parents] if columns.heavy else []
    if wrong.any():
        rows = np.flatnonzero(wrong).tolist()
        again += [(row // batch.sets, int(batch.parents[row % batch.sets])) for row in rows]
    return again


def _divide(columns: Columns, views: Views, batch: Batch) -> Marks:
    """One resource a row, then one set; the columns take the shares."""
    resources, members = len(columns.keys), batch.members
    available = views.runtime[:, batch.parents].reshape(-1)
    width = (members.stop - members.start) if isinstance(members, slice) else members.shape[1]
    shape = (resources * batch.sets, width)

    def rows(matrix: Ints) -> Ints:
        return matrix[:, members].reshape(shape)

    mins, wrong = _mins(columns, views, batch, available, rows(views.least))
    floors = mins
    if columns.guaranteeing:
        floors = np.maximum(np.maximum(mins, rows(views.floor)), rows(views.guaranteed))
    keeps = np.broadcast_to(views.keeps[members], (resources, batch.sets, width)).reshape(shape) if views.keeping else None
    level = views.level[:, batch.parents].reshape(-1)
    shares, unsure = _shares(available, floors, rows(views.limit), rows(views.weight), keeps, level)
    three = (resources, width) if isinstance(members, slice) else (resources, batch.sets, width)
    views.effective[:, members] = mins.reshape(three)
    views.runtime[:, members] = shares.reshape(three)
    views.given[:, batch.parents] = available.reshape(resources, -1)
    views.level[:, batch.parents] = level.reshape(resources, -1)
    return wrong | unsure


def _mins(columns: Columns, views: Views, batch: Batch, available: Ints, least: Ints) -> tuple[Ints, Marks]:
    """The mins in effect; and the rows in which they are too large for this."""
    sums = least.sum(axis=1)
    wrong = sums >= LIGHT
    rows = np.flatnonzero((sums > available) & ~wrong)
    if rows.size:
        parents = batch.parents.tolist()
        rows = rows[[columns.counts(row // batch.sets, parents[row % batch.sets]) for row in rows.tolist()]]
    wrong &= sums > available
    if not rows.size:
        return least, wrong
    able = views.able[batch.members].reshape(batch.sets, -1)[rows % batch.sets]
    old = least[rows]
    able_mins = np.where(able, old, 0)
    scalable = able_mins.sum(axis=1)
    rest = np.maximum(available[rows] - (sums[rows] - scalable), 0)
    quotient, _ = _proportion(able_mins, rest[:, None], np.maximum(scalable, 1)[:, None])
    mins = least.copy()
    mins[rows] = np.where(able, quotient, old)
    return mins, wrong


def _shares(available: Ints, floors: Ints, limits: Ints, weights: Ints, keeps: Marks | None, level: Floats) -> tuple[Ints, Marks]:
    """What each may use of what its row has; the levels found; and the rows that are not sure."""
    shares = np.minimum(limits, floors)
    if keeps is not None:
        shares = np.where(keeps, floors, shares)
    needs = np.where(weights > 0, np.maximum(limits - floors, 0), 0)
    pool = available - shares.sum(axis=1)
    wanted = needs.sum(axis=1)
    unsure = np.zeros(len(available), dtype=np.bool_)
    plenty = (wanted <= pool) & (wanted > 0)
    if plenty.all():
        return shares + needs, unsure
    shares += np.where(plenty[:, None], needs, 0)
    rows = np.flatnonzero((pool > 0) & (wanted > pool))
    if rows.size:
        picked = slice(None) if rows.size == len(available) else rows
        hungry = needs[picked]
        found, gain, failed = _pour(pool[picked], hungry, np.where(hungry > 0, weights[picked], 0), level[picked])
        shares[rows] += gain
        level[rows] = found
        unsure[rows] = failed
    return shares, unsure


def _pour(pool: Ints, needs: Ints, weights: Ints, level: Floats) -> tuple[Floats, Ints, Marks]:
    """Share each row's pool, which is less than its needs: the level, what each gains, the rows that are not sure."""
    full, left, power, level = _search(pool, needs, weights, level)
    broken = (left <= 0) | (power <= 0)
    for _ in range(_CHECKS):
        quotient, remainder = _proportion(np.where(full, 0, weights), left[:, None], power[:, None])
        more = ~full & ((needs < quotient) | ((needs == quotient) & (remainder > 0)))
        failed = more.any(axis=1)
        if not failed.any():
            break
        full |= more
        left = pool - np.where(full, needs, 0).sum(axis=1)
        power = np.where(full, 0, weights).sum(axis=1)
        broken |= (left < 0) | (power <= 0)
        power = np.maximum(power, 1)
    units = left - np.where(full, 0, quotient).sum(axis=1)
    gain = np.where(full, needs, quotient) + _largest(np.where(full, 0, remainder), units, power)
    return level, gain, failed | broken


def _search(pool: Ints, needs: Ints, weights: Ints, level: Floats) -> tuple[Marks, Ints, Ints, Floats]:
    """Who has all he needs at the level, what is left for the others, and their weight; from any level, in a few steps."""
    ratios = needs / np.maximum(weights, 1)
    every = weights.sum(axis=1)
    full = ratios <= level[:, None]
    for _ in range(_SEARCHES):
        left = pool - np.where(full, needs, 0).sum(axis=1)
        power = every - np.where(full, weights, 0).sum(axis=1)
        high = (left <= 0) | (power <= 0)
        if high.any():
            left, power = np.where(high, pool, left), np.where(high, every, power)
            full &= ~high[:, None]
        level = left / power
        now = ratios <= (level * _SURE)[:, None]
        if (now == full).all():
            return full, left, power, level
        full = now
    return full, left, power, level


def _proportion(weights: Ints, pool: Ints, power: Ints) -> tuple[Ints, Ints]:
    """weight × pool ÷ power as quotient and remainder, exact: weights are at most the power, which is below 2^53.

    The product may pass 2^63: its remainder is right all the same, since it is found modulo 2^64 and is small.
    """
    whole, part = np.divmod(pool, power)
    quotient = (weights * (part / power)).astype(np.int64)
    remainder = weights * part - quotient * power
    again = remainder // power
    exact: Ints = weights * whole + quotient + again
    return exact, remainder - again * power


def _largest(remainders: Ints, units: Ints, power: Ints) -> Ints:
    """One unit for each of the largest remainders of a row, as many as it has units; the first of equals comes first."""
    rows, width = remainders.shape
    places = np.arange(width - 1, -1, -1)
    if float(power.max()) * width < LIGHT * 256:
        ranked = remainders * width + places
        order = np.sort(ranked, axis=1)
        bar = order[np.arange(rows), np.clip(width - units, 0, width - 1)]
        return ((ranked >= bar[:, None]) & (units > 0)[:, None]).astype(np.int64)
    order = np.argsort(-remainders, axis=1, kind="stable")
    extra = np.zeros_like(remainders)
    np.put_along_axis(extra, order, (np.arange(width) < units[:, None]).astype(np.int64), axis=1)
    return extra


def _views(columns: Columns) -> Views:
    views = columns.vectors
    if not isinstance(views, Views):
        width, slots = columns.width, len(columns.names)

        def matrix(column: Any, kind: type = np.int64) -> Any:
            return np.frombuffer(column, dtype=kind).reshape(-1, width)

        by_name = {
            name: matrix(getattr(columns, name))
            for name in ("least", "limit", "floor", "guaranteed", "weight", "runtime", "effective", "given")
        }
        keeps = np.array([not lends for lends in columns.lends] + [False] * (width - slots))
        able = np.array(columns.scales + [False] * (width - slots))
        views = Views(**by_name, level=matrix(columns.level, np.float64), keeps=keeps, able=able, keeping=bool(keeps.any()))
        columns.vectors = views
    return views


def _plan(columns: Columns) -> Iterator[Batch]:
    """All sets in batches, from the top: those of one depth whose size is the same up to a factor of two."""
    depth = [0]
    for i in range(1, len(columns.names)):
        depth.append(depth[columns.parent[i]] + 1)
    batches: dict[tuple[int, int], list[int]] = {}
    for p, (first, last) in enumerate(zip(columns.first, columns.last, strict=True)):
        if last > first:
            batches.setdefault((depth[p], (last - first - 1).bit_length()), []).append(p)
    for _, parents in sorted(batches.items()):
        widest = max(columns.last[p] - columns.first[p] for p in parents)
        members = np.full((len(parents), widest), len(columns.names))
        for at, p in enumerate(parents):
            members[at, : columns.last[p] - columns.first[p]] = range(columns.first[p], columns.last[p])
        yield Batch(np.array(parents), members, len(parents))
