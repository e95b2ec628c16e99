"""A real API server with the manifests of `charts/lattice/files`: each right is enough, each policy refuses what it should.

The webhooks are registered and down: what holds there holds without them.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from tests import servers
from tests.servers import MERGE, Answer, ApiServer

FILES = servers.ROOT / "charts" / "lattice" / "files"
GROUP = "/apis/lattice.dev/v1alpha1"
ALLOCATIONS = f"{GROUP}/namespaces/physics/allocations"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/lattice-node-lease/leases"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "PriorityLevelConfiguration": "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
}
UNSERVED = "https://127.0.0.1:1"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True)
class Person:
    """A requester that the administrator impersonates: a person, a daemon, or an agent."""

    server: ApiServer
    user: str
    groups: tuple[str, ...] = ("system:authenticated",)
    node: str = ""

    def __call__(self, method: str, path: str, body: Any = None, *, content_type: str = "") -> Answer:
        """One request as this person; PATCH is a merge patch unless said otherwise."""
        trusted = ssl.create_default_context(cafile=str(self.server.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=60, context=trusted)
        try:
            connection.putrequest(method, path)
            for name, value in self._headers(content_type or (MERGE if method == "PATCH" else servers.JSON)):
                connection.putheader(name, value)
            data = b"" if body is None else json.dumps(body).encode()
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            response = connection.getresponse()
            return Answer(response.status, json.loads(response.read() or b"null"))
        finally:
            connection.close()

    def _headers(self, content_type: str) -> Iterator[tuple[str, str]]:
        yield "Authorization", f"Bearer {servers.ADMIN_TOKEN}"
        yield "Content-Type", content_type
        yield "Impersonate-User", self.user
        for group in self.groups:
            yield "Impersonate-Group", group
        if self.node:
            yield "Impersonate-Extra-" + quote("authentication.kubernetes.io/node-name", safe=""), self.node


def manifests(server: ApiServer) -> Iterator[dict[str, Any]]:
    ca = base64.b64encode(server.ca.read_bytes()).decode()
    for file in sorted(FILES.glob("*.yaml"), key=lambda path: (path.name != "namespaces.yaml", path.name)):
        text = file.read_text().replace("${WEBHOOK_URL}", UNSERVED).replace("${CA_BUNDLE}", ca)
        yield from yaml.safe_load_all(text)


def collection(manifest: Mapping[str, Any]) -> str:
    return PATHS[manifest["kind"]].format(manifest["metadata"].get("namespace", ""))


@contextmanager
def guarded(directory: Path) -> Iterator[ApiServer]:
    """etcd and kube-apiserver with every policy and right, the tenants physics and chemistry, and agents that are bound."""
    with servers.running(directory) as running:
        running.install_all()
        for manifest in manifests(running):
            answer = running.request("POST", collection(manifest), manifest, query={"fieldValidation": "Strict"})
            assert answer.ok, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.message}"
        _tenant(running, "physics", users=("alice", "bob"), admins=("carol",))
        _tenant(running, "chemistry", users=("mallory",))
        _until_enforced(running)
        bind_agents(running, "n1", "n2", "own-agent", "other-agent", "told", "fields", "declared", "drained", "forgotten")
        yield running


def _tenant(server: ApiServer, name: str, *, users: tuple[str, ...], admins: tuple[str, ...] = ()) -> None:
    """What the operator makes of a Tenant, by hand."""
    put = server.request
    assert put(
        "POST", f"{GROUP}/tenants", {"apiVersion": "lattice.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": {}}
    ).ok
    assert put("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"lattice.dev/tenant": name}}}).ok
    for role, members in (("lattice-tenant-user", users), ("lattice-tenant-admin", admins)):
        subjects = [{"kind": "User", "name": member, "apiGroup": "rbac.authorization.k8s.io"} for member in members]
        ref = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings"
        assert put("POST", path, {"metadata": {"name": role}, "roleRef": ref, "subjects": subjects}).ok
    _grant(server, f"manage-{name}", "manage", name, admins)
    _grant(server, f"runas-{name}", "runas", name, (f"system:serviceaccount:{name}:gitops",))
    _grant_in_namespace(server, name, f"system:serviceaccount:{name}:gitops")


def _grant(server: ApiServer, name: str, verb: str, tenant: str, members: tuple[str, ...]) -> None:
    rule = {"apiGroups": ["lattice.dev"], "resources": ["tenants"], "resourceNames": [tenant], "verbs": [verb]}
    assert server.request("POST", PATHS["ClusterRole"], {"metadata": {"name": name}, "rules": [rule]}).ok
    subjects = [{"kind": "User", "name": member, "apiGroup": "rbac.authorization.k8s.io"} for member in members]
    ref = {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    assert server.request("POST", PATHS["ClusterRoleBinding"], {"metadata": {"name": name}, "roleRef": ref, "subjects": subjects}).ok


def _grant_in_namespace(server: ApiServer, namespace: str, user: str) -> None:
    ref = {"kind": "ClusterRole", "name": "lattice-tenant-user", "apiGroup": "rbac.authorization.k8s.io"}
    body = {
        "metadata": {"name": "gitops"},
        "roleRef": ref,
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    assert server.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", body).ok


def _until_enforced(server: ApiServer) -> None:
    """Policies and roles reach the admission plugin within a moment of their creation, the one that was made last with the last."""
    name, policies = "made-last", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": f"object.metadata.name != '{name}'", "message": "all policies are enforced"}],
    }
    assert server.request("POST", policies + "ies", {"metadata": {"name": name}, "spec": spec}).ok
    binding = {"policyName": name, "validationActions": ["Deny"]}
    assert server.request("POST", policies + "ybindings", {"metadata": {"name": name}, "spec": binding}).ok
    probe = {"metadata": {"name": name}}
    servers.until(
        lambda: "all policies are enforced" in server.request("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", probe).message,
        "the policies are enforced",
        within=30,
    )
    scheduler = Person(server, "lattice:scheduler")
    servers.until(
        lambda: scheduler("GET", f"{GROUP}/ledgers").ok and Person(server, "carol")("GET", ALLOCATIONS).ok, "roles are in force", within=30
    )


def allocation(
    name: str, *, user: str = "alice", tenant: str = "physics", vcluster: str = "hpc", finalizers: tuple[str, ...] = ()
) -> dict[str, Any]:
    spec: dict[str, Any] = {"entrypoint": "true", "resources": {"nodes": 1}, "lifecycle": {"type": "Bounded", "walltime": "1m"}}
    spec |= {key: value for key, value in (("user", user), ("tenant", tenant), ("vcluster", vcluster)) if value}
    metadata: dict[str, Any] = {"name": name, "namespace": "physics"}
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": metadata, "spec": spec}


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": {"name": name}, "spec": {"group": "g0"}}


def agents_binding(kind: str, *nodes: str, name: str = "lattice-agents-00") -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "lattice-operator"}},
        "roleRef": {"apiGroup": group, "kind": kind.removesuffix("Binding"), "name": "lattice-agent"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": f"lattice:agent:{node}"} for node in nodes],
    }


def bind_agents(server: ApiServer, *nodes: str) -> None:
    """What the operator does for nodes, by its own rights."""
    operator = Person(server, "lattice:operator")
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        passed(operator("POST", PATHS[kind].format("lattice-node-lease"), agents_binding(kind, *nodes)))
    lease = f"{LEASES}/nobody"
    servers.until(lambda: agent(server, nodes[-1])("GET", lease).status == 404, "the agents are bound", within=30)


def agent(server: ApiServer, name: str) -> Person:
    return Person(server, f"lattice:agent:{name}", ("lattice:agents", "system:authenticated"))


def bound_agent(server: ApiServer, name: str) -> Person:
    return Person(
        server, "system:serviceaccount:lattice-system:lattice-agent", ("system:serviceaccounts", "system:authenticated"), node=name
    )


def reports(agent: Person, path: str, change: dict[str, Any]) -> Answer:
    """The agent replaces the status at its newest version, with these changes."""
    stands = agent.server.request("GET", path.partition("/status")[0]).body
    metadata = {key: stands["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": metadata,
        "status": {**stands["status"], **change["status"]},
    }
    return agent("PUT", path, body)


def refused(answer: Answer, *words: str) -> None:
    assert answer.status in (403, 422), f"{answer.status}: {answer.message}"
    for word in words:
        assert word in answer.message, answer.message


def passed(answer: Answer) -> None:
    assert answer.ok, f"{answer.status}: {answer.message}"


PLACED = {
    "attempt": 2, "reporter": "n1", "nodes": "n[1-2]", "nodeCount": 2, "head": "n1", "number": 7, "ledgerSeq": 40, "requeues": 1,
    "conditions": [
        {"type": "Scheduled", "status": "True", "reason": "Placed", "message": "on 2 nodes", "lastTransitionTime": "2026-01-01T00:00:00Z",
         "observedGeneration": 1},
    ],
}  # fmt: skip
STARTED = {
    "type": "Started", "status": "True", "reason": "Running", "lastTransitionTime": "2026-01-01T00:00:01Z", "observedGeneration": 1,
}  # fmt: skip


def placed(server: ApiServer, name: str) -> str:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation(name)))
    path = f"{ALLOCATIONS}/{name}/status"
    passed(Person(server, "lattice:scheduler")("PATCH", path, {"status": PLACED}))
    return path


def report(**changes: Any) -> dict[str, Any]:
    status = {"report": {"attempt": 2, "by": "n1"}, "conditions": [*PLACED["conditions"], STARTED], "phase": "Running"}  # type: ignore[misc]
    return {"status": {**status, **changes}}
