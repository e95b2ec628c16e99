"""Finds nodes for the candidates of one cycle, and claims them."""

from __future__ import annotations

from lattice.scheduling.cluster.placement import nodes_of
from lattice.scheduling.cycle.equivalence import EquivalenceClass, EquivalenceClasses, RequestShape
from lattice.scheduling.cycle.gates import Admission, beyond_share
from lattice.scheduling.cycle.power_fit import NO_NODES, Fit, NoFit
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState


class Placer:
    """Finds and claims nodes for the candidates of one cycle; a request shape that failed once in the cycle is not searched again."""

    __slots__ = ("_now", "_state", "classes")

    def __init__(self, state: ClusterState, classes: EquivalenceClasses, now: float) -> None:
        self._state, self._now = state, now
        self.classes = classes

    def shape(self, number: int, candidate: Candidate, admission: Admission) -> RequestShape:
        """Returns the request shape of a candidate on the nodes that the gates leave to it; `number`: that of the shape in the
        pending queue.
        """
        shape = self.classes.shapes.get(number) if admission.classes is None else None
        return shape or self.classes.shape(number, candidate, admission.classes)

    def fit(self, candidate: Candidate, shape: RequestShape, admission: Admission, *, retry: bool = False) -> Fit | NoFit:
        """Returns nodes that a candidate may start on now without delaying a reservation, else NoFit (with `watts` where power lacks);
        claims none.

        Notes in the shape whether nodes were missing. `retry`: searches even where the shape has failed in this cycle; else that gives
        NoFit at once.
        """
        if shape.failed and not retry:
            return NO_NODES
        found = shape.eq_class.fit(candidate, shape.duration, admission.nodes, retry=retry)
        shape.failed = found is NO_NODES
        return found

    def refusal(self, candidate: Candidate, fit: Fit) -> Waiting | None:
        """Returns Waiting where the quota tree does not admit just the nodes of this fit; None where it does."""
        quota_usage = self._state.quota_usage
        blocked = quota_usage.shares.refuses(candidate, fit.counts) if quota_usage is not None else None
        return beyond_share(candidate, blocked) if blocked is not None else None

    def claim(self, candidate: Candidate, eq_class: EquivalenceClass, fit: Fit) -> tuple[int, ...]:
        """Claims the nodes of a fit for a candidate in the cluster state, before the ledger knows; returns their indices, ascending."""
        node_cache = self._state.node_cache
        split = bool(node_cache.masks)
        nodes = nodes_of(fit.counts, fit.pool, split=split)
        borrowed: tuple[int, ...] = ()
        if eq_class.borrows:
            known, home = node_cache.nodes, eq_class.choice.key.home
            borrowed = tuple(node for node in nodes if known[node].home != home)
        self._state.claim(candidate, nodes, self._now, borrowed, None if split else fit.counts)
        return nodes
