"""A range of nodes: placed on its least number, given more where nobody waits for the same nodes, and planned likewise."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until


@pytest.fixture
def alice(control_plane: Instance, tenant: Room) -> Person:
    return person(control_plane, "alice", tenant.namespace)


@pytest.fixture
def tonight(control_plane: Instance, tenant: Room) -> Iterator[None]:
    """All nodes are kept from in half an hour on."""
    admin, name = person(control_plane, "admin", "default"), f"{tenant.name}-tonight"
    admin.lattice("reservation", "create", name, "--nodes=nid[001-004]", "--start=+30m", "--duration=10m", "--maintenance")
    yield
    admin.lattice("reservation", "delete", name)


def planned(who: Person, nodes: str) -> tuple[int, int, int]:
    """What a plan says that a range would get now, and what it asks for."""
    answer = json.loads(who.lattice("plan", "-o", "json", f"--nodes={nodes}", "--walltime=2m", "--", "true").stdout)
    found = answer["allocations"][0]["placement"]
    return found["count"], found["least"], found["most"]


def runs_on(who: Person, name: str) -> int:
    """The nodes that work of a range runs on once it has started."""
    who.apply(name, nodes="1-4", walltime="2m", entrypoint="true", tasks={"on": "EveryNode"})
    ended = who.ended(name)
    assert ended["phase"] == "Completed"
    return int(ended["nodeCount"])


def test_a_range_gets_more_than_its_least_where_nobody_waits_and_a_plan_says_so(alice: Person) -> None:
    assert planned(alice, "1-4") == (2, 1, 4), "its one node and a third of the other three"
    assert "2 nodes (asks for 1-4)" in alice.lattice("plan", "--nodes=1-4", "--walltime=2m", "--", "true").stdout
    assert runs_on(alice, "idle") == 2


@pytest.mark.usefixtures("tonight")
def test_a_range_gets_its_least_where_others_wait_for_the_same_nodes(alice: Person) -> None:
    alice.apply("waits", nodes=4, walltime="1h", entrypoint="true")
    why = Seen(lambda: alice.lattice("why", "waits").stdout, lambda said: "ReservedNodes" in said or "WaitingForNodes" in said)
    until(why, within=20, every=0.3, what="work that waits beside idle nodes")
    assert planned(alice, "1-4") == (1, 1, 4)
    assert runs_on(alice, "beside") == 1
    alice.lattice("cancel", "waits")
    alice.ended("waits")
    assert runs_on(alice, "alone") == 2
