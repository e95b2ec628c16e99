"""Writes Kubernetes Events about allocations, off every hot path: noted as the informer reports changes, written by one task.

Changes of one allocation within a second become one Event, the last one, or the last warning; none where the allocation has succeeded by
then. Beyond the budget Events are dropped and counted: conditions hold everything that matters.
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
"""Most allocations with an Event to be written; an Event of any more is dropped and counted."""


class Occurrences:
    """Notes which changes of allocations deserve an Event, and writes them a second later, five a second."""

    def __init__(self, clock: Clock, announcer: Announcer, metrics: SchedulerMetrics, *, config: LastKnown[Config]) -> None:
        self._clock = clock
        self._announcer = announcer
        self._metrics = metrics
        self._config = config
        self._waiting: dict[str, tuple[Allocation, Occurrence]] = {}

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Handles a changed Allocation: notes for `run` the Event that the change deserves, if any and if the LatticeConfig wants it.

        Beyond 500 allocations with a noted Event it is dropped and counted. That of work that has succeeded, unless a warning, is removed.
        """
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
        """Writes the noted Events until cancelled, a second after they were noted, five a second at most, the oldest first."""
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
        """Returns which Events the LatticeConfig wants: All, Warnings or Off; All without one."""
        config = self._config.object
        return config.spec.scheduling.events if config is not None else "All"
