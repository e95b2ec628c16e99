"""DAG: a graph of Allocations that is submitted as one (book, "DAG Scheduling"; `docs/reference/dag.md` is generated from here)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from lattice.models.allocation import AllocationSpec, Cancel
from lattice.models.forms import pattern_of
from lattice.models.shape import LINE_PATTERN, Column, Conditions, Duration, Kind, Meta, Name, Part, Rule, Time, kube

MemberName = Annotated[str, Field(pattern=pattern_of("member"), min_length=1, max_length=63)]
MemberSpec = Annotated[AllocationSpec, WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""The spec of an Allocation. The DAG's schema does not repeat it, which would be paid for at each write of its status: the webhook
judges it when the DAG is created, and the schema of Allocations when the member is made."""


class MemberDependency(Part):
    """One edge: another member, and the condition that it must meet."""

    ref: MemberName
    """The name of a member of the same DAG."""
    condition: Literal["Success", "Failure", "Any", "Started"]
    """Success (it completed), Failure (it failed), Any (it ended) or Started."""
    delay: Duration | None = None
    """Counted from the start or the end that meets the condition."""


class Member(Part):
    """One allocation of a DAG, called `DAG.NAME`."""

    name: MemberName
    """Its name in the DAG, without dots."""
    spec: MemberSpec = Field(default_factory=AllocationSpec)
    """The spec of its Allocation, without tenant, user and dependsOn; what it does not say the defaults do."""
    depends_on: Annotated[list[MemberDependency], Field(max_length=1000, json_schema_extra=kube(list_type="atomic"))] | None = None
    """The members that must end, or start, first."""
    depends_on_mode: Literal["All", "Any"] | None = None
    """All (default) of dependsOn must be met, or Any: the first that is met suffices."""
    on_unmet: Literal["Cancel", "Hold"] | None = None
    """When dependsOn can never be met: Cancel (default), or Hold: it waits until it is cancelled, or dependsOn is taken away."""


class DagSpec(Part):
    """The request of a person: the members of a DAG, their edges, and what they have in common."""

    tenant: Name | None = None
    """Who pays; default: the namespace's tenant."""
    user: Annotated[str, Field(pattern=LINE_PATTERN, max_length=253)] | None = None
    """Who the members run as; set from the request."""
    defaults: MemberSpec | None = None
    """What every member's spec says that does not say otherwise; maps are merged."""
    members: Annotated[list[Member], Field(min_length=1, max_length=10000, json_schema_extra=kube(list_type="atomic"))]
    """The allocations: 1,000 at most, where the site sets no other limit (scheduling.maxDagSize)."""
    hold: bool | None = None
    """True: no member starts; those that run go on."""
    cancel: Cancel | None = None
    """Set: all members are ended, and the objects and their history stay."""


class MemberState(Part):
    """The state of one member, kept when its Allocation is gone."""

    name: Annotated[str, Field(max_length=63)]
    """Its name in the DAG."""
    number: Annotated[int, Field(ge=0)] | None = None
    """The number of its Allocation."""
    phase: Annotated[str, Field(max_length=16)] = ""
    """The phase of its Allocation; empty: it is not made yet."""
    reason: Annotated[str, Field(max_length=64)] = ""
    """Why it waits, or how it ended."""
    start_time: Time | None = None
    """When its first process started."""
    end_time: Time | None = None
    """When it ended."""


class Counts(Part):
    """The members of a DAG by state."""

    total: Annotated[int, Field(ge=0)] = 0
    """All of them."""
    pending: Annotated[int, Field(ge=0)] = 0
    """They wait, or are not made yet."""
    running: Annotated[int, Field(ge=0)] = 0
    """They have nodes."""
    completed: Annotated[int, Field(ge=0)] = 0
    """They ended with 0."""
    failed: Annotated[int, Field(ge=0)] = 0
    """They failed."""
    cancelled: Annotated[int, Field(ge=0)] = 0
    """They were cancelled, by themselves or with the DAG."""
    skipped: Annotated[int, Field(ge=0)] = 0
    """They were cancelled since their edges could never be met."""


class DagStatus(Part):
    """The state of a DAG; only the operator writes it."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that this status judges."""
    phase: Annotated[str, Field(max_length=16)] = ""
    """Running until every member is final; then Completed, Failed or Cancelled."""
    made: Annotated[int, Field(ge=0)] = 0
    """So many members were made, in the order of spec.members; none of them is made again."""
    complete: bool = False
    """True: all members exist, or existed. Until then none starts."""
    counts: Counts = Field(default_factory=Counts)
    """The members by state."""
    members: Annotated[list[MemberState], Field(max_length=10000, json_schema_extra=kube(list_type="atomic"))] = Field(default_factory=list)
    """The members, in the order of spec.members."""
    critical_path: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=10000)] = Field(default_factory=list)
    """The members that follow each other the longest, by the times that are known and walltimes for the rest."""
    expected_end: Time | None = None
    """When it ends if each member completes and runs for its whole walltime; absent: that is not known."""
    end_time: Time | None = None
    """When its last member ended."""
    conditions: Conditions = Field(default_factory=list)
    """Made (all members exist, or why not), Finished, and Ready, Reconciling, Stalled (kstatus)."""


class DAG(Kind):
    """A graph of Allocations that is submitted, held, cancelled and deleted as one."""

    meta: ClassVar = Meta(
        kind="DAG",
        plural="dags",
        short_names=(),
        namespaced=True,
        columns=(
            Column("Phase", ".status.phase"),
            Column("Members", ".status.counts.total", "integer"),
            Column("Pending", ".status.counts.pending", "integer"),
            Column("Running", ".status.counts.running", "integer"),
            Column("Completed", ".status.counts.completed", "integer"),
            Column("Failed", ".status.counts.failed", "integer"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("User", ".spec.user", priority=1),
            Column("Expected", ".status.expectedEnd", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        selectable=(".spec.tenant", ".spec.user", ".status.phase"),
        rules=(
            Rule(
                "self.metadata.name.matches('^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')",
                "metadata.name of a DAG has at most 63 lower-case letters, digits or '-', and no dots: members are called DAG.MEMBER",
            ),
        ),
    )
    kind: str = "DAG"
    spec: DagSpec
    """The members, and what they have in common."""
    status: DagStatus | None = None
    """What the operator made of it."""
