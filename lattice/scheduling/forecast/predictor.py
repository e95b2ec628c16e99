"""Run times of work: quantiles of run time ÷ requested walltime, learnt from finished work.

Most work ends long before its walltime, and work of one user resembles what the same user ran before. A finished run is kept
at every level of `levels`, from the narrowest (one user, one name, one walltime) to everybody. A question is answered
by the narrowest level that has enough recent runs that lasted at least as long as the work in question has run already.
So the answer for running work is conditional on its age; it never exceeds the walltime, and a higher quantile is never
shorter. Recent runs weigh more: each is worth half of one that is `HALF_LIFE` runs younger at its level.
Memory is bounded: `WINDOW` runs a key, `MOST_KEYS` keys a level, the longest unused forgotten first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

WINDOW: Final = 48
"""Runs kept for one key."""
HALF_LIFE: Final = 8.0
"""A run is worth half of one that is so many runs younger."""
ENOUGH: Final = 4
"""Fewer runs that lasted long enough make the next, coarser level answer."""
LEVELS: Final = 8
MOST_KEYS: Final = 20_000
"""Keys kept at each level."""


class RunFeatures(NamedTuple):
    """The properties of an allocation by which its run time is predicted; `walltime` in seconds."""

    user: str
    tenant: str
    name: str
    nodes: int
    walltime: float


def levels(work: RunFeatures) -> Iterator[tuple[int, Hashable]]:
    """Yields (number, key) of each level at which a run is kept, from one user, name and walltime to everybody.

    Levels 0 and 1, which are of names, are left out for work without a name.
    """
    user = (work.tenant, work.user)
    length = int(work.walltime).bit_length()
    if work.name:
        yield 0, (user, work.name, work.walltime)
        yield 1, (user, work.name)
    yield 2, (user, work.nodes, work.walltime)
    yield 3, (user, work.nodes.bit_length())
    yield 4, user
    yield 5, (work.tenant, length)
    yield 6, length
    yield 7, None


@dataclass(slots=True)
class _Window:
    """The latest runs of one key, each as its share of the walltime, in order of arrival and in ascending order."""

    arrived: deque[tuple[float, int]] = field(default_factory=deque)
    ascending: list[tuple[float, int]] = field(default_factory=list)
    count: int = 0
    answers: dict[float, float] = field(default_factory=dict)

    def add_run(self, share: float) -> None:
        """Adds a run that lasted the share `share` of its walltime, and drops the oldest beyond `WINDOW` runs."""
        entry = (share, self.count)
        self.count += 1
        self.arrived.append(entry)
        insort(self.ascending, entry)
        self.answers.clear()
        if len(self.arrived) > WINDOW:
            del self.ascending[bisect_left(self.ascending, self.arrived.popleft())]

    def longer(self, than: float) -> int:
        """Returns how many runs lasted longer than the share `than` of their walltime."""
        return len(self.ascending) - bisect_right(self.ascending, (than, self.count))

    def quantile(self, wanted: float, than: float) -> float:
        """Returns the weighted quantile `wanted` of the runs that lasted longer than the share `than`; there must be one."""
        if than <= 0.0 and wanted in self.answers:
            return self.answers[wanted]
        rest = self.ascending[bisect_right(self.ascending, (than, self.count)) :]
        weights = [_WEIGHTS[self.count - 1 - number] for _share, number in rest]
        left = wanted * sum(weights)
        answer = rest[-1][0]
        for (share, _number), weight in zip(rest, weights, strict=True):
            left -= weight
            if left <= 1e-12:
                answer = share
                break
        if than <= 0.0:
            self.answers[wanted] = answer
        return answer


_WEIGHTS: Final = tuple(0.5 ** (age / HALF_LIFE) for age in range(WINDOW))


class RunTimes:
    """Learns run times from finished work, and gives their quantiles for other work; equal histories give equal answers."""

    def __init__(self) -> None:
        self._known: tuple[OrderedDict[Hashable, _Window], ...] = tuple(OrderedDict() for _ in range(LEVELS))

    def observe(self, work: RunFeatures, ran: float) -> None:
        """Learns from an attempt that ended by itself or at its walltime after `ran` seconds, its walltime at most; a walltime of 0 or less
        is ignored.

        The caller leaves out attempts that were cancelled or failed. Runs beyond 48 a key, and keys beyond 20,000 a level, the longest
        unused, are dropped.
        """
        if work.walltime <= 0:
            return
        share = min(1.0, max(0.0, ran / work.walltime))
        for number, key in levels(work):
            level = self._known[number]
            window = level.get(key)
            if window is None:
                window = level[key] = _Window()
                if len(level) > MOST_KEYS:
                    level.popitem(last=False)
            level.move_to_end(key)
            window.add_run(share)

    def totals(self, work: RunFeatures, shares: Sequence[float], elapsed: float = 0.0) -> list[float]:
        """Returns, for each quantile in `shares` (0 to 1), the whole run time in seconds of work that has run for `elapsed` seconds.

        Each lies between `elapsed` and the walltime, and is the longer of the two where `elapsed` has reached the walltime. It is the
        walltime, too, where no level knows `ENOUGH` (4) runs that lasted longer, each measured by its own walltime.
        """
        than = elapsed / work.walltime if work.walltime > 0 else 1.0
        if than >= 1.0:
            return [max(elapsed, work.walltime)] * len(shares)
        for number, key in levels(work):
            window = self._known[number].get(key)
            if window is not None and window.longer(than) >= ENOUGH:
                return [min(work.walltime, max(elapsed, window.quantile(share, than) * work.walltime)) for share in shares]
        return [work.walltime] * len(shares)

    def remaining(self, work: RunFeatures, shares: Sequence[float], elapsed: float) -> list[float]:
        """Returns, for each quantile in `shares` (0 to 1), how many seconds work still runs that has run for `elapsed` seconds."""
        return [max(0.0, total - elapsed) for total in self.totals(work, shares, elapsed)]
