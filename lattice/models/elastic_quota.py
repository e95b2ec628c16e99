"""ElasticQuota: one group of the elastic quota tree (`docs/howto/share-a-cluster.md`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from lattice.models.shape import LINE_PATTERN, Column, Conditions, Duration, Kind, Meta, Name, Part, Quantity, Rule, Time, kube

Word = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=63)]
Amounts = Annotated[dict[Annotated[str, Field(max_length=63)], Quantity], Field(max_length=32)]
Revocation = Literal["Off", "Notify", "On"]
BUILT_IN_NAMES: Final = ("default", "system", "root", "koordinator-root-quota", "koordinator-system-quota", "koordinator-default-quota")
"""Groups that exist without an object; no ElasticQuota has such a name."""


class QuotaBinding(Part):
    """Binds the work of a tenant to a group of the quota tree, so that it belongs there without naming the group."""

    tenant: Name
    """Work of this tenant."""
    vclusters: Annotated[list[Name], Field(max_length=64, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Only its work in these vclusters; empty: in all that no other group has."""


class Lending(Part):
    """Whether, and how much of its min, a group lends to other groups while its own work does not ask for it."""

    enabled: bool = True
    """False: min is kept free for the group."""
    limit: Amounts | None = None
    """At most so much of min is lent, by resource; absent: all of it."""


class TreeNodes(Part):
    """Selects the nodes whose capacity a quota tree divides; a node must satisfy every field that is given."""

    groups: Annotated[list[Word], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Nodes of any of these topology groups."""
    gpu_types: Annotated[list[Word], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Nodes with GPUs of any of these models; upper and lower case are equal."""
    features: Annotated[list[Word], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Nodes that have all of these features."""
    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] = Field(default_factory=dict)
    """Nodes whose LatticeNode has all of these labels."""


class TreeSettings(Part):
    """Makes a group the root of a quota tree of its own over some nodes; options that are absent are those of the LatticeConfig."""

    nodes: TreeNodes
    """The nodes that it divides; no other tree divides them."""
    ratio: Quantity = "1"
    """The share of their capacity that is divided, above 0 and at most 1."""
    scale_min: bool | None = None
    """Whether mins shrink in proportion where their sum is above what there is."""
    guarantee_used: bool | None = None
    """Whether what groups hold is never divided again, whatever their min."""
    revocation: Revocation | None = None
    """Off, Notify (say it) or On (end work) when a group holds more than its runtime."""
    delay: Duration | None = None
    """How long a group may hold too much before anything is revoked."""
    max_per_round: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most allocations that are revoked at a time."""
    on_shrink: bool | None = None
    """Whether capacity that went, and nothing else, may start a revocation."""


class ElasticQuotaSpec(Part):
    """The place of a group in the quota tree, its guarantee (min), its ceiling (max), and whose work belongs to it."""

    parent: Annotated[str, Field(max_length=63)] = ""
    """The group above; empty: the first level."""
    is_parent: bool = False
    """True: it may have groups below, and has no work of its own."""
    min: Amounts = Field(default_factory=dict)
    """What it is guaranteed, by resource: nodes, cpu, memory, gpu (any model), gpu/MODEL."""
    max: Amounts
    """What it may have at most; the resources named here are the ones that it manages."""
    shared_weight: Amounts | None = None
    """Its power in competing for what is idle; default: max."""
    lending: Lending | None = None
    """Whether others may use the idle part of min."""
    strict_keys: Annotated[list[Word], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Resources of which max may not be set below what is used."""
    admission: Amounts | None = None
    """At most so much may be submitted, pending and running together; absent: no such ceiling; 0 pauses submissions."""
    namespaces: Annotated[list[Name], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Work of these namespaces belongs to it, unless a tenant is bound."""
    bindings: Annotated[list[QuotaBinding], Field(max_length=256, json_schema_extra=kube(list_type="map", list_map_keys=["tenant"]))] = (
        Field(default_factory=list)
    )
    """Work of these tenants belongs to it."""
    tree: TreeSettings | None = None
    """On the first level only: it is the root of a tree of its own over some of the nodes."""

    rules: ClassVar = (
        Rule(
            "!has(self.tree) || !has(self.parent) || self.parent == ''",
            "spec.tree is for a group of the first level: remove spec.tree or spec.parent",
        ),
        *(
            Rule(
                f"!has(self.{name}) || !('nodes' in self.{name}) || type(self.{name}['nodes']) == int"
                f" || quantity(self.{name}['nodes']).isInteger()",
                f"spec.{name}.nodes must be a whole number: nodes are not divided",
            )
            for name in ("min", "max")
        ),
    )


class QuotaSummary(Part):
    """Min, max, runtime and use of a group as short texts, for the columns of `kubectl get`."""

    min: Annotated[str, Field(max_length=1024)] = ""
    """Guarantee."""
    max: Annotated[str, Field(max_length=1024)] = ""
    """Ceiling."""
    runtime: Annotated[str, Field(max_length=1024)] = ""
    """What it may use now."""
    used: Annotated[str, Field(max_length=1024)] = ""
    """What its work holds."""


class ElasticQuotaStatus(Part):
    """What the scheduler has computed for a group: its request, its use, its share now (runtime) and what it borrows."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that was judged."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""
    tree: Annotated[str, Field(max_length=63)] = ""
    """The root of the tree that it is in; empty: the default tree."""
    total: Amounts | None = None
    """Of a root: the capacity that its tree divides."""
    request: Amounts | None = None
    """All of its work, pending and running, each level below cut at its max."""
    child_request: Amounts | None = None
    """The same before its own min is added where it does not lend."""
    used: Amounts | None = None
    """What its work holds."""
    non_preemptible_used: Amounts | None = None
    """Of this, what is never taken back."""
    runtime: Amounts | None = None
    """What it may use now."""
    effective_min: Amounts | None = None
    """The part of min that is really guaranteed now."""
    borrowed: Amounts | None = None
    """What it holds above its effective min."""
    over_since: Time | None = None
    """Since when it holds more than its runtime."""
    summary: QuotaSummary | None = None
    """The numbers as short texts."""


class ElasticQuota(Kind):
    """A group of the elastic quota tree: what it is guaranteed, what it may have at most, what it may use now."""

    meta: ClassVar = Meta(
        kind="ElasticQuota",
        plural="elasticquotas",
        short_names=("leq",),
        namespaced=False,
        columns=(
            Column("Parent", ".spec.parent"),
            Column("Min", ".status.summary.min"),
            Column("Max", ".status.summary.max"),
            Column("Runtime", ".status.summary.runtime"),
            Column("Used", ".status.summary.used"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Tree", ".status.tree", priority=1),
            Column("Is-Parent", ".spec.isParent", "boolean", priority=1),
            Column("Over-Since", ".status.overSince", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        rules=(
            Rule("size(self.metadata.name) <= 63", "the name of an ElasticQuota has at most 63 characters"),
            Rule(
                f"!(self.metadata.name in {list(BUILT_IN_NAMES)!r})",
                "this name is of a group that exists without an object: choose another one",
            ),
            Rule(
                "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
                "spec.parent is the group itself: name another group, or leave it out for the first level",
            ),
        ),
    )
    kind: str = "ElasticQuota"
    spec: ElasticQuotaSpec
    """What it is guaranteed, what it may have at most, and whose work it is."""
    status: ElasticQuotaStatus | None = None
    """What the scheduler makes of it."""
