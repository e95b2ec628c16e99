"""The elastic quota tree on a site of hollow nodes: two departments of three teams lend, burst, and get back what is theirs."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from lattice import errors
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, ELASTIC_QUOTAS, EVENTS, LEDGERS, NODES
from lattice.ledger.format import rows_of
from lattice.units import parse_time
from lattice.views import Ledger
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room, clear, hollow_site, room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until

INVENTORY = """\
classes:
  gh: {cpus: 72, memory: 512Gi, gpus: 4, gpuType: GH200}
nodes:
  - {names: "ra[1-4]", class: gh, group: rack-a}
  - {names: "rb[1-4]", class: gh, group: rack-b}
"""
DELAY, GRACE, CYCLE = 3.0, 2.0, 2.0
TEAMS = {"theory": ("science", 2), "lab": ("science", 1), "astro": ("science", 1), "train": ("ai", 2), "eval": ("ai", 1), "data": ("ai", 1)}
"""Team: its department and its guarantee, in nodes."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Eight hollow nodes in two racks."""
    with hollow_site("quota", INVENTORY, tmp_path_factory.mktemp("site")) as instance:
        yield instance


@pytest.fixture(scope="module")
def root(site: Instance) -> Iterator[BlockingCluster]:
    """The administrator, who has switched revocation on."""
    with contextlib.closing(site.cluster()) as cluster:
        options = {"revocation": "On", "delay": f"{DELAY:g}s"}
        cluster.patch(CONFIGS, "lattice", {"spec": {"quotaTree": options}})
        yield cluster


@pytest.fixture(scope="module")
def teams(site: Instance, root: BlockingCluster) -> Iterator[dict[str, Person]]:
    """alice in each team, by its name; its tenant is bound to its group."""
    with contextlib.ExitStack() as rooms:
        made: dict[str, Room] = {name: rooms.enter_context(room(root)) for name in TEAMS}
        for department in ("science", "ai"):
            declare(root, department, 4, isParent=True)
        for name, (department, least) in TEAMS.items():
            declare(root, name, least, parent=department, bindings=[{"tenant": made[name].name}])
        until(lambda: all("runtime" in status(root, name) or "summary" in status(root, name) for name in TEAMS), within=10, what="the tree")
        yield {name: person(site, "alice", each.namespace) for name, each in made.items()}
        for each in made.values():
            clear(root, each.namespace)
        for name in (*TEAMS, "science", "ai"):
            until(partial(gone, root, name), within=15, what=f"the end of quota {name}")


def declare(root: BlockingCluster, name: str, least: int, **spec: Any) -> None:
    """An ElasticQuota that may use all nodes."""
    body = {
        "apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name},
        "spec": {"min": {"nodes": least}, "max": {"nodes": 8}, **spec},
    }  # fmt: skip
    root.create(ELASTIC_QUOTAS, body)


def gone(root: BlockingCluster, name: str) -> bool:
    """Whether a group is deleted; refused while it holds work."""
    try:
        root.delete(ELASTIC_QUOTAS, name)
    except errors.NotFound:
        return True
    except errors.LatticeError:
        return False
    return False


def status(root: BlockingCluster, name: str) -> dict[str, Any]:
    """The status of a group."""
    found: dict[str, Any] = root.get(ELASTIC_QUOTAS, name).get("status", {})
    return found


def nodes(root: BlockingCluster, name: str, field: str) -> int:
    """Nodes of one field of a status."""
    return int((status(root, name).get(field) or {}).get("nodes", 0))


def submit(me: Person, name: str, count: int, **lifecycle: Any) -> None:
    """Work on hollow nodes that lasts until it is stopped."""
    asked = {"constraints": {"features": ["hollow"]}}
    me.apply(name, nodes=count, walltime="10m", resources=asked, entrypoint="true", lifecycle={"gracePeriod": f"{GRACE:g}s", **lifecycle})


def waits(me: Person, name: str, word: str, *, attempt: int = 0, within: float = 15) -> dict[str, Any]:
    """The status of what waits for this reason."""
    seen = Seen(
        lambda: me.get(name).get("status", {}),
        lambda found: found.get("phase") == "Pending" and reason(found, "Scheduled") == word and found.get("attempt", 0) >= attempt,
    )
    found: dict[str, Any] = until(seen, within=within, every=0.1, what=f"{name} waiting for {word}")
    return found


def test_departments_lend_burst_and_get_back_what_is_theirs(site: Instance, root: BlockingCluster, teams: dict[str, Person]) -> None:
    boss = person(site, "admin", teams["theory"].namespace)
    theory, train, evaluation = teams["theory"], teams["train"], teams["eval"]
    for me in teams.values():
        clear(root, me.namespace)

    # Theory bursts over all eight nodes: two are its own, two its department's, four the other department lends.
    for number in range(4):
        submit(theory, f"burst-{number}", 2)
    for number in range(4):
        theory.phase(f"burst-{number}", "Running")
    until(lambda: nodes(root, "theory", "used") == 8, within=5, what="the use of theory")
    before = boss.lattice("quota", "tree").stdout
    assert nodes(root, "ai", "used") == 0
    submit(theory, "more", 1)
    message = next(
        entry["message"] for entry in waits(theory, "more", "WaitingForQuotaShare")["conditions"] if entry["type"] == "Scheduled"
    )
    assert 'quota "theory": nodes: 1 asked for and 8 used' in message

    # The owners return: train and eval ask for what is theirs.
    submitted = {f"burst-{number}": theory.get(f"burst-{number}")["status"]["submitTime"] for number in range(4)}
    submit(train, "model", 2)
    submit(evaluation, "score", 1)
    train.phase("model", "Running", within=DELAY + GRACE + CYCLE + 5)
    evaluation.phase("score", "Running", within=GRACE + CYCLE)

    def settled() -> bool:
        return all(nodes(root, name, "used") <= max(nodes(root, name, "runtime"), least) for name, (_, least) in TEAMS.items())

    until(settled, within=5, what="every group within its runtime")
    after = boss.lattice("quota", "tree").stdout
    assert before != after
    until(lambda: nodes(root, "theory", "used") == 5, within=5, what="two bursts and the node that is left of the share of theory")

    # Two of the four were taken back; they wait again with their submission time, and have spent no requeue.
    states = {name: theory.get(name)["status"] for name in submitted}
    reclaimed = [name for name, found in states.items() if found.get("attempts")]
    assert len(reclaimed) == 2
    for name in reclaimed:
        found = waits(theory, name, "WaitingForQuotaShare", attempt=2)
        assert (found["attempts"][-1]["reason"], found.get("requeues", 0), found["submitTime"]) == ("QuotaReclaimed", 0, submitted[name])
    told = [each for each in root.list(EVENTS, theory.namespace).items if each["reason"].startswith("QuotaReclaim")]
    assert {each["regarding"]["name"] for each in told if each["reason"] == "QuotaReclaimed"} == set(reclaimed)
    assert {each["regarding"]["name"] for each in told if each["reason"] == "QuotaReclaimPending"} >= set(reclaimed)
    times = {word: [parse_time(each["eventTime"]) for each in told if each["reason"] == word] for word in {each["reason"] for each in told}}
    begun, stopped = min(times["QuotaReclaimPending"]), max(times["QuotaReclaimed"])
    assert stopped - begun > DELAY - 1
    started = max(parse_time(found["startTime"]) for found in (train.get("model")["status"], evaluation.get("score")["status"]))
    assert started + 1 >= min(times["QuotaReclaimed"]), "the owners start on what was taken back; times are whole seconds"
    shown = json.loads(boss.lattice("quota", "explain", f"{theory.namespace}/{reclaimed[0]}", "-o", "json").stdout)
    assert next(gate["gate"] for gate in shown["gates"] if gate.get("first")) == "QuotaTree"

    # Draining a rack revokes nobody.
    for number in range(1, 5):
        root.patch(NODES, f"ra{number}", {"spec": {"drain": {"reason": "story"}}})
    time.sleep(DELAY + 2)
    rows = [row for row in rows_of_ledger(root) if row.state == "q"]
    assert rows == []
    assert all(theory.get(name)["status"]["phase"] == "Running" for name in submitted if name not in reclaimed)
    assert train.get("model")["status"]["attempt"] == 1
    for number in range(1, 5):
        root.patch(NODES, f"ra{number}", {"spec": {"drain": None}})


def rows_of_ledger(root: BlockingCluster) -> list[Any]:
    """All rows of the ledger."""
    found = root.get(LEDGERS, "lattice", type=Ledger).status
    return list(rows_of(found)) if found is not None else []


def test_work_of_a_higher_class_takes_the_share_of_its_own_group(root: BlockingCluster, teams: dict[str, Person]) -> None:
    for me in teams.values():
        clear(root, me.namespace)
    lab, other = teams["lab"], teams["data"]
    submit(other, "theirs", 1)
    other.phase("theirs", "Running")
    submit(lab, "low", 7, preemptionClass=1)
    lab.phase("low", "Running")
    submit(lab, "high", 2, preemptionClass=6)
    lab.phase("high", "Running", within=DELAY + GRACE + CYCLE + 8)
    found = lab.get("low")["status"]
    assert found["attempts"][-1]["reason"] == "QuotaReclaimed"
    assert other.get("theirs")["status"]["attempt"] == 1


def test_guaranteed_work_stays_within_min_and_is_never_taken_back(root: BlockingCluster, teams: dict[str, Person]) -> None:
    for me in teams.values():
        clear(root, me.namespace)
    lab = teams["lab"]
    submit(lab, "fixed", 1, preemptible="Never")
    lab.phase("fixed", "Running")
    submit(lab, "too-many", 1, preemptible="Never")
    message = next(
        entry["message"] for entry in waits(lab, "too-many", "WaitingForQuotaShare")["conditions"] if entry["type"] == "Scheduled"
    )
    assert "above its min, which is 1" in message


def test_a_recorded_cycle_under_the_tree_is_decided_again_byte_for_byte(
    site: Instance, root: BlockingCluster, teams: dict[str, Person]
) -> None:
    for me in teams.values():
        clear(root, me.namespace)
    lab = teams["lab"]
    boss = person(site, "admin", lab.namespace)
    boss.lattice("admin", "config", "set", "scheduling.recording.enabled=true")
    submit(lab, "runs", 7)
    lab.phase("runs", "Running")
    submit(lab, "waits", 2)
    waits(lab, "waits", "WaitingForQuotaShare")

    def cycle() -> dict[str, Any]:
        done = boss.lattice("replay", "--cycle", "last", "-o", "json", ok=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else {}
        return found

    def reasons(found: dict[str, Any]) -> set[str]:
        return {str(one.get("reason")) for part in found.get("vclusters", []) for one in part["decided"]}

    found = until(Seen(cycle, lambda found: "WaitingForQuotaShare" in reasons(found)), within=20, every=0.5, what="the recorded cycle")
    assert found["reproduced"], found
    boss.lattice("admin", "config", "set", "scheduling.recording.enabled=false")
