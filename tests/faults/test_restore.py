"""etcd restored from an older snapshot, and a Ledger that is gone: whole histories, with every kind of work, compared afterwards."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from lattice.accounting.charges import Charge
from lattice.accounting.records import read_rows
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, LEDGERS, NODE_HISTORIES, NODE_INDEXES, USAGE_RECORDS, Resource
from lattice.lifecycle.settle import is_final
from lattice.views import Allocation
from lattice.views.usage import UsageRecord
from lattice_dev import processes
from tests.e2e.waiting import Seen, until
from tests.faults.rivals import another, release
from tests.faults.scene import Scene, administrator, end_of
from tests.faults.site import TENANT, Site
from tests.faults.test_cluster import unprotected

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture
def scene(restored: Site) -> Scene:
    """The instance whose etcd is restored, whole."""
    made = Scene(restored)
    made.whole()
    return made


@dataclass(frozen=True)
class History:
    """All that can be told of an allocation: reason, code, attempt, those before it, and what was charged."""

    end: tuple[str, int | None, int]
    former: tuple[tuple[int, str], ...] = ()
    charged: tuple[tuple[int, int | None], ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    """By attempt, how many tasks have started in all, wherever."""


def once(reason: str, code: int, *, nodes: int = 1) -> History:
    """It ran once, on so many nodes, and was charged once."""
    return History((reason, code, 1), (), ((1, code),), ((1, nodes),))


def history_of(scene: Scene, found: Allocation, charged: Sequence[Charge]) -> History:
    """What status, usage records and witnesses tell together."""
    starts = Counter(one.task[1] for one in scene.told(found) if one.word == "start")
    charges = [row for row in charged if row.uid == found.metadata.uid]
    return History(
        end_of(found),
        tuple((entry.attempt, entry.reason) for entry in found.status.attempts),
        tuple((row.attempt, row.exit) for row in sorted(charges, key=lambda row: row.attempt)),
        tuple(sorted(starts.items())),
    )


def histories(scene: Scene, names: Sequence[str], within: float = 120) -> dict[str, History]:
    """The histories of these, once all are final and settled."""

    def final() -> bool:
        return all(is_final(one.status) for name, one in scene.here.allocations().items() if name in names)

    until(final, within=within, every=0.5, what=f"the ends of {', '.join(names)}")
    found = scene.here.allocations()

    def charged() -> list[Charge]:
        with closing(scene.here.admin()) as cluster:
            records = cluster.list(USAGE_RECORDS, type=UsageRecord).items
        return [row for record in records for row in read_rows(record.spec.rows, TENANT)]

    def settled() -> bool:
        held = {(row.uid, row.attempt) for row in charged()}
        return all((found[name].metadata.uid, found[name].status.attempt) in held for name in names)

    until(settled, within=30, every=0.5, what="settled usage")
    return {name: history_of(scene, found[name], charged()) for name in names}


def test_after_etcd_was_restored_every_attempt_is_told_as_it_was_and_nothing_runs_twice(scene: Scene) -> None:
    here = scene.here
    before = scene.submit(seconds=1, code=3)
    assert scene.ends([before]) == [("TaskFailed", 3, 1)]
    good, bad = scene.submit(seconds=None, code=0, on="nid001"), scene.submit(seconds=None, code=7, on="nid002")
    wide = scene.submit(nodes=2, seconds=None, code=0, on="nid[003-004]")
    through, unseen = scene.submit(seconds=None, code=9, on="nid005"), scene.submit(seconds=None, code=6, on="nid006")
    for name in (good, bad, wide, through, unseen):
        scene.running(name)
    then_good, then_bad = scene.submit(seconds=4, code=0, on="nid001"), scene.submit(seconds=4, code=5, on="nid002")
    adopted, waits = scene.submit(nodes=2, seconds=None, code=4, on="nid[003-004]"), scene.submit(seconds=1, code=8, on="nid005")
    snapshot = take_snapshot(scene)
    scene.finish(good, bad, wide)
    assert scene.ends([good, bad, wide]) == [("Completed", 0, 1), ("TaskFailed", 7, 1), ("Completed", 0, 1)]
    assert scene.ends([then_good, then_bad]) == [("Completed", 0, 1), ("TaskFailed", 5, 1)]
    scene.running(adopted)
    orphan = scene.running(scene.submit(seconds=300, on="nid001"))
    scene.instance.restart("agent-nid002")
    seq = here.ledger().seq
    restore(scene, snapshot, ends_unseen=[(scene.get(unseen), "nid006")])

    until(Seen(lambda: condition_of(scene), lambda said: "LedgerWentBack" in said), within=60, what="LedgerWentBack")
    fresh: str = until(lambda: submitted(scene), within=20, what="a submission")
    time.sleep(3.0)
    assert scene.alive(orphan, orphan.status.head) == [1], "nothing is killed before the recovery"
    assert scene.get(fresh).status.nodes == "", "nothing is placed before the recovery"

    recovered = administrator(scene).lattice("admin", "ledger", "recover", "--yes", "--timeout", "90s")
    assert "Recovered" in recovered.stdout
    assert here.ledger().seq > seq
    scene.finish(through, adopted)
    told = histories(scene, [before, good, bad, wide, through, unseen, then_good, then_bad, adopted, waits, fresh])
    assert told == {
        before: once("TaskFailed", 3), good: once("Completed", 0), bad: once("TaskFailed", 7), wide: once("Completed", 0, nodes=2),
        through: once("TaskFailed", 9), unseen: once("TaskFailed", 6), then_good: once("Completed", 0), then_bad: once("TaskFailed", 5),
        adopted: once("TaskFailed", 4, nodes=2), waits: once("TaskFailed", 8), fresh: once("Completed", 0),
    }  # fmt: skip
    until(lambda: scene.alive(orphan, orphan.status.head) == [], within=40, what="the end of work whose allocation is gone")
    check(scene)


def test_a_scheduler_that_lives_through_a_restore_says_so_though_it_has_nothing_to_commit(scene: Scene) -> None:
    scene.instance.stop("scheduler")
    with another(scene.instance, flags=("--lease-seconds", "300")) as leader:  # however slow the machine is, its Lease lasts
        runs = scene.submit(seconds=900, code=3, on="nid001")
        scene.running(runs)
        snapshot = take_snapshot(scene)
        after = scene.submit(seconds=1, code=0, on="nid002")
        scene.ends([after])
        restore(scene, snapshot)
        until(Seen(lambda: condition_of(scene), lambda said: "LedgerWentBack" in said), within=30, what="LedgerWentBack")
        assert processes.alive(leader)
        terms = [line for line in scene.instance.where.log("scheduler-2").read_text().splitlines() if "The term has ended" in line]
        assert ["reason=LedgerWentBack" in line for line in terms] == [True]
        administrator(scene).lattice("admin", "ledger", "recover", "--yes", "--timeout", "90s")
        assert scene.alive(scene.get(runs), "nid001") == [1]
        with scene.here.alice() as cluster:
            cluster.patch(ALLOCATIONS, runs, {"spec": {"cancel": {"reason": "seen enough"}}}, TENANT)
        assert scene.ends([runs]) == [("Cancelled", 143, 1)]
        check(scene)
    with scene.here.admin() as cluster:
        release(cluster)  # it would last on
    scene.instance.start("scheduler")


def test_work_of_a_node_that_is_away_is_held_until_it_tells_what_it_knows(scene: Scene) -> None:
    here = scene.here
    lost = scene.submit(seconds=None, code=4, on="nid001")
    scene.running(lost)
    waits = scene.submit(seconds=2, code=5, on="nid001")
    snapshot = take_snapshot(scene)
    scene.finish(lost)
    assert scene.ends([lost, waits]) == [("TaskFailed", 4, 1), ("TaskFailed", 5, 1)]
    anywhere = scene.submit(seconds=1, code=0)
    scene.ends([anywhere])
    for one in ("agent-nid001", "scheduler", "operator"):
        scene.instance.stop(one)
    restore(scene, snapshot)
    for one in ("scheduler", "operator"):
        scene.instance.start(one)
    until(Seen(lambda: condition_of(scene), lambda said: "LedgerWentBack" in said), within=60, what="LedgerWentBack")
    administrator(scene).lattice("admin", "ledger", "recover", "--yes", "--timeout", "90s")
    until(Seen(lambda: condition_of(scene), lambda said: "RecoveryUncertain" in said and "nid001" in said), within=20, what="the doubt")
    until(
        Seen(lambda: scene.get(waits), lambda found: any(one.reason == "RecoveryUncertain" for one in found.status.conditions)),
        within=20, what="the reason of what waits",
    )  # fmt: skip
    new: str = until(lambda: submitted(scene), within=20, what="a submission")
    assert scene.ends([new]) == [("Completed", 0, 1)], "what was made after the restore is not held"
    scene.becomes("nid001", "Down")
    time.sleep(2.0)
    assert not is_final(scene.get(lost).status), "its node is Down, and may know its end"
    scene.instance.start("agent-nid001")
    assert histories(scene, [lost, waits]) == {lost: once("TaskFailed", 4), waits: once("TaskFailed", 5)}
    until(lambda: condition_of(scene) == "", within=20, what="the end of the doubt")
    assert here.settle(60) == []
    assert here.ledger_faults() == []
    assert here.witness_faults() == []


def test_a_ledger_and_a_node_index_that_are_gone_are_made_again_from_what_nodes_and_plans_say(scene: Scene) -> None:
    here = scene.here
    runs, away = scene.submit(seconds=None, code=3, on="nid001"), scene.submit(seconds=None, code=4, on="nid002")
    for name in (runs, away):
        scene.running(name)
    waits = scene.submit(seconds=1, code=5, on="nid001")
    indices = here.names()
    log = scene.instance.where.logs / "scheduler.log"
    before = len(log.read_text())
    scene.instance.stop("agent-nid002")
    with scene.here.admin() as cluster, unprotected(cluster):
        until(lambda: deleted(cluster, LEDGERS) and deleted(cluster, NODE_INDEXES), within=20, every=0.2, what="the deletions")
    until(lambda: "there is no ledger, and" in log.read_text()[before:], within=70, what="the scheduler's word")
    recovered = administrator(scene).lattice("admin", "ledger", "recover", "--yes", "--timeout", "90s")
    assert "Recovered" in recovered.stdout
    assert here.names() == indices
    assert "Traceback" not in log.read_text()[before:]
    scene.instance.start("agent-nid002")
    scene.finish(runs, away)
    assert histories(scene, [runs, away, waits]) == {
        runs: once("TaskFailed", 3), away: once("TaskFailed", 4), waits: once("TaskFailed", 5),
    }  # fmt: skip
    assert here.settle(60) == []
    assert here.ledger_faults() == []
    assert here.witness_faults() == []


def deleted(cluster: BlockingCluster, resource: Resource) -> bool:
    """Whether somebody could delete the one object of a kind; the server takes a while to notice that the policy is gone."""
    try:
        cluster.delete(resource, "lattice")
    except Denied:
        return False
    except NotFound:
        pass  # an earlier try did it
    return True


def submitted(scene: Scene) -> str:
    """Work of a second; empty while the server has not read its policies' kinds again."""
    with contextlib.suppress(Rejected):
        return scene.submit(seconds=1, code=0)
    return ""


def take_snapshot(scene: Scene) -> Path:
    """etcd's data as they are now: a copy taken while it stands still."""
    copy = scene.instance.where.directory / "etcd-snapshot"
    scene.instance.stop("etcd")
    shutil.copytree(scene.instance.where.directory / "etcd", copy)
    scene.instance.start("etcd")
    until(lambda: answers(scene), within=40, what="an API server that answers")
    return copy


def restore(scene: Scene, snapshot: Path, *, ends_unseen: Sequence[tuple[Allocation, str]] = ()) -> None:
    """Puts the older data in the place of the newer; meanwhile this work ends unseen."""
    scene.instance.stop("kube-apiserver")
    scene.instance.stop("etcd")
    scene.finish(*(allocation.metadata.name for allocation, _ in ends_unseen))
    until(lambda: not any(scene.alive(allocation, node) for allocation, node in ends_unseen), within=60, what="ends without API server")
    data = scene.instance.where.directory / "etcd"
    shutil.rmtree(data)
    snapshot.rename(data)
    scene.here.known.clear()
    scene.instance.start("etcd")
    scene.instance.start("kube-apiserver")


def answers(scene: Scene) -> bool:
    """Whether the API server reads from etcd again."""
    with contextlib.suppress(LatticeError), scene.here.admin() as cluster:
        return bool(cluster.get(LEDGERS, "lattice"))
    return False


def condition_of(scene: Scene) -> str:
    """What the leader says of the ledger."""
    with scene.here.admin() as cluster:
        annotations = cluster.get(LEDGERS, "lattice")["metadata"].get("annotations", {})
    said: str = annotations.get("lattice.dev/condition", "")
    return said


def check(scene: Scene) -> None:
    """Nothing is left of any work, nothing is said of the ledger, and neither its history nor a witness shows a fault."""
    assert scene.here.settle(60) == []
    assert condition_of(scene) == ""
    assert pages(scene) == []
    assert scene.here.ledger_faults() == []
    assert scene.here.witness_faults() == []


def pages(scene: Scene) -> list[str]:
    """Histories that stand there still."""
    with scene.here.admin() as cluster:
        return [item["metadata"]["name"] for item in cluster.list(NODE_HISTORIES).items]
