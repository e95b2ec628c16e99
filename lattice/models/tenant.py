"""Tenant: the contract with a group of people (book, "Quota Enforcement")."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.shape import Column, Conditions, Duration, Kind, Meta, Name, Part, Quantity, Rule, Time, Untyped, kube

Principal = Annotated[str, Field(min_length=1, max_length=253)]
Count = Annotated[int, Field(ge=0, le=1000000)]
Hours = Annotated[int, Field(ge=0, le=1000000000)]


class TenantQuota(Part):
    """Hard limits: never exceeded. Absent: unlimited; 0: paused."""

    max_nodes: Count | None = None
    """Nodes held at a time."""
    max_concurrent_allocations: Count | None = None
    """Allocations that hold nodes at a time."""
    on_exceeded: Literal["Reject", "Queue"] = "Reject"
    """Reject at submission (default) or Queue."""
    per_user: Untyped | None = None
    """Limits for each user."""
    max_preemption_class: Annotated[int, Field(ge=0, le=10)] | None = None
    """Highest class that may be asked for."""

    rules: ClassVar = (
        Rule("!has(self.perUser)", "spec.quota.perUser is not served yet: users are not counted by this release; remove the field"),
    )


class TenantBudget(Part):
    """Soft limits: they lower scores, and refuse nothing."""

    gpu_hours: Hours = 0
    """GPU-hours in a period; 0: no budget."""
    node_hours: Hours = 0
    """Node-hours in a period; 0: no budget."""
    period_days: Annotated[int, Field(ge=1, le=3650)] = 90
    """Length of the rolling window, in days."""
    fair_share_target: Quantity | None = None
    """Its share of all use, 150m is 15 %; absent: an equal part of what the other tenants leave."""
    burst_allowance: Quantity = "1"
    """How far above its share it may go before its work is preempted first: 1500m is 150 % of it."""
    on_exhausted: Untyped | None = None
    """What happens when a budget is used up."""

    rules: ClassVar = (
        Rule("!has(self.onExhausted)", "spec.budget.onExhausted is not served yet: used-up budgets lower scores only; remove the field"),
    )


class TenantAccess(Part):
    """Who belongs to the tenant; becomes role bindings in its namespaces."""

    users: Annotated[list[Principal], Field(max_length=1000, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Users who may submit."""
    groups: Annotated[list[Principal], Field(max_length=100, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Groups whose members may submit."""
    admins: Annotated[list[Principal], Field(max_length=100, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Users who may act on everybody's work in the tenant."""


class TenantSpec(Part):
    """What was agreed."""

    namespaces: Annotated[list[Name], Field(max_length=64, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Its namespaces; default: one of the tenant's name."""
    quota: TenantQuota | None = None
    """Hard limits."""
    budget: TenantBudget | None = None
    """Soft limits."""
    isolation: Literal["Standard", "Strict"] | None = None
    """Standard or Strict."""
    default_v_cluster: Annotated[Name | None, Field(alias="defaultVCluster")] = None
    """Where work goes that names no vcluster."""
    access: TenantAccess | None = None
    """Who belongs to it."""
    finished_retention: Duration | None = None
    """How long final allocations stay; default 7d."""

    rules: ClassVar = (
        Rule(
            "!has(self.isolation) || self.isolation == 'Standard'",
            "spec.isolation Strict is not served yet: tenants share nodes in turn; use Standard",
        ),
    )


class TenantUse(Part):
    """What the ledger says."""

    max_nodes: Count | None = None
    """The limit in force."""
    used_nodes: Count = 0
    """Nodes held now."""
    max_allocations: Count | None = None
    """The limit in force."""
    used_allocations: Count = 0
    """Allocations that hold nodes now."""


class TenantStatus(Part):
    """What is in force."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that was carried out."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""
    use: TenantUse | None = None
    """Limits and use, mirrored from the ledger."""
    updated: Time | None = None
    """When `use` was last mirrored."""


class Tenant(Kind):
    """A contract with a group of people: namespaces, limits, members."""

    meta: ClassVar = Meta(
        kind="Tenant",
        plural="tenants",
        short_names=("ten",),
        namespaced=False,
        columns=(
            Column("Nodes", ".status.use.usedNodes", "integer"),
            Column("Max", ".status.use.maxNodes", "integer"),
            Column("Allocations", ".status.use.usedAllocations", "integer"),
            Column("VCluster", ".spec.defaultVCluster"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Namespaces", ".spec.namespaces", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )
    kind: str = "Tenant"
    spec: TenantSpec = Field(default_factory=TenantSpec)
    """What was agreed."""
    status: TenantStatus | None = None
    """What is in force."""
