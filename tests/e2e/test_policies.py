"""How vclusters schedule beside each other, on a site of hollow nodes with a home each: policies, borrowing, backfill, limits,
power, preemption; and every reason that a pending allocation may have is shown by some end-to-end test."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, VCLUSTERS
from lattice.models.reasons import PENDING_REASONS
from lattice.units import expand_nodes, parse_time
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room, clear, hollow_site, new_room
from tests.e2e.people import Person, person, scheduled
from tests.e2e.waiting import Seen, until

INVENTORY = """\
classes:
  cpu: {cpus: 64, memory: 128Gi, watts: 1000}
nodes:
  - {names: "lend[1-4]", class: cpu, group: lend, vcluster: lender}
  - {names: "own[1-2]", class: cpu, group: own, vcluster: borrower}
  - {names: "bf[1-4]", class: cpu, group: bf, vcluster: batch}
  - {names: "ui[1-2]", class: cpu, group: ui, vcluster: desks}
  - {names: "pa[1-3]", class: cpu, group: pa, vcluster: services}
  - {names: "pb[1-3]", class: cpu, group: pb, vcluster: services}
  - {names: "v[1-2]", class: cpu, group: v, fingerprint: a, vcluster: vault}
  - {names: "v[3-3]", class: cpu, group: v, fingerprint: b, vcluster: vault}
  - {names: "lim[1-4]", class: cpu, group: lim, vcluster: limited}
  - {names: "pre[1-3]", class: cpu, group: pre, vcluster: urgent}
"""
VCLUSTERS_SPEC: dict[str, dict[str, Any]] = {
    "lender": {"borrowing": {"lend": True, "maxDuration": "2h"}},
    "borrower": {"borrowing": {"borrow": True, "maxBorrowed": 3, "maxDuration": "1h", "returnGrace": "30s"}},
    "batch": {"policy": "Backfill", "weights": {"priority": 1}},
    "desks": {"policy": "InteractiveFifo", "weights": {"priority": "500m", "conformance": "500m"}},
    "services": {"policy": "BinPack", "profile": "Service"},
    "vault": {"policy": "SensitiveReservation", "profile": "Sensitive"},
    "limited": {"limits": {"maxNodesPerUser": 2, "maxNodesPerTenant": 3}},
    "urgent": {},
}
HIDDEN = "oppenheimer"
"""Part of the names of alice's work that a stranger must not see."""

SHOWN_BY = {
    "NotYetEvaluated": "test_explanations.py::test_without_a_scheduler_why_answers_from_the_object_and_says_since_when",
    "WaitingForImages": "test_uenv_labels.py::test_work_waits_for_a_registry_that_is_away_and_runs_once_it_answers",
    "WaitingForDag": "test_dags.py::test_no_member_starts_before_all_of_them_exist",
    "WaitingForDependency": "test_dependencies.py::test_each_condition_is_answered_by_the_end_of_its_predecessor",
    "DependencyFailed": "test_dependencies.py::test_what_can_never_be_met_is_held_where_that_is_asked_and_goes_once_it_depends_on_nothing",
    "DependencyNotNeeded": "test_dependencies.py::test_what_can_never_be_met_is_held_where_that_is_asked_and_goes_once_it_depends_on_nothing",
    "DependencyLost": "test_dependencies.py::test_with_the_webhook_away_what_nobody_knows_or_another_tenant_has_holds_work",
    "WaitingForNodes": "test_explanations.py::test_why_says_what_stands_before_it_and_when_it_starts",
    "BehindHigherPriority": "test_policies.py::test_two_policies_at_once_one_lets_small_work_go_ahead_and_one_does_not",
    "NodesUnavailable": "test_policies.py::test_what_only_drained_nodes_could_hold_says_so_and_starts_when_they_return",
    "ReservedNodes": "test_reservations.py::test_before_maintenance_short_work_starts_and_long_work_reads_how_short",
    "WaitingForQuotaHeadroom": "test_policies.py::test_no_user_and_no_tenant_gets_more_than_the_vcluster_allows",
    "BudgetExhausted": "test_usage.py::test_a_used_up_budget_makes_work_wait_tells_the_tenant_and_lets_go_when_it_is_raised",
    "WaitingForQuotaShare": "test_quota_tree.py::test_departments_lend_burst_and_get_back_what_is_theirs",
    "QuotaReclaimed": "test_quota_tree.py::test_departments_lend_burst_and_get_back_what_is_theirs",
    "Requeued": "test_requeue.py::test_what_runs_is_requeued_once_and_spends_nothing",
    "InsufficientConformance": "test_policies.py::test_sensitive_work_starts_at_once_on_equal_nodes_or_is_told_what_is_in_its_way",
    "PowerBudget": "test_policies.py::test_the_power_budget_holds_and_counts_from_the_next_cycle",
    "Held": "test_policies.py::test_what_its_owner_or_its_vcluster_holds_back_says_which",
    "NotBefore": "test_policies.py::test_what_its_owner_or_its_vcluster_holds_back_says_which",
    "RetryBackOff": "test_policies.py::test_the_next_attempt_waits_for_proof_that_the_last_one_has_ended",
    "VClusterClosed": "test_policies.py::test_what_its_owner_or_its_vcluster_holds_back_says_which",
    "RecoveryUncertain": "../faults/test_restore.py::test_work_of_a_node_that_is_away_is_held_until_it_tells_what_it_knows",
    "NotAdmitted": "test_limits.py::test_a_walltime_beyond_the_limit_waits_until_the_limit_is_lifted",
    "NeverFits": "test_allocations.py::test_what_never_fits_is_accepted_and_says_so_with_numbers",
}
"""Each reason that a daemon gives, and the end-to-end test that makes it happen and reads it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance of hollow nodes only, in eight vclusters."""
    with hollow_site("policies", INVENTORY, tmp_path_factory.mktemp("site")) as instance:
        yield instance


@pytest.fixture(scope="module")
def root(site: Instance) -> Iterator[BlockingCluster]:
    """The administrator, who has given every vcluster its policy."""
    with contextlib.closing(site.cluster()) as cluster:
        for name, spec in VCLUSTERS_SPEC.items():
            cluster.patch(VCLUSTERS, name, {"spec": spec})
        yield cluster


@pytest.fixture(scope="module")
def lab(root: BlockingCluster) -> Room:
    """The tenant of alice and bob."""
    return new_room(root)


@pytest.fixture
def me(site: Instance, root: BlockingCluster, lab: Room) -> Iterator[Person]:
    """alice; no work of her tenant outlasts its test."""
    yield person(site, "alice", lab.namespace)
    clear(root, lab.namespace)


@pytest.fixture
def bob(site: Instance, lab: Room, me: Person) -> Person:
    """A colleague."""
    return person(site, "bob", lab.namespace)


@pytest.fixture(scope="module")
def boss(site: Instance) -> Person:
    """The administrator, with the programs."""
    return person(site, "admin", "default")


def submit(me: Person, name: str, vcluster: str, nodes: int | str = 1, walltime: str = "10m", **spec: Any) -> None:
    """Work on hollow nodes, which lasts until it is cancelled, unless HOLLOW_SECONDS is among its variables."""
    asked = {"constraints": {"features": ["hollow"], **spec.pop("constraints", {})}}
    me.apply(name, nodes=nodes, walltime=walltime, vcluster=vcluster, resources=asked, entrypoint="true", **spec)


def runs(me: Person, name: str) -> set[str]:
    """Its nodes, once it runs."""
    return set(expand_nodes(me.phase(name, "Running", within=10)["nodes"]))


def waits(me: Person, name: str, reason: str, *words: str) -> str:
    """The sentence with which it waits, once its reason is this and its sentence has these words."""

    def told(seen: dict[str, Any]) -> bool:
        return bool(seen.get("reason") == reason) and all(word in seen["message"] for word in words)

    return str(until(Seen(lambda: scheduled(me, name), told), within=10, what=f"{name}: {reason}, {words}")["message"])


def queue(me: Person, vcluster: str) -> dict[str, dict[str, Any]]:
    """The entries of a queue by name."""
    found = json.loads(me.lattice("queue", vcluster, "-o", "json").stdout)["vclusters"]
    return {entry["work"]["name"]: entry for entry in found[0]["entries"] if entry.get("work")}


def test_every_reason_that_is_served_is_shown_by_a_test_that_reads_it() -> None:
    assert set(SHOWN_BY) == {reason.word for reason in PENDING_REASONS if reason.served}
    for word, place in SHOWN_BY.items():
        file, _, name = place.partition("::")
        tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
        test = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        texts = [node.value for node in ast.walk(test) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert any(word in re.findall(r"\w+", text) for text in texts), f"{place} does not read {word}"


# Policies


def test_two_policies_at_once_one_lets_small_work_go_ahead_and_one_does_not(me: Person) -> None:
    submit(me, "bf-runs", "batch", 3)
    submit(me, "ui-0-runs", "desks", 1)
    assert (len(runs(me, "bf-runs")), len(runs(me, "ui-0-runs"))) == (3, 1)
    submit(me, "bf-wide", "batch", 4, lifecycle={"preemptionClass": 7})
    submit(me, "ui-1-wide", "desks", 2, lifecycle={"preemptionClass": 7})
    waits(me, "bf-wide", "WaitingForNodes", "needs 4 nodes; of 4 that fit, 1 is free, 3 in use")
    waits(me, "ui-1-wide", "WaitingForNodes", "needs 2 nodes; of 2 that fit, 1 is free, 1 in use")

    submit(me, "bf-small", "batch", 1, "1m")
    submit(me, "ui-2-small", "desks", 1, "1m")
    assert runs(me, "bf-small") <= {"bf1", "bf2", "bf3", "bf4"}
    waits(me, "ui-2-small", "BehindHigherPriority", 'vCluster "desks" starts in strict order of submission')
    me.lattice("cancel", "bf-small")
    submit(me, "bf-long", "batch", 1, "6h")
    behind = waits(me, "bf-long", "BehindHigherPriority", "1 of them is kept by backfill reservations of 1 allocation")
    assert "it starts at the latest" in behind

    scores = {name: me.get(name)["status"]["score"]["total"] for name in ("bf-wide", "ui-1-wide")}
    assert scores == {"bf-wide": "0.700", "ui-1-wide": "0.850"}  # class 7 alone, and half of it with all nodes alike


def test_a_reservation_is_shown_in_the_queue_and_kept(me: Person) -> None:
    submit(me, "runs", "batch", 3)
    runs(me, "runs")
    submit(me, "wide", "batch", 4, lifecycle={"preemptionClass": 7})
    submit(me, "long", "batch", 1, "6h")
    waits(me, "long", "BehindHigherPriority")
    seen = until(Seen(lambda: queue(me, "batch"), lambda found: "expectedStart" in found.get("wide", {})), within=10, every=0.3)
    assert (seen["wide"]["position"], seen["long"]["position"]) == (1, 2)
    promised = parse_time(seen["wide"]["expectedStart"]["p90"])
    given = until(lambda: me.get("wide")["status"].get("reservedAt"), within=10, what="when its reservation was given")
    assert f"given {given}" in me.lattice("why", "wide").stdout
    table = me.lattice("queue", "batch").stdout
    assert "batch: Backfill" in table
    assert "Nodes to come" in table
    assert "wide" in table
    me.lattice("cancel", "runs")
    started = parse_time(me.phase("wide", "Running", within=10)["startTime"])
    assert started <= promised
    assert me.get("long")["status"]["phase"] == "Pending"
    assert "reservedAt" not in me.get("wide")["status"]


def test_services_share_the_fullest_group(me: Person) -> None:
    submit(me, "first", "services", 1, constraints={"nodeList": "pb2"})
    assert runs(me, "first") == {"pb2"}
    submit(me, "second", "services", 2)
    assert runs(me, "second") == {"pb1", "pb3"}
    submit(me, "third", "services", 2)
    assert runs(me, "third") < {"pa1", "pa2", "pa3"}


def test_sensitive_work_starts_at_once_on_equal_nodes_or_is_told_what_is_in_its_way(me: Person) -> None:
    submit(me, "three", "vault", 3)
    waits(me, "three", "InsufficientConformance", "needs 3 nodes of one fingerprint; the largest equal set has 2 of 3 that fit")
    submit(me, "two", "vault", 2)
    assert runs(me, "two") == {"v1", "v2"}
    submit(me, "again", "vault", 2)
    said = waits(me, "again", "WaitingForNodes", "needs 2 nodes", "enough of them come free by 20")
    assert "starts at the latest" not in said
    submit(me, "single", "vault", 1)
    assert runs(me, "single") == {"v3"}


# Borrowing


def test_idle_nodes_are_lent_within_limits_and_the_lenders_own_work_goes_first(me: Person) -> None:
    submit(me, "never", "borrower", 3, lifecycle={"preemptible": "Never"})
    submit(me, "too-long", "borrower", 3, "90m")
    submit(me, "too-many", "borrower", 6)
    submit(me, "guest", "borrower", 4)
    assert len(runs(me, "guest") - {"own1", "own2"}) == 2
    waits(me, "never", "NeverFits", '26 more are at home in other vclusters than "borrower", which may not use them')
    for name, exist in (("too-long", 2), ("too-many", 5)):
        waits(me, name, "NeverFits", f"and {exist} exist that fit", "which lend it none, or not so many, or not for so long")
    me.lattice("cancel", "too-long", "too-many", "never")

    submit(me, "host", "lender", 4)
    said = waits(me, "host", "WaitingForNodes", "needs 4 nodes; of 4 that fit, 2 are free, 2 in use")
    assert 'lent are 2 nodes to vCluster "borrower": to be given back within 30s (decided; this release reclaims nothing)' in said
    submit(me, "late", "borrower", 1, "50m")
    waits(me, "late", "WaitingForNodes")
    submit(me, "short", "borrower", 1, "1m")
    assert runs(me, "short") <= {"lend1", "lend2", "lend3", "lend4"}
    me.lattice("cancel", "guest", "short")
    assert runs(me, "host") == {"lend1", "lend2", "lend3", "lend4"}
    assert runs(me, "late") <= {"own1", "own2"}


# What keeps it waiting whatever is free


def test_no_user_and_no_tenant_gets_more_than_the_vcluster_allows(me: Person, bob: Person) -> None:
    submit(me, "two", "limited", 2)
    runs(me, "two")
    submit(me, "third", "limited", 1)
    words = 'limits.maxNodesPerUser of vCluster "limited" (nodes held: 2, requested: 1, limit: 2)'
    waits(me, "third", "WaitingForQuotaHeadroom", words)
    submit(bob, "bobs", "limited", 2)
    words = f'tenant "{me.namespace}" would exceed limits.maxNodesPerTenant of vCluster "limited" (nodes held: 2, requested: 2, limit: 3)'
    waits(bob, "bobs", "WaitingForQuotaHeadroom", words)
    me.lattice("cancel", "two")
    runs(me, "third")
    runs(bob, "bobs")


def test_what_its_owner_or_its_vcluster_holds_back_says_which(me: Person, boss: Person) -> None:
    submit(me, "held", "urgent", hold=True)
    submit(me, "later", "urgent", lifecycle={"notBefore": "2099-01-01T00:00:00Z"})
    boss.lattice("admin", "vcluster", "set-config", "urgent", "--closed")
    submit(me, "closed", "urgent")
    waits(me, "held", "Held", "lattice release")
    waits(me, "later", "NotBefore")
    waits(me, "closed", "VClusterClosed", 'vCluster "urgent" is Closed: it accepts work and starts none')
    boss.lattice("admin", "vcluster", "set-config", "urgent", "--open")
    runs(me, "closed")
    me.lattice("release", "held")
    runs(me, "held")


def test_the_power_budget_holds_and_counts_from_the_next_cycle(me: Person, root: BlockingCluster) -> None:
    root.patch(CONFIGS, "lattice", {"spec": {"scheduling": {"powerBudgetKilowatts": 2}}})
    try:
        submit(me, "one", "batch", 1)
        runs(me, "one")
        submit(me, "two", "services", 2)
        waits(me, "two", "PowerBudget", "needs 2 nodes that draw 2.0 kW; 1.0 kW of the power budget of 2.0 kW are in use")
        root.patch(CONFIGS, "lattice", {"spec": {"scheduling": {"powerBudgetKilowatts": 3}}})
        runs(me, "two")
    finally:
        root.patch(CONFIGS, "lattice", {"spec": {"scheduling": {"powerBudgetKilowatts": 0}}})


def test_what_only_drained_nodes_could_hold_says_so_and_starts_when_they_return(me: Person, boss: Person) -> None:
    boss.lattice("node", "drain", "pre3", "--reason=a fan", "--yes")
    try:
        until(lambda: "Drained" in boss.lattice("nodes", "pre3").stdout, within=10, every=0.2, what="pre3 drained")
        submit(me, "wide", "urgent", 3)
        waits(me, "wide", "NodesUnavailable", "needs 3 nodes; of 3 that fit, 2 can be used (1 Drained)")
    finally:
        boss.lattice("node", "undrain", "pre3")
    runs(me, "wide")


# Preemption: decided and shown


@pytest.fixture
def dora(site: Instance, root: BlockingCluster, me: Person) -> Iterator[Person]:
    """A stranger with a tenant of her own."""
    site.add_user("dora", "doras-lab")
    her = person(site, "dora", "doras-lab")
    until(lambda: her.lattice("status", ok=False).returncode == 0, within=20, every=0.5, what="the rights of dora")
    yield her
    clear(root, her.namespace)


def test_who_would_have_to_go_is_named_to_who_may_know_and_counted_for_a_stranger(me: Person, bob: Person, dora: Person) -> None:
    submit(me, f"{HIDDEN}-two", "urgent", 2, "2h", lifecycle={"preemptionClass": 2}, tags={"name": f"{HIDDEN}-tag"})
    submit(bob, f"{HIDDEN}-one", "urgent", 1, "2h", lifecycle={"preemptionClass": 2})
    runs(me, f"{HIDDEN}-two")
    runs(bob, f"{HIDDEN}-one")
    submit(me, "mine", "urgent", 3, "4h", lifecycle={"preemptionClass": 8})
    waits(me, "mine", "WaitingForNodes")

    answer = json.loads(me.lattice("why", "mine", "-o", "json").stdout)["preemption"]
    victims = {one["work"]["name"]: (one["whose"], one["nodes"]) for one in answer["victims"]}
    assert victims == {f"{HIDDEN}-two": ("you", 2), f"{HIDDEN}-one": ("your tenant", 1)}
    assert 0 < answer["cost"] < answer["value"]
    said = me.lattice("why", "mine").stdout
    assert "Would preempt:" in said
    assert "3 nodes at a cost of" in said
    assert "(decided; this release preempts nothing)" in said
    me.lattice("cancel", "mine")

    flags = ("--vcluster=urgent", "--nodes=3", "--walltime=4h", "--preemption-class=8", "--constraint=hollow", "--", "true")
    planned = me.lattice("plan", *flags, ok=False)
    assert (planned.returncode, f"{HIDDEN}-two" in planned.stdout) == (3, True), planned.stdout + planned.stderr
    low = me.lattice("plan", "-o", "json", *[word.replace("class=8", "class=3") for word in flags], ok=False)
    kept = json.loads(low.stdout)["allocations"][0]["preemption"]
    assert (kept.get("victims", []), kept["reason"]) == ([], "NoneToPreempt")

    submit(dora, "hers", "urgent", 3, "4h", lifecycle={"preemptionClass": 8})
    waits(dora, "hers", "WaitingForNodes")
    for words in (("why", "hers"), ("why", "hers", "-o", "json"), ("plan", *flags), ("plan", "-o", "json", *flags)):
        done = dora.lattice(*words, ok=False)
        for name in (HIDDEN, "alice", "bob", me.namespace):
            assert name not in done.stdout + done.stderr, f"{words}: {done.stdout}{done.stderr}"
    counted = json.loads(dora.lattice("why", "hers", "-o", "json").stdout)["preemption"]["victims"]
    known = sorted((one["whose"], one["nodes"], one.get("work")) for one in counted)
    assert known == [("other tenants", 1, None), ("other tenants", 2, None)]
    assert me.get(f"{HIDDEN}-two")["status"]["phase"] == "Running"


# Metrics, and what needs a dead machine


def test_cycles_are_held_against_the_bound_of_a_linear_program(site: Instance, me: Person) -> None:
    submit(me, "any", "batch", 1)
    runs(me, "any")

    def ratios() -> list[float]:
        lines = site.metrics("scheduler").splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith("lattice_scheduling_bound_ratio{")]

    found = until(ratios, within=15, every=0.3, what="the ratio")
    assert all(0 < ratio <= 1 for ratio in found)


def test_the_next_attempt_waits_for_proof_that_the_last_one_has_ended(
    site: Instance, root: BlockingCluster, me: Person, boss: Person
) -> None:
    root.patch(CONFIGS, "lattice", {"spec": {"scheduling": {"retryBackOff": "1s"}}})
    submit(me, "proof", "desks", 1, lifecycle={"requeue": {"when": "Fenced"}})
    (node,) = runs(me, "proof")
    site.kill("hollow")
    boss.lattice("node", "disable", node, "--reason=smoke", "--yes")
    waits(me, "proof", "RetryBackOff", "waits for proof that attempt 1 has ended")
    boss.lattice("node", "disable", node, "--fenced", "--reason=burnt", "--yes")
    site.start("hollow")

    def again(status: dict[str, Any]) -> bool:
        return bool(status.get("attempt", 0) >= 2 and status["phase"] == "Running" and status["nodes"] != node)

    until(Seen(lambda: me.get("proof")["status"], again), within=30, every=0.3, what="another attempt")
