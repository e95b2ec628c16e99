"""Divides many sets of siblings at once, as vectors of 64-bit integers, with exactly the results of `lattice.quota.division`.

A row is one resource of one set. The level is searched in floating point from where it was last, and the result is then checked in
integers: the share rounded down and its remainder are exact, whatever the sizes. Rows whose weights are too large, or whose check
does not converge, are divided by the rule itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lattice.quota.columns import FITS, LIGHT, TreeColumns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

_SEARCHES: Final = 100
_CHECKS: Final = 4
_SURE: Final = 1 - 1e-12
"""A ratio below this part of the level is below the level, whatever floating point rounds."""


LARGEST: Final = 2**63 - 1
_add: Final = np.add.reduce
_dot: Final = np.vecdot


@dataclass(slots=True)
class Views:
    """The columns of a tree as matrices [resource, slot] over the same memory, with what the vector division derives of them."""

    least: Ints
    least_below: Ints
    """By slot: the sum of its children's mins."""
    limit: Ints
    floor: Ints
    guaranteed: Ints
    weight: Ints
    rating: Floats
    """The weights as floating-point numbers; 1 where a slot has no weight."""
    power: Ints
    """By slot: the sum of its children's weights."""
    runtime: Ints
    effective: Ints
    given: Ints
    level: Floats
    keeps: Marks
    """By slot: whether it keeps the idle part of its floor."""
    keeping: bool
    """Whether any slot keeps an idle floor."""
    able: Marks
    """By slot: whether its min may shrink."""
    weightless: bool
    """Whether any slot has no weight."""
    plan: list[Batch] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """Sets of siblings that are divided at once: those of one depth and of about one size, or a single set."""

    parents: Ints | slice
    members: Ints | slice
    """Slots as [set, place], where empty places are the extra slot; or the slots of the single set."""
    names: list[int]
    """The slots of the parents."""
    width: int
    places: Ints

    @property
    def sets(self) -> int:
        """Returns how many sets of siblings the batch has."""
        return len(self.names)


def batches(columns: TreeColumns) -> Sequence[Batch]:
    """Returns all sets of the tree from the top down, in batches that are divided at once."""
    views = _views(columns)
    if not views.plan:
        views.plan = list(_plan(columns))
    return views.plan


def batch_of(columns: TreeColumns, p: int) -> Batch:
    """Returns the children of one slot as a batch."""
    first, last = columns.first[p], columns.last[p]
    return Batch(slice(p, p + 1), slice(first, last), [p], last - first, _places(last - first))


def divide(columns: TreeColumns, batch: Batch) -> list[tuple[int, int]]:
    """Divides the runtime of each parent of a batch among its children, for every resource.

    Returns (resource, parent) of the rows that the caller must divide by the rule itself.
    """
    with np.errstate(all="ignore"):  # rows that are not fit for this are divided again
        wrong = _divide(columns, _views(columns), batch)
    again = [(k, p) for k, p in columns.heavy if p in batch.names] if columns.heavy else []
    return again + [(row // batch.sets, batch.names[row % batch.sets]) for row in wrong]


def _divide(columns: TreeColumns, views: Views, batch: Batch) -> list[int]:
    """Writes the shares of all rows (one for each resource of each set) into the columns; returns the rows that must be divided again."""
    resources, members, parents = len(columns.keys), batch.members, batch.parents
    shape = (resources * batch.sets, batch.width)
    limits, ratings = views.limit[:, members].reshape(shape), views.rating[:, members].reshape(shape)
    weights, power = views.weight[:, members].reshape(shape), views.power[:, parents].reshape(-1)
    available, level = views.runtime[:, parents].reshape(-1), views.level[:, parents].reshape(-1)
    mins, wrong = _mins(columns, views, batch, available)
    floors = mins
    if columns.guaranteeing:
        stated, secured = views.floor[:, members].reshape(shape), views.guaranteed[:, members].reshape(shape)
        floors = np.maximum(np.maximum(mins, stated), secured)
    shares = np.minimum(limits, floors)
    needs = limits - shares
    if views.keeping:
        keeps = np.broadcast_to(views.keeps[members], (resources, batch.sets, batch.width)).reshape(shape)
        shares = np.where(keeps, floors, shares)
    if views.weightless:
        needs = needs * (weights > 0)
    rows = _Rows(available - _add(shares, axis=1), needs, weights, ratings, power, level, batch.places)
    wrong += _fill(rows, shares)
    three = (resources, batch.width) if isinstance(members, slice) else (resources, batch.sets, batch.width)
    views.effective[:, members] = mins.reshape(three)
    views.runtime[:, members] = shares.reshape(three)
    views.given[:, parents] = available.reshape(resources, -1)
    views.level[:, parents] = rows.level.reshape(resources, -1)
    return wrong


def _mins(columns: TreeColumns, views: Views, batch: Batch, available: Ints) -> tuple[Ints, list[int]]:
    """Returns the mins in effect, and the rows whose mins are too large for floating point."""
    least = views.least[:, batch.members].reshape(-1, batch.width)
    sums = views.least_below[:, batch.parents].reshape(-1)
    rows = (sums > available).nonzero()[0]
    if rows.size:
        rows = rows[[columns.counts(row // batch.sets, batch.names[row % batch.sets]) for row in rows.tolist()]]
    if not rows.size:
        return least, []
    wrong: list[int] = rows[sums[rows] >= LIGHT].tolist()
    able = views.able[batch.members].reshape(batch.sets, -1)[rows % batch.sets]
    old = least[rows]
    able_mins = old * able
    scalable = _add(able_mins, axis=1)
    rest = np.maximum(available[rows] - (sums[rows] - scalable), 0)
    quotient, _ = _proportion(able_mins, rest[:, None], np.maximum(scalable, 1)[:, None])
    mins = least.copy()
    mins[rows] = np.where(able, quotient, old)
    return mins, wrong


class _Rows(NamedTuple):
    """The input of a vector division: one row for each resource of each set of siblings."""

    pool: Ints
    """What a row has left once each slot has its floor, or its request if that is less."""
    needs: Ints
    """What each slot asks for beyond that; 0 where it has no weight."""
    weights: Ints
    ratings: Floats
    """The weights again; 1 where a slot has none."""
    power: Ints
    """The sum of each row's weights."""
    level: Floats
    """The level from which the search starts, and afterwards the level found."""
    places: Ints


def _fill(rows: _Rows, shares: Ints) -> list[int]:
    """Adds to the shares what each slot gains from the pool; returns the rows that must be divided again."""
    wanted = _add(rows.needs, axis=1)
    short = (rows.pool > 0) & (wanted > rows.pool)
    if short.all():
        gain, failed = _pour(rows)
        shares += gain
        return failed.nonzero()[0].tolist() if failed.any() else []
    shares += rows.needs * (wanted <= rows.pool)[:, None]
    if not short.any():
        return []
    some = short.nonzero()[0]
    part = _Rows(rows.pool[some], rows.needs[some], rows.weights[some], rows.ratings[some], rows.power[some], rows.level[some], rows.places)
    gain, failed = _pour(part)
    shares[some] += gain
    rows.level[some] = part.level
    wrong: list[int] = some[failed].tolist()
    return wrong


def _pour(rows: _Rows) -> tuple[Ints, Marks]:
    """Divides the pool of each row, which is less than its needs; returns the gains, and a mark for rows that must be divided again."""
    full, left, power, broken = _search(rows)
    checks = 0
    while True:
        rest = ~full
        quotient, remainder = _proportion(rows.weights * rest, left[:, None], power[:, None])
        lacking = rows.needs - quotient
        checks += 1
        if not (lacking < rest).any():  # nobody of the rest has as much as he needs
            break
        more = rest & ((lacking < 0) | ((lacking == 0) & (remainder > 0)))
        late = more.any(axis=1)
        if checks >= _CHECKS or not late.any():
            broken |= late
            break
        full |= more
        left, power = _left(rows, full)
        broken |= power <= 0
    quotient += rows.needs * full  # it is 0 for those who are full
    quotient += _largest(remainder, rows.pool - _add(quotient, axis=1), rows.places)
    return quotient, broken


def _left(rows: _Rows, full: Marks) -> tuple[Ints, Ints]:
    """Returns for each row the pool left for the slots that are not full, and the sum of their weights."""
    return rows.pool - _dot(rows.needs, full), rows.power - _dot(rows.weights, full)


def _search(rows: _Rows) -> tuple[Marks, Ints, Ints, Marks]:
    """Searches the level of each row, from the one in `rows.level` on, and writes it there; a slot without needs is full at any level.

    Returns the full slots, by row the pool left for the others and the sum of their weights, and the rows whose search did not converge.
    From any level it takes a few steps.
    """
    ratios = rows.needs / rows.ratings
    full = ratios <= rows.level[:, None]
    searches = 0
    while True:
        left, power = _left(rows, full)
        high = np.minimum(left, power) <= 0  # the level was too high to start from
        if high.any():
            full = np.where(high[:, None], rows.needs == 0, full)
            left, power = _left(rows, full)
        rows.level[:] = left / power
        now: Marks = ratios <= (rows.level * _SURE)[:, None]
        late: Marks = (now != full).any(axis=1)
        searches += 1
        if searches >= _SEARCHES or not late.any():
            return full, left, power, late
        full = now


def _proportion(weights: Ints, pool: Ints, power: Ints) -> tuple[Ints, Ints]:
    """Returns weight × pool ÷ power as quotient and remainder, exact: weights are at most the power, which is below 2^53.

    The product may pass 2^63: its remainder is right all the same, since it is found modulo 2^64 and is small.
    """
    if pool.max() < LIGHT:
        quotient = (weights * (pool / power)).astype(np.int64)
        remainder = weights * pool - quotient * power
    else:
        whole = pool // power
        part = pool - whole * power
        quotient = (weights * (part / power)).astype(np.int64)
        remainder = weights * part - quotient * power
        quotient += weights * whole
    again = remainder // power
    quotient += again
    remainder -= again * power
    return quotient, remainder


def _largest(remainders: Ints, units: Ints, places: Ints) -> Marks:
    """Marks the slots that get one unit more: those with the largest remainders of a row, the first of equal ones first.

    `units`: how many units each row has left, fewer than it has slots.
    """
    rows, width = remainders.shape
    if width * LIGHT < FITS * 2 or int(remainders.max()) * width < FITS:
        ranked = np.full((rows, width + 1), LARGEST)
        those = ranked[:, :width]
        np.multiply(remainders, width, out=those)
        those += places
        least = (np.arange(1, rows + 1) * (width + 1) - 1) - units
        chosen: Marks = those >= np.sort(ranked, axis=1).take(least, mode="clip")[:, None]
        return chosen
    order = np.argsort(-remainders, axis=1, kind="stable")
    chosen = np.zeros(remainders.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, np.arange(width) < units[:, None], axis=1)
    return chosen


def _places(width: int) -> Ints:
    """Returns numbers that break ties between equal remainders: the first place has the largest."""
    found = _PLACES.get(width)
    if found is None:
        found = _PLACES[width] = np.arange(width - 1, -1, -1)
    return found


_PLACES: Final[dict[int, Ints]] = {}


def _views(columns: TreeColumns) -> Views:
    """Returns a tree's columns as matrices of one row for each resource, on the same memory; made at the first call and kept in
    `columns.vectors`.
    """
    views = columns.vectors
    if not isinstance(views, Views):
        width, slots = columns.width, len(columns.names)

        def matrix(column: Any, kind: type = np.int64) -> Any:
            """Returns a column as a matrix of one row for each resource, on the same memory."""
            return np.frombuffer(column, dtype=kind).reshape(-1, width)

        named = ("least", "limit", "floor", "guaranteed", "weight", "runtime", "effective", "given")
        by_name = {name: matrix(getattr(columns, name)) for name in named}
        weight = by_name["weight"]
        keeps = np.array([not lends for lends in columns.lends] + [False] * (width - slots))
        views = Views(
            **by_name,
            rating=np.maximum(weight, 1).astype(np.float64),
            power=_below(columns, weight),
            least_below=_below(columns, by_name["least"]),
            level=matrix(columns.level, np.float64),
            keeps=keeps,
            keeping=bool(keeps.any()),
            able=np.array(columns.scales + [False] * (width - slots)),
            weightless=bool((weight[:, 1:slots] == 0).any()),
        )
        columns.vectors = views
    return views


def _below(columns: TreeColumns, matrix: Ints) -> Ints:
    """Returns by slot the sums over its children; they wrap around where weights are too large for 64 bits."""
    upto = np.concatenate([np.zeros((len(matrix), 1), dtype=np.int64), np.cumsum(matrix, axis=1)], axis=1)
    sums: Ints = upto[:, columns.last] - upto[:, columns.first]
    return sums


def _plan(columns: TreeColumns) -> Iterator[Batch]:
    """Yields all sets in batches from the top down: those of one depth whose sizes are equal up to a factor of two."""
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
        yield Batch(np.array(parents), members, parents, widest, _places(widest))
