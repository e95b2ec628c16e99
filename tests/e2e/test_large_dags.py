"""DAGs of more members than an edge's status is written at once for, on hollow nodes: fan-out, fan-in, a chain, and a cancel midway.

`lattice-dev bench workflows` has a thousand.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lattice.units import parse_time
from lattice_dev.instance import Instance
from lattice_dev.state import Options
from tests.e2e.conftest import new_instance, new_room, running
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until

MEMBERS, NODES = 120, 40


@pytest.fixture(scope="module")
def site() -> Iterator[Instance]:
    """An instance of hollow nodes and no real one."""
    with running(new_instance("large-dags", Options(nodes=0, hollow=NODES, fsync=False))) as instance:
        yield instance


@pytest.fixture(scope="module")
def me(site: Instance) -> Iterator[Person]:
    """alice, in a tenant of this file."""
    with contextlib.closing(site.cluster()) as admin:
        yield person(site, "alice", new_room(admin).namespace)


def submit(me: Person, name: str, members: list[dict[str, Any]], seconds: float) -> None:
    """Submits a DAG whose members end after so many seconds."""
    defaults = {
        "vcluster": "hpc-batch", "entrypoint": "true", "lifecycle": {"walltime": "1h", "gracePeriod": "2s"},
        "resources": {"constraints": {"features": ["hollow"]}}, "environment": {"variables": {"HOLLOW_SECONDS": f"{seconds:g}"}},
    }  # fmt: skip
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "DAG",
        "metadata": {"name": name},
        "spec": {"defaults": defaults, "members": members},
    }
    me.kubectl("-n", me.namespace, "create", "-f", "-", stdin=json.dumps(body))


def member(name: str, *before: str, condition: str = "Success", **spec: Any) -> dict[str, Any]:
    """A member that waits for others."""
    waits = [{"ref": one, "condition": condition} for one in before]
    return {"name": name, "spec": spec, **({"dependsOn": waits} if waits else {})}


def fan(**of_the_first: Any) -> list[dict[str, Any]]:
    """One member, all others but one after it, and one last after these; the last stands first, so that it is made before them."""
    between = [f"m{place}" for place in range(MEMBERS - 2)]
    return [member("last", *between, condition="Any"), *(member(one, "first") for one in between), member("first", **of_the_first)]


def status(me: Person, name: str) -> dict[str, Any]:
    """The status of a DAG."""
    found: dict[str, Any] = json.loads(me.kubectl("-n", me.namespace, "get", "dag", name, "-o", "json").stdout).get("status", {})
    return found


def ended(me: Person, name: str, within: float) -> dict[str, Any]:
    """The status of a DAG once it has ended."""
    seen = Seen(lambda: status(me, name), lambda found: found.get("phase") in ("Completed", "Failed", "Cancelled"))
    return dict(until(seen, within=within, what=f"the end of DAG {name}"))


def test_many_members_fan_out_and_in(me: Person) -> None:
    submit(me, "wide", fan(), 0.05)
    found = ended(me, "wide", 120)
    assert (found["phase"], found["counts"]["completed"]) == ("Completed", MEMBERS), found["counts"]
    last = me.get("wide.last")["status"]
    assert [(edge["index"], edge["answer"]) for edge in last["edges"]] == [(index, "M") for index in range(MEMBERS - 2)]
    ends = {one["name"]: one for one in found["members"]}
    assert all(parse_time(one["startTime"]) >= parse_time(ends["first"]["endTime"]) for name, one in ends.items() if name != "first")
    assert parse_time(last["scheduledTime"]) >= max(parse_time(one["endTime"]) for name, one in ends.items() if name != "last")


def test_many_members_are_cancelled_midway(me: Person) -> None:
    hollow = {"variables": {"HOLLOW_SECONDS": "0.05"}}
    submit(me, "halved", fan(environment=hollow), 3000)
    seen = Seen(lambda: status(me, "halved").get("counts", {}), lambda counts: counts.get("running", 0) >= NODES // 2)
    counts = until(seen, within=60, what="running members")
    assert counts["completed"] == 1, counts
    me.lattice("dag", "cancel", "halved")
    found = ended(me, "halved", 120)
    states = {one["name"]: one["phase"] for one in found["members"]}
    assert (found["phase"], states.pop("first"), set(states.values())) == ("Cancelled", "Completed", {"Cancelled"})
    assert found["counts"] | {"skipped": 0} == {
        "total": MEMBERS, "pending": 0, "running": 0, "completed": 1, "failed": 0, "cancelled": MEMBERS - 1, "skipped": 0,
    }  # fmt: skip


def test_a_chain_that_is_written_backwards_binds_each_member_to_the_one_before_it(me: Person) -> None:
    names = [f"c{place}" for place in range(MEMBERS)]
    members = [member(name, *names[max(0, place - 1) : place]) for place, name in enumerate(names)]
    submit(me, "backwards", members[::-1], 3000)
    whole = Seen(lambda: status(me, "backwards"), lambda found: found.get("complete") is True)
    until(whole, within=60, what="all members of DAG backwards")
    seen = Seen(lambda: me.get(f"backwards.{names[-1]}").get("status", {}).get("edges", []), lambda edges: bool(edges))
    (edge,) = until(seen, within=30, what="the edge of the last member")
    assert edge == {"index": 0, "uid": me.get(f"backwards.{names[-2]}")["metadata"]["uid"]}
    me.lattice("dag", "cancel", "backwards")
    assert ended(me, "backwards", 120)["phase"] == "Cancelled"
