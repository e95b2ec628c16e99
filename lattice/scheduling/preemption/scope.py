"""The nodes that a preemption could give to a waiting candidate: those of its own vcluster, and idle ones that it may borrow.

Work on nodes of other vclusters is never cleared. Nodes that are reserved for others while the candidate would run are left out, and so
are free nodes that back a reservation of earlier work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cycle.lent_nodes import Lending
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.preemption.victims import own_nodes
from lattice.scheduling.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class PreemptionScope:
    """A copy of the nodes and rules that a preemption for one candidate may use.

    `eligible` and `free` read every node, so they may run in another thread beside the cycles. `taken`: the held nodes (indices).
    """

    candidate: Candidate
    policy: Policy
    nodes: Mapping[int, NodeFacts]
    taken: frozenset[int]
    barred: frozenset[int]
    """Nodes in windows of others while the candidate would run, and free ones kept for backfill reservations."""
    lenders: frozenset[str]
    """The vclusters that lend to the candidate for its whole walltime."""
    most_borrowed: int
    """How many more nodes the candidate's vcluster may borrow."""

    def eligible(self) -> list[int]:
        """Returns the indices of the nodes that the candidate could have: own ones, free or held, and idle ones of lenders, the lowest, as
        many as its vcluster may still borrow; without barred ones, ascending.
        """
        own = own_nodes(self.candidate, self.policy, self.nodes)
        return sorted((own | set(self._idle())) - self.barred)

    def free(self, eligible: list[int]) -> list[int]:
        """Returns those of the eligible nodes that are free."""
        return [index for index in eligible if index not in self.taken]

    def _idle(self) -> list[int]:
        """Returns idle nodes of lenders (indices, ascending) that fit the candidate, as many as its vcluster may still borrow."""
        if not self.lenders or self.most_borrowed <= 0:
            return []
        need = self.candidate.need
        idle = (
            index
            for index, facts in sorted(self.nodes.items())
            if facts.home in self.lenders and facts.usable and index not in self.taken and index not in self.barred
            and need.admits_node(facts)
        )  # fmt: skip
        return [index for index, _ in zip(idle, range(self.most_borrowed), strict=False)]


def preemption_scope(state: ClusterState, candidate: Candidate, now: float) -> PreemptionScope:
    """Returns a copy of the nodes and rules of the cluster state that a preemption for the candidate at `now` (epoch seconds) may use;
    non-preemptible work gets no lenders.

    The candidate's own backfill reservation bars no node: it is taken out of the state's profile, which begins at `now`, until
    `state.profile` is called again.
    """
    policy, node_cache = state.policy(candidate.vcluster), state.node_cache
    profile = state.profile(now)
    profile.remove(candidate.uid)
    lending = Lending(state, policy, profile, now)
    lenders = lending.lenders(candidate.walltime)
    return PreemptionScope(
        candidate=candidate,
        policy=policy,
        nodes=dict(node_cache.nodes),
        taken=frozenset(node_cache.taken),
        barred=_barred(state, profile, candidate, now),
        lenders=frozenset() if candidate.non_preemptible else lenders,
        most_borrowed=lending.borrowing_left(),
    )


def _barred(state: ClusterState, profile: AvailabilityProfile, candidate: Candidate, now: float) -> frozenset[int]:
    """Returns the nodes that reservations keep from the candidate.

    These are nodes in a window of others before the candidate would end, nodes outside its own window, and as many free ones (the
    last first) as backfill reservations need.
    """
    end = now + state.occupancy(candidate)
    name = candidate.reservation
    found: set[int] = set()
    open_ones = []
    for bucket in state.node_cache.buckets.values():
        if profile.windows.closed(bucket, now, end, name) or (name and not profile.windows.inside(bucket, now, end, name)):
            found |= bucket.members
        elif bucket.free:
            open_ones.append(bucket)
    if profile.reservations:
        for bucket, count in profile.capacities(open_ones, now, end, name).items():
            found.update(bucket.free[count:])
    return frozenset(found)
