"""Windows of Reservations: nodes that are set aside for a time."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.scheduling.model.work import Candidate


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """Nodes that are reserved for a time, [start, end) in seconds since the epoch.

    Work may use the nodes in that time if it names the window (`Candidate.reservation`) and is admitted: by user, tenant or vcluster,
    anybody where all three are empty, nobody where the window is a maintenance.
    """

    name: str
    start: float
    end: float
    nodes: int
    """A bit set of node indices."""
    users: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    vclusters: frozenset[str] = frozenset()
    maintenance: bool = False
    ignore_running: bool = False

    def admits(self, candidate: Candidate) -> bool:
        """Tells whether this work may run in the window."""
        if self.maintenance:
            return False
        anybody = not (self.users or self.tenants or self.vclusters)
        return anybody or candidate.user in self.users or candidate.tenant in self.tenants or candidate.vcluster in self.vclusters

    def overlaps(self, start: float, end: float) -> bool:
        """Tells whether any part of [start, end) lies in it."""
        return self.start < end and start < self.end
