"""The rules in force that the placement problem does not contain, as people are told them."""

from __future__ import annotations

import pytest

from lattice.accounting.budgets import OF_TENANT, Scope
from lattice.scheduling.optimum.formulation import unknown_rules
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.unit.scheduling.preemption.test_victims import NOW, pending

LIMITS = "quotas, limits and budgets"


@pytest.mark.parametrize(
    ("account", "named"),
    [
        pytest.param(TenantAccount(), False, id="none"),
        pytest.param(TenantAccount(used_nodes=4, used_allocations=2), False, id="use is no limit"),
        pytest.param(TenantAccount(max_nodes=4), True, id="nodes"),
        pytest.param(TenantAccount(user_max_allocations=0), True, id="of a user"),
    ],
)
def test_limits_are_named_where_a_tenant_has_some(account: TenantAccount, *, named: bool) -> None:
    candidate = pending(1)
    state = ClusterState(accounts={candidate.tenant: account})
    assert (LIMITS in unknown_rules(state, candidate.vcluster, [candidate], NOW)) == named


@pytest.mark.parametrize(("tenant", "named"), [("physics", True), ("chemistry", False)])
def test_a_budget_is_named_only_where_its_end_keeps_this_work_waiting(tenant: str, *, named: bool) -> None:
    candidate = pending(1)
    assert candidate.tenant == "physics"
    state = ClusterState(accounts={candidate.tenant: TenantAccount()})
    scope = Scope(OF_TENANT, tenant)
    state.set_exhausted({scope: Exhausted("used up")})
    assert (LIMITS in unknown_rules(state, candidate.vcluster, [candidate], NOW)) == named
