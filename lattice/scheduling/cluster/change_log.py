"""The log of changed buckets: readers that keep sums by bucket ask it what has changed since they last looked."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

_LONGEST: Final = 10_000
"""The log is cut when it is longer."""


class ChangeLog(Generic[T]):
    """The last changes of buckets in order, each as (bucket, by how much its free nodes grew; negative: fell).

    A position is a number that only grows: how many changes there had been when it was read.
    """

    __slots__ = ("_dropped", "entries")

    def __init__(self) -> None:
        self.entries: list[tuple[T, int]] = []
        self._dropped = 0
        """How many of the first changes were cut off."""

    @property
    def position(self) -> int:
        """Returns the present end of the log; give it to `since` later."""
        return self._dropped + len(self.entries)

    def since(self, position: int) -> dict[T, int] | None:
        """Returns the buckets that changed since the log stood at `position`, each with the sum by which its free nodes grew.

        None: the log no longer reaches back so far; a log of more than 10,000 changes is emptied by the call.
        """
        if len(self.entries) > _LONGEST:
            self._dropped += len(self.entries)
            self.entries.clear()
        if position < self._dropped:
            return None
        found: dict[T, int] = {}
        for changed, by in self.entries[position - self._dropped :]:
            found[changed] = found.get(changed, 0) + by
        return found
