"""The demand on quota trees of pending work that a hard limit or a budget keeps waiting. Pure.

Such demand takes part in the division of the tree like any other, and no running work is stopped for it.
"""

from __future__ import annotations

from operator import itemgetter

from lattice.quota.groups import Resources
from lattice.scheduling.cycle.gates import boundless
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.budget_gate import budget
from lattice.scheduling.state.cluster_state import NOTHING, ClusterState
from lattice.scheduling.state.quota_usage import NO_LIMIT


def quota_held_demand(state: ClusterState) -> dict[str, dict[str, int]]:
    """Returns by leaf the resources asked for by pending work that cannot start before own work ends or a budget is renewed.

    Work submitted first counts as startable as far as the hard limits of its tenant and user leave headroom; limits of vclusters
    are ignored.
    """
    if state.quota_usage is None:
        return {}
    pending = [(one.submitted, one.key, one, amounts) for one, amounts in state.quota_usage.pending() if _may_be_held(state, one)]
    headrooms = _Headrooms(state)
    found: dict[str, dict[str, int]] = {}
    for _, _, candidate, amounts in sorted(pending, key=itemgetter(0, 1)):
        if budget(state.exhausted, candidate) is not None or not headrooms.charge(candidate):
            _add(found.setdefault(candidate.quota, {}), amounts)
    return found


def _may_be_held(state: ClusterState, candidate: Candidate) -> bool:
    return bool(state.exhausted) or not boundless(state, candidate.tenant)


class _Headrooms:
    """The headroom that hard limits leave to tenants and their users while pending work is charged to it in order of submission."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._left: dict[tuple[str, str], list[int]] = {}
        """Nodes and starts left, by tenant and user; user "" stands for the tenant as a whole."""

    def charge(self, candidate: Candidate) -> bool:
        """Charges a candidate to its tenant and its user; returns False, and charges nothing, where one of them has no headroom for it."""
        headrooms = [self._headroom(candidate.tenant, user) for user in ("", candidate.user)]
        if any(nodes < candidate.minimum or starts < 1 for nodes, starts in headrooms):
            return False
        for left in headrooms:
            left[0] -= candidate.minimum
            left[1] -= 1
        return True

    def _headroom(self, tenant: str, user: str) -> list[int]:
        known = self._left.get((tenant, user))
        if known is None:
            known = self._left[tenant, user] = self._of_user(tenant, user) if user else self._of_tenant(tenant)
        return known

    def _of_tenant(self, tenant: str) -> list[int]:
        account, claimed = self._state.accounts.get(tenant), self._state.uses.claimed.get(tenant, NOTHING)
        if account is None:
            return [-1, -1]
        used = account.used_nodes + claimed.nodes, account.used_allocations + claimed.running
        return [_less(account.max_nodes, used[0]), _less(account.max_allocations, used[1])]

    def _of_user(self, tenant: str, user: str) -> list[int]:
        account, own = self._state.accounts.get(tenant), self._state.uses.people.get((tenant, user), NOTHING)
        if account is None:
            return [-1, -1]
        return [_less(account.user_max_nodes, own.nodes), _less(account.user_max_allocations, own.running)]


def _less(limit: int | None, used: int) -> int:
    return NO_LIMIT if limit is None else limit - used


def _add(into: dict[str, int], amounts: Resources) -> None:
    for resource, amount in amounts.items():
        into[resource] = into.get(resource, 0) + amount
