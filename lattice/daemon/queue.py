"""A queue of keys: events only add a key, one worker at a time reconciles it, a failing key backs off alone."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Corrupt, LatticeError, Retry, Stale

log = logging.getLogger(__name__)

FIRST_BACK_OFF = 0.2
LONGEST_BACK_OFF = 60.0


class KeyedQueue:
    """Level-triggered work by key.

    `reconcile(key)` reads the level and acts; the seconds it returns are when to look again (None: when added).
    A key added while it is being reconciled is reconciled once more. An error backs off that key alone
    (Stale at once for the first time; Retry not before its `after_seconds`), only Corrupt ends the queue.
    """

    def __init__(self, reconcile: Callable[[str], Awaitable[float | None]], clock: Clock, *, workers: int = 4, name: str = "queue") -> None:
        self.name = name
        self.done = 0
        self.failed = 0
        self._reconcile = reconcile
        self._clock = clock
        self._workers = workers
        self._ready: deque[str] = deque()
        self._waiting: set[str] = set()  # stands in _ready
        self._busy: set[str] = set()
        self._again: dict[str, float] = {}  # added while busy: the earliest moment asked for
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._work = asyncio.Event()
        self._rearm = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are ready and not yet taken."""
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Whether nothing is ready and nothing is being reconciled (delayed keys do not count)."""
        return not self._ready and not self._busy

    def failures(self, key: str) -> int:
        """How often in a row the key has failed."""
        return self._failures.get(key, 0)

    def add(self, key: str, after: float = 0.0) -> None:
        """Have the key reconciled, `after` seconds from now; of several requests the earliest counts."""
        due = self._clock.monotonic() + max(0.0, after)
        if key in self._busy:
            self._again[key] = min(due, self._again.get(key, due))
        elif key not in self._waiting:
            if after <= 0:
                self._put(key)
            elif due < self._due.get(key, float("inf")):
                self._due[key] = due
                heapq.heappush(self._heap, (due, key))
                self._rearm.set()

    def forget(self, key: str) -> None:
        """Drop a delayed key and its count of failures, as when its object is gone."""
        self._due.pop(key, None)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._serve())
            await self._wake_delayed(group)

    def _put(self, key: str) -> None:
        self._due.pop(key, None)
        self._waiting.add(key)
        self._ready.append(key)
        self._work.set()

    async def _wake_delayed(self, group: asyncio.TaskGroup) -> None:
        """Move keys from the heap to the ready ones when they are due; one sleeper at a time."""
        while True:
            self._rearm.clear()
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                due, key = heapq.heappop(self._heap)
                if self._due.get(key) == due:
                    self._put(key)
            sleeper = group.create_task(self._sleep_until(self._heap[0][0])) if self._heap else None
            await self._rearm.wait()
            if sleeper:
                sleeper.cancel()

    async def _sleep_until(self, due: float) -> None:
        await self._clock.sleep(due - self._clock.monotonic())
        self._rearm.set()

    async def _serve(self) -> None:
        while True:
            while not self._ready:
                self._work.clear()
                await self._work.wait()
            key = self._ready.popleft()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                after = await self._one(key)
            finally:
                self._busy.discard(key)
            wanted = self._again.pop(key, None)
            if wanted is not None:
                self.add(key, wanted - self._clock.monotonic())
            if after is not None:
                self.add(key, after)

    async def _one(self, key: str) -> float | None:
        """Reconcile once; the seconds until the next look, also after an error."""
        try:
            after = await self._reconcile(key)
        except Corrupt:
            raise
        except Exception as error:  # around one key: everything else goes on
            return self._back_off(key, error)
        self.done += 1
        self._failures.pop(key, None)
        return after

    def _back_off(self, key: str, error: Exception) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self.failed += 1
        delay = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(count - 1, 20))
        if isinstance(error, Stale) and count == 1:
            delay = 0.0
        if isinstance(error, Retry) and error.after_seconds:
            delay = max(delay, error.after_seconds)
        expected = isinstance(error, LatticeError)
        reason = error.reason if isinstance(error, LatticeError) else type(error).__name__
        event(
            log,
            "ReconcileFailed",
            logging.WARNING if expected else logging.ERROR,
            error=None if expected else error,
            queue=self.name,
            key=key,
            reason=reason,
            message=str(error),
            failures=count,
            retry_seconds=round(delay, 3),
        )
        return delay
