"""`why`, `plan` and `queue` against a gateway that answers, that is away, or that sends nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lattice.cli.stream import error_of
from lattice.errors import Denied, NotFound, Retry, TooMany
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, LEASES
from lattice.scheduling.queries.answers import (
    PLAN_SCHEMA,
    QUEUE_SCHEMA,
    WHY_SCHEMA,
    Blocker,
    Change,
    Entry,
    ExpectedStart,
    Group,
    Part,
    Placement,
    Plan,
    Planned,
    Point,
    Position,
    Queue,
    Queues,
    Timeline,
    Why,
    Work,
)
from tests.schemas import valid
from tests.unit.cli.conftest import COMPLETED, FAILED, RUNNING, WAITING, Bench, ago, said

ME = Work(namespace="physics", name="b", number=2, uid="u", user="alice", job="train")
WHY = Why(
    schema=WHY_SCHEMA,
    allocation=ME,
    reason="WaitingForNodes",
    message="needs 4 nodes; of 8 that fit, 2 are free, 6 in use",
    at=ago(0),
    queue=Position(vcluster="hpc-batch", position=3, of=12),
    blockers=[
        Blocker(kind="Holder", nodes=2, allocations=1, whose="your tenant", work=Work(namespace="physics", name="r", number=1, user="bob"),
                since=ago(3600), until=ago(-1800)),
        Blocker(kind="Holder", nodes=136, allocations=7, whose="other tenants", since=ago(86400), until=ago(-7200), first=ago(-60)),
    ],
    expected_start=ExpectedStart(p50=ago(-720), p90=ago(-4620)),
    changes=[Change(kind="Nodes", value="2", text="2 nodes instead of 4")],
)  # fmt: skip


@pytest.fixture
def desk(bench: Bench) -> Bench:
    """A cluster with a gateway and a scheduler that lives."""
    body = {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://gateway:8443", "ca": ""}}
    bench.cluster.create(CONFIG_MAPS, body, "lattice-system", type=dict[str, Any])
    alive(bench, 0)
    return bench


def alive(bench: Bench, seconds: float) -> None:
    spec = {"holderIdentity": "vm-1", "leaseDurationSeconds": 15, "renewTime": ago(seconds)}
    bench.cluster.create(LEASES, {"metadata": {"name": "lattice-scheduler"}, "spec": spec}, "lattice-system", type=dict[str, Any])


def answers(bench: Bench, answer: Part) -> None:
    bench.records = [msgspec.json.encode(answer)]


# why


def test_why_says_place_start_blockers_and_changes(desk: Bench) -> None:
    desk.allocation("b", number=2, status=WAITING)
    answers(desk, WHY)
    result = desk.run("why", "2")
    assert result.code == 0
    assert desk.questions == ["/v1/why/physics/b"]
    lines = result.out.splitlines()
    assert lines[0] == f"Allocation 2 (physics/b) is Pending since {ago(300)} (5m)"
    assert lines[1] == "  WaitingForNodes: needs 4 nodes; of 8 that fit, 2 are free, 6 in use"
    assert [line.split() for line in lines if "136" in line] == [
        ["other", "tenants", "7", "allocations", "136", "1d", "ago", "first", "in", "1m,", "all", "in", "2h"]
    ]
    text = " ".join(result.out.split())
    assert "Queue: 3 of 12 in hpc-batch" in text
    assert f"{ago(-720)} (in 12m) as likely as not, 9 times of 10 by {ago(-4620)} (in 1h17m)" in text
    assert "your tenant 1 physics/r of bob 2 1h ago in 30m" in text
    assert "It would start now with: 2 nodes instead of 4" in text
    assert lines[-1] == "  Next: wait, or ask for fewer nodes"


def test_why_as_a_document_has_the_published_schema_with_and_without_the_scheduler(desk: Bench) -> None:
    desk.allocation("b", number=2, status=WAITING)
    answers(desk, WHY)
    document = valid(desk.run("why", "2", "-o", "json").out)
    assert (document["phase"], document["queue"]["position"], document["blockers"][1]["nodes"]) == ("Pending", 3, 136)
    assert document["nextStep"] == "wait, or ask for fewer nodes"
    desk.gateway_fails = Retry("the gateway cannot be reached", reason="GatewayUnreachable")
    document = valid(desk.run("why", "2", "-o", "json").out)
    assert "queue" not in document
    assert document["scheduler"]["message"] == "only the object was asked: the gateway cannot be reached"


def test_why_says_what_ended_the_last_attempt_while_the_next_one_is_delayed(desk: Bench) -> None:
    failed = {"attempt": 1, "reason": "PrologueFailed", "nodes": "nid001", "endTime": ago(30), "message": "the device x is unknown"}
    delayed = said("Scheduled", "False", "RetryBackOff", "the next attempt follows in 19s", before=30)
    desk.allocation("b", number=2, status={"phase": "Pending", "attempts": [failed], "conditions": [delayed]})
    answers(desk, msgspec.structs.replace(WHY, reason="RetryBackOff", message="the next attempt follows in 18s"))
    text = " ".join(desk.run("why", "2").out.split())
    assert "the next attempt follows in 18s; attempt 1: PrologueFailed, on nid001, never started, ended" in text
    assert "the device x is unknown" in text
    assert "the device x is unknown" in desk.run("status", "2").out


def test_without_the_scheduler_the_object_answers_and_says_since_when_it_is_silent(bench: Bench) -> None:
    alive(bench, 90)
    bench.allocation("b", number=2, status=WAITING)
    result = bench.run("why", "2")
    assert result.code == 0
    assert "WaitingForNodes: 4 nodes fit, 2 are free" in result.out
    assert f"But the scheduler is silent since {ago(90)} (90 s): nothing is placed until it is back" in result.out
    assert valid(bench.run("why", "2", "-o", "json").out)["scheduler"]["silentSince"] == ago(90)


@pytest.mark.parametrize(
    "error",
    [Denied("you may not", reason="AllocationForbidden"), NotFound("gone", reason="GatewayUnknown"), Retry("busy")],
    ids=["denied", "no gateway", "busy"],
)
def test_why_answers_from_the_object_whatever_the_gateway_says(desk: Bench, error: Exception) -> None:
    desk.allocation("b", number=2, status=WAITING)
    desk.gateway_fails = error  # type: ignore[assignment]
    result = desk.run("why", "2")
    assert (result.code, "4 nodes fit, 2 are free" in result.out) == (0, True)


def test_nonsense_from_the_gateway_is_no_answer(desk: Bench) -> None:
    desk.allocation("b", number=2, status=WAITING)
    desk.records = [b'{"schema": "lattice.dev/why/v9"}']
    result = desk.run("why", "2")
    assert (result.code, "only the object was asked" in result.out) == (0, True)
    assert desk.run("queue").code == 6


def test_what_runs_or_has_ended_is_not_asked_of_the_scheduler(desk: Bench) -> None:
    desk.allocation("a", number=1, status=RUNNING)
    desk.allocation("b", number=2, status=COMPLETED)
    assert (desk.run("why", "1").code, desk.run("why", "2").code, desk.questions) == (0, 0, [])


def test_what_to_do_next_is_a_command_with_the_number(bench: Bench) -> None:
    bench.allocation("f", number=8, status=FAILED)
    assert "Next: `lattice logs 8`" in bench.run("why", "8").out
    bench.allocation("h", number=9, status={"phase": "Pending", "conditions": [said("Scheduled", "False", "Held", "spec.hold is set")]})
    assert "Next: `lattice release 9`" in bench.run("why", "9").out


@pytest.mark.parametrize(
    ("message", "shown"),
    [("cancelled: wrong input", "Cancelled: wrong input"), ("cancelled", "Cancelled: its owner, or an admin, cancelled or deleted it")],
)
def test_cancelled_is_said_once(bench: Bench, message: str, shown: str) -> None:
    bench.allocation("c", number=3, status={"phase": "Cancelled", "conditions": [said("Finished", "True", "Cancelled", message)]})
    assert bench.run("why", "3").out.splitlines()[1] == f"  {shown}"


# plan


def planned(verdict: Any, **fields: Any) -> Planned:
    return Planned(allocation=Work(namespace="physics", name="x"), verdict=verdict, **fields)


NOW_PLAN = planned("Now", placement=Placement(nodes="nid[001-004]", count=4, groups=[Group(name="g0", nodes=3), Group(name="g1", nodes=1)]))


@pytest.mark.parametrize(
    ("plans", "code"),
    [(["Now"], 0), (["Later"], 3), (["Never"], 4), (["Now", "Later"], 3), (["Never", "Later", "Now"], 4)],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_the_exit_code_of_plan_is_0_now_3_later_4_never(desk: Bench, plans: list[str], code: int) -> None:
    answers(desk, Plan(schema=PLAN_SCHEMA, at=ago(0), allocations=[planned(verdict, reason="R", message="m") for verdict in plans]))
    assert desk.run("plan", "--nodes=4", "--walltime=1h", "--", "true").code == code


def test_plan_sends_what_the_server_would_store_and_stores_nothing(desk: Bench) -> None:
    answers(desk, Plan(schema=PLAN_SCHEMA, at=ago(0), allocations=[NOW_PLAN]))
    result = desk.run("plan", "-q", "--nodes=4", "--walltime=1h", "--", "true")
    assert result.out.splitlines()[:2] == ["physics/x starts now", "  Nodes:  nid[001-004]: 4 nodes in 2 groups (g0: 3, g1: 1)"]
    sent = json.loads(desk.bodies[0] or b"")
    assert (sent["optimal"], sent["allocations"][0]["spec"]["resources"]) == (False, {"nodes": 4})
    assert sent["allocations"][0]["metadata"] == {"name": "true-x7k2p", "namespace": "physics"}
    assert desk.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items == []


def test_plan_takes_a_manifest_also_of_what_is_submitted_already(desk: Bench, tmp_path: Path) -> None:
    desk.allocation("there", number=1)
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        "apiVersion: lattice.dev/v1alpha1\nkind: Allocation\nmetadata: {name: there}\n"
        'spec: {entrypoint: "true", resources: {nodes: 2}, lifecycle: {walltime: 1h}}\n'
    )
    answers(desk, Plan(schema=PLAN_SCHEMA, at=ago(0), allocations=[NOW_PLAN]))
    assert desk.run("plan", str(manifest)).code == 0
    assert json.loads(desk.bodies[0] or b"")["allocations"][0]["metadata"]["name"] == "there"
    document = valid(desk.run("plan", "-f", str(manifest), "-o", "json").out)
    assert document["allocations"][0]["verdict"] == "Now"


def test_a_server_dry_run_warns_of_what_plan_says_can_never_start_and_needs_no_answer(desk: Bench) -> None:
    never = planned("Never", reason="NeverFits", message="no node has 2 GPUs")
    answers(desk, Plan(schema=PLAN_SCHEMA, at=ago(0), allocations=[never]))
    result = desk.run("submit", "--dry-run=server", "--walltime=1h", "--", "true")
    assert (result.code, "can never start as things are: NeverFits: no node has 2 GPUs" in result.err) == (0, True)
    desk.gateway_fails = Retry("the gateway is away", reason="NoConnection")
    assert desk.run("submit", "--dry-run=server", "--walltime=1h", "--", "true").err == ""


def test_submit_warns_of_what_never_starts_and_why_names_the_next_step(desk: Bench) -> None:
    beyond = "waiting for quota headroom: user would exceed limits.maxNodesPerUser; more than the limit itself: it never starts"
    for reason, message in (("NeverFits", "no node has 2 GPUs"), ("WaitingForQuotaHeadroom", beyond)):
        desk.random = f"a{len(message)}"
        waits = {"number": len(message), "phase": "Pending", "conditions": [said("Scheduled", "False", reason, message)]}
        desk.at(0.1, lambda waits=waits: desk.report(f"true-{desk.random}", waits))  # type: ignore[misc]
        result = desk.run("submit", "--walltime=1h", "--", "true")
        assert (result.code, f"Warning: it can never start as things are: {reason}: {message}\n" in result.err) == (0, True)
    desk.gateway_fails = Retry("away", reason="NoConnection")
    assert "ask for less, or for a higher limit" in desk.run("why", str(len(beyond))).out


ABOVE = "8 nodes are asked for and the cluster has 4: the allocation waits with reason NeverFits until enough nodes join"


def test_submit_warns_once_where_server_and_scheduler_say_the_same(desk: Bench) -> None:
    desk.cluster.warnings = [ABOVE]
    waits = {"number": 7, "phase": "Pending", "conditions": [said("Scheduled", "False", "NeverFits", "needs 8 nodes, 4 exist")]}
    desk.at(0.1, lambda: desk.report(f"true-{desk.random}", waits))
    submitted = desk.run("submit", "--nodes=8", "--walltime=1h", "--", "true")
    assert (submitted.code, [line for line in submitted.err.splitlines() if "Warning" in line]) == (0, [f"Warning: {ABOVE}"])
    answers(desk, Plan(schema=PLAN_SCHEMA, at=ago(0), allocations=[planned("Never", reason="NeverFits", message="needs 8 nodes")]))
    desk.random = "other"
    dry = desk.run("submit", "--dry-run=server", "--nodes=8", "--walltime=1h", "--", "true")
    assert (dry.code, [line for line in dry.err.splitlines() if "Warning" in line]) == (0, [f"Warning: {ABOVE}"])


def test_submit_warns_of_another_reason_than_the_server_has_named(desk: Bench) -> None:
    desk.cluster.warnings = [ABOVE]
    waits = {"number": 7, "phase": "Pending", "conditions": [said("Scheduled", "False", "NotAdmitted", "its tenant is gone")]}
    desk.at(0.1, lambda: desk.report(f"true-{desk.random}", waits))
    assert "never start as things are: NotAdmitted" in desk.run("submit", "--nodes=8", "--walltime=1h", "--", "true").err


def test_plan_refuses_bad_input_as_submit_does(desk: Bench) -> None:
    assert desk.run("plan", "--walltime=soon", "--", "true").code == 2
    assert desk.run("plan", "--walltime=1h").code == 2
    desk.cluster.fake.fail(Denied('admission webhook "v" denied the request: no', reason="QuotaExceeded"), verb="create")
    assert desk.run("plan", "--walltime=1h", "--", "true").code == 1
    assert desk.bodies == []


def test_plan_and_queue_without_a_scheduler_say_since_when(bench: Bench) -> None:
    body = {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://gateway:8443", "ca": ""}}
    bench.cluster.create(CONFIG_MAPS, body, "lattice-system", type=dict[str, Any])
    alive(bench, 120)
    bench.gateway_fails = Retry("the scheduler does not answer", reason="SchedulerSilent")
    for argv in (("plan", "--walltime=1h", "--", "true"), ("queue",)):
        result = bench.run(*argv)
        assert (result.code, f"silent since {ago(120)}" in result.err) == (6, True)


def test_who_asks_too_much_at_a_time_waits_and_asks_again(desk: Bench) -> None:
    answers(desk, QUEUES)
    desk.gateway_fails = TooMany("8 requests are under way", reason="TooManyQuestions", after_seconds=2)

    def free() -> None:
        desk.gateway_fails = None

    desk.at(5, free)
    begun = desk.time
    result = desk.run("queue", "--no-timeline")
    assert (result.code, len(desk.paths), result.err.count("Note: 8 requests are under way; asking again for 40 s")) == (0, 3, 1)
    assert desk.time == begun + 6, "2 s, then 4 s"
    desk.gateway_fails = TooMany("8 requests are under way", reason="TooManyQuestions")
    begun = desk.time
    result = desk.run("queue")
    assert (result.code, "8 requests are under way" in result.err) == (6, True)
    assert 20 < desk.time - begun <= 40


def test_429_says_when_to_ask_again() -> None:
    error = error_of(429, b'{"reason": "TooManyQuestions", "message": "wait"}', "https://gateway", "3")
    assert isinstance(error, TooMany)
    assert (error.message, error.reason, error.after_seconds) == ("wait", "TooManyQuestions", 3.0)


# queue

QUEUES = Queues(
    schema=QUEUE_SCHEMA,
    at=ago(0),
    vclusters=[
        Queue(
            vcluster="hpc-batch", policy="Backfill", pending=9, depth=10,
            entries=[
                Entry(position=1, whose="other tenants", nodes=136, count=7),
                Entry(position=8, whose="you", nodes=4, maximum=8, work=ME, walltime="1h", preemption_class=5, submitted=ago(600),
                      reason="WaitingForNodes", expected_start=ExpectedStart(p50=ago(-720), p90=ago(-4620))),
            ],
            left_out=1,
        )
    ],
    timeline=Timeline(nodes=8, step_seconds=60, points=[Point(at=ago(-60 * at), running=8 - at, planned=1, reserved=0) for at in range(8)]),
)  # fmt: skip


def test_queue_shows_the_order_with_others_in_counts(desk: Bench) -> None:
    answers(desk, QUEUES)
    result = desk.run("queue", "hpc-batch", "--no-timeline")
    assert desk.paths == ["/v1/queue/hpc-batch?namespaces=physics"]
    lines = result.out.splitlines()
    assert lines[0] == "hpc-batch: Backfill, 9 pending, the first 10 that are blocked hold reservations"
    assert lines[2].split() == ["1-7", "—", "other", "tenants:", "7", "allocations", "—", "136", "—", "—", "—", "—", "—"]
    assert lines[3].split() == ["8", "2", "b", "alice", "4-8", "01:00:00", "5", "10m", "in", "12m–1h17m", "WaitingForNodes"]
    assert lines[4] == "… and 1 more; --limit shows more of them"


def test_queue_as_a_document_has_the_published_schema(desk: Bench) -> None:
    answers(desk, QUEUES)
    assert valid(desk.run("queue", "-o", "json").out)["vclusters"][0]["entries"][0]["nodes"] == 136
    assert desk.run("queue", "-o", "yaml").out.startswith("schema: lattice.dev/queue/v1\n")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_timeline_fits_the_terminal_and_has_colours_only_there(desk: Bench, columns: int) -> None:
    answers(desk, QUEUES)
    desk.columns = columns
    plot = [line for line in desk.run("queue", "--no-color").out.splitlines() if "┤" in line or "└" in line]
    assert len(plot) == 9
    assert all(len(line) <= columns for line in plot)
    assert "\x1b[32m" in desk.run("queue").out
    desk.columns = 0
    assert "\x1b[" not in desk.run("queue").out


def test_watch_goes_on_until_it_is_interrupted(desk: Bench) -> None:
    answers(desk, QUEUES)

    def interrupt() -> None:
        raise KeyboardInterrupt

    desk.at(9, interrupt)
    result = desk.run("queue", "--watch")
    assert (result.code, result.out.count("hpc-batch: Backfill")) == (0, 2)


def test_a_limit_that_is_none_is_bad_input(desk: Bench) -> None:
    assert desk.run("queue", "--limit=all").code == 2


# status


def test_status_shows_the_expected_start_of_what_is_pending(bench: Bench) -> None:
    bench.allocation("a", number=1, status={**WAITING, "expectedStart": {"p50": ago(-720), "p90": ago(-4620)}})
    bench.allocation("b", number=2, status={**RUNNING, "expectedStart": {"p50": ago(300)}})
    head, first, second = bench.run("status").out.splitlines()
    assert "START" in head
    assert "in 12m–1h17m" in first
    assert "ago" not in second
    assert f"Expected start:  {ago(-720)} (in 12m) as likely as not" in " ".join(
        line for line in bench.run("status", "1").out.splitlines() if "Expected" in line
    )


def test_without_any_forecast_the_column_vanishes(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    assert "START" not in bench.run("status").out
