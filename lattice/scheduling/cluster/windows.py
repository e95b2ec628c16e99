"""The windows of Reservations as the availability profile asks about them: which of them close a bucket to work, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lattice.scheduling.cluster.node_cache import Bucket
from lattice.scheduling.model.windows import ReservationWindow


class Windows:
    """The windows that are not over, in order; the profile replaces it as a whole when they change."""

    def __init__(self, windows: Iterable[ReservationWindow] = ()) -> None:
        self.ordered = tuple(windows)
        self._of_marks: dict[frozenset[int], tuple[ReservationWindow, ...]] = {}
        """By the node sets that a bucket lies in: the windows on its nodes."""

    def on_bucket(self, bucket: Bucket) -> tuple[ReservationWindow, ...]:
        """Returns the windows that contain the nodes of a bucket, in order."""
        marks = bucket.key.marks
        found = self._of_marks.get(marks)
        if found is None:
            found = self._of_marks[marks] = tuple([window for window in self.ordered if window.nodes in marks])
        return found

    def crosses(self, start: float, end: float) -> bool:
        """Tells whether any window, on whatever nodes, shares time with [start, end), seconds since the epoch."""
        return any(window.start < end and start < window.end for window in self.ordered)

    def closed(self, bucket: Bucket, start: float, end: float, reservation: str = "") -> ReservationWindow | None:
        """Returns the first window that keeps work of this Reservation (empty: of none) off a bucket in [start, end), epoch seconds.

        None: no window of another Reservation on its nodes shares time with the work.
        """
        for window in self.on_bucket(bucket):
            if window.start < end and start < window.end and window.name != reservation:
                return window
        return None

    def inside(self, bucket: Bucket, start: float, end: float, reservation: str) -> bool:
        """Tells whether [start, end) lies wholly in a window of the Reservation `reservation` on the nodes of a bucket."""
        return any(window.name == reservation and window.start <= start and end <= window.end for window in self.on_bucket(bucket))

    def open_for(self, bucket: Bucket, start: float, end: float, reservation: str) -> bool:
        """Tells whether work of this Reservation (empty: of none) may hold nodes of a bucket throughout [start, end).

        Work that names a Reservation must lie wholly in one of its windows.
        """
        if self.closed(bucket, start, end, reservation) is not None:
            return False
        return not reservation or self.inside(bucket, start, end, reservation)

    def edges(self, members: Mapping[Bucket, int]) -> set[float]:
        """Returns the times, past ones too, at which windows on any of these buckets begin or end, seconds since the epoch."""
        marks = frozenset[int]().union(*{bucket.key.marks for bucket in members}) if self.ordered else ()
        return {time for window in self.ordered if window.nodes in marks for time in (window.start, window.end)}
