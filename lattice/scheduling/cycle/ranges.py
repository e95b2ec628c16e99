"""Gives more nodes to work that asked for a range, after every vcluster has had its cycle and before the ledger is written.

A cycle places such work on its least number of nodes. Where no work is left that waits for the same nodes, each gets more of the
free ones, in the order in which they were placed: none that delays a reservation, within quota and share, and at most a third of
what is free, since the next candidate would wait for the rest (decision "elastic node ranges").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.quota.gates import Blocked
from lattice.scheduling.cluster.placement import nodes_of
from lattice.scheduling.cycle.equivalence import EquivalenceClass, EquivalenceClasses
from lattice.scheduling.cycle.gates import headroom
from lattice.scheduling.cycle.power_fit import NoFit
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.quota_shares import Share

RANGES: Final = "(ranges)"
"""The name under which the decision is recorded instead of a vcluster's; no vcluster can have it."""


def asks_for_more(outcome: Outcome) -> bool:
    """Tells whether an outcome places a candidate on fewer nodes than its maximum."""
    return isinstance(outcome, Placed) and len(outcome.nodes) < outcome.candidate.maximum


LEFT: Final = 3
"""One in so many free nodes goes to a range. (With all of them work beside `1-64` waited 22 % longer than beside `1`, with half of
them 7 %, with a third 4.8 %: `lattice-dev bench fairness`.)"""


def extended(state: ClusterState, candidates: Sequence[Candidate], now: float) -> list[Placed]:
    """Claims more nodes in `state` for candidates that asked for a range; returns those that got some, each with all of its nodes.

    `candidates`: those placed in this round, not committed to the ledger yet, in the order in which they were placed. One that has
    borrowed nodes, or for whose home nodes other work waits (`state.waiting`), keeps what it has.
    """
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
    """Returns the name of the vcluster whose home nodes its work runs on; empty: the nodes that are at home nowhere."""
    return policy.name if policy.home else ""


def _most(state: ClusterState, eq_classes: EquivalenceClasses, candidate: Candidate) -> tuple[int, ...]:
    """Returns the home nodes (indices) that a candidate may have now, as many as possible; the caller has freed those that it had.

    Beyond its minimum it gets a third of the free nodes at most. They may be no more than it had: the caller compares. Empty: none are
    found, or a quota refuses them.
    """
    share = state.quota_usage.shares.share(candidate) if state.quota_usage is not None else Share()
    if isinstance(share, Blocked):
        return ()
    eq_class = EquivalenceClass(
        eq_classes, (candidate.need, candidate.topology, candidate.conformance, candidate.reservation, None, share.classes)
    )
    idle = candidate.minimum + (eq_class.pool.whole.total - candidate.minimum) // LEFT
    left = min(headroom(state, eq_classes.policy, candidate.tenant, candidate.user).nodes, share.nodes, candidate.maximum, idle)
    fit = eq_class.fit(candidate, state.occupancy(candidate), left, retry=True, most=left)
    if isinstance(fit, NoFit):
        return ()
    if state.quota_usage is not None and state.quota_usage.shares.refuses(candidate, fit.counts) is not None:
        return ()
    return nodes_of(fit.counts, fit.pool, split=bool(state.node_cache.masks))
