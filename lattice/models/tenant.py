"""Tenant: the contract with a group of people (book, "Quota Enforcement")."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.shape import LINE_PATTERN, Column, Conditions, Duration, Kind, Meta, Name, Part, Quantity, Rule, Time, kube

Principal = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=253)]
Account = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=63)]
Count = Annotated[int, Field(ge=0, le=1000000)]
Hours = Annotated[int, Field(ge=0, le=1000000000)]


class UserQuota(Part):
    """Hard limits on what each user of the tenant holds or lets wait in all vclusters together; absent: unlimited, 0: paused."""

    max_nodes: Count | None = None
    """Nodes that one user holds at a time."""
    max_running: Count | None = None
    """Allocations of one user that hold nodes at a time."""
    max_pending: Count | None = None
    """Allocations of one user that wait, held or not; of more, only the oldest may start. Absent: submission.maxPendingPerUser."""


class TenantQuota(Part):
    """Hard limits on what a tenant holds or lets wait, which are never exceeded; absent: unlimited, 0: paused."""

    max_nodes: Count | None = None
    """Nodes held at a time."""
    max_concurrent_allocations: Count | None = None
    """Allocations that hold nodes at a time."""
    on_exceeded: Literal["Reject", "Queue"] = "Reject"
    """Reject at submission (default) or Queue."""
    max_pending: Count | None = None
    """Allocations that wait, held or not; of more, only the oldest may start. Absent: submission.maxPendingPerTenant."""
    per_user: UserQuota | None = None
    """Limits for each user."""
    max_preemption_class: Annotated[int, Field(ge=0, le=10)] | None = None
    """Highest class that may be asked for."""


class UserBudget(Part):
    """The GPU-hours and node-hours that each user of the tenant may use in a period of the tenant's budget."""

    gpu_hours: Hours = 0
    """GPU-hours in a period; 0: no budget."""
    node_hours: Hours = 0
    """Node-hours in a period; 0: no budget."""


class ProjectBudget(Part):
    """The GPU-hours and node-hours that one project of the tenant may use in a period of the tenant's budget."""

    name: Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=253)]
    """The project, as `spec.project` of its allocations names it."""
    gpu_hours: Hours = 0
    """GPU-hours in a period; 0: no budget."""
    node_hours: Hours = 0
    """Node-hours in a period; 0: no budget."""


class TenantBudget(Part):
    """The hours that a tenant may use in a period, and its fair share; at their end running work goes on, and new work scores less or
    waits.
    """

    gpu_hours: Hours = 0
    """GPU-hours in a period; 0: no budget."""
    node_hours: Hours = 0
    """Node-hours in a period; 0: no budget."""
    period: Literal["Rolling", "Month", "Quarter", "Year"] = "Rolling"
    """Which hours count: those of the last `periodDays` (Rolling), or those since the Month, Quarter or Year (UTC) began."""
    period_days: Annotated[int, Field(ge=1, le=3650)] = 90
    """Length of the rolling window, in days."""
    projects: Annotated[list[ProjectBudget], Field(max_length=256, json_schema_extra=kube(list_type="map", list_map_keys=["name"]))] = (
        Field(default_factory=list)
    )
    """Budgets of projects, in the same period; the worst budget that applies counts."""
    per_user: UserBudget | None = None
    """The budget of each user, in the same period."""
    fair_share_target: Quantity | None = None
    """Its share of all use, 150m is 15 %; absent: an equal part of what the other tenants leave."""
    burst_allowance: Quantity = "1"
    """Agreed limit above its share, 1500m is 150 % of it: above the share its work is preempted first, beyond this before all other."""
    on_exhausted: Literal["Penalise", "Queue"] = "Penalise"
    """At the end of a budget scores fall to a twentieth (Penalise), or new work waits (Queue)."""


class TenantAccess(Part):
    """The users and groups who may submit for a tenant, and its admins; the operator makes role bindings in its namespaces of them."""

    users: Annotated[list[Principal], Field(max_length=1000, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Users who may submit."""
    groups: Annotated[list[Principal], Field(max_length=100, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Groups whose members may submit."""
    admins: Annotated[list[Principal], Field(max_length=100, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Users who may act on everybody's work in the tenant."""


class TenantSpec(Part):
    """The contract with a tenant: its namespaces, hard limits, budgets, members and defaults."""

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
    account_names: Annotated[list[Account], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Slurm accounts that mean this tenant, beside its own name."""
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
    """The tenant's hard limits in force and its use, copied from the ledger."""

    max_nodes: Count | None = None
    """The limit in force."""
    used_nodes: Count = 0
    """Nodes held now."""
    max_allocations: Count | None = None
    """The limit in force."""
    used_allocations: Count = 0
    """Allocations that hold nodes now."""


class ToldHours(Part):
    """The hours used and agreed in one period, as an outside source reports them."""

    used: Quantity = 0
    """Hours used in the source's period."""
    limit: Quantity = 0
    """Hours agreed for that period; 0: no budget."""


class ExternalBudget(Part):
    """The tenant's hours as an outside source (such as Waldur) counts them, written by that source's own field manager."""

    source: Annotated[str, Field(min_length=1, max_length=63)]
    """Its name, such as waldur."""
    gpu_hours: ToldHours = Field(default_factory=ToldHours)
    """GPU-hours."""
    node_hours: ToldHours = Field(default_factory=ToldHours)
    """Node-hours."""
    observed: Time
    """When the source was asked."""
    valid_for: Duration = "1h"
    """How long after that it takes precedence over what Lattice counts itself."""


class BudgetState(Part):
    """The hours used and agreed of one budget (the tenant's or a project's) in its present period."""

    key: Annotated[str, Field(min_length=1, max_length=270)]
    """`Tenant`, or `Project/NAME`."""
    scope: Literal["Tenant", "Project"] = "Tenant"
    """Whose it is."""
    name: Annotated[str, Field(max_length=253)] = ""
    """The project."""
    source: Literal["Internal", "External"] = "Internal"
    """Internal: counted by Lattice. External: as `externalBudget` tells it."""
    gpu_hours: Quantity | None = None
    """Used in the period."""
    gpu_hours_limit: Quantity | None = None
    """Agreed."""
    node_hours: Quantity | None = None
    """Used in the period."""
    node_hours_limit: Quantity | None = None
    """Agreed."""
    fraction: Quantity = 0
    """Used ÷ agreed of the worse of the two; 1 is used up."""
    period_start: Time | None = None
    """Beginning of the period, where it is one of the calendar."""
    period_end: Time | None = None
    """Its end."""
    told: Annotated[int, Field(ge=0, le=100)] = 0
    """The highest mark, in percent, that an Event has told: 0, 80 or 100."""
    crossings: Annotated[int, Field(ge=0)] = 0
    """How often a mark was crossed."""


class TenantUsage(Part):
    """The hours that a tenant has used in the period of its budget, by usage records and running attempts, and its budgets."""

    gpu_hours: Quantity = 0
    """In the budget's period."""
    node_hours: Quantity = 0
    """In the budget's period."""
    budgets: Annotated[list[BudgetState], Field(max_length=257, json_schema_extra=kube(list_type="map", list_map_keys=["key"]))] = Field(
        default_factory=list
    )
    """How its budgets stand."""


class TenantStatus(Part):
    """What operator and scheduler have put in force for a tenant, with its present use and budgets."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that was carried out."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""
    use: TenantUse | None = None
    """Limits and use, mirrored from the ledger."""
    updated: Time | None = None
    """When `use` or `usage` was last mirrored."""
    usage: TenantUsage | None = None
    """Hours and budgets, mirrored at most every 30 s."""
    external_budget: ExternalBudget | None = None
    """The budget by an outside source; it takes precedence while it is fresh."""


class Tenant(Kind):
    """An organisation that uses the cluster: its namespaces, members, hard limits and budgets."""

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
