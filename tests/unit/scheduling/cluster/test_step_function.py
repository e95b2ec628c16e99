"""Step functions say the same as a table of counts by second, and are never changed by what is made of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cluster.step_function import ALWAYS, StepFunction

SPAN = 12
changes = st.dictionaries(st.integers(0, SPAN - 1).map(float), st.integers(-3, 3), max_size=6)
bumps = st.lists(st.tuples(st.integers(0, SPAN), st.integers(1, 5), st.integers(-3, 3)), max_size=4)


def table(function: StepFunction) -> list[int]:
    return [function.at(second) for second in (-1.0, *map(float, range(SPAN + 6)))]


@given(st.integers(0, 5), changes, bumps)
def test_a_sum_is_the_sum_at_every_second(first: int, steps: dict[float, int], added: list[tuple[int, int, int]]) -> None:
    function = StepFunction.of_changes(first, steps)
    expected = [first + sum(by for time, by in steps.items() if time <= second) for second in range(-1, SPAN + 6)]
    assert table(function) == expected
    assert StepFunction.of_changes(first, function.changes()).times == function.times
    for begin, length, by in added:
        before = table(function)
        more = function.plus(float(begin), float(begin + length), by)
        expected = [count + by * (begin <= second < begin + length) for second, count in zip(range(-1, SPAN + 6), expected, strict=True)]
        assert table(more) == expected
        assert table(function) == before
        function = more
    assert table(function.plus(ALWAYS, float("inf"), 2)) == [count + 2 for count in expected]


@given(st.integers(0, 5), changes, st.integers(0, 5), st.integers(0, SPAN + 2))
def test_the_first_step_below_a_count_is_found(first: int, steps: dict[float, int], count: int, end: int) -> None:
    function = StepFunction.of_changes(first, steps)
    step = max((number for number, held in enumerate(function.counts) if held >= count and function.times[number] < end), default=None)
    if step is None:
        return
    at = min(number for number, held in enumerate(function.counts) if held >= count)
    found = function.first_below(count, at, float(end)) if function.times[at] < end else 0
    below = [number for number in range(at, len(function.times)) if function.times[number] < end and function.counts[number] < count]
    assert found == (below[0] if below else 0)
