"""The forest: who is admitted where, what is lent and kept, the built-in groups, several trees, and capacity that shrinks."""

from __future__ import annotations

import random

import pytest

from lattice.errors import NotFound, Rejected
from lattice.quota.declared import DEFAULT, SYSTEM
from lattice.quota.forest import Demand, Forest, TreeSpec
from lattice.quota.groups import Group, Options

from .trees import random_tree


def forest(*groups: Group, **capacity: int) -> Forest:
    made = Forest([TreeSpec(groups=groups)])
    made.capacity("", capacity)
    return made


def two(**more: int) -> Forest:
    """A department of two teams and another department, 12 nodes."""
    return forest(
        Group("ml", is_parent=True, min={"nodes": 6}, max={"nodes": 10}),
        Group("ml/train", "ml", min={"nodes": 4}, max={"nodes": 10}),
        Group("ml/serve", "ml", min={"nodes": 2}, max={"nodes": 6}),
        Group("hpc", min={"nodes": 6}, max={"nodes": 12}),
        nodes=12,
        **more,
    )


def work(made: Forest, leaf: str, nodes: int, used: int = 0, fixed: int = 0) -> None:
    made.demand(leaf, {"nodes": nodes}, {"nodes": used}, {"nodes": fixed})


def test_a_leaf_may_use_what_nobody_else_asks_for() -> None:
    made = two()
    work(made, "ml/train", 10)
    assert made.admits("ml/train", {"nodes": 10}) is None


def test_what_a_leaf_uses_of_a_resource_that_it_does_not_manage_counts_above_it() -> None:
    made = forest(
        Group("ml", is_parent=True, max={"nodes": 8, "gpu": 4}),
        Group("ml/old", "ml", max={"nodes": 8}, keeps_unmanaged=True),
        Group("ml/new", "ml", max={"nodes": 8, "gpu": 4}),
        nodes=8,
        gpu=32,
    )
    made.demand("ml/old", {"nodes": 1, "gpu": 4}, {"nodes": 1, "gpu": 4})
    made.demand("ml/new", {"nodes": 1, "gpu": 1})
    blocked = made.admits("ml/new", {"nodes": 1, "gpu": 1})
    assert blocked is not None
    assert (blocked.gate.quota, blocked.gate.resource, blocked.gate.used, blocked.gate.limit) == ("ml", "gpu", 4, 4)
    assert "gpu" not in made.standing("ml/old").runtime
    made.validate()


def test_the_first_level_and_resource_that_has_no_room_blocks_and_says_who_borrows() -> None:
    made = two()
    work(made, "hpc", 8, 8)
    work(made, "ml/train", 10)
    blocked = made.admits("ml/train", {"nodes": 7})
    assert blocked is not None
    assert (blocked.gate.quota, blocked.gate.resource, blocked.gate.by) == ("ml/train", "nodes", "Runtime")
    assert (blocked.gate.used, blocked.gate.limit, blocked.gate.request) == (0, 6, 10)
    work(made, "ml/train", 5, 5)
    work(made, "ml/serve", 1)
    blocked = made.admits("ml/serve", {"nodes": 3})
    assert blocked is not None
    assert [(each.quota, each.amount) for each in blocked.borrowers] == [("ml/train", 1)]
    assert blocked.message == (
        'quota "ml/serve": nodes: 3 asked for and 0 used are above its runtime, which is 1 now (min 2, max 6): '
        "wait for work of the tree to end; other groups borrow 1"
    )
    assert blocked.message_with_names().endswith("; borrowed by ml/train 1")


def test_an_ancestor_that_is_full_blocks_a_leaf_that_has_room() -> None:
    made = two()
    work(made, "ml/train", 9, 9)
    work(made, "ml/serve", 2)
    blocked = made.admits("ml/serve", {"nodes": 2})
    assert blocked is not None
    assert (blocked.gate.quota, blocked.gate.by, blocked.gate.used, blocked.gate.limit) == ("ml", "Max", 9, 10)


def test_only_what_is_asked_for_is_compared_and_only_where_it_is_managed() -> None:
    made = forest(Group("a", max={"cpu": 8, "gpu": 2}), cpu=8, gpu=2)
    made.demand("a", {"cpu": 4, "gpu": 4}, {"gpu": 4})
    assert made.admits("a", {"cpu": 4, "gpu": 0, "licences": 99}) is None
    assert [gate.resource for gate in made.gates("a", {"cpu": 4, "licences": 99, "gpu": 1})] == ["cpu", "gpu"]


@pytest.mark.parametrize(
    ("amount", "fixed", "message"),
    [
        pytest.param(
            11, False,
            'quota "ml/train": nodes: 11 asked for is above its max, which is 10: it cannot start here however long it waits; '
            "ask for at most 10, or for a larger max", id="above max",
        ),
        pytest.param(
            5, True,
            'quota "ml/train": nodes: 5 asked for by work that may not be preempted is above its min, which is 4: '
            "it cannot start here however long it waits; ask for at most 4, or for a larger min", id="above min",
        ),
        pytest.param(
            2, True,
            'quota "ml/train": nodes: 2 asked for and 3 used by work that may not be preempted are above its min, which is 4: '
            "wait for such work to end, let this be preempted (preemptible: ByClass), or ask for a larger min", id="min is full",
        ),
        pytest.param(
            8, False,
            'quota "ml/train": nodes: 8 asked for and 3 used are above its max, which is 10: wait for work of the group to end, '
            "or ask for a larger max", id="max is full",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_its_numbers_and_what_to_do(amount: int, fixed: bool, message: str) -> None:
    made = two()
    work(made, "ml/train", 3 + amount, 3, 3)
    blocked = made.admits("ml/train", {"nodes": amount}, non_preemptible=fixed)
    assert blocked is not None
    assert (blocked.reason, blocked.message) == ("WaitingForQuotaShare", message)


def test_non_preemptible_work_is_bounded_by_the_min_that_is_stated_not_by_what_is_left_of_it() -> None:
    made = forest(Group("a", min={"nodes": 8}, max={"nodes": 8}), Group("b", min={"nodes": 8}, max={"nodes": 8}), nodes=10)
    work(made, "a", 8)
    assert made.standing("a").effective_min == {"nodes": 5}
    assert made.admits("a", {"nodes": 8}, non_preemptible=True) is None


def test_no_more_is_lent_than_the_limit_says() -> None:
    made = forest(
        Group("a", min={"nodes": 8}, max={"nodes": 10}, lend_limit={"nodes": 3}), Group("b", max={"nodes": 10}), nodes=10
    )  # fmt: skip
    work(made, "b", 10)
    assert (made.standing("b").runtime, made.standing("a").runtime) == ({"nodes": 5}, {"nodes": 5})
    assert (made.standing("a").request, made.standing("a").child_request) == ({"nodes": 5}, {})
    work(made, "a", 7)
    assert (made.standing("b").runtime, made.standing("a").runtime) == ({"nodes": 3}, {"nodes": 7})


def test_a_limit_on_lending_above_the_min_lends_all_and_one_of_nothing_lends_nothing() -> None:
    for limit, left in ((99, 10), (0, 2)):
        made = forest(
            Group("a", min={"nodes": 8}, max={"nodes": 10}, lend_limit={"nodes": limit}), Group("b", max={"nodes": 10}), nodes=10
        )  # fmt: skip
        work(made, "b", 10)
        assert made.standing("b").runtime == {"nodes": left}


def test_what_a_group_uses_is_a_floor_where_it_is_guaranteed_and_stays_one_at_every_level_above() -> None:
    made = forest(
        Group("p", is_parent=True, max={"nodes": 10}),
        Group("p/a", "p", max={"nodes": 10}, guarantees=True),
        Group("p/b", "p", max={"nodes": 10}),
        Group("q", max={"nodes": 10}),
        nodes=10,
    )
    work(made, "p/a", 8, 8)
    for leaf in ("p/b", "q"):
        work(made, leaf, 10)
    assert [made.standing(name).runtime["nodes"] for name in ("p", "p/a", "p/b", "q")] == [9, 8, 1, 1]
    work(made, "p/a", -8, -8)
    assert [made.standing(name).runtime["nodes"] for name in ("p", "p/a", "p/b", "q")] == [5, 0, 5, 5]
    made.validate()


def test_work_in_no_group_is_the_default_groups_and_takes_from_the_default_tree_once() -> None:
    made = two()
    made.demand("nobody", {"nodes": 3}, {"nodes": 2})
    made.demand("koordinator-system-quota", {}, {"nodes": 1})
    assert made.total() == {"nodes": 9}
    assert made.path("nobody") == (DEFAULT,)
    assert (made.standing(DEFAULT).used, made.standing(SYSTEM).used) == ({"nodes": 2}, {"nodes": 1})
    assert made.admits("nobody", {"nodes": 10**9}) is None


def test_the_default_group_has_the_max_that_is_declared_for_it_and_the_system_group_none() -> None:
    made = forest(Group("koordinator-default-quota", max={"nodes": 4}), Group("a", max={"nodes": 9}), nodes=9)
    made.demand(DEFAULT, {"nodes": 3}, {"nodes": 3})
    blocked = made.admits("nobody", {"nodes": 2})
    assert blocked is not None
    assert (blocked.gate.quota, blocked.gate.by, blocked.gate.limit) == (DEFAULT, "Max", 4)
    assert made.admits("nobody", {"cpu": 999}) is None
    assert made.admits(SYSTEM, {"nodes": 999}) is None


def test_demand_stays_where_it_is_when_groups_come_go_and_change_trees() -> None:
    made = two()
    work(made, "ml/train", 5, 3, 1)
    work(made, "later", 4, 2)
    specs = [TreeSpec(groups=(Group("hpc", max={"nodes": 12}),)), TreeSpec("gpus", (Group("later", max={"nodes": 6}),))]
    made.declare(specs)
    assert made.booked("ml/train") == Demand({"nodes": 5}, {"nodes": 3}, {"nodes": 1})
    assert made.standing(DEFAULT).used == {"nodes": 3}
    assert (made.tree_of("later"), made.standing("later").used) == ("gpus", {"nodes": 2})
    made.declare([TreeSpec(groups=(Group("ml/train", max={"nodes": 12}),))])
    assert made.standing("ml/train").used == {"nodes": 3}
    assert made.standing(DEFAULT).used == {"nodes": 2}
    work(made, "ml/train", -5, -3, -1)
    work(made, "later", -4, -2)
    assert made.snapshot()["demand"] == {}
    made.validate()


def test_each_tree_divides_its_own_capacity() -> None:
    made = Forest([TreeSpec(groups=(Group("a", max={"nodes": 9}),)), TreeSpec("gpus", (Group("b", max={"nodes": 9}),))])
    made.capacity("", {"nodes": 3})
    made.capacity("gpus", {"nodes": 5})
    for leaf in ("a", "b"):
        work(made, leaf, 9)
    assert (made.standing("a").runtime, made.standing("b").runtime) == ({"nodes": 3}, {"nodes": 5})
    made.demand("nobody", {}, {"nodes": 1})
    assert (made.total(), made.total("gpus")) == ({"nodes": 2}, {"nodes": 5})


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Rejected, match="stands in two trees"):
        Forest([TreeSpec(groups=(Group("a"),)), TreeSpec("gpus", (Group("a"),))])
    made = two()
    with pytest.raises(NotFound, match='"nowhere"'):
        made.capacity("nowhere", {})
    with pytest.raises(NotFound, match='"nobody"'):
        made.standing("nobody")


def test_nothing_to_divide_blocks_with_a_runtime_of_nothing() -> None:
    made = forest(Group("a", min={"nodes": 2}, max={"nodes": 4}))
    work(made, "a", 1)
    blocked = made.admits("a", {"nodes": 1})
    assert blocked is not None
    assert "above its runtime, which is 0 now (min 2, max 4)" in blocked.message


def test_capacity_that_shrinks_alone_is_nobodys_overuse_and_demand_after_it_is() -> None:
    made = forest(Group("a", min={"nodes": 4}, max={"nodes": 12}), Group("b", min={"nodes": 4}, max={"nodes": 12}), nodes=12)
    work(made, "a", 7, 7)
    work(made, "b", 5, 4)
    made.capacity("", {"nodes": 11})
    assert made.standing("a").runtime == {"nodes": 6}
    assert made.overused() == ()
    assert [(over.name, over.allowed, over.by_demand) for over in made.overused(on_shrink=True)] == [("a", {"nodes": 6}, False)]
    made.settled()
    assert made.overused() == ()
    work(made, "b", 1)
    assert [(over.name, over.allowed) for over in made.overused()] == [("a", {"nodes": 6})]


def test_capacity_that_shrank_is_forgotten_once_nobody_is_over() -> None:
    made = forest(Group("a", max={"nodes": 12}), Group("b", min={"nodes": 6}, max={"nodes": 12}), nodes=12)
    work(made, "a", 6, 6)
    made.capacity("", {"nodes": 8})
    made.settled()
    work(made, "b", 6)
    assert [(over.name, over.allowed) for over in made.overused()] == [("a", {"nodes": 2})]


def test_a_limit_lowered_below_what_is_used_is_overuse_once_somebody_wants_it() -> None:
    made = forest(Group("a", max={"nodes": 8}), Group("b", max={"nodes": 8}), nodes=8)
    work(made, "a", 6, 6)
    made.declare([TreeSpec(groups=(Group("a", max={"nodes": 4}), Group("b", max={"nodes": 8})))])
    assert made.overused() == ()
    assert [(over.name, over.allowed, over.by_demand) for over in made.overused(on_shrink=True)] == [("a", {"nodes": 4}, False)]
    work(made, "b", 4)
    assert [(over.name, over.allowed, over.by_demand) for over in made.overused()] == [("a", {"nodes": 4}, True)]


def test_what_leaves_already_is_no_overuse() -> None:
    made = forest(Group("a", max={"nodes": 8}), Group("b", min={"nodes": 4}, max={"nodes": 8}), nodes=8)
    work(made, "a", 8, 8)
    work(made, "b", 4)
    assert [over.used for over in made.overused(leaving=[("a", {"nodes": 3})])] == [{"nodes": 5}]
    assert made.overused(leaving=[("a", {"nodes": 4})]) == ()


def shown(made: Forest) -> list[object]:
    return [*(list(made.standings(tree)) for tree in made.trees()), made.standing(DEFAULT), made.standing(SYSTEM)]


def test_any_sequence_of_events_leaves_what_a_forest_from_its_snapshot_is() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        total, _, groups = random_tree(rng)
        made = Forest([TreeSpec(groups=tuple(groups))])
        names = [*(group.name for group in groups), "nobody", SYSTEM]
        for _ in range(25):
            amounts = {key: rng.randint(0, amount) for key, amount in total.items()}
            kind = rng.randint(0, 9)
            if kind == 0:
                made.capacity("", amounts)
            elif kind == 1:
                kept = tuple(group for group in groups if group.parent not in {one.name for one in groups} or rng.random() < 0.7)
                there = {group.name for group in kept} | {"koordinator-root-quota"}
                while any(group.parent not in there for group in kept):
                    kept = tuple(group for group in kept if group.parent in there)
                    there = {group.name for group in kept} | {"koordinator-root-quota"}
                made.declare([TreeSpec(groups=kept, options=Options(scale_min=rng.random() < 0.5))])
            else:
                less = rng.choice((1, 1, -1))
                parts = [{key: less * amount // by for key, amount in amounts.items()} for by in (1, 2, 4)]
                made.demand(rng.choice(names), *parts)
            made.admits(rng.choice(names), {"cpu": 1})
        made.validate()
        assert shown(Forest.restored(made.snapshot())) == shown(made), seed


def test_whoever_is_admitted_leaves_every_level_within_its_runtime_and_its_max_at_that_moment() -> None:
    admitted = 0
    for seed in range(150):
        rng = random.Random(seed)
        total, _, groups = random_tree(rng)
        made = Forest([TreeSpec(groups=tuple(groups))])
        made.capacity("", total)
        leaves = [name for name in made.names() if not made.children(name)]
        running: list[tuple[str, dict[str, int], dict[str, int]]] = []
        for _ in range(30):
            if running and rng.random() < 0.3:
                leaf, amounts, fixed = running.pop(rng.randrange(len(running)))
                made.demand(leaf, *({key: -amount for key, amount in part.items()} for part in (amounts, amounts, fixed)))
                continue
            leaf, non_preemptible = rng.choice(leaves), rng.random() < 0.3
            amounts = {key: rng.randint(0, max(1, amount // 4)) for key, amount in total.items() if rng.random() < 0.8}
            made.demand(leaf, amounts)
            blocked = made.admits(leaf, amounts, non_preemptible=non_preemptible)
            gates = made.gates(leaf, amounts, non_preemptible=non_preemptible)
            assert (blocked is None) == all(gate.passes for gate in gates), seed
            if blocked is not None:
                assert blocked.gate == next(gate for gate in gates if not gate.passes)
                continue
            fixed = amounts if non_preemptible else {}
            made.demand(leaf, {}, amounts, fixed)
            running.append((leaf, amounts, fixed))
            admitted += 1
            for name in made.path(leaf):
                standing = made.standing(name)
                for key in (key for key, amount in amounts.items() if amount):
                    assert standing.used[key] <= min(standing.runtime[key], standing.max[key]), (seed, name, key)
            if non_preemptible:
                standing = made.standing(leaf)
                assert all(standing.non_preemptible_used.get(key, 0) <= standing.min[key] for key, amount in amounts.items() if amount)
        made.validate()
    assert admitted > 500


def test_supposing_less_than_nothing_of_work_in_no_group_leaves_its_request_as_it_was() -> None:
    made = two()
    work(made, "nowhere", 3)
    before = dict(made._strays)
    with made.supposed("nowhere", {"nodes": -5}):
        pass
    assert made._strays == before
