"""Work that waits for other work, through the daemons: each condition, the two modes, what is held, and what outlives its predecessor."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.units import parse_time
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def edge(ref: object, condition: str = "Success", **more: str) -> dict[str, str]:
    return {"ref": str(ref), "condition": condition, **more}


def after(me: Person, name: str, *edges: dict[str, str], work: str = "true", **spec: Any) -> None:
    """Work that depends on other work."""
    me.apply(name, entrypoint=work, dependsOn=list(edges), **spec)


def waits(me: Person, name: str, why: str = "WaitingForDependency") -> str:
    """The sentence with which it waits for this reason."""
    seen = Seen(lambda: me.get(name).get("status", {}), lambda status: reason(status, "Scheduled") == why)
    status = until(seen, within=20, what=f"{name} {why}")
    return next(str(entry["message"]) for entry in status["conditions"] if entry["type"] == "Scheduled")


def answers(status: dict[str, Any]) -> str:
    """The answers of its edges, `.` for an open one."""
    return "".join(one.get("answer", ".") for one in status["edges"])


def number(me: Person, name: str) -> int:
    seen = Seen(lambda: me.get(name).get("status", {}), lambda status: bool(status.get("number")))
    return int(until(seen, within=20)["number"])


def ordered(first: dict[str, Any], then: dict[str, Any]) -> bool:
    """Whether the one had ended when the other got its nodes."""
    return parse_time(first["endTime"]) <= parse_time(then["scheduledTime"])


def test_each_condition_is_answered_by_the_end_of_its_predecessor(me: Person, control_plane: Instance) -> None:
    gate = control_plane.where.user_home("alice") / "dependencies-go"
    gate.unlink(missing_ok=True)
    opened = f"until [ -e {gate} ]; do sleep 0.1; done"
    me.apply("good", entrypoint=f"sh -c '{opened}'")
    me.apply("bad", entrypoint=f"sh -c '{opened}; exit 3'")
    for name, edges in {
        "good-then": [edge("good")], "bad-then": [edge("bad", "Failure")], "good-any": [edge("good", "Any")],
        "bad-any": [edge(number(me, "bad"), "Any")], "both": [edge("good"), edge("bad", "Failure")],
        "skipped": [edge("good", "Failure")], "failed": [edge("bad")], "started": [edge("good", "Started")],
    }.items():  # fmt: skip
        after(me, name, *edges)
    assert f"Success of good ({number(me, 'good')})" in waits(me, "good-then", "WaitingForDependency")
    gate.touch()
    good, bad = me.ended("good"), me.ended("bad")
    for name, before in {"good-then": good, "good-any": good, "bad-then": bad, "bad-any": bad, "both": bad}.items():
        status = me.ended(name)
        assert (status["phase"], set(answers(status))) == ("Completed", {"M"}), (name, status)
        assert ordered(before, status), name
    for name, why, letter in (("skipped", "DependencyNotNeeded", "N"), ("failed", "DependencyFailed", "F")):
        status = me.ended(name)
        assert (status["phase"], reason(status), answers(status), status.get("attempt")) == ("Cancelled", why, letter, None)
    assert me.ended("started")["phase"] == "Completed"
    gate.unlink()


def test_started_with_a_delay_is_released_while_its_predecessor_runs(me: Person) -> None:
    me.apply("server", entrypoint="sleep 4251.1")
    after(me, "client", edge("server", "Started", delay="4s"))
    server, client = me.phase("server", "Running"), me.ended("client")
    assert client["phase"] == "Completed"
    assert parse_time(client["scheduledTime"]) >= parse_time(server["startTime"]) + 4
    assert me.get("server")["status"]["phase"] == "Running"
    me.lattice("cancel", "server")
    after(me, "until-it-succeeds", edge("server", "Failure"))
    me.ended("server")
    assert reason(me.ended("until-it-succeeds")) == "DependencyFailed"  # cancelled is neither


def test_the_first_that_is_met_releases_with_any_and_none_cancels(me: Person) -> None:
    me.apply("long", entrypoint="sleep 4251.2")
    me.apply("short", entrypoint="false")
    after(me, "either", edge("long"), edge("short", "Failure"), dependsOnMode="Any")
    after(me, "neither", edge("short"), edge("long"), dependsOnMode="Any")
    assert me.ended("either")["phase"] == "Completed"
    waits(me, "neither")
    said = " ".join(me.lattice("why", "neither").stdout.split())
    assert "Success of long: open, " in said, said
    assert "is Running" in said, said
    assert "Success of short: never met" in " ".join(me.lattice("status", "neither").stdout.split())
    me.lattice("cancel", "long")
    assert reason(me.ended("neither")) == "DependencyFailed"


def test_what_can_never_be_met_is_held_where_that_is_asked_and_goes_once_it_depends_on_nothing(me: Person) -> None:
    me.apply("broken", entrypoint="false")
    after(me, "kept", edge("broken"), onUnmet="Hold")
    assert "can never be met" in waits(me, "kept", "DependencyFailed")
    me.lattice("update", "kept", "--no-dependencies")
    assert me.ended("kept")["phase"] == "Completed"
    me.apply("whole", entrypoint="true")
    after(me, "unneeded", edge("whole", "Failure"), onUnmet="Hold")
    assert "can never be met" in waits(me, "unneeded", "DependencyNotNeeded")
    me.lattice("cancel", "unneeded")
    assert reason(me.ended("unneeded")) == "Cancelled"


def test_a_chain_runs_in_its_order_and_ends_where_one_fails(me: Person) -> None:
    me.apply("link-0", entrypoint="sleep 1")
    for place in range(1, 5):
        after(me, f"link-{place}", edge(f"link-{place - 1}"))
    ends = [me.ended(f"link-{place}") for place in range(5)]
    assert [status["phase"] for status in ends] == ["Completed"] * 5
    assert all(ordered(*pair) for pair in pairwise(ends))
    me.apply("torn-0", entrypoint="false")
    for place in range(1, 5):
        after(me, f"torn-{place}", edge(f"torn-{place - 1}"))
    after(me, "torn-end", edge("torn-4", "Any"))
    assert [reason(me.ended(f"torn-{place}")) for place in range(1, 5)] == ["DependencyFailed"] * 4
    assert me.ended("torn-end")["phase"] == "Completed"


def test_a_predecessor_that_is_deleted_leaves_its_answer(me: Person) -> None:
    me.apply("gone-good", entrypoint="true")
    me.apply("gone-blocker", entrypoint="sleep 4251.3")
    after(me, "heir", edge("gone-good"), edge("gone-blocker", "Any"))
    known = number(me, "gone-good")
    assert me.ended("gone-good")["phase"] == "Completed"
    me.kubectl("-n", me.namespace, "delete", "allocation", "gone-good")
    assert answers(me.get("heir")["status"]) == "M."
    after(me, "late-heir", edge(known), edge("gone-good"))  # by its usage record alone
    assert me.ended("late-heir")["phase"] == "Completed"
    me.kubectl("-n", me.namespace, "delete", "allocation", "gone-blocker")  # while it runs
    assert (me.ended("heir")["phase"], answers(me.get("heir")["status"])) == ("Completed", "MM")


def test_answers_survive_scheduler_and_operator(me: Person, control_plane: Instance, gate: Gate) -> None:
    me.apply("before", entrypoint=gate.command)
    me.apply("other", entrypoint="sleep 4251.4")
    after(me, "then", edge("before"))
    after(me, "join", edge("before"), edge("other", "Any"))
    me.phase("before", "Running")
    for component in ("scheduler", "operator"):
        control_plane.kill(component)
    gate.open()
    try:
        seen = Seen(lambda: me.get("before")["status"], lambda status: status["phase"] == "Completed")
        until(seen, within=30, what="its end, told by its node")
        me.kubectl("-n", me.namespace, "delete", "allocation", "before", "--wait=false")
    finally:
        for component in ("scheduler", "operator"):
            control_plane.start(component)
    assert me.ended("then", within=60)["phase"] == "Completed"
    me.kubectl("-n", me.namespace, "wait", "--for=delete", "allocation/before", "--timeout=600s")
    assert answers(me.get("join")["status"]) == "M."
    control_plane.kill("scheduler")
    control_plane.start("scheduler")
    me.lattice("cancel", "other")
    assert (me.ended("join", within=60)["phase"], answers(me.get("join")["status"])) == ("Completed", "MM")


def test_people_and_scripts_say_it_as_they_do_for_slurm(me: Person, tmp_path: Path) -> None:
    first = me.lattice("submit", "--parsable", "--name=first", "--", "sleep", "2").stdout.strip()
    script = tmp_path / "then.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH -J then -t 5 --dependency=afterok:{first}?afternotok:{first}\nhostname\n")
    then = me.lattice("submit", "--parsable", "--chdir=/tmp", "--stdout=", str(script)).stdout.strip()
    last = me.lattice("submit", "--parsable", "--walltime=5m", f"--depends-on={first}:success,{then}:any", "--", "true").stdout.strip()
    said = " ".join(me.lattice("why", last).stdout.split())
    assert "WaitingForDependency" in said or "Completed" in said, said
    assert me.lattice("wait", last).returncode == 0
    unknown = me.lattice("submit", "--dependency=afterok:999999999", "--", "true", ok=False)
    assert (unknown.returncode, "number 999999999" in unknown.stderr) == (1, True), unknown.stderr


def test_work_of_one_mutex_runs_one_at_a_time_in_order_of_submission_and_other_work_beside_it(me: Person, control_plane: Instance) -> None:
    log = control_plane.where.user_home("alice") / "mutex-log"
    log.unlink(missing_ok=True)
    for place in range(4):
        work = f"sh -c 'echo in-{place} >> {log}; sleep 0.7; echo out-{place} >> {log}'"
        after(me, f"mutex-{place}", edge("tape", "Mutex"), work=work)
        number(me, f"mutex-{place}")
    me.apply("beside", entrypoint="true")
    assert me.ended("beside")["phase"] == "Completed"
    ends = [me.ended(f"mutex-{place}", within=60) for place in range(4)]
    assert [(status["phase"], answers(status)) for status in ends] == [("Completed", "M")] * 4
    assert all(ordered(*pair) for pair in pairwise(ends))
    assert log.read_text().split() == [f"{word}-{place}" for place in range(4) for word in ("in", "out")]
    log.unlink()


def test_a_mutex_stays_with_work_that_is_requeued_and_with_what_is_still_ending(me: Person) -> None:
    after(me, "owner", edge("disk", "Mutex"), work="sleep 4251.6")
    me.phase("owner", "Running")
    after(me, "heir-of-disk", edge("disk", "Mutex"))
    assert "mutex disk" in waits(me, "heir-of-disk")
    me.lattice("requeue", "owner")
    seen = Seen(lambda: me.get("owner")["status"], lambda status: status["phase"] == "Running" and status["attempt"] == 2)
    until(seen, within=30, what="its second attempt")
    assert me.get("heir-of-disk")["status"]["phase"] == "Pending"
    assert "Mutex disk: open" in " ".join(me.lattice("why", "heir-of-disk").stdout.split())
    me.lattice("cancel", "owner")
    owner, heir = me.ended("owner"), me.ended("heir-of-disk")
    assert (heir["phase"], ordered(owner, heir)) == ("Completed", True)


def test_two_singletons_of_slurms_scripts_run_one_after_the_other(me: Person, tmp_path: Path) -> None:
    script = tmp_path / "single.sh"
    script.write_text("#!/bin/sh\n#SBATCH -J Only_One -t 5 -d singleton\nsleep 1\n")
    pair = [me.lattice("submit", "--parsable", "--chdir=/tmp", "--stdout=", str(script)).stdout.strip() for _ in range(2)]
    assert me.lattice("wait", *pair).returncode == 0
    first, then = (json.loads(me.lattice("status", one, "-o", "json").stdout) for one in pair)
    assert parse_time(first["status"]["endTime"]) <= parse_time(then["status"]["scheduledTime"])
    other = me.lattice("submit", "--depends-on=tape:mutex?1:any", "--", "true", ok=False)
    assert (other.returncode != 0, "always needed" in other.stderr) == (True, True), other.stderr


BAD: dict[str, tuple[list[dict[str, str]], tuple[str, ...]]] = {
    "itself": ([edge("self")], ("spec.dependsOn[0].ref", "this work itself")),
    "nobody": ([edge("nobody")], ("spec.dependsOn[0].ref", "has the name")),
    "a number never given": ([edge("999999999")], ("spec.dependsOn[0].ref", "number 999999999")),
    "an element": ([edge("12_3")], ("spec.dependsOn[0].ref", "not served")),
    "a mutex of no name": ([edge("12", "Mutex")], ("spec.dependsOn[0].ref", "names no mutex")),
    "nine mutexes": ([edge(f"m-{one}", "Mutex") for one in range(9)], ("spec.dependsOn", "9 mutexes", "limit: 8")),
    "corresponding": ([edge("good", "Corresponding")], ("spec.dependsOn", "Corresponding", "task groups")),
    "no reference": ([edge("A b")], ("spec.dependsOn[0].ref",)),
    "no delay": ([edge("good", delay="soon")], ("spec.dependsOn[0].delay",)),
    "too long a delay": ([edge("good", delay="367d")], ("spec.dependsOn[0].delay", "366d")),
    "too many": ([edge(f"x-{one}") for one in range(1001)], ("spec.dependsOn", "1001", "1000")),
}


@pytest.mark.parametrize(("edges", "said"), BAD.values(), ids=BAD.keys())
def test_bad_edges_are_refused_with_their_field(me: Person, edges: list[dict[str, str]], said: tuple[str, ...]) -> None:
    refused = me.apply("self", entrypoint="true", dependsOn=edges, ok=False)
    assert refused.returncode, refused
    assert all(word in refused.stderr for word in said), refused.stderr


def test_work_of_another_tenant_is_as_unknown_as_what_does_not_exist(me: Person, control_plane: Instance, tenant: Room) -> None:
    theirs = person(control_plane, "alice", tenant.namespace)
    theirs.apply("secret", entrypoint="true")
    given = number(theirs, "secret")
    for ref in (str(given), f"{tenant.namespace}/secret"):
        refused = me.apply("spy", entrypoint="true", dependsOn=[edge(ref)], ok=False)
        assert "no work of tenant" in refused.stderr, refused.stderr


def test_with_the_webhook_away_what_nobody_knows_or_another_tenant_has_holds_work(
    me: Person, control_plane: Instance, tenant: Room
) -> None:
    theirs = person(control_plane, "alice", tenant.namespace)
    theirs.apply("secret", entrypoint="true")
    given = number(theirs, "secret")
    filled = {"user": "alice", "tenant": me.namespace, "vcluster": "hpc-batch"}
    control_plane.kill("webhook", signal.SIGSTOP)
    try:
        after(me, "ghosts", edge("ghost"), **filled)
        after(me, "thief", edge(given, "Any"), edge(f"{tenant.namespace}/secret", "Any"), **filled)
        after(me, "narcissus", edge("narcissus", "Any"), **filled)
    finally:
        control_plane.kill("webhook", signal.SIGCONT)
    theirs.ended("secret")
    for name in ("ghosts", "thief", "narcissus"):
        assert "nobody knows" in waits(me, name, "DependencyLost")
        assert "attempt" not in me.get(name)["status"]
    me.lattice("cancel", "ghosts", "thief", "narcissus")


def test_edges_are_fixed_and_a_service_is_warned_of(me: Person, admin: BlockingCluster) -> None:
    me.apply("service", entrypoint="sleep 4251.5", lifecycle={"type": "Unbounded"}, walltime="1h")
    warned = me.apply("follower", entrypoint="true", dependsOn=[edge("service")])
    assert "does not end by itself" in warned.stderr
    changed = me.apply("follower", entrypoint="true", dependsOn=[edge("service", "Any")], ok=False)
    assert "spec.dependsOn" in changed.stderr
    me.lattice("cancel", "service", "follower")
    me.ended("service")
