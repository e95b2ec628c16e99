"""Computes the RBAC of a Tenant, pure: the roles and bindings that should exist, as plain objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, Resource
from lattice.views import Metadata, Reservation, Tenant

TENANT_LABEL = "lattice.dev/tenant"
OWNER_ANNOTATION = "lattice.dev/owner"
OPERATOR_LABEL = {"app.kubernetes.io/managed-by": "lattice-operator"}
USER_ROLE = "lattice-tenant-user"
ADMIN_ROLE = "lattice-tenant-admin"
SECRETS_ROLE = "lattice-tenant-secrets"
RBAC = "rbac.authorization.k8s.io"
GATEWAY = (
    {"apiGroup": RBAC, "kind": "User", "name": "lattice:gateway"},
    {"kind": "ServiceAccount", "name": "lattice-gateway", "namespace": "lattice-system"},
)
"""The subjects that may read the Secrets that work names: the gateway."""

Plain = dict[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True)
class Access:
    """The roles and bindings that should exist for one tenant, by (namespace, name); `access_of` makes it, `Tenants` makes them exist."""

    namespaces: tuple[str, ...]
    bindings: Mapping[Key, Plain]
    cluster_roles: Mapping[Key, Plain]
    cluster_bindings: Mapping[Key, Plain]

    def wanted(self) -> tuple[tuple[Resource, Mapping[Key, Plain]], ...]:
        """Returns the objects that should exist, by (namespace, name) for each resource; roles before the bindings that name them."""
        return (CLUSTER_ROLES, self.cluster_roles), (ROLE_BINDINGS, self.bindings), (CLUSTER_ROLE_BINDINGS, self.cluster_bindings)

    def without(self, namespaces: Collection[str]) -> Access:
        """Returns the access without bindings in these namespaces, which belong to somebody else."""
        return replace(self, bindings={key: body for key, body in self.bindings.items() if key[0] not in namespaces})


def labels_of(tenant: str) -> dict[str, str]:
    """Returns the labels of every object that the operator makes for a tenant (by name), except for its namespaces."""
    return {TENANT_LABEL: tenant, **OPERATOR_LABEL}


def access_of(tenant: Tenant, reservations: Iterable[Reservation] = ()) -> Access:
    """Returns the access of a tenant: users and groups use its namespaces, admins manage them and the Tenant; all read the Tenant and the
    reservations, of all those given, that concern it.

    Without namespaces in its spec the tenant has one of its own name. The gateway may read single Secrets there. A role that nobody has
    is left out.
    """
    name, access = tenant.metadata.name, tenant.spec.access
    users = [*(_subject("User", user) for user in access.users), *(_subject("Group", group) for group in access.groups)]
    admins = [_subject("User", admin) for admin in access.admins]
    namespaces = tenant.spec.namespaces or (name,)
    bindings = {
        (namespace, role): _binding("RoleBinding", role, role, subjects, tenant.metadata, namespace)
        for namespace in namespaces
        for role, subjects in ((USER_ROLE, users), (ADMIN_ROLE, admins), (SECRETS_ROLE, GATEWAY))
        if subjects
    }
    roles: dict[Key, Plain] = {}
    cluster_bindings: dict[Key, Plain] = {}
    open_to_it = sorted(one.metadata.name for one in reservations if concerns(one, tenant))
    for role, subjects, verbs in (
        (f"lattice-tenant-{name}-user", users, ["get"]),
        (f"lattice-tenant-{name}-admin", admins, ["get", "manage"]),
    ):
        if subjects:
            rule = {"apiGroups": ["lattice.dev"], "resources": ["tenants"], "resourceNames": [name], "verbs": verbs}
            rules = [rule]
            if open_to_it:
                rules.append({"apiGroups": ["lattice.dev"], "resources": ["reservations"], "resourceNames": open_to_it, "verbs": ["get"]})
            roles["", role] = _object("ClusterRole", role, tenant.metadata) | {"rules": rules}
            cluster_bindings["", role] = _binding("ClusterRoleBinding", role, role, subjects, tenant.metadata)
    return Access(tuple(namespaces), bindings, roles, cluster_bindings)


def concerns(reservation: Reservation, tenant: Tenant) -> bool:
    """Tells whether people of a tenant may read a reservation.

    True where it is maintenance, names vclusters or neither users nor tenants, names this tenant, or names a user or admin of it.
    """
    spec, access = reservation.spec, tenant.spec.access
    closed = spec.users or spec.tenants
    if spec.maintenance or spec.vclusters or not closed:
        return True
    return tenant.metadata.name in spec.tenants or bool({*access.users, *access.admins} & set(spec.users))


def differs(standing: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterable[str]:
    """Returns which of roleRef, subjects and rules differ between an existing object and the wanted one; parts that the wanted one lacks
    are not compared.
    """
    return [part for part in ("roleRef", "subjects", "rules") if part in wanted and standing.get(part) != wanted[part]]


def _object(kind: str, name: str, owner: Metadata, namespace: str = "") -> Plain:
    """Returns an RBAC object of a Tenant (`owner`), which goes when the Tenant goes; cluster-wide with an empty namespace."""
    reference = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Tenant", "name": owner.name, "uid": owner.uid}
    metadata = {"name": name, "labels": labels_of(owner.name), "ownerReferences": [reference]}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata | ({"namespace": namespace} if namespace else {})}


def _binding(kind: str, name: str, role: str, subjects: Sequence[Plain], owner: Metadata, namespace: str = "") -> Plain:
    """Returns a RoleBinding or ClusterRoleBinding (`kind`) of a Tenant that gives these subjects a ClusterRole."""
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
    return _object(kind, name, owner, namespace) | {"roleRef": reference, "subjects": list(subjects)}


def _subject(kind: str, name: str) -> Plain:
    """Returns a User or Group (`kind`) as a subject of a binding."""
    return {"apiGroup": RBAC, "kind": kind, "name": name}
