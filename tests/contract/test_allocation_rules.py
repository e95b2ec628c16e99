"""Allocations on a real API server: accepted and refused ones, each with the sentence that a person reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.crd_objects import STRICT, TABLE, Collection, accepted, refused
from tests.servers import APPLY, ApiServer


@pytest.fixture
def allocations(api_server: ApiServer) -> Iterator[Collection]:
    found = Collection(api_server, "allocations", "Allocation", "default")
    yield found
    api_server.request("DELETE", found.path)


def spec(**changes: Any) -> dict[str, Any]:
    return {"tenant": "physics", "user": "alice", "entrypoint": "true", "lifecycle": {"walltime": "1h"}, **changes}


ACCEPTED = {
    "the least that makes sense": {"entrypoint": "true"},
    "a script": {"script": "#!/bin/sh\ntrue\n"},
    "a script in a ConfigMap": {"scriptFrom": {"configMap": "x", "digest": "sha256:" + 64 * "0"}, "scriptArguments": ["a"]},
    "a number of nodes": spec(resources={"nodes": 64}),
    "a range of nodes": spec(resources={"nodes": "32-128", "memory": "128Gi", "cpus": 24}),
    "memory as a number of bytes": spec(resources={"memory": 1073741824}),
    "unbounded": spec(lifecycle={"type": "Unbounded"}),
    "days, hours and minutes": spec(lifecycle={"walltime": "1d2h30m"}),
    "1,000 edges": spec(dependsOn=[{"ref": f"x{n}", "condition": "Started", "delay": "5m"} for n in range(1000)], onUnmet="Hold"),
    "the same edge twice, which the webhook refuses and which says no more than once": spec(dependsOn=[{"ref": "x", "condition": "Any"}] * 2),
    "parts left at their defaults": spec(sensitive=False, checkpoint={"strategy": "Auto"}, telemetry={"mode": "Prod"}, dependsOn=[]),
    "empty checkpoint and telemetry": spec(checkpoint={}, telemetry={}),
    "topology Any": spec(resources={"constraints": {"topology": "Any", "features": ["hollow"], "preferSameNuma": False}}),
    "every constraint of nodes": spec(
        resources={"gpus": 4, "memory": "1Ti", "constraints": {
            "gpuType": "GH200", "gpuMemory": "90Gi", "topology": "Tight", "conformance": "Required",
            "requireUnifiedMemory": True, "allowCxlMemory": True}},
    ),
    "tasks of an entrypoint": spec(
        resources={"nodes": "2-4"},
        tasks={"total": 8, "perNode": 4, "cpus": 8, "gpus": 1, "layout": "Plane=2:Cyclic", "bind": "Cores", "mpi": "Pmi2"},
    ),
    "tasks in an image on one node": spec(resources={"nodes": "1-1"}, environment={"image": "app"}, tasks={"total": 8}),
    "tasks in an image, once on the head node": spec(
        resources={"nodes": 4}, environment={"image": "app"}, tasks={"total": 8, "on": "HeadNode"}
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


FROM = {"configMap": "job.script", "digest": "sha256:" + 64 * "0"}
REFUSED = {
    "zero nodes": (spec(resources={"nodes": 0}), "spec.resources.nodes"),
    "negative nodes": (spec(resources={"nodes": -1}), "greater than or equal to 1"),
    "a range from zero": (spec(resources={"nodes": "0-4"}), "spec.resources.nodes"),
    "half a node": (spec(resources={"nodes": 1.5}), "spec.resources.nodes"),
    "a list for a number of nodes": (spec(resources={"nodes": [1]}), "spec.resources.nodes"),
    "a text for hold": (spec(hold="yes"), "spec.hold"),
    "a number for a walltime": (spec(lifecycle={"walltime": 30}), "spec.lifecycle.walltime"),
    "class -1": (spec(lifecycle={"preemptionClass": -1}), "greater than or equal to 0"),
    "an intent that is none": (spec(intent="Dance"), 'Unsupported value: "Dance"'),
    "no task on a node": (spec(tasks={"perNode": 0}), "spec.tasks.perNode"),
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
    "data": (spec(data={"output": "s3://x"}), "spec.data.output is not served yet: data is not staged by this release; remove the field"),
    "an entrypoint and a script from a ConfigMap": (spec(scriptFrom=FROM), "either spec.entrypoint or spec.script, exactly one of them"),
    "a script and one from a ConfigMap": (
        {"tenant": "physics", "script": "#!/bin/sh\n", "scriptFrom": FROM},
        "spec.script and spec.scriptFrom are both given",
    ),
    "a script from a ConfigMap without its digest": (
        {"tenant": "physics", "scriptFrom": {"configMap": "x"}},
        "spec.scriptFrom.digest: Required value",
    ),
    "a digest that is none": ({"tenant": "physics", "scriptFrom": FROM | {"digest": "sha256:12"}}, "spec.scriptFrom.digest"),
    "a network domain": (spec(connectivity={"networkDomain": "x"}), "spec.connectivity is not served yet"),
    "corresponding": (
        spec(dependsOn=[{"ref": "x", "condition": "Corresponding"}]),
        "spec.dependsOn: the condition Corresponding is not served yet",
    ),
    "a condition that is none": (spec(dependsOn=[{"ref": "x", "condition": "Never"}]), "Unsupported value"),
    "an edge without a condition": (spec(dependsOn=[{"ref": "x"}]), "spec.dependsOn[0].condition: Required value"),
    "1,001 edges": (spec(dependsOn=[{"ref": f"x{n}", "condition": "Any"} for n in range(1001)]), "Too many: 1001: must have at most 1000"),
    "a mode that is none": (spec(dependsOnMode="Some"), "Unsupported value"),
    "an end that is none": (spec(onUnmet="Run"), "Unsupported value"),
    "manual checkpoints": (spec(checkpoint={"strategy": "Manual"}), "spec.checkpoint is not served yet"),
    "debug telemetry": (spec(telemetry={"mode": "Debug"}), "spec.telemetry is not served yet"),
    "a liveness probe": (spec(livenessProbe={"type": "HTTP"}), "spec.livenessProbe is not served yet"),
    "sensitive": (spec(sensitive=True), "spec.sensitive is not served yet: sensitive work is not isolated by this release"),
    "CPUs of tasks without their number": (spec(tasks={"cpus": 8}), "set spec.tasks.total, their number on all nodes, or leave them out"),
    "a binding of tasks without their number": (spec(tasks={"perNode": 2, "bind": "Cores"}), "set spec.tasks.total"),
    "a layout that is none": (spec(tasks={"total": 2, "layout": "Round"}), "spec.tasks.layout"),
    "a binding that is none": (spec(tasks={"total": 2, "bind": "cores"}), "Unsupported value"),
    "no CPU for a task": (spec(tasks={"total": 2, "cpus": 0}), "spec.tasks.cpus"),
    "a view of nothing": (spec(environment={"view": "default"}), "spec.environment.view is about software: give spec.environment.uenv"),
    "an image beside a uenv": (spec(environment={"image": "x", "uenv": "y"}), "spec.environment.image and uenv are given"),
    "a writable root of nothing": (spec(environment={"writable": True}), "spec.environment.writable is about OCI images"),
    "devices of no container": (spec(environment={"devices": ["a/b=c"]}), "spec.environment.devices is about OCI images"),
    "a device that is no CDI name": (spec(environment={"image": "x", "devices": ["gpu0"]}), "spec.environment.devices[0]"),
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


FIXED = "spec.lifecycle: type, preemptible, gracePeriod, signal cannot be changed after creation"
CHANGES_REFUSED = {
    "tenant": ({"tenant": "chemistry"}, "spec.tenant cannot be changed after creation: cancel this allocation and submit a new one"),
    "tenant removed": ({"tenant": None}, "spec.tenant cannot be changed after creation"),
    "user": ({"user": "bob"}, "spec.user cannot be changed after creation"),
    "vcluster added": ({"vcluster": "batch"}, "spec.vcluster cannot be changed after creation"),
    "entrypoint": ({"entrypoint": "false"}, "spec.entrypoint cannot be changed after creation"),
    "entrypoint to a script in a ConfigMap": (
        {"entrypoint": None, "scriptFrom": FROM},
        "spec.scriptFrom cannot be changed after creation: cancel this allocation and submit a new one",
    ),
    "entrypoint to script": ({"entrypoint": None, "script": "#!/bin/sh"}, "spec.script cannot be changed after creation"),
    "environment": ({"environment": {"workdir": "/tmp"}}, "spec.environment cannot be changed after creation"),
    "nodes": ({"resources": {"nodes": 2}}, "spec.resources cannot be changed after creation"),
    "tasks": ({"tasks": {"perNode": 2}}, "spec.tasks cannot be changed after creation"),
    "lifecycle type": ({"lifecycle": {"type": "Unbounded"}}, FIXED),
    "grace period": ({"lifecycle": {"gracePeriod": "1h"}}, FIXED),
    "signal": ({"lifecycle": {"signal": {"name": "USR1"}}}, FIXED),
    "lifecycle removed": ({"lifecycle": None}, FIXED),
    "what it runs again": ({"rerunOf": "12"}, "spec.rerunOf cannot be changed after creation"),
    "a requeue of what has not begun": ({"requeueAttempt": 1}, "spec.requeueAttempt must name an attempt that has nodes"),
}


@pytest.mark.parametrize(("patch", "sentence"), CHANGES_REFUSED.values(), ids=CHANGES_REFUSED.keys())
def test_what_is_fixed_after_creation_says_what_to_do_instead(allocations: Collection, patch: dict[str, Any], sentence: str) -> None:
    accepted(allocations.create("fixed", spec=spec()))
    refused(allocations.merge("fixed", {"spec": patch}), sentence)


@pytest.mark.parametrize(
    "patch",
    [{"hold": True}, {"cancel": {"reason": "x"}}, {"tags": {"name": "y"}}, {"lifecycle": {"walltime": "2h"}},
     {"lifecycle": {"preemptionClass": 3}}, {"lifecycle": {"requeue": {"max": 9}}}, {"lifecycle": {"notBefore": "2026-12-01T08:00:00Z"}},
     {"telemetry": {"mode": "Prod"}}],
    ids=lambda patch: "-".join(patch),
)  # fmt: skip
def test_what_may_change_after_creation_changes(allocations: Collection, patch: dict[str, Any]) -> None:
    accepted(allocations.create("free", spec=spec()))
    accepted(allocations.merge("free", {"spec": patch}))


def test_a_lifecycle_given_later_brings_only_what_may_change(allocations: Collection) -> None:
    accepted(allocations.create("bare", spec={"entrypoint": "true"}))
    refused(allocations.merge("bare", {"spec": {"lifecycle": {"type": "Unbounded"}}}), FIXED)
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
    for change in ({"requeue": {"max": 9}}, {"notBefore": "2026-12-01T08:00:00Z"}, {"deadline": "2026-12-01T08:00:00Z"}):
        refused(allocations.merge("held", {"spec": {"lifecycle": change}}), "only while the allocation holds no nodes")


def test_a_requeue_names_an_attempt_that_has_nodes_and_never_goes_back(allocations: Collection) -> None:
    refused(allocations.create("born", spec=spec(requeueAttempt=1)), "spec.requeueAttempt is of work that runs")
    accepted(allocations.create("again", spec=spec()))
    accepted(allocations.merge("again", {"status": {"nodes": "n1", "attempt": 2}}, status=True))
    refused(allocations.merge("again", {"spec": {"requeueAttempt": 3}}), "must name an attempt that has nodes")
    accepted(allocations.merge("again", {"spec": {"requeueAttempt": 2}}))
    for back in (1, None):
        refused(allocations.merge("again", {"spec": {"requeueAttempt": back}}), "spec.requeueAttempt never goes back")
    accepted(allocations.merge("again", {"status": {"nodes": "", "attempt": 3}}, status=True))
    refused(allocations.merge("again", {"spec": {"requeueAttempt": 3}}), "must name an attempt that has nodes")


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
