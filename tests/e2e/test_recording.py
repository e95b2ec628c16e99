"""Decisions of the running scheduler, recorded and decided again by another process; and by nobody who may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.schemas import FOLDER as SCHEMAS


@pytest.fixture
def admin_there(control_plane: Instance, tenant: Room) -> Iterator[Person]:
    """The administrator, who has recording turned on."""
    admin = person(control_plane, "admin", tenant.namespace)
    admin.lattice("admin", "config", "set", "scheduling.recording.enabled=true")
    yield admin
    admin.lattice("admin", "config", "set", "scheduling.recording.enabled=false")


def last(admin: Person) -> dict[str, Any]:
    """The last recorded cycle, decided again; empty while there is none."""
    done = admin.lattice("replay", "--cycle", "last", "-o", "json", ok=False)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else {}
    return found


def decided(admin: Person, cycle: dict[str, Any], name: str) -> dict[str, Any]:
    """What a cycle decided of one allocation; empty where it did not."""
    every = [one for part in cycle.get("vclusters", []) for one in part["decided"]]
    return next((one for one in every if (one["namespace"], one["name"]) == (admin.namespace, name)), {})


def test_what_the_scheduler_decided_is_decided_again_byte_for_byte_by_an_administrator(
    control_plane: Instance, tenant: Room, admin_there: Person
) -> None:
    alice = person(control_plane, "alice", tenant.namespace)
    nodes = len(control_plane.site().nodes)
    alice.apply("runs", nodes=nodes - 1, entrypoint="sleep 600", walltime="20m")
    alice.phase("runs", "Running")
    alice.apply("waits", nodes=nodes, entrypoint="true")
    seen = Seen(lambda: last(admin_there), lambda cycle: bool(decided(admin_there, cycle, "waits")))
    cycle = until(seen, within=20, every=0.5, what="a recorded cycle with the work that waits")
    jsonschema.validate(cycle, json.loads((SCHEMAS / "cycle-v1.json").read_text()))
    assert cycle["reproduced"], cycle
    assert decided(admin_there, cycle, "waits")["reason"] == "WaitingForNodes"

    listed = json.loads(admin_there.lattice("replay", "cycles", "-o", "json").stdout)
    jsonschema.validate(listed, json.loads((SCHEMAS / "cycles-v1.json").read_text()))
    placed = []
    for stretch in listed["stretches"]:
        for number in range(stretch["first"], stretch["last"] + 1):
            done = admin_there.lattice("replay", "--cycle", str(number), "-o", "json")
            placed += [one for one in [decided(admin_there, json.loads(done.stdout), "runs")] if one.get("outcome") == "placed"]
    assert [len(one["nodes"]) for one in placed] == [nodes - 1]

    text = admin_there.lattice("replay", "--cycle", str(cycle["cycle"])).stdout
    assert "Reproduced byte for byte" in text
    assert f"{tenant.namespace}/waits" in text


def test_a_log_is_read_without_a_cluster_and_a_cycle_that_is_not_there_names_what_is(
    control_plane: Instance, tenant: Room, admin_there: Person
) -> None:
    alice = person(control_plane, "alice", tenant.namespace)
    alice.apply("waits", nodes=len(control_plane.site().nodes) + 1, entrypoint="true")
    seen = Seen(lambda: last(admin_there), lambda cycle: bool(decided(admin_there, cycle, "waits")))
    cycle = until(seen, within=20, every=0.5, what="a recorded cycle")
    folder = control_plane.site().where.directory / "cycles"
    admin_there.environ["KUBECONFIG"] = "/nowhere"
    assert "Reproduced byte for byte" in admin_there.lattice("replay", "--cycle", str(cycle["cycle"]), "--log", str(folder)).stdout
    missing = admin_there.lattice("replay", "--cycle", "999999999", "--log", str(folder), ok=False)
    assert missing.returncode == 4
    assert "is not in this log: it holds" in missing.stderr
    del admin_there.environ["KUBECONFIG"]


def test_an_ordinary_user_reads_no_recorded_cycle(control_plane: Instance, tenant: Room, admin_there: Person) -> None:
    alice = person(control_plane, "alice", tenant.namespace)
    for words in (["--cycle", "last"], ["cycles"]):
        refused = alice.lattice("replay", *words, ok=False)
        assert refused.returncode == 5
        assert "may not read recorded cycles, which hold the work of every tenant" in refused.stderr
        assert refused.stdout == ""
