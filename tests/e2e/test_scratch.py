"""Scratch space of work on real nodes: asked for, found, used, wiped; on a disk and in memory; and every way in which there is too little."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import NODES
from lattice.units import format_bytes, quantity_bytes
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, scheduled
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate
from tests.system_files import below


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def place(instance: Instance, node: str) -> Path:
    """The scratch directory of a node's agent."""
    return instance.where.node(node) / "scratch"


def kept(instance: Instance, node: str) -> list[Path]:
    """What stands in it of attempts, and what is being deleted."""
    return [path for path in below(place(instance, node) / node) if path.name != ".removed"]


def capacity(admin: BlockingCluster, node: str) -> int:
    return quantity_bytes(admin.get(NODES, node)["status"]["capabilities"].get("scratch", 0))


def printed(me: Person, name: str, within: float = 30) -> list[str]:
    status = me.ended(name, within=within)
    assert status["phase"] == "Completed", status
    return [line.rpartition(": ")[2] for line in me.lattice("logs", name).stdout.splitlines()]


def on(node: str) -> dict[str, object]:
    return {"constraints": {"nodeList": node}}


def test_work_has_scratch_space_of_its_own_on_every_node_and_nothing_of_it_stays(control_plane: Instance, me: Person) -> None:
    script = "sh -c 'stat -c \"%a %U\" $TMPDIR; echo x > $TMPDIR/left; ln -s /etc $TMPDIR/out; echo $LATTICE_NODENAME $TMPDIR'"
    me.apply("spacious", nodes=2, entrypoint=script, data={"scratchPerNode": "10Mi"})
    said = printed(me, "spacious")
    assert said.count("700 alice") == 2
    uid = me.get("spacious")["metadata"]["uid"]
    wheres = [line.split() for line in said if line.startswith("nid")]
    assert {path for _, path in wheres} == {f"{place(control_plane, node)}/{node}/{uid}-1" for node, _ in wheres}
    for node, _ in wheres:
        until(lambda node=node: kept(control_plane, node) == [], within=10, what=f"nothing left on {node}")  # type: ignore[misc]


def test_an_agent_that_is_killed_leaves_the_space_to_the_work_and_wipes_it_afterwards(
    control_plane: Instance, me: Person, gate: Gate
) -> None:
    node = control_plane.site().nodes[1]
    work = f"sh -c 'touch $TMPDIR/a; {gate.wait}; ls $TMPDIR'"
    me.apply("survivor", entrypoint=work, data={"scratchPerNode": "1Mi"}, resources=on(node))
    until(lambda: any(path.name == "a" for path in kept(control_plane, node)), within=10, what="the work's file")
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    gate.open()
    assert printed(me, "survivor") == ["a"]
    until(lambda: kept(control_plane, node) == [], within=10, what="nothing left")


def test_more_than_a_node_has_never_fits_and_more_than_is_free_fails_with_the_numbers(
    control_plane: Instance, admin: BlockingCluster, me: Person
) -> None:
    node = control_plane.site().nodes[0]
    most = capacity(admin, node)
    assert most > 0
    me.apply("huge", entrypoint="true", data={"scratchPerNode": "1Ei"})
    until(Seen(lambda: scheduled(me, "huge"), lambda found: found.get("reason") == "NeverFits"), within=20, what="NeverFits")
    assert f"no node has 1Ei of scratch space; the most on one node is {format_bytes(most)}" in scheduled(me, "huge")["message"]
    me.lattice("cancel", "huge")
    free = shutil.disk_usage(place(control_plane, node)).free
    assert free < most, "a disk that holds nothing"
    me.apply("too-much", entrypoint="true", data={"scratchPerNode": format_bytes(most)})
    first, *_ = until(lambda: me.get("too-much").get("status", {}).get("attempts"), within=30, what="the end of its first attempt")
    me.lattice("cancel", "too-much")
    message = first["message"]
    assert first["reason"] == "PrologueFailed"
    assert f"{format_bytes(most)} of scratch space are asked for (spec.data.scratchPerNode), and" in message
    assert f"of {format_bytes(most)} are free on {control_plane.where.directory}" in message


def test_without_a_disk_scratch_space_is_in_memory_and_counts_as_half_of_it(
    control_plane: Instance, admin: BlockingCluster, me: Person
) -> None:
    node = control_plane.site().nodes[-1]
    directory = place(control_plane, node)
    aside = directory.with_name("scratch-aside")
    directory.rename(aside)
    try:
        control_plane.restart(f"agent-{node}")
        memory = quantity_bytes(admin.get(NODES, node)["status"]["capabilities"]["memory"])
        until(lambda: abs(capacity(admin, node) - memory // 2) <= 1 << 20, within=20, what="half of the memory")
        assert "scratch_quota" in admin.get(NODES, node)["status"]["capabilities"]["features"]
        script = "sh -c 'df -k --output=size $TMPDIR | tail -1; ! head -c 3000000 /dev/zero > $TMPDIR/a'"
        me.apply("in-memory", entrypoint=script, data={"scratchPerNode": "2Mi"}, resources=on(node))
        assert printed(me, "in-memory")[0].strip() == "2048"
    finally:
        aside.rename(directory)
        control_plane.restart(f"agent-{node}")


def test_data_that_is_not_served_is_refused_and_scratch_cannot_be_changed(me: Person) -> None:
    refused = me.apply("data", entrypoint="true", data={"output": "s3://x"}, ok=False)
    assert "spec.data.output is not served yet: data is not staged by this release; remove the field" in refused.stderr
    refused = me.apply("none", entrypoint="true", data={"scratchPerNode": "0"}, ok=False)
    assert "spec.data.scratchPerNode is 0, and must be above 0" in refused.stderr
    shown = me.lattice("submit", "--scratch=1Mi", "--walltime=5m", "--dry-run=client", "-o", "yaml", "--", "true").stdout
    assert "scratchPerNode: 1Mi" in shown
    me.apply("fixed", entrypoint="true", data={"scratchPerNode": "1Mi"}, hold=True)
    again = me.apply("fixed", entrypoint="true", data={"scratchPerNode": "2Mi"}, hold=True, ok=False)
    assert "spec.data cannot be changed after creation" in again.stderr
    me.lattice("cancel", "fixed")


def test_nodes_show_their_scratch_space(control_plane: Instance, me: Person) -> None:
    node = control_plane.site().nodes[0]
    shown = json.loads(me.kubectl("get", "latticenode", node, "-o", "json").stdout)["status"]["capabilities"]["scratch"]
    assert "Scratch" in me.lattice("nodes", node).stdout
    assert quantity_bytes(shown) > 0
