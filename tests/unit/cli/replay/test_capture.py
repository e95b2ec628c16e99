"""`lattice replay capture`: what the API shows becomes a trace, what is missing is said, and the trace is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lattice.kube.resources import ELASTIC_QUOTAS, NODES, RESERVATIONS, TENANTS, VCLUSTERS
from tests.unit.cli.conftest import COMPLETED, RUNNING, WAITING, Bench, ago, said


def site(bench: Bench) -> None:
    """Two nodes, a tenant with a share and a limit, a vcluster at home in one group."""
    cluster = bench.cluster
    for number, group in ((1, "g0"), (2, "g0")):
        name = f"nid00{number}"
        had = {
            "cpus": 64,
            "memory": "256Gi",
            "gpus": 4,
            "gpuType": "GH200",
            "gpuMemory": "96Gi",
            "unifiedMemory": True,
            "features": ["nvme"],
        }
        status = {"index": number, "state": "Ready", "capabilities": had, "fingerprint": "sha256:" + "0123456789abcdef" * 4}
        cluster.create(NODES, {"metadata": {"name": name}, "spec": {"group": group}}, type=dict[str, Any])
        cluster.patch(NODES, name, {"status": status}, subresource="status", type=dict[str, Any])
    quota = {"maxNodes": 8}
    tenant = {"quota": quota, "finishedRetention": "1d", "budget": {"fairShareTarget": "250m"}}
    cluster.create(TENANTS, {"metadata": {"name": "physics"}, "spec": tenant}, type=dict[str, Any])
    batch = {"policy": "Backfill", "profile": "HpcBatch", "cycle": {"depth": 3}, "nodes": {"selector": {"group": ["g0"]}}}
    cluster.create(VCLUSTERS, {"metadata": {"name": "hpc-batch"}, "spec": batch}, type=dict[str, Any])


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_live_system_becomes_a_trace_with_its_machine_tenants_and_vclusters(bench: Bench) -> None:
    site(bench)
    uid = bench.allocation("done", status=COMPLETED, resources={"nodes": 2, "constraints": {"gpuType": "GH200"}})
    result = bench.run("replay", "capture", "--since", "1h")
    assert result.code == 0
    _, nodes, tenant, vcluster, submit, start, complete = lines(result.out)
    assert nodes["nodes"] == [
        {"names": "nid[001-002]", "class": "class1", "group": "g0", "fingerprint": "0123456789abcdef", "vcluster": "hpc-batch"}
    ]
    assert nodes["classes"]["class1"] == {
        "cpus": 64, "memory": "256Gi", "gpus": 4, "gpuType": "GH200", "gpuMemory": "96Gi", "unifiedMemory": True, "features": ["nvme"],
    }  # fmt: skip
    assert tenant == {"type": "tenant", "name": "physics", "share": 0.25, "max_nodes": 8}
    assert (vcluster["settings"]["depth"], vcluster["settings"]["priority"]) == (3, 0.15)
    assert (submit["alloc_id"], submit["ts"], submit["alloc"]["gpu_type"]) == (uid, ago(600), "GH200")
    assert (start["ts"], complete["duration"], complete["exit"]) == (ago(500), "6m40s", 0)


def test_what_began_and_ended_in_the_same_second_has_ended_and_is_replayed(bench: Bench, tmp_path: Path) -> None:
    site(bench)
    bench.allocation("quick", status={**COMPLETED, "endTime": COMPLETED["startTime"], "phase": "Failed", "exit": {"code": 3}})
    result = bench.run("replay", "capture", "--since=1h", "-o", str(tmp_path / "live.jsonl"))
    assert "not ended" not in result.err
    complete = lines((tmp_path / "live.jsonl").read_text())[-1]
    assert (complete["type"], complete["duration"], complete["exit"]) == ("complete", "1s", 3)
    assert json.loads(bench.run("replay", str(tmp_path / "live.jsonl"), "-o", "json").out)["jobs"]["replayed"] == 1


def test_what_has_not_ended_is_captured_and_said_not_to_be_replayed(bench: Bench) -> None:
    site(bench)
    bench.allocation("running", status=RUNNING)
    bench.allocation("waiting", status=WAITING)
    result = bench.run("replay", "capture", "--since", "1h")
    assert [line["type"] for line in lines(result.out)].count("submit") == 2
    assert "complete" not in [line["type"] for line in lines(result.out)]
    assert "Captured 2 allocations" in result.err
    assert "2 of them have not ended and are not replayed" in result.err


def test_what_was_cancelled_while_it_waited_leaves_the_queue_then(bench: Bench) -> None:
    site(bench)
    cancelled = {"phase": "Cancelled", "endTime": ago(100), "conditions": [said("Finished", "True", "Cancelled")]}
    bench.allocation("gone", status=cancelled)
    last = lines(bench.run("replay", "capture").out)[-1]
    assert (last["type"], last["ts"]) == ("cancel", ago(100))


def test_what_is_older_or_was_removed_is_missing_and_said(bench: Bench) -> None:
    site(bench)
    bench.allocation("old", status={**COMPLETED, "submitTime": ago(40 * 86400)})
    bench.allocation("new", status=COMPLETED)
    result = bench.run("replay", "capture", "--since", "30d")
    first = lines(result.out)[0]
    assert "1 allocations that were submitted before" in first["missing"]
    assert "ended work of physics is kept 1d: what ended earlier is gone" in first["missing"]
    assert "Warning: the trace is not whole: 1 allocations" in result.err


def test_what_the_scheduler_heeds_and_no_trace_holds_is_said(bench: Bench) -> None:
    site(bench)
    bench.allocation("new", status=COMPLETED)
    for name in ("maintenance", "course"):
        bench.cluster.create(RESERVATIONS, {"metadata": {"name": name}, "spec": {}}, type=dict[str, Any])
    bench.cluster.create(ELASTIC_QUOTAS, {"metadata": {"name": "science"}, "spec": {}}, type=dict[str, Any])
    result = bench.run("replay", "capture", "--since", "1h")
    sentence = "2 reservations in advance and 1 elastic quotas are no part of it: a replay schedules without them"
    assert lines(result.out)[0]["missing"] == sentence
    assert f"Warning: the trace is not whole: {sentence}" in result.err


def test_a_captured_trace_is_replayed_on_its_own_machine(bench: Bench, tmp_path: Path) -> None:
    site(bench)
    bench.allocation("one", status=COMPLETED)
    bench.allocation("two", status=COMPLETED)
    assert bench.run("replay", "capture", "--since=1h", "-o", str(tmp_path / "week.jsonl")).code == 0
    result = bench.run("replay", str(tmp_path / "week.jsonl"), "-o", "json")
    assert (result.code, json.loads(result.out)["jobs"]["replayed"]) == (0, 2)


def test_the_same_system_gives_the_same_bytes(bench: Bench) -> None:
    site(bench)
    for name in ("a", "b", "c"):
        bench.allocation(name, status=COMPLETED)
    assert bench.run("replay", "capture").out == bench.run("replay", "capture").out
