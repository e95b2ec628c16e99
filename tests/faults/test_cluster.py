"""What the cluster loses: a plan while work runs, the API server for minutes, etcd's newest hours."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.errors import Denied
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ADMISSION_POLICY_BINDINGS, LEDGERS, PLANS
from lattice.units import expand_nodes
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.faults.scene import LONG, QUICK_HEARTBEATS, Scene, end_of
from tests.faults.site import TENANT, site

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


@pytest.fixture
def restored() -> Iterator[Scene]:
    """An instance of its own: what is done to its etcd concerns everything."""
    with site("restored", nodes=4, nodes_config=QUICK_HEARTBEATS) as made:
        yield Scene(made)


def test_after_etcd_was_restored_from_an_older_snapshot_nothing_is_killed_and_nothing_runs_twice(restored: Scene) -> None:
    scene, here = restored, restored.here
    before = scene.submit(seconds=1, code=3)
    assert scene.ends([before]) == [("TaskFailed", 3, 1)]
    through = scene.submit(seconds=60, code=7)
    short = scene.submit(nodes=3, seconds=14, code=0)
    scene.running(through)
    scene.running(short)
    waiting = scene.submit(nodes=2, seconds=45, code=3)
    snapshot = take_snapshot(scene)
    adopted = scene.running(waiting)
    after = scene.submit(seconds=300)
    orphan = scene.running(after)
    seq = here.ledger().seq
    restore(scene, snapshot)

    until(Seen(lambda: condition_of(scene), lambda said: "LedgerWentBack" in said), within=60, what="LedgerWentBack")
    held = scene.submit(seconds=1, code=0)
    time.sleep(5.0)
    assert scene.alive(orphan, orphan.status.head) == [1], "nothing is killed before the recovery"
    assert all(scene.alive(adopted, node) == [1] for node in expand_nodes(adopted.status.nodes))
    assert scene.get(held).status.nodes == "", "nothing is placed before the recovery"

    recovered = administrator(scene).lattice("admin", "ledger", "recover", "--yes", "--timeout", "60s")
    assert "Recovered" in recovered.stdout
    assert here.ledger().seq > seq
    assert scene.ends([held, waiting, through]) == [("Completed", 0, 1), ("TaskFailed", 3, 1), ("TaskFailed", 7, 1)]
    assert end_of(scene.ended(short))[:2] == ("Completed", 0)
    assert scene.ends([before]) == [("TaskFailed", 3, 1)]
    until(lambda: scene.alive(orphan, orphan.status.head) == [], within=40, what="the end of work whose allocation is gone")
    assert here.settle(60) == []
    assert here.ledger_faults() == []
    assert here.witness_faults() == []


def take_snapshot(scene: Scene) -> Path:
    """etcd's data as they are now: a copy taken while it stands still."""
    copy = scene.instance.where.directory / "etcd-snapshot"
    scene.instance.stop("etcd")
    shutil.copytree(scene.instance.where.directory / "etcd", copy)
    scene.instance.start("etcd")
    scene.instance.wait_ready()
    return copy


def restore(scene: Scene, snapshot: Path) -> None:
    """Puts the older data in the place of the newer."""
    scene.instance.stop("kube-apiserver")
    scene.instance.stop("etcd")
    data = scene.instance.where.directory / "etcd"
    shutil.rmtree(data)
    snapshot.rename(data)
    scene.instance.start("etcd")
    scene.instance.start("kube-apiserver")


def condition_of(scene: Scene) -> str:
    """What the leader says of the ledger."""
    with scene.here.admin() as cluster:
        annotations = cluster.get(LEDGERS, "lattice")["metadata"].get("annotations", {})
    said: str = annotations.get("lattice.dev/condition", "")
    return said


def administrator(scene: Scene) -> Person:
    """Who has all rights."""
    return person(scene.instance, "admin", TENANT)
