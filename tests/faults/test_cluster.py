"""What the cluster loses: a plan while work runs, the LatticeConfig, the API server for minutes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lattice.errors import Denied
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ADMISSION_POLICY_BINDINGS, CONFIGS, EVENTS, LEASES, PLANS
from lattice.units import expand_nodes
from tests.e2e.waiting import until
from tests.faults.scene import LONG, QUICK_HEARTBEATS, Scene, administrator

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(600)]

PROTECTION = "lattice-ledger-deletion"
AWAY_SECONDS = 120.0 if LONG else 15.0


def test_a_plan_that_is_deleted_while_work_runs_kills_nothing_and_comes_back(scene: Scene) -> None:
    names = [scene.submit(nodes=2, seconds=6, code=3), scene.submit(seconds=5, code=0)]
    for name in names:
        scene.running(name)
    with scene.here.admin() as cluster:
        with pytest.raises(Denied, match="are not deleted"):
            cluster.delete(PLANS, "group-0000")
        before = cluster.get(PLANS, "group-0000")["metadata"]["uid"]
        with unprotected(cluster):
            until(lambda: _deleted(cluster), within=20, every=0.2, what="the deletion of the plan")
            until(lambda: cluster.get(PLANS, "group-0000")["metadata"]["uid"] != before, within=10, what="the plan")
    assert scene.ends(names) == [("TaskFailed", 3, 1), ("Completed", 0, 1)]


def test_a_latticeconfig_that_is_deleted_stays_in_force_until_it_is_made_again(scene: Scene) -> None:
    name = scene.submit(seconds=None, code=3, on="nid001")
    scene.running(name)
    admin = administrator(scene)
    with scene.here.admin() as cluster:
        assert "Options" not in admin.lattice("admin", "status").stdout
        cluster.delete(CONFIGS, "lattice")
        until(lambda: _events(cluster, "ConfigGone"), within=20, what="an Event that says so")
        assert "the LatticeConfig is gone" in admin.lattice("admin", "status").stdout
        for _ in range(3):  # with the default interval one takes 10 s
            before = cluster.get(LEASES, "nid002", "lattice-node-lease")["metadata"]["resourceVersion"]
            newer = lambda: cluster.get(LEASES, "nid002", "lattice-node-lease")["metadata"]["resourceVersion"] != before  # noqa: B023, E731
            until(newer, within=5, every=0.2, what="a heartbeat")
        scene.instance.stop("agent-nid003")
        scene.becomes("nid003", "Degraded", within=20)  # the default is 30 s
        scene.instance.start("agent-nid003")
        scene.becomes("nid003", "Ready")
        late = scene.submit(seconds=1, code=0)
        scene.finish(name)
        assert scene.ends([name, late]) == [("TaskFailed", 3, 1), ("Completed", 0, 1)]
        cluster.create(CONFIGS, {"metadata": {"name": "lattice"}, "spec": {"nodes": {**QUICK_HEARTBEATS, "heartbeatTimeout": "7s"}}})
        until(lambda: _ready(cluster.get(CONFIGS, "lattice")), within=20, what="the new options in force")
    assert "Options" not in admin.lattice("admin", "status").stdout
    scene.here.configure({"nodes": QUICK_HEARTBEATS})


def _events(cluster: BlockingCluster, reason: str) -> list[str]:
    return [one["note"] for one in cluster.list(EVENTS, "default").items if one.get("reason") == reason]


def _ready(config: dict[str, Any]) -> bool:
    conditions = config.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@contextlib.contextmanager
def unprotected(cluster: BlockingCluster) -> Iterator[None]:
    """Without the policy that refuses such deletions."""
    binding = cluster.get(ADMISSION_POLICY_BINDINGS, PROTECTION)
    cluster.delete(ADMISSION_POLICY_BINDINGS, PROTECTION)
    try:
        yield
    finally:
        binding["metadata"] = {"name": PROTECTION, "labels": binding["metadata"]["labels"]}
        cluster.create(ADMISSION_POLICY_BINDINGS, binding)


def _deleted(cluster: BlockingCluster) -> bool:
    try:
        cluster.delete(PLANS, "group-0000")
    except Denied:
        return False  # the server has not noticed yet that the policy is gone
    return True


def test_while_the_api_server_is_away_work_ends_on_its_own_and_at_its_walltime(scene: Scene) -> None:
    names = [
        scene.submit(seconds=8, code=7),
        scene.submit(seconds=600, walltime=10),
        scene.submit(nodes=2, seconds=9, code=3),
        scene.submit(seconds=None, code=0),
    ]
    runs = [scene.running(name) for name in names]
    scene.instance.kill("kube-apiserver")
    until(
        lambda: not any(scene.alive(run, node) for run in runs[:3] for node in expand_nodes(run.status.nodes)), within=30, what="their ends"
    )
    time.sleep(max(0.0, AWAY_SECONDS - 6))
    assert scene.alive(runs[3], runs[3].status.head) == [1], "an agent never kills because the API server is away"
    scene.instance.start("kube-apiserver")
    scene.finish(names[3])
    ends = scene.ends(names)
    assert ends[0] == ("TaskFailed", 7, 1)
    assert (ends[1][0], ends[1][2]) == ("WalltimeExceeded", 1)
    assert ends[2:] == [("TaskFailed", 3, 1), ("Completed", 0, 1)]
