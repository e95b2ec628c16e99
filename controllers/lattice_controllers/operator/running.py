"""Keeps the attempts that the heartbeats of nodes report as running, and when they last did."""

from __future__ import annotations

from lattice.daemon.clock import Clock
from lattice.ledger.reports import ENDING, RUNNING, NodeReport

KEPT_SECONDS = 3600.0
"""So long after its last word an attempt is settled, or its end came from a node that was away."""
PRUNED_EVERY = 60.0


class Running:
    """By attempt, the time at which this process saw a node say that it runs it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, int], float] = {}
        self._pruned = clock.monotonic()

    def hear(self, report: NodeReport) -> None:
        """Notes the attempts that a fresh heartbeat names as running."""
        now = self._clock.now()
        for row in report.rows:
            if row.state in (RUNNING, ENDING):
                self._heard[(row.uid, row.attempt)] = now
        if self._clock.monotonic() - self._pruned > PRUNED_EVERY:
            self._pruned = self._clock.monotonic()
            self._heard = {key: at for key, at in self._heard.items() if now - at < KEPT_SECONDS}

    def last(self, uid: str, attempt: int) -> float:
        """Returns seconds since the epoch at which it was last heard to run; 0: not while this process looked on."""
        return self._heard.get((uid, attempt), 0.0)
