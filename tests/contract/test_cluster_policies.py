"""Policies on the Ledger, quota trees, CRDs, tenants and namespaces."""

from __future__ import annotations

from typing import Any

import yaml

from tests import servers
from tests.contract.policy_scenes import ALLOCATIONS, GROUP, PATHS, STARTED, Person, allocation, passed, refused
from tests.servers import ApiServer


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
