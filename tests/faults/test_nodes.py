"""Nodes that are cut off, lost, rebooted, reinstalled: the work goes on elsewhere, and never twice at once on a node."""

from __future__ import annotations

import time

import pytest

from lattice.errors import Denied
from lattice.kube.resources import NODES
from lattice.units import expand_nodes
from tests.e2e.waiting import Seen, until
from tests.faults.scene import DOWN_SECONDS, Scene, administrator

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.netns]


def test_a_node_cut_off_for_a_moment_goes_on_and_its_exit_code_arrives(scene: Scene) -> None:
    name = scene.submit(seconds=4, code=3)
    head = scene.running(name).status.head
    scene.instance.cut(head)
    time.sleep(2.0)
    scene.instance.mend(head)
    assert scene.ends([name]) == [("TaskFailed", 3, 1)]


def test_work_that_ends_while_its_node_is_cut_off_keeps_its_exit_code(scene: Scene) -> None:
    name = scene.submit(seconds=3, code=7)
    found = scene.running(name)
    head = found.status.head
    scene.instance.cut(head)
    until(lambda: scene.alive(found, head) == [], within=20, what="the end of the work")
    scene.instance.mend(head)
    assert scene.ends([name]) == [("TaskFailed", 7, 1)]


def test_a_node_that_is_down_gives_its_work_to_another_and_stops_it_when_it_returns(scene: Scene) -> None:
    name = scene.submit(seconds=None, code=3)
    first = scene.running(name)
    head = first.status.head
    with scene.quick_down():
        scene.instance.cut(head)
        second = scene.running(name, attempt=2, within=4 * DOWN_SECONDS)
    assert second.status.head != head
    assert second.status.attempts[0].reason == "NodeLost"
    assert scene.alive(first, head) == [1], "nothing is killed on a node that nobody can reach"
    scene.instance.mend(head)
    until(lambda: scene.alive(first, head) == [], within=30, what=f"the end of the first attempt on {head}")
    scene.becomes(head, "Ready")
    scene.finish(name)
    assert scene.ends([name]) == [("TaskFailed", 3, 2)]
    assert [one.task[1] for one in scene.told(first) if one.word == "exit"] == [2]


def test_a_reporter_whose_agent_is_gone_is_replaced_and_the_end_arrives(scene: Scene) -> None:
    name = scene.submit(nodes=3, seconds=4, code=3)
    first = scene.running(name).status.reporter
    scene.instance.kill(f"agent-{first}")
    until(Seen(lambda: scene.get(name).status.reporter, lambda now: now not in ("", first)), within=30, what="another reporter")
    scene.instance.start(f"agent-{first}")
    assert scene.ends([name]) == [("TaskFailed", 3, 1)]
    assert scene.get(name).status.head == first


def test_a_node_lost_for_good_keeps_its_rows_until_somebody_vouches_for_it(scene: Scene) -> None:
    name = scene.submit(nodes=2, seconds=None, code=0)
    nodes = expand_nodes(scene.running(name).status.nodes)
    lost = nodes[1]
    with scene.quick_down():
        scene.instance.power_off(lost)
        second = scene.running(name, attempt=2, within=4 * DOWN_SECONDS)
    assert lost not in expand_nodes(second.status.nodes)
    scene.finish(name)
    assert scene.ends([name]) == [("Completed", 0, 2)]
    until(lambda: held(scene) == 1, within=10, what="the release of what ended; the lost node stays taken")
    scene.change_node(lost, {"disable": {"reason": "it burnt", "by": "olga", "fenced": True}})
    assert scene.here.settle(30) == []
    scene.instance.power_on(lost)
    scene.change_node(lost, {"disable": None})
    scene.becomes(lost, "Ready")


def held(scene: Scene) -> int:
    """Nodes that stand in the ledger's accounts."""
    return sum(account.used_nodes for account in scene.here.ledger().tenants.values())


def test_a_node_whose_object_was_deleted_under_its_work_is_down_after_the_silence_and_fenced_by_name(scene: Scene) -> None:
    name = scene.submit(seconds=4, code=3, on="nid005,nid006")
    lost = scene.running(name).status.head
    with scene.quick_down():
        scene.instance.power_off(lost)
        delete_object(scene, lost)
        second = scene.running(name, attempt=2, within=4 * DOWN_SECONDS)
    assert second.status.attempts[0].reason == "NodeLost"
    assert scene.ends([name]) == [("TaskFailed", 3, 2)]
    until(lambda: held(scene) == 1, within=10, what="the row of the node that nobody has heard stays")
    administrator(scene).lattice("node", "disable", lost, "--fenced", "--reason=burnt", "--yes")
    assert scene.here.settle(30) == []
    scene.instance.power_on(lost)
    administrator(scene).lattice("node", "enable", lost)
    scene.becomes(lost, "Ready")


def test_work_goes_on_when_the_object_of_its_living_node_is_deleted(scene: Scene) -> None:
    name = scene.submit(nodes=2, seconds=6, code=3)
    nodes = expand_nodes(scene.running(name).status.nodes)
    for node in nodes:
        delete_object(scene, node)
    for node in nodes:
        scene.becomes(node, "Ready")
    assert scene.ends([name]) == [("TaskFailed", 3, 1)]


def delete_object(scene: Scene, node: str) -> None:
    """Deletes a LatticeNode, which is refused without its word."""
    with scene.here.admin() as cluster:
        with pytest.raises(Denied, match=f"lattice node forget {node}"):
            cluster.delete(NODES, node)
        cluster.patch(NODES, node, {"metadata": {"annotations": {"lattice.dev/really-delete": "yes"}}})
        cluster.delete(NODES, node)


@pytest.mark.parametrize("wipe", [False, True], ids=["disk kept", "disk gone"])
def test_work_of_a_rebooted_node_runs_again_as_the_second_attempt(scene: Scene, wipe: bool) -> None:
    name = scene.submit(seconds=4, code=7)
    head = scene.running(name).status.head
    scene.instance.power_off(head)
    scene.instance.power_on(head, wipe=wipe)
    assert scene.ends([name]) == [("TaskFailed", 7, 2)]
    assert scene.get(name).status.attempts[0].reason in ("Lost", "NodeLost")  # Down came first where it took long


def test_an_exit_record_outlives_the_reboot_and_its_work_does_not_run_again(scene: Scene) -> None:
    name = scene.submit(seconds=2, code=3)
    found = scene.running(name)
    head = found.status.head
    scene.instance.kill(f"agent-{head}")
    until(lambda: scene.alive(found, head) == [], within=20, what="the end of the work")
    scene.instance.power_off(head)
    scene.instance.power_on(head)
    assert scene.ends([name]) == [("TaskFailed", 3, 1)]
