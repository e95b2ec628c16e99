"""Shows expected starts in the status of pending work: with other writes, or by a write of their own where they moved much.

A forecast comes every few seconds for all pending work; one write for each would be most of what the API server does.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from lattice.daemon.clock import Clock
from lattice.ledger.projection import expectation, moved
from lattice.scheduling.queries.context import Expected
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.pending_work import ReconcileQueue
from lattice_controllers.scheduler.write_budget import WriteBudget

AGAIN_SECONDS: Final = 30.0
"""Least time between two writes of one allocation's expected start alone."""


class Expectations:
    """Holds the last forecast, and when each allocation's status was last written because of it.

    Allocations whose status should be written are added to `queue`; the reconciler writes them.
    """

    def __init__(
        self,
        clock: Clock,
        allocations: Mapping[str, Allocation],
        queue: ReconcileQueue,
        budget: WriteBudget,
    ) -> None:
        self.found: Mapping[str, Expected] = {}
        """The last forecast, by uid."""
        self._clock = clock
        self._allocations = allocations
        self._queue = queue
        self._budget = budget
        self._written: dict[str, float] = {}

    def accept_forecast(self, found: Mapping[str, Expected]) -> int:
        """Replaces the forecast; returns how many allocations it enqueues for a write of the expected start.

        Of those that are due, the budget decides how many: never written first, then the longest unwritten, then the soonest to start. The
        rest wait for the next forecast.
        """
        self.found = found
        self._written = {uid: when for uid, when in self._written.items() if uid in found}
        told = 0
        for uid in sorted((uid for uid in found if self.due(uid)), key=self._urgency):
            if not self._budget.try_spend():
                break
            self._queue.add(uid, late=True)
            told += 1
        return told

    def _urgency(self, uid: str) -> tuple[float, float]:
        """Returns a sort key for expectations that are due: the time of the last write, then the expected start."""
        p50 = self.found[uid].p50
        return self._written.get(uid, -inf), inf if p50 is None else p50

    def status_patch(self, uid: str) -> dict[str, Any] | None:
        """Returns the `expectedStart` part of a status patch, to be sent with the next write of the status; None: there is no forecast."""
        found = self.found.get(uid)
        return expectation(found.p50, found.p90, found.reason) if found is not None else None

    def due(self, uid: str) -> bool:
        """Tells whether an expected start deserves a write of its own: it has moved much against what the status shows, and the last write
        because of it is at least 30 s ago.

        False without a forecast or an allocation of this uid.
        """
        found, allocation = self.found.get(uid), self._allocations.get(uid)
        if found is None or allocation is None:
            return False
        if self._clock.monotonic() - self._written.get(uid, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        return moved(allocation.status.expected_start, found.p50, found.p90, found.reason, self._clock.now())

    def wrote(self, uid: str) -> None:
        """Notes that an allocation's status was written now, with its present expected start; ignored where no forecast is held."""
        if uid in self.found:
            self._written[uid] = self._clock.monotonic()
