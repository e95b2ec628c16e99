"""What people are told of a node and of an attempt on it, through the gateway: `lattice node status`, `lattice diag`, metrics of agents."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room, room
from tests.e2e.people import Person, person
from tests.e2e.test_identities import outsider
from tests.e2e.waiting import until

WIDTH = 100


@pytest.fixture
def me(control_plane: Instance, tenant: Room) -> Person:
    """alice, in a tenant of this test, at a terminal of 100 columns."""
    made = person(control_plane, "alice", tenant.namespace)
    made.environ["COLUMNS"] = str(WIDTH)
    return made


@pytest.fixture
def stranger(control_plane: Instance, admin: BlockingCluster, tmp_path: Path) -> Iterator[Person]:
    """Somebody of another tenant."""
    with room(admin) as other:
        yield outsider(control_plane, admin, "carol", other, tmp_path)


def run_on(me: Person, name: str, node: str, script: str) -> None:
    me.apply(
        name, script=f"#!/bin/bash\n{script}\n", resources={"constraints": {"nodeList": node}},
        environment={"variables": {"TOKEN": "hunter2-of-diag"}},
    )  # fmt: skip
    me.phase(name, "Running")


def assert_fits(me: Person, *pages: tuple[str, ...]) -> None:
    """Nothing is wider than the terminal, and with -o wide, nothing is cut."""
    for words in pages:
        for columns in (80, 100):
            lines = me.terminal(columns, *words).splitlines()
            assert [line for line in lines if len(line) > columns] == [], words
        assert "…" not in me.terminal(80, *words, "-o", "wide"), words


def test_a_node_tells_whose_work_it_runs_with_steps_limits_and_mounts_and_hides_that_of_strangers(me: Person, stranger: Person) -> None:
    run_on(me, "shown", "nid002", "sleep 3600")
    until(lambda: "/dev/shm" in me.lattice("node", "status", "nid002").stdout, within=20, what="the mounts of the work")
    page = me.lattice("node", "status", "nid002").stdout
    assert max(len(line) for line in page.splitlines()) <= WIDTH, page
    for words in (
        "State:",
        "Ready",
        "Heartbeat:",
        "Reserved:",
        "Cgroups:",
        "Cache:",
        "Scratch:",
        "CONDITION",
        f"{me.namespace}/shown, attempt 1: Running",
    ):
        assert words in page, page
    assert all(step in page for step in ("probe", "scope", "Limits:"))
    assert_fits(me, ("node", "status", "nid002"), ("diag", "nid002"), ("diag", "shown"), ("status", "shown"), ("history",))
    document = json.loads(me.lattice("node", "status", "nid002", "-o", "json").stdout)
    (attempt,) = document["report"]["attempts"]
    assert (attempt["namespace"], attempt["name"], attempt["stage"]) == (me.namespace, "shown", "Running")
    assert all(step["done"] >= step["begun"] > 0 for step in attempt["steps"])
    assert {"pids", "memory"} <= attempt["limits"].keys()
    assert {mount["target"] for mount in attempt["mounts"]} >= {"/tmp", "/dev/shm"}
    others = stranger.lattice("node", "status", "nid002").stdout
    assert "0 shown, 1 of work that you may not see" in others
    assert me.namespace not in others
    assert stranger.lattice("diag", f"{me.namespace}/shown", ok=False).returncode != 0
    me.lattice("cancel", "shown")
    me.ended("shown")


def test_the_page_for_a_ticket_holds_the_attempt_and_its_last_words_and_no_secret(me: Person, control_plane: Instance) -> None:
    me.apply(
        "ticket", entrypoint="sh -c 'echo last words >&2; sleep 1; exit 3' hunter2-of-diag",
        environment={"variables": {"TOKEN": "hunter2-of-diag"}}, lifecycle={"requeue": {"policy": "Never"}},
    )  # fmt: skip
    me.ended("ticket")
    page = me.lattice("diag", "ticket").stdout
    assert max(len(line) for line in page.splitlines()) <= WIDTH, page
    for words in ("Exit:", "Asks for:", "variables TOKEN", "CONDITION", "Finished", "Attempt 1 on its nodes:", "last words", "SINCE"):
        assert words in page, page
    document = me.lattice("diagnostics", "ticket", "-o", "json").stdout
    assert "hunter2-of-diag" not in page + document
    read = json.loads(document)
    assert read["nodes"]["output"][0]["lines"] == ["last words"]
    assert read["allocation"]["spec"]["program"] == "sh"
    bob = person(control_plane, "bob", me.namespace)
    shown = bob.lattice("diag", "ticket").stdout
    assert "is not the work of" in shown
    assert "last words" not in shown
    node = me.lattice("diag", "nid002").stdout
    assert "CONDITION" in node


def test_a_silent_agent_holds_a_page_up_for_three_seconds(me: Person, control_plane: Instance) -> None:
    run_on(me, "quiet", "nid003", "sleep 3600")
    agent = control_plane.pid("agent-nid003")
    os.kill(agent, signal.SIGSTOP)
    try:
        page = me.lattice("diag", "quiet").stdout
        assert "nid003" in page
        assert "within 3 s" in page
        assert "within 3 s" in me.lattice("node", "status", "nid003").stdout
    finally:
        os.kill(agent, signal.SIGCONT)
    me.lattice("cancel", "quiet")
    me.ended("quiet")
