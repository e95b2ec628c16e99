"""What `status` and `why` show of allocations, and how an allocation is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from lattice.kube.resources import ALLOCATIONS, LEASES
from tests.unit.cli.conftest import COMPLETED, FAILED, RUNNING, WAITING, Bench, ago, said

STARTED = [said("Scheduled", "True", "Placed"), said("Started", "True", "Started", before=120)]


def test_what_waits_for_a_vcluster_to_open_shows_no_expected_start(bench: Bench) -> None:
    closed = {"phase": "Pending", "conditions": [said("Scheduled", "False", "VClusterClosed", "it is Closed")]}
    bench.allocation("a", number=1, status={**closed, "expectedStart": {"p50": ago(-60), "p90": ago(-600)}})
    assert "START" not in bench.run("status").out


def test_what_ends_shows_when_kill_follows(bench: Bench) -> None:
    going = [*STARTED, said("Ending", "True", "Cancelled"), said("Ready", "False", "Ending", "cancelled; KILL follows")]
    bench.allocation("a", number=1, status={**RUNNING, "conditions": going, "killTime": ago(-26)}, cancel={"reason": ""})
    bench.allocation("b", number=2, status={**RUNNING, "startTime": ago(3610)})
    listed = bench.run("status")
    assert "(Ending, KILL in 26s)" in listed.out
    assert "(WalltimeExceeded, KILL in 20s)" in listed.out
    assert "KILL in 26s" in bench.run("status", "1").out
    assert "Ending: cancelled; KILL follows" in bench.run("why", "1").out


def test_a_wish_that_no_status_shows_yet_is_not_called_running(bench: Bench) -> None:
    bench.allocation("a", number=1, status={**RUNNING, "conditions": [*STARTED, said("Ready", "False", "Running")]}, cancel={})
    assert "CancelRequested: TERM follows at once, and KILL 30s after it" in bench.run("why", "1").out


def test_status_shows_mine_that_live_and_what_ended_within_the_hour(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    bench.allocation("b", number=2, status=WAITING)
    bench.allocation("c", number=3, status=FAILED)
    bench.allocation("d", number=4, status={**COMPLETED, "endTime": ago(7200)})
    bench.allocation("e", number=5, user="bob", status=RUNNING)
    bench.cluster.create(
        LEASES, {"metadata": {"name": "lattice-scheduler"}, "spec": {"holderIdentity": "x", "renewTime": ago(200)}}, "lattice-system",
        type=dict[str, Any],
    )  # fmt: skip
    result = bench.run("status")
    assert [line.split()[1] for line in result.out.splitlines()[1:]] == ["a", "b", "c"]
    assert f"Warning: the scheduler is silent since {ago(200)} (200 s): nothing is placed until it is back" in result.err
    assert [line.split()[1] for line in bench.run("status", "--all", "--state=running").out.splitlines()[1:]] == ["a", "e"]
    assert [line.split()[1] for line in bench.run("status", "--since=1d").out.splitlines()[1:]] == ["a", "b", "c", "d"]


def test_documents_are_lists_or_the_one_that_was_named(bench: Bench) -> None:
    uid = bench.allocation("a", number=1, status=RUNNING)
    bench.allocation("b", number=2, status=RUNNING)
    listed = json.loads(bench.run("status", "-o", "json").out)
    assert (listed["apiVersion"], listed["kind"], len(listed["items"])) == ("lattice.dev/v1alpha1", "AllocationList", 2)
    assert json.loads(bench.run("status", "1", "-o", "json").out)["metadata"]["uid"] == uid
    assert bench.run("-o", "name", "status").out == "allocation.lattice.dev/a\nallocation.lattice.dev/b\n"


@pytest.mark.parametrize("reference", ["a", "1", "physics/a", "UID"])
def test_an_allocation_goes_by_name_number_uid_prefix_and_namespace(bench: Bench, reference: str) -> None:
    uid = bench.allocation("a", number=1, status=RUNNING)
    bench.allocation("b", number=2, status=RUNNING)
    assert "physics/a" in bench.run("status", uid[:36] if reference == "UID" else reference).out


def test_what_is_ambiguous_lists_the_candidates_and_what_is_not_there_says_so(bench: Bench) -> None:
    bench.allocation("7", number=1)
    bench.allocation("b", number=7)
    result = bench.run("status", "7")
    assert result.code == 2
    assert "'7' is ambiguous: it may be 7 (1, uid" in result.err
    assert bench.run("status", "nothing").code == 4
    assert bench.run("status", "7", "b").code == 7


def test_what_ended_is_said_once_and_without_the_score_of_its_placement(bench: Bench) -> None:
    ended = {"phase": "Cancelled", "conditions": [said("Finished", "True", "Cancelled", "cancelled: wrong input")]}
    score = {"total": "0.3", "terms": {"f1": "0.5"}}
    bench.allocation("a", number=1, status={**ended, "score": score})
    assert "Reason:      Cancelled: wrong input\n" in bench.run("status", "1").out
    assert bench.run("wait", "1").err == "1 Cancelled\n  Cancelled: wrong input\n"
    assert "Score" not in bench.run("why", "1").out
    assert json.loads(bench.run("why", "1", "-o", "json").out)["score"]["total"] == 0.3


def test_the_formats_for_programs_leave_out_who_owns_which_field(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    owners = {"metadata": {"managedFields": [{"manager": "kubectl"}], "labels": {"kept": "yes"}}}
    bench.cluster.patch(ALLOCATIONS, "a", owners, "physics", type=dict[str, Any])
    for found in (
        json.loads(bench.run("status", "1", "-o", "json").out),
        yaml.safe_load(bench.run("status", "-o", "yaml").out)["items"][0],
    ):
        assert (found["metadata"]["labels"], "managedFields" in found["metadata"]) == ({"kept": "yes"}, False)


def test_a_name_that_is_not_there_leads_to_what_was_meant(bench: Bench) -> None:
    for number in (1, 2):
        bench.allocation(f"train-{number}xx", number=number, status=RUNNING, tags={"name": "train"})
    by_job = bench.run("status", "train")
    assert (by_job.code, by_job.err.splitlines()) == (
        4, ['Error: no allocation "train" in namespace physics', "  Hint: That is the job name of 2, 1"],
    )  # fmt: skip
    assert "Did you mean train-1xx?" in bench.run("cancel", "trian-1xx").err
    assert "`lattice status --all` lists them" in bench.run("wait", "99").err


def test_why_says_the_reason_the_numbers_and_the_next_step(bench: Bench) -> None:
    bench.allocation("b", number=2, status=WAITING)
    result = bench.run("why", "2")
    assert result.out.splitlines()[:3] == [
        f"Allocation 2 (physics/b) is Pending since {ago(300)} (5m)",
        "  WaitingForNodes: 4 nodes fit, 2 are free",
        "  Next: wait, or ask for fewer nodes",
    ]
    answer = json.loads(bench.run("why", "2", "-o", "json").out)
    assert (answer["schema"], answer["reason"], answer["since"]) == ("lattice.dev/why/v1", "WaitingForNodes", ago(300))


def test_several_are_named_by_lists_and_ranges_and_one_by_its_job_name(bench: Bench) -> None:
    for number, name in ((1, "a"), (2, "b"), (4, "c")):
        bench.allocation(
            name, number=number, status=COMPLETED if number == 1 else RUNNING, tags={"name": "train" if number < 4 else "solo"}
        )
    listed = bench.run("status", "1,4", "-o", "name").out
    assert listed == "allocation.lattice.dev/a\nallocation.lattice.dev/c\n"
    assert bench.run("status", "2-7", "-o", "name").out == "allocation.lattice.dev/b\nallocation.lattice.dev/c\n"
    assert "is Running" in bench.run("why", "solo").out
    assert "Allocation 2 (" in bench.run("why", "train").out  # the only one that has not ended
    backwards, none = bench.run("status", "4-2"), bench.run("cancel", "7-9")
    assert (backwards.code, "runs backwards" in backwards.err) == (2, True)
    assert (none.code, "no allocation has a number of 7-9" in none.err) == (4, True)
    assert bench.run("cancel", "1,2-4").code == 0
    assert ["cancel" in bench.read(name)["spec"] for name in "abc"] == [False, True, True]


def test_status_lists_what_is_active_and_takes_nothing_behind_two_dashes(bench: Bench) -> None:
    bench.allocation("a", number=1, status=COMPLETED)
    bench.allocation("b", number=2, status=RUNNING)
    assert bench.run("status", "--active", "-o", "name").out == "allocation.lattice.dev/b\n"
    assert bench.run("status", "--active", "--since=1h").code == 2
    assert bench.run("status", "--", "-1").code == 2
