"""What the cluster loses: a plan while work runs, the API server for minutes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from lattice.errors import Denied
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ADMISSION_POLICY_BINDINGS, PLANS
from lattice.units import expand_nodes
from tests.e2e.waiting import until
from tests.faults.scene import LONG, Scene

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
        scene.submit(seconds=3, code=7),
        scene.submit(seconds=600, walltime=6),
        scene.submit(nodes=2, seconds=4, code=3),
        scene.submit(seconds=AWAY_SECONDS + 10, code=0),
    ]
    runs = [scene.running(name) for name in names]
    scene.instance.kill("kube-apiserver")
    until(
        lambda: not any(scene.alive(run, node) for run in runs[:3] for node in expand_nodes(run.status.nodes)), within=30, what="their ends"
    )
    time.sleep(max(0.0, AWAY_SECONDS - 6))
    assert scene.alive(runs[3], runs[3].status.head) == [1], "an agent never kills because the API server is away"
    scene.instance.start("kube-apiserver")
    ends = scene.ends(names)
    assert ends[0] == ("TaskFailed", 7, 1)
    assert (ends[1][0], ends[1][2]) == ("WalltimeExceeded", 1)
    assert ends[2:] == [("TaskFailed", 3, 1), ("Completed", 0, 1)]
