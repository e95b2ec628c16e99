"""Counts over time as step functions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import Final

ALWAYS: Final = float("-inf")
"""Before every time: where the first step of every function begins."""


class StepFunction:
    """An immutable count over time: `counts[i]` holds from `times[i]` until the next time.

    `times` ascend from `ALWAYS`, in seconds since the epoch. Neighbouring steps may have equal counts.
    """

    __slots__ = ("counts", "times")

    def __init__(self, times: Sequence[float], counts: Sequence[int]) -> None:
        self.times = times
        self.counts = counts

    @classmethod
    def of_changes(cls, first: int, changes: dict[float, int]) -> StepFunction:
        """Makes the function that is `first` at the beginning and grows by `changes[time]` (negative: falls) at each time."""
        times = sorted(changes)
        return cls([ALWAYS, *times], list(accumulate([changes[time] for time in times], initial=first)))

    def at(self, time: float) -> int:
        """Returns the count at a time."""
        return self.counts[bisect_right(self.times, time) - 1]

    def changes(self) -> dict[float, int]:
        """Returns a new dict with the change of the count at each time except `ALWAYS`."""
        counts = self.counts
        return dict(zip(self.times[1:], map(sub, counts[1:], counts), strict=False))

    def first_below(self, count: int, step: int, end: float) -> int:
        """Returns the number of the first step after `step` that begins before `end` and has less than `count`; 0: there is none.

        The step numbered `step` must begin before `end` and have at least `count`.
        """
        stop = bisect_left(self.times, end)
        if min(self.counts[step:stop]) >= count:
            return 0
        return next(number for number in range(step + 1, stop) if self.counts[number] < count)

    def plus(self, begin: float, end: float, by: int) -> StepFunction:
        """Returns a new function that is higher by `by` (negative: lower) in [begin, end), seconds since the epoch."""
        times, counts = list(self.times), list(self.counts)
        first = bisect_left(times, begin)
        if first == len(times) or times[first] != begin:
            times.insert(first, begin)
            counts.insert(first, counts[first - 1])
        last = bisect_left(times, end, first)
        if last == len(times) or times[last] != end:
            times.insert(last, end)
            counts.insert(last, counts[last - 1])
        counts[first:last] = [count + by for count in counts[first:last]]
        return StepFunction(times, counts)
