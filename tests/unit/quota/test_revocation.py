"""Taking back: the clock, the choice of allocations against every choice there is, and rounds until nobody is over."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from lattice.quota.forest import Forest, Overuse, TreeSpec
from lattice.quota.groups import Group, Options
from lattice.quota.revocation import Began, Due, Ended, Holding, OveruseClock, Round, choose, make_room

from .trees import random_tree

OVER = Overuse("a", "", {"nodes": 9}, {"nodes": 5}, by_demand=True)


def forest(*groups: Group, **capacity: int) -> Forest:
    made = Forest([TreeSpec(groups=groups)])
    made.capacity("", capacity)
    return made


def held(made: Forest, *holdings: Holding) -> list[Holding]:
    for each in holdings:
        made.demand(each.leaf, each.amounts, each.amounts, {} if each.preemptible else each.amounts)
    return list(holdings)


def keys(found: Round) -> list[str]:
    return [each.holding.key for each in found.revoked]


def nodes(key: str, leaf: str, count: int, preemption_class: int = 5, started: float = 0.0, **more: float | bool) -> Holding:
    return replace(Holding(key, leaf, {"nodes": count}, preemption_class, started), **more)  # type: ignore[arg-type]


def test_a_group_is_due_after_strictly_more_than_the_delay_and_then_again_only_after_another() -> None:
    clock = OveruseClock()
    assert clock.sample([OVER], 100.0) == (Began(OVER, 220.0),)
    assert clock.sample([OVER], 220.0) == ()
    assert clock.sample([OVER], 221.0) == (Due(OVER, 221.0),)
    assert clock.sample([OVER], 341.0) == ()
    assert clock.sample([OVER], 341.5) == (Due(OVER, 341.5),)


def test_one_sample_that_is_not_over_stops_the_clock() -> None:
    clock = OveruseClock()
    clock.sample([OVER], 0.0)
    assert clock.sample([], 100.0) == (Ended("a"),)
    assert clock.since("a") is None
    assert clock.sample([OVER], 130.0) == (Began(OVER, 250.0),)
    assert clock.sample([OVER], 249.0) == ()


@pytest.mark.parametrize(
    ("earlier", "due"),
    [(0.0, 220.0), (50.0, 170.0), (119.0, 101.0), (120.0, 220.0), (5000.0, 220.0), (-30.0, 220.0)],
)
def test_a_clock_goes_on_from_what_others_found_within_the_delay_and_begins_anew_after_it(earlier: float, due: float) -> None:
    clock = OveruseClock()
    assert clock.sample([OVER], 100.0, earlier={"a": earlier}) == (Began(OVER, due, resumed=due < 220.0),)
    assert clock.sample([OVER], due) == ()
    assert clock.sample([OVER], due + 0.5) == (Due(OVER, due + 0.5),)


def test_each_tree_has_its_own_delay() -> None:
    clock, other = OveruseClock(), replace(OVER, name="b", tree="gpus")
    assert clock.sample([OVER, other], 0.0, {"gpus": 5.0}) == (Began(OVER, 120.0), Began(other, 5.0))
    assert clock.sample([OVER, other], 6.0, {"gpus": 5.0}) == (Due(other, 6.0),)


def test_the_published_round_is_taken_back() -> None:
    made = forest(Group("q", max={"cpu": 200_000, "memory": 9}), cpu=50_000, memory=0)
    given = {"1": (10, 20_000, 0), "2": (9, 10_000, 1), "3": (8, 20_000, 0), "4": (7, 40_000, 0)}
    held(made, *(Holding(key, "q", {"cpu": cpu, "memory": memory}, rank, 0.0) for key, (rank, cpu, memory) in given.items()))
    holdings = [Holding(key, "q", {"cpu": cpu, "memory": memory}, rank, 0.0) for key, (rank, cpu, memory) in given.items()]
    assert keys(choose(made, made.overused(on_shrink=True), holdings)) == ["4", "2"]


@pytest.mark.parametrize(
    ("holdings", "expected"),
    [
        pytest.param([nodes("x", "a", 2, 3), nodes("y", "a", 2, 2), nodes("z", "a", 2, 4)], ["y"], id="the lowest class"),
        pytest.param(
            [nodes("x", "a", 3, lost_node_hours=4.0), nodes("y", "a", 3, lost_node_hours=3.0)], ["y"], id="the least work lost among equals"
        ),
        pytest.param([nodes("x", "a", 3, started=10.0), nodes("y", "a", 3, started=20.0)], ["y"], id="then the later start"),
        pytest.param([nodes("x", "a", 3), nodes("y", "a", 3)], ["x"], id="then the name"),
        pytest.param([nodes("x", "a", 1, 1), nodes("y", "a", 2, 2), nodes("z", "a", 3, 3)], ["y"], id="who fits after all stays"),
        pytest.param([nodes("x", "a", 3, 1, preemptible=False), nodes("y", "a", 3)], ["y"], id="not what may not be preempted"),
        pytest.param([nodes("x", "a", 2, leaving=True), nodes("y", "a", 4)], [], id="what leaves already is enough"),
    ],
)
def test_the_least_important_work_goes_and_whoever_fits_stays(holdings: list[Holding], expected: list[str]) -> None:
    """a has used 6 and may use 4 since b, which lent, asks for its 4."""
    made = forest(Group("a", min={"nodes": 2}, max={"nodes": 8}), Group("b", min={"nodes": 4}, max={"nodes": 8}), nodes=8)
    held(made, *holdings)
    made.demand("b", {"nodes": 4})
    assert keys(choose(made, made.overused(), holdings)) == expected


def test_no_more_go_in_one_round_than_it_allows_and_the_rest_is_said() -> None:
    made = forest(Group("a", max={"nodes": 8}), Group("b", min={"nodes": 8}, max={"nodes": 8}), nodes=8)
    holdings = held(made, *(nodes(f"x{at}", "a", 1) for at in range(8)))
    made.demand("b", {"nodes": 8})
    found = choose(made, made.overused(), holdings, most=3)
    assert keys(found) == ["x0", "x1", "x2"]
    assert [over.name for over in found.left] == ["a"]


def test_a_parent_that_is_over_is_charged_to_those_below_it_that_are() -> None:
    made = forest(
        Group("dept", is_parent=True, min={"nodes": 4}, max={"nodes": 20}),
        Group("dept/x", "dept", min={"nodes": 4}, max={"nodes": 20}),
        Group("dept/y", "dept", max={"nodes": 20}),
        Group("other", min={"nodes": 6}, max={"nodes": 20}),
        nodes=10,
    )
    holdings = held(made, nodes("x", "dept/x", 4, 1), nodes("y1", "dept/y", 3, 9), nodes("y2", "dept/y", 3, 9))
    made.demand("other", {"nodes": 6})
    dept = [over for over in made.overused() if over.name == "dept"]
    assert keys(choose(made, dept, holdings)) == ["y1", "y2"]


def test_work_within_its_min_stays_when_all_mins_together_are_more_than_there_is() -> None:
    made = forest(Group("a", min={"nodes": 8}, max={"nodes": 8}), Group("b", min={"nodes": 8}, max={"nodes": 8}), nodes=10)
    held(made, nodes("x", "a", 8))
    made.demand("b", {"nodes": 8})
    assert made.standing("a").runtime == {"nodes": 5}
    assert made.overused(on_shrink=True) == ()


def best_kept(fixed: dict[str, int], allowed: dict[str, int], holdings: list[Holding]) -> set[str]:
    """By trying all: of the sets that may stay, the one that keeps the most important, then the next, and so on."""
    ranked = sorted(holdings, key=Holding.order, reverse=True)
    found = []
    for kept in itertools.product((True, False), repeat=len(ranked)):
        sums = dict(fixed)
        for holding, stays in zip(ranked, kept, strict=True):
            for key, amount in holding.amounts.items() if stays else ():
                sums[key] = sums.get(key, 0) + amount
        if all(sums.get(key, 0) <= most for key, most in allowed.items()):
            found.append(kept)
    return {holding.key for holding, stays in zip(ranked, max(found), strict=True) if stays}


def random_holdings(rng: random.Random, leaf: str, count: int) -> list[Holding]:
    return [
        Holding(
            f"{leaf}:{at}", leaf, {"cpu": rng.randint(0, 4), "gpu": rng.choice((0, 0, 1, 3))}, rng.randint(0, 2), rng.randint(0, 2),
            lost_node_hours=rng.randint(0, 2), preemptible=rng.random() < 0.9,
        )
        for at in range(count)
    ]  # fmt: skip


def test_no_choice_keeps_more_important_work_than_the_one_that_is_made() -> None:
    compared = 0
    for seed in range(300):
        rng = random.Random(seed)
        made = forest(Group("a", max={"cpu": 99, "gpu": 99}), cpu=rng.randint(0, 12), gpu=rng.randint(0, 6))
        holdings = held(made, *random_holdings(rng, "a", rng.randint(1, 8)))
        fixed: dict[str, int] = {}
        for each in holdings:
            for key, amount in each.amounts.items() if not each.preemptible else ():
                fixed[key] = fixed.get(key, 0) + amount
        due = made.overused(on_shrink=True)
        if not due or any(fixed.get(key, 0) > amount for key, amount in due[0].allowed.items()):
            continue
        able = [each for each in holdings if each.preemptible]
        found = choose(made, due, holdings, most=99)
        assert {each.key for each in able} - set(keys(found)) == best_kept(fixed, dict(due[0].allowed), able), seed
        assert found.left == ()
        compared += 1
    assert compared > 100


def test_rounds_bring_every_group_to_what_it_may_use_and_take_nothing_from_a_group_within_its_min() -> None:
    rounds = 0
    for seed in range(120):
        rng = random.Random(seed)
        total, _, groups = random_tree(rng)
        made = Forest([TreeSpec(groups=tuple(groups), options=Options(scale_min=True))])
        made.capacity("", total)
        leaves = [name for name in made.names() if not made.children(name)]
        holdings: dict[str, Holding] = {}
        for leaf in rng.sample(leaves, len(leaves)):
            for each in random_holdings(rng, leaf, rng.randint(0, 5)):
                held(made, each)
                holdings[each.key] = each
        for leaf in leaves:
            made.demand(leaf, {key: rng.randint(0, amount) for key, amount in total.items()})
        while True:
            found = choose(made, made.overused(), holdings.values(), most=rng.randint(1, 4))
            if not found.revoked:
                break
            rounds += 1
            for gone in found.revoked:
                for name in made.path(gone.holding.leaf):
                    if name == gone.over.name:
                        break
                    standing = made.standing(name)
                    assert standing.used[gone.resource] > standing.min.get(gone.resource, 0), (seed, name)
            for gone in found.revoked:
                made.demand(gone.holding.leaf, {}, {key: -amount for key, amount in gone.holding.amounts.items()})
                del holdings[gone.holding.key]
        for over in made.overused():
            for each in holdings.values():
                way = made.path(each.leaf)
                if each.preemptible and over.name in way:
                    for key in over.allowed:
                        below = [made.standing(name) for name in way[: way.index(over.name)]]
                        assert not each.amounts[key] or any(one.used[key] <= one.min.get(key, 0) for one in below), (seed, over)
        made.validate()
    assert rounds > 100


def test_room_is_made_within_the_group_by_work_of_a_lower_class() -> None:
    made = forest(Group("a", max={"nodes": 8}), Group("b", max={"nodes": 8}), nodes=12)
    holdings = held(made, nodes("low", "a", 3, 2), nodes("same", "a", 5, 5), nodes("elsewhere", "b", 4, 1))
    made.demand("a", {"nodes": 3})
    found = make_room(made, "a", {"nodes": 3}, 5, holdings)
    assert found is not None
    assert [each.key for each in found] == ["low"]
    assert make_room(made, "a", {"nodes": 4}, 5, holdings) is None
    assert make_room(made, "a", {"nodes": 3}, 2, holdings) is None


def test_room_for_what_may_not_be_preempted_is_not_made_beyond_the_min() -> None:
    made = forest(Group("a", min={"nodes": 2}, max={"nodes": 8}), nodes=8)
    holdings = held(made, nodes("low", "a", 8, 1))
    assert make_room(made, "a", {"nodes": 3}, 9, holdings, non_preemptible=True) is None
    found = make_room(made, "a", {"nodes": 2}, 9, holdings, non_preemptible=True)
    assert found is not None
    assert [each.key for each in found] == ["low"]


def test_room_that_is_made_admits_and_keeps_all_that_it_can() -> None:
    made_some = 0
    for seed in range(200):
        rng = random.Random(seed)
        made = forest(
            Group("p", is_parent=True, max={"cpu": 12, "gpu": 6}), Group("p/a", "p", max={"cpu": 14, "gpu": 6}),
            Group("p/b", "p", max={"cpu": 14, "gpu": 6}), cpu=12, gpu=6,
        )  # fmt: skip
        holdings = held(made, *random_holdings(rng, "p/a", 5), *random_holdings(rng, "p/b", 1))
        amounts = {"cpu": rng.randint(0, 6), "gpu": rng.randint(0, 3)}
        made.demand("p/a", amounts)
        found = make_room(made, "p/a", amounts, 2, holdings)
        able = [each for each in holdings if each.leaf == "p/a" and each.preemptible and each.preemption_class < 2]
        gates = made.gates("p/a", amounts)
        allowed = {gate.resource: min(other.room for other in gates if other.resource == gate.resource) for gate in gates}
        over = {gate.resource: max(other.used - other.limit for other in gates if other.resource == gate.resource) for gate in gates}
        gone = {key: sum(each.amounts[key] for each in able) for key in amounts}
        if any(over[key] + amounts[key] > gone[key] for key in allowed if amounts[key]):
            assert found is None, seed
            continue
        assert found is not None, seed
        assert all(each in able for each in found)
        for each in found:
            made.demand(each.leaf, {}, {key: -amount for key, amount in each.amounts.items()})
        assert made.admits("p/a", amounts) is None, seed
        for each in found:
            made.demand(each.leaf, {}, each.amounts)
            assert made.admits("p/a", amounts) is not None, (seed, "one more went than had to")
            made.demand(each.leaf, {}, {key: -amount for key, amount in each.amounts.items()})
        made_some += len(found) > 0
    assert made_some > 20
