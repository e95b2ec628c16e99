"""The clock that everything which waits is given; `lattice.daemon.clock` has the real one and the one for tests."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time, and waiting."""

    def now(self) -> float:
        """Seconds since the epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never back. Durations are differences of this."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds; other tasks run in any case, also for 0."""
        ...
