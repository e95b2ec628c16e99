"""Ledger, NodeIndex and NodeGroupPlan: what the scheduler alone writes (`docs/explanation/ledger.md`).

The rules here are the second pair of eyes: they check every write inside the API server, whoever
made it. `lattice.ledger` is the first.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from lattice.models.shape import Column, Kind, Meta, Part, Rule, kube

SHARDS = 64
MAX_NODES = 16384
TERMS = 16

Counter = Annotated[int, Field(ge=0)]


class SensitiveUse(Part):
    """The number of nodes that sensitive work may hold together, and how many it holds."""

    max: Counter = 0
    """Nodes that may be claimed."""
    used: Counter = 0
    """Nodes that are claimed."""


class TenantAccount(Part):
    """The hard limits of one tenant and of each of its users on nodes and allocations, and the tenant's use."""

    max_nodes: Counter | None = None
    """Absent: unlimited."""
    used_nodes: Counter = 0
    """Nodes in its rows, releasing ones too."""
    max_allocations: Counter | None = None
    """Absent: unlimited."""
    used_allocations: Counter = 0
    """Its rows, releasing ones too."""
    user_max_nodes: Counter | None = None
    """Nodes that one of its users may hold; absent: unlimited. The use of each user follows from the rows."""
    user_max_allocations: Counter | None = None
    """Rows that one of its users may have; absent: unlimited."""

    rules: ClassVar = (
        Rule(
            "!has(self.maxNodes) || self.?usedNodes.orValue(0) <= self.maxNodes"
            " || (oldSelf.hasValue() && self.?usedNodes.orValue(0) <= oldSelf.value().?usedNodes.orValue(0))",
            message="usedNodes would exceed maxNodes",
            optional_old_self=True,
        ),
        Rule(
            "!has(self.maxAllocations) || self.?usedAllocations.orValue(0) <= self.maxAllocations"
            " || (oldSelf.hasValue() && self.?usedAllocations.orValue(0) <= oldSelf.value().?usedAllocations.orValue(0))",
            message="usedAllocations would exceed maxAllocations",
            optional_old_self=True,
        ),
    )


def _held(ledger: str) -> str:
    """Returns the expression of how many nodes all tenants of a ledger (an expression) hold."""
    return f"{ledger}.tenants.map(name, {ledger}.tenants[name].?usedNodes.orValue(0)).sum()"


class LedgerTerm(Part):
    """One takeover of the ledger: the epoch and the random term of the leader that took it, and its first write."""

    epoch: Counter
    """The epoch that began with it."""
    term: Annotated[str, Field(min_length=1, max_length=32)]
    """Random, of that leader."""
    since: Counter
    """Sequence number of its first write."""
    left: Counter = 0
    """When the last commit before it was made, in seconds since the epoch; 0: unknown."""


class LedgerStatus(Part):
    """Records which attempt holds which node, and the tenants' limits and use; one write changes all of it, or nothing."""

    epoch: Counter
    """Grows by one with each takeover."""
    term: Annotated[str, Field(min_length=1, max_length=32)]
    """Random, of the leader; changes only with the epoch."""
    seq: Counter
    """Grows by one with each write."""
    commit: Annotated[str, Field(min_length=1, max_length=32)]
    """Random, of this write: tells whose write stands."""
    next_number: Annotated[int, Field(ge=1)]
    """First number that no block has reserved yet."""
    recoveries: Counter
    """Grows by one with each `lattice admin ledger recover`."""
    total_nodes: Counter
    """Nodes that have an index."""
    sensitive: SensitiveUse
    """The sensitive pool."""
    tenants: Annotated[dict[str, TenantAccount], Field(max_length=1024)]
    """Limits and use by tenant."""
    shards: Annotated[list[Annotated[str, Field(max_length=65536)]], Field(min_length=SHARDS, max_length=SHARDS)]
    """The rows; format in docs/explanation/formats.md."""

    written: Counter = 0
    """When a commit was last made, in seconds since the epoch by the leader's clock."""
    terms: Annotated[list[LedgerTerm], Field(max_length=TERMS, json_schema_extra=kube(list_type="map", list_map_keys=["epoch"]))] = Field(
        default_factory=list
    )
    """The last takeovers, the newest last: they tell what a node has seen of this ledger from what it has seen of one that is no more."""

    rules: ClassVar = (
        Rule("self.epoch == oldSelf.epoch ? self.term == oldSelf.term : true", "term changes only with epoch + 1"),
        Rule(
            "self.epoch == oldSelf.epoch || self.epoch == oldSelf.epoch + 1"
            " || (self.epoch > oldSelf.epoch && self.recoveries == oldSelf.recoveries + 1)",
            "epoch grows by one (by more only in a recovery), and never goes back",
        ),
        Rule(
            "self == oldSelf || self.seq == oldSelf.seq + 1 || (self.seq > oldSelf.seq && self.recoveries == oldSelf.recoveries + 1)",
            "seq grows by one (by more only in a recovery)",
        ),
        Rule("self.recoveries == oldSelf.recoveries || self.recoveries == oldSelf.recoveries + 1", "recoveries grows by one"),
        Rule("self.nextNumber >= oldSelf.nextNumber", "nextNumber never goes back"),
        Rule("self == oldSelf || self.commit != oldSelf.commit", "every write has a commit id of its own"),
        Rule(
            "self.sensitive.?used.orValue(0) <= self.sensitive.?max.orValue(0)"
            " || self.sensitive.?used.orValue(0) <= oldSelf.sensitive.?used.orValue(0)",
            "sensitive.used would exceed sensitive.max",
        ),
        Rule(
            "oldSelf.tenants.all(name, name in self.tenants || (oldSelf.tenants[name].?usedAllocations.orValue(0) == 0"
            " && oldSelf.tenants[name].?usedNodes.orValue(0) == 0))",
            "a tenant that holds nodes cannot be dropped from the ledger",
        ),
        Rule(
            f"{_held('self')} <= self.totalNodes || (self.totalNodes >= oldSelf.totalNodes && {_held('self')} <= {_held('oldSelf')})",
            "more nodes would be held than exist",
        ),
    )


class Ledger(Kind):
    """The one object, named `lattice`, that records which attempt holds which node; only the leading scheduler writes it."""

    meta: ClassVar = Meta(
        kind="Ledger",
        plural="ledgers",
        short_names=("ledger",),
        namespaced=False,
        columns=(
            Column("Epoch", ".status.epoch", "integer"),
            Column("Seq", ".status.seq", "integer"),
            Column("Next-Number", ".status.nextNumber", "integer"),
            Column("Nodes", ".status.totalNodes", "integer"),
            Column("Recoveries", ".status.recoveries", "integer"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        rules=(
            Rule("self.metadata.name == 'lattice'", "there is one Ledger, and its name is lattice"),
            Rule("!has(oldSelf.status) || has(self.status)", "the ledger's status is never removed"),
        ),
    )
    kind: str = "Ledger"
    status: LedgerStatus | None = None
    """Who holds which node."""


class NodeIndexSpec(Part):
    """Maps node indices to names; an index is given to one name for ever, also after its LatticeNode is deleted."""

    names: Annotated[
        dict[str, Annotated[str, Field(max_length=253, json_schema_extra={"x-kubernetes-validations": [
            Rule("self == oldSelf || self == '' || oldSelf == ''", "an index keeps its node until it is forgotten").schema()
        ]})]],
        Field(max_length=MAX_NODES),
    ] = Field(default_factory=dict)  # fmt: skip
    """Names by index, in decimal; an empty name is a free index."""

    rules: ClassVar = (
        Rule(
            "!has(oldSelf.names) || (has(self.names) && oldSelf.names.all(index, index in self.names))",
            "an index is freed by an empty name, never dropped",
        ),
    )


class NodeIndex(Kind):
    """The one object, named `lattice`, that maps the index of every node to its name."""

    meta: ClassVar = Meta(
        kind="NodeIndex",
        plural="nodeindexes",
        short_names=("nidx",),
        namespaced=False,
        columns=(Column("Age", ".metadata.creationTimestamp", "date"),),
        rules=(
            Rule("self.metadata.name == 'lattice'", "there is one NodeIndex, and its name is lattice"),
            Rule("!has(oldSelf.spec) || has(self.spec)", "the names of the node index are never removed"),
        ),
    )
    kind: str = "NodeIndex"
    spec: NodeIndexSpec = Field(default_factory=NodeIndexSpec)
    """Index to name."""


class NodeGroupPlanSpec(Part):
    """The orders for the agents of 64 nodes: which attempts to run and which to stop, as text that only agents and scheduler read."""

    seq: Counter
    """Sequence number of the ledger that it was made from."""
    epoch: Counter = 0
    """The ledger's epoch then; 0: an older scheduler wrote it."""
    term: Annotated[str, Field(max_length=32)] = ""
    """The ledger's term then."""
    since: Counter = 0
    """Sequence number with which that term took the ledger."""
    text: Annotated[str, Field(max_length=524288)]
    """The rows; format in docs/explanation/formats.md."""
    call: Counter = 0
    """The epoch of the last roll call: nodes that see it grow renew their Lease at once."""

    rules: ClassVar = (Rule("self.seq >= oldSelf.seq", "a plan is never replaced by one made from an older ledger"),)


class NodeGroupPlan(Kind):
    """One object for each 64 node indices, with the orders of the ledger for the agents of these nodes."""

    meta: ClassVar = Meta(
        kind="NodeGroupPlan",
        plural="nodegroupplans",
        short_names=("ngp",),
        namespaced=False,
        columns=(Column("Seq", ".spec.seq", "integer"), Column("Age", ".metadata.creationTimestamp", "date")),
    )
    kind: str = "NodeGroupPlan"
    spec: NodeGroupPlanSpec
    """The orders."""


KINDS_WITHOUT_STATUS: frozenset[str] = frozenset({"NodeIndex", "NodeGroupPlan", "NodeHistory", "UsageRecord"})
