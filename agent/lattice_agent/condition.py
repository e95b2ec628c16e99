"""A condition variable with a version: a waiter is woken by each change, and reads the state again."""

from __future__ import annotations

import asyncio


class VersionedCondition:
    """Wakes the tasks that wait for a change of some state; its version counts the changes, so that a waiter misses none."""

    def __init__(self) -> None:
        self.version = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._linked: list[VersionedCondition] = []

    def notify(self) -> None:
        """Raises the version, and wakes every task that waits for this condition or for one linked to it."""
        self.version += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        for other in self._linked:
            other.notify()

    async def wait(self, seen: int) -> int:
        """Waits until the version differs from `seen`, which the caller read before it read the state; returns the new version.

        Returns at once where it differs already.
        """
        while self.version == seen:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        return self.version

    def link(self, other: VersionedCondition) -> None:
        """Notifies `other` whenever this one is notified."""
        self._linked.append(other)

    def unlink(self, other: VersionedCondition) -> None:
        """Removes the link to `other`, which is notified with this one no longer; does nothing where there is none."""
        if other in self._linked:
            self._linked.remove(other)
