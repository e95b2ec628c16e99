"""`lattice quota tree` and `lattice quota explain` against a gateway that answers, that is away, or that sends nonsense."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.errors import Retry
from lattice.kube.resources import CONFIG_MAPS, LEASES
from lattice.scheduling.queries.answers import Part, Work
from lattice.scheduling.queries.quota_answers import (
    GATES_SCHEMA,
    QUOTA_SCHEMA,
    Borrower,
    Gate,
    LeftOut,
    Limit,
    QuotaExplanation,
    QuotaGroup,
    Quotas,
    QuotaTreeShown,
    Share,
    Startable,
    Total,
)
from tests.schemas import valid
from tests.unit.cli.conftest import COMPLETED, WAITING, Bench, ago


def share(used: int, runtime: int, least: int, most: int | None, request: int, **fields: Any) -> Share:
    return Share(**{"resource": "nodes", "used": used, "request": request, "runtime": runtime, "min": least, "effective_min": least, "max": most, **fields})  # fmt: skip


TREE = Quotas(
    QUOTA_SCHEMA,
    ago(0),
    [
        QuotaTreeShown(
            "",
            [Total("nodes", 100, 75, 100), Total("cpu", 6_400_000, 1_500, 2_000)],
            [
                QuotaGroup("above yours", 0, "physics", shares=[share(55, 60, 40, 100, 80, borrowed=15)]),
                QuotaGroup(
                    "yours", 1, "theory", "physics", leaf=True, over_since=ago(90), startable=[Startable("nodes", 0, 0, "physics")],
                    shares=[share(30, 25, 20, 60, 30, borrowed=10), share(1_500, 4_000, 0, 64_000, 2_000, resource="cpu")],
                ),
                QuotaGroup("others", 1, parent="physics", count=1, shares=[share(25, 35, 20, None, 50, borrowed=5)]),
                QuotaGroup("others", 0, count=3, shares=[share(20, 40, 60, None, 20)]),
            ],
            hidden=4,
        )
    ],
)  # fmt: skip
GATES = QuotaExplanation(
    GATES_SCHEMA, ago(0), Work(namespace="physics", name="b", number=2, uid="u", user="alice"), "physics", "hpc-batch", 4,
    holds=False, preemptible=True, leaf="theory",
    gates=[
        Gate("Itself", "Passes", message="not held, and its vcluster is open"),
        Gate("HardQuota", "Passes", limits=[Limit("tenant physics", "quota.maxNodes", "nodes", 12, 4, 20)]),
        Gate(
            "QuotaTree", "Blocks", first=True, reason="WaitingForQuotaShare", message='quota "physics": nodes: 4 asked for',
            limits=[
                Limit("theory", "max", "nodes", 30, 4, 60, depth=1, request=34, min=20, max=60),
                Limit("physics", "runtime", "nodes", 55, 4, 58, blocks=True, depth=0, request=80, min=40, max=100),
            ],
            borrowers=[Borrower(15, "nodes", count=2)],
        ),
        Gate("VCluster", "Unlimited"),
        Gate("Nodes", "NotAsked", message="a cycle looks for nodes once every gate before is open"),
    ],
)  # fmt: skip


@pytest.fixture
def desk(bench: Bench) -> Bench:
    """A cluster with a gateway, and a scheduler that is silent for a minute."""
    body = {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://gateway:8443", "ca": ""}}
    bench.cluster.create(CONFIG_MAPS, body, "lattice-system", type=dict[str, Any])
    spec = {"holderIdentity": "vm-1", "leaseDurationSeconds": 15, "renewTime": ago(60)}
    bench.cluster.create(LEASES, {"metadata": {"name": "lattice-scheduler"}, "spec": spec}, "lattice-system", type=dict[str, Any])
    return bench


def answers(bench: Bench, answer: Part) -> None:
    bench.records = [msgspec.json.encode(answer)]


def test_tree_draws_bars_of_what_is_used_and_may_be_used_and_says_what_may_still_start(desk: Bench) -> None:
    answers(desk, TREE)
    result = desk.run("quota", "tree", "--resource", "nodes")
    assert (result.code, desk.paths) == (0, ["/v1/quota?namespaces=physics"])
    assert result.out.splitlines() == [
        "QUOTA                RESOURCE                            USED  RUNTIME  MIN  MAX  BORROWED  REQUEST  NOTE",
        "(total)              nodes     ██████████████████▒▒▒▒▒▒    75      100    —    —         —      100  —",
        "  physics            nodes     █████████|███▒··········    55       60   40  100        15       80  —",
        "    theory *         nodes     ████████|█!!············    30       25   20   60        10       30  over for 1m30s",
        "    (1 other group)  nodes     █████████████|███▒▒▒▒▒▒▒    25       35   20    —         5       50  —",
        "  (3 other groups)   nodes     ████████▒▒▒▒▒▒▒▒       |    20       40   60    —         —       20  —",
        "",
        "theory: 0 nodes may start now (physics above it leaves no more)",
    ]
    assert "█ used" in result.err


def test_tree_says_which_groups_break_a_rule_and_which_objects_are_left_out(desk: Bench) -> None:
    (tree,) = TREE.trees
    physics = msgspec.structs.replace(tree.groups[0], reason="MinSumAboveParent", message="min.nodes of the groups below it is 50 in sum")
    lost = LeftOut(object="ElasticQuota b (lattice.dev)", reason="NameTaken", message="the name is taken")
    answers(desk, Quotas(QUOTA_SCHEMA, ago(0), [msgspec.structs.replace(tree, groups=[physics, *tree.groups[1:]])], left_out=[lost]))
    lines = desk.run("quota", "tree", "--resource", "nodes").out.splitlines()
    assert lines[2].endswith("  MinSumAboveParent")
    assert lines[-3:-1] == [
        "Left out: ElasticQuota b (lattice.dev): the name is taken [NameTaken]",
        "physics: min.nodes of the groups below it is 50 in sum [MinSumAboveParent]",
    ]
    answers(desk, Quotas(QUOTA_SCHEMA, ago(0), [], "every object is left out", [lost]))
    assert desk.run("quota", "tree").out.splitlines()[1].startswith("Left out: ElasticQuota b")


def test_tree_fits_the_terminal_and_is_coloured_there_unless_told_otherwise(desk: Bench) -> None:
    answers(desk, TREE)
    desk.columns = 80
    assert all(len(line) <= 80 for line in desk.run("quota", "tree", "--no-color").out.splitlines())
    assert "\x1b[31m!" in desk.run("quota", "tree").out
    desk.environ["NO_COLOR"] = "1"
    assert "\x1b" not in desk.run("quota", "tree").out


def test_tree_as_a_document_has_the_published_schema_and_wide_has_more(desk: Bench) -> None:
    answers(desk, TREE)
    document = valid(desk.run("quota", "tree", "-o", "json").out)
    assert [group.get("name") for group in document["trees"][0]["groups"]] == ["physics", "theory", None, None]
    assert desk.run("quota", "tree", "-o", "name").out.split() == ["physics", "theory"]
    assert "EFFECTIVE MIN" in desk.run("quota", "tree", "-o", "wide").out


def test_a_resource_that_no_tree_counts_is_not_found_and_named(desk: Bench) -> None:
    answers(desk, TREE)
    result = desk.run("quota", "tree", "--resource", "gpu")
    assert (result.code, result.err) == (4, "Error: no quota tree counts 'gpu'. Counted: nodes, cpu\n")


def test_without_a_tree_the_sentence_is_the_answer(desk: Bench) -> None:
    answers(desk, Quotas(QUOTA_SCHEMA, ago(0), [], "no quota tree divides this cluster: no ElasticQuota is declared"))
    assert desk.run("quota", "tree", "-q").out == "no quota tree divides this cluster: no ElasticQuota is declared\n"


def test_watch_shows_it_again_until_it_is_interrupted(desk: Bench) -> None:
    answers(desk, TREE)

    def interrupt() -> None:
        raise KeyboardInterrupt

    desk.at(9, interrupt)
    result = desk.run("quota", "tree", "-w")
    assert (result.code, len(desk.paths)) == (0, 2)


def test_explain_shows_every_gate_with_its_numbers_and_marks_the_first_that_blocks(desk: Bench) -> None:
    desk.allocation("b", number=2, status=WAITING)
    answers(desk, GATES)
    result = desk.run("quota", "explain", "2")
    assert (result.code, desk.questions) == (0, ["/v1/quota/explain/physics/b"])
    lines = result.out.splitlines()
    assert lines[:3] == [
        "Allocation 2 physics/b of tenant physics in hpc-batch asks for 4 nodes; it may be preempted",
        "Its group of the quota tree: theory",
        "  1 itself: open; not held, and its vcluster is open",
    ]
    assert '→ 3 quota tree: BLOCKS; WaitingForQuotaShare: quota "physics": nodes: 4 asked for' in lines
    assert [line.split() for line in lines if line.lstrip().startswith("✗")] == [
        ["✗", "physics", "may", "use", "now", "nodes", "55", "4", "58", "40", "100", "80"]
    ]
    assert "     nodes: 15 borrowed by 2 other groups" in lines
    assert "  4 vcluster, borrowing: open; no limit is set" in lines
    assert lines[-1] == "Blocked first by quota tree: WaitingForQuotaShare"


def test_explain_as_a_document_has_the_published_schema_and_as_a_name_the_reason(desk: Bench) -> None:
    desk.allocation("b", number=2, status=WAITING)
    answers(desk, GATES)
    assert valid(desk.run("quota", "explain", "2", "-o", "json").out)["gates"][2]["first"] is True
    assert desk.run("quota", "explain", "2", "-o", "name").out == "WaitingForQuotaShare\n"


def test_work_that_has_ended_has_no_gates_and_nothing_is_asked(desk: Bench) -> None:
    desk.allocation("b", number=2, status=COMPLETED)
    result = desk.run("quota", "explain", "2")
    assert (result.code, desk.questions) == (4, [])
    assert "has ended (Completed)" in result.err


@pytest.mark.parametrize("words", [("tree",), ("explain", "2")])
def test_a_silent_scheduler_is_named_with_the_time_and_nonsense_is_no_answer(desk: Bench, words: tuple[str, ...]) -> None:
    desk.allocation("b", number=2, status=WAITING)
    desk.records = [b"{}"]
    assert desk.run("quota", *words).code == 6
    desk.gateway_fails = Retry("the scheduler does not answer", reason="SchedulerSilent")
    result = desk.run("quota", *words)
    assert result.code == 6
    assert f"the scheduler is silent since {ago(60)}" in result.err


def test_help_has_examples(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("quota", "--help").code == 0
    assert "\n  lattice quota explain 42 " in capsys.readouterr().out
