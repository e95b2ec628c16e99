"""Converts free nodes and waiting work into jobs and buckets for the solver.

Formulated before a cycle places anything, or after it with the nodes that it placed work on, the problem bounds what that cycle could
have placed at best: the metric "distance from the bound" and `lattice plan --optimal` compare the cycle's value with its `upper_bound`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.policy import Limits
from lattice.scheduling.model.strategies import lenders_for, strategy_of
from lattice.scheduling.model.work import REQUIRED, Candidate
from lattice.scheduling.optimum.solver import Bucket, Job
from lattice.scheduling.state.budget_gate import budget
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount


@dataclass(frozen=True, slots=True)
class Formulation:
    """One cycle's placement problem for the solver: jobs in the order of the candidates, and the buckets that jobs name by place."""

    jobs: tuple[Job, ...]
    buckets: tuple[Bucket, ...]


def formulate(
    node_cache: NodeCache, candidates: Sequence[Candidate], scores: Sequence[float], *, home: str = "", lenders: Collection[str] = (),
    given: Iterable[int] = (),
) -> Formulation:  # fmt: skip
    """Returns the placement problem of the candidates of one vcluster on the free nodes at `home`, and on those of lenders.

    A job is worth its score × nodes. `given` are nodes that the cycle has placed work on already: they count as free here. Leave
    out work that waits for something else than nodes. A range of nodes counts with as many as the job could have alone, at most its
    maximum, of any fingerprint: so `upper_bound` holds for every size; `best_plan` is exact without ranges only.
    """
    homes = {home, *lenders}
    more = Counter(id(node_cache.table.of_node[node]) for node in given)
    mine = [bucket for bucket in node_cache.buckets.values() if bucket.key.home in homes and (bucket.free or more[id(bucket)])]
    mine.sort(key=lambda bucket: bucket.order)
    buckets = tuple(Bucket(bucket.fingerprint, bucket.group, len(bucket.free) + more[id(bucket)]) for bucket in mine)
    eligible: dict[Need, frozenset[int]] = {}
    jobs = []
    for candidate, score in zip(candidates, scores, strict=True):
        need = candidate.need
        if need not in eligible:
            eligible[need] = frozenset(place for place, bucket in enumerate(mine) if bucket.admitted_by(need))
        nodes, alike = candidate.minimum, candidate.conformance == REQUIRED
        if candidate.maximum > nodes:
            could = sum(buckets[place].free for place in eligible[need])
            nodes, alike = max(nodes, min(candidate.maximum, could)), False
        jobs.append(Job(score * nodes, nodes, eligible[need], alike=alike))
    return Formulation(tuple(jobs), buckets)


def unknown_rules(state: ClusterState, vcluster: str, candidates: Iterable[Candidate], now: float) -> list[str]:
    """Returns words for the rules in force that the placement problem does not contain.

    The best plan may break them; the upper bound holds all the same.
    """
    candidates = list(candidates)
    policy, accounts = state.policy(vcluster), state.accounts
    limited = any(_is_limited(accounts[tenant]) for tenant in {one.tenant for one in candidates} if tenant in accounts)
    broke = any(budget(state.exhausted, one) is not None for one in candidates)
    known = {
        "nodes that reservations and maintenance keep": any(window.end > now for window in state.windows),
        "nodes that are promised to work that waits": any(state.backfill_reservations.values()),
        "that a range gets at most a third of what is free beyond its least number": any(one.maximum > one.minimum for one in candidates),
        "strict order of submission": strategy_of(policy).strict,
        "the power budget": state.power.limit is not None,
        "quotas, limits and budgets": limited or policy.limits != Limits() or broke or state.quota_usage is not None,
        "terms of lending": any(lenders_for(state.policies, vcluster, 0.0)),
    }
    return [rule for rule, in_force in known.items() if in_force]


def _is_limited(account: TenantAccount) -> bool:
    """Tells whether a tenant has any hard limit; its use is none."""
    limits = (account.max_nodes, account.max_allocations, account.user_max_nodes, account.user_max_allocations)
    return any(limit is not None for limit in limits)


def value_of(outcomes: Iterable[object]) -> float:
    """Returns the value of a cycle's outcomes: score × nodes, summed over the placed candidates; those without a score count 0."""
    return sum(each.score.total * len(each.nodes) for each in outcomes if isinstance(each, Placed) and each.score is not None)
