"""VCluster: a queue with its own policy (book, "Scheduling Algorithm", "Slurm Migration")."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.shape import LINE_PATTERN, Column, Conditions, Duration, Kind, Meta, Part, Quantity, Rule, kube

Word = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=63)]
Nodes = Annotated[int, Field(ge=1, le=16384)]
Count = Annotated[int, Field(ge=1, le=1000000)]


class CostWeights(Part):
    """The weight of each term in a vcluster's score; a weight that is left out is 0, and all are scaled to sum to 1."""

    priority: Quantity | None = None
    """w1, of the preemption class."""
    wait_time: Quantity | None = None
    """w2, of the waiting time."""
    fair_share: Quantity | None = None
    """w3, of how far the tenant is below its share."""
    topology: Quantity | None = None
    """w4, of how few groups it needs."""
    data_readiness: Quantity | None = None
    """w5, of input data at hand."""
    backlog: Quantity | None = None
    """w6, of how much waits in all."""
    energy: Quantity | None = None
    """w7, of cheap electricity."""
    checkpoint: Quantity | None = None
    """w8, of how quickly it can checkpoint."""
    conformance: Quantity | None = None
    """w9, of nodes of equal software."""


class VClusterCycle(Part):
    """The time between a vcluster's cycles, and how many blocked allocations hold a backfill reservation."""

    interval: Duration | None = None
    """Longest time between two cycles; default: scheduling.cycleInterval of the LatticeConfig."""
    depth: Annotated[int, Field(ge=0, le=1000)] | None = None
    """How many blocked allocations hold a reservation: 0 none, 1 is EASY; default: scheduling.backfillDepth."""


class VClusterBorrowing(Part):
    """Whether a vcluster lends its idle home nodes, whether its work may run on those of others, and the limits of that."""

    lend: bool = False
    """Whether others may use its idle home nodes."""
    borrow: bool = False
    """Whether its work may run on idle home nodes of others."""
    max_borrowed: Annotated[int, Field(ge=0, le=16384)] | None = None
    """Most nodes of others at a time; absent: no limit."""
    priority: Annotated[int, Field(ge=0, le=10)] = 5
    """Who borrows first (higher) and gives back last."""
    max_duration: Duration | None = None
    """Longest walltime of work on borrowed nodes; absent: no limit."""
    return_grace: Duration = "0s"
    """Time that its work has to leave a borrowed node."""


class VClusterPreemption(Part):
    """The rules that protect a vcluster's running work from preemption."""

    min_runtime: Duration | None = None
    """No allocation is preempted before it has run so long."""
    max_per_allocation: Annotated[int, Field(ge=0, le=1000)] | None = None
    """How often one allocation may be preempted; absent: no limit."""


class NodeSelector(Part):
    """Selects nodes by the topology group in the spec of their LatticeNode."""

    group: Annotated[list[Word], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Any of these groups."""


class VClusterNodes(Part):
    """The home nodes of a vcluster: the nodes on which its work runs without borrowing."""

    selector: NodeSelector | None = None
    """Its home: nodes that match; absent: every node that is at home in no vcluster."""
    base: Annotated[int, Field(ge=0, le=16384)] | None = None
    """How many nodes it counts on, for people."""


class VClusterDefaults(Part):
    """Values that an allocation submitted to the vcluster gets where it gives none itself."""

    walltime: Duration | None = None
    """Walltime of a Bounded allocation that gives none."""


class VClusterLimits(Part):
    """The limits of a vcluster on what one allocation asks for and on what its users and tenants hold or let wait in it."""

    max_walltime: Duration | None = None
    """Longest walltime."""
    max_nodes_per_allocation: Nodes | None = None
    """Most nodes of one allocation."""
    max_nodes: Nodes | None = None
    """Most nodes that all its work holds, at home and borrowed."""
    max_running: Count | None = None
    """Most allocations that hold nodes."""
    max_running_per_user: Count | None = None
    """Most allocations of one user that hold nodes here."""
    max_nodes_per_user: Nodes | None = None
    """Most nodes that one user holds here."""
    max_pending_per_user: Count | None = None
    """Most allocations of one user that wait here; more are refused at submission."""
    max_pending: Count | None = None
    """Most allocations that wait here; more are refused at submission."""
    max_pending_per_tenant: Count | None = None
    """Most allocations of one tenant that wait here; more are refused at submission."""
    max_preemption_class: Annotated[int, Field(ge=0, le=10)] | None = None
    """Highest preemption class that is taken at submission."""
    max_running_per_tenant: Count | None = None
    """Most allocations of one tenant that hold nodes here."""
    max_nodes_per_tenant: Nodes | None = None
    """Most nodes that one tenant holds here."""


class VClusterSpec(Part):
    """The policy, the weights, the home nodes, the limits and the tenants of a vcluster."""

    policy: Literal["Backfill", "BinPack", "SensitiveReservation", "InteractiveFifo"] | None = None
    """How it places work; default: Backfill."""
    profile: Literal["HpcBatch", "MlTraining", "Service", "Sensitive", "Interactive"] | None = None
    """A weight profile of the book; default: the balanced one."""
    weights: CostWeights | None = None
    """Weights of its own, instead of a profile."""
    cycle: VClusterCycle | None = None
    """When it schedules, and how far it plans."""
    nodes: VClusterNodes | None = None
    """Where its work runs."""
    borrowing: VClusterBorrowing | None = None
    """Lending and borrowing of idle nodes."""
    defaults: VClusterDefaults | None = None
    """What a submission gets that does not say."""
    limits: VClusterLimits | None = None
    """What a submission may not exceed."""
    tenants: Annotated[list[Word], Field(max_length=1000, json_schema_extra=kube(list_type="set"))] = Field(default_factory=lambda: ["*"])
    """Who may submit; "*": everybody."""
    state: Literal["Open", "Closed"] = "Open"
    """Closed: work is accepted and waits."""
    preemption: VClusterPreemption | None = None
    """What protects its running work."""
    partition_names: Annotated[list[Word], Field(max_length=64, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Slurm partitions that mean this vcluster."""

    rules: ClassVar = (
        Rule(
            "!has(self.profile) || !has(self.weights)",
            "spec.profile and spec.weights are both given: name a profile, or give weights of its own, and remove the other",
        ),
    )


class VClusterStatus(Part):
    """The nodes, the policy and the state of a vcluster that the operator has put in force."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that was carried out."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""
    nodes: Annotated[int, Field(ge=0)] = 0
    """Nodes that its work uses without borrowing: its home, or without one all that are at home nowhere."""
    ready: Annotated[int, Field(ge=0)] = 0
    """How many of these nodes are Ready."""
    policy: Literal["Backfill", "BinPack", "SensitiveReservation", "InteractiveFifo"] | None = None
    """How it places work: spec.policy, or the default."""
    state: Literal["Open", "Closed"] | None = None
    """Whether it places work: spec.state, or the default."""


class VCluster(Kind):
    """A queue with its own nodes, defaults and limits."""

    meta: ClassVar = Meta(
        kind="VCluster",
        plural="vclusters",
        short_names=("vc",),
        namespaced=False,
        columns=(
            Column("State", ".status.state"),
            Column("Policy", ".status.policy"),
            Column("Nodes", ".status.nodes", "integer"),
            Column("Ready", ".status.ready", "integer"),
            Column("Max-Walltime", ".spec.limits.maxWalltime"),
            Column("Max-Nodes", ".spec.limits.maxNodesPerAllocation", "integer"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Profile", ".spec.profile", priority=1),
            Column("Interval", ".spec.cycle.interval", priority=1),
            Column("Depth", ".spec.cycle.depth", "integer", priority=1),
            Column("Tenants", ".spec.tenants", priority=1),
            Column("Partitions", ".spec.partitionNames", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )
    kind: str = "VCluster"
    spec: VClusterSpec = Field(default_factory=VClusterSpec)
    """How it schedules, and for whom."""
    status: VClusterStatus | None = None
    """What is in force."""
