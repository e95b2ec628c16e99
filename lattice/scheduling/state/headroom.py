"""The headroom that limits leave to one user: hard limits of its tenant and of itself, and the limits of a vcluster. Pure.

Gates, the demand held back from quota trees, and forecasts ask these functions; the ledger checks a claim by `ledger.commit.beyond`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from lattice.scheduling.model.policy import Limits
from lattice.scheduling.state.uses import NOTHING, Uses
from lattice.views.ledger import TenantAccount

NO_LIMIT: Final = 1 << 60
"""The headroom where no limit is set."""
Cap = tuple[int | None, int | None, int, int]
"""The most nodes and the most running allocations (None: no limit), then how many nodes and allocations count against them."""


class Headroom(NamedTuple):
    """The nodes and the starts that one user of one tenant may still get in a vcluster before a limit; negative: a limit is exceeded."""

    nodes: int
    starts: int


NO_ACCOUNT = Headroom(-1, -1)
"""The headroom of a tenant without an account in the ledger: nothing of it starts."""


def hard_caps(account: TenantAccount, uses: Uses, tenant: str, user: str) -> tuple[Cap, Cap]:
    """Returns the hard limits of a tenant and of one of its users with their use; claims that the ledger has not confirmed count."""
    claimed, alone = uses.claimed.get(tenant, NOTHING), uses.people.get((tenant, user), NOTHING)
    return (
        (account.max_nodes, account.max_allocations, account.used_nodes + claimed.nodes, account.used_allocations + claimed.running),
        (account.user_max_nodes, account.user_max_allocations, alone.nodes, alone.running),
    )


def vcluster_caps(limits: Limits, uses: Uses, vcluster: str, tenant: str, user: str) -> tuple[Cap, Cap, Cap]:
    """Returns the limits of a vcluster on one user, on that user's tenant, and on all its work together, with their use."""
    own = uses.users.get((vcluster, user), NOTHING)
    shared = uses.tenants.get((vcluster, tenant), NOTHING)
    whole = uses.vclusters.get(vcluster, NOTHING)
    return (
        (limits.max_nodes_per_user, limits.max_running_per_user, own.nodes, own.running),
        (limits.max_nodes_per_tenant, limits.max_running_per_tenant, shared.nodes, shared.running),
        (limits.max_nodes, limits.max_running, whole.nodes, whole.running),
    )


def least_headroom(caps: Iterable[Cap]) -> Headroom:
    """Returns the nodes and the starts that all these caps leave; `NO_LIMIT` where no cap limits them, negative beyond a cap."""
    nodes = starts = NO_LIMIT
    for most_nodes, most_running, held, running in caps:
        if most_nodes is not None and most_nodes - held < nodes:
            nodes = most_nodes - held
        if most_running is not None and most_running - running < starts:
            starts = most_running - running
    return Headroom(nodes, starts)
