"""What `lattice admin` makes, shows and verifies: tenants, vclusters, topology, options, the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import Denied
from lattice.kube.resources import ALLOCATIONS, CONFIGS, LEDGERS, NODE_INDEXES, NODES, TENANTS, VCLUSTERS
from tests.unit.cli.conftest import RUNNING, Bench, ago, three_nodes


def test_tenants_and_vclusters_are_made_and_listed(bench: Bench) -> None:
    assert bench.run("admin", "tenant", "create", "--name=physics", "--max-nodes=200").code == 0
    assert bench.run("admin", "tenant", "set-quota", "--name=physics", "--max-nodes=none", "--on-exceeded=queue").code == 0
    assert bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["quota"] == {"onExceeded": "Queue"}
    assert bench.run("admin", "vcluster", "create", "hpc-batch", "--group=g0", "--max-walltime=7-0", "--partition=normal").code == 0
    spec = bench.cluster.get(VCLUSTERS, "hpc-batch", type=dict[str, Any])["spec"]
    assert spec == {"nodes": {"selector": {"group": ["g0"]}}, "partitionNames": ["normal"], "limits": {"maxWalltime": "7d"}}
    assert "hpc-batch" in bench.run("admin", "vcluster", "list").out
    assert json.loads(bench.run("admin", "tenant", "list", "-o", "json").out)["kind"] == "TenantList"


def test_hard_limits_of_a_tenant_and_its_users_are_set_as_in_the_book(bench: Bench) -> None:
    words = ("--max-nodes", "250", "--max-concurrent-allocations", "50", "--max-nodes-per-user=40", "--max-running-per-user=10")
    bench.run("admin", "tenant", "create", "physics")
    assert bench.run("admin", "tenant", "update", "physics", *words, "--max-pending-per-user=1000").code == 0
    quota = {"maxNodes": 250, "maxConcurrentAllocations": 50, "perUser": {"maxNodes": 40, "maxRunning": 10, "maxPending": 1000}}
    assert bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["quota"] == quota
    assert "40 nodes, 10 running, 1000 pending" in bench.run("admin", "tenant", "list", "-o", "wide").out
    assert "PER USER" not in bench.run("admin", "tenant", "list").out
    changed = ("--max-allocations=none", "--max-nodes-per-user=none", "--max-pending-per-user=0")
    assert bench.run("admin", "tenant", "set-quota", "physics", *changed).code == 0
    quota = {"maxNodes": 250, "perUser": {"maxRunning": 10, "maxPending": 0}}
    assert bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["quota"] == quota
    refused = bench.run("admin", "tenant", "update", "physics", "--max-running-per-user=few")
    assert (refused.code, "--max-running-per-user=few: not a number" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize(
    "text",
    [
        "groups:\n  top: {s0: 'n[1-2]', s1: n3}\n",
        "# slurm\nSwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Nodes=n3,n9\nSwitchName=top Switches=s[0-1]\nSwitchName=root Switches=top\n",
    ],
    ids=["ours", "slurm"],
)
def test_a_topology_is_applied_from_both_forms(bench: Bench, tmp_path: Path, text: str) -> None:
    three_nodes(bench)
    file = tmp_path / "topology"
    file.write_text(text)
    assert bench.run("admin", "topology", "apply", str(file)).out == "Placed 3 nodes; 0 unchanged\n"
    assert bench.cluster.get(NODES, "n3", type=dict[str, Any])["spec"] == {"group": "top", "switch": "s1"}
    assert bench.run("admin", "topology", "apply", str(file)).out == "Placed 0 nodes; 3 unchanged\n"


def test_options_are_shown_with_their_defaults_and_set_strictly(bench: Bench) -> None:
    assert bench.run("admin", "config", "get", "scheduling.cycle_interval").out == "1s\n"
    assert bench.run("admin", "config", "set", "scheduling.cycleInterval=2s", "compat.set_slurm_env=true").code == 0
    spec = bench.cluster.get(CONFIGS, "lattice", type=dict[str, Any])["spec"]
    assert spec == {"scheduling": {"cycleInterval": "2s"}, "compat": {"setSlurmEnv": True}}
    assert bench.run("admin", "config", "get", "scheduling.cycleInterval").out == "2s\n"
    assert bench.run("admin", "config", "set", "accounting.enabled=true").code == 2
    assert bench.run("admin", "config", "set", "compat.setSlurmEnv=maybe").code == 2


def ledger(bench: Bench, shard: str = "1||", **changes: Any) -> None:
    status = {
        "epoch": 1, "term": "t", "seq": 5, "commit": "c", "nextNumber": 10, "recoveries": 0, "totalNodes": 2,
        "sensitive": {"max": 0, "used": 0}, "tenants": {}, "shards": [shard] + ["1||"] * 63, **changes,
    }  # fmt: skip
    bench.cluster.create(LEDGERS, {"metadata": {"name": "lattice"}}, type=dict[str, Any])
    bench.cluster.patch(LEDGERS, "lattice", {"status": status}, subresource="status", type=dict[str, Any])
    bench.cluster.create(NODE_INDEXES, {"metadata": {"name": "lattice"}, "spec": {"names": {"0": "n1", "1": "n2"}}}, type=dict[str, Any])


def test_the_ledger_is_verified_by_a_parser_of_its_own(bench: Bench) -> None:
    ledger(bench)
    assert bench.run("admin", "ledger", "verify").out == "The ledger is sound: epoch 1, seq 5, 2 nodes\n"


def test_a_faulty_ledger_is_1_with_each_fault(bench: Bench) -> None:
    ledger(bench, shard="9|x")
    result = bench.run("admin", "ledger", "verify")
    assert result.code == 1
    assert "shard 0" in result.out


def test_recover_asks_by_annotation_and_waits(bench: Bench) -> None:
    ledger(bench)
    nothing = bench.run("admin", "ledger", "recover", "--yes")
    assert nothing.code == 1
    assert "nothing to recover" in nothing.err
    condition = {"metadata": {"annotations": {"lattice.dev/condition": "LedgerWentBack: nodes have seen seq 90"}}}
    bench.cluster.patch(LEDGERS, "lattice", condition, type=dict[str, Any])
    bench.at(3, lambda: bench.cluster.patch(LEDGERS, "lattice", {"status": {"recoveries": 1}}, subresource="status", type=dict[str, Any]))
    result = bench.run("admin", "ledger", "recover", "--yes")
    assert result.code == 0
    assert result.out.startswith("Recovered: epoch 1")
    assert bench.cluster.get(LEDGERS, "lattice", type=dict[str, Any])["metadata"]["annotations"]["lattice.dev/recover"] == ago(0)


def test_admin_status_is_1_when_nobody_leads(bench: Bench) -> None:
    three_nodes(bench)
    bench.allocation("a", number=1, status=RUNNING)
    result = bench.run("admin", "status", "-o", "json")
    answer = json.loads(result.out)
    assert result.code == 1
    assert (answer["schema"], answer["nodes"], answer["allocations"]) == ("lattice.dev/status/v1", {"Ready": 3}, {"Running": 1})


def test_admin_status_of_somebody_who_may_not_list_says_so_and_shows_the_rest(bench: Bench) -> None:
    three_nodes(bench)
    bench.cluster.fake.fail(Denied("allocations.lattice.dev is forbidden"), verb="list", resource=ALLOCATIONS)
    shown = bench.run("admin", "status")
    assert "may not be read: a system admin may" in shown.out
    assert "3 Ready" in shown.out
    bench.cluster.fake.fail(Denied("allocations.lattice.dev is forbidden"), verb="list", resource=ALLOCATIONS)
    assert json.loads(bench.run("admin", "status", "-o", "json").out)["allocations"] is None


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("compat.qosMapping=high=9", "the option holds several: write compat.qosMapping.NAME=9"),
        ("scheduling.event=Off", "no option 'scheduling.event'; did you mean scheduling.events?"),
        ("foo", "write KEY=VALUE"),
    ],
)
def test_an_option_that_cannot_be_set_so_is_told_how(bench: Bench, pair: str, sentence: str) -> None:
    result = bench.run("admin", "config", "set", pair)
    assert (result.code, sentence in result.err) == (2, True), result.err


def test_a_tenant_is_shown_with_its_limits_and_people(bench: Bench) -> None:
    spec = {"quota": {"maxNodes": 4, "perUser": {"maxNodes": 2}}, "access": {"admins": ["ada"]}, "accountNames": ["six@v100"]}
    bench.cluster.create(TENANTS, {"metadata": {"name": "bio"}, "spec": spec}, type=dict[str, Any])
    shown = bench.run("admin", "tenant", "get", "bio").out
    for words in ("Limits:       nodes 4", "Per user:     2 nodes", "Admins:       ada", "Accounts:     six@v100", "none by default"):
        assert words in shown
    assert bench.run("admin", "tenant", "get", "nosuch").code == 4
