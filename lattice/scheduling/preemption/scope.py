"""Which nodes a preemption could give to one that waits: its vcluster's own, and idle ones that it may borrow.

Work on nodes of other vclusters is never cleared, nodes that are reserved for others while it would run are left out, and
so are free ones that are promised to work that comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cycle.equivalence import EquivalenceClasses
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.preemption.victims import own_nodes
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.pending_queue import PendingQueue


@dataclass(frozen=True, slots=True)
class PreemptionScope:
    """What was read of a cluster state for one candidate; `eligible` and `free` look at every node, so they may run beside the cycles."""

    candidate: Candidate
    policy: Policy
    nodes: Mapping[int, NodeFacts]
    taken: frozenset[int]
    barred: frozenset[int]
    """Nodes that are reserved for others while it would run, or free and promised."""
    lenders: frozenset[str]
    """The vclusters that lend to it for as long as it may run."""
    most_borrowed: int
    """How many nodes more its vcluster may borrow."""

    def eligible(self) -> list[int]:
        """The nodes that it could have, free or held, ascending."""
        own = own_nodes(self.candidate, self.policy, self.nodes)
        return sorted((own | set(self._idle())) - self.barred)

    def free(self, eligible: list[int]) -> list[int]:
        """Those of them that are free."""
        return [index for index in eligible if index not in self.taken]

    def _idle(self) -> list[int]:
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
    """What is to be known of the cluster state, copied; nothing of it changes."""
    policy, node_cache = state.policy(candidate.vcluster), state.node_cache
    profile = state.profile(now)
    profile.remove(candidate.uid)
    eq_classes = EquivalenceClasses(state, policy, strategy_of(policy), profile, PendingQueue(), now)
    lenders = eq_classes.lending_for(candidate.walltime)
    return PreemptionScope(
        candidate=candidate,
        policy=policy,
        nodes=dict(node_cache.nodes),
        taken=frozenset(node_cache.taken),
        barred=_barred(state, profile, candidate, now),
        lenders=frozenset() if candidate.non_preemptible else lenders,
        most_borrowed=eq_classes.borrowing_left(),
    )


def _barred(state: ClusterState, profile: AvailabilityProfile, candidate: Candidate, now: float) -> frozenset[int]:
    """Nodes in a window of others before it would end, or outside its own; free ones that are promised, the last ones first."""
    end = now + state.occupancy(candidate)
    name = candidate.reservation
    found: set[int] = set()
    open_ones = []
    for bucket in state.node_cache.buckets.values():
        if profile.closed(bucket, now, end, name) or (name and not profile.inside(bucket, now, end, name)):
            found |= bucket.members
        elif bucket.free:
            open_ones.append(bucket)
    if profile.promises:
        for bucket, count in profile.capacities(open_ones, now, end, name).items():
            found.update(bucket.free[count:])
    return frozenset(found)
