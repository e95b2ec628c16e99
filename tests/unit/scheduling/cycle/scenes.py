"""A cluster state of a few nodes, and what a cycle decides on it."""

from __future__ import annotations

from typing import Any

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.policy import (
    Policy,
)  # fmt: skip
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount

HOUR = 3600.0


def scene_of(nodes: list[NodeFacts], *policies: Policy, **fields: Any) -> ClusterState:
    node_cache = NodeCache()
    for facts in nodes:
        node_cache.put(facts)
    named = {policy.name: policy for policy in policies or (Policy("hpc"),)}
    return ClusterState(node_cache, {"physics": TenantAccount()}, named, start_allowance=0.0, **fields)


def decided(state: ClusterState, *jobs: Candidate, vcluster: str = "hpc", now: float = 0.0) -> dict[str, Outcome]:
    found = {outcome.candidate.uid: outcome for outcome in decide(state, vcluster, jobs, now)}
    state.validate()
    return found


def waiting(outcome: Outcome) -> Waiting:
    assert isinstance(outcome, Waiting), outcome
    return outcome


def placed(outcome: Outcome) -> tuple[int, ...]:
    assert isinstance(outcome, Placed), outcome
    return outcome.nodes
