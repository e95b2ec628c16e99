"""The clock of synchronous callers, and waiting that says what it last saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from lattice import errors


class Clock(Protocol):
    """Wall time, monotonic time and sleep, as given to everything that waits."""

    def now(self) -> float:
        """Returns the seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Returns seconds from any beginning that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Blocks the caller for so many seconds."""
        ...


class HostClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Returns the seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds from any beginning that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Blocks the caller for so many seconds."""
        time.sleep(seconds)


def wait_until(done: Callable[[], str], *, within: float, clock: Clock, what: str, every: float = 0.05) -> None:
    """Calls `done` at once and then every `every` seconds until it returns ""; any other answer says what is missing. What it raises is
    passed on.

    Raises Retry with reason NotReady and the last answer after `within` seconds; `what` names the thing waited for in that error.
    """
    deadline = clock.monotonic() + within
    while missing := done():
        if clock.monotonic() >= deadline:
            raise errors.Retry(f"{what} is not ready after {within:.0f} s: {missing}", reason="NotReady")
        clock.sleep(every)
