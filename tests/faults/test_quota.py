"""A scheduler killed while the quota tree takes work back: what was stopped waits again once, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lattice import errors
from lattice.kube.resources import ALLOCATIONS, ELASTIC_QUOTAS
from lattice.ledger.format import Row, rows_of
from lattice.views import Allocation
from tests.e2e.waiting import Seen, until
from tests.faults.load import Wish
from tests.faults.scene import Scene
from tests.faults.site import TENANT

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(300)]

DELAY_SECONDS = 2


@contextlib.contextmanager
def groups(scene: Scene) -> Iterator[None]:
    """Two groups of three nodes each, of which `guest` has all work of the tenant and may borrow what `host` lends."""
    scene.here.configure({"quotaTree": {"revocation": "On", "delay": f"{DELAY_SECONDS}s"}})
    with scene.here.admin() as cluster:
        for name, more in {"guest": {"bindings": [{"tenant": TENANT}]}, "host": {}}.items():
            body = {
                "apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name},
                "spec": {"min": {"nodes": 3}, "max": {"nodes": 6}, **more},
            }  # fmt: skip
            cluster.create(ELASTIC_QUOTAS, body)
        until(lambda: all("summary" in cluster.get(ELASTIC_QUOTAS, name).get("status", {}) for name in ("guest", "host")), within=20)
    try:
        yield
    finally:
        with scene.here.admin() as cluster:
            for item in cluster.list(ALLOCATIONS, TENANT, type=Allocation).items:
                with contextlib.suppress(errors.NotFound):
                    cluster.delete(ALLOCATIONS, item.metadata.name, TENANT)
            until(lambda: not cluster.list(ALLOCATIONS, TENANT).items, within=60, what="the end of all work")
        until(lambda: _gone(scene, "guest") and _gone(scene, "host"), within=20, what="the end of both groups")
        scene.here.configure({"quotaTree": {"revocation": "Notify", "delay": "120s"}})


def _gone(scene: Scene, name: str) -> bool:
    with scene.here.admin() as cluster:
        try:
            cluster.delete(ELASTIC_QUOTAS, name)
        except errors.NotFound:
            return True
        except errors.LatticeError:
            pass  # refused while work is counted in it
    return False


def host_asks(scene: Scene, name: str, nodes: int) -> None:
    """Work of the group that lends, submitted by the administrator."""
    body = Wish(name, nodes, 2.0, 0, stubborn=False, lines=1).body(TENANT, scene.here.script, scene.here.directory)
    body["spec"]["quota"] = "host"
    with scene.here.admin() as cluster:
        cluster.create(ALLOCATIONS, body, TENANT)


def reclaimed(scene: Scene) -> list[Row]:
    """Rows that the quota tree takes back."""
    return [row for row in rows_of(scene.here.ledger()) if row.state == "q"]


def starts(scene: Scene, found: Allocation) -> list[int]:
    """The attempts whose tasks said that they began, each once a node."""
    return sorted({one.task[1] for one in scene.told(found) if one.word == "start"})


@pytest.mark.parametrize("moment", ["in the ledger", "ended on its node"])
def test_a_scheduler_that_is_killed_between_revocation_and_requeue_loses_nothing(scene: Scene, moment: str) -> None:
    with groups(scene):
        lent = [scene.submit(nodes=3, seconds=40, stubborn=True) for _ in range(2)]
        for name in lent:
            scene.running(name)
        host_asks(scene, f"host-{moment.replace(' ', '-')}", 3)
        rows = until(Seen(lambda: reclaimed(scene), bool), within=30, every=0.02, what="the row that is taken back")
        if moment == "ended on its node":
            uid = rows[0].uid
            until(lambda: _finished(scene, uid), within=20, every=0.02, what="the reporter's end")
        scene.instance.kill("scheduler")
        scene.instance.start("scheduler")
        name = next(name for name in lent if scene.get(name).metadata.uid == rows[0].uid)
        again = scene.running(name, attempt=2, within=90)
        assert [entry.reason for entry in again.status.attempts] == ["QuotaReclaimed"]
        assert again.status.requeues == 0
        assert starts(scene, again) == [1, 2]


def _finished(scene: Scene, uid: str) -> bool:
    found = next(one for one in scene.here.allocations().values() if one.metadata.uid == uid)
    return found.status.attempt > 1 or any(entry.type == "Finished" and entry.status == "True" for entry in found.status.conditions)
