"""Measures the quota tree alone: a full division, and one change of demand with one admission; beside both the plain rule.

Departments of equal fan-out, five resources, all from a seed. More is asked for than there is at both levels and of every resource, and no
ceiling hides a change, so that each division has to find its level. Times are process times, medians.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final

from lattice.quota.columns import TreeColumns
from lattice.quota.descent import divide_all, divide_one, divide_path
from lattice.quota.forest import DEFAULT_TREE, Forest, TreeSpec
from lattice.quota.groups import ROOT, Group, Options
from lattice.quota.tree import QuotaTree
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile

FAN_OUT, QUICK_FAN_OUT = 100, 30
UPDATES: Final = 300
A_NODE: Final = {"nodes": 1, "cpu": 72_000, "memory": 512 * 2**30, "gpu": 4, "gpu/GH200": 4}
"""The amounts of one node; each group asks for whole nodes."""
DIVISION: Final = Aim(15.0)
UPDATE: Final = Aim(0.5)

Say = Callable[[float], None]


def groups(fan_out: int, seed: int = 1) -> list[Group]:
    """Returns `fan_out` departments of `fan_out` − 1 teams: with the departments fan_out² groups."""
    roll = random.Random(seed)  # noqa: S311 - a published instance, no secret
    made: list[Group] = []
    for at in range(fan_out):
        name = f"dept{at:03d}"
        made.append(Group(name, is_parent=True, min=nodes(roll.randint(fan_out, 2 * fan_out)), max=nodes(20 * fan_out)))
        for team in range(fan_out - 1):
            least, most = roll.randint(0, 1), roll.randint(4, 40)
            made.append(Group(f"{name}/team{team:03d}", name, min=nodes(least), max=nodes(most), request=nodes(roll.randint(0, 9))))
    return made


def nodes(count: int) -> dict[str, int]:
    """Returns the amounts of so many nodes."""
    return {key: amount * count for key, amount in A_NODE.items()}


def measure(*, quick: bool, say: Say) -> list[Figure]:
    """Returns all figures of the quota tree."""
    fan_out = QUICK_FAN_OUT if quick else FAN_OUT
    made, node_cache = groups(fan_out), 2 * fan_out**2
    forest = Forest([TreeSpec(groups=tuple(made))])
    forest.capacity(DEFAULT_TREE, nodes(node_cache))
    for group in made:
        forest.demand(group.name, group.request)
    gc.collect()
    gc.freeze()
    try:
        columns = _columns(made, node_cache)
        division, rule = _division(columns, fan_out), _by_the_rule(columns)
        say(0.4)
        times, admitted = _updates(forest, made)
        plain = _path_by_the_rule(columns, fan_out)
        say(0.8)
        label = f"{len(made):,} groups x {len(A_NODE)} resources"
        found = [
            Figure(f"full division, {label}", division, "ms", DIVISION, Baseline("the plain rule", rule)),
            Figure(
                f"one update and one admission, {label}", median(times), "ms", UPDATE, Baseline("the plain rule on the path", plain),
                f"fan-out {fan_out}, {admitted} of {len(times)} admitted", {"p90": percentile(times, 0.9)},
            ),
            Figure(f"who uses too much, {label}", _timed(lambda _at: forest.overused(), 9), "ms"),
            Figure(f"after a change of the groups, {label}", _timed(lambda at: _planted(made, node_cache, at), 3), "ms"),
        ]  # fmt: skip
        forest.validate()
        return found
    finally:
        gc.unfreeze()


def _columns(made: Sequence[Group], node_cache: int) -> TreeColumns:
    """Returns tree columns whose root has the amounts of the machine."""
    below: dict[str, list[str]] = {}
    for group in made:
        below.setdefault(group.parent, []).append(group.name)
    columns = TreeColumns(nodes(node_cache), Options(scale_min=True), {group.name: group for group in made}, below)
    _fill(columns, node_cache)
    return columns


def _fill(columns: TreeColumns, node_cache: int) -> None:
    """Sets the root's runtime to the amounts of so many nodes."""
    for key, amount in nodes(node_cache).items():
        columns.runtime[columns.index[key] * columns.width] = amount


def _division(columns: TreeColumns, fan_out: int) -> float:
    """Returns the milliseconds to divide everything after the machine has grown or shrunk."""
    divide_all(columns)  # loads numpy, and makes the plan that is kept

    def again(at: int) -> None:
        """Divides the whole tree anew, after another total."""
        _fill(columns, 2 * fan_out**2 + (1 + at % 7) * fan_out)
        columns.stale[:] = b"\1" * len(columns.stale)
        divide_all(columns)

    return _timed(again, 15)


def _by_the_rule(columns: TreeColumns) -> float:
    """Returns the milliseconds of the same division by the plain rule, set by set and resource by resource."""
    parents = [p for p, first in enumerate(columns.first) if columns.last[p] > first]
    return _timed(lambda _at: _divide_each(columns, parents), 3)


def _divide_each(columns: TreeColumns, parents: Iterable[int]) -> None:
    """Divides the children of these parents one resource at a time."""
    for p in parents:
        for k in range(len(columns.keys)):
            divide_one(columns, k, p)


def _path_by_the_rule(columns: TreeColumns, fan_out: int) -> float:
    """Returns the milliseconds of the plain rule for the sets on the way to one team, without the update itself."""
    slots = [columns.slots[f"dept{at % fan_out:03d}/team001"] for at in range(30)]
    for slot in slots:
        divide_path(columns, slot)
    return _timed(lambda at: _divide_each(columns, columns.path(slots[at])), 30)


def _updates(forest: Forest, made: Sequence[Group]) -> tuple[list[float], int]:
    """Returns the milliseconds, each time, to count two more nodes at a team and check whether they may be used; and how often they may."""
    roll = random.Random(2)  # noqa: S311 - as above
    teams = [group.name for group in made if group.parent != ROOT]
    times: list[float] = []
    admitted = 0
    for _ in range(UPDATES):
        team, amounts = roll.choice(teams), nodes(2)
        began = time.process_time()
        forest.demand(team, amounts)
        admitted += forest.admits(team, amounts) is None
        times.append((time.process_time() - began) * 1e3)
        forest.demand(team, {key: -amount for key, amount in amounts.items()})
    return times, admitted


def _planted(made: Sequence[Group], node_cache: int, at: int) -> None:
    """Makes a quota tree of these groups for `node_cache` + `at` nodes, and divides it."""
    QuotaTree(nodes(node_cache + at), Options(scale_min=True), made).refresh()


def _timed(act: Callable[[int], object], repeats: int) -> float:
    """Calls `act` with 0, 1, … below `repeats`; returns the median milliseconds of process time of a call."""
    times: list[float] = []
    for at in range(repeats):
        began = time.process_time()
        act(at)
        times.append((time.process_time() - began) * 1e3)
    return median(times)
