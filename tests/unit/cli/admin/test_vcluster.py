"""`lattice admin vcluster`: what is typed becomes the object, what is wrong is said with the flag."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.kube.resources import CONFIGS, TENANTS, VCLUSTERS
from tests.unit.cli.conftest import Bench


def spec(bench: Bench, name: str = "hpc") -> dict[str, Any]:
    found: dict[str, Any] = bench.cluster.get(VCLUSTERS, name, type=dict[str, Any])["spec"]
    return found


def test_the_books_commands_are_taken_as_they_stand(bench: Bench) -> None:
    assert bench.run("admin", "vcluster", "create", "--name=hpc", "--scheduler=hpc-backfill", "--tenant=physics").code == 0
    assert spec(bench) == {"policy": "Backfill", "tenants": ["physics"]}
    made = bench.run(
        "admin", "vcluster", "set-weights", "--name=hpc", "--priority=0.15", "--wait-time=0.20", "--fair-share=0.35", "--topology=0.15",
        "--data-readiness=0.10", "--backlog=0.05", "--energy=0.00", "--checkpoint=0.00", "--conformance=0.10",
    )  # fmt: skip
    assert made.code == 0
    assert spec(bench)["weights"] == {
        "priority": "150m", "waitTime": "200m", "fairShare": "350m", "topology": "150m", "dataReadiness": "100m", "backlog": "50m",
        "energy": "0m", "checkpoint": "0m", "conformance": "100m",
    }  # fmt: skip
    assert "its own (given: 1.1 in sum, divided by it)" in made.out
    assert "fair share     0.318" in made.out
    assert bench.run("admin", "vcluster", "set-config", "--name=hpc", "--cycle-interval=15s").code == 0
    assert spec(bench)["cycle"] == {"interval": "15s"}
    assert "Backfill, a cycle at least each 15 s, 10 reservations" in bench.run("admin", "vcluster", "show", "hpc").out


def test_weights_that_are_not_named_stay_as_they_are(bench: Bench) -> None:
    bench.run("admin", "vcluster", "create", "hpc", "--profile=hpc-batch")
    assert spec(bench) == {"profile": "HpcBatch"}
    bench.run("admin", "vcluster", "set-weights", "hpc", "--priority=0.25")
    assert "profile" not in spec(bench)
    assert (spec(bench)["weights"]["priority"], spec(bench)["weights"]["waitTime"]) == ("250m", "200m")


def test_a_profile_replaces_weights_and_none_both(bench: Bench) -> None:
    bench.run("admin", "vcluster", "create", "hpc", "--priority=1")
    bench.run("admin", "vcluster", "set-weights", "hpc", "--profile=ml-training")
    assert spec(bench) == {"profile": "MlTraining"}
    bench.run("admin", "vcluster", "set-weights", "hpc", "--profile=none")
    assert spec(bench) == {}
    bench.run("admin", "vcluster", "set-weights", "hpc", "--profile=Service", "--energy=0.5")
    assert (spec(bench)["weights"]["energy"], spec(bench)["weights"]["conformance"]) == ("500m", "300m")


def test_every_option_is_set_and_taken_away(bench: Bench) -> None:
    bench.run("admin", "vcluster", "create", "hpc", "--closed")
    flags = (
        "--policy=BinPack", "--backfill-depth=0", "--lend=yes", "--borrow=yes", "--max-borrowed=4", "--borrow-priority=7",
        "--max-borrow-duration=2h", "--return-grace=30s", "--max-nodes=8", "--max-running=1", "--max-running-per-user=2",
        "--max-nodes-per-user=3", "--max-pending-per-user=4", "--max-running-per-tenant=5", "--max-nodes-per-tenant=6",
        "--max-total-nodes=7", "--max-pending=9", "--max-pending-per-tenant=10", "--max-class=0",
        "--min-runtime=5m", "--max-preemptions=3", "--open", "--max-walltime=7-0",
    )  # fmt: skip
    assert bench.run("admin", "vcluster", "set-config", "hpc", *flags).code == 0
    assert spec(bench) == {
        "policy": "BinPack",
        "state": "Open",
        "cycle": {"depth": 0},
        "borrowing": {"lend": True, "borrow": True, "maxBorrowed": 4, "priority": 7, "maxDuration": "2h", "returnGrace": "30s"},
        "limits": {
            "maxWalltime": "7d", "maxNodesPerAllocation": 8, "maxRunning": 1, "maxRunningPerUser": 2, "maxNodesPerUser": 3,
            "maxPendingPerUser": 4, "maxRunningPerTenant": 5, "maxNodesPerTenant": 6,
            "maxNodes": 7, "maxPending": 9, "maxPendingPerTenant": 10, "maxPreemptionClass": 0,
        },
        "preemption": {"minRuntime": "5m", "maxPerAllocation": 3},
    }  # fmt: skip
    shown = bench.run("admin", "vcluster", "get", "hpc").out
    assert "borrows at most 4, work of at most 2h, priority 7, gives back within 30s" in shown
    assert "running of a user 2" in shown
    assert "nodes 7, running 1, waiting 9, " in shown
    assert shown.rstrip().count("class 0") == 1
    bench.run(
        "admin", "vcluster", "set-config", "hpc", "--max-borrowed=none", "--max-running=none", "--max-walltime=none", "--min-runtime=none"
    )
    assert "maxBorrowed" not in spec(bench)["borrowing"]
    assert {"maxRunning", "maxWalltime"} & set(spec(bench)["limits"]) == set()
    assert spec(bench)["preemption"] == {"maxPerAllocation": 3}


def test_the_list_shows_policy_and_weights_with_the_defaults_in_force(bench: Bench) -> None:
    bench.cluster.create(CONFIGS, {"metadata": {"name": "lattice"}, "spec": {"scheduling": {"cycleInterval": "3s", "backfillDepth": 4}}})
    bench.run("admin", "vcluster", "create", "hpc", "--profile=service")
    bench.run("admin", "vcluster", "create", "web", "--policy=bin-pack", "--priority=1")
    head, hpc, web = bench.run("admin", "vcluster", "list").out.splitlines()
    assert head.split()[:6] == ["VCLUSTER", "STATE", "POLICY", "WEIGHTS", "INTERVAL", "DEPTH"]
    assert hpc.split()[:6] == ["hpc", "Open", "Backfill", "Service", "3s", "4"]
    assert web.split()[:4] == ["web", "Open", "BinPack", "own"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("set-weights", "hpc", "--priority=-0.2"), "--priority=-0.2: a weight is at least 0"),
        (("set-weights", "hpc", "--wait-time=much"), "--wait-time=much: a weight is a number such as 0.15 or 150m"),
        (("set-weights", "hpc"), "nothing to change"),
        (("set-weights", "hpc", "--profile=fast"), "--profile=fast: write hpc-batch, ml-training, service, sensitive, interactive, none"),
        (("set-weights", "new", "--profile=none", *(f"--{name}=0" for name in (
            "priority", "wait-time", "fair-share", "topology", "data-readiness", "backlog", "energy", "checkpoint", "conformance",
        ))), "all weights are 0"),
        (("set-config", "hpc"), "nothing to change"),
        (("set-config", "hpc", "--policy=lottery"), "--policy=lottery: write backfill, bin-pack, sensitive-reservation, interactive-fifo"),
        (("set-config", "hpc", "--cycle-interval=soon"), "--cycle-interval: 'soon' is not a duration"),
        (("set-config", "hpc", "--backfill-depth=deep"), "--backfill-depth=deep: not a number"),
        (("set-config", "hpc", "--max-total-nodes=0"), "--max-total-nodes=0: not a number from 1 on"),
        (("set-config", "hpc", "--max-nodes-per-user=0"), "--max-nodes-per-user=0: not a number from 1 on"),
        (("set-config",), "give one name of a vcluster"),
        (("get", "a", "--name=b"), "give one name of a vcluster"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_flag(bench: Bench, words: tuple[str, ...], says: str) -> None:
    bench.run("admin", "vcluster", "create", "hpc")
    bench.run("admin", "vcluster", "create", "new")
    done = bench.run("admin", "vcluster", *words)
    assert (done.code, says in done.err) == (2, True), done.err
    assert spec(bench) == {}


def test_a_vcluster_that_is_not_there_is_not_found(bench: Bench) -> None:
    assert bench.run("admin", "vcluster", "set-weights", "nope", "--priority=1").code == 4


def test_budgets_of_a_tenant_are_set_as_in_the_book(bench: Bench) -> None:
    words = ("--gpu-hours-budget", "150000", "--node-hours-budget", "500000", "--fair-share-target", "0.15", "--burst-allowance=1.5")
    bench.run("admin", "tenant", "create", "physics")
    assert bench.run("admin", "tenant", "update", "physics", *words, "--budget-period-days=30").code == 0
    made = bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["budget"]
    assert made == {"gpuHours": 150000, "nodeHours": 500000, "periodDays": 30, "fairShareTarget": "150m", "burstAllowance": "1500m"}
    assert "150m" in bench.run("admin", "tenant", "list").out
    bench.run("admin", "tenant", "update", "physics", "--fair-share-target=none", "--gpu-hours-budget=none")
    assert set(bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["budget"]) == {
        "nodeHours",
        "periodDays",
        "burstAllowance",
    }
    assert "not a number such as" in bench.run("admin", "tenant", "update", "physics", "--fair-share-target=much").err


def test_the_price_of_electricity_is_set_as_a_number_with_its_time(bench: Bench) -> None:
    done = bench.run("admin", "config", "set", "scheduling.energyPrice=0.3", "scheduling.energyPriceUntil=2026-12-01T08:00:00Z")
    assert done.code == 0, done.err
    made = bench.cluster.get(CONFIGS, "lattice", type=dict[str, Any])["spec"]["scheduling"]
    assert made == {"energyPrice": "0.3", "energyPriceUntil": "2026-12-01T08:00:00Z"}
    assert bench.run("admin", "config", "get", "scheduling.energyPrice").out == "0.3\n"
    assert bench.run("admin", "config", "set", "scheduling.energyPrice=null", "scheduling.energyPriceUntil=null").code == 0
    assert bench.cluster.get(CONFIGS, "lattice", type=dict[str, Any])["spec"]["scheduling"] == {}
    assert bench.run("admin", "config", "set", "scheduling.energyPrice=-1").code == 2
