"""The cached ElasticQuota; amounts are quantities by resource, as people wrote them."""

from __future__ import annotations

from lattice.views.allocation import Condition
from lattice.views.meta import Metadata, View

Amounts = dict[str, int | str]
"""Quantities by resource."""


class QuotaBinding(View, frozen=True):
    """Work that belongs to the group without naming it; no vclusters: all."""

    tenant: str = ""
    vclusters: tuple[str, ...] = ()


class Lending(View, frozen=True):
    """What others may use of min; no limit: all of it."""

    enabled: bool = True
    limit: Amounts | None = None


class TreeNodes(View, frozen=True):
    """Which nodes a tree divides."""

    groups: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class TreeSettings(View, frozen=True):
    """A tree of its own; None: as the LatticeConfig says."""

    nodes: TreeNodes = TreeNodes()
    ratio: int | str = "1"
    scale_min: bool | None = None
    guarantee_used: bool | None = None
    revocation: str | None = None
    delay: str | None = None
    max_per_round: int | None = None
    on_shrink: bool | None = None


class ElasticQuotaSpec(View, frozen=True):
    """What a group is guaranteed, what it may have at most, and whose work it is."""

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
    """The numbers as short texts."""

    min: str = ""
    max: str = ""
    runtime: str = ""
    used: str = ""


class ElasticQuotaStatus(View, frozen=True):
    """What the scheduler made of it."""

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
