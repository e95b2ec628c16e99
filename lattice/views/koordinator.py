"""Koordinator's ElasticQuota and ElasticQuotaProfile as far as we read them; their other settings are in labels and annotations."""

from __future__ import annotations

from lattice.views.elastic_quota import Amounts
from lattice.views.meta import Metadata, View


class KoordinatorQuotaSpec(View, frozen=True):
    """Guaranteed and greatest amounts of a group."""

    min: Amounts = {}
    max: Amounts = {}


class KoordinatorQuotaStatus(View, frozen=True):
    """The amounts that the group's work holds."""

    used: Amounts = {}


class KoordinatorQuota(View, frozen=True):
    """An ElasticQuota of scheduling.sigs.k8s.io/v1alpha1."""

    metadata: Metadata
    spec: KoordinatorQuotaSpec = KoordinatorQuotaSpec()
    status: KoordinatorQuotaStatus = KoordinatorQuotaStatus()


class LabelRequirement(View, frozen=True):
    """One requirement: In, NotIn, Exists or DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(View, frozen=True):
    """The labels that a node must have."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()


class ProfileSpec(View, frozen=True):
    """A tree: the name and labels of its root, its nodes, and the share of their capacity."""

    quota_name: str = ""
    quota_labels: dict[str, str] = {}
    resource_ratio: str | None = None
    node_selector: LabelSelector | None = None


class KoordinatorProfile(View, frozen=True):
    """An ElasticQuotaProfile of quota.koordinator.sh/v1alpha1."""

    metadata: Metadata
    spec: ProfileSpec = ProfileSpec()
