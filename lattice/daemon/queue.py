"""A work queue of keys: events add a key, one worker at a time reconciles it, and a failing key backs off by itself."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.tasks import CANCELLED_INSIDE, is_cancelled
from lattice.errors import Corrupt, LatticeError, Retry, Stale

log = logging.getLogger(__name__)

FIRST_BACK_OFF = 0.2
LONGEST_BACK_OFF = 60.0
_LOOK_SECONDS = 0.005


class KeyedQueue:
    """Level-triggered work by key; any number of workers, but never two on one key.

    `reconcile(key)` reads the level and acts; it returns the seconds until the key is reconciled again (None: only when added). A key added
    while it is being reconciled is reconciled once more. An error backs off that key alone (Stale not the first time; Retry at least for
    its `after_seconds`); only Corrupt ends the queue. A key added `late` is taken when nothing else is ready, by at most `late_workers`
    workers. Ready keys are taken in turn by their `group`, and at most `group_workers` workers serve the keys of one group.
    """

    def __init__(
        self, reconcile: Callable[[str], Awaitable[float | None]], clock: Clock, *,
        workers: int = 4, late_workers: int | None = None, name: str = "queue",
        group: Callable[[str], str] = lambda _: "", group_workers: int | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.done = 0
        self.failed = 0
        self._reconcile = reconcile
        self._clock = clock
        self._workers = workers
        self._late_workers = workers if late_workers is None else late_workers
        self._late_busy = 0
        self._group = group
        self._group_workers = workers if group_workers is None else group_workers
        self._group_busy: Counter[str] = Counter()
        self._ready: OrderedDict[str, deque[str]] = OrderedDict()  # by group; the group whose turn is next comes first
        self._late: deque[str] = deque()
        self._waiting: dict[str, bool] = {}  # stands in _ready (False) or in _late (True)
        self._busy: set[str] = set()
        self._again: dict[str, tuple[float, bool]] = {}  # added while busy: the earliest moment asked for, and whether it is late
        self._due: dict[str, float] = {}
        self._due_late: set[str] = set()
        self._heap: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._work = asyncio.Semaphore(0)  # a worker wakes for each; one that finds nothing waits again
        self._rearm = asyncio.Event()

    def __len__(self) -> int:
        """Returns how many keys are ready or added late, and not taken yet; delayed ones do not count."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Tells whether no key is ready or late and none is being reconciled; delayed keys do not count."""
        return not self._waiting and not self._busy

    def failures(self, key: str) -> int:
        """Returns how many times in a row the key has failed; 0: it succeeded last, is unknown, or was dropped by `forget`."""
        return self._failures.get(key, 0)

    def add(self, key: str, after: float = 0.0, *, late: bool = False) -> None:
        """Has a key reconciled `after` seconds from now (0 or less: as soon as a worker is free); of several calls the earliest counts, and
        one that is not `late`.

        """
        due = self._clock.monotonic() + max(0.0, after)
        if key in self._busy:
            soonest, stays_late = self._again.get(key, (due, True))
            self._again[key] = min(due, soonest), late and stays_late
        elif self._waiting.get(key, True) and not (late and key in self._waiting):
            if after <= 0:
                self._put(key, late=late)
                return
            if due < self._due.get(key, float("inf")):
                self._due_late.discard(key)
                if late:
                    self._due_late.add(key)
                self._due[key] = due
                heapq.heappush(self._heap, (due, key))
                if self._heap[0] == (due, key):
                    self._rearm.set()

    async def pass_by(self, seconds: float) -> None:
        """Waits until every key that is ready, late or being reconciled now has been reconciled, at most so many seconds; returns either
        way.

        Delayed keys are not waited for; a key that is added again meanwhile still is.
        """
        left, until = {*self._waiting, *self._busy}, self._clock.monotonic() + seconds
        while (left := left & (self._waiting.keys() | self._busy)) and self._clock.monotonic() < until:
            await self._clock.sleep(_LOOK_SECONDS)

    def forget(self, key: str) -> None:
        """Drops a delayed key, and its count of failures, once its object is gone; one that is ready, or being reconciled, goes on, and may
        come again.
        """
        self._due.pop(key, None)
        self._due_late.discard(key)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Reconciles keys until cancelled; raises only Corrupt, in an exception group."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._serve())
            await self._wake_delayed(group)

    def _put(self, key: str, *, late: bool = False) -> None:
        """Puts a key among those that wait for a worker, as a late one if it is; a time at which it was due is dropped."""
        self._due.pop(key, None)
        self._due_late.discard(key)
        self._waiting[key] = late
        (self._late if late else self._ready.setdefault(self._group(key), deque())).append(key)
        self._work.release()

    def _take(self) -> tuple[str, bool] | None:
        """Takes the next key out of those that are ready, of the groups in turn, else a late one, and returns it with whether it is late;
        None: there is none for one more worker.
        """
        for group, keys in self._ready.items():
            if self._group_busy[group] < self._group_workers:
                key = keys.popleft()
                self._ready.move_to_end(group)
                if not keys:
                    del self._ready[group]
                return key, False
        while self._late and self._late_busy < self._late_workers:
            key = self._late.popleft()
            if self._waiting.get(key):  # else it was added again, and not late
                return key, True
        return None

    async def _wake_delayed(self, group: asyncio.TaskGroup) -> None:
        """Moves delayed keys to the ready ones as they become due; one task sleeps for all of them. Never returns."""
        while True:
            self._rearm.clear()
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                due, key = heapq.heappop(self._heap)
                if self._due.get(key) == due:
                    self._put(key, late=key in self._due_late)
            sleeper = group.create_task(self._sleep_until(self._heap[0][0])) if self._heap else None
            await self._rearm.wait()
            if sleeper:
                sleeper.cancel()

    async def _sleep_until(self, due: float) -> None:
        """Waits for this time of the monotonic clock, then has the next time be looked for."""
        await self._clock.sleep(due - self._clock.monotonic())
        self._rearm.set()

    async def _serve(self) -> None:
        """Reconciles one key after another as a worker, and adds each again where that was asked for meanwhile, or by its result or error;
        never returns.

        Raises Corrupt.
        """
        while True:
            await self._work.acquire()
            taken = self._take()
            if taken is None:
                continue
            key, late = taken
            del self._waiting[key]
            self._busy.add(key)
            self._late_busy += late
            self._group_busy[group := self._group(key)] += 1
            try:
                after = await self._one(key)
            finally:
                self._busy.discard(key)
                self._late_busy -= late
                self._group_busy[group] -= 1
            if not self._group_busy[group]:
                del self._group_busy[group]
            if (late and self._late) or group in self._ready:
                self._work.release()
            wanted = self._again.pop(key, None)
            if wanted is not None:
                self.add(key, wanted[0] - self._clock.monotonic(), late=wanted[1])
            if after is not None:
                self.add(key, after)

    async def _one(self, key: str) -> float | None:
        """Reconciles a key once; returns the seconds until it is reconciled again, also after an error, which is logged and counted; None:
        only when added.

        Raises Corrupt, and a cancellation of the worker itself.
        """
        try:
            after = await self._reconcile(key)
        except Corrupt:
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return self._back_off(key, Retry(CANCELLED_INSIDE, reason="Cancelled"))
        except Exception as error:  # around one key: everything else goes on
            return self._back_off(key, error)
        self.done += 1
        self._failures.pop(key, None)
        return after

    def _back_off(self, key: str, error: Exception) -> float:
        """Counts and logs a failure of a key and returns after how many seconds it is tried again: twice as many at each failure, 60 at
        most.

        A Stale as the first failure is tried again at once; after a Retry, never earlier than the server asks.
        """
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
