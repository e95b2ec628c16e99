"""What operators and system admins do with nodes and the cluster, with the rights of their roles only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, LEDGERS, NODE_INDEXES, NODES
from lattice.ledger.verify import verify
from lattice.units import expand_nodes
from lattice.views.ledger import Ledger, NodeIndex
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(scope="module")
def olga(control_plane: Instance) -> Person:
    """An operator."""
    control_plane.add_user("olga", "operations", "operator")
    return person(control_plane, "olga", "operations")


def states(who: Person) -> dict[str, str]:
    """Each node's state."""
    items = json.loads(who.lattice("nodes", "-o", "json").stdout)["items"]
    return {item["metadata"]["name"]: item.get("status", {}).get("state", "") for item in items}


def reaches(who: Person, node: str, state: str, *, within: float = 30) -> None:
    """Wait until the node shows this state."""
    until(Seen(lambda: states(who), lambda seen: seen.get(node) == state), within=within, every=0.3, what=f"{node} {state}")


def running(me: Person, name: str, nodes: int = 1, **spec: Any) -> dict[str, Any]:
    """The status of long work that runs."""
    me.apply(name, nodes=nodes, entrypoint="sleep 4245.1", **spec)
    return me.phase(name, "Running")


# drain


def test_a_drained_node_finishes_its_work_and_takes_no_other(me: Person, olga: Person) -> None:
    node = running(me, "last")["head"]
    assert "Draining" in olga.lattice("node", "drain", node, "--reason", "disk").stdout
    reaches(olga, node, "Draining")
    shown = olga.lattice("nodes", node).stdout
    assert "disk (by olga, 20" in shown
    assert me.get("last")["status"]["phase"] == "Running"
    me.apply("wide", nodes=4, entrypoint="true")
    until(lambda: reason(me.get("wide").get("status", {}), "Scheduled") == "NodesUnavailable", within=15)
    assert "of 4 that fit, 3 can be used (1 Draining)" in me.lattice("why", "wide").stdout
    me.lattice("cancel", "last")
    reaches(olga, node, "Drained")
    assert me.get("wide")["status"]["phase"] == "Pending"
    assert olga.lattice("node", "undrain", node).stdout.startswith(f"Undrained {node}")
    reaches(olga, node, "Ready")
    assert me.ended("wide")["phase"] == "Completed"


def test_a_drain_can_be_cancelled_while_work_goes_on(me: Person, olga: Person) -> None:
    node = running(me, "stays")["head"]
    olga.lattice("node", "drain", node, "--reason=perhaps")
    reaches(olga, node, "Draining")
    olga.lattice("node", "undrain", node)
    reaches(olga, node, "Ready")
    assert me.get("stays")["status"]["phase"] == "Running"


def test_much_is_asked_before_it_is_done(olga: Person) -> None:
    for words in (("drain", "nid[001-002]", "--reason=x"), ("drain", "--group=g0", "--reason=x"), ("disable", "nid001", "--reason=x")):
        refused = olga.lattice("node", *words, ok=False)
        assert (refused.returncode, "confirm with --yes" in refused.stderr) == (2, True), refused.stderr
    assert set(states(olga).values()) == {"Ready"}
    assert olga.lattice("node", "drain", "--group=g0", "--reason=x", "--yes").stdout.startswith("Draining nid[001-002] (2 nodes)")
    for node in ("nid001", "nid002"):
        reaches(olga, node, "Drained")


# disable


def test_a_disabled_nodes_work_is_requeued_on_other_nodes(me: Person, olga: Person) -> None:
    first = running(me, "again", nodes=2)
    node = first["head"]
    olga.lattice("node", "disable", node, "--reason=smoke", "--yes")
    status: dict[str, Any] = until(
        Seen(lambda: me.get("again")["status"], lambda now: now.get("attempt") == 2 and now["phase"] == "Running"), within=40, every=0.3
    )
    assert node not in me.lattice("status", "again", "-o", "wide").stdout
    assert (status["submitTime"], status["number"]) == (first["submitTime"], first["number"])
    assert status["attempts"][0]["reason"] == "NodeLost"
    assert "smoke (by olga" in olga.lattice("nodes", node).stdout
    assert states(olga)[node] == "Disabled"
    until(lambda: node not in held_nodes(olga), within=30, every=0.5, what=f"the release of {node}")
    olga.lattice("node", "enable", node)
    reaches(olga, node, "Ready")


def test_the_output_of_an_earlier_attempt_is_read_by_its_number(me: Person, olga: Person) -> None:
    entrypoint = "sh -c 'echo attempt $LATTICE_ATTEMPT on $(hostname); sleep 4246'"
    me.apply("told", entrypoint=entrypoint)
    node = me.phase("told", "Running")["head"]
    until(lambda: f"attempt 1 on {node}" in me.lattice("logs", "told").stdout, within=15, every=0.3, what="its first output")
    olga.lattice("node", "disable", node, "--reason=smoke", "--yes")
    until(Seen(lambda: me.get("told")["status"], lambda now: (now.get("attempt"), now["phase"]) == (2, "Running")), within=40, every=0.3)
    until(lambda: "attempt 2 on " in me.lattice("logs", "told").stdout, within=15, every=0.3, what="its second output")
    assert me.lattice("logs", "told", "--attempt=1").stdout == f"attempt 1 on {node}\n"
    refused = me.lattice("logs", "told", "--attempt=3", ok=False)
    assert (refused.returncode, "attempts that ran: 1, 2" in refused.stderr) == (4, True), refused.stderr
    me.lattice("cancel", "told")
    olga.lattice("node", "enable", node)
    reaches(olga, node, "Ready")


def held_nodes(who: Person) -> set[str]:
    """The nodes of everybody's present attempts; earlier attempts and messages name others."""
    items = json.loads(who.lattice("status", "-A", "--state=running", "-o", "json").stdout)["items"]
    return {node for item in items for node in expand_nodes(item["status"]["nodes"])}


def test_a_dead_node_that_somebody_vouches_for_is_released_and_can_be_forgotten(
    me: Person, olga: Person, control_plane: Instance, admin: BlockingCluster
) -> None:
    node = running(me, "fenced", lifecycle={"requeue": {"when": "Fenced"}})["head"]
    control_plane.power_off(node)
    olga.lattice("node", "disable", node, "--fenced", "--reason=burnt", "--yes")
    status: dict[str, Any] = until(
        Seen(lambda: me.get("fenced")["status"], lambda now: now.get("attempt") == 2 and now["phase"] == "Running"), within=40, every=0.3
    )
    other = status["head"]
    assert other != node
    found = admin.get(NODES, node)
    index, group = found["status"]["index"], found["spec"]["group"]
    refused = olga.lattice("node", "forget", other, "--timeout=1s", "--yes", ok=False)
    assert refused.returncode in (1, 3), refused.stderr
    admin.patch(NODES, other, {"metadata": {"annotations": {"lattice.dev/forget": None}}})
    assert f"Forgotten {node} (1 node)" in olga.lattice("node", "forget", node, "--yes").stdout
    assert node not in states(olga)
    names = admin.get(NODE_INDEXES, "lattice", type=NodeIndex).spec.names
    assert names[str(index)] == ""
    control_plane.power_on(node, wipe=True, wait=False)
    assert olga.lattice("node", "add", node, f"--group={group}").stdout == f"Added {node} (1 node)\n"
    reaches(olga, node, "Ready", within=60)
    assert admin.get(NODES, node)["status"]["index"] == index
    assert_sound(admin)


def assert_sound(admin: BlockingCluster) -> None:
    """The independent verifier finds no fault."""
    ledger = admin.get(LEDGERS, "lattice", type=Ledger)
    index = admin.get(NODE_INDEXES, "lattice", type=NodeIndex)
    assert ledger.status is not None
    assert verify(ledger.status, {int(number): name for number, name in index.spec.names.items() if name}) == []


# admin


def test_admin_status_config_and_ledger(sam: Person, olga: Person) -> None:
    shown = sam.lattice("admin", "status").stdout
    assert all(word in shown for word in ("Scheduler:", "leads:", "Operator:", "4 Ready", "Ledger:", "epoch"))
    answer = json.loads(sam.lattice("admin", "status", "-o", "json").stdout)
    assert (answer["schema"], answer["nodes"]) == ("lattice.dev/status/v1", {"Ready": 4})
    assert sam.lattice("admin", "config", "get", "scheduling.retryBackOff").stdout == "1s\n"
    assert "nodes.heartbeatInterval=10s" in sam.lattice("admin", "config", "get").stdout
    assert sam.lattice("admin", "config", "get", "nope", ok=False).returncode == 4
    assert sam.lattice("admin", "config", "set", "work.open_files=65536").stdout == "Set work.openFiles=65536\n"
    assert olga.lattice("admin", "config", "set", "work.openFiles=131072", ok=False).returncode == 5
    sam.lattice("admin", "config", "set", "work.openFiles=131072")
    assert "Next number:" in sam.lattice("admin", "ledger", "show").stdout
    assert sam.lattice("admin", "ledger", "verify").stdout.startswith("The ledger is sound: epoch ")
    assert json.loads(sam.lattice("admin", "ledger", "verify", "-o", "json").stdout)["faults"] == []


def test_options_are_hot_and_slurms_variables_come_when_the_site_says_so(me: Person, sam: Person, admin: BlockingCluster) -> None:
    sam.lattice("admin", "config", "set", "compat.setSlurmEnv=true")
    try:
        number = me.lattice("submit", "--parsable", "--wait", "-q", "--", "sh", "-c", "echo job $SLURM_JOB_ID").stdout.strip()
        assert me.lattice("logs", number).stdout == f"job {number}\n"
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"compat": {"setSlurmEnv": None}}})  # false would hold for scripts of other tests


def test_topology_is_applied_from_a_file_and_vclusters_have_their_groups(
    me: Person, olga: Person, sam: Person, tenant: Room, tmp_path: Path
) -> None:
    before = {item["metadata"]["name"]: item["spec"] for item in json.loads(olga.lattice("nodes", "-o", "json").stdout)["items"]}
    ours, slurm = tmp_path / "ours.yaml", tmp_path / "topology.conf"
    ours.write_text('groups:\n  x0: {s0: "nid[001-002]"}\n  x1: "nid[003-004]"\n')
    groups = "".join(f"SwitchName={spec['group']} Nodes={name}\n" for name, spec in before.items() if name in ("nid001", "nid003"))
    slurm.write_text(groups.replace("Nodes=nid001", "Nodes=nid[001-002]").replace("Nodes=nid003", "Nodes=nid[003-004]"))
    try:
        assert "Would place 4 nodes" in olga.lattice("admin", "topology", "apply", str(ours), "--dry-run").stdout
        assert "Placed 4 nodes; 0 unchanged" in olga.lattice("admin", "topology", "apply", str(ours)).stdout
        assert "Placed 0 nodes; 4 unchanged" in olga.lattice("admin", "topology", "apply", str(ours)).stdout
        name = f"{tenant.name}-vc"
        sam.lattice("admin", "vcluster", "create", name, "--group=x1", f"--for-tenant={tenant.name}", "--default-walltime=2m")
        until(lambda: f"{name}  Open" in " ".join(sam.lattice("admin", "vcluster", "list").stdout.split(" ")), within=10)
        me.apply("home", nodes=2, entrypoint="sleep 4245.2", vcluster=name)
        me.phase("home", "Running")
        refused = sam.kubectl("delete", "vcluster", name, "--wait=false", ok=False)
        assert (refused.returncode, "in use" in refused.stderr or "have not ended" in refused.stderr) == (1, True), refused.stderr
        me.lattice("cancel", "home")
        assert me.ended("home")["nodes"] == "nid[003-004]"
        me.kubectl("delete", "alloc", "home", "-n", me.namespace)
        until(
            lambda: sam.kubectl("delete", "vcluster", name, "--ignore-not-found", "--timeout=300s", ok=False).returncode == 0,
            within=20,
            every=1.0,
        )
    finally:
        olga.lattice("admin", "topology", "apply", str(slurm))
        for node in before:
            patch = json.dumps({"spec": {"group": before[node]["group"], "switch": before[node].get("switch")}})
            olga.kubectl("patch", "ln", node, "--type=merge", "-p", patch)


def test_kubectl_shows_whether_the_configuration_is_in_force_and_what_is_given(control_plane: Instance) -> None:
    boss = person(control_plane, "admin", "default")
    head, row = boss.kubectl("get", "lcfg", "-o", "wide").stdout.splitlines()
    assert head.split() == ["NAME", "READY", "REASON", "GENERATION", "GIVEN", "MESSAGE", "AGE"]
    assert row.split()[:3] == ["lattice", "True", "InForce"]
    assert "{" in row
