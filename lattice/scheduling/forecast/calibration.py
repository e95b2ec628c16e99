"""Predictions of starts held against what came: how well they were kept, and what that teaches for the next ones.

A prediction begins with two simulations, one with median run times and one with long ones (`late`). What comes is seldom what they
say, since all runs are never long at once, and nobody can rehearse work not yet submitted. So a start is measured on a `scale`,
late − median + `OF_THE_WAIT`·(median − now) + `LEAST`: its score is (start − median) ÷ scale. A quantile of the scores of
earlier starts says where p50 and p90 stand, in scales behind the rehearsed start.

Work that is foreseen soon and work that is foreseen late, narrow work and wide work err differently. So scores are kept by band of the
rehearsed wait and by the part of the nodes that was asked for, each with a short memory. What a cell of both knows too little of it takes
from its band, that from its width, and that from all starts: each is a mean of its own quantile and of the wider one's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil, exp, log
from typing import Final, NamedTuple

BANDS: Final = (600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""Rehearsed waits, in seconds, at which the next band begins."""
WIDTHS: Final = (0.1, 0.25)
"""Parts of the nodes that it may use above which work is wider, and widest."""
CELL, LINE, WINDOW = 200, 500, 1000
"""Starts that a cell, a band or width, and all together remember; coverage and median error are taken over WINDOW."""
TRUST: Final = 50
"""So many starts count as much as what a wider set says, when the two are averaged."""
COVERED: Final = (0.9, 0.9, 0.93, 0.93, 0.93)
"""By band, the part of the starts that is to come by p90. Waits that turn out long are in the main those that were foreseen too short, so
that from an hour on a little more is asked for; else of the waits of 6 to 24 h fewer than 85 % would be covered."""
MIDDLE: Final = (0.4, 0.6)
"""p50 is left where the simulation puts it while a part between these two came before it."""
FLOOR: Final = 0.1
"""The least factor that a cell is taken to ask for."""
OF_THE_WAIT: Final = 0.1
LEAST: Final = 60.0
"""Seconds: a prediction is never held to be more exact than that."""
SPARE: Final = 1000
"""Predictions of work no longer pending that are kept until they are looked through."""

Cell = tuple[int, int]
"""Numbers of a band and of a width."""


class PredictedStart(NamedTuple):
    """The start of one allocation as predicted at `made`: p50 and p90, seconds since the epoch, and the scale that scores it later."""

    made: float
    p50: float
    p90: float
    rehearsed: float
    """The start that the simulation with median run times gave."""
    scale: float
    cell: Cell

    def by(self, latest: float) -> PredictedStart:
        """Returns the prediction with p50 and p90 no later than `latest` (seconds since the epoch), the latest start by a reservation."""
        return self if self.p90 <= latest else self._replace(p50=min(self.p50, latest), p90=latest)


@dataclass(frozen=True, slots=True)
class Kept:
    """The comparison of an actual start with the first and the last prediction of it: start − p50 in seconds, and whether it came by
    p90.
    """

    first_error: float
    first_covered: bool
    last_error: float
    last_covered: bool


@dataclass(slots=True)
class _Sorted:
    """The latest values, at most `most`, in order of arrival and in ascending order."""

    most: int
    arrived: deque[float] = field(default_factory=deque)
    ascending: list[float] = field(default_factory=list)

    def insert(self, value: float) -> None:
        """Adds a value, and drops the one that arrived first where there are more than `most`."""
        self.arrived.append(value)
        insort(self.ascending, value)
        if len(self.arrived) > self.most:
            del self.ascending[bisect_left(self.ascending, self.arrived.popleft())]

    def quantile(self, share: float) -> float:
        """Returns the value that the next one stays below with probability `share`, if it resembles these; of few values a higher one.

        There must be a value.
        """
        count = len(self.ascending)
        return self.ascending[min(count, max(1, ceil((count + 1) * share))) - 1]


class Calibration:
    """Learns from actual starts how far predictions err, and shifts and widens the next ones; the forecaster keeps one."""

    def __init__(self) -> None:
        self.starts = 0
        """How many starts came that had been predicted."""
        self._first: dict[str, PredictedStart] = {}
        self._last: dict[str, PredictedStart] = {}
        self._all = _Sorted(WINDOW)
        self._bands = [_Sorted(LINE) for _ in COVERED]
        self._widths = [_Sorted(LINE) for _ in range(len(WIDTHS) + 1)]
        self._cells = [[_Sorted(CELL) for _ in self._widths] for _ in self._bands]
        self._learnt: dict[Cell, tuple[float, float]] = {}
        """By cell: the answer of `learnt`, kept until the next start."""
        self._covered: deque[bool] = deque(maxlen=WINDOW)

    @property
    def coverage(self) -> float | None:
        """Returns the share (0 to 1) of the latest 1,000 predicted starts that came by their first p90; None before the first start."""
        return sum(self._covered) / len(self._covered) if self._covered else None

    def calibrated(self, now: float, rehearsed: float, late: float, *, width: float = 0.0, earliest: float = 0.0) -> PredictedStart:
        """Returns the predicted start (p50 and p90) of two simulated ones: `rehearsed` with median run times, `late` with long ones.

        Moves both by how far earlier predictions of like waits and widths were wrong; learns nothing. Times in seconds since the epoch.
        `width`: the nodes that the work asks for as a part (0 to 1) of those that it may use. `earliest`: no prediction is before it.
        """
        scale = max(0.0, late - rehearsed) + OF_THE_WAIT * (rehearsed - now) + LEAST
        cell = bisect_right(BANDS, rehearsed - now), bisect_left(WIDTHS, width)
        shift, factor = self.learnt(cell)
        p50 = max(now, earliest, rehearsed + shift * scale)
        return PredictedStart(now, p50, max(p50, rehearsed + factor * scale), rehearsed, scale, cell)

    def learnt(self, cell: Cell) -> tuple[float, float]:
        """Returns by how many scales p50 and p90 lie after the start simulated with median run times; 0 and 1 before anything was
        learnt.
        """
        if cell not in self._learnt:
            self._learnt[cell] = self._shift(cell), self._factor(cell)
        return self._learnt[cell]

    def predicted(self, uid: str, prediction: PredictedStart) -> None:
        """Stores a prediction of a pending allocation's start, to be scored at the start; of several the first and the last are kept."""
        self._first.setdefault(uid, prediction)
        self._last[uid] = prediction

    def started(self, uid: str, at: float) -> Kept | None:
        """Scores and drops the predictions of an allocation that started at `at`, seconds since the epoch; learns from the first of them
        alone.

        None: nothing was predicted for it, or it was scored before.
        """
        first, last = self._first.pop(uid, None), self._last.pop(uid, None)
        if first is None or last is None:
            return None
        self.starts += 1
        for scores in self._like(first.cell):
            scores.insert((at - first.rehearsed) / first.scale)
        self._learnt.clear()
        self._covered.append(at <= first.p90)
        return Kept(at - first.p50, at <= first.p90, at - last.p50, at <= last.p90)

    def drop_predictions(self, uid: str) -> None:
        """Drops the predictions of an allocation that was cancelled or whose start nobody predicts any more, without scoring them."""
        self._first.pop(uid, None)
        self._last.pop(uid, None)

    def prune(self, pending: Collection[str]) -> None:
        """Drops predictions of allocations that are not in `pending` (uids), once 1,000 more than these are kept; scores none."""
        if len(self._first) > len(pending) + SPARE:
            for uid in [uid for uid in self._first if uid not in pending]:
                self.drop_predictions(uid)

    def _like(self, cell: Cell) -> tuple[_Sorted, ...]:
        """Returns the scores kept of all starts, of those of equal width, of equal band, and of the same cell, in this order."""
        band, width = cell
        return self._all, self._widths[width], self._bands[band], self._cells[band][width]

    def _factor(self, cell: Cell) -> float:
        """Returns by how many scales p90 lies after the simulated start, averaged in logarithms so that one extreme wait does not
        dominate.
        """
        known = 0.0
        for scores in self._like(cell):
            if count := len(scores.ascending):
                known = (count * log(max(FLOOR, scores.quantile(COVERED[cell[0]]))) + TRUST * known) / (count + TRUST)
        return exp(known)

    def _shift(self, cell: Cell) -> float:
        """Returns by how many scales p50 lies after the simulated start: 0 while between 40 % and 60 % of like starts came before it."""
        low = high = 0.0
        for scores in self._like(cell):
            if count := len(scores.ascending):
                low = (count * scores.quantile(MIDDLE[0]) + TRUST * low) / (count + TRUST)
                high = (count * scores.quantile(MIDDLE[1]) + TRUST * high) / (count + TRUST)
        return max(0.0, low) + min(0.0, high)
