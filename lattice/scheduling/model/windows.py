"""Windows of Reservations: nodes that are set aside for a time."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.scheduling.model.work import Candidate


@dataclass(frozen=True, slots=True)
class ReservationWindow:
    """One window of a Reservation: its nodes are set aside in [start, end), seconds since the epoch.

    Work may use the nodes in that time if it names the window's Reservation (`Candidate.reservation`) and is admitted by user,
    tenant or vcluster: anybody where all three are empty, nobody in a maintenance.
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
        """Tells whether the candidate's user, tenant or vcluster, any one of them, is named by the window; where it names none at all,
        anybody is admitted, in a maintenance nobody.

        Neither the time nor the Reservation that the candidate names is checked.
        """
        if self.maintenance:
            return False
        anybody = not (self.users or self.tenants or self.vclusters)
        return anybody or candidate.user in self.users or candidate.tenant in self.tenants or candidate.vcluster in self.vclusters

    def overlaps(self, start: float, end: float) -> bool:
        """Tells whether the window and [start, end) share any time."""
        return self.start < end and start < self.end
