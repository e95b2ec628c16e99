"""Limits the rate of status writes that only inform, so that a new wording never delays the writes that start work."""

from __future__ import annotations

from typing import Final

from lattice.daemon.clock import Clock

WRITES_PER_SECOND: Final = 25.0
"""About a quarter of one core of the API server, at 10 ms a status write."""
BURST: Final = 100
"""Writes that may follow each other at once after a quiet time: a short queue never waits."""


class WriteBudget:
    """A token bucket for status writes that can wait; a caller that gets no token asks again the next time it looks.

    Without it a queue of a thousand, whose expected starts all move when one job ends, would be written at once: ten seconds of the API
    server, behind which every submission, commit and start would stand.
    """

    def __init__(self, clock: Clock, *, per_second: float = WRITES_PER_SECOND, burst: int = BURST) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled = clock.monotonic()

    def try_spend(self) -> bool:
        """Takes one token and returns True; returns False when none is left."""
        now = self._clock.monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
