"""Recoveries that are disturbed: leaders killed in the middle, agents restarted, a node that the snapshot does not know, two in a row."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator

import pytest

from lattice.errors import LatticeError, NotFound
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS, LEASES, LEDGERS, NODES
from lattice.lifecycle.settle import is_final
from tests.e2e.waiting import Seen, until
from tests.faults.rivals import release
from tests.faults.scene import Scene, administrator
from tests.faults.site import Site
from tests.faults.test_restore import check, condition_of, histories, once, pages, restore, take_snapshot

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(900)]

NO_COMMIT = "no-recovery-is-committed"


@pytest.fixture
def scene(restored: Site) -> Scene:
    """The instance whose etcd is restored, whole."""
    made = Scene(restored)
    made.whole()
    return made


def test_a_recovery_whose_leaders_are_killed_in_the_middle_is_finished_by_the_next_one(scene: Scene) -> None:
    lost, runs = scene.submit(seconds=None, code=4, on="nid001"), scene.submit(seconds=None, code=6, on="nid002")
    for name in (lost, runs):
        scene.running(name)
    waits, starts = scene.submit(seconds=2, code=5, on="nid001"), scene.submit(seconds=None, code=7, on="nid001")
    snapshot = take_snapshot(scene)
    scene.finish(lost)
    assert scene.ends([lost, waits]) == [("TaskFailed", 4, 1), ("TaskFailed", 5, 1)]
    scene.running(starts)
    recoveries = scene.here.ledger().recoveries
    scene.instance.stop("agent-nid003")
    restore(scene, snapshot)
    until(Seen(lambda: condition_of(scene), lambda said: "LedgerWentBack" in said), within=60, what="LedgerWentBack")
    ask(scene)
    until(Seen(lambda: pages(scene), lambda found: "nid001.0" in found), within=40, every=0.2, what="the first histories")
    scene.instance.kill("scheduler")  # some have told what they know, and nid003 has not
    with scene.here.admin() as cluster, uncommitted(cluster):
        release(cluster)
        scene.instance.start("agent-nid003")
        scene.instance.start("scheduler")
        until(lambda: all(is_final(scene.get(name).status) for name in (lost, waits)), within=90, what="the ends")
        scene.instance.kill("scheduler")  # ends are written, and no commit
        assert scene.here.ledger().recoveries == recoveries
        assert scene.alive(scene.get(starts), "nid001") == [1], "nothing is killed before the commit"
        release(cluster)
    scene.instance.start("scheduler")
    until(Seen(lambda: scene.here.ledger().recoveries, lambda count: count == recoveries + 1), within=90, what="the commit")
    assert histories(scene, [lost, waits]) == {lost: once("TaskFailed", 4), waits: once("TaskFailed", 5)}
    scene.finish(runs, starts)
    assert histories(scene, [runs, starts]) == {runs: once("TaskFailed", 6), starts: once("TaskFailed", 7)}
    assert scene.here.ledger().recoveries == recoveries + 1, "it is not done a second time"
    check(scene)


def test_two_restores_in_a_row_to_before_a_node_registered_while_agents_are_restarted(scene: Scene) -> None:
    scene.instance.stop("agent-nid006")
    with scene.here.admin() as cluster:
        cluster.patch(NODES, "nid006", {"metadata": {"annotations": {"lattice.dev/really-delete": "yes"}}})
        cluster.delete(NODES, "nid006")
        with contextlib.suppress(NotFound):
            cluster.delete(LEASES, "nid006", "lattice-node-lease")
    before = scene.submit(seconds=None, code=3, on="nid005")
    scene.running(before)
    ended, runs = (scene.submit(seconds=seconds, code=code, on="nid[005-006]") for seconds, code in ((1, 5), (None, 9)))
    snapshot = take_snapshot(scene)
    again = snapshot.with_name("etcd-snapshot-again")
    shutil.copytree(snapshot, again)
    scene.instance.start("agent-nid006")
    assert scene.ends([ended]) == [("TaskFailed", 5, 1)]
    assert scene.running(runs).status.nodes == "nid006"
    for number, copy in enumerate((snapshot, again)):
        scene.instance.stop(f"agent-nid00{number + 1}")
        restore(scene, copy)
        with contextlib.suppress(NotFound), scene.here.admin() as cluster:
            assert cluster.get(NODES, "nid006")["status"].get("instance"), "the snapshot does not know it"
        scene.instance.restart("agent-nid005")
        until(Seen(lambda: condition_of(scene), lambda said: "LedgerWentBack" in said), within=60, what="LedgerWentBack")
        scene.instance.start(f"agent-nid00{number + 1}")
        assert "Recovered" in administrator(scene).lattice("admin", "ledger", "recover", "--yes", "--timeout", "120s").stdout
        assert histories(scene, [ended]) == {ended: once("TaskFailed", 5)}
    scene.finish(before, runs)
    assert histories(scene, [before, runs]) == {before: once("TaskFailed", 3), runs: once("TaskFailed", 9)}
    check(scene)


def ask(scene: Scene) -> None:
    """The wish of `lattice admin ledger recover`, without its waiting."""
    with scene.here.admin() as cluster:
        cluster.patch(LEDGERS, "lattice", {"metadata": {"annotations": {"lattice.dev/recover": "now"}}})


@contextlib.contextmanager
def uncommitted(cluster: BlockingCluster) -> Iterator[None]:
    """Meanwhile the API server refuses the commit of a recovery, so that its leader hangs between its last two steps."""
    meta = {"name": NO_COMMIT}
    rule = {"apiGroups": ["lattice.dev"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["ledgers/status"]}
    same = "object.status.recoveries == oldObject.status.recoveries"
    spec = {
        "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": same, "reason": "Forbidden", "message": "no recovery now"}],
    }  # fmt: skip
    cluster.create(ADMISSION_POLICIES, {"metadata": meta, "spec": spec})
    cluster.create(ADMISSION_POLICY_BINDINGS, {"metadata": meta, "spec": {"policyName": NO_COMMIT, "validationActions": ["Deny"]}})
    time.sleep(3.0)  # until the API server has read it
    try:
        yield
    finally:
        for kind in (ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES):
            with contextlib.suppress(LatticeError):
                cluster.delete(kind, NO_COMMIT)
