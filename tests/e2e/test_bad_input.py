"""Bad input gets a clear answer, on the real server: field, value, limit, next step; and nothing half-done remains."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, CONFIGS, NODES, VCLUSTERS
from lattice_dev import pki
from lattice_dev.instance import Instance
from lattice_dev.site import wanted_certificates
from lattice_dev.waiting import HostClock
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.e2e.work import Gate


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in the tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


@pytest.fixture(scope="module")
def boss(control_plane: Instance, shared_tenant: Room) -> Person:
    """The administrator, in the same namespace."""
    return person(control_plane, "admin", shared_tenant.namespace)


def manifest(namespace: str, changes: dict[str, Any], name: str = "bad") -> dict[str, Any]:
    """A good Allocation with some fields of its spec changed."""
    spec: dict[str, Any] = {"entrypoint": "true", "resources": {"nodes": 1}, "lifecycle": {"walltime": "5m"}, "hold": True}
    for path, value in changes.items():
        *above, last = path.split(".")
        at = spec
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": metadata, "spec": spec}


def words_missing(words: tuple[str, ...], text: str) -> list[str]:
    """The words that the answer lacks."""
    return [word for word in words if word not in text]


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "by the schema": ({"resources.nodes": 1.5}, ("spec.resources.nodes", "integer,string")),
    "by the schema, with the limit": (
        {"lifecycle.preemptionClass": 11},
        ("spec.lifecycle.preemptionClass", "11", "less than or equal to 10"),
    ),
    "by strict reading": ({"resources.nodez": 3}, ('unknown field "spec.resources.nodez"',)),
    "by the policy of a spec": ({"data": {"output": "s3://x"}}, ("spec.data.output is not served yet", "remove the field")),
    "by the webhook, in words": (
        {"resources.nodes": "many"},
        ("spec.resources.nodes", "'many' is no number of nodes", "such as 4 or 32-128", "Hint:"),
    ),
    "by the webhook, all faults of a form": (
        {"resources.cpus": 1, "tags": {"name": "a\tb"}, "vcluster": "GPU_1", "resources.memory": "1 Gi"},
        ("spec.tags.name", "spec.vcluster: 'GPU_1'", "spec.resources.memory: '1 Gi'"),
    ),
    "by the webhook, which knows the vclusters": (
        {"lifecycle.walltime": "30d"},
        ("spec.lifecycle.walltime", 'maxWalltime of vCluster "hpc-batch"', "requested: 30d", "limit: 7d", "Hint:"),
    ),
    "by the webhook, which knows who asks": ({"user": "bob"}, ('spec.user is "bob"', 'you are "alice"', "runas")),
    "by the webhook, whose size is limited": ({"entrypoint": "x" * 1_000_000}, ("bytes as JSON (limit: 524288)", "Hint:")),
}
"""One case for each that refuses; the rules themselves are held by tests/unit/admission and tests/contract."""


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_manifest_is_refused_with_field_value_and_limit(me: Person, case: str) -> None:
    changes, words = REFUSED[case]
    done = me.kubectl("create", "-f", "-", stdin=json.dumps(manifest(me.namespace, changes)), ok=False)
    assert done.returncode == 1, done.stdout
    assert words_missing(words, done.stderr) == [], done.stderr


def test_after_all_of_them_nothing_half_done_remains(me: Person) -> None:
    assert me.kubectl("get", "alloc", "bad", "-n", me.namespace, ok=False).stderr.count("NotFound") == 1


@dataclass(frozen=True)
class Given:
    """What `lattice submit` is given, its exit code and the words of its answer."""

    words: tuple[str, ...]
    says: tuple[str, ...]
    code: int = 2
    files: dict[str, bytes] = field(default_factory=dict)


SUBMITTED = {
    "a script that the client refuses": Given(("a.sh",), ("a.sh", "#!", "for example #!/bin/bash"), files={"a.sh": b"echo hi\n"}),
    "a partition that is none": Given(
        ("a.sh",), ("line 2", '"nope" not found. Available: hpc-batch'), 1, {"a.sh": b"#!/bin/sh\n#SBATCH -p nope\n"}
    ),
    "a walltime above the limit": Given(
        ("--walltime=30d", "--", "true"), ("walltime 30d exceeds maxWalltime", "  Requested: 30d", "  Limit: 7d", "  Hint: "), 1
    ),
    "an unknown tenant": Given(("--tenant=nope", "--", "true"), ('namespace "nope"', "Hint:", "no member"), 5),
    "another user": Given(("--user=bob", "--", "true"), ('spec.user is "bob"', "runas"), 5),
}
"""What the client alone refuses is held by tests/unit/cli/verbs/test_submit_refusals.py."""


@pytest.mark.parametrize("case", SUBMITTED)
def test_a_bad_submission_is_refused_with_the_documented_exit_code(me: Person, tmp_path: Path, case: str) -> None:
    given = SUBMITTED[case]
    for name, data in given.files.items():
        (tmp_path / name).write_bytes(data)
    done = me.lattice("submit", *given.words, ok=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (given.code, ""), done.stderr
    assert done.stderr.startswith("Error: ")
    assert words_missing(given.says, done.stderr) == [], done.stderr
    assert me.kubectl("get", "alloc", "-n", me.namespace, "-o", "name").stdout == ""


def test_more_nodes_than_exist_are_accepted_with_a_warning_and_the_reason(tenant: Room, control_plane: Instance) -> None:
    me = person(control_plane, "alice", tenant.namespace)
    done = me.lattice("submit", "--nodes=400", "--name=two words", "--", "true")
    assert "Warning: 400 nodes are asked for and the cluster has" in done.stderr
    number = done.stdout.split()[-1]
    until(lambda: "NeverFits" in me.lattice("why", number).stdout, within=10)
    assert "two-words-" in me.lattice("status", "-o", "name").stdout
    me.lattice("cancel", number)
    done = me.kubectl("create", "-f", "-", stdin=json.dumps(manifest(me.namespace, {"lifecycle.deadline": "2001-01-01T00:00:00Z"}, "late")))
    assert "Warning: spec.lifecycle.deadline 2001-01-01T00:00:00Z has passed" in done.stderr
    status = me.ended("late")
    assert (status["phase"], reason(status), status.get("exit")) == ("Cancelled", "DeadlineMissed", None)


FIXED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "by the schema": ({"resources": {"nodes": 2}}, ("spec.resources", "cannot be changed")),
    "by the webhook": ({"lifecycle": {"walltime": "1h"}}, ("spec.lifecycle.walltime", "current: 5m, requested: 1h", "extend", "Hint:")),
    "while it runs": (
        {"lifecycle": {"preemptionClass": 9}},
        ("spec.lifecycle", "preemptionClass can be changed only", "holds no nodes", "submit a new one"),
    ),
}


def test_what_is_fixed_stays_fixed_and_ended_work_stays_ended(tenant: Room, control_plane: Instance) -> None:
    me = person(control_plane, "alice", tenant.namespace)

    def patch(change: dict[str, Any], *words: str) -> str:
        done = me.kubectl("patch", "alloc", "fixed", "-n", me.namespace, "--type=merge", "-p", json.dumps(change), *words, ok=False)
        assert done.returncode == 1, (change, done.stdout)
        return done.stderr

    me.apply("fixed", entrypoint="sleep 4243.1")
    me.phase("fixed", "Running")
    before = me.get("fixed")["spec"]
    for case, (change, words) in FIXED.items():
        said = patch({"spec": change})
        assert words_missing(words, said) == [], (case, said)
    assert me.get("fixed")["spec"] == before
    assert 'resource "allocations/status"' in patch({"status": {"phase": "Completed"}}, "--subresource=status")
    assert "finalizer lattice.dev/release is removed by Lattice" in patch({"metadata": {"finalizers": []}})
    done = me.lattice("hold", "fixed", ok=False)
    assert (done.returncode, "only a pending one can be held" in done.stderr) == (1, True)
    me.lattice("cancel", "fixed", "--reason", "wrong input")
    me.ended("fixed")
    assert "cannot be taken back" in patch({"spec": {"cancel": None}})
    assert "has ended since" in patch({"spec": {"hold": True}})
    assert "has ended already" in me.lattice("cancel", "fixed").stderr


def test_a_request_id_submits_once_and_is_refused_for_other_work(tenant: Room, control_plane: Instance) -> None:
    me = person(control_plane, "alice", tenant.namespace)
    numbers = [me.lattice("submit", "--hold", "--request-id=run-1", "--parsable", "--", "true").stdout for _ in range(2)]
    assert numbers[0] == numbers[1]
    other = me.lattice("submit", "--hold", "--request-id=run-1", "--", "false", ok=False)
    assert (other.returncode, "'run-1' was used for something else" in other.stderr) == (1, True), other.stderr
    assert len(me.lattice("status", "-o", "name").stdout.splitlines()) == 1


def test_what_a_node_cannot_start_fails_with_the_node_and_what_is_missing(tenant: Room, control_plane: Instance) -> None:
    me, boss = (person(control_plane, user, tenant.namespace) for user in ("alice", "admin"))
    broken = control_plane.where.user_home("alice") / "broken"
    broken.write_bytes(b"\x01\x02garbage")
    broken.chmod(0o755)
    cases: dict[str, tuple[dict[str, Any], str, str]] = {
        "workdir": ({"entrypoint": "true", "environment": {"workdir": "/no/dir"}}, "StartFailed", "'/no/dir' cannot be entered"),
        "missing": ({"entrypoint": "no-such-program"}, "StartFailed", "'no-such-program' cannot be executed: No such file"),
        "format": ({"entrypoint": str(broken)}, "StartFailed", "Exec format error"),
        "interpreter": ({"script": "#!/no/interpreter\n"}, "StartFailed", "not the interpreter"),
        "permission": ({"entrypoint": "/etc/passwd"}, "StartFailed", "Permission denied"),
        "output": (
            {"entrypoint": "true", "environment": {"output": {"stdout": "/no/dir/x"}}},
            "StartFailed",
            "'/no/dir/x' cannot be opened",
        ),
    }
    for name, (spec, _, _) in cases.items():
        me.apply(name, **spec)
    cases["unknown"] = ({}, "UserUnknown", "knows no user 'nobody-such'")
    cases["root"] = ({}, "UserRefused", "its uid is 0")
    boss.apply("unknown", entrypoint="true", user="nobody-such")
    boss.apply("root", entrypoint="true", user="root")
    for name, (_, why, words) in cases.items():
        status = me.ended(name, within=60)
        said = next(condition["message"] for condition in status["conditions"] if condition["type"] == "Finished")
        assert (status["phase"], reason(status), status.get("exit")) == ("Failed", why, None), said
        assert "node nid0" in said
        assert words in said
    assert me.lattice("wait", "workdir", ok=False).returncode == 125
    assert "'/no/dir' cannot be entered" in me.lattice("why", "workdir").stdout


def test_a_user_without_a_home_works_in_the_root_directory_and_is_told(control_plane: Instance, admin: BlockingCluster) -> None:
    control_plane.add_user("homeless", "nohome")
    me = person(control_plane, "homeless", "nohome")
    home = control_plane.where.user_home("homeless")
    until(lambda: me.kubectl("auth", "can-i", "create", "allocations.lattice.dev", "-n", "nohome", ok=False).stdout == "yes\n", within=20)
    home.rename(home.with_name("homeless.gone"))
    try:
        me.apply("home", entrypoint="pwd")
        status = me.ended("home")
    finally:
        home.with_name("homeless.gone").rename(home)
    assert status["phase"] == "Completed"
    said = me.lattice("logs", "home").stdout.splitlines()
    assert "/" in said
    assert any(f"the home directory '{home}' cannot be entered" in line and "working in / instead" in line for line in said), said
    admin.delete(ALLOCATIONS, "home", "nohome")


KEPT: dict[str, tuple[tuple[str, ...], str]] = {
    "the ledger's status": (
        ("patch", "ledger", "lattice", "--subresource=status", "--type=json", "-p", "PATCH"),
        "written by the scheduler alone",
    ),
    "the ledger": (("annotate", "ledger", "lattice", "by=hand"), "written by the scheduler alone"),
    "the ledger's existence": (("delete", "ledger", "lattice"), "not deleted"),
    "the index": (
        ("patch", "nodeindex", "lattice", "--type=merge", "-p", '{"spec":{"names":{"9000":"x"}}}'),
        "written by the scheduler alone",
    ),
    "an index that is given": (
        ("patch", "nodeindex", "lattice", "--type=merge", "-p", '{"spec":{"names":{"0":"x"}}}'),
        "an index keeps its node",
    ),
    "the index's existence": (("delete", "nodeindex", "lattice"), "not deleted"),
    "a plan": (("patch", "nodegroupplan", "group-0000", "--type=merge", "-p", '{"spec":{"text":"1"}}'), "written by the scheduler alone"),
    "a plan's existence": (("delete", "nodegroupplan", "group-0000"), "not deleted"),
    "a kind": (("delete", "crd", "allocations.lattice.dev"), "lattice.dev/really-delete"),
}


def test_even_an_administrator_does_not_edit_what_the_scheduler_keeps(boss: Person) -> None:
    commit = [{"op": "replace", "path": "/status/commit", "value": "by-hand"}]
    seq = boss.kubectl("get", "ledger", "lattice", "-o", "jsonpath={.status.seq}").stdout
    commit.append({"op": "replace", "path": "/status/seq", "value": int(seq) + 1})  # type: ignore[dict-item]  # a number, as JSON has it
    for case, (words, says) in KEPT.items():
        done = boss.kubectl(*(json.dumps(commit) if word == "PATCH" else word for word in words), ok=False)
        assert (done.returncode, says in done.stderr) == (1, True), (case, done.stderr)


def test_ordinary_people_touch_no_nodes_vclusters_or_tenants(me: Person) -> None:
    for words in (
        ("node", "drain", "nid001", "--reason=x"),
        ("admin", "tenant", "create", "mine"),
        ("admin", "vcluster", "create", "mine"),
    ):
        done = me.lattice(*words, ok=False)
        assert (done.returncode, "cannot" in done.stderr) == (5, True), (words, done.stderr)


def calls(instance: Instance, method: str) -> int:
    """How often the webhook was asked by this method."""
    found = re.search(
        rf'^lattice_api_requests_total{{method="{method}",status="200"}} ([0-9.]+)$', instance.metrics("webhook"), re.MULTILINE
    )
    return int(float(found[1])) if found else 0


def test_a_submission_is_judged_in_one_call_which_nobody_else_can_say_of_it(control_plane: Instance, me: Person) -> None:
    before = {method: calls(control_plane, method) for method in ("mutate", "validate")}
    me.apply("once", entrypoint="true", hold=True)
    assert {method: calls(control_plane, method) - count for method, count in before.items()} == {"mutate": 1, "validate": 0}
    assert sorted(me.get("once")) == ["apiVersion", "kind", "metadata", "spec", "status"]
    bad = {**manifest(me.namespace, {"lifecycle.walltime": "30d"}), "judged": True}
    for words in (("create",), ("apply", "--server-side")):
        done = me.kubectl(*words, "--validate=false", "-f", "-", stdin=json.dumps(bad), ok=False)
        assert (done.returncode, "maxWalltime" in done.stderr or "judged" in done.stderr) == (1, True), (words, done.stderr)
    me.kubectl("delete", "alloc", "once", "-n", me.namespace)


def test_nothing_keeps_who_has_set_which_field_until_somebody_applies_it_server_side(me: Person) -> None:
    """Also not the writes of the status that follow; a later server-side apply begins with what stands there."""
    body = json.dumps(manifest(me.namespace, {}, "lean"))
    me.kubectl("create", "-f", "-", stdin=body)
    shown = ("get", "alloc", "lean", "-n", me.namespace, "--show-managed-fields", "-o", "json")

    def found() -> dict[str, Any]:
        stands: dict[str, Any] = json.loads(me.kubectl(*shown).stdout)
        return stands

    until(lambda: found().get("status", {}).get("conditions"), within=30, what="the first status")
    assert "managedFields" not in found()["metadata"]
    me.kubectl("apply", "--server-side", "-f", "-", stdin=body)
    assert {entry["manager"] for entry in found()["metadata"]["managedFields"]} >= {"kubectl", "before-first-apply"}
    me.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest(me.namespace, {}, "applied")))
    managers = json.loads(me.kubectl(*shown[:2], "applied", *shown[3:]).stdout)["metadata"]["managedFields"]
    assert ("kubectl", "Apply") in {(entry["manager"], entry["operation"]) for entry in managers}
    me.kubectl("delete", "alloc", "lean", "applied", "-n", me.namespace)


def test_with_the_webhook_down_policies_still_refuse_and_work_that_says_everything_still_runs(
    tenant: Room, control_plane: Instance, admin: BlockingCluster
) -> None:
    me = person(control_plane, "alice", tenant.namespace)
    me.apply("before", entrypoint="sleep 4243.2")
    me.phase("before", "Running")
    control_plane.stop("webhook")
    try:
        done = me.apply("empty", entrypoint="true", ok=False)
        assert (done.returncode, "spec.user is empty" in done.stderr, "try again" in done.stderr) == (1, True, True), done.stderr
        # Of several policies that refuse, the API server names any one.
        filled: dict[str, Any] = {"user": "alice", "tenant": tenant.name, "vcluster": "hpc-batch"}
        done = me.apply("data", entrypoint="true", data={"output": "s3://x"}, ok=False, **filled)
        assert "spec.data.output is not served yet" in done.stderr
        me.apply("full", entrypoint="true", **filled)
        assert me.ended("full")["phase"] == "Completed"
        me.lattice("cancel", "before")
        assert me.ended("before")["phase"] == "Cancelled"
        me.kubectl("delete", "alloc", "full", "-n", me.namespace, "--timeout=300s")
    finally:
        control_plane.start("webhook")
    until(lambda: me.apply("after", entrypoint="true", ok=False).returncode == 0, within=20, what="the webhook")
    assert {item["metadata"]["name"] for item in admin.list(ALLOCATIONS, tenant.namespace).items} == {"before", "after"}


def test_renewed_certificates_are_read_again_and_work_goes_on(tenant: Room, control_plane: Instance, gate: Gate) -> None:
    me = person(control_plane, "alice", tenant.namespace)
    me.apply("through", nodes=4, entrypoint=f"sh -c 'echo begun; {gate.wait}; echo ended'")
    me.phase("through", "Running")
    pids = {name: control_plane.pid(name) for name in ("webhook", "gateway", "agent-nid001", "agent-nid004")}
    assert control_plane.renew_certificates()
    gate.open()
    assert me.ended("through")["phase"] == "Completed"
    until(lambda: me.lattice("logs", "through", ok=False).stdout.count("ended") == 4, within=20, every=0.5, what="the logs of four nodes")
    assert {name: control_plane.pid(name) for name in pids} == pids
    me.apply("anew", nodes=4, entrypoint="true")
    assert me.ended("anew")["phase"] == "Completed"


@pytest.fixture
def patient_with_nodes(admin: BlockingCluster) -> Iterator[None]:
    """No node that is silent for a while is lost."""
    admin.patch(CONFIGS, "lattice", {"spec": {"nodes": {"heartbeatTimeout": "10m", "bootTimeout": "20m"}}})
    yield
    admin.patch(CONFIGS, "lattice", {"spec": {"nodes": {"heartbeatTimeout": None, "bootTimeout": None}}})


def test_a_certificate_that_expires_is_named_and_costs_neither_work_nor_its_exit_code(
    tenant: Room, control_plane: Instance, gate: Gate, patient_with_nodes: None
) -> None:
    me, node = person(control_plane, "alice", tenant.namespace), "nid002"
    me.apply("through", entrypoint=f"sh -c '{gate.wait}; exit 9'", resources={"constraints": {"nodeList": node}})
    me.phase("through", "Running")
    (log,) = control_plane.log_files(f"agent-{node}")
    said = log.stat().st_size
    here, now = control_plane.site(), HostClock().now()
    for authority, file, identity in wanted_certificates(here):
        if file == f"agent-{node}":
            pki.Authority(here.where.pki, authority, now).issue(file, identity, force=True, days=2 / 86400)
    words = f"the client certificate {here.pair('ca', f'agent-{node}').certificate} expired at 20"
    try:
        gate.open()
        until(lambda: words in log.read_text()[said:], within=30, every=0.3, what="the agent's complaint")
    finally:
        assert control_plane.renew_certificates()
    status = me.ended("through", within=60)
    assert (status["phase"], status["exit"]["code"], status["attempt"]) == ("Failed", 9, 1)
    assert me.lattice("logs", "through").returncode == 0


def test_bad_tenants_vclusters_nodes_and_options_are_refused(boss: Person, admin: BlockingCluster) -> None:
    cases: tuple[tuple[tuple[str, ...], int, tuple[str, ...]], ...] = (
        (("admin", "tenant", "create", "Bad_Name"), 1, ('"Bad_Name" cannot be a name', "lowercase letters")),
        (("admin", "tenant", "create", "x1", "--max-nodes=many"), 2, ("--max-nodes=many", "none")),
        (("admin", "tenant", "create", "x2", "--for-namespace=kube-system"), 1, ('"kube-system" belongs to the system',)),
        (("admin", "tenant", "create", "x3", "--for-namespace=physics"), 1, ('"physics" belongs to tenant "physics"',)),
        (("admin", "tenant", "create", "x4", "--retention=soon"), 1, ("spec.finishedRetention", "soon")),
        (("admin", "tenant", "create", "physics"), 1, ("already exists",)),
        (("admin", "tenant", "set-quota", "nope", "--max-nodes=1"), 4, ("not found",)),
        (("admin", "vcluster", "create", "x5", "--max-nodes=0"), 2, ("--max-nodes=0",)),
        (("admin", "vcluster", "create", "x6", "--default-walltime=2h", "--max-walltime=1h"), 1, ("default: 2h, limit: 1h",)),
        (("admin", "vcluster", "create", "x7", "--partition=normal"), 1, ('"normal" already means vCluster "hpc-batch"',)),
        (("admin", "config", "set", "nodes.heartbeatTimeout=1s"), 1, ("heartbeatTimeout", "1s")),
        (("admin", "config", "set", "nodes.nope=1"), 2, ("no option 'nodes.nope'", "lattice admin config get")),
        (("admin", "config", "set", "work.minUid=0"), 2, ("minUid", "0")),
        (("node", "drain", "nid001"), 2, ("--reason",)),
        (("node", "drain", "nid999", "--reason=x"), 4, ("no node nid999", "lattice nodes")),
        (("node", "drain", "nid[9", "--reason=x"), 2, ("nid[9",)),
        (("node", "disable", "nid001", "--reason=x"), 2, ("--yes",)),
        (("node", "undrain", "--group=nope"), 4, ('group "nope"',)),
    )
    for words, code, says in cases:
        done = boss.lattice(*words, ok=False)
        assert (done.returncode, words_missing(says, done.stderr)) == (code, []), (words, done.returncode, done.stderr)
    without = boss.kubectl("patch", "ln", "nid001", "--type=merge", "-p", '{"spec":{"drain":{"reason":" "}}}', ok=False)
    assert "spec.drain has no reason" in without.stderr
    assert not any(item["metadata"]["name"].startswith("x") for item in admin.list(VCLUSTERS).items)
    assert not any((item.get("spec") or {}).get("drain") for item in admin.list(NODES).items)


def test_of_many_objects_in_a_file_the_refused_ones_are_named(me: Person) -> None:
    bodies = [
        manifest(me.namespace, {"resources.nodes": "4-2"}, "one-bad"),
        manifest(me.namespace, {"entrypoint": "   "}, "two-bad"),
    ]
    done = me.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, bodies)), ok=False)
    assert not words_missing(('Allocation "one-bad": spec.resources.nodes', 'Allocation "two-bad": spec.entrypoint'), done.stderr), (
        done.stderr
    )
