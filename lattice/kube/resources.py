"""The place of each kind on the API server: group, version, plural, scope, and whether its status is a subresource."""

from __future__ import annotations

from typing import NamedTuple


class Resource(NamedTuple):
    """One resource of the API; `status`: `/status` is a subresource with writes of its own."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    status: bool = False

    @property
    def api_version(self) -> str:
        """Returns `group/version`, or `version` in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """Returns `plural.group`, as kubectl and CRDs name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Returns the URL path; for a namespaced resource without a namespace, that of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")


_LATTICE = ("lattice.dev", "v1alpha1")
_RBAC = ("rbac.authorization.k8s.io", "v1")
_ADMISSION = ("admissionregistration.k8s.io", "v1")

ALLOCATIONS = Resource(*_LATTICE, "allocations", "Allocation", namespaced=True, status=True)
DAGS = Resource(*_LATTICE, "dags", "DAG", namespaced=True, status=True)
TENANTS = Resource(*_LATTICE, "tenants", "Tenant", namespaced=False, status=True)
VCLUSTERS = Resource(*_LATTICE, "vclusters", "VCluster", namespaced=False, status=True)
ELASTIC_QUOTAS = Resource(*_LATTICE, "elasticquotas", "ElasticQuota", namespaced=False, status=True)
CONFIGS = Resource(*_LATTICE, "latticeconfigs", "LatticeConfig", namespaced=False, status=True)
RESERVATIONS = Resource(*_LATTICE, "reservations", "Reservation", namespaced=False, status=True)
USAGE_RECORDS = Resource(*_LATTICE, "usagerecords", "UsageRecord", namespaced=False)
LEDGERS = Resource(*_LATTICE, "ledgers", "Ledger", namespaced=False, status=True)
NODES = Resource(*_LATTICE, "latticenodes", "LatticeNode", namespaced=False, status=True)
NODE_INDEXES = Resource(*_LATTICE, "nodeindexes", "NodeIndex", namespaced=False)
PLANS = Resource(*_LATTICE, "nodegroupplans", "NodeGroupPlan", namespaced=False)
NODE_HISTORIES = Resource(*_LATTICE, "nodehistories", "NodeHistory", namespaced=False)

KOORDINATOR_QUOTAS = Resource("scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas", "ElasticQuota", namespaced=True)
KOORDINATOR_PROFILES = Resource("quota.koordinator.sh", "v1alpha1", "elasticquotaprofiles", "ElasticQuotaProfile", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
NODE_LEASE_NAMESPACE = "lattice-node-lease"
"""The namespace of the nodes' Leases: heartbeats, each with a report."""
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, status=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
ROLES = Resource(*_RBAC, "roles", "Role", namespaced=True)
ROLE_BINDINGS = Resource(*_RBAC, "rolebindings", "RoleBinding", namespaced=True)
CLUSTER_ROLES = Resource(*_RBAC, "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(*_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SELF_SUBJECT_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
SELF_SUBJECT_RULES_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
CERTIFICATE_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False, status=True
)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False, status=True)
MUTATING_WEBHOOKS = Resource(*_ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False)
VALIDATING_WEBHOOKS = Resource(*_ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False)
ADMISSION_POLICIES = Resource(*_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False, status=True)
ADMISSION_POLICY_BINDINGS = Resource(*_ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False)

LATTICE = (
    ALLOCATIONS,
    DAGS,
    TENANTS,
    VCLUSTERS,
    RESERVATIONS,
    ELASTIC_QUOTAS,
    CONFIGS,
    LEDGERS,
    NODES,
    NODE_INDEXES,
    PLANS,
    NODE_HISTORIES,
    USAGE_RECORDS,
)
