"""A trace of the live system: captured with the rights of an administrator, replayed on its own machine by anybody."""

from __future__ import annotations

import json
from pathlib import Path

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import person


def test_what_ran_here_is_captured_by_an_administrator_and_replayed_without_a_cluster(
    control_plane: Instance, tenant: Room, tmp_path: Path
) -> None:
    alice = person(control_plane, "alice", tenant.namespace)
    for name in ("one", "two"):
        alice.apply(name, entrypoint="sleep 1")
    uids = {name: alice.get(name)["metadata"]["uid"] for name in ("one", "two")}
    for name in uids:
        alice.ended(name)
    admin = person(control_plane, "admin", tenant.namespace)
    admin.lattice("replay", "capture", "--since", "1h", "-o", str(tmp_path / "live.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]
    ended = {line["alloc_id"] for line in lines if line["type"] == "complete"}
    assert set(uids.values()) <= ended
    assert next(line for line in lines if line["type"] == "nodes")["nodes"]

    alice.environ["KUBECONFIG"] = "/nowhere"
    done = alice.lattice("replay", str(tmp_path / "live.jsonl"), "-o", "json", ok=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"]["replayed"] >= 2


def test_who_may_not_read_everybodys_work_captures_nothing(control_plane: Instance, tenant: Room, tmp_path: Path) -> None:
    alice = person(control_plane, "alice", tenant.namespace)
    refused = alice.lattice("replay", "capture", "-o", str(tmp_path / "live.jsonl"), ok=False)
    assert refused.returncode == 5
    assert "a trace holds the work of every tenant, which you may not read" in refused.stderr
    assert not (tmp_path / "live.jsonl").exists()
