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


@dataclass(frozen=True)
class Person:
    """A requester that the administrator impersonates: a person, a daemon, or an agent."""

    server: ApiServer
    user: str
    groups: tuple[str, ...] = ("system:authenticated",)
    node: str = ""

    def __call__(self, method: str, path: str, body: Any = None) -> Answer:
        """One request as this person; PATCH is a merge patch."""
        trusted = ssl.create_default_context(cafile=str(self.server.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=60, context=trusted)
        try:
            connection.putrequest(method, path)
            for name, value in self._headers(MERGE if method == "PATCH" else servers.JSON):
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
    """Policies and roles reach the admission plugin within a moment of their creation."""
    alice = Person(server, "alice")
    servers.until(
        lambda: (
            "spec.user is empty" in alice("POST", ALLOCATIONS, allocation("probe-owner", user="")).message
        ),  # no right yet is no policy yet
        "the owner policy is enforced",
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


def agent(server: ApiServer, name: str) -> Person:
    return Person(server, f"lattice:agent:{name}", ("lattice:agents", "system:authenticated"))


def bound_agent(server: ApiServer, name: str) -> Person:
    return Person(
        server, "system:serviceaccount:lattice-system:lattice-agent", ("system:serviceaccounts", "system:authenticated"), node=name
    )


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
    passed(agent(server, "n1")("PATCH", placed(server, "reported"), report()))
    passed(bound_agent(server, "n1")("PATCH", placed(server, "reported-by-account"), report()))


def test_only_the_reporter_of_the_current_attempt_reports(server: ApiServer) -> None:
    path = placed(server, "strange-report")
    refused(agent(server, "n2")("PATCH", path, report()), 'the reporter of this allocation is "n1"')
    refused(bound_agent(server, "n2")("PATCH", path, report()), 'the reporter of this allocation is "n1"')
    refused(agent(server, "n1")("PATCH", path, report(report={"attempt": 1, "by": "n1"})), "attempt 1", "attempt 2", "dropped")
    refused(agent(server, "n1")("PATCH", path, report(report={"attempt": 2, "by": "n9"})), "dropped")
    refused(Person(server, "root", ("system:masters",))("PATCH", path, report()), "written by the scheduler and by the agent")
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
    refused(agent(server, "n1")("PATCH", path, report(**changes)))


def test_an_agent_leaves_the_schedulers_conditions(server: ApiServer) -> None:
    path = placed(server, "conditions")
    refused(agent(server, "n1")("PATCH", path, report(conditions=[STARTED])), "Admitted and Scheduled")
    admitted = {**STARTED, "type": "Admitted"}
    refused(agent(server, "n1")("PATCH", path, report(conditions=[*PLACED["conditions"], admitted])), "Admitted and Scheduled")  # type: ignore[misc]


def test_a_late_report_does_not_bring_an_ended_attempt_back(server: ApiServer) -> None:
    path = placed(server, "ended")
    finished = {**STARTED, "type": "Finished", "reason": "Completed"}
    passed(agent(server, "n1")("PATCH", path, report(conditions=[*PLACED["conditions"], STARTED, finished])))  # type: ignore[misc]
    refused(agent(server, "n1")("PATCH", path, report()), "late report")
    passed(
        Person(server, "lattice:scheduler")("PATCH", path, {"status": {"conditions": PLACED["conditions"], "ledgerSeq": 41, "attempt": 3}})
    )


def test_a_scheduler_patch_made_from_an_older_ledger_is_refused(server: ApiServer) -> None:
    path = placed(server, "older")
    refused(Person(server, "lattice:scheduler")("PATCH", path, {"status": {"ledgerSeq": 39}}), "ledgerSeq never goes back")


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
    body["metadata"]["labels"] = {prefix + "name": "theory"}
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
