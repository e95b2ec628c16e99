"""Vectors give what the rule gives, to the unit: random trees of every size, and numbers up to where 64 bits end.

LATTICE_QUOTA_TREES sets the number of random trees, as for the tree itself.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from lattice.quota import sweep
from lattice.quota.columns import TreeColumns
from lattice.quota.descent import divide_one
from lattice.quota.groups import ROOT, Group, Options
from lattice.quota.tree import QuotaTree

from .trees import random_tree

TREES = int(os.environ.get("LATTICE_QUOTA_TREES", "150"))
ENDS = (2**31, 2**47, 2**53 - 1, 2**53 + 1)


def columns_of(total: dict[str, int], options: Options, groups: list[Group]) -> TreeColumns:
    """The columns of a tree, with what there is to divide at the root and nothing divided yet."""
    return QuotaTree(total, options, groups)._ready()


def swept(columns: TreeColumns) -> list[list[int]]:
    for batch in sweep.batches(columns):
        for k, p in sweep.divide(columns, batch):
            divide_one(columns, k, p)
    return answers(columns)


def ruled(columns: TreeColumns) -> list[list[int]]:
    for p, first in enumerate(columns.first):
        for k in range(len(columns.keys)) if columns.last[p] > first else ():
            divide_one(columns, k, p)
    return answers(columns)


def answers(columns: TreeColumns) -> list[list[int]]:
    """Runtime and effective min by resource; the slot that stands for nobody is left out."""
    rows = range(0, len(columns.keys) * columns.width, columns.width)
    return [[*column[row : row + columns.width - 1]] for column in (columns.runtime, columns.effective) for row in rows]


def wide_tree(rng: random.Random, most: int, resources: int = 1, siblings: int = 0) -> tuple[dict[str, int], Options, list[Group]]:
    """One level and some of a second, up to 120 siblings, amounts up to `most`; many ties."""
    few = [rng.randint(0, most) for _ in range(3)]
    keys = [f"r{at}" for at in range(resources)]

    def amount(highest: int) -> int:
        return min(highest, rng.choice((0, 1, most, rng.choice(few), rng.randint(0, most))))

    groups: list[Group] = []
    for parent in [ROOT] * (siblings or rng.randint(1, 120)) + ["g0"] * rng.choice((0, 3, 60)):
        highest = {key: amount(most) for key in keys}
        groups.append(
            Group(
                f"g{len(groups)}",
                parent,
                is_parent=not groups,
                min={key: amount(highest[key]) // rng.choice((1, 50, 1000)) for key in keys},
                max=highest,
                shared_weight=rng.choice(({}, dict.fromkeys(keys, 1), {key: amount(most) for key in keys}, {"r0": rng.randint(0, 5)})),
                lends=rng.random() < 0.9,
                lend_limit=rng.choice(({}, {}, {key: amount(most) // 100 for key in keys})),
                scales=rng.choice((None, None, None, True, False)),
                guarantees=rng.choice((None, None, None, True, False)),
                request={key: amount(most) for key in keys} if groups else {},
            )
        )
    groups = [replace(group, used={key: rng.randint(0, asked) for key, asked in group.request.items()}) for group in groups]
    return {key: rng.randint(0, most * rng.choice((1, 1, 40))) for key in keys}, Options(scale_min=rng.random() < 0.7), groups


def test_vectors_divide_random_trees_as_the_rule_does() -> None:
    for seed in range(TREES):
        parts = random_tree(random.Random(seed))
        assert swept(columns_of(*parts)) == ruled(columns_of(*parts)), seed


@pytest.mark.parametrize("most", [5, 40, 1000, 10**6, *ENDS])
def test_vectors_divide_large_sets_as_the_rule_does(most: int) -> None:
    compared = 0
    for seed in range(TREES // 10):
        parts = wide_tree(random.Random(seed), most)
        columns = columns_of(*parts)
        if not columns.exact:
            assert swept(columns) == ruled(columns_of(*parts)), seed
            compared += 1
    assert compared > TREES // 15


def test_a_search_that_starts_at_another_level_ends_at_the_same_shares() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        parts = wide_tree(rng, 1000)
        columns = columns_of(*parts)
        expected = swept(columns)
        for level in (0.0, 1e-9, rng.random(), 1e9, float("inf")):
            columns.level[:] = type(columns.level)("d", [level] * len(columns.level))
            assert swept(columns) == expected, (seed, level)


def test_events_and_questions_in_any_order_leave_what_the_rule_makes_from_scratch() -> None:
    for seed in range(TREES // 20):
        rng = random.Random(seed)
        total, options, groups = wide_tree(rng, 1000, resources=20, siblings=100)
        tree = QuotaTree(total, options, groups)
        names = [group.name for group in groups]
        for _ in range(20):
            more = {key: rng.randint(-300, 1000) for key in rng.sample(sorted(total), 5)}
            tree.demand_added(rng.choice(names), more, {key: amount // 3 for key, amount in more.items()}, {})
            if rng.random() < 0.2:
                total = {key: rng.randint(0, 40_000) for key in total}
                tree.total_changed(total)
            if rng.random() < 0.5:
                tree.runtime(rng.choice(names))
            elif rng.random() < 0.2:
                tree.refresh()
        tree.refresh()
        assert tree._ready().vectors is not None
        columns = columns_of(total, options, [tree.group(name) for name in names])
        assert answers(tree._ready()) == ruled(columns), seed


def test_amounts_that_no_64_bit_sum_holds_are_divided_exactly() -> None:
    huge = 2**63 - 1
    groups = [Group(f"g{at:02}", max={"r": huge}, request={"r": huge}) for at in range(40)]
    tree = QuotaTree({"r": huge}, Options(), groups)
    tree.refresh()
    assert tree._ready().exact
    assert sum(tree.runtime(group.name)["r"] for group in groups) == huge
    assert tree.request(ROOT) == {"r": 40 * huge}


def test_sums_that_grow_too_large_for_64_bits_are_kept_exactly() -> None:
    groups = [Group(f"g{at:02}", max={"r": 2**63 - 1}) for at in range(40)]
    tree = QuotaTree({"r": 2**61}, Options(), groups)
    assert not tree._ready().exact
    for group in groups:
        tree.demand_added(group.name, {"r": 2**61}, {}, {})
    assert tree.request(ROOT) == {"r": 40 * 2**61}
    assert tree._ready().exact
    tree.validate()
