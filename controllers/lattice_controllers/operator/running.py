"""Remembers which attempts the heartbeats of nodes report as running, and when each was last reported."""

from __future__ import annotations

from lattice.daemon.clock import Clock
from lattice.ledger.reports import ENDING, RUNNING, NodeReport

KEPT_SECONDS = 3600.0
"""Time after the last report until an attempt is dropped: it is settled by then, or its end came from a node that was away."""
PRUNED_EVERY = 60.0


class Running:
    """The last time, by attempt, that a node's heartbeat named the attempt as running; `Settlement` bounds ends by it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, int], float] = {}
        self._pruned = clock.monotonic()

    def hear(self, report: NodeReport) -> None:
        """Notes the attempts that a heartbeat just received names as running or ending."""
        now = self._clock.now()
        for row in report.rows:
            if row.state in (RUNNING, ENDING):
                self._heard[(row.uid, row.attempt)] = now
        if self._clock.monotonic() - self._pruned > PRUNED_EVERY:
            self._pruned = self._clock.monotonic()
            self._heard = {key: at for key, at in self._heard.items() if now - at < KEPT_SECONDS}

    def last(self, uid: str, attempt: int) -> float:
        """Returns when a node last reported the attempt as running, seconds since the epoch; 0: never since this process began, or long
        ago.
        """
        return self._heard.get((uid, attempt), 0.0)
