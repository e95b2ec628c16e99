"""The real clock, and the clock of tests that moves only when told."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
import time

from lattice.kube.clock import Clock

__all__ = ["Clock", "ManualClock", "SystemClock"]

_SETTLE_TURNS = 25


class SystemClock:
    """The machine's clock; its monotonic time continues while the machine is suspended, where the kernel offers that."""

    def now(self) -> float:
        """Returns seconds since the epoch."""
        return time.time()

    if sys.platform == "linux":

        def monotonic(self) -> float:
            """Returns seconds since boot, suspension included."""
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def monotonic(self) -> float:
            """Returns seconds since some fixed moment."""
            return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits so many seconds; other tasks run meanwhile."""
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock for tests: time stands still until `advance` or `run_for` moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Returns seconds since the epoch, as set and advanced."""
        return self._now + self._elapsed

    def monotonic(self) -> float:
        """Returns for how many seconds the clock was advanced since it was made."""
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """Returns how many tasks sleep until a later time."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Sleeps until the clock has been advanced by so many seconds; 0 or less: lets other tasks run once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        await future

    def advance(self, seconds: float) -> None:
        """Advances the clock in one step and wakes every sleeper that is due; they run when the caller next awaits."""
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    def jump(self, seconds: float) -> None:
        """Moves wall time alone, as when somebody sets the machine's clock."""
        self._now += seconds

    async def settle(self) -> None:
        """Lets tasks run for 25 turns of the loop, without advancing the clock; one that waits for more than other tasks, such as a thread,
        may not be done.
        """
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)

    async def run_for(self, seconds: float) -> None:
        """Advances the clock step by step: each sleeper wakes at its own time, and tasks run before the next step."""
        end = self._elapsed + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.advance(max(0.0, self._sleepers[0][0] - self._elapsed))
            await self.settle()
        self.advance(end - self._elapsed)
        await self.settle()
