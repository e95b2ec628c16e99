"""What `cancel`, `hold`, `release` and `update` ask for, of how many, and what they leave alone."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.unit.cli.conftest import COMPLETED, RUNNING, WAITING, Bench, three_nodes


def test_cancel_sets_the_wish_once_and_leaves_ended_ones_alone(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    bench.allocation("b", number=2, status=COMPLETED)
    result = bench.run("cancel", "1", "2", "--reason", "wrong input")
    assert (result.code, result.out) == (
        0,
        "Cancelling allocation 1: TERM now, KILL after 30s if it is still there; `lattice wait 1` waits for its end\n",
    )
    assert bench.read("a")["spec"]["cancel"] == {"reason": "wrong input"}
    assert "cancel" not in bench.read("b")["spec"]


@pytest.mark.parametrize(
    "words", [("12.3", "13"), ("12.3", "--all-mine"), ("12.3", "--state=pending"), ("12.3", "--name=train")], ids=" ".join
)
def test_a_cancel_of_launches_and_of_allocations_at_once_is_refused_and_cancels_nothing(bench: Bench, words: tuple[str, ...]) -> None:
    bench.allocation("a", number=12, status=RUNNING)
    bench.allocation("b", number=13, status=WAITING)
    refused = bench.run("cancel", *words)
    assert refused.code != 0
    assert "launches or allocations, not both" in refused.err
    assert "cancel" not in bench.read("a")["spec"]
    assert "cancel" not in bench.read("b")["spec"]


def test_cancel_asks_above_ten(bench: Bench) -> None:
    for number in range(1, 13):
        bench.allocation(f"a{number}", number=number, status=WAITING)
    assert bench.run("cancel", "--all-mine").code == 2
    bench.columns = 80
    refused = bench.run("cancel", "--all-mine", stdin="n\n")
    assert (refused.code, refused.out) == (1, "")
    assert len(bench.run("cancel", "--all-mine", "--state=pending", "--yes").out.splitlines()) == 12


def test_cancel_of_all_mine_acts_and_prints_by_name(bench: Bench) -> None:
    for number, name in enumerate(("ring", "alpha", "mesh"), start=1):
        bench.allocation(name, number=number, status=WAITING)
    done = bench.run("cancel", "--all-mine", "-o", "name")
    assert done.out.splitlines() == [f"allocation.lattice.dev/{name}" for name in ("alpha", "mesh", "ring")]
    versions = {name: int(bench.read(name)["metadata"]["resourceVersion"]) for name in ("alpha", "mesh", "ring")}
    assert sorted(versions, key=lambda name: versions[name]) == ["alpha", "mesh", "ring"]


def test_what_a_verb_changes_is_shown_in_the_formats_for_programs(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    bench.allocation("b", number=2, status=COMPLETED)
    held = json.loads(bench.run("hold", "1", "-o", "json").out)
    assert (held["kind"], held["spec"]["hold"]) == ("Allocation", True)
    assert yaml.safe_load(bench.run("release", "1", "-o", "yaml").out)["spec"]["hold"] is False
    cancelled = json.loads(bench.run("cancel", "1", "2", "-o", "json").out)
    assert (cancelled["kind"], [item["metadata"]["name"] for item in cancelled["items"]]) == ("AllocationList", ["a"])
    assert bench.run("hold", "1", "-o", "name").out == "allocation.lattice.dev/a\n"
    waited = bench.run("wait", "2", "-o", "json")
    assert (waited.code, json.loads(waited.out)["status"]["phase"]) == (0, "Completed")
    three_nodes(bench)
    drained = json.loads(bench.run("node", "drain", "n1", "--reason=x", "-o", "json").out)
    assert (drained["metadata"]["name"], drained["spec"]["drain"]["reason"]) == ("n1", "x")
    assert bench.run("node", "undrain", "n[1-2]", "-o", "name").out == "latticenode.lattice.dev/n1\nlatticenode.lattice.dev/n2\n"


def test_hold_and_release_are_for_pending_ones(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    bench.allocation("b", number=2, status=RUNNING)
    assert bench.run("hold", "1").out == "Held allocation 1\n"
    assert bench.read("a")["spec"]["hold"] is True
    assert bench.run("release", "1").out == "Released allocation 1\n"
    assert bench.read("a")["spec"]["hold"] is False
    assert bench.run("hold", "2").code == 1


def test_update_sends_only_what_was_named(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    assert bench.run("update", "1", "--walltime=2:00:00", "--preemption-class=7", "--tag=x=1").code == 0
    spec = bench.read("a")["spec"]
    assert spec["lifecycle"] == {"walltime": "2h", "preemptionClass": 7}
    assert spec["tags"] == {"x": "1"}


@pytest.mark.parametrize("text", ["²", "11", "0000000011", "9" * 5000])
def test_a_preemption_class_is_a_number_from_0_to_10(bench: Bench, text: str) -> None:
    bench.allocation("a", number=1, status=WAITING)
    result = bench.run("update", "1", f"--preemption-class={text}")
    assert (result.code, "not a class from 0 to 10" in result.err) == (2, True)


def test_what_has_ended_takes_no_walltime_any_more(bench: Bench) -> None:
    bench.allocation("train", number=7, status=COMPLETED)
    result = bench.run("update", "7", "--walltime=5m")
    assert (result.code, result.err) == (1, "Error: allocation 7 is Completed: nothing of its lifecycle counts any more\n")
    assert bench.read("train")["spec"]["lifecycle"]["walltime"] == "1h"


def test_requeue_names_the_attempt_that_runs_and_leaves_what_waits_alone(bench: Bench) -> None:
    bench.allocation("a", number=1, status={**RUNNING, "attempt": 3, "nodes": "n1"})
    bench.allocation("b", number=2, status=WAITING)
    assert bench.run("requeue", "1").out == "Requeued allocation 1: attempt 3 ends, another one follows\n"
    assert bench.read("a")["spec"]["requeueAttempt"] == 3
    assert "hold" not in bench.read("a")["spec"]
    assert bench.run("requeue", "1", "--hold").code == 0
    assert bench.read("a")["spec"]["hold"] is True
    refused = bench.run("requeue", "2")
    assert (refused.code, "it waits already" in refused.err) == (1, True)


def test_requeue_of_ended_work_submits_it_again_without_what_was_of_that_run_alone(bench: Bench) -> None:
    bench.allocation("a", number=1, status=COMPLETED)
    made = json.loads(bench.run("requeue", "1", "--hold", "-o", "json").out)
    assert (made["spec"]["rerunOf"], made["spec"]["hold"]) == ("1", True)
    before = bench.read("a")
    assert made["metadata"]["name"] != "a"
    assert made["spec"]["resources"] == before["spec"]["resources"]
    assert "requeueAttempt" not in before["spec"]


def test_update_of_pending_work_takes_slurms_times(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    assert bench.run("update", "1", "--not-before=now+1hour", "--deadline=2099-01-01T00:00:00Z", "--requeue=never").code == 0
    lifecycle = bench.read("a")["spec"]["lifecycle"]
    assert (lifecycle["deadline"], lifecycle["requeue"]["policy"], bool(lifecycle["notBefore"])) == ("2099-01-01T00:00:00Z", "Never", True)
    assert bench.run("update", "1", "--not-before=none").code == 0
    assert bench.read("a")["spec"]["lifecycle"].get("notBefore") is None
    for wrong in ("--requeue=sometimes", "--max-requeue=101", "--not-before=soon"):
        assert bench.run("update", "1", wrong).code == 2
