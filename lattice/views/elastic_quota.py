"""The cached ElasticQuota; amounts are quantities by resource, as people wrote them."""

from __future__ import annotations

from lattice.views.allocation import Condition
from lattice.views.meta import Metadata, View

Amounts = dict[str, int | str]
"""Quantities by resource."""


class QuotaBinding(View, frozen=True):
    """A rule by which a tenant's work belongs to the group without naming it; no vclusters: in all of them."""

    tenant: str = ""
    vclusters: tuple[str, ...] = ()


class Lending(View, frozen=True):
    """The part of `min` that other groups may use while it is idle; no limit: all of it."""

    enabled: bool = True
    limit: Amounts | None = None


class TreeNodes(View, frozen=True):
    """The selection of the nodes that a tree divides."""

    groups: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class TreeSettings(View, frozen=True):
    """The settings of a tree of its own; None: as the LatticeConfig says."""

    nodes: TreeNodes = TreeNodes()
    ratio: int | str = "1"
    scale_min: bool | None = None
    guarantee_used: bool | None = None
    revocation: str | None = None
    delay: str | None = None
    max_per_round: int | None = None
    on_shrink: bool | None = None


class ElasticQuotaSpec(View, frozen=True):
    """The declaration of a group: its parent, guaranteed and greatest amounts, share, and the work that belongs to it."""

    parent: str = ""
    is_parent: bool = False
    min: Amounts = {}
    max: Amounts = {}
    shared_weight: Amounts | None = None
    lending: Lending = Lending()
    strict_keys: tuple[str, ...] = ()
    admission: Amounts | None = None
    namespaces: tuple[str, ...] = ()
    bindings: tuple[QuotaBinding, ...] = ()
    tree: TreeSettings | None = None


class QuotaSummary(View, frozen=True):
    """The group's amounts as short texts for tables."""

    min: str = ""
    max: str = ""
    runtime: str = ""
    used: str = ""


class ElasticQuotaStatus(View, frozen=True):
    """The state of a group as the scheduler publishes it."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    tree: str = ""
    total: Amounts | None = None
    request: Amounts | None = None
    child_request: Amounts | None = None
    used: Amounts | None = None
    non_preemptible_used: Amounts | None = None
    runtime: Amounts | None = None
    effective_min: Amounts | None = None
    borrowed: Amounts | None = None
    over_since: str | None = None
    summary: QuotaSummary | None = None


class ElasticQuota(View, frozen=True):
    """An ElasticQuota of lattice.dev."""

    metadata: Metadata
    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()
