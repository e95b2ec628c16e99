"""Quota trees as administrators write them: both kinds through the real API server, its schema, the policies and the webhook."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lattice import errors
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ELASTIC_QUOTAS, KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS
from lattice_dev.instance import Instance
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.killed_runs import RUN

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OWN = f"q{RUN}"
"""What every name of these tests begins with."""


@pytest.fixture(autouse=True)
def clean(admin: BlockingCluster, boss: Person) -> Iterator[None]:
    """No group stays behind: the lower ones go first."""
    yield
    for resource in (KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS, ELASTIC_QUOTAS):
        for _ in range(3):
            for item in admin.list(resource).items:
                with contextlib.suppress(errors.LatticeError):
                    admin.delete(resource, item["metadata"]["name"], item["metadata"].get("namespace", ""))


def ours(name: str, ok: bool = True, *, boss: Person, **spec: object) -> str:
    """kubectl apply of an ElasticQuota of Lattice; what kubectl printed."""
    body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}, "spec": {"max": {"nodes": 4}, **spec}}
    done = boss.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body), ok=ok)
    assert ok or done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def test_the_examples_apply_unchanged_and_show_where_each_group_stands(boss: Person, admin: BlockingCluster) -> None:
    for file in ("08-quota-tree.yaml", "09-koordinator.yaml"):
        boss.kubectl("apply", "-f", str(EXAMPLES / file))
        assert "unchanged" in boss.kubectl("apply", "-f", str(EXAMPLES / file)).stdout
    seen = Seen(lambda: boss.kubectl("get", "leq").stdout, lambda text: text.count(" True ") == 6)
    table = until(seen, within=10, every=0.2, what="all groups Ready")
    header = table.splitlines()[0].split()
    assert header == ["NAME", "PARENT", "MIN", "MAX", "RUNTIME", "USED", "READY", "REASON", "AGE"]
    theory = next(line for line in table.splitlines() if line.startswith("theory"))
    assert "science" in theory
    assert "1 nodes" in theory
    filled = admin.get(KOORDINATOR_QUOTAS, "archive", "default")["metadata"]
    assert filled["labels"]["quota.scheduling.koordinator.sh/parent"] == "koordinator-root-quota"
    assert json.loads(filled["annotations"]["quota.scheduling.koordinator.sh/shared-weight"]) == {"cpu": 40, "memory": "80Gi"}
    managers = {entry["manager"] for entry in admin.get(KOORDINATOR_QUOTAS, "scans", "default")["metadata"]["managedFields"]}
    assert "kubectl-client-side-apply" in managers


def test_short_names_of_others_are_not_ours(boss: Person, admin: BlockingCluster) -> None:
    names = boss.kubectl("api-resources", "--no-headers").stdout
    own = next(line.split() for line in names.splitlines() if "lattice.dev/" in line and "ElasticQuota" in line)
    assert own[:2] == ["elasticquotas", "leq"]
    assert [line for line in names.splitlines() if line.split()[1] in ("eq", "eqs")] == []
    assert boss.kubectl("get", "elasticquotas.scheduling.sigs.k8s.io", "-A").returncode == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"min": {"nodes": -1}}, "spec.min.nodes is -1, and the least is 0"),
        ({"max": {"nodes": "1.5"}}, "spec.max.nodes is 1.5, and there are only whole nodes: write 2"),
        ({"min": {"nodes": 5}}, "spec.min.nodes is 5, above spec.max.nodes, which is 4"),
        ({"parent": "nowhere"}, 'parent "nowhere" of'),
        ({"sharedWeight": {"nodes": "-1"}}, "spec.sharedWeight.nodes is -1"),
        ({"sharedWeight": {"nodes": "99E"}}, "above the largest amount, which is 9223372036854775807"),
        ({"tree": {"nodes": {}}}, "selects nothing"),
    ],
    ids=["negative", "1.5 nodes", "min above max", "unknown parent", "negative weight", "beyond int64", "a tree of nothing"],
)
def test_what_cannot_be_is_refused_at_kubectl_apply(boss: Person, spec: dict[str, object], words: str) -> None:
    assert words in ours(f"{OWN}-bad", ok=False, boss=boss, **spec)


def test_a_dry_run_is_judged_and_leaves_no_trace(boss: Person) -> None:
    body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": f"{OWN}-dry"}, "spec": {"max": {"nodes": 1}}}
    for _ in range(2):
        boss.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(body))
    assert "does not exist" in ours(f"{OWN}-low", ok=False, boss=boss, parent=f"{OWN}-dry")


def test_a_directory_applied_in_the_wrong_order_arrives_when_it_is_applied_again(boss: Person, tmp_path: Path) -> None:
    """What GitOps tools do: children before parents first, and a resource for every group of a tree that stands already."""
    places = {"a": f"{OWN}-b", "b": f"{OWN}-c", "c": ""}

    def apply(most: dict[str, int]) -> list[int]:
        for name, parent in places.items():
            spec = {"parent": parent, "isParent": name != "a", "min": {"nodes": 1}, "max": most}
            body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": f"{OWN}-{name}"}, "spec": spec}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
        return [boss.kubectl("apply", "-f", str(tmp_path), ok=False).returncode for _ in range(3)]

    assert apply({"nodes": 4}) == [1, 1, 0]
    assert apply({"nodes": 4, "cpu": 8}) == [1, 1, 0], "from the top"
    assert apply({"nodes": 4}) == [0, 0, 0], "from the bottom"


def test_both_kinds_share_one_tree_of_names(boss: Person) -> None:
    top, low = f"{OWN}-top", f"{OWN}-low"
    ours(top, boss=boss, isParent=True, min={"nodes": 2})
    ours(low, boss=boss, parent=top, min={"nodes": 2})
    assert "sum: 3, limit: 2" in ours(f"{OWN}-more", ok=False, boss=boss, parent=top, min={"nodes": 1})
    assert "is above itself" not in ours(top, ok=False, boss=boss, isParent=True, parent=low, min={"nodes": 2})
    labels = {"quota.scheduling.koordinator.sh/is-parent": "false"}
    theirs = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": low, "namespace": "default", "labels": labels},
        "spec": {"max": {"nodes": 1}},
    }  # fmt: skip
    refused = boss.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(theirs), ok=False)
    assert f"ElasticQuota default/{low} (scheduling.sigs.k8s.io) is taken by ElasticQuota {low} (lattice.dev)" in refused.stderr
    assert "1 groups below it" in boss.kubectl("delete", "leq", top, ok=False).stderr
    boss.kubectl("delete", "leq", low)
    boss.kubectl("delete", "leq", top)


def test_a_leaf_is_named_by_those_who_may(me: Person, boss: Person, admin: BlockingCluster) -> None:
    top, low = f"{OWN}-dept", f"{OWN}-team"
    ours(top, boss=boss, isParent=True)
    ours(low, boss=boss, parent=top, admission={"nodes": 2})
    refused = me.apply("job", entrypoint="true", quota=low, ok=False)
    assert f'may not use quota "{low}"' in refused.stderr
    assert "is a parent" in me.apply("job", entrypoint="true", quota=top, ok=False).stderr
    assert 'quota "nothing" does not exist' in me.apply("job", entrypoint="true", quota="nothing", ok=False).stderr
    rules = [{"apiGroups": ["lattice.dev"], "resources": ["elasticquotas"], "resourceNames": [low], "verbs": ["use"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": f"{OWN}-use"}, "rules": rules}
    admin.create(CLUSTER_ROLES, role)
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{OWN}-use"}
    admin.create(
        CLUSTER_ROLE_BINDINGS,
        {
            "apiVersion": role["apiVersion"],
            "kind": "ClusterRoleBinding",
            "metadata": role["metadata"],
            "roleRef": reference,
            "subjects": [subject],
        },
    )
    try:
        until(lambda: me.apply("job", entrypoint="true", quota=f"{top}/{low}", ok=False).returncode == 0, within=10, what="the right")
        me.phase("job", "Completed")
        number = me.lattice("submit", f"--quota={low}", "--walltime=1m", "--parsable", "--", "true").stdout.strip()
        assert yaml.safe_load(me.lattice("status", number, "-o", "yaml").stdout)["spec"]["quota"] == low
    finally:
        admin.delete(CLUSTER_ROLE_BINDINGS, f"{OWN}-use")
        admin.delete(CLUSTER_ROLES, f"{OWN}-use")


def test_an_admission_of_zero_pauses_a_group(me: Person, boss: Person) -> None:
    ours(f"{OWN}-paused", boss=boss, admission={"nodes": 0}, bindings=[{"tenant": me.namespace}])
    refused = until(
        Seen(lambda: me.apply("job", entrypoint="true", ok=False), lambda done: done.returncode != 0), within=5, what="the pause"
    )
    assert f'quota "{OWN}-paused" takes no submissions: its admission of nodes is 0' in refused.stderr


def test_the_labels_of_work_stay_as_they_began(me: Person) -> None:
    body = {
        "apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation",
        "metadata": {"name": "fixed", "namespace": me.namespace, "labels": {"quota.scheduling.koordinator.sh/preemptible": "false"}},
        "spec": {"entrypoint": "true", "hold": True, "lifecycle": {"walltime": "1m"}},
    }  # fmt: skip
    me.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body))
    assert me.get("fixed")["spec"]["lifecycle"]["preemptible"] == "Never"
    done = me.kubectl(
        "label", "alloc", "fixed", "-n", me.namespace, "quota.scheduling.koordinator.sh/preemptible=true", "--overwrite", ok=False
    )
    assert "cannot be changed after creation" in done.stderr


def test_admins_of_a_department_change_what_is_below_it_and_nothing_else(
    control_plane: Instance, boss: Person, admin: BlockingCluster
) -> None:
    top = f"{OWN}-mine"
    ours(top, boss=boss, isParent=True, min={"nodes": 2})
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{OWN}-manage"}}
    rules = [
        {"apiGroups": ["lattice.dev"], "resources": ["elasticquotas"], "resourceNames": [top], "verbs": ["manage"]},
        {"apiGroups": ["lattice.dev"], "resources": ["elasticquotas"], "verbs": ["get", "list", "create", "update", "patch", "delete"]},
    ]
    admin.create(CLUSTER_ROLES, {**rbac, "kind": "ClusterRole", "rules": rules})
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{OWN}-manage"}
    admin.create(CLUSTER_ROLE_BINDINGS, {**rbac, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]})
    bob = person(control_plane, "bob", "default")
    try:
        until(lambda: bob.kubectl("get", "leq", ok=False).returncode == 0, within=10, what="bob's rights")
        ours(f"{OWN}-bobs", boss=bob, parent=top, min={"nodes": 1})
        assert "groups of the first level" in ours(f"{OWN}-free", ok=False, boss=bob)
        assert "groups of the first level" in ours(top, ok=False, boss=bob, isParent=True, min={"nodes": 4})
        bob.kubectl("delete", "leq", f"{OWN}-bobs")
    finally:
        admin.delete(CLUSTER_ROLE_BINDINGS, f"{OWN}-manage")
        admin.delete(CLUSTER_ROLES, f"{OWN}-manage")


def test_a_profile_is_a_tree_whose_children_apply_beside_it(boss: Person, admin: BlockingCluster) -> None:
    prefix = "quota.scheduling.koordinator.sh/"
    profile = {
        "apiVersion": "quota.koordinator.sh/v1alpha1", "kind": "ElasticQuotaProfile", "metadata": {"name": f"{OWN}-p", "namespace": "default"},
        "spec": {"quotaName": f"{OWN}-root", "resourceRatio": "0.5", "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "no-node"}}},
    }  # fmt: skip
    child = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": f"{OWN}-child", "namespace": "default", "labels": {prefix + "parent": f"{OWN}-root"}},
        "spec": {"max": {"cpu": 4, "memory": "8Gi"}},
    }  # fmt: skip
    done = boss.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([profile, child]))
    assert "selects none of the" in done.stderr
    root = until(
        Seen(lambda: {each["metadata"]["name"]: each for each in admin.list(KOORDINATOR_QUOTAS).items}, lambda seen: f"{OWN}-root" in seen),
        within=20,
        what="the root of the profile",
    )[f"{OWN}-root"]
    assert root["metadata"]["labels"][prefix + "is-root"] == "true"
    assert root["spec"]["min"] == {"cpu": "0", "memory": "0"}
    assert {entry["manager"] for entry in root["metadata"]["managedFields"]} <= {"lattice-operator", "lattice-scheduler"}
    noted = admin.get(KOORDINATOR_PROFILES, f"{OWN}-p", "default")["metadata"]["annotations"]["lattice.dev/fault"]
    assert "selects none of the" in noted
    again = {**profile, "metadata": {"name": f"{OWN}-p2", "namespace": "default"}}
    assert "is the root of ElasticQuotaProfile" in boss.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(again), ok=False).stderr
