"""The CRDs on a real API server: accepted and refused objects, each with the sentence that a person reads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from lattice.models.ledger import KINDS_WITHOUT_STATUS, MAX_NODES, SHARDS
from lattice_dev.generate.crds import KINDS
from tests.servers import APPLY, MERGE, Answer, ApiServer, until

API = "/apis/lattice.dev/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STRICT = {"fieldValidation": "Strict"}


class Collection:
    """Requests on the objects of one kind."""

    def __init__(self, server: ApiServer, plural: str, kind: str, namespace: str = "") -> None:
        self.server = server
        self.kind = kind
        self.path = f"{API}/{f'namespaces/{namespace}/' if namespace else ''}{plural}"

    def create(self, name: str, **parts: Any) -> Answer:
        manifest = {"apiVersion": "lattice.dev/v1alpha1", "kind": self.kind, "metadata": {"name": name}, **parts}
        return self.server.request("POST", self.path, manifest, query=STRICT)

    def read(self, name: str) -> Any:
        answer = self.server.request("GET", f"{self.path}/{name}")
        assert answer.ok, answer.message
        return answer.body

    def merge(self, name: str, patch: Any, *, status: bool = False) -> Answer:
        target = f"{self.path}/{name}/status" if status else f"{self.path}/{name}"
        return self.server.request("PATCH", target, patch, content_type=MERGE, query=STRICT)

    def put(self, name: str, body: Any, *, status: bool = False) -> Answer:
        target = f"{self.path}/{name}/status" if status else f"{self.path}/{name}"
        return self.server.request("PUT", target, body, query=STRICT)

    def drop(self, name: str) -> None:
        self.server.request("DELETE", f"{self.path}/{name}")


@pytest.fixture
def allocations(api_server: ApiServer) -> Iterator[Collection]:
    found = Collection(api_server, "allocations", "Allocation", "default")
    yield found
    api_server.request("DELETE", found.path)


def spec(**changes: Any) -> dict[str, Any]:
    return {"tenant": "physics", "user": "alice", "entrypoint": "true", "lifecycle": {"walltime": "1h"}, **changes}


def refused(answer: Answer, sentence: str, status: int = 422) -> None:
    assert answer.status == status, (answer.status, answer.message or answer.body)
    assert sentence in answer.message


def accepted(answer: Answer) -> Any:
    assert answer.ok, answer.message
    return answer.body


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_every_crd_is_established_and_structural(api_server: ApiServer, kind: Any) -> None:
    stands = accepted(api_server.request("GET", f"{CRDS}/{kind.meta.plural}.lattice.dev"))
    conditions = {entry["type"]: entry["status"] for entry in stands["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


ACCEPTED = {
    "the least that makes sense": {"entrypoint": "true"},
    "a script": {"script": "#!/bin/sh\ntrue\n"},
    "a number of nodes": spec(resources={"nodes": 64}),
    "a range of nodes": spec(resources={"nodes": "32-128", "memory": "128Gi", "cpus": 24}),
    "memory as a number of bytes": spec(resources={"memory": 1073741824}),
    "unbounded": spec(lifecycle={"type": "Unbounded"}),
    "days, hours and minutes": spec(lifecycle={"walltime": "1d2h30m"}),
    "parts left at their defaults": spec(sensitive=False, checkpoint={"strategy": "Auto"}, telemetry={"mode": "Prod"}, dependsOn=[]),
    "empty checkpoint and telemetry": spec(checkpoint={}, telemetry={}),
    "topology Any": spec(resources={"constraints": {"topology": "Any", "features": ["hollow"], "preferSameNuma": False}}),
    "every constraint of nodes": spec(
        resources={"gpus": 4, "memory": "1Ti", "constraints": {
            "gpuType": "GH200", "gpuMemory": "90Gi", "topology": "Tight", "conformance": "Required",
            "requireUnifiedMemory": True, "allowCxlMemory": True}},
    ),
    "everything that is served": spec(
        project="p", vcluster="batch", reservation="maint-42", tags={"name": "run-42"}, intent="Train", hold=True, cancel={"reason": "wrong input"},
        environment={"variables": {"OMP_NUM_THREADS": "8"}, "workdir": "/home/alice", "output": {"stdout": "o-%j", "mode": "Append"}},
        tasks={"on": "HeadNode", "perNode": 4, "total": 7},
        lifecycle={"type": "Bounded", "walltime": "72h", "preemptionClass": 10, "preemptible": "Never", "gracePeriod": "45s",
                   "requeue": {"policy": "Always", "max": 0, "when": "Fenced"}, "notBefore": "2026-12-01T08:00:00Z",
                   "deadline": "2026-12-05T08:00:00Z"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("manifest", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_allocation_is_accepted_and_stands_as_it_was_given(allocations: Collection, manifest: dict[str, Any]) -> None:
    assert accepted(allocations.create("good", spec=manifest))["spec"] == manifest


REFUSED = {
    "zero nodes": (spec(resources={"nodes": 0}), "spec.resources.nodes"),
    "negative nodes": (spec(resources={"nodes": -1}), "greater than or equal to 1"),
    "a range from zero": (spec(resources={"nodes": "0-4"}), "spec.resources.nodes"),
    "half a node": (spec(resources={"nodes": 1.5}), "spec.resources.nodes"),
    "negative memory": (spec(resources={"memory": -5}), "spec.resources.memory"),
    "memory that is no quantity": (spec(resources={"memory": "much"}), "spec.resources.memory"),
    "class 11": (spec(lifecycle={"preemptionClass": 11}), "less than or equal to 10"),
    "a walltime without unit": (spec(lifecycle={"walltime": "90"}), "spec.lifecycle.walltime"),
    "an empty walltime": (spec(lifecycle={"walltime": ""}), "spec.lifecycle.walltime"),
    "an unknown lifecycle": (spec(lifecycle={"type": "bounded"}), "Unsupported value"),
    "an empty tenant": (spec(tenant=""), "spec.tenant"),
    "a tenant with blanks": (spec(tenant="my team"), "spec.tenant"),
    "an empty entrypoint": (spec(entrypoint=""), "spec.entrypoint"),
    "a million characters": (spec(entrypoint="x" * 1_000_000), "spec.entrypoint: Too long"),
    "a number for a name": (spec(user=7), "spec.user"),
    "entrypoint and script": (spec(script="#!/bin/sh\n"), "either spec.entrypoint or spec.script, exactly one of them"),
    "neither entrypoint nor script": ({"tenant": "physics"}, "either spec.entrypoint or spec.script, exactly one of them"),
    "101 requeues": (spec(lifecycle={"requeue": {"max": 101}}), "spec.lifecycle.requeue.max"),
    "33 tags": (spec(tags={f"t{n}": "x" for n in range(33)}), "spec.tags"),
    "the same feature twice": (spec(resources={"constraints": {"features": ["a", "a"]}}), "Duplicate value"),
    "a variable with a number": (spec(environment={"variables": {"A": 1}}), "spec.environment.variables.A"),
    "Reactive": (spec(lifecycle={"type": "Reactive"}), "spec.lifecycle.type Reactive is not served yet"),
    "scale": (spec(lifecycle={"scale": {"min": 1}}), "spec.lifecycle.scale is not served yet: nothing scales it; remove the field"),
    "data": (spec(data={"output": "s3://x"}), "spec.data is not served yet: data is not staged by this release; remove the field"),
    "script from a ConfigMap": (spec(scriptFrom={"name": "x"}), "spec.scriptFrom is not served yet"),
    "a network domain": (spec(connectivity={"networkDomain": "x"}), "spec.connectivity is not served yet"),
    "a dependency": (spec(dependsOn=[{"ref": "x", "condition": "Success"}]), "spec.dependsOn is not served yet"),
    "manual checkpoints": (spec(checkpoint={"strategy": "Manual"}), "spec.checkpoint is not served yet"),
    "debug telemetry": (spec(telemetry={"mode": "Debug"}), "spec.telemetry is not served yet"),
    "a liveness probe": (spec(livenessProbe={"type": "HTTP"}), "spec.livenessProbe is not served yet"),
    "sensitive": (spec(sensitive=True), "spec.sensitive is not served yet: sensitive work is not isolated by this release"),
    "a view of nothing": (spec(environment={"view": "default"}), "spec.environment.view is about software: give spec.environment.uenv"),
    "an image": (spec(environment={"image": "x"}), "spec.environment.image is not served yet"),
    "a topology that is none": (spec(resources={"constraints": {"topology": "Wide"}}), "Unsupported value"),
    "a conformance that is none": (spec(resources={"constraints": {"conformance": "Always"}}), "Unsupported value"),
    "GPU memory that is no quantity": (spec(resources={"constraints": {"gpuMemory": "much"}}), "constraints.gpuMemory"),
    "an empty GPU type": (spec(resources={"constraints": {"gpuType": ""}}), "constraints.gpuType"),
    "a NUMA policy": (spec(resources={"constraints": {"memoryPolicy": "Bind"}}), "constraints.memoryPolicy is not served yet"),
    "one NUMA domain": (spec(resources={"constraints": {"preferSameNuma": True}}), "constraints.preferSameNuma is not served yet"),
}


@pytest.mark.parametrize(("manifest", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_an_allocation_is_refused_with_a_sentence(allocations: Collection, manifest: dict[str, Any], sentence: str) -> None:
    refused(allocations.create("bad", spec=manifest), sentence)


def test_an_unknown_field_is_refused_by_strict_clients(allocations: Collection) -> None:
    refused(allocations.create("bad", spec=spec(nodes=4)), 'unknown field "spec.nodes"', status=400)


CHANGES_REFUSED = {
    "tenant": ({"tenant": "chemistry"}, "spec.tenant cannot be changed after creation: cancel this allocation and submit a new one"),
    "tenant removed": ({"tenant": None}, "spec.tenant cannot be changed after creation"),
    "user": ({"user": "bob"}, "spec.user cannot be changed after creation"),
    "vcluster added": ({"vcluster": "batch"}, "spec.vcluster cannot be changed after creation"),
    "entrypoint": ({"entrypoint": "false"}, "spec.entrypoint cannot be changed after creation"),
    "entrypoint to script": ({"entrypoint": None, "script": "#!/bin/sh"}, "spec.script cannot be changed after creation"),
    "environment": ({"environment": {"workdir": "/tmp"}}, "spec.environment cannot be changed after creation"),
    "nodes": ({"resources": {"nodes": 2}}, "spec.resources cannot be changed after creation"),
    "tasks": ({"tasks": {"perNode": 2}}, "spec.tasks cannot be changed after creation"),
    "lifecycle type": ({"lifecycle": {"type": "Unbounded"}}, "of spec.lifecycle only walltime and preemptionClass can be changed"),
    "grace period": ({"lifecycle": {"gracePeriod": "1h"}}, "of spec.lifecycle only walltime and preemptionClass can be changed"),
    "requeue": ({"lifecycle": {"requeue": {"max": 9}}}, "of spec.lifecycle only walltime and preemptionClass can be changed"),
    "lifecycle removed": ({"lifecycle": None}, "of spec.lifecycle only walltime and preemptionClass can be changed"),
}


@pytest.mark.parametrize(("patch", "sentence"), CHANGES_REFUSED.values(), ids=CHANGES_REFUSED.keys())
def test_what_is_fixed_after_creation_says_what_to_do_instead(allocations: Collection, patch: dict[str, Any], sentence: str) -> None:
    accepted(allocations.create("fixed", spec=spec()))
    refused(allocations.merge("fixed", {"spec": patch}), sentence)


@pytest.mark.parametrize(
    "patch",
    [{"hold": True}, {"cancel": {"reason": "x"}}, {"tags": {"name": "y"}}, {"lifecycle": {"walltime": "2h"}},
     {"lifecycle": {"preemptionClass": 3}}, {"telemetry": {"mode": "Prod"}}],
    ids=lambda patch: "-".join(patch),
)  # fmt: skip
def test_what_may_change_after_creation_changes(allocations: Collection, patch: dict[str, Any]) -> None:
    accepted(allocations.create("free", spec=spec()))
    accepted(allocations.merge("free", {"spec": patch}))


def test_a_lifecycle_given_later_brings_only_what_may_change(allocations: Collection) -> None:
    accepted(allocations.create("bare", spec={"entrypoint": "true"}))
    refused(allocations.merge("bare", {"spec": {"lifecycle": {"type": "Unbounded"}}}), "of spec.lifecycle only walltime")
    accepted(allocations.merge("bare", {"spec": {"lifecycle": {"walltime": "1h"}}}))


def test_the_largest_allocation_is_still_compared_with_what_it_was(allocations: Collection) -> None:
    variables = {f"VARIABLE_{number:03d}": "x" * 1500 for number in range(512)}
    accepted(allocations.create("large", spec=spec(entrypoint="e" * 65536, environment={"variables": variables})))
    accepted(allocations.merge("large", {"spec": {"hold": True}}))
    change = {"environment": {"variables": {"VARIABLE_511": "y"}}}
    refused(allocations.merge("large", {"spec": change}), "spec.environment cannot be changed after creation")


def test_cancel_is_never_taken_back(allocations: Collection) -> None:
    accepted(allocations.create("done", spec=spec(cancel={"reason": "x"})))
    refused(allocations.merge("done", {"spec": {"cancel": None}}), "spec.cancel cannot be taken back: submit the work again")


def test_the_class_is_fixed_while_nodes_are_held(allocations: Collection) -> None:
    accepted(allocations.create("held", spec=spec()))
    accepted(allocations.merge("held", {"status": {"nodes": "n[1-2]", "nodeCount": 2}}, status=True))
    refused(allocations.merge("held", {"spec": {"lifecycle": {"preemptionClass": 9}}}), "only while the allocation holds no nodes")
    accepted(allocations.merge("held", {"spec": {"lifecycle": {"preemptionClass": 5}}}))
    accepted(allocations.merge("held", {"spec": {"lifecycle": {"walltime": "3h"}}}))


def test_the_scheduler_never_writes_an_allocation_from_an_older_ledger(allocations: Collection) -> None:
    accepted(allocations.create("seen", spec=spec()))
    accepted(allocations.merge("seen", {"status": {"ledgerSeq": 7, "number": 3, "attempt": 2}}, status=True))
    accepted(allocations.merge("seen", {"status": {"ledgerSeq": 7}}, status=True))
    refused(allocations.merge("seen", {"status": {"ledgerSeq": 6}}, status=True), "status.ledgerSeq never goes back")
    refused(allocations.merge("seen", {"status": {"number": 4}}, status=True), "status.number is given once")
    refused(allocations.merge("seen", {"status": {"attempt": 1}}, status=True), "status.attempt never goes back")


def test_people_write_no_status_through_the_object(allocations: Collection) -> None:
    accepted(allocations.create("plain", spec=spec(), status={"phase": "Completed"}))
    assert "status" not in allocations.read("plain")
    accepted(allocations.merge("plain", {"status": {"phase": "Completed"}}))
    assert "status" not in allocations.read("plain")


def test_a_manifest_applied_twice_changes_nothing(api_server: ApiServer, allocations: Collection) -> None:
    manifest = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "git"}, "spec": spec()}

    def apply() -> Any:
        query = {"fieldManager": "gitops", **STRICT}
        return accepted(api_server.request("PATCH", f"{allocations.path}/git", manifest, content_type=APPLY, query=query))

    first, second = apply(), apply()
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert second["spec"] == spec()


def test_field_selectors_choose_allocations(api_server: ApiServer, allocations: Collection) -> None:
    accepted(allocations.create("one", spec=spec(vcluster="batch")))
    accepted(allocations.create("two", spec=spec(tenant="chemistry", user="bob")))
    accepted(allocations.merge("two", {"status": {"phase": "Running"}}, status=True))
    for selector, wanted in (
        ("spec.tenant=physics", ["one"]),
        ("spec.user=bob", ["two"]),
        ("spec.vcluster=batch", ["one"]),
        ("status.phase=Running", ["two"]),
        ("status.phase!=Running,spec.tenant=physics", ["one"]),
    ):
        items = accepted(api_server.request("GET", allocations.path, query={"fieldSelector": selector}))["items"]
        assert [item["metadata"]["name"] for item in items] == wanted, selector


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def test_kubectls_table_answers_the_owners_first_questions(api_server: ApiServer, allocations: Collection) -> None:
    accepted(allocations.create("shown", spec=spec(tags={"name": "run-42"}, vcluster="batch")))
    ready = {"type": "Ready", "status": "False", "reason": "WaitingForNodes", "message": "4 asked, 2 free"}
    conditions = [{**ready, "lastTransitionTime": "2026-11-21T08:00:00Z"}]
    status = {"number": 12, "phase": "Pending", "nodeCount": 4, "conditions": conditions}
    accepted(allocations.merge("shown", {"status": status}, status=True))
    table = accepted(api_server.request("GET", allocations.path, accept=TABLE))
    names = [column["name"] for column in table["columnDefinitions"]]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert row["Number"] == 12
    assert (row["Job"], row["Phase"], row["Nodes"], row["Reason"], row["VCluster"]) == ("run-42", "Pending", 4, "WaitingForNodes", "batch")
    assert row["Message"] == "4 asked, 2 free"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_every_kinds_table_has_its_columns(api_server: ApiServer, kind: Any) -> None:
    table = accepted(api_server.request("GET", f"{API}/{kind.meta.plural}", accept=TABLE))
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", *(column.name for column in kind.meta.columns)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_short_names_categories_and_subresources_are_served(api_server: ApiServer, kind: Any) -> None:
    served = {entry["name"]: entry for entry in accepted(api_server.request("GET", API))["resources"]}
    stands = served[kind.meta.plural]
    assert stands["kind"] == kind.meta.kind
    assert stands["namespaced"] == kind.meta.namespaced
    assert stands["categories"] == ["lattice"]
    assert (f"{kind.meta.plural}/status" in served) == (kind.meta.kind not in KINDS_WITHOUT_STATUS)


OTHER_KINDS: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "a tenant with limits": (
        "tenants",
        "Tenant",
        "t",
        {"spec": {"namespaces": ["a"], "quota": {"maxNodes": 0, "onExceeded": "Queue"}}},
        "",
    ),
    "a tenant with people": ("tenants", "Tenant", "t", {"spec": {"access": {"users": ["oidc:alice"], "groups": ["ml"]}}}, ""),
    "a negative limit": ("tenants", "Tenant", "t", {"spec": {"quota": {"maxNodes": -1}}}, "spec.quota.maxNodes"),
    "limits for each user": (
        "tenants",
        "Tenant",
        "t",
        {"spec": {"quota": {"perUser": {"maxNodes": 0, "maxRunning": 5, "maxPending": 100}}}},
        "",
    ),
    "a negative limit of users": ("tenants", "Tenant", "t", {"spec": {"quota": {"perUser": {"maxRunning": -1}}}}, "perUser.maxRunning"),
    "a budget": ("tenants", "Tenant", "t", {"spec": {"budget": {"gpuHours": 1, "fairShareTarget": "150m"}}}, ""),
    "a negative budget": ("tenants", "Tenant", "t", {"spec": {"budget": {"gpuHours": -1}}}, "spec.budget.gpuHours"),
    "budgets": (
        "tenants",
        "Tenant",
        "t",
        {
            "spec": {
                "budget": {
                    "onExhausted": "Queue",
                    "period": "Month",
                    "perUser": {"nodeHours": 1},
                    "projects": [{"name": "lhc", "gpuHours": 5}],
                }
            }
        },
        "",
    ),
    "an unknown end of a budget": ("tenants", "Tenant", "t", {"spec": {"budget": {"onExhausted": "Refuse"}}}, "Unsupported value"),
    "a project twice": ("tenants", "Tenant", "t", {"spec": {"budget": {"projects": [{"name": "a"}, {"name": "a"}]}}}, "Duplicate value"),
    "a usage record": ("usagerecords", "UsageRecord", "t-2026-11-1", {"spec": {"tenant": "t", "month": "2026-11", "part": 1}}, ""),
    "a usage record of another name": (
        "usagerecords",
        "UsageRecord",
        "t-2026-10",
        {"spec": {"tenant": "t", "month": "2026-11"}},
        "the name of a UsageRecord is TENANT-MONTH",
    ),
    "a usage record of no month": ("usagerecords", "UsageRecord", "t-2026-13", {"spec": {"tenant": "t", "month": "2026-13"}}, "spec.month"),
    "strict isolation": ("tenants", "Tenant", "t", {"spec": {"isolation": "Strict"}}, "spec.isolation Strict is not served yet"),
    "a vcluster": ("vclusters", "VCluster", "v", {"spec": {"nodes": {"selector": {"group": ["g0"]}}, "limits": {"maxWalltime": "7d"}}}, ""),
    "a policy": ("vclusters", "VCluster", "v", {"spec": {"policy": "Backfill", "cycle": {"interval": "5s", "depth": 0}}}, ""),
    "an unknown policy": ("vclusters", "VCluster", "v", {"spec": {"policy": "Lottery"}}, "Unsupported value"),
    "an unknown profile": ("vclusters", "VCluster", "v", {"spec": {"profile": "Fast"}}, "Unsupported value"),
    "weights": ("vclusters", "VCluster", "v", {"spec": {"weights": {"priority": "200m", "waitTime": "0.8"}}}, ""),
    "a negative weight": ("vclusters", "VCluster", "v", {"spec": {"weights": {"priority": "-200m"}}}, "spec.weights.priority"),
    "weights and a profile": ("vclusters", "VCluster", "v", {"spec": {"weights": {"energy": 1}, "profile": "Service"}}, "are both given"),
    "too much depth": ("vclusters", "VCluster", "v", {"spec": {"cycle": {"depth": 1001}}}, "spec.cycle.depth"),
    "lending": (
        "vclusters",
        "VCluster",
        "v",
        {"spec": {"borrowing": {"lend": True, "maxDuration": "2h"}, "limits": {"maxRunning": 3}}},
        "",
    ),
    "a vcluster that is ajar": ("vclusters", "VCluster", "v", {"spec": {"state": "Ajar"}}, "Unsupported value"),
    "the configuration": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"logBytes": "1Mi", "minUid": 500}}}, ""),
    "a second configuration": (
        "latticeconfigs",
        "LatticeConfig",
        "other",
        {"spec": {}},
        "there is one LatticeConfig, and its name is lattice",
    ),
    "prefixes of issuers": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"userPrefixes": ["oidc:"]}}}, ""),
    "a prefix with a space": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"userPrefixes": ["a b:"]}}}, "userPrefixes"),
    "a drain that rings": ("latticenodes", "LatticeNode", "nid001", {"spec": {"drain": {"reason": "\x07"}}}, "spec.drain.reason"),
    "a user in colours": ("tenants", "Tenant", "t", {"spec": {"access": {"users": ["\x1b[31malice"]}}}, "spec.access.users"),
    "uid 0": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"minUid": 0}}}, "spec.work.minUid"),
    "a node": ("latticenodes", "LatticeNode", "nid001", {"spec": {"group": "g0", "drain": {"reason": "disk"}}}, ""),
    "a drain without reason": ("latticenodes", "LatticeNode", "nid001", {"spec": {"drain": {"by": "me"}}}, "spec.drain.reason: Required"),
    "a node with a long name": ("latticenodes", "LatticeNode", "n" * 64, {"spec": {}}, "a node's name has at most 63 characters"),
    "a second ledger": ("ledgers", "Ledger", "other", {}, "there is one Ledger, and its name is lattice"),
    "a second node index": ("nodeindexes", "NodeIndex", "other", {"spec": {}}, "there is one NodeIndex, and its name is lattice"),
    "a plan": ("nodegroupplans", "NodeGroupPlan", "group-0000", {"spec": {"seq": 1, "text": "1\n"}}, ""),
    "a history": (
        "nodehistories",
        "NodeHistory",
        "nid001.0",
        {"spec": {"node": "nid001", "recovery": "a1", "rows": "1\n", "made": 1}},
        "",
    ),
    "a history of nobody": ("nodehistories", "NodeHistory", "nid002.0", {"spec": {"recovery": "a1", "rows": "1\n"}}, "spec.node: Required"),
    "a plan without seq": ("nodegroupplans", "NodeGroupPlan", "group-0000", {"spec": {"text": "1\n"}}, "spec.seq: Required"),
}


@pytest.mark.parametrize(("plural", "kind", "name", "parts", "sentence"), OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_the_other_kinds_accept_and_refuse(
    api_server: ApiServer, plural: str, kind: str, name: str, parts: dict[str, Any], sentence: str
) -> None:
    found = Collection(api_server, plural, kind)
    answer = found.create(name, **parts)
    found.drop(name)
    if sentence:
        refused(answer, sentence)
    else:
        assert accepted(answer)["spec"] == parts["spec"]


def test_the_largest_usage_record_is_still_only_appended_to_and_never_after_its_seal(api_server: ApiServer) -> None:
    found = Collection(api_server, "usagerecords", "UsageRecord")
    rows = "1\n" + "x" * 131_000
    accepted(found.create("u-2026-11", spec={"tenant": "u", "month": "2026-11", "rows": rows}))
    refused(found.merge("u-2026-11", {"spec": {"rows": rows[:-1]}}), "only appended to")
    refused(found.merge("u-2026-11", {"spec": {"rows": None}}), "only appended to")
    refused(found.merge("u-2026-11", {"spec": {"month": "2026-12"}}), "never change")
    accepted(found.merge("u-2026-11", {"spec": {"rows": rows + "y", "sealed": True}}))
    refused(found.merge("u-2026-11", {"spec": {"rows": rows + "yz"}}), "the part is sealed")
    refused(found.merge("u-2026-11", {"spec": {"sealed": False}}), "the part is sealed")
    found.drop("u-2026-11")


def test_a_plan_is_never_replaced_by_an_older_one(api_server: ApiServer) -> None:
    plans = Collection(api_server, "nodegroupplans", "NodeGroupPlan")
    accepted(plans.create("group-0001", spec={"seq": 5, "text": "1\n"}))
    refused(plans.merge("group-0001", {"spec": {"seq": 4}}), "a plan is never replaced by one made from an older ledger")
    accepted(plans.merge("group-0001", {"spec": {"seq": 5, "text": "1\n\n"}}))
    plans.drop("group-0001")


# The ledger ----------------------------------------------------------------------------------------------------------------------


def ledger_status(**changes: Any) -> dict[str, Any]:
    return {
        "epoch": 3, "term": "term-a", "seq": 10, "commit": "c10", "nextNumber": 100, "recoveries": 0, "totalNodes": 10,
        "sensitive": {"max": 2, "used": 1},
        "tenants": {
            "ml": {"maxNodes": 4, "usedNodes": 2, "maxAllocations": 3, "usedAllocations": 1},
            "free": {"usedNodes": 3, "usedAllocations": 2},
            "idle": {"maxNodes": 1, "usedNodes": 0, "usedAllocations": 0},
            "over": {"maxNodes": 1, "usedNodes": 3, "maxAllocations": 1, "usedAllocations": 2, "userMaxNodes": 2, "userMaxAllocations": 1},
        },
        "shards": ["1||"] * SHARDS,
        **changes,
    }  # fmt: skip


class LedgerObject:
    """The one Ledger, and writes to it as a committer makes them."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def write(self, **changes: Any) -> Answer:
        """PUT the status with the next seq and a new commit id, and what else changes."""
        stands = self.collection.read("lattice")
        status = stands["status"]
        following = {**status, "seq": status["seq"] + 1, "commit": f"c{status['seq'] + 1}", **changes}
        return self.collection.put(
            "lattice", {**stands, "status": {key: value for key, value in following.items() if value is not None}}, status=True
        )

    def account(self, tenant: str, **changes: Any) -> dict[str, Any]:
        """All tenants as they stand, one of them changed; None removes a field, no change at all removes the tenant."""
        tenants = copy.deepcopy(self.collection.read("lattice")["status"]["tenants"])
        if not changes:
            del tenants[tenant]
            return dict(tenants)
        merged = {**tenants.get(tenant, {}), **changes}
        tenants[tenant] = {key: value for key, value in merged.items() if value is not None}
        return dict(tenants)


@pytest.fixture
def ledger(api_server: ApiServer) -> Iterator[LedgerObject]:
    found = Collection(api_server, "ledgers", "Ledger")
    stands = accepted(found.create("lattice"))
    status = ledger_status()
    lowered = status["tenants"]["over"]
    status["tenants"]["over"] = {**lowered, "maxNodes": 3, "maxAllocations": 2}
    accepted(found.put("lattice", {**stands, "status": status}, status=True))
    ledger = LedgerObject(found)
    accepted(ledger.write(tenants={**status["tenants"], "over": lowered}))
    yield ledger
    found.drop("lattice")


def test_an_ordinary_commit_passes(ledger: LedgerObject) -> None:
    accepted(ledger.write())
    accepted(ledger.write(nextNumber=200, shards=["1|ml,alice,batch|", *["1||"] * (SHARDS - 1)]))


def test_a_takeover_raises_the_epoch_and_changes_the_term(ledger: LedgerObject) -> None:
    accepted(ledger.write(epoch=4, term="term-b"))
    refused(ledger.write(term="term-c"), "term changes only with epoch + 1")
    refused(ledger.write(epoch=6, term="term-c"), "epoch grows by one (by more only in a recovery), and never goes back")
    refused(ledger.write(epoch=3, term="term-a"), "and never goes back")


def test_a_recovery_raises_seq_and_epoch_beyond_what_was_seen(ledger: LedgerObject) -> None:
    refused(ledger.write(epoch=40, seq=1000), "epoch grows by one")
    accepted(ledger.write(epoch=40, seq=1000, recoveries=1))


def test_a_deposed_leader_cannot_write_with_its_old_epoch_and_term(ledger: LedgerObject) -> None:
    accepted(ledger.write(epoch=4, term="term-b"))
    refused(ledger.write(epoch=3, term="term-a"), "epoch grows by one")


@pytest.mark.parametrize("step", [-1, 0, 2])
def test_seq_grows_by_one(ledger: LedgerObject, step: int) -> None:
    refused(ledger.write(seq=ledger.collection.read("lattice")["status"]["seq"] + step, commit="x"), "seq grows by one")


def test_a_recovery_may_raise_seq_by_more(ledger: LedgerObject) -> None:
    accepted(ledger.write(seq=1000, recoveries=1))
    refused(ledger.write(seq=2000, recoveries=3), "recoveries grows by one")
    refused(ledger.write(seq=500, recoveries=2), "seq grows by one")


def test_a_recovery_enters_use_above_a_limit_that_it_takes_away_and_the_limit_comes_back_beside_it(ledger: LedgerObject) -> None:
    accepted(ledger.write(totalNodes=20))
    above = {"usedNodes": 6, "usedAllocations": 5}
    refused(ledger.write(seq=1000, recoveries=1, tenants=ledger.account("ml", **above)), "usedNodes would exceed maxNodes")
    accepted(ledger.write(seq=1000, recoveries=1, tenants=ledger.account("ml", maxNodes=None, maxAllocations=None, **above)))
    accepted(ledger.write(tenants=ledger.account("ml", maxNodes=4, maxAllocations=3)))
    refused(ledger.write(tenants=ledger.account("ml", usedNodes=7)), "usedNodes would exceed maxNodes")


def test_every_write_has_a_commit_id_of_its_own_and_numbers_never_go_back(ledger: LedgerObject) -> None:
    refused(ledger.write(commit=ledger.collection.read("lattice")["status"]["commit"]), "every write has a commit id of its own")
    refused(ledger.write(nextNumber=99), "nextNumber never goes back")


def test_a_claim_beyond_the_hard_quota_is_refused(ledger: LedgerObject) -> None:
    refused(ledger.write(tenants=ledger.account("ml", usedNodes=5)), "usedNodes would exceed maxNodes")
    refused(ledger.write(tenants=ledger.account("ml", usedAllocations=4)), "usedAllocations would exceed maxAllocations")
    accepted(ledger.write(tenants=ledger.account("ml", usedNodes=4, usedAllocations=3)))


def test_a_tenant_without_limit_takes_what_exists_and_no_more(ledger: LedgerObject) -> None:
    accepted(ledger.write(tenants=ledger.account("free", usedNodes=5)))
    refused(ledger.write(tenants=ledger.account("free", usedNodes=6)), "more nodes would be held than exist")


def test_a_limit_may_fall_below_what_is_used_and_use_may_shrink_towards_it(ledger: LedgerObject) -> None:
    accepted(ledger.write(tenants=ledger.account("ml", maxNodes=0, maxAllocations=0)))
    accepted(ledger.write())
    accepted(ledger.write(tenants=ledger.account("over", usedNodes=2, usedAllocations=2)))
    refused(ledger.write(tenants=ledger.account("over", usedNodes=3)), "usedNodes would exceed maxNodes")


def test_a_new_tenant_is_within_its_limit_from_the_start(ledger: LedgerObject) -> None:
    refused(ledger.write(tenants=ledger.account("new", maxNodes=0, usedNodes=1)), "usedNodes would exceed maxNodes")
    accepted(ledger.write(tenants=ledger.account("new", maxNodes=1, usedNodes=1)))


def test_absent_use_counts_as_zero(ledger: LedgerObject) -> None:
    accepted(ledger.write(tenants=ledger.account("idle", usedNodes=None, usedAllocations=None)))
    refused(ledger.write(tenants=ledger.account("idle", usedNodes=2)), "usedNodes would exceed maxNodes")
    accepted(ledger.write(sensitive={}))
    refused(ledger.write(sensitive={"used": 1}), "sensitive.used would exceed sensitive.max")


def test_a_tenant_in_use_is_never_dropped(ledger: LedgerObject) -> None:
    refused(ledger.write(tenants=ledger.account("ml")), "a tenant that holds nodes cannot be dropped from the ledger")
    accepted(ledger.write(tenants=ledger.account("idle")))


def test_a_node_leaves_the_total_only_when_it_is_not_needed_for_what_is_held(ledger: LedgerObject) -> None:
    accepted(ledger.write(totalNodes=8))
    refused(ledger.write(totalNodes=7), "more nodes would be held than exist")
    accepted(ledger.write(totalNodes=20))


def test_the_sensitive_pool_is_a_hard_limit_too(ledger: LedgerObject) -> None:
    refused(ledger.write(sensitive={"max": 2, "used": 3}), "sensitive.used would exceed sensitive.max")
    accepted(ledger.write(sensitive={"max": 0, "used": 1}))


@pytest.mark.parametrize("name", sorted(ledger_status()))
def test_no_field_of_the_ledger_may_be_left_out(ledger: LedgerObject, name: str) -> None:
    refused(ledger.write(**{name: None}), f"status.{name}: Required value")


def test_the_ledgers_status_is_never_removed(ledger: LedgerObject) -> None:
    refused(ledger.collection.merge("lattice", {"status": None}, status=True), "the ledger's status is never removed")


def test_the_ledger_keeps_its_number_of_shards(ledger: LedgerObject) -> None:
    refused(ledger.write(shards=["1||"] * (SHARDS - 1)), "status.shards")
    refused(ledger.write(shards=["1||"] * (SHARDS + 1)), "status.shards")


def test_the_rules_are_affordable_for_as_many_tenants_and_rows_as_the_ledger_takes(ledger: LedgerObject) -> None:
    account = {"maxNodes": 1, "usedNodes": 1, "maxAllocations": 1, "usedAllocations": 1}
    tenants = {**ledger.collection.read("lattice")["status"]["tenants"], **{f"tenant-{n:04d}": account for n in range(1020)}}
    shards = ["1|physics,alice,batch|" + ";".join(["AAAAAAAAAAAAAAAAAAAAAA 1 1 0 0 0 B h 1 1-9"] * 400)] * SHARDS
    accepted(ledger.write(tenants=tenants, totalNodes=16384, shards=shards))
    accepted(ledger.write())
    refused(ledger.write(tenants=ledger.account("tenant-1019", usedNodes=2)), "usedNodes would exceed maxNodes")
    refused(ledger.write(tenants={**tenants, "one-more": account}), "status.tenants: Too many")


def test_a_late_writer_loses_by_resource_version(ledger: LedgerObject) -> None:
    stands = ledger.collection.read("lattice")
    accepted(ledger.write())
    late = {**stands, "status": {**stands["status"], "seq": stands["status"]["seq"] + 1, "commit": "late"}}
    assert ledger.collection.put("lattice", late, status=True).status == 409


# The node index ------------------------------------------------------------------------------------------------------------------


def test_an_index_is_given_once_freed_by_an_empty_name_and_never_dropped(api_server: ApiServer) -> None:
    found = Collection(api_server, "nodeindexes", "NodeIndex")
    names = {str(index): f"nid{index:05d}" for index in range(MAX_NODES)}
    try:
        accepted(found.create("lattice", spec={"names": names}))
        sentence = "an index keeps its node until it is forgotten"
        refused(found.merge("lattice", {"spec": {"names": {"16383": "other"}}}), sentence)
        accepted(found.merge("lattice", {"spec": {"names": {"16383": ""}}}))
        accepted(found.merge("lattice", {"spec": {"names": {"16383": "other"}}}))
        refused(found.merge("lattice", {"spec": {"names": {"7": None}}}), "an index is freed by an empty name, never dropped")
        refused(found.merge("lattice", {"spec": {"names": None}}), "an index is freed by an empty name, never dropped")
        refused(found.merge("lattice", {"spec": None}), "the names of the node index are never removed")
        refused(found.merge("lattice", {"spec": {"names": {"16384": "one-too-many"}}}), "spec.names: Too many")
    finally:
        found.drop("lattice")
    until(lambda: not api_server.request("GET", f"{found.path}/lattice").ok, "the node index is gone", within=5)


# Reservation


RESERVED = {"nodes": "nid[001-004]", "start": "2099-12-01T08:00:00Z", "duration": "4h"}


@pytest.fixture
def reservations(api_server: ApiServer) -> Iterator[Collection]:
    found = Collection(api_server, "reservations", "Reservation")
    yield found
    api_server.request("DELETE", found.path)


def reserved(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**RESERVED, **changes}.items() if value is not None}


RESERVATIONS_ACCEPTED = {
    "nodes, once": reserved(),
    "maintenance with empty lists": reserved(maintenance=True, ignoreRunning=True, users=[], tenants=[], vclusters=[]),
    "a number of nodes, again and again, for some": reserved(
        nodes=None, nodeCount=4, features=["nvme"], groups=["g0"], gpuType="GH200", start="2099-12-01T02:00", timeZone="Europe/Zurich",
        recurrence={"weekdays": ["Monday", "Friday"], "count": 10}, users=["oidc:alice"], tenants=["physics"], vclusters=["hpc-batch"],
    ),
    "every third day until": reserved(recurrence={"everyDays": 3, "until": "2100-01-01T00:00:00+01:00"}),
}  # fmt: skip


@pytest.mark.parametrize("manifest", RESERVATIONS_ACCEPTED.values(), ids=RESERVATIONS_ACCEPTED.keys())
def test_a_reservation_is_accepted_and_stands_as_it_was_given(reservations: Collection, manifest: dict[str, Any]) -> None:
    assert accepted(reservations.create("good", spec=manifest))["spec"] == manifest


RESERVATIONS_REFUSED = {
    "no spec": (None, "spec: Required value"),
    "no nodes": (reserved(nodes=None), "give either spec.nodes or spec.nodeCount, exactly one of them"),
    "nodes and a number": (reserved(nodeCount=4), "give either spec.nodes or spec.nodeCount, exactly one of them"),
    "features beside nodes": (reserved(features=["nvme"]), "choose nodes for spec.nodeCount: leave them out beside spec.nodes"),
    "zero nodes": (reserved(nodes=None, nodeCount=0), "spec.nodeCount"),
    "more nodes than a ledger knows": (reserved(nodes=None, nodeCount=16385), "less than or equal to 16384"),
    "a start that is none": (reserved(start="tomorrow"), "spec.start"),
    "a local start without a zone": (reserved(start="2099-12-01T08:00"), "spec.start is a local time: set spec.timeZone"),
    "a zone that climbs": (reserved(timeZone="../../etc/passwd"), "spec.timeZone"),
    "no duration": (reserved(duration=None), "spec.duration: Required value"),
    "a duration of nothing": (reserved(duration="0s"), "spec.duration must be longer than nothing"),
    "a duration without unit": (reserved(duration="90"), "spec.duration"),
    "people for maintenance": (reserved(maintenance=True, users=["alice"]), "spec.maintenance means that nobody may use it"),
    "two rules": (reserved(recurrence={"everyDays": 1, "weekdays": ["Monday"]}), "either spec.recurrence.everyDays or"),
    "no rule": (reserved(recurrence={}), "either spec.recurrence.everyDays or spec.recurrence.weekdays"),
    "two ends": (reserved(recurrence={"everyDays": 1, "count": 3, "until": "2099-12-09T08:00:00Z"}), "not both"),
    "an unknown weekday": (reserved(recurrence={"weekdays": ["Someday"]}), "Unsupported value"),
    "the same weekday twice": (reserved(recurrence={"weekdays": ["Monday", "Monday"]}), "Duplicate value"),
    "every zero days": (reserved(recurrence={"everyDays": 0}), "spec.recurrence.everyDays"),
}


@pytest.mark.parametrize(("manifest", "sentence"), RESERVATIONS_REFUSED.values(), ids=RESERVATIONS_REFUSED.keys())
def test_a_reservation_is_refused_with_a_sentence(reservations: Collection, manifest: dict[str, Any] | None, sentence: str) -> None:
    refused(reservations.create("bad", **({"spec": manifest} if manifest is not None else {})), sentence)


@pytest.mark.parametrize(
    ("patch", "field"),
    [({"nodes": "nid[001-009]"}, "nodes"), ({"start": "2099-12-02T08:00:00Z"}, "start"), ({"timeZone": "Europe/Zurich"}, "timeZone")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_nodes_and_from_when_is_fixed(reservations: Collection, patch: dict[str, Any], field: str) -> None:
    accepted(reservations.create("fixed", spec=reserved()))
    sentence = f"spec.{field} cannot be changed after creation: delete this reservation and make a new one"
    refused(reservations.merge("fixed", {"spec": patch}), sentence)


def test_how_long_how_often_and_for_whom_may_change(reservations: Collection) -> None:
    accepted(reservations.create("free", spec=reserved()))
    accepted(reservations.merge("free", {"spec": {"duration": "6h", "recurrence": {"everyDays": 7}, "users": ["alice"]}}))
