"""DAGs through the daemons: the book's graphs with their failures, hold, cancel, delete, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.kube.resources import ALLOCATIONS, DAGS
from lattice.units import parse_time
from lattice.views import Dag
from lattice.workflow.members import member_object
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def member(name: str, work: str = "true", *edges: tuple[str, str], **more: Any) -> dict[str, Any]:
    """A member that waits for others: (name, condition)."""
    waits = [{"ref": ref, "condition": condition} for ref, condition in edges]
    return {"name": name, "spec": {"entrypoint": work, **more.pop("spec", {})}, **({"dependsOn": waits} if waits else {}), **more}


def manifest(name: str, *members: dict[str, Any], **spec: Any) -> str:
    defaults = {"vcluster": "hpc-batch", "lifecycle": {"walltime": "5m", "gracePeriod": "2s"}}
    return json.dumps(
        {
            "apiVersion": "lattice.dev/v1alpha1", "kind": "DAG", "metadata": {"name": name},
            "spec": {"defaults": defaults, "members": list(members), **spec},
        }
    )  # fmt: skip


def submit(me: Person, name: str, *members: dict[str, Any], ok: bool = True, **spec: Any) -> Any:
    return me.kubectl("-n", me.namespace, "apply", "-f", "-", stdin=manifest(name, *members, **spec), ok=ok)


def dag(me: Person, name: str) -> dict[str, Any]:
    return dict(json.loads(me.kubectl("-n", me.namespace, "get", "dag", name, "-o", "json").stdout))


def ended(me: Person, name: str, within: float = 60) -> dict[str, Any]:
    """The status of a DAG once it has ended."""
    seen = Seen(lambda: dag(me, name).get("status", {}), lambda status: status.get("phase") in ("Completed", "Failed", "Cancelled"))
    return dict(until(seen, within=within, what=f"the end of DAG {name}"))


def phases(status: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("phase", "") for one in status["members"]}


def ready(status: dict[str, Any]) -> tuple[str, str]:
    found: dict[str, Any] = next((one for one in status.get("conditions", []) if one["type"] == "Ready"), {})
    return found.get("status", ""), found.get("reason", "")


BOOK = (
    member("preprocess", "sleep 1"),
    member("train", "true", ("preprocess", "Success")),
    member("evaluate", "true", ("train", "Success")),
    member("notify-failure", "true", ("train", "Failure")),
)


def test_the_books_pipeline_completes_and_skips_what_no_failure_needs(me: Person) -> None:
    submit(me, "pipeline", *BOOK)
    status = ended(me, "pipeline")
    assert (status["phase"], ready(status)) == ("Completed", ("True", "Completed"))
    assert phases(status) == {"preprocess": "Completed", "train": "Completed", "evaluate": "Completed", "notify-failure": "Cancelled"}
    assert status["counts"] == {"total": 4, "pending": 0, "running": 0, "completed": 3, "failed": 0, "cancelled": 0, "skipped": 1}
    assert status["criticalPath"] == ["preprocess", "train", "evaluate"]
    made = me.get("pipeline.train")
    assert made["spec"]["dependsOn"] == [{"ref": "pipeline.preprocess", "condition": "Success"}]
    assert made["spec"]["user"] == "alice"
    first = me.get("pipeline.preprocess")["status"]
    assert parse_time(first["endTime"]) <= parse_time(made["status"]["scheduledTime"])


def test_a_failure_runs_its_handler_and_the_dag_completes(me: Person) -> None:
    submit(me, "handled", BOOK[0], member("train", "false", ("preprocess", "Success")), *BOOK[2:])
    status = ended(me, "handled")
    assert status["phase"] == "Completed"
    assert phases(status) == {"preprocess": "Completed", "train": "Failed", "evaluate": "Cancelled", "notify-failure": "Completed"}
    assert next(one for one in status["members"] if one["name"] == "evaluate")["reason"] == "DependencyFailed"


def test_a_failure_that_nothing_catches_fails_the_dag_and_cancels_what_follows(me: Person) -> None:
    submit(me, "broken", member("a", "false"), member("b", "true", ("a", "Success")), member("c", "true", ("b", "Success")), member("d"))
    status = ended(me, "broken")
    assert (status["phase"], ready(status)) == ("Failed", ("False", "MemberFailed"))
    assert phases(status) == {"a": "Failed", "b": "Cancelled", "c": "Cancelled", "d": "Completed"}
    stalled = next(one for one in status["conditions"] if one["type"] == "Stalled")
    assert (stalled["status"], "a failed" in stalled["message"]) == ("True", True), stalled


def test_a_clean_up_runs_whatever_happens(me: Person) -> None:
    submit(me, "tidy", member("run", "false"), member("clean", "true", ("run", "Any")))
    assert phases(ended(me, "tidy")) == {"run": "Failed", "clean": "Completed"}
    assert dag(me, "tidy")["status"]["phase"] == "Completed"


def test_a_cancelled_dag_ends_what_runs_and_what_waits(me: Person) -> None:
    submit(me, "long", member("run", "sleep 4261.1"), member("then", "true", ("run", "Any")))
    me.phase("long.run", "Running")
    me.kubectl("-n", me.namespace, "patch", "dag", "long", "--type=merge", "-p", '{"spec": {"cancel": {"reason": "wrong input"}}}')
    status = ended(me, "long")
    assert (status["phase"], phases(status)) == ("Cancelled", {"run": "Cancelled", "then": "Cancelled"})
    assert me.get("long.run")["spec"]["cancel"]["reason"] == "wrong input"
    taken = me.kubectl("-n", me.namespace, "patch", "dag", "long", "--type=merge", "-p", '{"spec": {"cancel": null}}', ok=False)
    assert "cannot be taken back" in taken.stderr


def test_a_held_dag_starts_nothing_until_it_is_released(me: Person) -> None:
    submit(me, "patient", member("a"), member("b", "true", ("a", "Success")), hold=True)
    seen = Seen(lambda: dag(me, "patient").get("status", {}), lambda status: status.get("complete") is True and ready(status)[1] == "Held")
    assert ready(until(seen, within=20)) == ("False", "Held")
    waiting = Seen(lambda: me.get("patient.a").get("status", {}), lambda status: bool(status.get("conditions")))
    held = next(one for one in until(waiting, within=20)["conditions"] if one["type"] == "Scheduled")
    assert (held["reason"], 'DAG "patient" is held' in held["message"]) == ("Held", True), held
    me.kubectl("-n", me.namespace, "patch", "dag", "patient", "--type=merge", "-p", '{"spec": {"hold": null}}')
    assert ended(me, "patient")["phase"] == "Completed"


def test_a_deleted_dag_is_gone_only_when_its_members_are(me: Person) -> None:
    submit(me, "doomed", member("run", "sleep 4261.2"), member("then", "true", ("run", "Any")))
    me.phase("doomed.run", "Running")
    me.kubectl("-n", me.namespace, "delete", "dag", "doomed", "--timeout=600s")
    left = me.kubectl("-n", me.namespace, "get", "allocations", "-l", "lattice.dev/dag=doomed", "-o", "name").stdout
    assert left == ""


def test_a_deleted_member_is_not_made_again_and_stands_in_the_status(me: Person, gate: Gate) -> None:
    submit(me, "holed", member("a"), member("b", gate.command, ("a", "Any")))
    me.ended("holed.a")
    me.kubectl("-n", me.namespace, "delete", "allocation", "holed.a", "--timeout=600s")
    gate.open()
    status = ended(me, "holed")
    assert (status["phase"], phases(status)) == ("Completed", {"a": "Completed", "b": "Completed"})
    assert me.kubectl("-n", me.namespace, "get", "allocation", "holed.a", ok=False).returncode


def test_a_killed_operator_and_scheduler_lose_no_member_and_make_none_twice(me: Person, control_plane: Instance) -> None:
    members = [member("first", "sleep 1"), *(member(f"m{place}", "true", ("first", "Success")) for place in range(30))]
    submit(me, "killed", *members, member("last", "true", *((f"m{place}", "Any") for place in range(30))))
    for component in ("operator", "scheduler", "operator"):
        control_plane.kill(component)
        control_plane.start(component)
    status = ended(me, "killed", within=120)
    assert (status["phase"], status["counts"]["completed"]) == ("Completed", 32)
    assert all(me.get(f"killed.m{place}")["status"]["attempt"] == 1 for place in (0, 13, 29))


def test_no_member_starts_before_all_of_them_exist(me: Person, control_plane: Instance) -> None:
    """The operator stops amid its making, here after the first member, which is made with its identity."""
    control_plane.stop("operator")
    try:
        submit(me, "half-made", *(member(f"m{place}") for place in range(5)), hold=True)
        with control_plane.cluster("operator") as operator:
            made = operator.get(DAGS, "half-made", me.namespace, type=Dag)
            operator.create(ALLOCATIONS, member_object(made, made.spec.members[0]), me.namespace)
        why = Seen(lambda: me.get("half-made.m0").get("status", {}), lambda status: "WaitingForDag" in reasons(status))
        until(why, within=20)
    finally:
        control_plane.start("operator")
    why = Seen(lambda: me.get("half-made.m0").get("status", {}), lambda status: "Held" in reasons(status))
    until(why, within=60)
    me.lattice("dag", "cancel", "half-made")
    assert ended(me, "half-made", within=120)["counts"]["cancelled"] == 5


def reasons(status: dict[str, Any]) -> set[str]:
    """The reasons of all conditions."""
    return {one["reason"] for one in status.get("conditions", ())}


WRONG: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "a cycle": ([member("a", "true", ("b", "Any")), member("b", "true", ("a", "Any"))], ("a → b → a",)),
    "an edge to itself": ([member("a", "true", ("a", "Any"))], ("spec.members[0].dependsOn[0].ref", "waits for itself")),
    "an edge to nobody": ([member("a", "true", ("b", "Any"))], ("spec.members[0].dependsOn[0].ref", "is no member")),
    "a dotted name": ([member("a.b")], ("spec.members[0].name", "no dots")),
    "a name twice": ([member("a"), member("a")], ("spec.members[1].name", "already")),
    "no members": ([], ("spec.members",)),
    "1,001 members": ([member(f"m{place}") for place in range(1001)], ("1001 allocations, limit: 1000", "Split the workflow")),
    "too many bytes": ([member(f"m{place}", f"echo {'x' * 20000}") for place in range(60)], ("limit:",)),
    "a user": ([member("a", spec={"user": "bob"})], ("names tenant, user",)),
    "a bad walltime": ([member("a", spec={"lifecycle": {"walltime": "soon"}})], ('"a"', "walltime")),
    "a vcluster that is none": ([member("a", spec={"vcluster": "nowhere"})], ("vCluster", "nowhere")),
    "neither entrypoint nor script": ([{"name": "a", "spec": {"resources": {"nodes": 1}}}], ('"a"', "entrypoint")),
    "a group's condition": ([member("a"), member("b", "true", ("a", "Corresponding"))], ("Corresponding",)),
}


@pytest.mark.parametrize(("members", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_dag_is_refused_with_its_place(me: Person, members: list[dict[str, Any]], said: tuple[str, ...]) -> None:
    refused = me.kubectl("-n", me.namespace, "create", "-f", "-", stdin=manifest("wrong", *members), ok=False)
    assert refused.returncode, refused
    assert all(word in refused.stderr for word in said), refused.stderr


def test_a_dotted_name_of_the_dag_is_refused(me: Person) -> None:
    assert "no dots" in submit(me, "a.b", member("c"), ok=False).stderr


def test_a_field_that_no_allocation_has_refuses_the_member_and_cancels_all(me: Person) -> None:
    submit(me, "typo", member("a"), member("b", spec={"ressources": {"nodes": 2}}))
    status = ended(me, "typo")
    assert (status["phase"], ready(status)[1]) == ("Failed", "MemberRefused")
    assert "ressources" in next(one for one in status["conditions"] if one["type"] == "Made")["message"]
    assert set(phases(status).values()) == {"Cancelled"}


def test_a_name_that_other_work_has_is_taken(me: Person) -> None:
    me.apply("taken.a", entrypoint="sleep 4261.3")
    submit(me, "taken", member("a"), member("b"))
    assert ready(ended(me, "taken"))[1] == "NameTaken"
    assert me.phase("taken.a", "Running")
    me.lattice("cancel", "taken.a")


def test_another_name_and_anothers_dag_are_refused(me: Person, control_plane: Instance) -> None:
    theirs = submit(me, "forbob", member("a"), user="bob", ok=False)
    assert "runas" in theirs.stderr, theirs.stderr
    submit(me, "mine", member("a", "sleep 4261.4"))
    bob = person(control_plane, "bob", me.namespace)
    refused = bob.kubectl("-n", me.namespace, "patch", "dag", "mine", "--type=merge", "-p", '{"spec": {"hold": true}}', ok=False)
    assert refused.returncode, refused
    changed = me.kubectl("-n", me.namespace, "patch", "dag", "mine", "--type=merge", "-p", '{"spec": {"members": []}}', ok=False)
    assert changed.returncode, changed
    status = me.kubectl(
        "-n", me.namespace, "patch", "dag", "mine", "--subresource=status", "--type=merge", "-p", '{"status": {"complete": true}}', ok=False
    )
    assert status.returncode, status
    me.kubectl("-n", me.namespace, "delete", "dag", "mine", "--timeout=600s")


def test_secrets_are_those_that_who_submits_may_read(me: Person) -> None:
    refused = submit(me, "secretive", member("a"), defaults={"environment": {"variablesFrom": [{"secretRef": "not-mine"}]}}, ok=False)
    assert "not-mine" in refused.stderr, refused.stderr
    own = submit(me, "secretive", member("a", spec={"environment": {"variablesFrom": [{"secretRef": "not-mine"}]}}), ok=False)
    assert "variablesFrom" in own.stderr, own.stderr


GUIDE = """
name: Training Pipeline
allocations:
  - {name: preprocess, entrypoint: "true", vcluster: hpc-batch, nodes: 1, walltime: "5m"}
  - {name: train, entrypoint: "false", vcluster: hpc-batch, nodes: 1, walltime: "5m", depends_on: [{preprocess: success}]}
  - {name: evaluate, entrypoint: "true", vcluster: hpc-batch, nodes: 1, walltime: "5m", depends_on: [{train: success}]}
"""
DESIGN = """
dag:
  allocations:
    - {id: stage-data, entrypoint: "true", vcluster: hpc-batch, resources: {nodes: 1}, lifecycle: {type: bounded, walltime: 5m}}
    - {id: train, entrypoint: "true", vcluster: hpc-batch, lifecycle: {walltime: 5m}, depends_on: [{ref: stage-data, condition: success}]}
"""


def test_both_forms_of_the_book_are_submitted_shown_and_submitted_again(me: Person) -> None:
    done = me.lattice("dag", "submit", "-f", "-", "--wait", stdin=GUIDE, ok=False)
    assert (done.returncode, "Submitted DAG training-pipeline with 3 allocations" in done.stdout) == (1, True), done
    shown = me.lattice("dag", "status", "training-pipeline").stdout
    assert all(word in shown for word in ("MemberFailed", "preprocess", "DependencyFailed", "WAITS FOR")), shown
    drawn = me.lattice("dag", "status", "training-pipeline", "--graph").stdout
    assert drawn == "preprocess [Completed] → train [Failed] → evaluate [Cancelled]\n"
    assert '"preprocess" -> "train" [label="Success"];' in me.lattice("dag", "status", "training-pipeline", "-o", "dot").stdout
    assert "training-pipeline" in me.lattice("dag", "list", "--state=failed").stdout
    again = me.lattice("dag", "resubmit", "training-pipeline", "--wait", ok=False)
    assert (again.returncode, "training-pipeline-r1 with 2 allocations" in again.stdout) == (1, True), again
    assert [one["name"] for one in dag(me, "training-pipeline-r1")["spec"]["members"]] == ["train", "evaluate"]
    name = me.lattice("dag", "submit", "--parsable", "--wait", "-", stdin=DESIGN).stdout.strip()
    assert dag(me, name)["status"]["phase"] == "Completed"
    assert me.lattice("dag", "resubmit", name, ok=False).returncode == 1


def test_people_hold_release_and_cancel_by_name(me: Person) -> None:
    me.lattice("dag", "submit", "--name=byhand", "--hold", "-", stdin=GUIDE)
    me.lattice("dag", "submit", "--name=freed", "--hold", "-", stdin=GUIDE)
    assert "Released DAG freed" in me.lattice("dag", "release", "freed").stdout
    assert "Held DAG byhand" in me.lattice("dag", "hold", "byhand").stdout
    assert "Cancelling DAG byhand" in me.lattice("dag", "cancel", "byhand", "--reason=enough").stdout
    assert ended(me, "byhand")["phase"] == "Cancelled"
    assert "has ended already" in me.lattice("dag", "cancel", "byhand").stderr
    assert me.lattice("dag", "status", "nobody", ok=False).returncode == 4
    cycle = GUIDE.replace('walltime: "5m"}', 'walltime: "5m", depends_on: [{evaluate: any}]}', 1)
    refused = me.lattice("dag", "submit", "-", stdin=cycle, ok=False)
    assert (refused.returncode, "preprocess → train → evaluate → preprocess" in refused.stderr) == (1, True), refused


def test_other_work_waits_for_a_member(me: Person) -> None:
    submit(me, "awaited", member("first", "sleep 2"), member("second", "true", ("first", "Success")))
    seen = Seen(lambda: dag(me, "awaited").get("status", {}), lambda status: status.get("complete") is True)
    until(seen, within=20)
    me.apply("outside", entrypoint="true", dependsOn=[{"ref": "awaited.second", "condition": "Success"}])
    assert me.ended("outside")["phase"] == "Completed"
