"""Policies on the operator, whose rights end at what it makes for tenants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.policy_scenes import PATHS, Person, agents_binding, passed, refused
from tests.servers import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MINE = {"app.kubernetes.io/managed-by": "lattice-operator", "lattice.dev/tenant": "physics"}


def binding(kind: str, name: str, role: str, labels: dict[str, str]) -> dict[str, Any]:
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name, "labels": labels},
        "roleRef": reference, "subjects": subjects,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["lattice:operator", "system:serviceaccount:lattice-system:lattice-operator"])
def test_the_operators_rights_end_at_what_it_makes_for_tenants(server: ApiServer, name: str) -> None:
    operator = Person(server, name)
    for path in (
        "clusterroles/cluster-admin", "clusterrolebindings/cluster-admin", "clusterroles/lattice-tenant-user", "clusterroles/lattice-agent",
        "clusterrolebindings/lattice-agent",
    ):  # fmt: skip
        refused(operator("DELETE", f"{RBAC}/{path}"), "prefix lattice-tenant-")
        refused(operator("PATCH", f"{RBAC}/{path}", {"metadata": {"labels": MINE}}))
    bindings = f"{RBAC}/namespaces/kube-system/rolebindings"
    admin = binding("RoleBinding", "lattice-tenant-admin", "lattice-tenant-admin", MINE)
    refused(operator("POST", bindings, admin), 'namespace "kube-system" is not of tenant "physics"')
    own = f"{RBAC}/namespaces/physics/rolebindings"
    stray = binding("RoleBinding", "lattice-tenant-stray", "lattice-tenant-user", {})
    refused(operator("POST", own, stray), "prefix lattice-tenant-")
    refused(operator("POST", own, binding("RoleBinding", "x", "lattice-tenant-user", MINE)), "prefix lattice-tenant-")
    passed(operator("POST", own, binding("RoleBinding", "lattice-tenant-own", "lattice-tenant-user", MINE)))
    refused(operator("PATCH", f"{own}/lattice-tenant-own", {"metadata": {"labels": {"lattice.dev/tenant": None}}}), "lattice-tenant-")
    passed(operator("DELETE", f"{own}/lattice-tenant-own"))


def test_the_operator_binds_users_of_agents_to_their_role_and_nobody_else(server: ApiServer) -> None:
    operator = Person(server, "lattice:operator")
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        path = PATHS[kind].format("lattice-node-lease")
        for change in (
            {"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]},
            {"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "lattice:agent:all"}]},
            {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lattice-scheduler"}},
            {"metadata": {"name": "lattice-agents-77"}}, {"metadata": {"name": "mine", "labels": MINE}},
        ):  # fmt: skip
            refused(operator("POST", path, {**agents_binding(kind, "n1", name="lattice-agents-77"), **change}))
    everywhere = agents_binding("ClusterRoleBinding", "n1")
    refused(operator("POST", PATHS["RoleBinding"].format("kube-system"), everywhere), "prefix lattice-tenant-")
    refused(operator("DELETE", f"{PATHS['ClusterRoleBinding']}/lattice-agents-00"), "prefix lattice-tenant-")


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        ("ClusterRoleBinding", "lattice-tenant-secrets"), ("ClusterRoleBinding", "lattice-tenant-admin"),
        ("ClusterRoleBinding", "lattice-tenant-chem-admin"), ("RoleBinding", "lattice-tenant-chem-admin"),
        ("RoleBinding", "lattice-tenant-secrets"),
    ],
)  # fmt: skip
def test_the_operator_gives_nobody_a_tenants_secrets_or_another_tenants_role(server: ApiServer, kind: str, role: str) -> None:
    where = f"{RBAC}/clusterrolebindings" if kind == "ClusterRoleBinding" else f"{RBAC}/namespaces/physics/rolebindings"
    operator = Person(server, "lattice:operator")
    if role not in ("lattice-tenant-admin", "lattice-tenant-secrets"):
        theirs = {"apiGroups": ["lattice.dev"], "resources": ["tenants"], "resourceNames": ["chem"], "verbs": ["manage"]}
        server.request("POST", f"{RBAC}/clusterroles", {"metadata": {"name": role}, "rules": [theirs]})
    refused(operator("POST", where, binding(kind, "lattice-tenant-evil", role, MINE)), "the operator")


EVIL_RULES: dict[str, dict[str, Any]] = {
    "roles": {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles", "clusterrolebindings"], "verbs": ["delete"]},
    "namespaces": {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["patch"]},
    "every tenant": {"apiGroups": ["lattice.dev"], "resources": ["tenants"], "verbs": ["manage"]},
    "another tenant": {"apiGroups": ["lattice.dev"], "resources": ["tenants"], "resourceNames": ["chem"], "verbs": ["manage"]},
    "work": {"apiGroups": ["lattice.dev"], "resources": ["allocations"], "verbs": ["delete"]},
}


@pytest.mark.parametrize("name", EVIL_RULES)
def test_the_operators_rights_go_to_nobody_by_a_role_that_it_makes(server: ApiServer, name: str) -> None:
    operator, path = Person(server, "lattice:operator"), f"{RBAC}/clusterroles"
    own = {"apiGroups": ["lattice.dev"], "resources": ["tenants"], "resourceNames": ["physics"], "verbs": ["get", "manage"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "lattice-tenant-x", "labels": MINE}}
    refused(operator("POST", path, {**role, "rules": [own, EVIL_RULES[name]]}), "nothing else")
    passed(operator("POST", path, {**role, "rules": [own]}))
    refused(operator("PATCH", f"{path}/lattice-tenant-x", {"rules": [EVIL_RULES[name]]}), "nothing else")
    aggregated = {"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}
    refused(operator("PATCH", f"{path}/lattice-tenant-x", aggregated), "nothing else")
    passed(operator("DELETE", f"{path}/lattice-tenant-x"))


def test_the_operator_labels_no_namespace_and_makes_none_but_for_tenants(server: ApiServer) -> None:
    operator, root = Person(server, "lattice:operator"), Person(server, "root", ("system:masters",))
    for namespace in ("kube-system", "default", "lattice-system"):
        refused(
            operator("PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"lattice.dev/tenant": "chem"}}}),
            "takes the label",
        )
    refused(
        operator("PATCH", "/api/v1/namespaces/physics", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}),
        "takes the label",
    )
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "by-operator", "labels": {"lattice.dev/tenant": "chem"}},
    }
    passed(operator("POST", "/api/v1/namespaces", made))
    passed(operator("PATCH", "/api/v1/namespaces/by-operator", {"metadata": {"labels": {"lattice.dev/tenant": None}}}))
    refused(operator("DELETE", "/api/v1/namespaces/by-operator"))
    made["metadata"] = {"name": "kube-evil", "labels": {"lattice.dev/tenant": "chem"}}
    refused(operator("POST", "/api/v1/namespaces", made), "makes namespaces for tenants")
    passed(root("DELETE", "/api/v1/namespaces/by-operator"))
