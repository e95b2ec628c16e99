"""The cached Ledger, NodeIndex and NodeGroupPlan."""

from __future__ import annotations

from lattice.views.meta import Metadata, View


class TenantAccount(View, frozen=True):
    """One tenant's hard limits and use, and the limits of each of its users; None is unlimited."""

    max_nodes: int | None = None
    used_nodes: int = 0
    max_allocations: int | None = None
    used_allocations: int = 0
    user_max_nodes: int | None = None
    user_max_allocations: int | None = None


class SensitiveUse(View, frozen=True):
    """Size and use of the pool of nodes for sensitive work."""

    max: int = 0
    used: int = 0


class LedgerTerm(View, frozen=True):
    """One takeover of the ledger: its epoch and term, the seq of its first write, and when the last
    commit before it was made (0: unknown).
    """

    epoch: int
    term: str
    since: int
    left: int = 0


class LedgerStatus(View, frozen=True):
    """The ledger as stored: who holds which node, limits and use; `lattice.ledger.format` parses the shards."""

    epoch: int
    term: str
    seq: int
    commit: str
    next_number: int
    recoveries: int
    total_nodes: int
    sensitive: SensitiveUse
    tenants: dict[str, TenantAccount]
    shards: tuple[str, ...]
    written: int = 0
    terms: tuple[LedgerTerm, ...] = ()


class Ledger(View, frozen=True):
    """The one Ledger."""

    metadata: Metadata
    status: LedgerStatus | None = None


class NodeIndexSpec(View, frozen=True):
    """Node names by index (decimal text); an empty name is a free index."""

    names: dict[str, str] = {}


class NodeIndex(View, frozen=True):
    """The one NodeIndex."""

    metadata: Metadata
    spec: NodeIndexSpec = NodeIndexSpec()


class PlanSpec(View, frozen=True):
    """The orders for up to 64 agents; `lattice.ledger.plans` parses the text.

    `epoch` and `term` are those of the leader that wrote it, `since` is the seq at which it took the ledger; 0: it did not say.
    """

    seq: int = 0
    epoch: int = 0
    term: str = ""
    since: int = 0
    text: str = ""
    call: int = 0


class Plan(View, frozen=True):
    """A NodeGroupPlan."""

    metadata: Metadata
    spec: PlanSpec = PlanSpec()
