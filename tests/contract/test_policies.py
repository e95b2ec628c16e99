"""The manifests of `charts/lattice/files` on a real API server: each right is enough, each policy refuses what it should.

The webhooks are registered and down: what holds here holds without them.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from lattice_agent.cluster.certificates import make_request
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with servers.running(tmp_path_factory.mktemp("policies")) as running:
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


# --- whose work -----------------------------------------------------------------------------------------------------


def test_a_member_submits_in_the_tenants_namespace_as_themselves(server: ApiServer) -> None:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation("mine")))


def test_an_empty_user_is_refused_with_a_sentence_that_names_it(server: ApiServer) -> None:
    refused(Person(server, "alice")("POST", ALLOCATIONS, allocation("nobody", user="")), 'set spec.user to "alice"')


def test_another_name_needs_runas(server: ApiServer) -> None:
    refused(Person(server, "alice")("POST", ALLOCATIONS, allocation("as-bob", user="bob")), "runas", '"bob"', '"alice"')
    refused(Person(server, "carol")("POST", ALLOCATIONS, allocation("as-bob", user="bob")), "runas")
    passed(Person(server, "system:serviceaccount:physics:gitops")("POST", ALLOCATIONS, allocation("as-bob", user="bob")))


def reading(name: str, *secrets: str, user: str = "alice") -> dict[str, Any]:
    body = allocation(name, user=user)
    body["spec"]["environment"] = {"variablesFrom": [{"secretRef": secret, "prefix": "P_"} for secret in secrets]}
    return body


def may_read(server: ApiServer, user: str, *secrets: str) -> None:
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": list(secrets), "verbs": ["get"]}
    root, name = "/apis/rbac.authorization.k8s.io/v1/namespaces/physics", f"secrets-{user.rpartition(':')[2]}"
    passed(server.request("POST", f"{root}/roles", {"metadata": {"name": name}, "rules": [rule]}))
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    ref = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    passed(server.request("POST", f"{root}/rolebindings", {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}))


def test_work_reads_the_secrets_that_its_submitter_may_read(server: ApiServer) -> None:
    alice, many = Person(server, "alice"), [f"s{number}" for number in range(8)]
    gitops = Person(server, "system:serviceaccount:physics:gitops")
    may_read(server, "alice", "wandb", *many[:7])
    may_read(server, gitops.user, "robots")
    dry = f"{ALLOCATIONS}?dryRun=All"
    servers.until(lambda: not alice("POST", dry, reading("r", "others")).ok, "the policy is enforced", within=30)
    servers.until(lambda: alice("POST", dry, reading("r", "wandb")).ok, "the right is in force", within=30)
    passed(alice("POST", ALLOCATIONS, reading("reads", "wandb", *many[:7])))
    refused(alice("POST", ALLOCATIONS, reading("r", "wandb", "others")), "variablesFrom[1]", '"others"', "alice", "the verb get")
    refused(alice("POST", dry, reading("r", "others")), '"others"')
    for place in range(8):
        named = [*many[:7], "wandb"]
        named[place] = "others"
        refused(alice("POST", ALLOCATIONS, reading("r", *named)), f"variablesFrom[{place}]")
    refused(Person(server, "bob")("POST", ALLOCATIONS, reading("r", "wandb", user="bob")), "bob may not read")
    servers.until(lambda: gitops("POST", dry, reading("r", "robots")).ok, "the right is in force", within=30)
    refused(gitops("POST", ALLOCATIONS, reading("r", "wandb")), "gitops may not read")
    assert "Too many" in alice("POST", ALLOCATIONS, reading("r", *["wandb"] * 9)).message
    change = {"spec": {"environment": {"variablesFrom": [{"secretRef": "others"}]}}}
    refused(alice("PATCH", f"{ALLOCATIONS}/reads", change), "cannot be changed")


def test_the_gateway_reads_secrets_by_name_and_only_where_the_operator_has_bound_it(server: ApiServer) -> None:
    gateway, operator = Person(server, "lattice:gateway"), Person(server, "lattice:operator")
    passed(server.request("POST", "/api/v1/namespaces/physics/secrets", {"metadata": {"name": "wandb"}, "data": {}}))
    assert gateway("GET", "/api/v1/namespaces/physics/secrets/wandb").status == 403
    ref = {"kind": "ClusterRole", "name": "lattice-tenant-secrets", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "User", "name": "lattice:gateway", "apiGroup": "rbac.authorization.k8s.io"}
    labels = {"app.kubernetes.io/managed-by": "lattice-operator", "lattice.dev/tenant": "physics"}
    body = {"metadata": {"name": "lattice-tenant-secrets", "labels": labels}, "roleRef": ref, "subjects": [subject]}
    passed(operator("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/physics/rolebindings", body))
    servers.until(lambda: gateway("GET", "/api/v1/namespaces/physics/secrets/wandb").ok, "the binding is in force", within=30)
    for path in ("/api/v1/namespaces/physics/secrets", "/api/v1/secrets", "/api/v1/namespaces/chemistry/secrets/wandb"):
        assert gateway("GET", path).status == 403
    assert operator("GET", "/api/v1/namespaces/physics/secrets/wandb").status == 403


def test_the_tenant_is_the_namespaces_tenant(server: ApiServer) -> None:
    refused(Person(server, "alice")("POST", ALLOCATIONS, allocation("foreign", tenant="chemistry")), '"chemistry"', '"physics"')
    refused(Person(server, "alice")("POST", ALLOCATIONS, allocation("no-tenant", tenant="")), 'set spec.tenant to "physics"')
    elsewhere = allocation("elsewhere")
    elsewhere["metadata"]["namespace"] = "lattice-system"
    path = f"{GROUP}/namespaces/lattice-system/allocations"
    refused(Person(server, "root", ("system:masters",))("POST", path, elsewhere), "belongs to no tenant")


def test_an_empty_vcluster_is_refused_because_it_could_never_be_filled_in(server: ApiServer) -> None:
    refused(Person(server, "alice")("POST", ALLOCATIONS, allocation("no-vcluster", vcluster="")), "spec.vcluster is empty")


def test_only_owner_and_admins_change_or_delete_work(server: ApiServer) -> None:
    alice, bob, carol = (Person(server, name) for name in ("alice", "bob", "carol"))
    for name in ("kept", "changed", "by-admin"):
        passed(alice("POST", ALLOCATIONS, allocation(name)))
    wish = {"spec": {"cancel": {"reason": "no"}}}
    refused(bob("PATCH", f"{ALLOCATIONS}/kept", wish), 'belongs to "alice"', 'you are "bob"')
    refused(bob("DELETE", f"{ALLOCATIONS}/kept"), 'belongs to "alice"')
    passed(alice("PATCH", f"{ALLOCATIONS}/changed", {"spec": {"hold": True}}))
    passed(carol("PATCH", f"{ALLOCATIONS}/by-admin", wish))
    passed(carol("DELETE", f"{ALLOCATIONS}/by-admin"))
    passed(alice("DELETE", f"{ALLOCATIONS}/changed"))
    assert alice("GET", f"{ALLOCATIONS}/kept").ok


def test_an_outsider_sees_and_changes_nothing(server: ApiServer) -> None:
    mallory = Person(server, "mallory")
    for answer in (
        mallory("GET", ALLOCATIONS),
        mallory("POST", ALLOCATIONS, allocation("x", user="mallory")),
        mallory("GET", f"{GROUP}/tenants"),
    ):
        assert answer.status == 403


def test_clean_up_of_kubernetes_may_delete_everybodys_work(server: ApiServer) -> None:
    for index, name in enumerate(("namespace-controller", "generic-garbage-collector")):
        passed(Person(server, "alice")("POST", ALLOCATIONS, allocation(f"swept-{index}")))
        cleaner = Person(server, f"system:serviceaccount:kube-system:{name}", ("system:masters", "system:serviceaccounts"))
        passed(cleaner("DELETE", f"{ALLOCATIONS}/swept-{index}"))


def test_the_release_finalizer_is_removed_by_lattice_alone(server: ApiServer) -> None:
    alice, scheduler = Person(server, "alice"), Person(server, "lattice:scheduler")
    passed(alice("POST", ALLOCATIONS, allocation("finalized", finalizers=("lattice.dev/release",))))
    gone = {"metadata": {"finalizers": None}}
    refused(alice("PATCH", f"{ALLOCATIONS}/finalized", gone), "lattice.dev/release")
    refused(Person(server, "root", ("system:masters",))("PATCH", f"{ALLOCATIONS}/finalized", gone), "lattice.dev/release")
    passed(scheduler("PATCH", f"{ALLOCATIONS}/finalized", gone))
    passed(scheduler("PATCH", f"{ALLOCATIONS}/finalized", {"metadata": {"finalizers": ["lattice.dev/release"]}}))
    as_account = Person(
        server, "system:serviceaccount:lattice-system:lattice-scheduler", ("system:serviceaccounts", "system:authenticated")
    )
    passed(as_account("PATCH", f"{ALLOCATIONS}/finalized", gone))


# --- reports --------------------------------------------------------------------------------------------------------

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


def test_the_reporter_writes_its_conditions(server: ApiServer) -> None:
    passed(reports(agent(server, "n1"), placed(server, "reported"), report()))
    passed(reports(bound_agent(server, "n1"), placed(server, "reported-by-account"), report()))


def test_only_the_reporter_of_the_current_attempt_reports(server: ApiServer) -> None:
    path = placed(server, "strange-report")
    refused(reports(agent(server, "n2"), path, report()), 'the reporter of this allocation is "n1"')
    refused(reports(bound_agent(server, "n2"), path, report()), 'the reporter of this allocation is "n1"')
    refused(reports(agent(server, "n1"), path, report(report={"attempt": 1, "by": "n1"})), "attempt 1", "attempt 2", "dropped")
    refused(reports(agent(server, "n1"), path, report(report={"attempt": 2, "by": "n9"})), "dropped")
    refused(
        Person(server, "root", ("system:masters",))("PATCH", path, report()),
        "written by the scheduler, by the agent that reports it and by the operator",
    )
    refused(Person(server, "alice")("PATCH", path, report()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", 3),
        ("reporter", "n2"),
        ("nodes", "n[1-3]"),
        ("number", 8),
        ("ledgerSeq", 41),
        ("head", "n2"),
        ("nodeCount", 3),
        ("requeues", 0),
    ],
)
def test_an_agent_leaves_what_the_scheduler_writes(server: ApiServer, field: str, value: object) -> None:
    path = placed(server, f"field-{field.lower()}")
    changes: dict[str, Any] = {field: value}
    if field == "attempt":
        changes["report"] = {"attempt": 3, "by": "n1"}
    refused(reports(agent(server, "n1"), path, report(**changes)))


def test_a_reporter_starts_and_ends_nothing_before_it_was_placed(server: ApiServer) -> None:
    path = placed(server, "times")
    passed(Person(server, "lattice:scheduler")("PATCH", path, {"status": {"scheduledTime": "2026-01-01T00:10:00Z"}}))
    by = agent(server, "n1")
    refused(reports(by, path, report(startTime="2020-01-01T00:00:00Z")), "after it was placed at 2026-01-01T00:10:00Z", 'node "n1"')
    refused(reports(by, path, report(endTime="2026-01-01T00:04:59Z")), "after it was placed")
    passed(reports(by, path, report(startTime="2026-01-01T00:09:58Z")))
    refused(reports(by, path, report(endTime="2026-01-01T00:04:57Z")))
    passed(reports(by, path, report(startTime="2026-01-01T01:00:00Z")))
    refused(reports(by, path, report(endTime="2026-01-01T00:54:00Z")), "endTime is before startTime")
    passed(reports(by, path, report(endTime="2026-01-01T01:00:00.250Z")))


def test_an_agent_leaves_the_schedulers_conditions(server: ApiServer) -> None:
    path = placed(server, "conditions")
    refused(reports(agent(server, "n1"), path, report(conditions=[STARTED])), "Admitted, Scheduled and Ending")
    admitted = {**STARTED, "type": "Admitted"}
    refused(reports(agent(server, "n1"), path, report(conditions=[*PLACED["conditions"], admitted])), "Admitted, Scheduled and Ending")  # type: ignore[misc]


IMAGE = {"source": "prgenv/24.11:v1", "digest": "sha256:" + "a" * 64, "size": 7, "repository": "uenv/a", "layer": "sha256:" + "b" * 64}
AWAITED = {**STARTED, "type": "SoftwareResolved", "status": "Unknown", "reason": "RegistryAwaited"}


def test_the_operator_pins_images_once_and_writes_nothing_else_of_a_status(server: ApiServer) -> None:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation("images")))
    path, operator, scheduler = f"{ALLOCATIONS}/images/status", Person(server, "lattice:operator"), Person(server, "lattice:scheduler")
    waits = {**PLACED["conditions"][0], "status": "False", "reason": "WaitingForImages"}  # type: ignore[index]
    passed(scheduler("PATCH", path, {"status": {"conditions": [waits], "phase": "Pending", "number": 7}}))
    passed(operator("PATCH", path, {"status": {"conditions": [waits, AWAITED]}}))
    for change in (
        {"phase": "Failed"}, {"number": 10}, {"nodes": "n1"}, {"attempt": 1}, {"exit": {"code": 0}}, {"conditions": [AWAITED]},
        {"conditions": [{**waits, "status": "True"}, AWAITED]}, {"conditions": [waits, {**STARTED, "type": "Finished"}]},
    ):  # fmt: skip
        refused(operator("PATCH", path, {"status": change}))
    passed(operator("PATCH", path, {"status": {"software": [IMAGE], "conditions": [waits]}}))
    refused(operator("PATCH", path, {"status": {"software": [{**IMAGE, "digest": "sha256:" + "c" * 64}]}}), "written once")
    refused(scheduler("PATCH", path, {"status": {"software": []}}), "written once")
    refused(scheduler("PATCH", path, {"status": {"software": None}}), "written once")
    passed(scheduler("PATCH", path, {"status": PLACED}))
    refused(operator("PATCH", path, {"status": {"software": None}}), "written once")
    refused(operator("PATCH", path, {"status": {"conditions": [*PLACED["conditions"], AWAITED]}}), "before the first attempt")  # type: ignore[misc]


def test_no_agent_changes_which_images_work_uses_or_says_that_they_are_refused(server: ApiServer) -> None:
    path = placed(server, "no-images")
    refused(reports(agent(server, "n1"), path, report(software=[IMAGE])), "software by the operator")
    said: Any = [*report()["status"]["conditions"], AWAITED]
    refused(reports(agent(server, "n1"), path, report(conditions=said)), "SoftwareResolved by the operator")


def test_a_late_report_does_not_bring_an_ended_attempt_back(server: ApiServer) -> None:
    path = placed(server, "ended")
    finished = {**STARTED, "type": "Finished", "reason": "Completed"}
    passed(reports(agent(server, "n1"), path, report(conditions=[*PLACED["conditions"], STARTED, finished])))  # type: ignore[misc]
    refused(reports(agent(server, "n1"), path, report()), "late report")
    passed(
        Person(server, "lattice:scheduler")("PATCH", path, {"status": {"conditions": PLACED["conditions"], "ledgerSeq": 41, "attempt": 3}})
    )


def test_a_scheduler_patch_made_from_an_older_ledger_is_refused(server: ApiServer) -> None:
    path = placed(server, "older")
    refused(Person(server, "lattice:scheduler")("PATCH", path, {"status": {"ledgerSeq": 39}}), "ledgerSeq never goes back")


def test_what_is_never_taken_back_is_never_removed_either(server: ApiServer) -> None:
    """Also by the scheduler, about whom the policy is asked only then; in the schema such a rule would cost each write."""
    path, scheduler = placed(server, "removed"), Person(server, "lattice:scheduler")
    for change, sentence in (
        ({"ledgerSeq": None}, "status.ledgerSeq never goes back: this patch was made from an older ledger"),
        ({"number": None}, "status.number is given once"),
        ({"attempt": None}, "status.attempt never goes back"),
        (None, "the status of an allocation is never removed"),
    ):
        refused(scheduler("PATCH", path, {"status": change}), sentence)
        before = server.request("GET", path.partition("/status")[0]).body
        body = {**before, "status": {**before["status"], **(change or {})}}
        refused(scheduler("PUT", path, body if change else {key: value for key, value in before.items() if key != "status"}), sentence)
        if change:
            refused(reports(agent(server, "n1"), path, {"status": {**report()["status"], **change}}), sentence)
    passed(scheduler("PATCH", path, {"status": {"head": None, "ledgerSeq": 41}}))


@pytest.mark.parametrize("proof", [agent, bound_agent], ids=["certificate", "bound-token"])
def test_an_agent_reads_no_allocation_by_any_verb(server: ApiServer, proof: Any) -> None:
    """Also not by a patch: what it copies or compares, the API server would show or tell, whoever reports the work."""
    path, watch = placed(server, f"unread-{proof.__name__.replace('_', '-')}"), f"{ALLOCATIONS}?watch=true&timeoutSeconds=1"
    copy = [{"op": "copy", "from": "/spec/entrypoint", "path": "/status/conditions/0/status"}]
    for node_name in ("n1", "n2"):
        who = proof(server, node_name)
        for target in (ALLOCATIONS, watch, f"{GROUP}/allocations", path, path.removesuffix("/status")):
            assert who("GET", target).status == 403
        for content_type, body in ((JSON_PATCH, copy), (JSON_PATCH, []), (MERGE, report()), (MERGE, {})):
            for query in ("", "?dryRun=All"):
                answer = who("PATCH", path + query, body, content_type=content_type)
                assert answer.status == 403, answer.message
                assert "cannot patch" in answer.message
    stranger = proof(server, "n2")
    for query in ("", "?dryRun=All"):  # a replacement that changes nothing would answer with the whole object
        assert reports(stranger, path + query, {"status": {}}).status == 403


def test_agents_touch_only_the_status_of_allocations(server: ApiServer) -> None:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation("spec-kept")))
    refused(agent(server, "n1")("PATCH", f"{ALLOCATIONS}/spec-kept", {"spec": {"hold": True}}))
    refused(agent(server, "n1")("DELETE", f"{ALLOCATIONS}/spec-kept"))
    strong = Person(server, "lattice:agent:n1", ("lattice:agents", "system:masters"))
    refused(strong("PATCH", f"{ALLOCATIONS}/spec-kept", {"spec": {"hold": True}}), "agents write only the status")


# --- nodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proof", [agent, bound_agent], ids=["certificate", "bound-token"])
def test_an_agent_writes_its_own_node_and_lease_only(server: ApiServer, proof: Any) -> None:
    own, other = f"own-{proof.__name__.replace('_', '-')}", f"other-{proof.__name__.replace('_', '-')}"
    writer = proof(server, own)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": own}, "spec": {"holderIdentity": own}}
    passed(writer("POST", f"{GROUP}/latticenodes", node(own)))
    passed(writer("PATCH", f"{GROUP}/latticenodes/{own}/status", {"status": {"health": "Healthy", "kernel": "6.1", "hollow": False}}))
    passed(writer("POST", LEASES, lease))
    passed(writer("PATCH", f"{LEASES}/{own}", {"metadata": {"annotations": {"lattice.dev/report": "1 hb=2"}}}))
    refused(writer("POST", f"{GROUP}/latticenodes", node(other)), "only what is of its own node", other)
    passed(proof(server, other)("POST", f"{GROUP}/latticenodes", node(other)))
    passed(proof(server, other)("POST", LEASES, {**lease, "metadata": {"name": other}}))
    refused(writer("PATCH", f"{GROUP}/latticenodes/{other}/status", {"status": {"health": "Healthy"}}), "own node")
    refused(writer("PATCH", f"{LEASES}/{other}", {"spec": {"holderIdentity": own}}), "own node")
    refused(writer("PATCH", f"{GROUP}/latticenodes/{own}", {"spec": {"group": "g1"}}))
    refused(writer("DELETE", f"{GROUP}/latticenodes/{own}"))


def test_an_agent_that_nobody_has_bound_makes_its_node_and_nothing_else(server: ApiServer) -> None:
    new = agent(server, "unbound")
    passed(new("POST", f"{GROUP}/latticenodes", node("unbound")))
    refused(new("POST", f"{GROUP}/latticenodes", node("another")), "own node")
    refused(new("PATCH", f"{GROUP}/latticenodes/unbound/status", {"status": {"health": "Healthy"}}))
    refused(new("POST", LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "unbound"}, "spec": {}}))
    refused(new("GET", f"{GROUP}/nodegroupplans"))


def test_the_agent_of_a_forgotten_node_does_not_make_it_again_and_an_operator_does(server: ApiServer) -> None:
    names = f"{PATHS['ConfigMap'].format('lattice-system')}/lattice-forgotten-nodes"
    scheduler, olga = Person(server, "lattice:scheduler"), Person(server, "olga", ("lattice:operator", "system:authenticated"))
    passed(scheduler("PATCH", names, {"data": {"forgotten": "2026-01-01T00:00:00Z"}}))
    dry = f"{GROUP}/latticenodes?dryRun=All"
    servers.until(lambda: agent(server, "forgotten")("POST", dry, node("forgotten")).status == 403, "the name is known", within=10)
    for proof in (agent, bound_agent):
        refused(proof(server, "forgotten")("POST", dry, node("forgotten")), "lattice node add forgotten")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "forgotten"}, "spec": {}}
    refused(bound_agent(server, "forgotten")("POST", LEASES, lease), "was forgotten")
    passed(olga("POST", f"{GROUP}/latticenodes", node("forgotten")))
    for person in (olga, agent(server, "n1"), bound_agent(server, "n1")):
        refused(person("PATCH", names, {"data": {"forgotten": None}}))
    passed(Person(server, "lattice:operator")("PATCH", names, {"data": {"forgotten": None}}))


CERTIFICATES = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def asking(name: str, signer: str, *, seconds: int = 2592000) -> dict[str, Any]:
    made = make_request("n1", ()).partition(b"-----BEGIN CERTIFICATE REQUEST-----")
    usages = ["client auth", "digital signature", *(["server auth"] if signer == "lattice.dev/agent" else [])]
    spec = {
        "request": base64.b64encode(b"".join(made[1:])).decode(), "signerName": signer, "usages": usages, "expirationSeconds": seconds,
    }  # fmt: skip
    return {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}, "spec": spec}


def test_an_agent_asks_for_certificates_in_its_own_name_and_the_operator_answers_agents_alone(server: ApiServer) -> None:
    n1, operator, root = agent(server, "n1"), Person(server, "lattice:operator"), Person(server, "root", ("system:masters",))
    client, peer = "kubernetes.io/kube-apiserver-client", "lattice.dev/agent"
    for name, signer in (
        ("lattice-agent-n2.api", client), ("lattice-agent-n1.peer", client), ("mine", peer),
        ("lattice-agent-n1.api", "example.org/other"),
    ):  # fmt: skip
        refused(n1("POST", CERTIFICATES, asking(name, signer)), "an agent asks kubernetes.io/kube-apiserver-client by the name")
    refused(n1("POST", CERTIFICATES, asking("lattice-agent-n1.peer", peer, seconds=2592001)), "600 to 2592000")
    refused(root("POST", CERTIFICATES, asking("lattice-agent-n1.peer", peer)), "root is no agent with a certificate")
    refused(agent(server, "never-bound")("POST", CERTIFICATES, asking("lattice-agent-never-bound.api", client)))
    passed(n1("POST", CERTIFICATES, asking("lattice-agent-n1.peer", peer)))
    assert n1("POST", CERTIFICATES, asking("lattice-agent-n1.peer", peer)).status == 409
    refused(n1("DELETE", f"{CERTIFICATES}/lattice-agent-n1.peer"))
    passed(root("POST", CERTIFICATES, asking("foreign", client)))
    for name, answer in (("foreign", refused), ("lattice-agent-n1.peer", passed)):
        found = root("GET", f"{CERTIFICATES}/{name}").body
        verdict = {"type": "Approved", "status": "True", "reason": "Test", "message": "approved"}
        answer(operator("PUT", f"{CERTIFICATES}/{name}/approval", {**found, "status": {"conditions": [verdict]}}))
        answer(operator("DELETE", f"{CERTIFICATES}/{name}"))


@pytest.mark.parametrize("name", ["lattice-gateway", "lattice-scheduler", "lattice-webhook.lattice-system.svc", "localhost"])
def test_no_node_is_called_as_a_daemon_is(server: ApiServer, name: str) -> None:
    for person in (agent(server, name), Person(server, "root", ("system:masters",))):
        refused(person("POST", f"{GROUP}/latticenodes", node(name)), "a daemon is known")
    passed(agent(server, "lattice-0001")("POST", f"{GROUP}/latticenodes?dryRun=All", node("lattice-0001")))


@pytest.mark.parametrize("proof", [agent, bound_agent], ids=["certificate", "bound-token"])
def test_a_node_tells_its_own_history_only_and_the_scheduler_removes_it(server: ApiServer, proof: Any) -> None:
    def page(node: str, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "lattice.dev/v1alpha1", "kind": "NodeHistory", "metadata": {"name": name},
            "spec": {"node": node, "recovery": "a1", "page": 0, "pages": 1, "rows": "1\n"},
        }  # fmt: skip

    agent, scheduler = proof(server, "told"), Person(server, "lattice:scheduler")
    path = f"{GROUP}/nodehistories"
    refused(agent("POST", path, page("other", "other.0")), "told by its agent alone")
    refused(agent("POST", path, page("told", "other.0")), "NODE.PAGE")
    passed(agent("POST", path, page("told", "told.0")))
    passed(agent("PATCH", f"{path}/told.0", {"spec": {"recovery": "a2"}}))
    refused(agent("PATCH", f"{path}/told.0", {"spec": {"node": "other"}}))
    refused(scheduler("POST", path, page("told", "told.1")))
    refused(agent("DELETE", f"{path}/told.0"))
    passed(scheduler("DELETE", f"{path}/told.0"))


def test_each_field_of_a_nodes_status_has_one_writer(server: ApiServer) -> None:
    path = f"{GROUP}/latticenodes/fields"
    by_agent, by_operator, by_scheduler = agent(server, "fields"), Person(server, "lattice:operator"), Person(server, "lattice:scheduler")
    condition = {**STARTED, "type": "Ready"}
    facts: dict[str, Any] = {"health": "Healthy", "fingerprint": "f", "capabilities": {"cpus": 2}, "formats": {"plan": 1}, "address": "h:1"}
    state = {"state": "Ready", "since": "2026-01-01T00:00:00Z", "heartbeat": 3, "observedGeneration": 1, "conditions": [condition]}
    passed(by_agent("POST", f"{GROUP}/latticenodes", node("fields")))
    passed(by_operator("PATCH", f"{path}/status", {"status": state}))
    passed(by_scheduler("PATCH", f"{path}/status", {"status": {"index": 4}}))
    passed(by_agent("PATCH", f"{path}/status", {"status": facts}))
    passed(by_operator("PATCH", f"{path}/status", {"status": {**state, "state": "Down", "heartbeat": 4}}))
    for field, value in (
        ("state", "Down"),
        ("since", "2026-01-02T00:00:00Z"),
        ("heartbeat", 9),
        ("observedGeneration", 2),
        ("conditions", []),
        ("index", 5),
        ("accepted", {"gpus": 512}),
    ):
        if field != "state":
            refused(by_agent("PATCH", f"{path}/status", {"status": {field: value}}))
        if field != "index":
            refused(by_scheduler("PATCH", f"{path}/status", {"status": {field: "Ready" if field == "state" else value}}))
    for field, fact in (
        ("health", "Unhealthy"),
        ("fingerprint", "g"),
        ("address", "h:2"),
        ("bootId", "b"),
        ("hollow", True),
        ("formats", {"plan": 2}),
    ):
        refused(by_operator("PATCH", f"{path}/status", {"status": {field: fact}}), "by its agent alone")
    refused(by_operator("PATCH", f"{path}/status", {"status": {"index": 5}}), "scheduler alone")
    for wrong in ("dns:///169.254.169.254:80", "unix:/run/x.sock", "http://h:1", "h", ":1", "h:1/x", "h:1 "):
        refused(by_agent("PATCH", f"{path}/status", {"status": {"address": wrong}}), "status.address")
    for right in ("10.0.0.1:50052", "nid001.hpc.example.org:50052", "[fe80::1]:50052", ""):
        passed(by_agent("PATCH", f"{path}/status", {"status": {"address": right}}))
    conflict = {**condition, "type": "NameConflict", "reason": "NameTaken"}
    refused(by_operator("PATCH", f"{path}/status", {"status": {"conditions": [condition, conflict]}}), "NameConflict")
    passed(by_agent("PATCH", f"{path}/status", {"status": {"conditions": [condition, conflict]}}))
    refused(by_agent("PATCH", f"{path}/status", {"status": {"conditions": [conflict]}}), "operator alone")
    passed(by_operator("PATCH", f"{path}/status", {"status": {"conditions": [{**condition, "status": "False"}, conflict]}}))
    unfit = {**condition, "type": "Healthy", "status": "False", "reason": "StateUnwritable"}
    there = [{**condition, "status": "False"}, conflict]
    refused(by_operator("PATCH", f"{path}/status", {"status": {"conditions": [*there, unfit]}}), "by its agent alone")
    passed(by_agent("PATCH", f"{path}/status", {"status": {"health": "Unhealthy", "conditions": [*there, unfit]}}))
    refused(Person(server, "root", ("system:masters",))("PATCH", f"{path}/status", {"status": {"state": "Ready"}}), "lattice node drain")


def test_hardware_is_declared_by_operators_and_never_by_the_node_itself(server: ApiServer) -> None:
    declared = node("declared") | {"spec": {"hardware": {"gpus": 512}}}
    refused(agent(server, "declared")("POST", f"{GROUP}/latticenodes", declared), "declared by operators")
    passed(agent(server, "declared")("POST", f"{GROUP}/latticenodes", node("declared")))
    path = f"{GROUP}/latticenodes/declared"
    refused(agent(server, "declared")("PATCH", path, {"spec": {"hardware": {"gpus": 512}}}))
    passed(Person(server, "olga", ("lattice:operator",))("PATCH", path, {"spec": {"hardware": {"gpus": 4, "memory": "512Gi"}}}))


def test_operators_and_system_admins_drain_and_others_do_not(server: ApiServer) -> None:
    passed(agent(server, "drained")("POST", f"{GROUP}/latticenodes", node("drained")))
    path, wish = f"{GROUP}/latticenodes/drained", {"spec": {"drain": {"reason": "fan", "by": "olga"}}}
    passed(Person(server, "olga", ("lattice:operator", "system:authenticated"))("PATCH", path, wish))
    passed(Person(server, "sam", ("lattice:system-admin", "system:authenticated"))("PATCH", path, {"spec": {"drain": None}}))
    assert Person(server, "alice")("PATCH", path, wish).status == 403
    assert Person(server, "alice")("GET", f"{GROUP}/latticenodes").ok
    assert Person(server, "rita", ("lattice:readonly", "system:authenticated"))("GET", f"{GROUP}/ledgers").ok
    assert Person(server, "rita", ("lattice:readonly", "system:authenticated"))("PATCH", path, wish).status == 403


# --- the ledger and its like ------------------------------------------------------------------------------------------


def ledger_status(**changes: Any) -> dict[str, Any]:
    status = {
        "epoch": 1, "term": "t", "seq": 1, "commit": "a", "nextNumber": 1, "recoveries": 0, "totalNodes": 0,
        "sensitive": {"max": 0, "used": 0},
        "tenants": {}, "shards": ["1||"] * 64,
    }  # fmt: skip
    return {**status, **changes}


def test_the_ledger_and_its_like_are_written_by_the_scheduler_alone(server: ApiServer) -> None:
    root, scheduler = Person(server, "root", ("system:masters",)), Person(server, "lattice:scheduler")
    sam = Person(server, "sam", ("lattice:system-admin", "system:authenticated"))
    objects: dict[str, dict[str, Any]] = {
        "ledgers": {"kind": "Ledger", "metadata": {"name": "lattice"}},
        "nodeindexes": {"kind": "NodeIndex", "metadata": {"name": "lattice"}, "spec": {"names": {"0": "n1"}}},
        "nodegroupplans": {"kind": "NodeGroupPlan", "metadata": {"name": "group-0000"}, "spec": {"seq": 1, "text": "1\n"}},
    }
    for plural, body in objects.items():
        full = {"apiVersion": "lattice.dev/v1alpha1", **body}
        refused(root("POST", f"{GROUP}/{plural}", full), "by the scheduler alone")
        passed(scheduler("POST", f"{GROUP}/{plural}", full))
    passed(scheduler("PATCH", f"{GROUP}/ledgers/lattice/status", {"status": ledger_status()}))
    refused(root("PATCH", f"{GROUP}/ledgers/lattice/status", {"status": ledger_status(seq=2, commit="b")}), "by the scheduler alone")
    refused(root("PATCH", f"{GROUP}/ledgers/lattice", {"metadata": {"labels": {"a": "b"}}}), "lattice admin ledger recover")
    refused(sam("PATCH", f"{GROUP}/ledgers/lattice", {"metadata": {"annotations": {"x": "y"}}}))
    passed(sam("PATCH", f"{GROUP}/ledgers/lattice", {"metadata": {"annotations": {"lattice.dev/recover": "2026-01-01T00:00:00Z"}}}))
    refused(root("PATCH", f"{GROUP}/nodegroupplans/group-0000", {"spec": {"text": "1\nx"}}), "by the scheduler alone")
    refused(root("PATCH", f"{GROUP}/nodeindexes/lattice", {"spec": {"names": {"1": "n2"}}}), "by the scheduler alone")
    for path in ("ledgers/lattice", "nodeindexes/lattice", "nodegroupplans/group-0000"):
        refused(root("DELETE", f"{GROUP}/{path}"), "are not deleted")
    refused(scheduler("DELETE", f"{GROUP}/ledgers/lattice"))
    passed(scheduler("DELETE", f"{GROUP}/nodegroupplans/group-0000"))


def test_a_crd_of_lattice_is_deleted_only_when_that_is_really_meant(server: ApiServer) -> None:
    root = Person(server, "root", ("system:masters",))
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    refused(root("DELETE", f"{crds}/vclusters.lattice.dev"), "lattice.dev/really-delete")
    manifest = yaml.safe_load((servers.ROOT / "crds" / "vclusters.yaml").read_text())
    names = {"plural": "spares", "singular": "spare", "kind": "Spare", "listKind": "SpareList"}
    spare = {**manifest, "metadata": {"name": "spares.lattice.dev"}, "spec": {**manifest["spec"], "names": names}}
    passed(root("POST", crds, spare))
    refused(root("DELETE", f"{crds}/spares.lattice.dev"), "kubectl annotate crd spares.lattice.dev")
    passed(root("PATCH", f"{crds}/spares.lattice.dev", {"metadata": {"annotations": {"lattice.dev/really-delete": "yes"}}}))
    passed(root("DELETE", f"{crds}/spares.lattice.dev"))


def test_a_node_is_deleted_only_when_that_is_really_meant(server: ApiServer) -> None:
    root, scheduler = Person(server, "root", ("system:masters",)), Person(server, "lattice:scheduler")
    olga = Person(server, "olga", ("lattice:operator", "system:authenticated"))
    node = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": {"name": "spare"}, "spec": {}}
    fenced = {"disable": {"reason": "burnt", "by": "olga", "fenced": True}}
    passed(olga("POST", f"{GROUP}/latticenodes", {**node, "spec": fenced}))
    refused(root("DELETE", f"{GROUP}/latticenodes/spare"), "`lattice node forget spare`")
    refused(root("DELETE", f"{GROUP}/latticenodes?labelSelector=a!%3Db"), "is not deleted by hand")
    refused(scheduler("DELETE", f"{GROUP}/latticenodes/spare"), "lattice.dev/really-delete=yes")
    passed(scheduler("PATCH", f"{GROUP}/latticenodes/spare", {"metadata": {"annotations": {"lattice.dev/really-delete": "forgotten"}}}))
    passed(scheduler("DELETE", f"{GROUP}/latticenodes/spare"))


def test_a_tenant_or_vcluster_in_use_is_not_deleted(server: ApiServer) -> None:
    root, operator = Person(server, "root", ("system:masters",)), Person(server, "lattice:operator")
    for plural, kind in (("tenants", "Tenant"), ("vclusters", "VCluster")):
        body = {"apiVersion": "lattice.dev/v1alpha1", "kind": kind, "metadata": {"name": "used"}, "spec": {}}
        passed(root("POST", f"{GROUP}/{plural}", body))
        in_use = {**STARTED, "type": "InUse", "reason": "AllocationsNotFinal"}
        passed(operator("PATCH", f"{GROUP}/{plural}/used/status", {"status": {"conditions": [in_use]}}))
        refused(root("DELETE", f"{GROUP}/{plural}/used"), '"used" is in use')
        passed(operator("PATCH", f"{GROUP}/{plural}/used/status", {"status": {"conditions": []}}))
    use = {"usedNodes": 12, "usedAllocations": 3}
    passed(operator("PATCH", f"{GROUP}/tenants/used/status", {"status": {"use": use}}))
    refused(root("DELETE", f"{GROUP}/tenants/used"), "3 allocations hold 12 nodes")
    passed(operator("PATCH", f"{GROUP}/tenants/used/status", {"status": {"use": {"usedNodes": 0, "usedAllocations": 0}}}))
    for plural in ("tenants", "vclusters"):
        passed(root("DELETE", f"{GROUP}/{plural}/used"))


def group(name: str, parent: str = "") -> dict[str, Any]:
    spec = {"max": {"nodes": 4}, "isParent": not parent, **({"parent": parent} if parent else {})}
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}, "spec": spec}


def test_a_group_of_a_quota_tree_is_changed_by_who_may_manage_the_one_above_it(server: ApiServer) -> None:
    quotas = f"{GROUP}/elasticquotas"
    boss = Person(server, "sam", ("lattice:system-admin", "system:authenticated"))
    passed(boss("POST", quotas, group("science")))
    passed(boss("POST", quotas, group("engineering")))
    rule = {"apiGroups": ["lattice.dev"], "resources": ["elasticquotas"], "resourceNames": ["science"], "verbs": ["manage"]}
    passed(server.request("POST", PATHS["ClusterRole"], {"metadata": {"name": "science-admin"}, "rules": [rule]}))
    for role in ("science-admin", "lattice-quota-editor"):
        ref = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        subjects = [{"kind": "User", "name": "dana", "apiGroup": "rbac.authorization.k8s.io"}]
        passed(
            server.request(
                "POST", PATHS["ClusterRoleBinding"], {"metadata": {"name": f"dana-{role}"}, "roleRef": ref, "subjects": subjects}
            )
        )
    dana = Person(server, "dana")
    servers.until(lambda: dana("POST", quotas, group("theory", "science")).ok, "dana's rights are in force", within=30)
    refused(dana("POST", quotas, group("own")), "groups of the first level are for those who may manage all")
    refused(dana("POST", quotas, group("design", "engineering")), 'groups below "engineering"')
    refused(dana("PATCH", f"{quotas}/theory", {"spec": {"parent": "engineering"}}), 'would stand below "engineering"')
    refused(dana("PATCH", f"{quotas}/science", {"spec": {"max": {"nodes": 9}}}), "first level")
    passed(dana("PATCH", f"{quotas}/theory", {"spec": {"max": {"nodes": 3}}}))
    passed(dana("DELETE", f"{quotas}/theory"))
    refused(Person(server, "alice")("GET", quotas), "forbidden")


def test_a_group_with_work_is_not_deleted_and_its_schema_holds_without_the_webhook(server: ApiServer) -> None:
    quotas = f"{GROUP}/elasticquotas"
    root = Person(server, "root", ("system:masters",))
    passed(root("POST", quotas, group("busy")))
    for numbers in ({"childRequest": {"nodes": "3"}}, {"childRequest": {"nodes": "0"}, "used": {"nodes": 1}}):
        passed(root("PATCH", f"{quotas}/busy/status", {"status": numbers}))
        refused(root("DELETE", f"{quotas}/busy"), 'quota "busy" is in use')
    passed(root("PATCH", f"{quotas}/busy/status", {"status": {"childRequest": {"nodes": "0"}, "used": {"nodes": "0"}}}))
    passed(root("DELETE", f"{quotas}/busy"))
    for spec, words in (
        ({"max": {"nodes": "1.5"}}, "spec.max.nodes must be a whole number"),
        ({"max": {"nodes": -1}}, "greater than or equal to 0"),
        ({"max": {"nodes": 1}, "parent": "loop"}, "spec.parent is the group itself"),
        ({"max": {"nodes": 1}, "parent": "x", "tree": {"nodes": {}}}, "spec.tree is for a group of the first level"),
        ({}, "spec.max: Required value"),
    ):
        refused(root("POST", quotas, {**group("loop"), "spec": spec}), words)
    refused(root("POST", quotas, group("default")), "a group that exists without an object")


def test_the_labels_that_say_where_work_belongs_stay_as_they_began(server: ApiServer) -> None:
    alice, prefix = Person(server, "alice"), "quota.scheduling.koordinator.sh/"
    body = allocation("labelled")
    body["metadata"]["labels"] = {prefix + "name": "theory", "lattice.dev/quota": "named"}
    passed(alice("POST", ALLOCATIONS, body))
    for label, value in (("name", "lab"), ("name", None), ("preemptible", "false")):
        change = {"metadata": {"labels": {prefix + label: value}}}
        refused(alice("PATCH", f"{ALLOCATIONS}/labelled", change), f"the label {prefix}{label} cannot be changed after creation")
    passed(alice("PATCH", f"{ALLOCATIONS}/labelled", {"metadata": {"labels": {"free": "x"}}}))


def test_the_tenant_label_of_a_namespace_is_set_by_who_may_change_tenants(server: ApiServer) -> None:
    reference = {"kind": "ClusterRole", "name": "namespacer", "apiGroup": "rbac.authorization.k8s.io"}
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["create", "patch"]}
    subjects = [{"kind": "User", "name": "ned", "apiGroup": "rbac.authorization.k8s.io"}]
    passed(server.request("POST", PATHS["ClusterRole"], {"metadata": {"name": "namespacer"}, "rules": [rule]}))
    passed(
        server.request(
            "POST", PATHS["ClusterRoleBinding"], {"metadata": {"name": "namespacer"}, "roleRef": reference, "subjects": subjects}
        )
    )
    ned = Person(server, "ned")
    servers.until(
        lambda: ned("POST", "/api/v1/namespaces", {"metadata": {"name": "plain"}}).status in (201, 409), "ned may create", within=10
    )
    passed(ned("PATCH", "/api/v1/namespaces/plain", {"metadata": {"labels": {"a": "b"}}}))
    refused(ned("PATCH", "/api/v1/namespaces/plain", {"metadata": {"labels": {"lattice.dev/tenant": "physics"}}}), "which tenant pays")
    refused(
        ned("POST", "/api/v1/namespaces", {"metadata": {"name": "theirs", "labels": {"lattice.dev/tenant": "physics"}}}),
        "which tenant pays",
    )
    passed(
        Person(server, "lattice:operator")(
            "POST", "/api/v1/namespaces", {"metadata": {"name": "ours", "labels": {"lattice.dev/tenant": "physics"}}}
        )
    )


def test_everybody_reads_where_the_gateway_is_and_since_when_the_leaders_are_silent(server: ApiServer) -> None:
    config_maps = "/api/v1/namespaces/lattice-system/configmaps"
    leases = "/apis/coordination.k8s.io/v1/namespaces/lattice-system/leases"
    for name in ("lattice-public", "private"):
        passed(server.request("POST", config_maps, {"metadata": {"name": name}}))
    scheduler = Person(server, "lattice:scheduler")
    for name in ("lattice-scheduler", "other"):
        passed(scheduler("POST", leases, {"metadata": {"name": name}}))
    alice = Person(server, "alice")
    assert alice("GET", f"{config_maps}/lattice-public").ok
    assert alice("GET", f"{leases}/lattice-scheduler").ok
    assert alice("GET", f"{config_maps}/private").status == 403
    assert alice("GET", f"{leases}/other").status == 403
    assert scheduler("PATCH", f"{leases}/lattice-operator", {"spec": {}}).status == 403


# --- the operator ---------------------------------------------------------------------------------------------------

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
