"""Events about allocations, off every hot path: noted when the informer tells, written by one task within a budget.

What happens to one allocation within a second becomes one Event, the last one, or the last warning; none where it has succeeded by
then. Beyond the budget Events are dropped and counted: they are for people who look at one object, and conditions hold what matters.
"""

from __future__ import annotations

from typing import Final

from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.kube.informer import Change
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.occurrences import Occurrence, occurrence
from lattice.models.conditions import COMPLETED
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config
from lattice_controllers.scheduler.metrics import SchedulerMetrics

SETTLE_SECONDS: Final = 1.0
PER_SECOND: Final = 5
MOST_WAITING: Final = 500
"""Allocations with an Event to write; of more none is kept."""


class Occurrences:
    """Notes what deserves an Event and writes it a second later."""

    def __init__(self, clock: Clock, announcer: Announcer, metrics: SchedulerMetrics, *, config: LastKnown[Config]) -> None:
        self._clock = clock
        self._announcer = announcer
        self._metrics = metrics
        self._config = config
        self._waiting: dict[str, tuple[Allocation, Occurrence]] = {}

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Takes in a change that the informer has seen."""
        if change.new is None or self._events() == "Off":
            return
        uid, found = change.new.metadata.uid, occurrence(change.old, change.new)
        known = self._waiting.get(uid)
        if found is None:
            if known is not None and not known[1].warning and change.new.status.phase == COMPLETED:
                del self._waiting[uid]
            return
        if not found.warning and self._events() == "Warnings":
            return
        if known is not None and known[1].warning and not found.warning:
            return
        if known is None and len(self._waiting) >= MOST_WAITING:
            self._metrics.events_dropped.inc()
            return
        self._waiting[uid] = (change.new, found)

    async def run(self) -> None:
        """Writes what was noted, a few each second, the oldest first."""
        while True:
            due = list(self._waiting)[:PER_SECOND]
            await self._clock.sleep(SETTLE_SECONDS)
            for uid in due:
                noted = self._waiting.pop(uid, None)
                if noted is None:
                    continue  # it has succeeded since
                allocation, told = noted
                self._metrics.writes.labels("event").inc()
                await self._announcer.announce(
                    ALLOCATIONS, allocation.metadata, told.reason, told.note, action=told.action, warning=told.warning
                )

    def _events(self) -> str:
        config = self._config.object
        return config.spec.scheduling.events if config is not None else "All"
