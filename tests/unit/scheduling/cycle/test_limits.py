"""Limits of a vcluster, whichever are set: no work passes one, and none waits for one that it would not pass."""

from __future__ import annotations

from dataclasses import asdict, fields

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import Limits, Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import node
from tests.unit.scheduling.moments import NOW, OWNERS, holding, pending

NODES = 12


def counts_for(field: str, work: Candidate | NodeHolder, candidate: Candidate) -> bool:
    """Whether work counts for the limit of this name, as it holds for a candidate."""
    if work.vcluster != candidate.vcluster:
        return False
    if field.endswith("per_user"):
        return work.user == candidate.user
    return not field.endswith("per_tenant") or work.tenant == candidate.tenant


def passed(limits: Limits, candidate: Candidate, holders: list[NodeHolder]) -> list[str]:
    """The limits that one more allocation like this would pass."""
    found = []
    for field, limit in asdict(limits).items():
        counted = [holder for holder in holders if counts_for(field, holder, candidate)]
        held = sum(len(holder.nodes) for holder in counted) if "nodes" in field else len(counted)
        if limit is not None and held + (candidate.minimum if "nodes" in field else 1) > limit:
            found.append(field)
    return found


@st.composite
def limited(draw: st.DrawFn) -> tuple[Limits, list[NodeHolder], list[Candidate]]:
    """One or two limits that are near, somebody's work on nodes, and work of four people that waits in two vclusters."""
    names = draw(st.lists(st.sampled_from([each.name for each in fields(Limits)]), min_size=1, max_size=2, unique=True))
    limits = Limits(**{name: draw(st.integers(0, 6)) for name in names})
    vclusters = st.sampled_from(["hpc", "hpc", "ml"])
    holders = [
        holding(100 + index, (index,), draw(st.integers(0, 3)), vcluster=draw(vclusters)) for index in range(draw(st.integers(0, 3)))
    ]
    queue = [
        pending(number, draw(st.integers(0, 3)), nodes=draw(st.integers(1, 3)), vcluster=draw(vclusters))
        for number in range(draw(st.integers(1, 10)))
    ]
    return limits, holders, queue


@settings(max_examples=200, deadline=None)
@given(limited())
def test_no_limit_is_passed_and_nothing_waits_for_one_that_has_room(drawn: tuple[Limits, list[NodeHolder], list[Candidate]]) -> None:
    limits, holders, queue = drawn
    node_cache = NodeCache()
    for index in range(NODES):
        node_cache.put(node(index, f"g{index // 4}"))
    policies = {"hpc": Policy("hpc", limits=limits), "ml": Policy("ml")}
    state = ClusterState(node_cache, {tenant: TenantAccount() for _, tenant in OWNERS}, policies)
    for holder in holders:
        state.put_holder(holder)
    for name, policy in policies.items():
        waiting: list[Waiting] = []
        for outcome in decide(state, name, [one for one in queue if one.vcluster == name], NOW):
            before = [holder for holder in state.holders.values() if holder.uid != outcome.candidate.uid]
            if isinstance(outcome, Placed):
                assert passed(policy.limits, outcome.candidate, before) == []
            else:
                waiting.append(outcome)
        for outcome in waiting:  # what is held has only grown since
            full = passed(policy.limits, outcome.candidate, list(state.holders.values()))
            if outcome.reason == "WaitingForQuotaHeadroom":
                assert full, outcome.message
            else:
                assert outcome.reason in ("WaitingForNodes", "BehindHigherPriority"), outcome.reason
                assert len(node_cache.taken) + outcome.candidate.minimum > NODES or state.backfill_reservations[name]
    state.validate()
