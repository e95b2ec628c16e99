"""The reasons that reservation windows give a candidate to wait: its own window, or one of others on free nodes."""

from __future__ import annotations

from typing import Final

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cycle.equivalence import EquivalenceClass
from lattice.scheduling.cycle.reason_cache import ReasonAndMessage, ReasonCache
from lattice.scheduling.cycle.wording import count_nodes, minutes
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_duration, format_time

MOST_TRIED: Final = 8
"""Most walltimes tried to find one that a sentence can recommend."""


class WindowReasons:
    """Finds the reasons for waiting of one cycle that reservation windows give; `now`: the cycle's time, seconds since the epoch."""

    def __init__(self, state: ClusterState, profile: AvailabilityProfile, cache: ReasonCache, now: float) -> None:
        self._state, self._profile, self._cache, self._now = state, profile, cache, now

    def outside_reservation(self, candidate: Candidate, eq_class: EquivalenceClass) -> ReasonAndMessage | None:
        """Returns the reason why the Reservation that a candidate names cannot take it now: its next window is to come, ends before the
        walltime, or has too few usable nodes that fit; None where it can, or none is named.

        The Reservation must have a window that is not over: the gate `admission` has refused the candidate otherwise.
        """
        name = candidate.reservation
        if not name:
            return None
        window = next(window for window in self._state.windows if window.name == name and window.end > self._now)
        if window.start > self._now:
            return "ReservedNodes", f'reservation "{name}" begins {format_time(window.start)}'
        longest = window.end - self._now - candidate.grace - self._state.start_allowance
        if candidate.walltime is None or candidate.walltime > longest:
            asked = "no walltime" if candidate.walltime is None else f"walltime {format_duration(candidate.walltime)}"
            left = f"at most {minutes(longest)} starts now" if longest >= 60 else "nothing starts in it any more"
            return "ReservedNodes", f'{asked} goes beyond the end of reservation "{name}" at {format_time(window.end)}; {left}'
        inside = sum(
            1 for bucket in eq_class.pool.buckets if window.nodes in bucket.key.marks for _ in range(bucket.usable)
        )  # fmt: skip
        if inside < candidate.minimum:
            return "ReservedNodes", f'needs {count_nodes(candidate.minimum)}; reservation "{name}" has {inside} usable that fit'
        return None

    def crossed(self, candidate: Candidate, eq_class: EquivalenceClass, outside: FreeCounts) -> ReasonAndMessage:
        """Returns the reason of a candidate that a reservation window keeps off free nodes; there must be such a window.

        The sentence names the longest walltime with which it would start now, if one is found, or until when the window lasts.
        `outside`: the free nodes that no window closes to the candidate.
        """
        first, starts = self._cache.once("windows", (eq_class, outside), lambda: self._windows_before(candidate, eq_class))
        by_name = {window.name: window for window in self._state.windows}
        what = _what(by_name.get(first.name), first.name, candidate)
        asked = "no walltime" if candidate.walltime is None else f"walltime {format_duration(candidate.walltime)}"
        if first.start <= self._now:
            free = f"{outside.whole.total} of the {eq_class.pool.whole.total} free that fit"
            message = f"needs {count_nodes(candidate.minimum)}; {free} are outside {what}"
            return "ReservedNodes", f"{message}, which lasts until {format_time(first.end)}"
        message = f"{asked} crosses {what} at {format_time(first.start)}"
        key = (eq_class, outside, candidate.minimum, candidate.grace)
        shorter = self._cache.once("shorter", key, lambda: self._shorter(candidate, eq_class, starts))
        return "ReservedNodes", f"{message}; a walltime of at most {minutes(shorter)} starts now" if shorter is not None else message

    def _windows_before(self, candidate: Candidate, eq_class: EquivalenceClass) -> tuple[ReservationWindow, list[float]]:
        """Returns the earliest window that keeps a candidate off free nodes, and the starts of all such windows, latest first."""
        found = [
            window
            for bucket in eq_class.pool.buckets
            if bucket.free
            and (window := self._profile.windows.closed(bucket, self._now, self._end(candidate), candidate.reservation)) is not None
        ]
        return min(found, key=lambda window: (window.start, window.name)), sorted({window.start for window in found}, reverse=True)

    def _shorter(self, candidate: Candidate, eq_class: EquivalenceClass, starts: list[float]) -> float | None:
        """Returns the longest walltime (whole minutes, in seconds) with which the candidate could start now and end before one of the eight
        latest `starts`; None: none of a minute or more.
        """
        extra = candidate.grace + self._state.start_allowance
        for start in starts[:MOST_TRIED]:
            walltime = (start - self._now - extra) // 60 * 60
            if walltime >= 60 and eq_class.choice.fits(eq_class.now_pool(walltime + extra), candidate.minimum):
                return walltime
        return None

    def wake(self, candidate: Candidate) -> float | None:
        """Returns when the next window of the Reservation that a candidate names begins, seconds since the epoch; None: none is to come."""
        if not candidate.reservation:
            return None
        starts = [window.start for window in self._state.windows if window.name == candidate.reservation and window.start > self._now]
        return min(starts, default=None)

    def _end(self, candidate: Candidate) -> float:
        """Returns when a candidate's nodes would come free at the latest if it started now, seconds since the epoch."""
        return self._now + self._state.occupancy(candidate)


def _what(window: ReservationWindow | None, name: str, candidate: Candidate) -> str:
    """Names a window for the owner of a candidate: by name where it is a maintenance or admits him, else "a reservation of others"."""
    if window is not None and window.maintenance:
        return f"maintenance {name}"
    return f"reservation {name}" if window is None or window.admits(candidate) else "a reservation of others"
