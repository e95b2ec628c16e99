"""The reasons for waiting that one cycle has found, kept until a node or a reservation changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lattice.scheduling.cycle.equivalence import EquivalenceClass, RequestShape
from lattice.scheduling.cycle.reservations import CycleReservations

ReasonAndMessage = tuple[str, str]
_T = TypeVar("_T")


class ReasonCache:
    """The reasons for waiting that one cycle has found, by request shape; a placement or a change of reservations voids them."""

    __slots__ = ("_by_free", "_by_shape", "_epoch", "_found", "_never", "_reservations")

    def __init__(self, reservations: CycleReservations) -> None:
        self._reservations = reservations
        self._epoch = reservations.epoch
        self._by_shape: dict[RequestShape, ReasonAndMessage] = {}
        self._found: dict[tuple[object, ...], Any] = {}
        self._by_free: dict[tuple[EquivalenceClass, int], tuple[int, ReasonAndMessage]] = {}
        self._never: dict[RequestShape, ReasonAndMessage | None] = {}

    def current(self) -> dict[RequestShape, ReasonAndMessage]:
        """Returns the reasons found since the last placement or change of reservations, by request shape.

        It is the cache itself, for the caller to add to; the next placement or change begins another.
        """
        if self._epoch != self._reservations.epoch:
            self._epoch = self._reservations.epoch
            self._by_shape.clear()
            self._found.clear()
        return self._by_shape

    def once(self, what: str, key: tuple[object, ...], find: Callable[[], _T]) -> _T:
        """Returns the result of `find`, which it calls once for each pair of `what` and `key` until nodes or reservations change."""
        self.current()
        full = (what, *key)
        if full not in self._found:
            self._found[full] = find()
        found: _T = self._found[full]
        return found

    def few_free(self, eq_class: EquivalenceClass, wanted: int, free: int) -> ReasonAndMessage | None:
        """Returns the kept reason of a class for which `wanted` nodes were too many when `free` were free; None: none is kept for
        this number.

        Such a reason depends on free nodes alone and stays true when reservations change.
        """
        known = self._by_free.get((eq_class, wanted))
        return known[1] if known is not None and known[0] == free else None

    def keep_few_free(self, eq_class: EquivalenceClass, wanted: int, free: int, found: ReasonAndMessage) -> None:
        """Stores the reason why a candidate did not get `wanted` nodes of a class while `free` were free, for `few_free` to return."""
        self._by_free[eq_class, wanted] = free, found

    def never(self, shape: RequestShape, find: Callable[[], ReasonAndMessage | None]) -> ReasonAndMessage | None:
        """Returns the reason why a shape could not start even if nothing held nodes; None where it could.

        Calls `find` for it once in a cycle, whatever changes meanwhile.
        """
        if shape not in self._never:
            self._never[shape] = find()
        return self._never[shape]
