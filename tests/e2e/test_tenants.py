"""Contracts and who keeps them: hard quotas, members, deletion; and GitOps tools that apply the same manifests again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import LEDGERS, TENANTS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until


def use(admin: BlockingCluster, tenant: str, *, within: float = 15, **wanted: Any) -> None:
    """Wait until the tenant's mirrored use and limits have these values."""

    def mirrored() -> dict[str, Any]:
        found: dict[str, Any] = (admin.get(TENANTS, tenant).get("status") or {}).get("use") or {}
        return found

    until(Seen(mirrored, lambda seen: all(seen.get(key, 0) == value for key, value in wanted.items())), within=within, every=0.2)


# hard quota


def test_a_full_quota_is_refused_with_the_sentence_of_the_book(me: Person, sam: Person, tenant: Room, admin: BlockingCluster) -> None:
    sam.lattice("admin", "tenant", "set-quota", tenant.name, "--max-nodes=2")
    use(admin, tenant.name, maxNodes=2)
    sentence = f'allocation rejected: tenant "{tenant.name}" would exceed max_nodes quota'
    me.judged(f"{sentence} (current: 0, requested: 3, limit: 2)", nodes=3, entrypoint="true")
    assert me.apply("much", nodes=3, entrypoint="true", ok=False).returncode == 1
    me.apply("full", nodes=2, entrypoint="sleep 4246.1")
    me.phase("full", "Running")
    use(admin, tenant.name, usedNodes=2, usedAllocations=1)
    me.judged(f"{sentence} (current: 2, requested: 1, limit: 2)", entrypoint="true")
    more = me.lattice("submit", "--", "true", ok=False)
    assert more.returncode == 1
    assert more.stderr.startswith(f"Error: {sentence}\n  Current: 2\n  Requested: 1\n  Limit: 2\n  Hint: ")
    assert me.lattice("status", "-o", "name").stdout == "allocation.lattice.dev/full\n"
    listed = next(line for line in sam.lattice("admin", "tenant", "list").stdout.splitlines() if line.startswith(tenant.name))
    assert listed.split()[1:5] == ["2", "2", "1", "unlimited"]


def test_where_the_tenant_says_queue_it_waits_for_headroom_and_starts_when_there_is_room(
    me: Person, sam: Person, tenant: Room, admin: BlockingCluster
) -> None:
    sam.lattice("admin", "tenant", "set-quota", tenant.name, "--max-nodes=2", "--on-exceeded=queue")
    use(admin, tenant.name, maxNodes=2)
    me.apply("full", nodes=2, entrypoint="sleep 4246.2")
    me.phase("full", "Running")
    use(admin, tenant.name, usedNodes=2)
    me.judged("no room in its max_nodes quota (current: 2, requested: 1, limit: 2)", nodes=1, entrypoint="true")
    me.apply("next", nodes=1, entrypoint="true")
    until(lambda: reason(me.get("next").get("status", {}), "Scheduled") == "WaitingForQuotaHeadroom", within=10)
    said = me.lattice("why", "next").stdout
    assert all(word in said for word in ("current: 2", "requested: 1", "limit: 2")), said
    me.lattice("cancel", "full")
    assert me.ended("next")["phase"] == "Completed"


def test_each_user_has_a_limit_that_the_ledger_holds_in_all_vclusters_together(
    control_plane: Instance, me: Person, sam: Person, tenant: Room, admin: BlockingCluster
) -> None:
    bob = person(control_plane, "bob", tenant.namespace)
    sam.lattice("admin", "tenant", "set-quota", tenant.name, "--max-nodes-per-user=1", "--max-pending-per-user=2", "--on-exceeded=queue")
    until(lambda: admin.get(LEDGERS, "lattice")["status"]["tenants"][tenant.name].get("userMaxNodes") == 1, within=15)
    me.apply("first", entrypoint="sleep 4246.5")
    me.phase("first", "Running")
    sentence = f'user "alice" of tenant "{tenant.name}" would exceed max_nodes quota (current: 1, requested: 1, limit: 1)'
    me.judged("no room in its max_nodes quota (current: 1, requested: 1, limit: 1)", entrypoint="true")
    me.apply("second", entrypoint="true")
    until(lambda: reason(me.get("second").get("status", {}), "Scheduled") == "WaitingForQuotaHeadroom", within=10)
    waits = next(entry for entry in me.get("second")["status"]["conditions"] if entry["type"] == "Scheduled")
    assert sentence in waits["message"]
    bob.apply("bobs", entrypoint="true")
    assert bob.ended("bobs")["phase"] == "Completed", "another user has a limit of his own"
    much = me.apply("much", nodes=2, entrypoint="true", ok=False)
    assert f'user "alice" of tenant "{tenant.name}" would exceed max_nodes quota (current: 1, requested: 2, limit: 1)' in much.stderr
    me.apply("third", entrypoint="true")
    me.judged("would exceed max_pending quota (current: 2, requested: 1, limit: 2)", entrypoint="true")
    me.lattice("cancel", "first")
    assert [me.ended(name)["phase"] for name in ("second", "third")] == ["Completed", "Completed"]


def test_a_limit_lowered_below_what_is_held_refuses_new_work_and_ends_nothing(
    me: Person, sam: Person, tenant: Room, admin: BlockingCluster
) -> None:
    sam.lattice("admin", "tenant", "update", tenant.name, "--max-nodes=2", "--on-exceeded=queue")
    use(admin, tenant.name, maxNodes=2)
    me.apply("wide", nodes=2, entrypoint="sleep 4246.6")
    me.phase("wide", "Running")
    use(admin, tenant.name, usedNodes=2)
    me.apply("waiting", entrypoint="true")
    lowered = sam.lattice("admin", "tenant", "update", tenant.name, "--max-nodes=1", "--on-exceeded=reject")
    assert "2 are in use: running allocations are not ended" in lowered.stderr
    use(admin, tenant.name, maxNodes=1)
    me.judged("exceeds max_nodes quota", entrypoint="true")
    refused = me.apply("new", entrypoint="true", ok=False)
    assert " ".join(refused.stderr.split()).endswith(
        f'allocation rejected: tenant "{tenant.name}" exceeds max_nodes quota Current usage: 2 nodes New limit: 1 nodes '
        "Hint: Wait for running allocations to complete, or contact your tenant admin."
    ), refused.stderr
    submitted = me.lattice("submit", "--", "true", ok=False)
    assert submitted.stderr.startswith(
        f'Error: allocation rejected: tenant "{tenant.name}" exceeds max_nodes quota\n  Current usage: 2 nodes\n'
    )
    said = me.lattice("why", "waiting").stdout
    assert all(word in said for word in ("current: 2", "requested: 1", "limit: 1")), said
    assert me.get("wide")["status"]["phase"] == "Running"
    me.lattice("cancel", "wide")
    assert me.ended("waiting")["phase"] == "Completed", "it starts by itself when there is room"


def test_with_the_webhook_down_a_full_quota_queues_and_the_ledger_holds_it(
    control_plane: Instance, me: Person, sam: Person, tenant: Room, admin: BlockingCluster
) -> None:
    sam.lattice("admin", "tenant", "set-quota", tenant.name, "--max-nodes=1")
    use(admin, tenant.name, maxNodes=1)
    me.apply("full", entrypoint="sleep 4246.7")
    me.phase("full", "Running")
    use(admin, tenant.name, usedNodes=1)
    control_plane.stop("webhook")
    try:
        me.apply("next", entrypoint="true", user="alice", tenant=tenant.name, vcluster="hpc-batch")
        until(lambda: reason(me.get("next").get("status", {}), "Scheduled") == "WaitingForQuotaHeadroom", within=10)
        assert admin.get(LEDGERS, "lattice")["status"]["tenants"][tenant.name]["usedNodes"] == 1
        me.lattice("cancel", "full")
        assert me.ended("next")["phase"] == "Completed"
    finally:
        control_plane.start("webhook")


def test_a_limit_of_zero_pauses_the_tenant_and_lets_what_runs_go_on(me: Person, sam: Person, tenant: Room, admin: BlockingCluster) -> None:
    me.apply("before", entrypoint="sleep 4246.3")
    me.phase("before", "Running")
    sam.lattice("admin", "tenant", "set-quota", tenant.name, "--max-nodes=0")
    use(admin, tenant.name, maxNodes=0)
    assert "limit: 0" in me.judged("the tenant is paused", entrypoint="true")
    assert me.get("before")["status"]["phase"] == "Running"
    sam.lattice("admin", "tenant", "set-quota", tenant.name, "--max-nodes=none", "--max-allocations=1", "--max-preemption-class=3")
    until(lambda: "maxNodes" not in admin.get(TENANTS, tenant.name)["status"]["use"], within=15)
    use(admin, tenant.name, maxAllocations=1, usedAllocations=1)
    me.judged("max_concurrent_allocations quota (current: 1, requested: 1, limit: 1)", entrypoint="true")
    me.judged(f'highest of tenant "{tenant.name}" (requested: 5, limit: 3)', entrypoint="true", lifecycle={"preemptionClass": 5})


def test_a_tenant_in_use_stays_and_a_deleted_one_leaves_no_binding(control_plane: Instance, sam: Person, boss: Person) -> None:
    name = f"brief-{control_plane.pid('scheduler')}"
    sam.lattice("admin", "tenant", "create", name, "--max-nodes=2", "--user=alice", "--retention=1h")
    sam.kubectl("wait", "tenant", name, "--for=condition=Ready", "--timeout=300s")
    me = person(control_plane, "alice", name)
    until(lambda: me.apply("work", entrypoint="sleep 4246.4", ok=False).returncode == 0, within=20, every=0.5, what="alice's right")
    me.phase("work", "Running")
    refused = sam.kubectl("delete", "tenant", name, "--wait=false", ok=False)
    assert (refused.returncode, "in use" in refused.stderr or "have not ended" in refused.stderr) == (1, True), refused.stderr
    me.kubectl("delete", "alloc", "work", "-n", name, "--timeout=300s")
    until(
        lambda: sam.kubectl("delete", "tenant", name, "--ignore-not-found", "--timeout=300s", ok=False).returncode == 0,
        within=30,
        every=1.0,
    )
    assert boss.kubectl("get", "rolebindings", "-n", name, "-o", "name").stdout == ""
    refused = me.apply("more", entrypoint="true", ok=False)
    assert refused.returncode == 1
    boss.kubectl("delete", "namespace", name, "--timeout=300s")


# GitOps


def manifests(namespace: str, **spec: Any) -> str:
    """What a GitOps tool applies again and again."""
    full = {"entrypoint": "true", "resources": {"nodes": 1}, "lifecycle": {"walltime": "5m"}, **spec}
    metadata = {"name": "declared", "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "argocd"}}
    return yaml.safe_dump({"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": metadata, "spec": full})


def test_the_same_manifest_applied_again_shows_no_difference_and_its_health_can_be_waited_for(me: Person) -> None:
    text = manifests(me.namespace)
    apply = ("apply", "--server-side", "--field-manager=argocd", "-f", "-")
    me.kubectl(*apply, stdin=text)
    me.kubectl("wait", "alloc", "declared", "-n", me.namespace, "--for=condition=Ready", "--timeout=300s")
    before = me.get("declared")["metadata"]
    me.kubectl(*apply, stdin=text)
    after = me.get("declared")["metadata"]
    assert (after["resourceVersion"], after["generation"]) == (before["resourceVersion"], before["generation"])
    diff = me.kubectl("diff", "--server-side", "--field-manager=argocd", "-f", "-", stdin=text, ok=False)
    assert (diff.returncode, diff.stdout) == (0, ""), diff.stdout + diff.stderr
    status = me.get("declared")["status"]
    assert status["observedGeneration"] == after["generation"]
    assert {condition["type"]: condition["status"] for condition in status["conditions"]}["Ready"] == "True"


@pytest.fixture
def argo(boss: Person, tenant: Room, admin: BlockingCluster, control_plane: Instance, tmp_path: Path) -> Iterator[Person]:
    """A service account that may submit for others in this tenant."""
    boss.kubectl("create", "serviceaccount", "argo", "-n", tenant.namespace)
    who = f"system:serviceaccount:{tenant.namespace}:argo"
    name = f"runas-{tenant.name}"
    boss.kubectl("create", "clusterrole", name, "--verb=runas", "--resource=tenants.lattice.dev", f"--resource-name={tenant.name}")
    boss.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount={tenant.namespace}:argo")
    access = admin.get(TENANTS, tenant.name)["spec"]["access"]
    admin.patch(TENANTS, tenant.name, {"spec": {"access": {"users": [*access["users"], who]}}})
    config = yaml.safe_load(boss.kubeconfig.read_text())
    token = boss.kubectl("create", "token", "argo", "-n", tenant.namespace).stdout.strip()
    for entry in config["users"]:
        entry["user"] = {"token": token}
    path = tmp_path / "argo.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    made = Person(path, boss.kubectl_path, tenant.namespace)
    asked = ("auth", "can-i", "create", "allocations.lattice.dev", "-n", tenant.namespace)
    until(lambda: made.kubectl(*asked, ok=False).stdout == "yes\n", within=15, every=0.3, what="the rights of argo")
    yield made
    boss.kubectl("delete", "clusterrole,clusterrolebinding", name)


def test_a_gitops_tool_with_runas_submits_for_alice_and_alice_not_for_bob(me: Person, argo: Person) -> None:
    argo.kubectl("apply", "--server-side", "-f", "-", stdin=manifests(me.namespace, user="alice", entrypoint="id -un"))
    status = me.ended("declared")
    assert status["phase"] == "Completed"
    assert me.lattice("logs", "declared").stdout == "alice\n"
    argo.kubectl("apply", "--server-side", "-f", "-", stdin=manifests(me.namespace, user="alice", entrypoint="id -un"))
    assert (
        json.loads(argo.kubectl("get", "alloc", "declared", "-n", me.namespace, "-o", "json").stdout)["status"]["number"]
        == status["number"]
    )
    refused = me.apply("for-bob", entrypoint="true", user="bob", ok=False)
    assert (refused.returncode, "runas" in refused.stderr) == (1, True)
    argo.kubectl("delete", "alloc", "declared", "-n", me.namespace, "--timeout=300s")


def test_an_account_of_a_tenant_is_taken_from_a_script_and_another_tenant_cannot_have_it(control_plane: Instance, tenant: Room) -> None:
    boss, me = person(control_plane, "admin", "default"), person(control_plane, "alice", tenant.namespace)
    me.environ["LATTICE_TENANT"] = ""
    account = f"six@{tenant.name}"
    boss.lattice("admin", "tenant", "update", tenant.name, f"--account={account}")
    taken = boss.lattice("admin", "tenant", "create", f"{tenant.name}-2", f"--account={account}", ok=False)
    assert f'account "{account}" already means tenant "{tenant.name}"' in taken.stderr
    script = f"#!/bin/sh\n#SBATCH -N 1 -t 5 -A {account}\necho tenant $LATTICE_TENANT\n"
    where = f"--chdir={control_plane.where.user_home('alice')}"
    number = me.lattice("submit", "--wait", "-q", "--parsable", where, "-", stdin=script).stdout.strip()
    assert json.loads(me.lattice("status", f"{tenant.namespace}/{number}", "-o", "json").stdout)["spec"]["tenant"] == tenant.name
    unknown = me.lattice("submit", "-", stdin=script.replace(account, "nvr_elm_llm"), ok=False)
    assert (unknown.returncode, 'line 2: #SBATCH -N 1 -t 5 -A nvr_elm_llm: account "nvr_elm_llm"' in unknown.stderr) == (4, True), (
        unknown.stderr
    )
