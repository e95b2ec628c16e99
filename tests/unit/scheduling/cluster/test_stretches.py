"""The closest groups that hold enough are those that looking at every stretch finds; parts joined answer as one that counts all."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cluster.group_counts import AdjustedGroups, GroupCounts, JoinedCounts, tight
from lattice.scheduling.cluster.stretches import Line, neighbours

SIZES = st.dictionaries(st.integers(0, 40), st.integers(1, 9), min_size=2, max_size=14)


def by_trying(sizes: dict[int, int], nodes: int, groups: int) -> list[tuple[int, int]]:
    useful = {rank: size for rank, size in sizes.items() if size >= nodes - sum(sorted(sizes.values())[-groups + 1 :])}
    stretches = [
        (last - first, first, last)
        for first, last in combinations(sorted(useful), 2)
        if sum(sorted(size for rank, size in useful.items() if first <= rank <= last)[-groups:]) >= nodes
    ]
    _, first, last = min(stretches)
    return [(rank, size) for rank, size in sorted(useful.items()) if first <= rank <= last]


@settings(deadline=None)
@given(SIZES, st.data())
def test_no_stretch_that_holds_enough_is_shorter(sizes: dict[int, int], data: st.DataObject) -> None:
    part = GroupCounts(sizes)
    nodes = data.draw(st.integers(max(sizes.values()) + 1, max(max(sizes.values()) + 1, part.total)))
    groups = part.fewest(nodes)
    if not groups:
        return
    line = Line(sorted(sizes), [sizes[rank] for rank in sorted(sizes)])
    assert neighbours(line, nodes, groups, nodes - part.largest(groups - 1)) == by_trying(sizes, nodes, groups)


@settings(deadline=None)
@given(SIZES, st.lists(st.tuples(st.integers(0, 40), st.integers(-9, 9)), max_size=12), st.integers(1, 60), st.integers(1, 12))
def test_joined_parts_answer_as_one_that_counts_all(sizes: dict[int, int], changes: list[tuple[int, int]], nodes: int, groups: int) -> None:
    home = {rank: rank % 3 for rank in range(41)}
    parts = [GroupCounts({rank: size for rank, size in sizes.items() if home[rank] == place}) for place in range(3)]
    joined = JoinedCounts(parts)
    now = dict.fromkeys(range(41), 0) | sizes
    for rank, by in [(0, 0), *changes]:
        joined.line()
        by = max(by, -now[rank])
        now[rank] += by
        parts[home[rank]].count_change(rank, by)
        for some in (joined, joined.joined_of([AdjustedGroups(part, {}) for part in parts])):
            whole = GroupCounts(now)
            assert (some.total, some.groups, some.ordered) == (whole.total, whole.groups, whole.ordered)
            assert (some.holding(nodes), some.fewest(nodes), some.largest(groups)) == (
                whole.holding(nodes), whole.fewest(nodes), whole.largest(groups),
            )  # fmt: skip
            assert list(some.at_least(nodes)) == list(whole.at_least(nodes))
            if whole.total >= nodes:
                assert tight(some, nodes, some.fewest(nodes)) == tight(whole, nodes, whole.fewest(nodes))


@settings(deadline=None)
@given(SIZES, SIZES, st.lists(st.tuples(st.integers(0, 40), st.integers(-9, 9)), max_size=12), st.integers(1, 60))
def test_adjusted_counts_follow_the_others_and_answer_as_ones_made_of_the_sums(
    sizes: dict[int, int], more: dict[int, int], changes: list[tuple[int, int]], nodes: int
) -> None:
    counts, now = GroupCounts(sizes), dict.fromkeys(range(41), 0) | sizes
    adjusted, extra = AdjustedGroups(counts, dict(more)), dict.fromkeys(range(41), 0) | more
    for place, (rank, by) in enumerate([(0, 0), *changes]):
        if place % 2:
            by = max(by, -extra[rank])
            extra[rank] += by
            adjusted.adjust(rank, by)
        else:
            by = max(by, -now[rank])
            now[rank] += by
            counts.count_change(rank, by)
        whole = GroupCounts({rank: now[rank] + extra[rank] for rank in now})
        assert (adjusted.total, adjusted.groups, adjusted.ordered) == (whole.total, whole.groups, whole.ordered)
        assert (adjusted.holding(nodes), adjusted.fewest(nodes)) == (whole.holding(nodes), whole.fewest(nodes))
        if whole.total >= nodes:
            assert tight(adjusted, nodes, adjusted.fewest(nodes)) == tight(whole, nodes, whole.fewest(nodes))
