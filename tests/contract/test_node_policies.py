"""Policies on nodes: what an agent writes, its certificates, and who drains a node."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from lattice_agent.certificate_program import make_request
from tests import servers
from tests.contract.policy_scenes import GROUP, LEASES, PATHS, STARTED, Person, agent, bound_agent, node, passed, refused
from tests.servers import ApiServer


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
    there.append(unfit)
    for kind in ("CertificateExpiring", "CacheFull", "LimitsMissing"):
        found = {**condition, "type": kind, "reason": kind}
        refused(by_operator("PATCH", f"{path}/status", {"status": {"conditions": [*there, found]}}), kind)
        there.append(found)
        passed(by_agent("PATCH", f"{path}/status", {"status": {"conditions": there}}))
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
