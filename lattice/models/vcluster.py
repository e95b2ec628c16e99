"""VCluster: a queue with its own policy (book, "Scheduling Algorithm", "Slurm Migration")."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.shape import Column, Conditions, Duration, Kind, Meta, Part, Untyped, kube, not_served

Word = Annotated[str, Field(min_length=1, max_length=63)]


class NodeSelector(Part):
    """Nodes by what LatticeNode.spec says of them."""

    group: Annotated[list[Word], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Any of these groups."""


class VClusterNodes(Part):
    """Where the work of this vcluster runs."""

    selector: NodeSelector | None = None
    """Only nodes that match; absent: every node."""
    base: Annotated[int, Field(ge=0, le=16384)] | None = None
    """How many nodes it counts on, for people."""


class VClusterDefaults(Part):
    """What a submission gets that does not say."""

    walltime: Duration | None = None
    """Walltime of a Bounded allocation that gives none."""


class VClusterLimits(Part):
    """What a submission may not exceed."""

    max_walltime: Duration | None = None
    """Longest walltime."""
    max_nodes_per_allocation: Annotated[int, Field(ge=1, le=16384)] | None = None
    """Most nodes of one allocation."""


class VClusterSpec(Part):
    """How it schedules, and for whom."""

    policy: Literal["Backfill", "BinPack", "SensitiveReservation", "InteractiveFifo"] | None = None
    """The scheduling policy."""
    profile: Word | None = None
    """A weight profile of the book."""
    weights: Untyped | None = None
    """Weights of its own."""
    cycle: Untyped | None = None
    """Interval and depth."""
    nodes: VClusterNodes | None = None
    """Where its work runs."""
    borrowing: Untyped | None = None
    """Lending and borrowing of idle nodes."""
    defaults: VClusterDefaults | None = None
    """What a submission gets that does not say."""
    limits: VClusterLimits | None = None
    """What a submission may not exceed."""
    tenants: Annotated[list[Word], Field(max_length=1000, json_schema_extra=kube(list_type="set"))] = Field(default_factory=lambda: ["*"])
    """Who may submit; "*": everybody."""
    state: Literal["Open", "Closed"] = "Open"
    """Closed: work is accepted and waits."""
    preemption: Untyped | None = None
    """Limits of preemption."""
    partition_names: Annotated[list[Word], Field(max_length=64, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Slurm partitions that mean this vcluster."""

    rules: ClassVar = (
        not_served("policy", "every vcluster places by class and waiting time, first fit, in this release"),
        not_served("profile", "scores have no weights in this release"),
        not_served("weights", "scores have no weights in this release"),
        not_served("cycle", "a change starts a cycle at once in this release"),
        not_served("borrowing", "nodes are not lent between vclusters by this release"),
        not_served("preemption", "nothing is preempted by this release"),
    )


class VClusterStatus(Part):
    """What is in force."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that was carried out."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""
    nodes: Annotated[int, Field(ge=0)] = 0
    """Nodes that match."""
    ready: Annotated[int, Field(ge=0)] = 0
    """Of these, Ready."""


class VCluster(Kind):
    """A queue with its own nodes, defaults and limits."""

    meta: ClassVar = Meta(
        kind="VCluster",
        plural="vclusters",
        short_names=("vc",),
        namespaced=False,
        columns=(
            Column("State", ".spec.state"),
            Column("Nodes", ".status.nodes", "integer"),
            Column("Ready", ".status.ready", "integer"),
            Column("Max-Walltime", ".spec.limits.maxWalltime"),
            Column("Max-Nodes", ".spec.limits.maxNodesPerAllocation", "integer"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
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
