"""Lists from memory against the running system: the rows of the API server, each reader's own, never older than his last write."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lattice.cli.stream import open_stream
from lattice.errors import Denied
from lattice.kube.kubeconfig import load
from lattice.kube.resources import CONFIG_MAPS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, patient, until

ANSWERED = 'lattice_api_requests_total{{method="GET {what}",status="200"}}'
OWN_WRITES = 6
STOPPED_SECONDS = 1.0
LOOKED_AT = ("NotYetEvaluated", "NotBefore")
"""The reasons of work that may begin in an hour, before and after a cycle has looked at it."""


@pytest.fixture
def me(control_plane: Instance, lab: Room, tmp_path: Path) -> Person:
    """alice, with a home of her own."""
    return at_home(person(control_plane, "alice", lab.namespace), tmp_path)


def at_home(who: Person, home: Path) -> Person:
    patience = {"LATTICE_ANSWER_SECONDS": f"{patient(60):g}"}  # the gateway's answer is what is looked at, however slow the machine
    who.environ |= {"HOME": str(home), "LATTICE_TENANT": "", "XDG_STATE_HOME": "", "XDG_CACHE_HOME": ""} | patience
    return who


def answered(instance: Instance, what: str) -> float:
    """How many questions of a kind the gateway has answered."""
    for line in instance.metrics("gateway").splitlines():
        if line.startswith(ANSWERED.format(what=what)):
            return float(line.rpartition(" ")[2])
    return 0.0


def by_both(instance: Instance, who: Person, home: Path, *words: str) -> tuple[str, str]:
    """What a list shows by the gateway, and by the API server: a person without a home remembers nothing, and is answered by it."""
    verb = words[0]
    words = (*words, "-n", who.namespace) if verb == "status" else words
    before = answered(instance, verb)
    first = at_home(who, home).lattice(*words, ok=False)
    assert answered(instance, verb) == before + 1, first.stderr
    who.environ |= {"HOME": ""}
    second = who.lattice(*words, ok=False)
    assert answered(instance, verb) == before + 1
    assert (first.returncode, first.stderr) == (second.returncode, second.stderr)
    return first.stdout, second.stdout


def without_ages(table: str) -> list[list[str]]:
    """The cells of a table without those that tell how long ago something was."""
    head, *lines = table.splitlines()
    moving = {head.index(title) + len(title) for title in ("ELAPSED", "SINCE", "START") if title in head}
    return [head.split(), *([cell.group() for cell in re.finditer(r"\S+", line) if cell.end() not in moving] for line in lines)]


def test_the_rows_are_those_of_the_api_server_for_alice_bob_and_an_admin(
    control_plane: Instance, me: Person, lab: Room, tmp_path: Path
) -> None:
    me.apply("runs", entrypoint="sleep 600", walltime="30m", tags={"name": "a-job"})
    me.phase("runs", "Running")
    me.apply("ended", entrypoint="exit 3")
    me.ended("ended")
    me.apply("held", hold=True, entrypoint="true")
    bob = person(control_plane, "bob", lab.namespace)
    bob.apply("bobs", hold=True, entrypoint="true")
    shown = Seen(lambda: bob.get("bobs").get("status", {}), lambda status: status.get("number"))
    until(shown, within=20, every=0.2, what="the number of bob's work")
    admin = person(control_plane, "admin", lab.namespace)
    for who in (me, bob, admin):
        for words in (("status",), ("status", "--all", "-o", "wide"), ("status", "-u", "bob", "--active"), ("nodes", "-o", "wide")):
            first, second = by_both(control_plane, who, tmp_path, *words)
            assert without_ages(first) == without_ages(second) if first else first == second, words
    assert {"runs", "ended", "held"} <= set(by_both(control_plane, me, tmp_path, "status")[0].split())
    assert "bobs" not in by_both(control_plane, me, tmp_path, "status")[0]
    first, second = by_both(control_plane, admin, tmp_path, "status", "-A")
    assert without_ages(first) == without_ages(second)


def test_an_answer_is_never_older_than_the_readers_own_last_write(control_plane: Instance, me: Person) -> None:
    before = answered(control_plane, "status")
    for count in range(OWN_WRITES):
        made = me.lattice("submit", "-n", me.namespace, "--hold", "-q", "-o", "name", "--", "true").stdout.strip().rpartition("/")[2]
        listed = me.lattice("status", "-n", me.namespace).stdout
        assert made in listed, (count, listed)
        me.lattice("cancel", "-n", me.namespace, "--yes", made, ok=False)
        line = next(line for line in me.lattice("status", "-n", me.namespace).stdout.splitlines() if made in line)
        assert "Cancelled" in line or "Requested" in line or "Ending" in line, (count, line)
    assert answered(control_plane, "status") == before + 2 * OWN_WRITES


@contextmanager
def behind(instance: Instance) -> Iterator[None]:
    """The block's writes are made while the scheduler is stopped; it goes on a moment after the question that follows them has begun."""
    instance.kill("scheduler", signal.SIGSTOP)
    later = threading.Timer(STOPPED_SECONDS, instance.kill, ("scheduler", signal.SIGCONT))
    try:
        yield
    finally:
        later.start()


def queued(who: Person, name: str) -> str:
    """The reason that the queue shows for this work; fails where the queue has none, or says that it may be older."""
    shown = who.lattice("queue", "-n", who.namespace, "-o", "json")
    assert not shown.stderr, shown.stderr
    entries = [entry for queue in json.loads(shown.stdout)["vclusters"] for entry in queue["entries"]]
    found = [entry.get("reason", "") for entry in entries if (entry.get("work") or {}).get("name") == name]
    assert len(found) == 1, shown.stdout
    return str(found[0])


def explained(who: Person, name: str) -> str:
    return str(json.loads(who.lattice("why", "-n", who.namespace, name, "-o", "json").stdout)["reason"])


def test_queue_and_why_are_never_older_than_the_readers_own_last_write(control_plane: Instance, me: Person) -> None:
    words = ("submit", "-n", me.namespace, "--not-before", "now+1hour", "-q", "-o", "name", "--", "true")
    for ask in (queued, explained):
        before = answered(control_plane, "queue")
        with behind(control_plane):
            made = me.lattice(*words).stdout.strip().rpartition("/")[2]
        assert ask(me, made) in LOOKED_AT
        with behind(control_plane):
            me.lattice("hold", "-n", me.namespace, made)
        assert ask(me, made) == "Held"
        with behind(control_plane):
            me.lattice("release", "-n", me.namespace, made)
        assert ask(me, made) in LOOKED_AT
        assert ask is explained or answered(control_plane, "queue") == before + 3


def test_a_stranger_is_denied_with_the_api_servers_words(control_plane: Instance, me: Person, tmp_path: Path) -> None:
    control_plane.add_user("mallory", "mallorys-lab")
    mallory = at_home(person(control_plane, "mallory", "mallorys-lab"), tmp_path)
    for words in (("status", "-n", me.namespace, "--all"), ("status", "-n", me.namespace, "-u", "alice"), ("status", "-A")):
        refused = mallory.lattice(*words, ok=False)
        assert (refused.returncode, refused.stdout) == (5, "")
        mallory.environ |= {"HOME": ""}
        assert mallory.lattice(*words, ok=False).stderr == refused.stderr
        mallory.environ |= {"HOME": str(tmp_path)}
    with control_plane.cluster() as admin:
        public = admin.get(CONFIG_MAPS, "lattice-public", "lattice-system", type=dict[str, Any])["data"]
    config, path = load(str(mallory.kubeconfig)), f"/v1/status?namespace={me.namespace}&user=alice"
    with pytest.raises(Denied) as denied:
        open_stream(config, public["gateway"], public["ca"], path, None, 10)
    assert denied.value.reason == "ListForbidden"


def test_a_scheduler_or_gateway_that_does_not_answer_costs_a_moment_and_no_error(control_plane: Instance, me: Person) -> None:
    me.environ |= {"LATTICE_ANSWER_SECONDS": ""}
    me.apply("there", hold=True, entrypoint="true")
    until(lambda: "there" in me.lattice("status", "-n", me.namespace).stdout, within=20, every=0.2, what="the row")
    for component in ("scheduler", "gateway"):
        before = answered(control_plane, "status") if component == "scheduler" else 0.0
        control_plane.kill(component, signal.SIGSTOP)
        try:
            assert "there" in me.lattice("status", "-n", me.namespace).stdout
        finally:
            control_plane.kill(component, signal.SIGCONT)
        assert component == "gateway" or answered(control_plane, "status") == before
        (Path(me.environ["HOME"], ".cache")).rename(Path(me.environ["HOME"], f"cache-of-{component}"))  # it is not left alone for long
