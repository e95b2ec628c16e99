"""Predictions of starts held against what came: how well they were kept, and how wide the next ones must be.

A prediction is a rehearsal with median run times (`p50`) and one with long run times (`late`). What is late in truth is seldom
what the second rehearsal says, because all runs are never long at once, and nobody can rehearse work not yet submitted. So the
distance from p50 to p90 is `scale` times a factor, and the factor is learnt: the 0.9 quantile of
(start − p50) ÷ scale over the latest `WINDOW` starts, each by the first prediction that was made for it. With scale = late − p50 +
`OF_THE_WAIT`·(p50 − now) + `LEAST`, nine of ten starts come by their p90 whatever the error of the rehearsals is, as long
as the next thousand starts resemble the last.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

WINDOW: Final = 1000
"""Starts that the factor, the coverage and the median error are taken over."""
FEWEST: Final = 20
"""Starts below which the factor is 1: the second rehearsal is taken as it is."""
COVERED: Final = 0.9
OF_THE_WAIT: Final = 0.1
LEAST: Final = 60.0
"""Seconds: a prediction is never held to be more exact than that."""
SPARE: Final = 1000
"""Promises of work no longer pending that are kept until they are looked through."""


class Promise(NamedTuple):
    """What was predicted at one moment; seconds since the epoch."""

    made: float
    p50: float
    p90: float
    scale: float

    def by(self, latest: float) -> Promise:
        """The same, not later than something certain."""
        return self if self.p90 <= latest else self._replace(p50=min(self.p50, latest), p90=latest)


@dataclass(frozen=True, slots=True)
class Kept:
    """How a start compares with its first and its last prediction: start − p50 in seconds, and whether it came by p90."""

    first_error: float
    first_covered: bool
    last_error: float
    last_covered: bool


@dataclass(slots=True)
class _Sorted:
    """The latest values, in order of arrival and ascending."""

    arrived: deque[float] = field(default_factory=deque)
    ascending: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.arrived.append(value)
        insort(self.ascending, value)
        if len(self.arrived) > WINDOW:
            del self.ascending[bisect_left(self.ascending, self.arrived.popleft())]

    def quantile(self, share: float) -> float:
        return self.ascending[max(0, ceil(len(self.ascending) * share) - 1)]


class Calibration:
    """Keeps the predictions of what is pending, scores them when it starts, and widens the next ones by what it saw."""

    def __init__(self) -> None:
        self.starts = 0
        """Starts that were predicted before they came."""
        self._first: dict[str, Promise] = {}
        self._last: dict[str, Promise] = {}
        self._scores = _Sorted()
        self._errors = _Sorted()
        self._covered: deque[bool] = deque(maxlen=WINDOW)

    @property
    def factor(self) -> float:
        """By how much the scale is multiplied."""
        return max(0.0, self._scores.quantile(COVERED)) if len(self._scores.ascending) >= FEWEST else 1.0

    @property
    def coverage(self) -> float | None:
        """The share of the latest starts that came by the p90 first predicted; None before the first."""
        return sum(self._covered) / len(self._covered) if self._covered else None

    @property
    def median_error(self) -> float | None:
        """The median of |start − p50| by the first prediction, over the latest starts, in seconds; None before the first."""
        return self._errors.quantile(0.5) if self._errors.ascending else None

    def promise(self, now: float, p50: float, late: float) -> Promise:
        """The prediction for rehearsed starts, seconds since the epoch, at or after `now`; changes nothing."""
        scale = max(0.0, late - p50) + OF_THE_WAIT * (p50 - now) + LEAST
        return Promise(now, p50, p50 + self.factor * scale, scale)

    def predicted(self, uid: str, promise: Promise) -> None:
        """Work that is pending was given this prediction."""
        self._first.setdefault(uid, promise)
        self._last[uid] = promise

    def started(self, uid: str, at: float) -> Kept | None:
        """Work began to hold its nodes at `at`; None if nothing was predicted for it, or it is told twice."""
        first, last = self._first.pop(uid, None), self._last.pop(uid, None)
        if first is None or last is None:
            return None
        self.starts += 1
        self._scores.add((at - first.p50) / first.scale)
        self._errors.add(abs(at - first.p50))
        self._covered.append(at <= first.p90)
        return Kept(at - first.p50, at <= first.p90, at - last.p50, at <= last.p90)

    def forget(self, uid: str) -> None:
        """Work was cancelled, or waits for something that nobody predicts: its prediction scores nothing."""
        self._first.pop(uid, None)
        self._last.pop(uid, None)

    def prune(self, pending: Collection[str]) -> None:
        """Forget what is no longer pending, once there is much of it; `pending` answers `in` at once (a set, a dict)."""
        if len(self._first) > len(pending) + SPARE:
            for uid in [uid for uid in self._first if uid not in pending]:
                self.forget(uid)
