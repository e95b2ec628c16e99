"""The verbs of `lattice` against an in-memory cluster: what is sent, what is said, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.cli.submission import name_of
from lattice.errors import Denied, Rejected, Retry, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, CONFIGS, LEASES, LEDGERS, NODE_INDEXES, NODES, TENANTS, VCLUSTERS
from tests.unit.cli.conftest import COMPLETED, FAILED, NOW, RUNNING, WAITING, Bench, ago, said

# submit


def test_submit_waits_for_the_number_and_says_it(bench: Bench) -> None:
    bench.at(0.1, lambda: bench.report("my-job-x7k2p", {"number": 12345}))
    result = bench.run("submit", "--name", "My Job", "--nodes=4", "--walltime=24:00:00", "--", "echo", "a b")
    assert (result.code, result.out) == (0, "Submitted allocation 12345\n")
    assert result.err == "Note: the command runs once on each of 4 nodes\n"
    spec = bench.read("my-job-x7k2p")["spec"]
    assert spec["entrypoint"] == "echo 'a b'"
    assert spec["tags"] == {"name": "My Job"}
    assert spec["resources"] == {"nodes": 4}
    assert spec["lifecycle"] == {"walltime": "1d"}
    assert spec["environment"] == {"workdir": "/home/alice/run"}


def test_submit_without_a_number_in_two_seconds_says_the_name_and_why(bench: Bench) -> None:
    result = bench.run("submit", "--walltime=1h", "--", "true")
    assert (result.code, result.out) == (0, "Submitted allocation true-x7k2p\n")
    assert "no number after 2 s: the scheduler has never run" in result.err


def test_parsable_prints_only_the_number(bench: Bench) -> None:
    bench.at(0, lambda: bench.report("true-x7k2p", {"number": 7}))
    assert bench.run("submit", "--parsable", "--walltime=1h", "--", "true").out == "7\n"


def test_a_script_may_come_from_standard_input(bench: Bench) -> None:
    bench.at(0, lambda: bench.report("stdin-x7k2p", {"number": 7}))
    result = bench.run("submit", stdin="#!/bin/sh\n#SBATCH -t 10 --mem=1G\nhostname\n")
    assert result.code == 0
    assert result.err == "Warning: #SBATCH --mem=1G ignored (Lattice uses full-node scheduling, memory is not constrainable)\n"
    assert bench.read("stdin-x7k2p")["spec"]["lifecycle"] == {"walltime": "10m"}


def test_flags_are_stronger_than_the_script_and_the_environment(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#LATTICE --vcluster=a --walltime=1h\n#SBATCH --nodes=2\nhostname\n")
    bench.environ["LATTICE_VCLUSTER"] = "b"
    bench.at(0, lambda: bench.report("job-sh-x7k2p", {"number": 7}))
    assert bench.run("submit", str(script), "--nodes=3").code == 0
    spec = bench.read("job-sh-x7k2p")["spec"]
    assert (spec["vcluster"], spec["resources"]["nodes"], spec["lifecycle"]["walltime"]) == ("b", 3, "1h")


def test_a_request_id_submits_once(bench: Bench) -> None:
    argv = ("submit", "--request-id=run 42", "--walltime=1h", "--", "true")
    bench.at(0, lambda: bench.report(name_of("true", "run 42", ""), {"number": 7}))
    first = bench.run(*argv)
    bench.random = "zzzzz"
    second = bench.run(*argv)
    assert (first.code, second.code) == (0, 0)
    assert len(bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items) == 1
    other = bench.run("submit", "--request-id=run 42", "--walltime=1h", "--", "false")
    assert other.code == 1
    assert "request id 'run 42' was used for something else" in other.err


def test_a_lost_answer_is_looked_up_and_nothing_is_submitted_twice(bench: Bench) -> None:
    bench.cluster.fake.fail(UnknownOutcome("lost"), verb="create", after=True)
    bench.at(0, lambda: bench.report("true-x7k2p", {"number": 7}))
    result = bench.run("submit", "--walltime=1h", "--", "true")
    assert (result.code, result.out) == (0, "Submitted allocation 7\n")
    assert len(bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items) == 1


def test_a_refusal_has_the_numbers_and_a_hint(bench: Bench) -> None:
    sentence = 'allocation rejected: tenant "physics" would exceed max_nodes quota (current: 195, requested: 10, limit: 200)'
    message = f'create allocations.lattice.dev physics/x: admission webhook "v" denied the request: {sentence}. Hint: cancel something'
    bench.cluster.fake.fail(Denied(message, reason="QuotaExceeded"), verb="create")
    result = bench.run("submit", "--walltime=1h", "--", "true")
    assert result.code == 1
    assert result.err.splitlines() == [
        'Error: allocation rejected: tenant "physics" would exceed max_nodes quota',
        "  Current: 195",
        "  Requested: 10",
        "  Limit: 200",
        "  Hint: Cancel something",
    ]


def test_submit_wait_exits_with_the_code_of_the_work(bench: Bench) -> None:
    bench.at(0.1, lambda: bench.report("true-x7k2p", {"number": 7, **RUNNING}))
    bench.at(30, lambda: bench.report("true-x7k2p", FAILED))
    result = bench.run("submit", "--watch", "--walltime=1h", "--", "true")
    assert result.code == 3
    assert "7 Running nid001" in result.err
    assert "7 Failed (TaskFailed, exit 3)" in result.err


def test_submit_wait_shows_progress_and_why_it_failed(bench: Bench) -> None:
    unfit = {
        **FAILED,
        "startTime": None,
        "exit": None,
        "conditions": [said("Finished", "True", "StartFailed", "'/root' cannot be entered")],
    }
    bench.at(0.1, lambda: bench.report("true-x7k2p", {"number": 7, **WAITING}))
    bench.at(30, lambda: bench.report("true-x7k2p", unfit))
    result = bench.run("submit", "--wait", "--walltime=1h", "--", "true")
    assert result.code == 125
    assert result.err == "7 Pending (WaitingForNodes)\n7 Failed (StartFailed)\n  StartFailed: '/root' cannot be entered\n"


def test_a_quiet_submit_wait_says_only_how_it_failed(bench: Bench) -> None:
    bench.at(0.1, lambda: bench.report("true-x7k2p", {"number": 7, **FAILED}))
    failed = bench.run("submit", "--wait", "-q", "--walltime=1h", "--", "true")
    assert failed.err.splitlines()[:2] == ["7 Failed (TaskFailed, exit 3)", "  TaskFailed: rank 0 on nid001 ended with 3"]
    bench.random = "other"
    bench.at(0.1, lambda: bench.report("true-other", {"number": 8, **COMPLETED}))
    assert bench.run("submit", "--wait", "-q", "--walltime=1h", "--", "true").err == ""


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


def test_a_client_dry_run_asks_no_cluster(bench: Bench) -> None:
    bench.cluster.fake.fail(Retry("away"), times=99)
    result = bench.run("submit", "--dry-run=client", "-t", "physics", "--vcluster=hpc-batch", "--walltime=1h", "--", "true")
    assert result.code == 0
    document = yaml.safe_load(result.out)
    assert document["metadata"]["namespace"] == "physics"
    assert document["spec"]["vcluster"] == "hpc-batch"
    assert "user" not in document["spec"]


def test_a_manifest_keeps_its_name_and_unknown_fields_are_refused(bench: Bench, tmp_path: Path) -> None:
    manifest = tmp_path / "a.yaml"
    good = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "fixed"}, "spec": {"entrypoint": "true"}}
    manifest.write_text(yaml.safe_dump(good))
    bench.at(0, lambda: bench.report("fixed", {"number": 7}))
    assert bench.run("submit", "-f", str(manifest), "--hold").code == 0
    assert bench.read("fixed")["spec"]["hold"] is True
    manifest.write_text(yaml.safe_dump({**good, "spec": {"entrypoint": "true", "ressources": {}}}))
    wrong = bench.run("submit", "-f", str(manifest))
    assert wrong.code == 2
    assert "spec.ressources" in wrong.err
    assert "resources" in wrong.err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("submit", "/"), "is a directory"),
        (("submit", "/no/such/file"), "there is no file"),
        (("submit", "--task-group=0-9", "--", "true"), "task groups are not served"),
        (("submit", "--walltime=0", "--", "true"), "a walltime of 0"),
        (("submit", "--nodes=0", "--", "true"), "is not a number of nodes"),
        (("submit", "--"), "there is no command"),
        (("submit", "-f", "x", "--nodes=2"), "does not go with -f"),
        (("status", "--state=sleeping"), "no such state"),
        (("status", "--since=soon"), "--since=soon: say how long ago, such as 24h or 7d, or a time"),
        (("logs", "1", "--since=soon"), "--since=soon: say how long ago"),
        (("cancel",), "nothing to cancel"),
        (("update", "x"), "nothing to update"),
        (("node", "drain", "--reason=x"), "name nodes, or a group"),
    ],
)
def test_bad_input_is_2_with_a_sentence(bench: Bench, argv: tuple[str, ...], sentence: str) -> None:
    result = bench.run(*argv)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


# status, why


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


# wait, cancel, hold, update


def test_wait_exits_with_the_works_own_code(bench: Bench) -> None:
    bench.allocation("a", number=1, status=FAILED)
    bench.allocation("b", number=2, status=COMPLETED)
    bench.allocation("c", number=3, status={"phase": "Cancelled"})
    bench.allocation("d", number=4, status=RUNNING)
    assert bench.run("wait", "1").code == 3
    assert bench.run("wait", "2").code == 0
    assert bench.run("wait", "3").code == 125
    assert bench.run("wait", "1", "2").code == 7
    assert bench.run("wait", "4", "--timeout=10s").code == 3
    assert bench.run("wait", "4", "--for=started").code == 0


def test_waiting_survives_an_api_server_that_is_away_for_a_while(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    fault = bench.cluster.fake.fail(Retry("away"), verb="get", times=40)
    fault.times = 0
    bench.at(1, lambda: setattr(fault, "times", 40))
    bench.at(60, lambda: bench.report("a", COMPLETED))
    assert bench.run("wait", "a").code == 0


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


# logs


def test_logs_prefix_nodes_join_lines_and_say_what_is_missing(bench: Bench) -> None:
    bench.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://g"}}, "lattice-system", type=dict[str, Any]
    )
    bench.allocation("a", number=1, status={**RUNNING, "nodes": "n[1-2]", "nodeCount": 2})
    records: list[dict[str, Any]] = [
        {"node": "n1", "stream": "stdout", "time": NOW, "text": "hel", "partial": True},
        {"node": "n2", "stream": "stdout", "time": NOW, "text": "world"},
        {"node": "n1", "stream": "stdout", "time": NOW, "text": "lo"},
        {"node": "n1", "stream": "stdout", "time": NOW, "text": "last", "partial": True},
        {"node": "n2", "dropped": 100},
        {"node": "n2", "gone": True},
        {"end": True},
    ]
    bench.records = [json.dumps(record).encode() + b"\n" for record in records]
    result = bench.run("logs", "-f", "1", "--tail=5", "--stderr", "--since=10m")
    assert result.code == 0
    assert result.out == "n2: world\nn1: hello\nn1: last\n"
    assert "node n2: 100 bytes were dropped" in result.err
    assert "node n2 is gone" in result.err
    assert bench.questions == ["/v1/namespaces/physics/allocations/a/logs?follow=true&stream=stderr&tail=5&since=2026-09-21T14%3A03%3A20Z"]


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


def test_output_of_earlier_attempts_is_named_and_read(bench: Bench) -> None:
    bench.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://g"}}, "lattice-system", type=dict[str, Any]
    )
    first = {"attempt": 1, "nodes": "nid001", "startTime": ago(300), "endTime": ago(200), "reason": "NodeLost"}
    bench.allocation("a", number=1, status={**WAITING, "attempt": 2, "attempts": [first]})
    waits = bench.run("logs", "1")
    assert (waits.code, "earlier output: `lattice logs 1 --attempt 1`" in waits.err) == (3, True)
    bench.records = [b'{"node":"nid001","stream":"stdout","text":"before"}']
    assert bench.run("logs", "1", "--attempt=1").out == "before\n"
    assert "attempt=1" in bench.paths[-1]
    missing = bench.run("logs", "1", "--attempt=3")
    assert (missing.code, "attempts that ran: 1" in missing.err) == (4, True)


def test_history_asks_for_what_is_named_of_the_last_year(bench: Bench) -> None:
    bench.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://g"}}, "lattice-system", type=dict[str, Any]
    )
    bench.run("history", "12,15-17", "train", "--name=other")
    assert "number=12%2C15-17&name=train%2Cother" in bench.paths[-1]
    assert "since=365d" in bench.paths[-1]


def test_logs_of_what_has_not_started_say_so(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    result = bench.run("logs", "1")
    assert result.code == 3
    assert "has not started: Pending (WaitingForNodes)" in result.err


def test_a_stream_that_ends_before_the_work_is_no_success(bench: Bench) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://g"
    bench.allocation("a", number=1, status=RUNNING)
    assert bench.run("logs", "-f", "1").code == 6


# nodes


def three_nodes(bench: Bench) -> None:
    for index in (1, 2, 3):
        node = {"metadata": {"name": f"n{index}"}, "spec": {"group": "g0"}}
        bench.cluster.create(NODES, node, type=dict[str, Any])
        bench.cluster.patch(NODES, f"n{index}", {"status": {"state": "Ready", "index": index}}, subresource="status", type=dict[str, Any])


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


# admin


def test_tenants_and_vclusters_are_made_and_listed(bench: Bench) -> None:
    assert bench.run("admin", "tenant", "create", "--name=physics", "--max-nodes=200").code == 0
    assert bench.run("admin", "tenant", "set-quota", "--name=physics", "--max-nodes=none", "--on-exceeded=queue").code == 0
    assert bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["quota"] == {"onExceeded": "Queue"}
    assert bench.run("admin", "vcluster", "create", "hpc-batch", "--group=g0", "--max-walltime=7-0", "--partition=normal").code == 0
    spec = bench.cluster.get(VCLUSTERS, "hpc-batch", type=dict[str, Any])["spec"]
    assert spec == {"nodes": {"selector": {"group": ["g0"]}}, "partitionNames": ["normal"], "limits": {"maxWalltime": "7d"}}
    assert "hpc-batch" in bench.run("admin", "vcluster", "list").out
    assert json.loads(bench.run("admin", "tenant", "list", "-o", "json").out)["kind"] == "TenantList"


def test_hard_limits_of_a_tenant_and_its_users_are_set_as_in_the_book(bench: Bench) -> None:
    words = ("--max-nodes", "250", "--max-concurrent-allocations", "50", "--max-nodes-per-user=40", "--max-running-per-user=10")
    bench.run("admin", "tenant", "create", "physics")
    assert bench.run("admin", "tenant", "update", "physics", *words, "--max-pending-per-user=1000").code == 0
    quota = {"maxNodes": 250, "maxConcurrentAllocations": 50, "perUser": {"maxNodes": 40, "maxRunning": 10, "maxPending": 1000}}
    assert bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["quota"] == quota
    assert "40 nodes, 10 running, 1000 pending" in bench.run("admin", "tenant", "list", "-o", "wide").out
    assert "PER USER" not in bench.run("admin", "tenant", "list").out
    changed = ("--max-allocations=none", "--max-nodes-per-user=none", "--max-pending-per-user=0")
    assert bench.run("admin", "tenant", "set-quota", "physics", *changed).code == 0
    quota = {"maxNodes": 250, "perUser": {"maxRunning": 10, "maxPending": 0}}
    assert bench.cluster.get(TENANTS, "physics", type=dict[str, Any])["spec"]["quota"] == quota
    refused = bench.run("admin", "tenant", "update", "physics", "--max-running-per-user=few")
    assert (refused.code, "--max-running-per-user=few: not a number" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize(
    "text",
    [
        "groups:\n  top: {s0: 'n[1-2]', s1: n3}\n",
        "# slurm\nSwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Nodes=n3,n9\nSwitchName=top Switches=s[0-1]\nSwitchName=root Switches=top\n",
    ],
    ids=["ours", "slurm"],
)
def test_a_topology_is_applied_from_both_forms(bench: Bench, tmp_path: Path, text: str) -> None:
    three_nodes(bench)
    file = tmp_path / "topology"
    file.write_text(text)
    assert bench.run("admin", "topology", "apply", str(file)).out == "Placed 3 nodes; 0 unchanged\n"
    assert bench.cluster.get(NODES, "n3", type=dict[str, Any])["spec"] == {"group": "top", "switch": "s1"}
    assert bench.run("admin", "topology", "apply", str(file)).out == "Placed 0 nodes; 3 unchanged\n"


def test_options_are_shown_with_their_defaults_and_set_strictly(bench: Bench) -> None:
    assert bench.run("admin", "config", "get", "scheduling.cycle_interval").out == "1s\n"
    assert bench.run("admin", "config", "set", "scheduling.cycleInterval=2s", "compat.set_slurm_env=true").code == 0
    spec = bench.cluster.get(CONFIGS, "lattice", type=dict[str, Any])["spec"]
    assert spec == {"scheduling": {"cycleInterval": "2s"}, "compat": {"setSlurmEnv": True}}
    assert bench.run("admin", "config", "get", "scheduling.cycleInterval").out == "2s\n"
    assert bench.run("admin", "config", "set", "accounting.enabled=true").code == 2
    assert bench.run("admin", "config", "set", "compat.setSlurmEnv=maybe").code == 2


def ledger(bench: Bench, shard: str = "1||", **changes: Any) -> None:
    status = {
        "epoch": 1, "term": "t", "seq": 5, "commit": "c", "nextNumber": 10, "recoveries": 0, "totalNodes": 2,
        "sensitive": {"max": 0, "used": 0}, "tenants": {}, "shards": [shard] + ["1||"] * 63, **changes,
    }  # fmt: skip
    bench.cluster.create(LEDGERS, {"metadata": {"name": "lattice"}}, type=dict[str, Any])
    bench.cluster.patch(LEDGERS, "lattice", {"status": status}, subresource="status", type=dict[str, Any])
    bench.cluster.create(NODE_INDEXES, {"metadata": {"name": "lattice"}, "spec": {"names": {"0": "n1", "1": "n2"}}}, type=dict[str, Any])


def test_the_ledger_is_verified_by_a_parser_of_its_own(bench: Bench) -> None:
    ledger(bench)
    assert bench.run("admin", "ledger", "verify").out == "The ledger is sound: epoch 1, seq 5, 2 nodes\n"


def test_a_faulty_ledger_is_1_with_each_fault(bench: Bench) -> None:
    ledger(bench, shard="9|x")
    result = bench.run("admin", "ledger", "verify")
    assert result.code == 1
    assert "shard 0" in result.out


def test_recover_asks_by_annotation_and_waits(bench: Bench) -> None:
    ledger(bench)
    nothing = bench.run("admin", "ledger", "recover", "--yes")
    assert nothing.code == 1
    assert "nothing to recover" in nothing.err
    condition = {"metadata": {"annotations": {"lattice.dev/condition": "LedgerWentBack: nodes have seen seq 90"}}}
    bench.cluster.patch(LEDGERS, "lattice", condition, type=dict[str, Any])
    bench.at(3, lambda: bench.cluster.patch(LEDGERS, "lattice", {"status": {"recoveries": 1}}, subresource="status", type=dict[str, Any]))
    result = bench.run("admin", "ledger", "recover", "--yes")
    assert result.code == 0
    assert result.out.startswith("Recovered: epoch 1")
    assert bench.cluster.get(LEDGERS, "lattice", type=dict[str, Any])["metadata"]["annotations"]["lattice.dev/recover"] == ago(0)


def test_admin_status_is_1_when_nobody_leads(bench: Bench) -> None:
    three_nodes(bench)
    bench.allocation("a", number=1, status=RUNNING)
    result = bench.run("admin", "status", "-o", "json")
    answer = json.loads(result.out)
    assert result.code == 1
    assert (answer["schema"], answer["nodes"], answer["allocations"]) == ("lattice.dev/status/v1", {"Ready": 3}, {"Running": 1})


# errors and exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Denied("get x: forbidden"), 5),
        (Retry("no connection", reason="NoConnection"), 6),
        (Rejected("bad", reason="Invalid"), 1),
    ],
)
def test_errors_of_the_server_have_their_exit_codes(bench: Bench, error: Exception, code: int) -> None:
    bench.cluster.fake.fail(error, times=9)  # type: ignore[arg-type]
    result = bench.run("why", "a")
    assert result.code == code
    assert result.err.startswith("Error: ")


def test_the_configuration_gives_defaults_and_refuses_what_it_does_not_know(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("output_format: name\n")
    bench.allocation("a", number=1, status=RUNNING)
    assert bench.run("--config", str(file), "status").out == "allocation.lattice.dev/a\n"
    file.write_text("colour: true\n")
    result = bench.run("status", "--config", str(file))
    assert result.code == 2
    assert "'colour' is no option" in result.err


def test_the_tenants_namespace_is_used(bench: Bench) -> None:
    bench.cluster.create(TENANTS, {"metadata": {"name": "ml"}, "spec": {"namespaces": ["ml-a", "ml-b"]}}, type=dict[str, Any])
    assert "namespace ml-a" in bench.run("status", "-t", "ml").err
    assert bench.run("status", "-t", "nobody").code == 4


# sentences


def test_a_timeout_that_is_none_names_its_flag(bench: Bench) -> None:
    bench.allocation("train", number=7)
    result = bench.run("wait", "7", "--timeout=2")
    assert (result.code, result.err.splitlines()[0].startswith("Error: --timeout=2: '2' is not a duration")) == (2, True), result.err


def test_what_has_ended_takes_no_walltime_any_more(bench: Bench) -> None:
    bench.allocation("train", number=7, status=COMPLETED)
    result = bench.run("update", "7", "--walltime=5m")
    assert (result.code, result.err) == (1, "Error: allocation 7 is Completed: no walltime and no class counts for it any more\n")
    assert bench.read("train")["spec"]["lifecycle"]["walltime"] == "1h"


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("compat.qosMapping=high=9", "the option holds several: write compat.qosMapping.NAME=9"),
        ("scheduling.event=Off", "no option 'scheduling.event'; did you mean scheduling.events?"),
        ("foo", "write KEY=VALUE"),
    ],
)
def test_an_option_that_cannot_be_set_so_is_told_how(bench: Bench, pair: str, sentence: str) -> None:
    result = bench.run("admin", "config", "set", pair)
    assert (result.code, sentence in result.err) == (2, True), result.err


def test_a_tenant_is_shown_with_its_limits_and_people(bench: Bench) -> None:
    spec = {"quota": {"maxNodes": 4, "perUser": {"maxNodes": 2}}, "access": {"admins": ["ada"]}, "accountNames": ["six@v100"]}
    bench.cluster.create(TENANTS, {"metadata": {"name": "bio"}, "spec": spec}, type=dict[str, Any])
    shown = bench.run("admin", "tenant", "get", "bio").out
    for words in ("Limits:       nodes 4", "Per user:     2 nodes", "Admins:       ada", "Accounts:     six@v100", "none by default"):
        assert words in shown
    assert bench.run("admin", "tenant", "get", "nosuch").code == 4


def test_an_empty_name_of_a_file_is_told(bench: Bench) -> None:
    assert bench.run("submit", "").err == "Error: the name of the file is empty\n"


def test_a_node_that_is_not_drained_has_nothing_to_undrain(bench: Bench) -> None:
    for name, spec in (("n1", {"drain": {"reason": "dimm"}}), ("n2", {})):
        bench.cluster.create(NODES, {"metadata": {"name": name}, "spec": spec}, type=dict[str, Any])
    result = bench.run("node", "undrain", "n[1-2]")
    assert (result.code, result.out, result.err) == (0, "Undrained n1 (1 node)\n", "n2 is not drained: nothing to undrain\n")
    again = bench.run("node", "enable", "n1")
    assert (again.code, again.out, again.err) == (0, "", "n1 is not disabled: nothing to enable\n")
