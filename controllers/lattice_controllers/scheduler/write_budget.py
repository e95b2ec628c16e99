"""The rate of writes that only inform: a status that says the same in newer words gives way to what starts work."""

from __future__ import annotations

from typing import Final

from lattice.daemon.clock import Clock

WRITES_PER_SECOND: Final = 25.0
"""About a quarter of one core of the API server, at 10 ms a status write."""
BURST: Final = 100
"""Written at once after a quiet time: a short queue never waits."""


class WriteBudget:
    """A token bucket of status writes that can wait; whoever gets no token asks again when it next looks.

    Without it a queue of a thousand, whose expected starts all move when one job ends, is written anew at once: ten seconds of the
    API server, for which every submission, commit and start stands behind it.
    """

    def __init__(self, clock: Clock, *, per_second: float = WRITES_PER_SECOND, burst: int = BURST) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled = clock.monotonic()

    def try_spend(self) -> bool:
        """Takes one token; False when there is none left."""
        now = self._clock.monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
