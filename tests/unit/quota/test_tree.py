"""The tree: published figures, random trees against the rules written for the eye, and events against a rebuilt tree.

LATTICE_QUOTA_TREES sets the number of random trees: 1,000 by default, to keep `make unit` short; 20,000 for the full run.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import Corrupt, NotFound, Rejected
from lattice.quota.division import scale_mins
from lattice.quota.document import answer, read_document
from lattice.quota.groups import ROOT, Group, Options
from lattice.quota.tree import QuotaTree

from . import reference
from .trees import random_tree

TREES = int(os.environ.get("LATTICE_QUOTA_TREES", "1000"))
VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
RUNTIMES = [vector for vector in VECTORS if "quotas" in vector]
SCALED = [vector for vector in VECTORS if "given" in vector]


def unzeroed(amounts: dict[str, int]) -> dict[str, int]:
    return {key: amount for key, amount in amounts.items() if amount}


@pytest.mark.parametrize("vector", RUNTIMES, ids=lambda vector: vector["name"])
def test_a_published_vector_holds(vector: dict[str, Any]) -> None:
    document = read_document(json.dumps({key: vector[key] for key in ("total", "options", "quotas")}))
    tree = document.tree()
    answers = answer(tree, [group.name for group in document.groups])
    for name, expected in vector["expected"].items():
        found = {
            "runtime": answers[name]["runtime"],
            "autoScaleMin": answers[name]["effectiveMin"],
            "request": tree.request(name),
            "used": tree.used(name),
            "guaranteed": tree.guaranteed(name),
        }
        for field in found.keys() & expected.keys():
            assert unzeroed(found[field]) == unzeroed(expected[field]), (name, field)
    tree.validate()


@pytest.mark.parametrize("vector", SCALED, ids=lambda vector: vector["name"])
def test_a_published_scaled_min_holds(vector: dict[str, Any]) -> None:
    given, expected = vector["given"], vector["expected"]["scaledMin"]
    siblings: dict[str, list[Any]] = given["siblings"]
    for key, total in given["total"].items():
        mins = scale_mins(total, [least[key] for least, _ in siblings.values()], [able for _, able in siblings.values()])
        by_name = dict(zip(siblings, mins, strict=True))
        if expected is not None:
            assert by_name[given["child"]] == expected[key]
        elif given["child"] in by_name:  # null: the child's min is left alone
            assert by_name[given["child"]] == siblings[given["child"]][0][key]


def limit(tree: QuotaTree, group: Group, key: str) -> int:
    return min(tree.request(group.name).get(key, 0), group.max[key])


def check_siblings(tree: QuotaTree, parent: str, siblings: list[Group], *, sums: bool) -> None:
    for key, available in tree.runtime(parent).items():
        shares = [tree.runtime(group.name)[key] for group in siblings]
        if sums:
            assert sum(shares) <= available, (parent, key)
        starved = [
            group
            for group, share in zip(siblings, shares, strict=True)
            if share < limit(tree, group, key) and group.weight(literal=False).get(key, 0)
        ]
        if starved:
            assert sum(shares) >= available, (parent, key)
        equals: dict[tuple[int, ...], list[int]] = {}
        for group, share in zip(siblings, shares, strict=True):
            alike = (
                tree.effective_min(group.name)[key],
                tree.guaranteed(group.name).get(key, 0),
                limit(tree, group, key),
                group.weight(literal=False)[key],
                group.lends,
            )
            equals.setdefault(alike, []).append(share)
        assert all(max(shares) - min(shares) <= 1 for shares in equals.values()), (parent, key)


def test_random_trees_keep_every_promise_at_every_level() -> None:
    compared = 0
    for seed in range(TREES):
        total, options, groups = random_tree(random.Random(seed))
        tree = QuotaTree(total, options, groups)
        ours = {group.name: tree.runtime(group.name) for group in groups}
        assert ours == reference.solve(total, options, groups, reference.exact), seed
        theirs = reference.solve(total, options, groups, reference.rounds)
        assert all(abs(ours[name][key] - theirs[name][key]) <= 2 for name in ours for key in total), seed
        for parent in {group.parent for group in groups}:
            siblings = [group for group in groups if group.parent == parent]
            check_siblings(tree, parent, siblings, sums=options.scale_min and not options.guarantee_used)
            compared += 1
    assert compared >= TREES


def test_any_sequence_of_events_leaves_what_a_tree_from_scratch_would_be() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        total, options, groups = random_tree(rng)
        tree = QuotaTree(total, options, groups)
        for _ in range(25):
            change(rng, tree, total)
            if tree.names():
                tree.runtime(rng.choice(tree.names()))  # a question in between divides a part of the tree only
        tree.validate()


def change(rng: random.Random, tree: QuotaTree, total: dict[str, int]) -> None:
    amounts = {key: rng.randint(0, amount) for key, amount in total.items()}
    kind = rng.randint(0, 9)
    if kind == 0:
        tree.total_changed(amounts)
    elif kind == 1:
        tree.total_changed({"new": 3, **amounts})
    elif kind == 2:
        tree.built_in_used_changed(amounts, {})
    else:
        less = rng.choice((1, 1, -1))
        parts = [{key: less * amount // by for key, amount in amounts.items()} for by in (1, 2, 4)]
        tree.demand_added(rng.choice(tree.names()), *parts)


def small() -> QuotaTree:
    groups = [
        Group("dept", is_parent=True, min={"nodes": 4}, max={"nodes": 10}),
        Group("dept/a", "dept", min={"nodes": 2}, max={"nodes": 10}, request={"nodes": 9}),
        Group("dept/b", "dept", min={"nodes": 2}, max={"nodes": 10}),
    ]
    return QuotaTree({"nodes": 12}, Options(), groups)


def test_the_owner_of_a_lent_min_gets_it_back_when_he_asks() -> None:
    tree = small()
    assert (tree.runtime("dept/a"), tree.runtime("dept/b")) == ({"nodes": 9}, {"nodes": 0})
    tree.demand_added("dept/b", {"nodes": 9}, {}, {})
    assert (tree.runtime("dept/a"), tree.runtime("dept/b"), tree.runtime("dept")) == ({"nodes": 5}, {"nodes": 5}, {"nodes": 10})
    tree.validate()


def test_demand_that_a_ceiling_hides_changes_nothing_above_it() -> None:
    tree = small()
    tree.demand_added("dept/a", {"nodes": 1}, {}, {})
    before = tree.request(ROOT)
    tree.demand_added("dept/a", {"nodes": 3990}, {}, {})
    assert tree.request(ROOT) == before == {"nodes": 10}
    tree.validate()


def test_what_system_and_default_use_is_taken_from_the_total_once() -> None:
    tree = small()
    tree.built_in_used_changed({"nodes": 3}, {"nodes": 2})
    assert (tree.runtime(ROOT), tree.runtime("dept/a")) == ({"nodes": 7}, {"nodes": 7})
    tree.built_in_used_changed({"nodes": 99}, {})
    assert tree.runtime(ROOT) == {"nodes": 0}
    tree.validate()


def test_a_min_that_cannot_be_met_shows_what_is_left_of_it() -> None:
    tree = QuotaTree({"nodes": 3}, Options(scale_min=True), [Group(name, min={"nodes": 2}, max={"nodes": 9}) for name in "ab"])
    assert (tree.effective_min("a"), tree.effective_min("b"), tree.effective_min(ROOT)) == ({"nodes": 1}, {"nodes": 1}, {"nodes": 3})


def test_a_group_that_does_not_scale_keeps_its_min_among_those_that_do() -> None:
    groups = [Group("a", min={"nodes": 2}, max={"nodes": 9}, scales=False), Group("b", min={"nodes": 2}, max={"nodes": 9})]
    tree = QuotaTree({"nodes": 3}, Options(scale_min=True), groups)
    assert (tree.effective_min("a"), tree.effective_min("b")) == ({"nodes": 2}, {"nodes": 1})


def test_a_chain_of_five_thousand_levels_is_divided() -> None:
    groups = [Group(f"g{at}", f"g{at - 1}" if at else ROOT, is_parent=at < 4999, max={"nodes": 7}) for at in range(5000)]
    groups[-1] = replace(groups[-1], request={"nodes": 9})
    tree = QuotaTree({"nodes": 8}, Options(), groups)
    assert tree.runtime("g4999") == {"nodes": 7}


def test_demand_never_falls_below_nothing() -> None:
    tree = small()
    tree.demand_added("dept/a", {"nodes": -99}, {"nodes": -1}, {})
    assert (tree.request(ROOT), tree.used(ROOT)) == ({}, {})
    tree.validate()


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    tree = small()
    with pytest.raises(Rejected, match="is the root"):
        tree.demand_added(ROOT, {}, {}, {})
    with pytest.raises(NotFound, match="nobody"):
        tree.demand_added("nobody", {"nodes": 1}, {}, {})
    with pytest.raises(NotFound, match="nobody"):
        tree.runtime("nobody")
    with pytest.raises(Rejected, match="the name is taken"):
        QuotaTree({}, Options(), [Group("a"), Group("a")])
    with pytest.raises(Rejected, match="the name is taken"):
        QuotaTree({}, Options(), [Group("koordinator-default-quota")])
    with pytest.raises(Rejected, match="no way leads from a, b"):
        QuotaTree({}, Options(), [Group("a", "b"), Group("b", "a")])
    tree.validate()


def test_validate_finds_a_sum_that_is_wrong() -> None:
    tree = small()
    columns = tree._ready()
    columns.asked[columns.slots["dept"]] += 1
    with pytest.raises(Corrupt, match="dept"):
        tree.validate()


def test_supposing_less_than_nothing_of_a_group_leaves_its_request_as_it_was() -> None:
    tree = QuotaTree({"nodes": 12}, Options(), (Group("a", min={"nodes": 4}, max={"nodes": 10}), Group("b", max={"nodes": 12})))
    tree.demand_added("a", {"nodes": 3}, {}, {})
    before = (tree.request("a"), tree.runtime("a"), tree.runtime("b"))
    with tree.supposed("a", {"nodes": -5, "gpus": -1}):
        assert not tree.child_request("a").get("nodes", 0)
    assert (tree.request("a"), tree.runtime("a"), tree.runtime("b")) == before
