"""The clock that every component which waits is given; `lattice.daemon.clock` has the real one and the one for tests."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time, and waiting."""

    def now(self) -> float:
        """Returns seconds since the epoch; they may jump."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment, which never go back; durations are their differences."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleeps so many seconds; other tasks run meanwhile, even for 0."""
        ...
