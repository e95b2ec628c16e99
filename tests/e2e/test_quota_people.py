"""Quotas as people read them: the tree, every gate before an allocation, and what each person may see of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from lattice import errors
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ELASTIC_QUOTAS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.schemas import valid

FOREIGN = "feynman"
"""Part of the names of the other team's group, tenant and work: a stranger must not see it."""


def quota(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def richard(control_plane: Instance) -> Person:
    """Of another team, with a tenant of his own."""
    control_plane.add_user("richard", f"{FOREIGN}s-lab")
    him = person(control_plane, "richard", f"{FOREIGN}s-lab")
    until(lambda: him.lattice("status", ok=False).returncode == 0, within=20, every=0.3, what="the rights of richard")
    return him


@pytest.fixture(scope="module")
def department(control_plane: Instance, lab: Room, richard: Person) -> Iterator[str]:
    """A department of two teams that share three nodes, one guaranteed to each."""
    with control_plane.cluster() as admin:
        made = [
            quota("dept", isParent=True, min={"nodes": 2}, max={"nodes": 3}),
            quota("theory", parent="dept", min={"nodes": 1}, max={"nodes": 3}, bindings=[{"tenant": lab.name}]),
            quota(f"{FOREIGN}-team", parent="dept", min={"nodes": 1}, max={"nodes": 3}, bindings=[{"tenant": richard.namespace}]),
        ]
        for document in made:
            admin.create(ELASTIC_QUOTAS, document)
        yield "dept"
        _remove(admin, [document["metadata"]["name"] for document in reversed(made)])


def _remove(admin: BlockingCluster, names: list[str]) -> None:
    """Delete the groups, the leaves first; those that still hold work are refused until it has ended."""

    def gone() -> bool:
        for name in names:
            with contextlib.suppress(errors.NotFound):
                try:
                    admin.delete(ELASTIC_QUOTAS, name)
                except (errors.Denied, errors.Rejected):
                    return False
        return True

    until(gone, within=20, every=0.5, what="the end of the groups")


@pytest.fixture(scope="module")
def alice_waits(control_plane: Instance, lab: Room, department: str, richard: Person) -> Iterator[Person]:
    """alice, whose department's nodes are used up: richard runs on two, she on one, and her next work waits."""
    me = person(control_plane, "alice", lab.namespace)
    richard.apply(f"{FOREIGN}-runs", nodes=2, walltime="30m", entrypoint="sleep 900")
    richard.phase(f"{FOREIGN}-runs", "Running")
    me.apply("runs", nodes=1, walltime="30m", entrypoint="sleep 900")
    me.phase("runs", "Running")
    me.apply("waits", nodes=1, walltime="30m", entrypoint="sleep 900")
    until(Seen(lambda: me.lattice("status", "waits").stdout, lambda said: "WaitingForQuotaShare" in said), within=15, every=0.2)
    yield me
    for who, names in ((richard, [f"{FOREIGN}-runs"]), (me, ["runs", "waits"])):
        who.kubectl("delete", "alloc", *names, "-n", who.namespace, "--ignore-not-found", "--wait=false")


def test_the_owner_reads_which_level_of_the_tree_keeps_his_work_waiting(alice_waits: Person) -> None:
    said = alice_waits.lattice("why", "waits").stdout
    assert "WaitingForQuotaShare: waiting for quota share: quota" in said
    assert "`lattice quota explain " in said.splitlines()[-1]
    found = valid(alice_waits.lattice("quota", "explain", "waits", "-o", "json").stdout)
    assert (found["leaf"], [gate["gate"] for gate in found["gates"] if gate.get("first")]) == ("theory", ["QuotaTree"])
    tree = next(gate for gate in found["gates"] if gate["gate"] == "QuotaTree")
    above = next(limit for limit in tree["limits"] if limit["of"] == "dept" and limit["resource"] == "nodes")
    assert (above["used"], above["requested"], above["limit"], above["blocks"]) == (3, 1, 3, True)
    text = alice_waits.lattice("quota", "explain", "waits").stdout
    assert "Blocked first by quota tree: WaitingForQuotaShare" in text
    assert "→" in text


def test_the_tree_shows_the_owner_his_leaf_what_is_above_it_and_what_may_still_start(alice_waits: Person) -> None:
    groups = valid(alice_waits.lattice("quota", "tree", "-o", "json").stdout)["trees"][0]["groups"]
    seen = {group.get("name", ""): group for group in groups if group.get("name") or group.get("parent") == "dept"}
    assert (seen["theory"]["whose"], seen["dept"]["whose"]) == ("yours", "above yours")
    assert (seen[""]["whose"], seen[""].get("count", 1)) == ("others", 1)
    nodes = next(share for share in seen["dept"]["shares"] if share["resource"] == "nodes")
    assert (nodes["used"], nodes["min"], nodes["max"]) == (3, 2, 3)
    assert next(one for one in seen["theory"]["startable"] if one["resource"] == "nodes")["amount"] == 0
    said = alice_waits.lattice("quota", "tree", "--resource", "nodes").stdout
    assert "theory *" in said
    assert "theory: 0 nodes may start now (" in said
    assert alice_waits.lattice("quota", "tree", "--resource", "licences", ok=False).returncode == 4


def test_no_name_of_another_team_is_in_any_output(alice_waits: Person) -> None:
    for words in (
        ("why", "waits"), ("why", "waits", "-o", "json"), ("status", "waits"), ("quota", "explain", "waits"), ("quota", "tree", "-o", "wide"),
        ("quota", "explain", "waits", "-o", "yaml"), ("quota", "tree"), ("quota", "tree", "-o", "json"), ("quota", "tree", "-o", "name"),
    ):  # fmt: skip
        said = alice_waits.lattice(*words).stdout
        assert FOREIGN not in said, f"{words}: {said}"


def test_a_stranger_may_not_have_it_explained(alice_waits: Person, richard: Person) -> None:
    assert richard.lattice("quota", "explain", f"{alice_waits.namespace}/waits", ok=False).returncode == 5


def test_who_may_list_groups_sees_every_one_by_name(control_plane: Instance, alice_waits: Person) -> None:
    boss = person(control_plane, "admin", alice_waits.namespace)
    assert {"dept", "theory", f"{FOREIGN}-team"} <= set(boss.lattice("quota", "tree", "-o", "name").stdout.split())
    assert boss.lattice("quota", "explain", f"{alice_waits.namespace}/waits").returncode == 0


def test_it_starts_by_itself_once_there_is_room_and_then_every_gate_is_open(alice_waits: Person, richard: Person) -> None:
    richard.lattice("cancel", "--yes", f"{FOREIGN}-runs")
    alice_waits.phase("waits", "Running")
    found = valid(alice_waits.lattice("quota", "explain", "waits", "-o", "json").stdout)
    assert found["holds"] is True
    assert {gate["verdict"] for gate in found["gates"]} <= {"Passes", "Unlimited"}
    assert "It holds its nodes" in alice_waits.lattice("quota", "explain", "waits").stdout
