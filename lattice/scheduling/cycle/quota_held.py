"""The demand on quota trees of pending work that a hard limit or a budget keeps waiting. Pure.

Such demand takes part in the division of the tree like any other, and no running work is stopped for it.
"""

from __future__ import annotations

from operator import itemgetter

from lattice.quota.groups import Resources
from lattice.scheduling.cycle.gates import boundless
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.budget_gate import budget
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.headroom import NO_ACCOUNT, hard_caps, least_headroom


def quota_held_demand(state: ClusterState) -> dict[str, dict[str, int]]:
    """Returns by leaf the resources asked for by pending work that cannot start before own work ends or a budget is renewed, or whose
    tenant has no account; empty without a quota tree.

    Work submitted first counts as startable as far as the hard limits of its tenant and user leave headroom; limits of vclusters are
    ignored.
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
    """Tells whether a hard limit or a budget could keep a candidate waiting: some budget is used up, or its tenant has a hard limit or no
    account.
    """
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
        """Returns the nodes and starts left to a user, or to the tenant as a whole (`user` empty), as a list that the caller lowers; both
        negative without an account.
        """
        known = self._left.get((tenant, user))
        if known is None:
            account = self._state.accounts.get(tenant)
            if account is None:
                known = list(NO_ACCOUNT)
            else:
                of_tenant, of_user = hard_caps(account, self._state.uses, tenant, user)
                known = list(least_headroom([of_user if user else of_tenant]))
            self._left[tenant, user] = known
        return known


def _add(into: dict[str, int], amounts: Resources) -> None:
    """Adds amounts to the sums by resource, in place."""
    for resource, amount in amounts.items():
        into[resource] = into.get(resource, 0) + amount
