"""Remembers which attempts the heartbeats of nodes report as running, and when each was last reported."""

from __future__ import annotations

from lattice.daemon.clock import Clock
from lattice.errors import Rejected
from lattice.ledger.reports import ENDING, RUNNING, NodeReport
from lattice.units import parse_time

KEPT_SECONDS = 3600.0
"""Time after the last report until an attempt is dropped: it is settled by then, or its end came from a node that was away."""
PRUNED_EVERY = 60.0


class Running:
    """The last time, by attempt, that a node's heartbeat named the attempt as running; `Settlement` bounds ends by it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, int], float] = {}
        self._pruned = clock.monotonic()

    def hear(self, report: NodeReport, renewed: str | None) -> None:
        """Notes the attempts that a heartbeat names as running or ending, at the time `renewed` (RFC 3339) that the node wrote it.

        A heartbeat that is read late, after a pause or a lost watch, proves no later work. No time, or one to come: it is of now.
        """
        now = self._clock.now()
        running = [(row.uid, row.attempt) for row in report.rows if row.state in (RUNNING, ENDING)]
        if not running:
            return
        at = min(now, _moment(renewed, now))
        for key in running:
            self._heard[key] = max(at, self._heard.get(key, 0.0))
        self._prune(now)

    def _prune(self, now: float) -> None:
        """Drops attempts that no node has named for a long time."""
        if self._clock.monotonic() - self._pruned > PRUNED_EVERY:
            self._pruned = self._clock.monotonic()
            self._heard = {key: at for key, at in self._heard.items() if now - at < KEPT_SECONDS}

    def last(self, uid: str, attempt: int) -> float:
        """Returns when a node last reported the attempt as running, seconds since the epoch.

        0: never since this process began, or longer than an hour ago.
        """
        return self._heard.get((uid, attempt), 0.0)


def _moment(text: str | None, unknown: float) -> float:
    """Returns a time in seconds since the epoch; `unknown` where there is none, or it is no time."""
    try:
        return parse_time(text) if text else unknown
    except Rejected:
        return unknown
