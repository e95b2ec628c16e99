"""A condition with a version: whoever waits is woken when something has changed, and reads the state again."""

from __future__ import annotations

import asyncio


class VersionedCondition:
    """Wakes those who wait for a change; it counts its notifications, so that none between two looks is missed."""

    def __init__(self) -> None:
        self.version = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._linked: list[VersionedCondition] = []

    def notify(self) -> None:
        """Wakes everybody who waits at this condition, or at one linked to it."""
        self.version += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        for other in self._linked:
            other.notify()

    async def wait(self, seen: int) -> int:
        """Waits until the version is another than `seen`, and returns it."""
        while self.version == seen:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        return self.version

    def link(self, other: VersionedCondition) -> None:
        """Notifies `other` whenever this one is notified."""
        self._linked.append(other)

    def unlink(self, other: VersionedCondition) -> None:
        """Ends such a link; without one nothing changes."""
        if other in self._linked:
            self._linked.remove(other)
