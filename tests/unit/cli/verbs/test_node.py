"""What `lattice node` shows of nodes and asks of operators."""

from __future__ import annotations

import json
from typing import Any

from lattice.kube.resources import NODE_INDEXES, NODES
from tests.unit.cli.conftest import Bench, ago, three_nodes


def test_nodes_are_shown_by_state_and_name(bench: Bench) -> None:
    three_nodes(bench)
    assert [line.split()[0] for line in bench.run("nodes", "--state=ready").out.splitlines()] == ["NODE", "n1", "n2", "n3"]
    assert "State:" in bench.run("nodes", "n2").out
    assert bench.run("nodes", "n9").code == 4
    assert json.loads(bench.run("nodes", "-o", "json").out)["kind"] == "LatticeNodeList"


def test_drain_says_who_why_and_since_when_and_asks_for_many(bench: Bench) -> None:
    three_nodes(bench)
    assert bench.run("node", "drain", "n1", "--reason", "new firmware").out == "Draining n1 (1 node)\n"
    wish = bench.cluster.get(NODES, "n1", type=dict[str, Any])["spec"]["drain"]
    assert wish == {"reason": "new firmware", "by": "alice", "since": ago(0)}
    many = bench.run("node", "drain", "--group", "g0", "--reason", "x")
    assert many.code == 2
    assert "Drain 3 of 3 nodes (n[1-3])?" in many.err
    assert bench.run("node", "drain", "n[1-9]", "--reason", "x", "--yes").code == 4
    assert bench.run("node", "undrain", "n1").code == 0
    assert "drain" not in bench.cluster.get(NODES, "n1", type=dict[str, Any])["spec"]
    assert bench.run("node", "drain", "n1").code == 2


def test_disable_fenced_must_be_vouched_for(bench: Bench) -> None:
    three_nodes(bench)
    assert bench.run("node", "disable", "n1", "--reason=dead", "--fenced").code == 2
    assert bench.run("node", "disable", "n1", "--reason=dead", "--fenced", "--yes").code == 0
    assert bench.cluster.get(NODES, "n1", type=dict[str, Any])["spec"]["disable"]["fenced"] is True


def test_forget_waits_for_the_scheduler_and_reports(bench: Bench) -> None:
    three_nodes(bench)
    bench.at(1, lambda: bench.cluster.delete(NODES, "n1"))
    assert bench.run("node", "forget", "n1", "--yes").out == "Forgotten n1 (1 node)\n"
    waited = bench.run("node", "forget", "n2", "--yes", "--timeout=2s")
    assert waited.code == 3
    assert bench.cluster.get(NODES, "n2", type=dict[str, Any])["metadata"]["annotations"] == {"lattice.dev/forget": "true"}


def test_add_makes_nodes_by_hand_and_leaves_those_that_stand(bench: Bench) -> None:
    three_nodes(bench)
    before = bench.cluster.get(NODES, "n1", type=dict[str, Any])
    added = bench.run("node", "add", "n[1,7-8]", "--group=g7")
    assert (added.code, added.out) == (0, "Added n[7-8] (2 nodes)\n")
    assert "n1 is known already" in added.err
    assert bench.cluster.get(NODES, "n7", type=dict[str, Any])["spec"] == {"group": "g7"}
    assert bench.cluster.get(NODES, "n1", type=dict[str, Any]) == before
    assert bench.run("node", "add").code == 2


def test_a_node_that_was_deleted_under_its_work_can_be_fenced_and_forgotten_by_name(bench: Bench) -> None:
    three_nodes(bench)
    bench.cluster.create(NODE_INDEXES, {"metadata": {"name": "lattice"}, "spec": {"names": {"1": "n1", "7": "n7", "8": "n8", "9": ""}}})
    assert bench.run("node", "disable", "n[1,7]", "--reason=dead", "--fenced", "--yes").code == 0
    assert bench.cluster.get(NODES, "n7", type=dict[str, Any])["spec"]["disable"]["fenced"] is True
    assert bench.run("node", "forget", "n8", "--yes", "--timeout=1s").code == 3
    assert bench.cluster.get(NODES, "n8", type=dict[str, Any])["metadata"]["annotations"] == {"lattice.dev/forget": "true"}
    assert "no node n9" in bench.run("node", "disable", "n9", "--reason=dead", "--fenced", "--yes").err
    assert bench.run("node", "drain", "n8x", "--reason=x", "--yes").code == 4


def test_a_node_that_is_not_drained_has_nothing_to_undrain(bench: Bench) -> None:
    for name, spec in (("n1", {"drain": {"reason": "dimm"}}), ("n2", {})):
        bench.cluster.create(NODES, {"metadata": {"name": name}, "spec": spec}, type=dict[str, Any])
    result = bench.run("node", "undrain", "n[1-2]")
    assert (result.code, result.out, result.err) == (0, "Undrained n1 (1 node)\n", "n2 is not drained: nothing to undrain\n")
    again = bench.run("node", "enable", "n1")
    assert (again.code, again.out, again.err) == (0, "", "n1 is not disabled: nothing to enable\n")
