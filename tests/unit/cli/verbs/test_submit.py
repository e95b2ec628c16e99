"""What `lattice submit` sends, says and waits for, and with which code it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.cli.submission import name_of
from lattice.errors import Denied, Retry, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS, TENANTS
from tests.unit.cli.conftest import COMPLETED, FAILED, RUNNING, WAITING, Bench, said


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


def test_the_tenants_namespace_is_used(bench: Bench) -> None:
    bench.cluster.create(TENANTS, {"metadata": {"name": "ml"}, "spec": {"namespaces": ["ml-a", "ml-b"]}}, type=dict[str, Any])
    assert "namespace ml-a" in bench.run("status", "-t", "ml").err
    assert bench.run("status", "-t", "nobody").code == 4


def test_an_empty_name_of_a_file_is_told(bench: Bench) -> None:
    assert bench.run("submit", "").err == "Error: the name of the file is empty\n"


@pytest.mark.parametrize("flag", ["--image=", "--uenv=", "--tools-uenv=", "--view=", "--device="])
def test_an_empty_image_is_no_work_without_an_image(bench: Bench, flag: str) -> None:
    result = bench.run("submit", flag, "--walltime=1h", "--dry-run=client", "--", "true")
    assert (result.code, f"{flag}: the value is empty" in result.err) == (2, True)


def test_flags_of_containers_that_are_not_served_are_refused_and_those_that_are_so_anyway_pass(bench: Bench) -> None:
    asked = ("submit", "--image=team/app", "--walltime=1h", "--dry-run=client")
    refused = bench.run(*asked, "--container-mounts=/a:/b", "--", "true")
    assert (refused.code, "what the site lists" in refused.err) == (2, True)
    assert bench.run(*asked, "--container-mount-home", "--", "true").code == 0


def test_what_is_neither_a_label_nor_the_name_of_an_oci_image_is_not_warmed(bench: Bench) -> None:
    result = bench.run("cache", "warm", "--image=Registry Example", "--nodes=nid001")
    assert (result.code, "is no label" in result.err, "is no OCI image" in result.err) == (2, True, True)
