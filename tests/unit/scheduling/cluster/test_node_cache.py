"""The machine's buckets follow every event exactly, and pools follow the machine; split or not, the same nodes are chosen."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cluster.eligibility import admitted_nodes, census_of
from lattice.scheduling.cluster.free_counts import AdjustedCounts, FreeCounts, FreeCountsByNeed
from lattice.scheduling.cluster.group_counts import GroupCounts, fewest_first, spread, tight
from lattice.scheduling.cluster.node_cache import NodeCache, indices_of
from lattice.scheduling.cluster.releases import EPOCH, NEAR, round_up
from lattice.scheduling.model.hardware import Need, NodeFacts, natural
from lattice.scheduling.model.work import NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState, mask_of

NEEDS = (Need(), Need(gpus=1), Need(cpus=16))


def facts(roll: random.Random, index: int) -> NodeFacts:
    return NodeFacts(
        index=index, name=f"n{index}", group=f"g{roll.randint(0, 3)}", cpus=roll.choice((8, 16)), memory=64, gpus=roll.choice((0, 4)),
        features=frozenset(), hollow=False, usable=roll.random() < 0.8, state="Ready", fingerprint=roll.choice("ab"), watts=roll.choice((0, 500)),
    )  # fmt: skip


def counted(pool: FreeCounts) -> tuple[int, dict[str, dict[int, int]]]:
    return pool.whole.total, {name: dict(part.groups) for name, part in pool.parts.items() if part.total}


@pytest.mark.parametrize("seed", range(60))
def test_buckets_and_pools_follow_every_event(seed: int) -> None:
    roll = random.Random(seed)
    node_cache = NodeCache()
    free_counts = FreeCountsByNeed(node_cache)
    for _ in range(120):
        some = roll.sample(range(20), roll.randint(1, 6))
        match roll.randint(0, 5):
            case 0 | 1:
                node_cache.put(facts(roll, some[0]))
            case 2:
                node_cache.take(some, roll.choice((10.0, 20.0, float("inf"))))
            case 3:
                node_cache.give(some)
            case 4:
                node_cache.drop(some[0])
            case _:
                node_cache.split(frozenset(mask_of(roll.sample(range(20), 5)) for _ in range(roll.randint(0, 2))))
        node_cache.validate()
        need = roll.choice(NEEDS)
        pool = free_counts.pool_for(need, "")
        assert counted(pool) == counted(FreeCounts(node_cache, node_cache.table.admitted(need)))
        census = census_of(node_cache, need)
        assert census.free == sum(
            one.usable and one.index not in node_cache.taken for one in node_cache.nodes.values() if need.admits_node(one)
        )
        assert census.free == pool.whole.total
        free_counts.validate()


@pytest.mark.parametrize("seed", range(20))
def test_pools_of_which_some_nodes_are_kept_count_as_ones_made_of_the_rest_whatever_changes(seed: int) -> None:
    roll = random.Random(seed)
    node_cache = NodeCache()
    for index in range(24):
        node_cache.put(facts(roll, index))
    free_counts = FreeCountsByNeed(node_cache)
    node_cache.take(roll.sample(range(24), 4))
    buckets = list(node_cache.buckets.values())
    caps = {bucket: roll.randint(0, len(bucket.members)) for bucket in buckets if roll.random() < 0.5}
    adjusted = AdjustedCounts(caps)
    for _ in range(12):
        pool = free_counts.pool_for(roll.choice(NEEDS), "")
        whole = pool.capped({bucket: adjusted.caps.get(bucket, len(bucket.free)) for bucket in pool.buckets})
        some = adjusted.pool_of(pool)
        assert counted(some) == counted(whole)
        assert some.whole.ordered == whole.whole.ordered
        assert [some.cap(bucket) for bucket in some.buckets] == [whole.cap(bucket) for bucket in whole.buckets]
        before = {bucket: len(bucket.free) for bucket in buckets}
        (node_cache.take if roll.random() < 0.5 else node_cache.give)(roll.sample(range(24), 3))
        for bucket, free in before.items():
            if len(bucket.free) != free and (bucket in adjusted.caps or roll.random() < 0.5):
                adjusted.set_cap(bucket, roll.randint(0, len(bucket.free)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4)), max_size=30))
def test_a_part_counts_what_was_noted_whenever_it_is_asked(changes: list[tuple[int, int]]) -> None:
    sizes = dict.fromkeys(range(4), 5)
    part = GroupCounts(sizes)
    for rank, by in changes:
        by = max(by, -sizes[rank])
        sizes[rank] += by
        part.count_change(rank, by)
        if by > 2:
            assert part.ordered == GroupCounts(sizes).ordered
    again = GroupCounts(sizes)
    assert (part.groups, part.ordered, part.total) == (again.groups, again.ordered, again.total)


def test_a_node_that_another_holder_took_stays_with_it_when_the_first_one_goes() -> None:
    node_cache = NodeCache()
    for index in range(3):
        node_cache.put(replace(facts(random.Random(1), index), usable=True))
    state = ClusterState(node_cache)
    for uid, nodes in (("first", (0, 1)), ("second", (1, 2))):
        state.put_holder(NodeHolder(uid, uid, "t", "u", "v", 5, nodes, 0.0))
    state.drop_holder("first")
    assert set(node_cache.taken) == {1, 2}
    state.put_holder(NodeHolder("third", "third", "t", "u", "v", 5, (0, 2), 0.0))
    state.drop_holder("second")
    assert set(node_cache.taken) == {0, 2}
    state.drop_holder("third")
    state.validate()
    assert not node_cache.taken


def test_node_lists_are_counted_without_a_split_as_with_one() -> None:
    roll = random.Random(3)
    node_cache = NodeCache()
    for index in range(12):
        node_cache.put(facts(roll, index))
    need = Need(only=mask_of((1, 2, 3, 7)), without=mask_of((2,)))
    before = (census_of(node_cache, need), admitted_nodes(node_cache, need))
    node_cache.split(need.lists)
    assert (census_of(node_cache, need), admitted_nodes(node_cache, need)) == before
    assert admitted_nodes(node_cache, need) == [1, 3, 7]


def test_groups_are_ordered_by_the_value_of_their_numbers() -> None:
    assert sorted(["g10", "g2", "g1b", "g1", "a"], key=natural) == ["a", "g1", "g1b", "g2", "g10"]


@given(st.sets(st.integers(0, 400)))
def test_a_bit_set_gives_its_indices_in_order(chosen: set[int]) -> None:
    assert list(indices_of(mask_of(chosen))) == sorted(chosen)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_parts_are_divided_as_asked(sizes: list[int], data: st.DataObject) -> None:
    part = GroupCounts(dict(enumerate(sizes)))
    if not part.total:
        return
    nodes = data.draw(st.integers(1, part.total))
    packed, wide = tight(part, nodes, part.fewest(nodes)), spread(part, nodes)
    counts = [count for count, _ in part.ordered]
    whole = [(part.ordered[place][1], count) for place, count in fewest_first(counts, nodes)]
    for shares in (packed, wide, whole):
        assert sum(count for _, count in shares) == nodes
        assert all(0 < count <= part.groups[rank] for rank, count in shares)
    assert len(packed) == part.fewest(nodes)
    assert len(wide) == min(nodes, len(part.groups))


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_times_are_rounded_up_by_little_and_never_later_than_before(distance: float, now: float, later: float) -> None:
    time = now + distance
    rounded = round_up(time, now)
    assert time <= rounded <= time + max(1.0, (time - now // EPOCH * EPOCH) / 64)
    if distance <= NEAR:
        assert rounded <= time + 1.0
    if now <= later <= time:
        assert round_up(time, later) <= rounded


def test_too_many_pools_are_forgotten_between_cycles_and_never_within_one() -> None:
    roll = random.Random(2)
    node_cache = NodeCache()
    for index in range(8):
        node_cache.put(replace(facts(roll, index), usable=True))
    free_counts = FreeCountsByNeed(node_cache)
    first = free_counts.pool_for(Need(), "")
    for memory in range(1, 2_100):
        free_counts.pool_for(Need(memory=memory), "")
    node_cache.take((0, 1))
    assert first.whole.total == 6
    free_counts.trim()
    assert free_counts.pool_for(Need(), "") is not first
    free_counts.validate()
