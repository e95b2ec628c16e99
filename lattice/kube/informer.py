"""A cache of one kind that follows the server: a complete list first, then each change, and no change missed silently.

The objects come by a watch with initial events where the server serves that, else by one unpaged LIST. A watch that ends is resumed at its
version, if it said anything; after one that ended or idled without an event or bookmark there is a consistent LIST, because a restored
server answers a version of its future with silence. HTTP 410 leads to a LIST too. After each LIST, objects that are missing in it are
reported as deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

from lattice.errors import Corrupt, Expired, LatticeError, Rejected, Retry
from lattice.kube.clock import Clock
from lattice.kube.cluster import OBJECT, Cluster, EventKind, T, WatchEvent
from lattice.kube.objects import key_of, version_of
from lattice.kube.resources import Resource

log = logging.getLogger(__name__)

INACTIVITY_SECONDS = 100.0
"""Silence after which a watch counts as dead; the server sends a bookmark about every minute."""
FIRST_BACK_OFF = 0.2
LONGEST_BACK_OFF = 30.0
STOOD_SECONDS = 5.0
"""A watch that stood for this long after a complete list did not fail, even if nothing happened meanwhile."""
REACH_SECONDS = 2.0
"""How long a reader waits at most until the cache has reached the version that he has seen."""
_REACH_AGAIN_SECONDS = 0.005
_TURNS, _ROUNDS = 3, 32
"""Turns of the loop in which data of a socket is read, decoded and applied; rounds of them at most, more than a socket holds."""
_YIELD_EVERY = 500


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object that appeared (`old` None), changed, or is gone (`new` None)."""

    key: str
    old: T | None
    new: T | None


class Informer(Generic[T]):
    """The objects of one resource, by key; `run` keeps them current until cancelled.

    `on_change` is called for each change, in order, after `objects` shows it; it must be quick (enqueue a key). `freeze` exempts everything
    that exists after the first sync from garbage collection. `share` returns the object that is kept for one that was read, an equal one.
    `jitter` returns a number from 0 to 1.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        *,
        type: type[T] = OBJECT,
        clock: Clock,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        on_change: Callable[[Change[T]], None] | None = None,
        jitter: Callable[[], float] = random.random,
        inactivity_seconds: float = INACTIVITY_SECONDS,
        freeze: bool = False,
        share: Callable[[T], T] | None = None,
    ) -> None:
        self.resource = resource
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.synced_version = ""
        """The version of the newest complete list."""
        self.version = ""
        """Version of the newest list, event or bookmark: where a watch is resumed."""
        self.reported_version = ""
        """Version up to which every change of these objects has been reported; versions number the writes of all kinds in their order."""
        self.list_begun = float("-inf")
        """Monotonic time at which the newest complete list was asked for."""
        self.continuous_since = float("inf")
        """Monotonic time since which no change can have been late: the watch has not been lost since then."""
        self.lists = 0
        """Complete lists so far."""
        self._cluster = cluster
        self._type = type
        self._clock = clock
        self._namespace = namespace
        self._labels, self._fields = labels, fields
        self._on_change = on_change
        self._jitter = jitter
        self._inactivity_seconds = inactivity_seconds
        self._freeze = freeze
        self._share = share
        self._streams_lists = True
        self._must_list = False
        self._failures = 0
        self._heard_at = 0.0
        self._heard = False
        self._listed_at = float("inf")
        self._lost = True
        self._reading: asyncio.Task[LatticeError | None] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def lost(self) -> bool:
        """Tells whether there is no watch now, also before the first complete list: changes may come late, and nothing follows from
        silence.
        """
        return self._lost

    async def run(self) -> None:
        """Follows the server until cancelled, repeating with a growing back-off; raises only Corrupt (an answer does not decode) or
        Rejected (a wrong selector), other errors are logged.
        """
        while True:
            error = await self._session()
            if isinstance(error, Corrupt | Rejected):
                raise error
            seconds = self._pause(error)
            if error is not None and not isinstance(error, Expired):
                log.log(
                    logging.WARNING if self._failures > 1 else logging.INFO,
                    "WatchLost resource=%s reason=%s retry_seconds=%.2f message=%s",
                    self.resource.plural,
                    error.reason,
                    seconds,
                    error.message,
                )
            if seconds:
                await self._clock.sleep(seconds)

    async def relist(self) -> None:
        """Ends the watch under way, and returns once `objects` shows a consistent LIST that began after this call, however long that takes;
        `run` must be running.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._must_list = True
        if self._reading is not None:
            self._reading.cancel()
        await waiter

    async def reach(self, version: str = "") -> str:
        """Returns the version of `objects` once it is at least `version` (empty: any), and every change that reached this machine is in it.

        Raises Retry where the watch is lost, so that the age of `objects` is unknown, or where the version does not come in 2 s.
        """
        wanted = int(version or 0)
        until = self._clock.monotonic() + REACH_SECONDS
        while True:
            for _ in range(_ROUNDS):  # what has come in is read turn by turn
                before = self.version
                for _ in range(_TURNS):
                    await self._clock.sleep(0)
                if before == self.version:
                    break
            if self._lost or not self.synced.is_set():
                raise Retry(f"the watch of {self.resource.name} is lost: how old its cache is cannot be told", reason="WatchLost")
            if int(self.version) >= wanted:
                return self.version
            if self._clock.monotonic() >= until:
                sentence = f"the cache of {self.resource.name} is at version {self.version}, and {wanted} is asked for"
                raise Retry(sentence, reason="CacheBehind")
            await self._clock.sleep(_REACH_AGAIN_SECONDS)

    async def _session(self) -> LatticeError | None:
        """Runs one list or watch with its watchdog; returns the error that ended it, Retry after silence; None: it ended cleanly, or
        `relist` ended it.
        """
        self._heard, self._heard_at, self._listed_at = False, self._clock.monotonic(), float("inf")
        async with asyncio.TaskGroup() as group:
            reading = self._reading = group.create_task(self._read())
            watchdog = group.create_task(self._watch_idleness(reading))
            try:
                await asyncio.wait({reading})
            finally:
                self._reading = None
            watchdog.cancel()
        if not reading.cancelled():
            return reading.result()
        idle = self._clock.monotonic() - self._heard_at >= self._inactivity_seconds
        self._must_list = True
        self._lost = self._lost or idle
        return Retry(f"watch {self.resource.name}: silent for {self._inactivity_seconds:g} s", reason="WatchSilent") if idle else None

    async def _watch_idleness(self, reading: asyncio.Task[LatticeError | None]) -> None:
        """Cancels the reading of the stream once nothing has been heard for `inactivity_seconds`, and returns."""
        while (left := self._heard_at + self._inactivity_seconds - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        reading.cancel()

    async def _read(self) -> LatticeError | None:
        """Lists if that is due, then watches to the end, and returns None; returns a LatticeError instead of raising it, so that the task
        group goes on.

        Notes whether the next session must LIST, and tries a LIST at once where the server has no initial events.
        """
        try:
            if self.version and not self._must_list:
                await self._follow(self.version)
            elif self._streams_lists and not self._must_list:
                await self._stream()
            else:
                await self._list()
                await self._follow(self.version)
        except Expired as error:
            self._must_list = self._lost = True
            return error
        except Rejected as error:
            if self._streams_lists and not self.version and not self._must_list:
                self._streams_lists = False  # this server has no watch with initial events
                return await self._read()
            return error
        except LatticeError as error:
            self._lost = True
            self._must_list = self._must_list or not self._heard
            return error
        if not self._heard:
            self._must_list = self._lost = True
        return None

    async def _list(self) -> None:
        """Replaces the cache by a complete list of the server, tells the changes, and wakes those who wait for a list.

        If that fails, they keep waiting for the next list, and the error is raised.
        """
        begun = self._clock.monotonic()
        waiters, self._waiters = self._waiters, []
        self._must_list = False
        try:
            with collector_paused():
                listing = await self._cluster.list(
                    self.resource, self._namespace, type=self._type, labels=self._labels, fields=self._fields
                )
                await self._adopt({key_of(obj): self._kept(obj) for obj in listing.items}, listing.resource_version, begun)
            self._listed_at = self._clock.monotonic()
        except BaseException:
            self._must_list = True
            self._waiters = waiters + self._waiters
            raise
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _stream(self) -> None:
        """Runs a watch whose initial events are the list, which is adopted when it is complete, and which goes on as the watch.

        Raises Retry where it ends before the list does.
        """
        begun = self._clock.monotonic()
        fresh: dict[str, T] | None = {}
        with collector_paused() as resume_collector:
            async with aclosing(
                self._cluster.watch(
                    self.resource, self._namespace, type=self._type, initial_events=True, labels=self._labels, fields=self._fields
                )
            ) as events:
                async for event in events:
                    self._heard_at = self._clock.monotonic()
                    if fresh is None:
                        self._apply(event)
                    elif event.initial_end:
                        await self._adopt(fresh, event.resource_version, begun)
                        fresh = None
                        resume_collector()
                        self._mark_live()
                    else:
                        self._collect(fresh, event)
        if fresh is not None:
            raise Retry(f"watch {self.resource.name}: ended before its initial events did", reason="WatchEnded")

    async def _follow(self, version: str) -> None:
        """Applies the events of a watch from this version on, until the server ends it; raises what the watch raises."""
        async with aclosing(
            self._cluster.watch(
                self.resource, self._namespace, type=self._type, resource_version=version, labels=self._labels, fields=self._fields
            )
        ) as events:
            async for event in events:
                self._heard_at = self._clock.monotonic()
                self._apply(event)

    async def _adopt(self, fresh: dict[str, T], version: str, begun: float) -> None:
        """Makes `objects` equal to a complete list, then reports every difference (equal versions are none), and is synced from then on;
        after a loss, `continuous_since` is now.
        """
        former = dict(self.objects)
        self.objects.clear()
        self.objects.update(fresh)
        self.version = self.synced_version = version
        self.list_begun = begun
        self.lists += 1
        if self._freeze and not self.synced.is_set():
            gc.freeze()
        await self._tell_all(_differences(former, fresh))
        self.reported_version = version
        self.synced.set()
        if self._lost:
            self.continuous_since = self._clock.monotonic()
            self._lost = False

    async def _tell_all(self, changes: Iterator[Change[T]]) -> None:
        """Reports changes, letting other tasks run in between; even when cancelled, it reports all of them."""
        try:
            for count, change in enumerate(changes, start=1):
                self._tell(change)
                if count % _YIELD_EVERY == 0:
                    await self._clock.sleep(0)
        except asyncio.CancelledError:
            for change in changes:
                self._tell(change)
            raise

    def _apply(self, event: WatchEvent[T]) -> None:
        """Applies one event of a live watch to `objects` and the version, and reports the change; a bookmark, and the deletion of an
        unknown object, report none.
        """
        self._mark_live()
        if event.resource_version:
            self.version = event.resource_version
        if event.object is not None:
            self._report(event.kind, event.object)
        self.reported_version = self.version

    def _report(self, kind: EventKind, found: T) -> None:
        """Applies one event to `objects`, and reports the change."""
        key = key_of(found)
        if kind is EventKind.DELETED:
            old = self.objects.pop(key, None)
            if old is not None:
                self._tell(Change(key, old, None))
            return
        old, new = self.objects.get(key), self._kept(found)
        self.objects[key] = new
        self._tell(Change(key, old, new))

    def _collect(self, fresh: dict[str, T], event: WatchEvent[T]) -> None:
        """Adds one of the initial events to the fresh list, from which a deletion among them takes its object; a bookmark adds nothing."""
        if event.object is None:
            return
        if event.kind is EventKind.DELETED:
            fresh.pop(key_of(event.object), None)
        else:
            fresh[key_of(event.object)] = self._kept(event.object)

    def _kept(self, obj: T) -> T:
        """Returns the object as the cache keeps it: as `share` gives it, where there is one."""
        return obj if self._share is None else self._share(obj)

    def _mark_live(self) -> None:
        """Notes that the server was heard and that failures are over; after a loss, `continuous_since` is now."""
        self._heard = True
        self._failures = 0
        if self._lost:
            self.continuous_since = self._clock.monotonic()
            self._lost = False

    def _tell(self, change: Change[T]) -> None:
        """Calls `on_change` with a change; does nothing where none was given."""
        if self._on_change is not None:
            self._on_change(change)

    def _pause(self, error: LatticeError | None) -> float:
        """Returns the seconds until the next session: none after one that heard something or stood long and had no error, or where a LIST
        is asked for, a moment where it had one.

        After any other it counts a failure, of which each doubles the seconds up to a limit; the server's own wish is the least.
        """
        stood = self._clock.monotonic() - self._listed_at >= STOOD_SECONDS
        if self._heard or stood or self._waiters or isinstance(error, Expired):
            self._failures = 0
            return 0.0 if error is None or self._waiters else FIRST_BACK_OFF * self._jitter()
        self._failures += 1
        seconds = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(self._failures - 1, 20)) * (0.5 + self._jitter())
        if isinstance(error, Retry) and error.after_seconds:
            seconds = max(seconds, error.after_seconds)
        return seconds


def _differences(former: dict[str, T], fresh: dict[str, T]) -> Iterator[Change[T]]:
    """Yields the deleted objects first, then new ones and those with another resourceVersion, in the order of the list."""
    for key, old in former.items():
        if key not in fresh:
            yield Change(key, old, None)
    for key, new in fresh.items():
        before = former.get(key)
        if before is None or version_of(before) != version_of(new):
            yield Change(key, before, new)


_paused = 0


@contextlib.contextmanager
def collector_paused() -> Iterator[Callable[[], None]]:
    """Pauses the garbage collector while many objects are made; yields a function that resumes it early.

    Uses are counted, because several informers list at once; a collector that was off before stays off.
    """
    global _paused
    if _paused == 0 and not gc.isenabled():
        yield lambda: None
        return
    _paused += 1
    gc.disable()
    held = True

    def resume() -> None:
        """Switches the garbage collector on again once the last of the nested pauses has ended; a second call does nothing."""
        nonlocal held
        global _paused
        if held:
            held = False
            _paused -= 1
            if _paused == 0:
                gc.enable()

    try:
        yield resume
    finally:
        resume()
