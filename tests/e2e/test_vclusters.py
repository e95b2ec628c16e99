"""How a vcluster schedules, set by administrators: weights, limits and policies count from the next cycle, nonsense is refused."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from lattice import errors
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, NODES, TENANTS, VCLUSTERS
from lattice_dev import install
from lattice_dev.instance import Instance
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.killed_runs import RUN

_numbers = itertools.count(1)


@pytest.fixture
def boss(control_plane: Instance) -> Person:
    """The administrator of the cluster."""
    return person(control_plane, "admin", "default")


@pytest.fixture
def vcluster(me: Person, boss: Person, admin: BlockingCluster) -> Iterator[str]:
    """A vcluster of this test, gone at its end with all work in it."""
    name = f"vc{RUN}-{next(_numbers)}"
    boss.lattice("admin", "vcluster", "create", name, f"--for-tenant={me.namespace}", "--default-walltime=5m")
    yield name
    for item in admin.list(ALLOCATIONS, me.namespace).items:
        with contextlib.suppress(errors.NotFound):
            admin.delete(ALLOCATIONS, item["metadata"]["name"], me.namespace)
    until(lambda: not admin.list(ALLOCATIONS, me.namespace).items, within=30, what=f"the end of the work in {name}")
    with contextlib.suppress(errors.Denied):  # refused until its use is counted
        admin.delete(VCLUSTERS, name)


def fill(me: Person) -> None:
    """Hold every node, in the common vcluster."""
    me.apply("full", nodes=4, entrypoint="sleep 4247.1", vcluster="hpc-batch")
    me.phase("full", "Running")


def scored(me: Person, name: str) -> dict[str, Any]:
    """The score of one that waits, as its status has it."""
    seen = Seen(lambda: me.get(name).get("status", {}), lambda status: "score" in status and status.get("phase") == "Pending")
    found: dict[str, Any] = until(seen, within=15, every=0.1, what=f"the score of {name}")["score"]
    return found


def test_weights_count_from_the_next_cycle(me: Person, boss: Person, vcluster: str) -> None:
    fill(me)
    boss.lattice("admin", "vcluster", "set-weights", vcluster, "--profile=sensitive")
    boss.lattice("admin", "vcluster", "set-weights", vcluster, "--priority=1", "--conformance=0")
    me.apply("before", vcluster=vcluster, entrypoint="true", lifecycle={"preemptionClass": 7})
    score = scored(me, "before")
    assert (score["total"], score["terms"]["f1"]) == ("0.700", "0.700")
    assert set(score["terms"]) == {f"f{number}" for number in range(1, 10)}

    boss.lattice("admin", "vcluster", "set-weights", vcluster, "--priority=0", "--conformance=1")

    def why() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(me.lattice("why", "before", "-o", "json").stdout).get("score") or {}
        return found

    shown = until(Seen(why, lambda seen: seen.get("total", 0) > 0.999), within=15, every=0.2, what="the score by the new weights")
    assert (shown["weights"]["conformance"], shown["weights"]["priority"]) == (1.0, 0.0)
    me.apply("after", vcluster=vcluster, entrypoint="true", lifecycle={"preemptionClass": 7})
    assert scored(me, "after")["total"] == "1.000"
    assert "1.000" in me.lattice("status", "-o", "wide").stdout


def test_a_user_holds_and_waits_no_more_than_the_vcluster_allows(me: Person, boss: Person, vcluster: str) -> None:
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--max-running-per-user=1", "--max-pending-per-user=1")
    me.apply("first", vcluster=vcluster, entrypoint="sleep 4247.2")
    me.phase("first", "Running")
    me.apply("second", vcluster=vcluster, entrypoint="true")
    waiting = Seen(lambda: me.lattice("why", "second").stdout, lambda text: "1" in text and "maxRunningPerUser" in text)
    until(waiting, within=15, every=0.2, what="the limit in the reason")

    def refused() -> str:
        return me.apply("third", vcluster=vcluster, entrypoint="true", ok=False).stderr

    said = until(Seen(refused, lambda text: "maxPendingPerUser" in text), within=15, every=0.5, what="the refusal")
    assert "(current: 1, requested: 1, limit: 1)" in said
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--max-running-per-user=none")
    assert me.ended("second")["phase"] == "Completed"


def test_all_work_of_a_vcluster_holds_and_waits_no_more_than_it_allows(me: Person, boss: Person, vcluster: str) -> None:
    flags = ("--max-total-nodes=1", "--max-pending=1", "--max-pending-per-tenant=9", "--max-class=6")
    boss.lattice("admin", "vcluster", "set-config", vcluster, *flags)
    assert "nodes 1, waiting 1, waiting of a tenant 9, class 6" in boss.lattice("admin", "vcluster", "get", vcluster).stdout
    me.apply("first", vcluster=vcluster, entrypoint="sleep 4247.3")
    me.phase("first", "Running")
    me.apply("second", vcluster=vcluster, entrypoint="true")
    numbers = f'all its work would exceed limits.maxNodes of vCluster "{vcluster}" (nodes held: 1, requested: 1, limit: 1)'
    until(
        Seen(lambda: me.lattice("why", "second").stdout, lambda text: numbers in text), within=15, every=0.2, what="the limit in the reason"
    )

    def refused(**spec: Any) -> str:
        return me.apply("third", vcluster=vcluster, entrypoint="true", ok=False, **spec).stderr

    said = until(Seen(refused, lambda text: "maxPending of" in text), within=15, every=0.5, what="the refusal")
    assert f'all its work would exceed maxPending of vCluster "{vcluster}" (current: 1, requested: 1, limit: 1)' in said
    assert f'above the highest of vCluster "{vcluster}" (requested: 7, limit: 6)' in refused(lifecycle={"preemptionClass": 7})
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--max-total-nodes=none")
    assert me.ended("second")["phase"] == "Completed"


def test_two_vclusters_with_different_policies_schedule_at_once(me: Person, boss: Person, vcluster: str) -> None:
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--policy=bin-pack", "--cycle-interval=2s", "--backfill-depth=0")
    boss.lattice("admin", "vcluster", "set-weights", vcluster, "--profile=service")
    for number, where in enumerate((vcluster, "hpc-batch", vcluster, "hpc-batch")):
        me.apply(f"job-{number}", vcluster=where, entrypoint="true")
    assert [me.ended(f"job-{number}")["phase"] for number in range(4)] == ["Completed"] * 4
    table = boss.lattice("admin", "vcluster", "list").stdout.splitlines()
    assert next(line.split()[:6] for line in table if line.startswith(vcluster)) == [vcluster, "Open", "BinPack", "Service", "2s", "0"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "negative": ({"weights": {"priority": "-200m"}}, "spec.weights.priority"),
    "all zero": ({"weights": {"priority": 0, "waitTime": "0m"}}, "spec.weights are all 0"),
    "unknown": ({"weights": {"luck": "200m"}}, "spec.weights.luck"),
    "profile too": ({"weights": {"priority": 1}, "profile": "Service"}, "both given"),
    "a policy": ({"policy": "Lottery"}, "spec.policy"),
    "a depth": ({"cycle": {"depth": 1001}}, "spec.cycle.depth"),
    "an interval": ({"cycle": {"interval": "0s"}}, "spec.cycle.interval is 0s"),
}


@pytest.mark.parametrize(("spec", "says"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused_with_its_field(boss: Person, spec: dict[str, Any], says: str) -> None:
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "VCluster",
        "metadata": {"name": "never"},
        "spec": {"tenants": ["nobody"], **spec},
    }
    done = boss.kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(body), ok=False)
    assert (done.returncode, says in done.stderr) == (1, True), done.stderr


def test_weights_that_do_not_sum_to_1_are_warned_of_and_shown(boss: Person, vcluster: str) -> None:
    done = boss.kubectl("patch", "vcluster", vcluster, "--type=merge", "-p", '{"spec":{"weights":{"priority":"600m","energy":"600m"}}}')
    assert "Warning: spec.weights sum to 1.2: each is divided by 1.2" in done.stderr
    shown = Seen(lambda: boss.lattice("admin", "vcluster", "get", vcluster).stdout, lambda text: "WeightsNormalised" in text)
    assert "energy         0.500" in until(shown, within=15, every=0.2, what="the condition")


def test_kubectl_shows_the_state_and_the_policy_in_force_where_none_is_named(boss: Person, vcluster: str) -> None:
    shown = Seen(
        lambda: boss.kubectl("get", "vc", vcluster).stdout.splitlines()[-1].split(), lambda cells: cells[1:3] == ["Open", "Backfill"]
    )
    until(shown, within=15, every=0.2, what="the columns")
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--policy=bin-pack", "--closed")
    until(lambda: boss.kubectl("get", "vc", vcluster).stdout.splitlines()[-1].split()[1:3] == ["Closed", "BinPack"], within=15)


def test_a_group_is_at_home_in_one_vcluster_only(boss: Person, vcluster: str) -> None:
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--group=nowhere")
    done = boss.lattice("admin", "vcluster", "create", f"{vcluster}-2", "--group=nowhere", ok=False)
    assert f'group "nowhere" is at home in vCluster "{vcluster}"' in done.stderr


def test_more_than_a_limit_of_the_vcluster_is_planned_as_never_and_warned_of(me: Person, boss: Person, vcluster: str) -> None:
    boss.lattice("admin", "vcluster", "set-config", vcluster, "--max-nodes-per-user=1")
    asked = (f"--vcluster={vcluster}", "--nodes=2", "--walltime=1m", "--", "true")
    planned = until(Seen(lambda: me.lattice("plan", *asked, ok=False), lambda done: done.returncode != 0), within=10, every=0.3)
    assert planned.returncode == 4, planned.stdout
    assert "more than the limit itself" in me.lattice("submit", *asked).stderr


def test_a_second_vcluster_names_itself_where_a_tenant_has_no_default_and_says_what_it_takes(
    boss: Person, me: Person, admin: BlockingCluster, control_plane: Instance
) -> None:
    name, group = f"vc{RUN}-{next(_numbers)}", str(admin.list(NODES).items[-1]["spec"]["group"])
    before = json.loads(boss.lattice("admin", "vcluster", "get", "hpc-batch", "-o", "json").stdout)["status"]["nodes"]
    tenant = f"t{RUN}-bare"
    install.grant(admin, tenant, "alice", admin=False)
    boss.kubectl("patch", "tenant", tenant, "--type=merge", "-p", '{"spec":{"defaultVCluster":null}}')
    made = boss.lattice("admin", "vcluster", "create", name, f"--group={group}", "--default-walltime=5m")
    try:
        assert all(word in made.stderr for word in (f"group {group} (", "keeps ", tenant)), made.stderr
        ours = person(control_plane, "alice", tenant)
        refused = until(
            Seen(
                lambda: ours.lattice("submit", "--walltime=1m", "--", "true", ok=False),
                lambda done: done.returncode != 0 and "is forbidden" not in done.stderr,  # the new member's rights are read a moment later
            ),
            within=10, every=0.3, what="the refusal",
        )  # fmt: skip
        assert f'tenant "{tenant}" has no default vCluster: name one of hpc-batch, {name}' in refused.stderr, refused.stderr
        shown = Seen(
            lambda: json.loads(boss.lattice("admin", "vcluster", "get", "hpc-batch", "-o", "json").stdout)["status"]["nodes"],
            lambda count: count < before,
        )
        assert until(shown, within=15, every=0.3, what="fewer nodes of hpc-batch") == before - 2
    finally:
        for item in admin.list(ALLOCATIONS, tenant).items:
            admin.delete(ALLOCATIONS, item["metadata"]["name"], tenant)
        until(lambda: not admin.list(ALLOCATIONS, tenant).items, within=30, what="the end of its work")
        admin.delete(VCLUSTERS, name)
        with contextlib.suppress(errors.Denied):
            admin.delete(TENANTS, tenant)


def test_ordinary_people_change_no_vcluster(me: Person, vcluster: str) -> None:
    done = me.lattice("admin", "vcluster", "set-weights", vcluster, "--priority=1", ok=False)
    assert done.returncode == 5
