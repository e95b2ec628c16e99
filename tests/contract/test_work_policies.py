"""Policies on Allocations: whose work it is, who changes it, and which Secrets it reads."""

from __future__ import annotations

import re
from typing import Any

from tests import servers
from tests.contract.policy_scenes import ALLOCATIONS, GROUP, Person, allocation, passed, refused
from tests.servers import ApiServer


def test_a_member_submits_in_the_tenants_namespace_as_themselves(server: ApiServer) -> None:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation("mine")))


def test_an_empty_user_is_refused_with_a_sentence_that_names_it(server: ApiServer) -> None:
    refused(Person(server, "alice")("POST", ALLOCATIONS, allocation("nobody", user="")), 'set spec.user to "alice"')


def test_with_the_webhook_down_the_sentences_lead_a_person_through_one_after_another(server: ApiServer) -> None:
    alice, body = Person(server, "alice"), allocation("led")
    spec = body["spec"] = {"entrypoint": "true", "resources": {"nodes": 1}, "lifecycle": {"walltime": "5m"}, "data": {"output": "s3://x"}}
    said: list[str] = []
    for _ in range(4):
        answer = alice("POST", f"{ALLOCATIONS}?dryRun=All", body)
        if answer.ok:
            break
        said.append(answer.message)
        spec.update(re.findall(r'set spec\.(user|tenant) to "([^"]+)"', answer.message))
        if "set spec.vcluster" in answer.message or "set these, too" in answer.message:
            spec["vcluster"] = "hpc-batch"
        if "spec.data.output is not served yet" in answer.message:
            del spec["data"]
    assert answer.ok, said
    assert all("try again" in sentence or "remove the field" in sentence for sentence in said), said


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
