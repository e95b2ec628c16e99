"""The log of changed buckets: readers that keep sums by bucket ask it what has changed since they last looked."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from lattice.errors import Corrupt

T = TypeVar("T")

_LONGEST: Final = 30_000
"""The log is cut when it has more changes than this."""


class ChangeLog(Generic[T]):
    """The last changes of buckets, in order.

    A position is a number that only grows: how many items there had been when it was read. `entries`: three items for each change, one
    after the other: the bucket, an end, and by how many more of its nodes are held until then (negative: fewer; 0: free nodes came or
    went). They are no tuples, since each would be an object that the garbage collector looks at.
    """

    __slots__ = ("_dropped", "entries")

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._dropped = 0
        """How many of the first items were cut off."""

    @property
    def position(self) -> int:
        """Returns the present end of the log; give it to `changed` or `moved` later."""
        return self._dropped + len(self.entries)

    def trim(self) -> None:
        """Empties the log where it has more than 30,000 changes; earlier positions are then out of reach."""
        if len(self.entries) > 3 * _LONGEST:
            self._dropped += len(self.entries)
            self.entries.clear()

    def changed(self, position: int) -> set[T]:
        """Returns the buckets that changed since the log stood at `position`; raises Corrupt where it was emptied since then, as who keeps
        positions must drop them with `trim`.
        """
        if position < self._dropped:
            raise Corrupt(f"the log of changes reaches back to {self._dropped}, not to {position}", reason="ChangesForgotten")
        return set(self.entries[position - self._dropped :: 3])

    def moved(self, position: int) -> dict[tuple[T, float], int] | None:
        """Returns by (bucket, end) by how many more nodes are held until then than when the log stood at `position`; some may be 0, for
        free nodes that came or went.

        None: the log was emptied since and no longer reaches back so far.
        """
        if position < self._dropped:
            return None
        at, found = position - self._dropped, dict[tuple[T, float], int]()
        for bucket, end, by in zip(self.entries[at::3], self.entries[at + 1 :: 3], self.entries[at + 2 :: 3], strict=True):
            found[bucket, end] = found.get((bucket, end), 0) + by
        return found
