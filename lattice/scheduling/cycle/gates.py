"""What keeps an allocation from nodes, whatever is free: itself, hard quota, the quota tree, its vcluster's
limits, its reservation. In this order.

Each gate is a pure function that returns a reason and a sentence with the numbers, or None. The first that blocks gives
the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from lattice.ledger.commit import Excess, beyond
from lattice.models.reasons import BEYOND_LIMIT
from lattice.quota.gates import Blocked
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import NOTHING, ClusterState, Use
from lattice.units import format_duration

NO_LIMIT = 1 << 60


class Headroom(NamedTuple):
    """What one user of one tenant may still get in a vcluster: nodes, and allocations at all."""

    nodes: int
    starts: int


UNLIMITED: Final = Headroom(NO_LIMIT, NO_LIMIT)


def boundless(state: ClusterState, tenant: str) -> bool:
    """Whether no hard quota limits a tenant or its users."""
    account = state.accounts.get(tenant)
    return account is not None and (
        account.max_nodes is account.max_allocations is account.user_max_nodes is account.user_max_allocations is None
    )


def headroom(state: ClusterState, policy: Policy, tenant: str, user: str) -> Headroom:
    """The least that hard quota and limits leave; nothing for a tenant without an account."""
    account = state.accounts.get(tenant)
    if account is None:
        return Headroom(-1, -1)
    limits, uses, vcluster = policy.limits, state.uses, policy.name
    claimed = uses.claimed.get(tenant, NOTHING)
    whole = uses.vclusters.get(vcluster, NOTHING)
    own = uses.users.get((vcluster, user), NOTHING)
    shared = uses.tenants.get((vcluster, tenant), NOTHING)
    alone = uses.people.get((tenant, user), NOTHING)
    nodes = min(
        _left(account.max_nodes, account.used_nodes + claimed.nodes),
        _left(account.user_max_nodes, alone.nodes),
        _left(limits.max_nodes, whole.nodes),
        _left(limits.max_nodes_per_user, own.nodes),
        _left(limits.max_nodes_per_tenant, shared.nodes),
    )
    starts = min(
        _left(account.max_allocations, account.used_allocations + claimed.running),
        _left(account.user_max_allocations, alone.running),
        _left(limits.max_running, whole.running),
        _left(limits.max_running_per_user, own.running),
        _left(limits.max_running_per_tenant, shared.running),
    )
    return Headroom(nodes, starts)


def own_wishes(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Hold, not-before, back-off, a closed vcluster, and what the caller says."""
    if candidate.blocked is not None:
        return Waiting(candidate, *candidate.blocked)
    if candidate.held:
        return Waiting(candidate, "Held", "spec.hold is set; `lattice release` lets it go")
    if candidate.not_before > now:
        return Waiting(candidate, "NotBefore", f"starts {_in(candidate.not_before - now)} from now at the earliest", candidate.not_before)
    if candidate.back_off_until > now:
        seconds = candidate.back_off_until - now
        return Waiting(candidate, "RetryBackOff", f"the next attempt follows in {_in(seconds)}", candidate.back_off_until)
    if not candidate.vcluster_known:
        return Waiting(candidate, "VClusterClosed", f'vCluster "{candidate.vcluster}" does not exist any more')
    if not candidate.vcluster_open:
        return Waiting(candidate, "VClusterClosed", f'vCluster "{candidate.vcluster}" is Closed: it accepts work and starts none')
    return None


def hard_quota(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """The hard limits of the tenant and of its user: nodes, and allocations that hold nodes; as the ledger checks them at commit."""
    if candidate.tenant not in state.accounts:
        return Waiting(candidate, "NotYetEvaluated", f'tenant "{candidate.tenant}" has no account in the ledger yet')
    excess = _excess(state, candidate)
    if excess is None:
        return None
    return Waiting(candidate, "WaitingForQuotaHeadroom", f"waiting for quota headroom: {excess.sentence}{_outlook(excess)}")


def counted(state: ClusterState, candidate: Candidate) -> Callable[[NodeHolder], bool]:
    """Which work on nodes counts against the hard limit, or the limit of the vcluster, that blocks it: the first that does."""
    tenant, user, vcluster = candidate.tenant, candidate.user, candidate.vcluster
    excess, row = _excess(state, candidate), _exceeding(state, candidate)
    if excess is not None or row is None:
        alone = excess is not None and excess.who.startswith("user")
        return lambda holder: holder.tenant == tenant and (not alone or holder.user == user)
    whose = row[0]
    return lambda holder: (
        holder.vcluster == vcluster
        and (not whose or (whose == "tenant" and holder.tenant == tenant) or (whose == "user" and holder.user == user))
    )


def _excess(state: ClusterState, candidate: Candidate) -> Excess | None:
    """The first hard limit of tenant or user that it would exceed."""
    tenant, user = candidate.tenant, candidate.user
    account = state.accounts.get(tenant)
    if account is None:
        return None
    claimed, alone = state.uses.claimed.get(tenant, NOTHING), state.uses.people.get((tenant, user), NOTHING)
    so_far = msgspec.structs.replace(
        account, used_nodes=account.used_nodes + claimed.nodes, used_allocations=account.used_allocations + claimed.running
    )
    return beyond(so_far, (alone.nodes, alone.running), tenant, user, candidate.minimum)


def beyond_share(candidate: Candidate, blocked: Blocked) -> Waiting:
    """It waits for its share; the sentence is for everybody, and names no group but its own and those above it."""
    return Waiting(candidate, blocked.reason, f"waiting for quota share: {blocked.message}")


def vcluster_limits(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """What one vcluster lets its user, his tenant, and all together hold."""
    row = _exceeding(state, candidate)
    return None if row is None else _over(candidate, *row[1:])


def _exceeding(state: ClusterState, candidate: Candidate) -> tuple[str, str, str, str, int, int, int] | None:
    """The first limit of its vcluster that it would exceed: of whom (user, tenant, or empty: of all) and for the sentence who, the
    field, what is counted, held, asked for, the limit."""
    policy, uses, vcluster = state.policy(candidate.vcluster), state.uses, candidate.vcluster
    limits = policy.limits
    own = uses.users.get((vcluster, candidate.user), NOTHING)
    shared = uses.tenants.get((vcluster, candidate.tenant), NOTHING)
    whole = uses.vclusters.get(vcluster, NOTHING)
    rows: tuple[tuple[str, str, Use, int | None, int | None], ...] = (
        ("user", f'user "{candidate.user}"', own, limits.max_nodes_per_user, limits.max_running_per_user),
        ("tenant", f'tenant "{candidate.tenant}"', shared, limits.max_nodes_per_tenant, limits.max_running_per_tenant),
        ("", "all its work", whole, limits.max_nodes, limits.max_running),
    )
    for whose, who, use, most_nodes, most_running in rows:
        field = f"Per{whose.capitalize()}" if whose else ""
        if most_nodes is not None and use.nodes + candidate.minimum > most_nodes:
            return whose, who, f"limits.maxNodes{field}", "nodes", use.nodes, candidate.minimum, most_nodes
        if most_running is not None and use.running + 1 > most_running:
            return whose, who, f"limits.maxRunning{field}", "allocations", use.running, 1, most_running
    return None


def admission(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Whether the reservation that it names exists still, and admits it."""
    name = candidate.reservation
    if not name:
        return None
    windows = [window for window in state.windows if window.name == name and window.end > now]
    if not windows:
        return Waiting(
            candidate,
            "ReservedNodes",
            f'reservation "{name}" holds no nodes: it is impossible, over, or gone; `lattice reservation show {name}` says which',
        )
    if any(window.admits(candidate) for window in windows):
        return None
    who = f'user "{candidate.user}" of tenant "{candidate.tenant}" in vCluster "{candidate.vcluster}"'
    return Waiting(candidate, "ReservedNodes", f'reservation "{name}" does not admit {who}; submit without it, or use another one')


def _outlook(excess: Excess) -> str:
    """What has to happen, where it is not that enough of what runs ends."""
    if excess.limit == 0:
        return "; it is paused: nothing starts until the limit is raised"
    if excess.requested > excess.limit:
        return f"; {BEYOND_LIMIT}: it starts only when the limit is raised"
    if excess.current > excess.limit:
        return "; the limit was lowered below what is held: what runs goes on, and nothing starts until enough of it has ended"
    return ""


def _left(limit: int | None, used: int) -> int:
    return NO_LIMIT if limit is None else limit - used


def _over(candidate: Candidate, who: str, field: str, what: str, used: int, asked: int, limit: int) -> Waiting:
    numbers = f"({what} held: {used}, requested: {asked}, limit: {limit})"
    message = f'waiting for quota headroom: {who} would exceed {field} of vCluster "{candidate.vcluster}" {numbers}'
    if asked > limit:
        return Waiting(
            candidate, "WaitingForQuotaHeadroom", f"{message}; {BEYOND_LIMIT}: it never starts; ask for less, or use another vcluster"
        )
    return Waiting(candidate, "WaitingForQuotaHeadroom", f"{message}; it waits for own work there to end")


def _in(seconds: float) -> str:
    """A time to come in words: whole seconds, rounded up."""
    return format_duration(max(1, math.ceil(seconds)))
