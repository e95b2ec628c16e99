"""A level's bell: it is rung when something has changed, and whoever waits looks at the level again."""

from __future__ import annotations

import asyncio


class Bell:
    """Counts its rings, so that a ring between two looks is never missed."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._tied: list[Bell] = []

    def ring(self) -> None:
        """Wakes everybody who waits, here and at the bells tied to this one."""
        self.count += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        for bell in self._tied:
            bell.ring()

    async def wait(self, seen: int) -> int:
        """Returns the count once it is not `seen` any more."""
        while self.count == seen:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        return self.count

    def tie(self, other: Bell) -> None:
        """Has `other` rung with this one."""
        self._tied.append(other)

    def untie(self, other: Bell) -> None:
        """Ends that."""
        if other in self._tied:
            self._tied.remove(other)
