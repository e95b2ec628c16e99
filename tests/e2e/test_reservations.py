"""Nodes that are set aside in advance: by operators, through the daemons, for maintenance and for some people's work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import RESERVATIONS
from lattice_dev.instance import Instance
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until

ALL = "nid[001-004]"


@dataclass
class Operator:
    """olga, who reserves nodes; what the scheduler makes of it is read as the administrator."""

    person: Person
    admin: BlockingCluster

    @property
    def lattice(self) -> Callable[..., subprocess.CompletedProcess[str]]:
        """The program, as olga."""
        return self.person.lattice

    def reserve(self, name: str, *flags: str) -> None:
        """Make one, and wait until the scheduler has judged it."""
        assert self.lattice("reservation", "create", name, *flags).stdout == f"Created reservation {name}\n"
        self.status(name)

    def status(self, name: str, state: str = "") -> dict[str, Any]:
        """Its status, once it has a state, or this one."""

        def look() -> dict[str, Any]:
            return self.admin.get(RESERVATIONS, name).get("status") or {}

        return until(Seen(look, lambda seen: bool(seen.get("state")) and state in ("", seen["state"])), within=15, what=f"{name} {state}")


@pytest.fixture(scope="module")
def olga(control_plane: Instance, admin: BlockingCluster) -> Operator:
    """An operator."""
    control_plane.add_user("olga", "operations", "operator")
    return Operator(person(control_plane, "olga", "operations"), admin)


@pytest.fixture(autouse=True)
def nothing_reserved(admin: BlockingCluster) -> Iterator[None]:
    """No reservation outlasts its test."""
    yield
    for item in admin.list(RESERVATIONS).items:
        admin.delete(RESERVATIONS, item["metadata"]["name"])
    until(lambda: not admin.list(RESERVATIONS).items, within=10)


def why_waits(me: Person, name: str) -> str:
    return until(lambda: reason(me.get(name).get("status", {}), "Scheduled"), within=15)


def test_an_operator_makes_lists_shows_and_deletes_reservations(olga: Operator) -> None:
    olga.reserve("maint-42", "--nodes", ALL, "--start=2099-12-01T08:00", "--time-zone=Europe/Zurich", "--duration=4h", "--maintenance")
    status = olga.status("maint-42")
    assert (status["state"], status["nodes"], status["nodeCount"]) == ("Planned", ALL, 4)
    assert (status["windowStart"], status["windowEnd"]) == ("2099-12-01T07:00:00Z", "2099-12-01T11:00:00Z")
    assert olga.lattice("reservations", "list").stdout.splitlines()[1].split()[:2] == ["maint-42", "Planned"]
    assert "Planned: 4 nodes are held from 2099-12-01T07:00:00Z" in olga.lattice("reservation", "show", "maint-42").stdout
    assert "maint-42" in olga.person.kubectl("get", "rsv").stdout
    olga.person.kubectl("wait", "--for=condition=Ready", "rsv/maint-42", "--timeout=300s")
    assert olga.lattice("reservation", "delete", "maint-42").stdout == "Deleted reservation maint-42\n"
    assert olga.lattice("reservation", "show", "maint-42", ok=False).returncode == 4


def test_what_makes_no_sense_is_refused_with_a_sentence(olga: Operator) -> None:
    def refused(name: str, *flags: str) -> str:
        done = olga.lattice("reservation", "create", name, *flags, ok=False)
        assert done.returncode in (1, 2), (done.stdout, done.stderr)
        return done.stderr

    later = ("--start=2099-12-01T08:00:00Z", "--duration=4h")
    olga.reserve("first", "--nodes=nid[001-002]", *later)
    assert "in the past" in refused("a", "--nodes=nid001", "--start=2020-01-01T00:00:00Z", "--duration=1h")
    overlapping = refused("second", "--nodes=nid[002-003]", *later)
    assert 'reservation "second"' in overlapping
    assert '"first"' in overlapping
    assert "both hold nid002" in overlapping
    assert "is longer than the 1d" in refused("b", "--nodes=nid003", "--start=+1h", "--duration=25h", "--recurrence=daily")
    assert "less than or equal to 16384" in refused("c", "--node-count=20000", *later)
    assert "no time zone" in refused("d", "--nodes=nid003", "--time-zone=Mars", *later)
    assert 'reservation "nothing"' in olga.lattice("reservation", "delete", "nothing", ok=False).stderr
    assert [item["metadata"]["name"] for item in json.loads(olga.lattice("reservation", "list", "-o", "json").stdout)["items"]] == ["first"]


def test_a_number_of_nodes_that_do_not_exist_is_accepted_with_a_warning_and_impossible(olga: Operator) -> None:
    made = olga.lattice("reservation", "create", "many", "--node-count=9", "--start=+5h", "--duration=1h")
    assert "spec.nodeCount is 9 and the cluster has 4 nodes" in made.stderr
    status = olga.status("many", "Impossible")
    conditions = {entry["type"]: entry for entry in status["conditions"]}
    assert (conditions["Stalled"]["status"], conditions["Ready"]["message"]) == ("True", "asks for 9 nodes; 4 exist that fit")
    olga.reserve("three", "--node-count=3", "--start=+5h", "--duration=1h")
    assert olga.status("three", "Planned")["nodeCount"] == 3


def test_a_change_that_reaches_into_another_reservation_is_refused(olga: Operator) -> None:
    olga.reserve("morning", "--nodes=nid001", "--start=2099-12-01T08:00:00Z", "--duration=1h")
    olga.reserve("noon", "--nodes=nid001", "--start=2099-12-01T09:00:00Z", "--duration=1h")
    refused = olga.person.kubectl("patch", "rsv", "morning", "--type=merge", "-p", '{"spec": {"duration": "2h"}}', ok=False)
    assert "both hold nid001" in refused.stderr
    fixed = olga.person.kubectl("patch", "rsv", "morning", "--type=merge", "-p", '{"spec": {"nodes": "nid002"}}', ok=False)
    assert "spec.nodes cannot be changed after creation: delete this reservation and make a new one" in fixed.stderr


def test_people_see_what_concerns_them_and_change_nothing(me: Person, olga: Operator) -> None:
    later = ("--start=2099-12-01T08:00:00Z", "--duration=1h")
    olga.reserve("maint", "--nodes=nid001", "--maintenance", *later)
    olga.reserve("mine", "--nodes=nid002", f"--tenants={me.namespace}", *later)
    olga.reserve("theirs", "--nodes=nid003", "--users=oidc:somebody-else", *later)

    def seen() -> list[str]:
        return [line.split()[0] for line in me.lattice("reservation", "list").stdout.splitlines()[1:]]

    until(Seen(seen, lambda names: sorted(names) == ["maint", "mine"]), within=15, what="the reservations that concern alice")
    assert "nobody may use it" not in me.lattice("reservation", "show", "mine").stdout
    assert me.lattice("reservation", "show", "theirs", ok=False).returncode == 4
    forged = olga.person.kubectl(
        "patch", "rsv", "mine", "--subresource=status", "--type=merge", "-p", '{"status": {"state": "Ended"}}', ok=False
    )
    assert "forbidden" in forged.stderr
    for words in (("create", "x", "--nodes=nid004", *later), ("delete", "mine")):
        denied = me.lattice("reservation", *words, ok=False)
        assert (denied.returncode, "forbidden" in denied.stderr) == (5, True), denied.stderr


def test_before_maintenance_short_work_starts_and_long_work_reads_how_short(me: Person, olga: Operator) -> None:
    olga.reserve("maint", "--nodes", ALL, "--start=+15m", "--duration=2h", "--maintenance")
    me.apply("long", walltime="24h", entrypoint="true")
    me.apply("short", walltime="1m", entrypoint="true")
    assert me.ended("short")["phase"] == "Completed"
    assert why_waits(me, "long") == "ReservedNodes"
    shown = me.lattice("why", "long").stdout
    assert "crosses maintenance maint" in shown
    assert "starts now" in shown
    olga.lattice("reservation", "delete", "maint")
    assert me.ended("long")["phase"] == "Completed"


def test_running_work_is_not_run_into_unless_that_is_asked_for(me: Person, olga: Operator) -> None:
    me.apply("busy", nodes=4, walltime="2h", entrypoint="sleep 4245.2")
    me.phase("busy", "Running")
    flags = ("--nodes", ALL, "--start=+30m", "--duration=1h", "--maintenance")
    refused = olga.lattice("reservation", "create", "maint", *flags, ok=False)
    assert f"1 allocation on {ALL} may run into the first window" in refused.stderr
    assert "ignoreRunning" in refused.stderr
    olga.reserve("maint", *flags, "--ignore-running")
    assert me.get("busy")["status"]["phase"] == "Running"


def test_work_runs_inside_its_reservation_and_nobody_elses_does(me: Person, olga: Operator) -> None:
    olga.reserve("course", "--nodes", ALL, "--start=now", "--duration=1h", f"--tenants={me.namespace}")
    me.apply("outside", walltime="5m", entrypoint="true")
    assert why_waits(me, "outside") == "ReservedNodes"
    number = me.lattice("submit", "--reservation=course", "--walltime=5m", "--wait", "--parsable", "--", "true").stdout.strip()
    assert yaml.safe_load(me.lattice("status", number, "-o", "yaml").stdout)["spec"]["reservation"] == "course"
    assert me.get("outside")["status"]["phase"] == "Pending"
    refused = me.lattice("submit", "--reservation=nothing", "--walltime=5m", "--", "true", ok=False)
    assert 'reservation "nothing" not found. Open to this work: course' in refused.stderr
    olga.lattice("reservation", "delete", "course")
    assert me.ended("outside")["phase"] == "Completed"


def test_work_waits_for_its_window_and_then_starts(me: Person, olga: Operator) -> None:
    for seconds in (5, 30, 120):  # a machine may be so slow that the time has passed when it is judged
        flags = ("--nodes=nid004", f"--start=+{seconds}s", "--duration=1h", f"--tenants={me.namespace}")
        made = olga.lattice("reservation", "create", "soon", *flags, ok=False)
        if made.returncode == 0:
            break
        assert "in the past" in made.stderr, made.stderr
    olga.status("soon")
    me.apply("early", walltime="1m", entrypoint="true", reservation="soon")
    wide = me.apply("wide", nodes=2, walltime="1m", entrypoint="true", reservation="soon", ok=False)
    assert 'reservation "soon" has fewer nodes than are asked for (requested: 2, limit: 1)' in wide.stderr
    long = me.apply("late", walltime="1h", entrypoint="true", reservation="soon", ok=False)
    assert 'walltime 1h does not fit a window of reservation "soon", which lasts 1h' in long.stderr
    assert me.ended("early")["nodes"] == "nid004"
    assert olga.status("soon", "Active")["nodes"] == "nid004"
