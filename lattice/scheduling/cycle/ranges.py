"""More nodes for work that asked for a range, after every vcluster has had its turn and before anything is claimed.

A cycle places such work on the fewest nodes that it takes. Where nobody is left that waits for the same nodes, each gets more of
those that are still free, in the order in which they were placed: none that delays a reservation, within quota and share, and at most a
third of what is free, since who comes next would wait for the rest (decision "elastic node ranges").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.quota.gates import Blocked
from lattice.scheduling.cluster.placement import nodes_of
from lattice.scheduling.cycle.equivalence import EquivalenceClass, EquivalenceClasses
from lattice.scheduling.cycle.gates import headroom
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.quota_usage import Share

RANGES: Final = "(ranges)"
"""Stands for the name of a vcluster where the decision is recorded; no vcluster can have it."""


def asks_for_more(outcome: Outcome) -> bool:
    """Whether it was placed on fewer nodes than it would take."""
    return isinstance(outcome, Placed) and len(outcome.nodes) < outcome.candidate.maximum


LEFT: Final = 3
"""One in so many free nodes goes to a range. (With all of them work beside `1-64` waited 22 % longer than beside `1`, with half of
them 7 %, with a third 4.8 %: `lattice-dev bench fairness`.)"""


def extended(state: ClusterState, candidates: Sequence[Candidate], now: float) -> list[Placed]:
    """Those of the candidates, all of them placed and not yet claimed, that get more nodes: on all of their nodes."""
    contested = {_home(state.policy(name)) for name in state.waiting}
    found: list[Placed] = []
    profile = state.profile(now)
    eq_classes: dict[str, EquivalenceClasses] = {}
    for candidate in candidates:
        holder = state.holders.get(candidate.uid)
        policy = state.policy(candidate.vcluster)
        if holder is None or holder.borrowed or _home(policy) in contested:
            continue
        if candidate.vcluster not in eq_classes:
            eq_classes[candidate.vcluster] = EquivalenceClasses(state, policy, strategy_of(policy), profile, PendingQueue(), now)
        before = holder.nodes
        state.drop_holder(candidate.uid)
        nodes = _most(state, eq_classes[candidate.vcluster], candidate)
        if len(nodes) > len(before):
            found.append(Placed(candidate, nodes))
        else:
            nodes = before
        state.claim(candidate, nodes, now)
    return found


def _home(policy: Policy) -> str:
    """Whose nodes its work runs on; empty: those at home nowhere."""
    return policy.name if policy.home else ""


def _most(state: ClusterState, eq_classes: EquivalenceClasses, candidate: Candidate) -> tuple[int, ...]:
    """As many nodes at home as it may have now; none where it is to keep those that it was given."""
    share = state.quota_usage.share(candidate) if state.quota_usage is not None else Share()
    if isinstance(share, Blocked):
        return ()
    eq_class = EquivalenceClass(
        eq_classes, (candidate.need, candidate.topology, candidate.conformance, candidate.reservation, None, share.classes)
    )
    idle = candidate.minimum + (eq_class.pool.whole.total - candidate.minimum) // LEFT
    left = min(headroom(state, eq_classes.policy, candidate.tenant, candidate.user).nodes, share.nodes, candidate.maximum, idle)
    counts = eq_class.start(candidate, state.occupancy(candidate), left, retry=True, most=left)
    if counts is None or (state.quota_usage is not None and state.quota_usage.refuses(candidate, counts) is not None):
        return ()
    return nodes_of(counts, eq_class.taken_from, split=bool(state.node_cache.masks))
