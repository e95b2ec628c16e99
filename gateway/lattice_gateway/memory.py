"""Keeps answers for some seconds, and lets simultaneous callers of one question share its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from lattice.kube.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ENTRIES: Final = 4096


class Memory(Generic[K, V]):
    """Keeps answers by question for `seconds`; beyond 4096 questions the oldest are dropped."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> tuple[V] | None:
        """Returns the answer in a tuple of one, since it may itself be None; None: there is no answer that is young enough."""
        entry = self._entries.get(key)
        if entry is None or self._clock.monotonic() - entry[0] >= self._seconds:
            return None
        return (entry[1],)

    def keep(self, key: K, value: V) -> V:
        """Keeps an answer for `seconds` from now, in place of an older one, and returns it."""
        self._entries.pop(key, None)
        while len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (self._clock.monotonic(), value)
        return value


class Kept(Generic[K, V]):
    """Keeps large answers by question for `seconds`; beyond `limit` bytes, as `size` counts them, the oldest are dropped."""

    def __init__(self, clock: Clock, seconds: float, limit: int, size: Callable[[V], int]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._limit = limit
        self._size = size
        self._entries: dict[K, tuple[float, V]] = {}
        self._bytes = 0

    def get(self, key: K) -> V | None:
        """Returns the answer; None: none is kept, or it is too old."""
        entry = self._entries.get(key)
        if entry is None or self._clock.monotonic() - entry[0] >= self._seconds:
            return None
        return entry[1]

    def keep(self, key: K, value: V) -> V:
        """Keeps an answer for `seconds` from now, in place of an older one, and returns it.

        The oldest are dropped until all fit into `limit`; one that is larger by itself drops all, and is not kept.
        """
        self._drop(key)
        self._entries[key] = (self._clock.monotonic(), value)
        self._bytes += self._size(value)
        while self._bytes > self._limit:
            self._drop(next(iter(self._entries)))
        return value

    def _drop(self, key: K) -> None:
        """Drops an entry and no longer counts its size; an unknown key is ignored."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= self._size(entry[1])


class Once(Generic[K, V]):
    """Runs a question once for all callers that ask it while it is under way."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}

    async def run(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Returns the answer of the question under way for this key, else of a new one (`ask`); raises what the question raises.

        A caller who is cancelled does not end the question for the others.
        """
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(_awaited(ask))
            task.add_done_callback(partial(self._done, key))
        return await asyncio.shield(task)

    def _done(self, key: K, task: asyncio.Task[V]) -> None:
        """Forgets a task that has ended, so that the next caller begins a new one."""
        del self._running[key]
        if not task.cancelled():
            task.exception()  # whoever still waits is told; that nobody does any more is no fault


async def _awaited(ask: Callable[[], Awaitable[V]]) -> V:
    """Awaits a question, as a coroutine of which a task can be made."""
    return await ask()
