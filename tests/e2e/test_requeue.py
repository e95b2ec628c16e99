"""Control after submission, through the daemons: requeue of what runs and of what has ended, who may, and what may change while it waits."""

from __future__ import annotations

from typing import Any

import pytest

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def attempts(status: dict[str, Any]) -> list[tuple[int, str, int | None]]:
    """Its attempts that ended, with reason and exit code."""
    return [(one["attempt"], one["reason"], one.get("exit", {}).get("code")) for one in status.get("attempts", [])]


def runs_again(me: Person, name: str, attempt: int) -> dict[str, Any]:
    seen = Seen(lambda: me.get(name)["status"], lambda status: status["phase"] == "Running" and status["attempt"] == attempt)
    return dict(until(seen, within=30, what=f"attempt {attempt} of {name}"))


def test_what_runs_is_requeued_once_and_spends_nothing(me: Person) -> None:
    me.apply("twice", entrypoint="sleep 4261.1", lifecycle={"requeue": {"policy": "Never"}})
    first = me.phase("twice", "Running")
    assert "attempt 1 ends" in me.lattice("requeue", "twice").stdout
    status = runs_again(me, "twice", 2)
    assert (attempts(status), status.get("requeues", 0), status["submitTime"]) == ([(1, "Requeued", 143)], 0, first["submitTime"])
    me.kubectl("-n", me.namespace, "patch", "allocation", "twice", "--type=merge", '-p={"spec":{"requeueAttempt":1}}')
    assert me.get("twice")["status"]["attempt"] == 2, "the same wish again ends nothing"
    me.lattice("requeue", "twice", "--hold")
    seen = Seen(lambda: me.get("twice")["status"], lambda status: reason(status, "Scheduled") == "Held")
    assert until(seen, within=30, what="it is held")["attempt"] == 3
    me.lattice("release", "twice")
    runs_again(me, "twice", 3)
    me.lattice("cancel", "twice")
    assert attempts(me.ended("twice")) == [(1, "Requeued", 143), (2, "Requeued", 143)]


def test_a_requeue_holds_whatever_code_the_attempt_ends_with(me: Person) -> None:
    me.apply("clean", script="#!/bin/sh\n[ $LATTICE_ATTEMPT = 2 ] && exit 0\ntrap 'exit 0' TERM\nwhile :; do sleep 0.1; done\n")
    me.phase("clean", "Running")
    me.lattice("requeue", "clean")
    status = me.ended("clean")
    assert (status["phase"], status["attempt"], attempts(status)) == ("Completed", 2, [(1, "Requeued", 0)])


def test_a_wish_that_meets_the_end_is_either_kept_or_refused(me: Person) -> None:
    for place in range(3):
        me.apply(f"race-{place}", entrypoint=f"sleep 1.{place}")
        until(Seen(lambda: me.get(f"race-{place}").get("status", {}), lambda status: "startTime" in status), within=30)  # noqa: B023
        asked = me.kubectl(
            "-n", me.namespace, "patch", "allocation", f"race-{place}", "--type=merge", '-p={"spec":{"requeueAttempt":1}}', ok=False
        )
        status = me.ended(f"race-{place}")
        assert status["phase"] == "Completed"
        if asked.returncode:
            assert ("ended" in asked.stderr, status["attempt"]) == (True, 1), asked.stderr
        else:
            assert (status["attempt"], [why for _, why, _ in attempts(status)]) == (2, ["Requeued"])


def test_ended_work_is_submitted_again_as_an_object_of_its_own(me: Person) -> None:
    me.apply("over", entrypoint="sh -c 'exit 4'", tags={"name": "over"})
    before = me.ended("over")
    name = me.lattice("requeue", "over", "-o", "name").stdout.strip().removeprefix("allocation.lattice.dev/")
    again = me.ended(name)
    assert (again["phase"], again["exit"]["code"]) == ("Failed", 4)
    assert me.get(name)["spec"]["rerunOf"] == str(before["number"])
    assert f"what {before['number']} did" in me.lattice("status", name).stdout
    assert me.get("over")["status"] == before
    late = me.kubectl("-n", me.namespace, "patch", "allocation", "over", "--type=merge", '-p={"spec":{"requeueAttempt":1}}', ok=False)
    assert "ended" in late.stderr, late.stderr


def test_only_the_owner_and_admins_requeue_and_what_waits_has_nothing_to_requeue(me: Person, control_plane: Instance) -> None:
    me.apply("mine", entrypoint="sleep 4261.2")
    me.phase("mine", "Running")
    bob = person(control_plane, "bob", me.namespace)
    refused = bob.lattice("requeue", "mine", ok=False)
    assert (refused.returncode != 0, 'belongs to "alice"' in refused.stderr or "forbidden" in refused.stderr.lower()) == (True, True)
    person(control_plane, "admin", me.namespace).lattice("requeue", "mine")
    runs_again(me, "mine", 2)
    me.apply("waiting", entrypoint="true", hold=True)
    waiting = me.lattice("requeue", "waiting", ok=False)
    assert (waiting.returncode, "it waits already" in waiting.stderr) == (1, True)
    for value, said in (("1", "requeueAttempt"), ("7", "requeueAttempt")):
        patch = f'-p={{"spec":{{"requeueAttempt":{value}}}}}'
        assert said in me.kubectl("-n", me.namespace, "patch", "allocation", "waiting", "--type=merge", patch, ok=False).stderr
    me.lattice("cancel", "mine", "waiting")


def test_times_and_requeue_change_while_it_waits_and_no_longer(me: Person) -> None:
    me.apply("later", entrypoint="sleep 4261.3", lifecycle={"notBefore": "2099-01-01T00:00:00Z"})
    seen = Seen(lambda: me.get("later").get("status", {}), lambda status: reason(status, "Scheduled") == "NotBefore")
    until(seen, within=20, what="it waits for its time")
    me.lattice("update", "later", "--requeue=always", "--max-requeue=7", "--deadline=2099-06-01T00:00:00Z", "--not-before=none")
    me.phase("later", "Running")
    spec = me.get("later")["spec"]["lifecycle"]
    assert (spec["requeue"]["policy"], spec["requeue"]["max"], spec["deadline"]) == ("Always", 7, "2099-06-01T00:00:00Z")
    late = me.lattice("update", "later", "--not-before=now+1hour", ok=False)
    assert (late.returncode, "notBefore" in late.stderr) == (1, True), late.stderr
    me.lattice("cancel", "later")
    me.apply("never", entrypoint="true", hold=True)
    me.lattice("update", "never", "--deadline=2026-01-01T00:00:00Z")
    assert reason(me.ended("never")) == "DeadlineMissed"
