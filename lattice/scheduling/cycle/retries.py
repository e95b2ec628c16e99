"""Tells which work of a vcluster need not be evaluated again: it found no nodes in the last cycle, and nothing could give it any since.

In a cycle that only newcomers have caused, they alone are evaluated: reservations bind them, and they take nodes from nobody who waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lattice.scheduling.cycle.equivalence import EquivalenceClasses
from lattice.scheduling.cycle.gates import GateChain
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.unschedulable import Unschedulable

_NOBODY: Final[Mapping[str, Candidate]] = {}


class Retries:
    """The unschedulable work of one vcluster, from one cycle to the next."""

    __slots__ = ("_classes", "_gates", "_now", "_queue", "_reservations", "_state", "_vcluster")

    def __init__(
        self, state: ClusterState, queue: PendingQueue, reservations: CycleReservations, classes: EquivalenceClasses, gates: GateChain
    ) -> None:
        self._state, self._queue, self._reservations, self._classes, self._gates = state, queue, reservations, classes, gates
        self._vcluster, self._now = classes.policy.name, classes.now

    def needless(self) -> Mapping[str, Candidate]:
        """Returns, by uid, the candidates that need no evaluation since it would end as in the last cycle; empty where that is not sure.

        Takes what the last cycle noted of them out of the cluster state; where it is sure, also confirms all reservations of that cycle.
        """
        last = self._state.unschedulable.pop(self._vcluster, None)
        if last is None or last.at > self._now or last.opportunities != self._state.opportunities(self._now):
            return _NOBODY
        if self._classes.borrowing or not self._reservations.firm or not self._is_open():
            return _NOBODY
        newcomers = [one for one in self._queue.candidates if last.candidates.get(one.uid) is not one]
        if not self._reservations.bind(newcomers):
            return _NOBODY
        coming = {one.uid for one in newcomers}
        return {one.uid: one for one in self._queue.candidates if one.uid not in coming}

    def keep_unschedulable(self) -> None:
        """Stores the candidates that hold no nodes after this cycle for the next one, provided that nodes are all that they wait for; else
        stores nothing.
        """
        if self._reservations.lasting and self._is_open():
            holders = self._state.holders
            waiting = {one.uid: one for one in self._queue.candidates if one.uid not in holders}
            self._state.keep_unschedulable(self._vcluster, Unschedulable(waiting, self._now, self._state.opportunities(self._now)))

    def _is_open(self) -> bool:
        """Tells whether nothing but nodes keeps any candidate waiting."""
        queue, unlimited = self._queue, self._gates.unlimited
        return max(queue.opens, default=0.0) <= self._now and all(unlimited[person] for person in set(queue.people))
