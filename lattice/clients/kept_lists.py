"""Keeps the lists of a registry (its repositories, the tags of one) for some seconds, so that many labels cost it one question each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

KEPT_SECONDS: Final = 5.0
MOST_KEPT: Final = 4096


@dataclass
class _KeptList:
    """A list, and when it was asked for (monotonic); the lock under which it is asked for."""

    names: list[str] = field(default_factory=list)
    asked: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeptLists:
    """Lists by registry and question; whoever waits for the same one shares the answer, failures are kept by nobody."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: dict[tuple[str, str], _KeptList] = {}

    @property
    def present(self) -> float:
        """Returns the present time of the clock by which lists are kept."""
        return self._monotonic()

    async def names(self, key: tuple[str, str], ask: Callable[[], Awaitable[list[str]]], since: float) -> tuple[list[str], float]:
        """Returns a list that was asked for at `since` or later (monotonic), and when; asks now where none was. Raises as `ask` does."""
        kept = self._kept.setdefault(key, _KeptList())
        async with kept.lock:
            if kept.asked < since:
                asked = self._monotonic()
                kept.names = await ask()
                kept.asked = asked
        if len(self._kept) > MOST_KEPT:
            old = self._monotonic() - KEPT_SECONDS
            self._kept = {name: one for name, one in self._kept.items() if one.asked >= old or one.lock.locked()}
        return kept.names, kept.asked
