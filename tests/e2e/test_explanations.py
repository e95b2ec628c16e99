"""why, plan and queue against the running system: as the owner, as a colleague, as a stranger who may see no names, and without a scheduler."""

from __future__ import annotations

import http.client
import json
import re
import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.schemas import valid

PRIVATE = "oppenheimer"
"""Part of every name of alice's work here: it must not be seen by a stranger."""
REFUSED_PLANS = r'lattice_api_requests_total\{method="POST plan",status="429"\} (\S+)'


@pytest.fixture(scope="module")
def alice_there(control_plane: Instance, lab: Room) -> Person:
    """alice, whose work holds every node but one for long, and whose next work needs all of them."""
    me = person(control_plane, "alice", lab.namespace)
    nodes = len(control_plane.site().nodes)
    me.apply(f"{PRIVATE}-runs", nodes=nodes - 1, walltime="30m", entrypoint="sleep 900", tags={"name": f"{PRIVATE}-job"})
    me.phase(f"{PRIVATE}-runs", "Running")
    me.apply(f"{PRIVATE}-waits", nodes=nodes, walltime="1h", entrypoint="true", tags={"name": f"{PRIVATE}-next"})
    expected = Seen(lambda: me.get(f"{PRIVATE}-waits").get("status", {}), lambda status: status.get("expectedStart", {}).get("p90"))
    until(expected, within=20, every=0.2, what="an expected start")
    return me


@pytest.fixture
def bob_there(control_plane: Instance, lab: Room, alice_there: Person) -> Person:
    """bob, of the same tenant."""
    return person(control_plane, "bob", lab.namespace)


@pytest.fixture(scope="module")
def dora(control_plane: Instance, alice_there: Person) -> Iterator[Person]:
    """A stranger with a tenant of her own, whose work waits behind alice's."""
    control_plane.add_user("dora", "doras-lab")
    her = person(control_plane, "dora", "doras-lab")
    until(lambda: her.lattice("status", ok=False).returncode == 0, within=20, every=0.5, what="the rights of dora")
    her.apply("mine", nodes=len(control_plane.site().nodes), walltime="20m", entrypoint="true")
    until(Seen(lambda: her.lattice("why", "mine").stdout, lambda said: "Queue:" in said), within=15, every=0.3)
    yield her
    her.kubectl("delete", "alloc", "mine", "-n", her.namespace)


# The owner


def test_who_asks_too_much_at_a_time_waits_his_turn_and_is_answered(alice_there: Person, control_plane: Instance) -> None:
    def planned(number: int) -> Any:
        return alice_there.lattice("plan", "-o", "json", f"--nodes={1 + number % 4}", "--walltime=10m", "--", "true", ok=False)

    def refusals() -> float:
        counted = re.search(REFUSED_PLANS, control_plane.metrics("gateway"))
        return float(counted[1]) if counted else 0.0

    before = refusals()
    with ThreadPoolExecutor(4) as pool:
        control_plane.kill("scheduler", signal.SIGSTOP)  # who answers first takes his time
        try:
            asked = [pool.submit(planned, number) for number in range(4)]
            until(lambda: refusals() > before, within=3, every=0.2, what="somebody who has to wait his turn")
        finally:
            control_plane.kill("scheduler", signal.SIGCONT)
        done = [one.result() for one in asked]
    assert {one.returncode for one in done} <= {0, 3}, [one.stderr for one in done]
    waited = [one.stderr for one in done if "requests POST plan under way (limit: 1): wait for their answers; asking again" in one.stderr]
    assert waited, "four plans at once, and one is answered at a time"


def test_why_says_what_stands_before_it_and_when_it_starts(alice_there: Person, control_plane: Instance) -> None:
    said = alice_there.lattice("why", f"{PRIVATE}-waits").stdout
    assert "WaitingForNodes: needs 4 nodes" in said
    for words in ("Queue:", "Expected start:", "as likely as not, 9 times of 10 by", "Before it, in order:", f"{PRIVATE}-runs"):
        assert words in said, words
    answer = valid(alice_there.lattice("why", f"{PRIVATE}-waits", "-o", "json").stdout)
    holder = next(one for one in answer["blockers"] if one["kind"] == "Holder")
    assert (holder["whose"], holder["nodes"], holder["work"]["name"]) == ("you", len(control_plane.site().nodes) - 1, f"{PRIVATE}-runs")
    assert answer["nodes"]["free"] == 1
    assert answer["expectedStart"]["p50"] <= answer["expectedStart"]["p90"]
    assert {change["kind"]: change["value"] for change in answer["changes"]}["Nodes"] == "1"


def test_what_would_delay_a_reservation_waits_and_the_change_that_is_named_for_it_is_true(alice_there: Person) -> None:
    def planned(walltime: str) -> Any:
        return alice_there.lattice("plan", "-o", "json", "--nodes=1", f"--walltime={walltime}", "--", "true", ok=False)

    longer = planned("1h")
    assert longer.returncode == 3, longer.stdout
    shorter = {change["kind"]: change["value"] for change in valid(longer.stdout)["allocations"][0]["changes"]}["Walltime"]
    assert planned(shorter).returncode == 0, shorter


def test_status_shows_the_expected_start_as_column_and_in_the_object(alice_there: Person) -> None:
    head, *lines = alice_there.lattice("status", "--all").stdout.splitlines()
    assert "START" in head
    waits = next(line for line in lines if f"{PRIVATE}-waits" in line)
    assert re.search(r" (in \S+|now|≤ \S+)(–\S+)? ", waits), waits  # "now": such work of hers has ended early before
    wide = alice_there.kubectl("get", "alloc", f"{PRIVATE}-waits", "-n", alice_there.namespace, "-o", "wide").stdout
    assert "EXPECTED" in wide


def test_plan_exits_with_0_now_3_later_4_never_and_submits_nothing(alice_there: Person, tmp_path: Path) -> None:
    def planned(*words: str, code: int) -> dict[str, Any]:
        done = alice_there.lattice("plan", "-o", "json", "--walltime=10m", *words, "--", "true", ok=False)
        assert done.returncode == code, done.stdout + done.stderr
        one: dict[str, Any] = valid(done.stdout)["allocations"][0]
        return one

    now = planned("--nodes=1", code=0)
    assert (now["verdict"], now["placement"]["count"]) == ("Now", 1)
    assert now["quota"]["nodes"]["after"] == now["quota"]["nodes"]["used"] + 1
    later = planned("--nodes=4", code=3)
    assert later["expectedStart"]["p50"] <= later["expectedStart"]["p90"]
    assert later["queue"]["position"] <= later["queue"]["of"]
    assert planned("--nodes=40", code=4)["reason"] == "NeverFits"
    said = "can never start as things are: NeverFits: needs 1 node, and 0 exist"
    assert said in alice_there.lattice("submit", "--dry-run=server", "--gres=gpu:2", "--walltime=1m", "--", "true").stderr
    assert alice_there.lattice("plan", "--walltime=soon", "--", "true", ok=False).returncode == 2
    assert alice_there.lattice("plan", "--walltime=30d", "--", "true", ok=False).returncode == 1
    manifest = tmp_path / "job.yaml"
    manifest.write_text(alice_there.kubectl("get", "alloc", f"{PRIVATE}-waits", "-n", alice_there.namespace, "-o", "yaml").stdout)
    mine = alice_there.lattice("status", "--all", "-o", "name").stdout
    assert mine == alice_there.lattice("status", "--all", "-o", "name").stdout
    assert len(mine.splitlines()) == 2


def test_queue_shows_order_score_and_the_use_of_nodes_to_come(alice_there: Person) -> None:
    said = alice_there.lattice("queue", "hpc-batch").stdout
    assert all(words in said for words in ("hpc-batch: Backfill", f"{PRIVATE}-waits", "SCORE", "Nodes to come", "runs now")), said
    document = valid(alice_there.lattice("queue", "-o", "json").stdout)
    assert document["timeline"]["nodes"] == 4
    assert document["timeline"]["points"][0]["running"] == 3
    assert alice_there.lattice("queue", "nowhere", ok=False).returncode == 4


# A colleague, a stranger, an administrator


def test_a_colleague_reads_whose_work_it_is(bob_there: Person) -> None:
    answer = valid(bob_there.lattice("why", f"{PRIVATE}-waits", "-o", "json").stdout)
    holder = next(one for one in answer["blockers"] if one["kind"] == "Holder")
    assert (holder["whose"], holder["work"]["user"]) == ("your tenant", "alice")


def test_a_stranger_sees_counts_and_no_name_in_any_output(dora: Person, alice_there: Person, lab: Room) -> None:
    answer = valid(dora.lattice("why", "mine", "-o", "json").stdout)
    holder = next(one for one in answer["blockers"] if one["kind"] == "Holder")
    assert (holder["whose"], holder["nodes"], holder.get("work")) == ("other tenants", 3, None)
    runs = [
        dora.lattice(*words, ok=False)
        for words in (
            ("why", "mine"), ("why", "mine", "-o", "json"), ("queue",), ("queue", "-o", "wide"), ("queue", "-o", "yaml"),
            ("plan", "--nodes=4", "--walltime=1h", "--", "true"), ("plan", "-o", "json", "--nodes=4", "--walltime=1h", "--", "true"),
        )
    ]  # fmt: skip
    for done in runs:
        assert done.returncode in (0, 3), done.stderr
        for name in (PRIVATE, "alice", lab.name):
            assert name not in done.stdout + done.stderr, f"{done.args}: {done.stdout}{done.stderr}"
    assert any("other tenants" in done.stdout for done in runs)


def test_a_stranger_may_not_ask_why_of_others_and_learns_nothing_by_trying(dora: Person, alice_there: Person, lab: Room) -> None:
    refused = dora.lattice("why", f"{lab.namespace}/{PRIVATE}-waits", ok=False)
    missing = dora.lattice("why", f"{lab.namespace}/nothing", ok=False)
    assert refused.returncode == missing.returncode == 5


def test_an_administrator_reads_every_name(control_plane: Instance, alice_there: Person, dora: Person) -> None:
    boss = person(control_plane, "admin", "physics")
    said = boss.lattice("queue").stdout
    assert f"{PRIVATE}-waits" in said
    assert "mine" in said


# The scheduler's own door


def test_an_agents_certificate_is_refused_at_the_schedulers_door(control_plane: Instance) -> None:
    here = control_plane.site()

    def asked(file: str) -> tuple[int, dict[str, Any]]:
        context = ssl.create_default_context(cafile=str(here.authority("agents-ca")))
        context.check_hostname = False
        pair = here.pair("agents-ca", file)
        context.load_cert_chain(str(pair.certificate), str(pair.key))
        connection = http.client.HTTPSConnection("127.0.0.1", here.ports["scheduler"], timeout=60, context=context)
        try:
            connection.request("GET", "/v1/queue?user=alice")
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    status, body = asked(f"agent-{here.nodes[0]}")
    assert (status, body["reason"]) == (403, "NotTheGateway")
    assert asked("gateway")[0] == 200


# Without a scheduler


def test_without_a_scheduler_why_answers_from_the_object_and_says_since_when(control_plane: Instance, lab: Room) -> None:
    me = person(control_plane, "alice", lab.namespace)
    me.apply("never", nodes=40, entrypoint="true")
    until(Seen(lambda: str(me.get("never").get("status")), lambda written: "NeverFits" in written), within=15, every=0.3)
    control_plane.kill("scheduler")
    try:
        at_once = me.lattice("why", "never").stdout
        assert "NeverFits" in at_once
        assert "But " in at_once
        me.apply("late", entrypoint="true")
        assert "NotYetEvaluated" in me.lattice("why", "late").stdout
        said = until(Seen(lambda: me.lattice("why", "never").stdout, lambda said: "silent since" in said), within=40, every=1.0)
        assert "NeverFits: needs 40 nodes" in said
        for words in (("queue",), ("plan", "--walltime=1h", "--", "true")):
            done = me.lattice(*words, ok=False)
            assert (done.returncode, "silent since" in done.stderr) == (6, True)
    finally:
        control_plane.start("scheduler")
    until(lambda: me.lattice("queue", ok=False).returncode == 0, within=40, every=0.5, what="the queue after the return")
