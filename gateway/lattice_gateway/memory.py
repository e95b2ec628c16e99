"""Answers kept for some seconds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from lattice.kube.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ENTRIES: Final = 4096


class Memory(Generic[K, V]):
    """Answers by question, each for `seconds`; of at most 4096 questions the oldest are forgotten first."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> tuple[V] | None:
        """The answer in a tuple, or None when there is none that is young enough."""
        entry = self._entries.get(key)
        if entry is None or self._clock.monotonic() - entry[0] >= self._seconds:
            return None
        return (entry[1],)

    def keep(self, key: K, value: V) -> V:
        """Keep an answer from now on, and give it back."""
        self._entries.pop(key, None)
        while len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (self._clock.monotonic(), value)
        return value
