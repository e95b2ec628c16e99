"""What people read of the steps of an allocation's nodes."""

from __future__ import annotations

from lattice.cli.render.preparation import preparation_text
from lattice.lifecycle.preparation import BEGUN, DONE, UNDOING, NodeSteps, Preparation, StepRow

READY = [StepRow("scope", DONE), StepRow("mounts", DONE)]


def pulls(node: str, brought: int, since: float = 90.0) -> NodeSteps:
    return NodeSteps(node, [StepRow("scope", DONE), StepRow("images", BEGUN, since, brought << 20, 1 << 30)])


def text(*nodes: NodeSteps, started: bool = False, left_out: int = 0) -> str:
    return preparation_text(Preparation(1, list(nodes), left_out), 100.0, started=started)


def test_a_few_nodes_have_a_line_each_with_bytes_and_time() -> None:
    assert text(pulls("n1", 256), NodeSteps("n2", READY), NodeSteps("n3", [])) == (
        "n1: images, 256Mi of 1Gi, for 10s\n1 node ready, 1 node not begun"
    )


def test_of_many_nodes_a_step_has_a_line_and_names_the_slowest() -> None:
    many = [pulls(f"n{number}", 512, since=90.0 + number) for number in range(1, 6)]
    hooks = NodeSteps("n9", [StepRow("hooks", BEGUN, 99.5)])
    assert text(*many, hooks, left_out=3).splitlines() == [
        "images on 5 nodes, 2560Mi of 5Gi, for 9s (n1 for longest)",
        "hooks on 1 node (n9 for longest)",
        "3 nodes not asked",
    ]


def test_who_waits_for_a_registry_says_for_which_since_when_and_what_it_answered() -> None:
    def waits(node: str, since: float, said: str) -> NodeSteps:
        return NodeSteps(node, [StepRow("images", BEGUN, 50.0, 0, 1 << 20, waits=said, waits_since=since)])

    assert text(waits("n1", 60.0, "the registry r cannot be asked"), pulls("n2", 1)).splitlines()[:2] == [
        "n1: images, 0 of 1Mi, for 50s",
        "  waiting for 40s (since 1970-01-01T00:01:00Z): the registry r cannot be asked",
    ]
    many = [waits(f"n{number}", 60.0 + number, f"said {number}") for number in range(1, 6)]
    assert text(*many, pulls("n9", 1)).splitlines()[1] == "5 nodes of these:  waiting for 39s (since 1970-01-01T00:01:01Z): said 1"


def test_of_work_that_runs_nothing_is_said_until_something_is_undone() -> None:
    assert text(NodeSteps("n1", READY), started=True, left_out=3) == ""
    assert text(NodeSteps("n1", [StepRow("hooks", UNDOING, 40.0)]), started=True) == "n1: undoing hooks, for 1m"


def test_a_silent_node_says_why() -> None:
    assert text(NodeSteps("n1", [], "the agent of node n1 does not answer")) == "the agent of node n1 does not answer"


def test_what_has_brought_nothing_yet_says_so() -> None:
    assert text(pulls("n1", 0, since=100.0)) == "n1: images, 0 of 1Gi"
