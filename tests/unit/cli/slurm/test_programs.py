"""What Slurm's programs ask of the cluster, print, and refuse; the cluster is one in memory, without a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lattice.cli.registry import SLURM_PROGRAMS
from lattice.cli.slurm.exported import MOST_BYTES, passed_on, split_export
from lattice.errors import Denied
from lattice.kube.resources import ALLOCATIONS, NODES, VCLUSTERS
from lattice.scripts.asked import Given
from tests.unit.cli.conftest import COMPLETED, FAILED, NOW, RUNNING, WAITING, Bench, three_nodes

NO_SCRIPT = """\
sbatch: error: This does not look like a batch script.  The first
sbatch: error: line must start with #! followed by the path to an interpreter.
sbatch: error: For instance: #!/bin/sh
"""
SCRIPT = "#!/bin/bash\n#SBATCH -J train -t 10 -o out-%J.txt\n#SBATCH --signal=USR2@90\necho $1\n"


def submitted(bench: Bench) -> dict[str, Any]:
    """The Allocation that sbatch made; it has been given a number."""
    found = bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items
    assert len(found) == 1, found
    return dict(found[0])


def number_soon(bench: Bench, number: int = 12) -> None:
    """The scheduler gives whatever is there a number after a second."""

    def give() -> None:
        for one in bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items:
            bench.report(one["metadata"]["name"], {"number": number})

    bench.at(0.5, give)


def test_sbatch_prints_the_number_and_passes_arguments_variables_and_directory(bench: Bench) -> None:
    bench.environ |= {"DATA": "/data", "API_TOKEN": "x", "SLURM_JOB_ID": "3"}
    number_soon(bench)
    result = bench.slurm("sbatch", "--parsable", "-N2", "/dev/stdin", "a b", "--hold", stdin=SCRIPT)
    assert (result.code, result.out) == (0, "12\n"), result.err
    spec = submitted(bench)["spec"]
    assert spec["script"] == SCRIPT
    assert spec["scriptArguments"] == ["a b", "--hold"]
    assert "hold" not in spec
    assert (spec["resources"]["nodes"], spec["lifecycle"]["walltime"], spec["tags"]["name"]) == (2, "10m", "train")
    environment = spec["environment"]
    assert environment["slurmVariables"] is True
    assert environment["output"]["stdout"] == "out-%J.txt"
    assert environment["workdir"] == "/home/alice/run"
    assert environment["variables"]["DATA"] == "/data"
    assert not {"API_TOKEN", "SLURM_JOB_ID"} & environment["variables"].keys()
    assert "sbatch: warning: not passed to the job, since they look like secrets" in result.err
    assert "API_TOKEN" in result.err
    assert spec["lifecycle"]["signal"]


def test_sbatch_wraps_a_command_and_prints_slurms_sentence(bench: Bench) -> None:
    number_soon(bench)
    result = bench.slurm("sbatch", "--wrap", "hostname", "--export=NONE", "-J", "w")
    assert (result.code, result.out, result.err) == (0, "Submitted batch job 12\n", "")
    spec = submitted(bench)["spec"]
    assert spec["script"] == "#!/bin/sh\n# This script was created by sbatch --wrap.\n\nhostname\n"
    assert spec["environment"]["output"] == {"stdout": "slurm-%j.out"}
    assert "variables" not in spec["environment"]


def test_sbatch_holds_a_job_until_the_folder_is_there_that_its_number_names(bench: Bench, tmp_path: Path) -> None:
    number_soon(bench)
    bench.at(0.4, lambda: seen.append(submitted(bench)["spec"].get("hold")))
    seen: list[object] = []
    result = bench.slurm("sbatch", "--parsable", "--wrap=true", "-D", str(tmp_path), "-o", "logs/%j/out", "-e", "logs/%j/%j.err")
    assert (result.code, result.out) == (0, "12\n"), result.err
    assert (tmp_path / "logs/12").is_dir()
    assert (seen, submitted(bench)["spec"]["hold"]) == ([True], False)


def test_sbatch_reads_its_options_from_variables_and_the_command_line_is_stronger(bench: Bench) -> None:
    bench.environ |= {"SBATCH_TIMELIMIT": "30", "SBATCH_JOB_NAME": "from-there"}
    number_soon(bench)
    assert bench.slurm("sbatch", "--wrap=true", "-J", "mine").code == 0
    spec = submitted(bench)["spec"]
    assert (spec["lifecycle"]["walltime"], spec["tags"]["name"]) == ("30m", "mine")


def test_sbatch_says_which_variables_ask_for_what_is_not_so_and_refuses_those_that_are_not_served(bench: Bench) -> None:
    bench.environ |= {"SBATCH_MEM_PER_NODE": "4G", "SBATCH_SIGNAL": "B:USR1@60", "SBATCH_OVERCOMMIT": "1"}
    number_soon(bench)
    result = bench.slurm("sbatch", "--wrap=true")
    assert result.code == 0, result.err
    assert "SBATCH_MEM_PER_NODE=4G ignored (Lattice uses full-node scheduling, memory is not constrainable)" in result.err
    assert "SBATCH_OVERCOMMIT=1 ignored" in result.err
    assert submitted(bench)["spec"]["lifecycle"]["signal"], "that one is acted on"
    bench.environ["SBATCH_ARRAY_INX"] = "1-3"
    refused = bench.slurm("sbatch", "--wrap=true")
    assert (refused.code, "SBATCH_ARRAY_INX=1-3: job arrays are not served" in refused.err) == (1, True), refused.err


@pytest.mark.parametrize(
    ("words", "stdin", "code", "sentence"),
    [
        (["--foo", "--wrap=x"], "", 255, 'sbatch: unrecognized option \'--foo\'\nTry "sbatch --help" for more information\n'),
        (["/nonexistent"], "", 1, "sbatch: error: Unable to open file /nonexistent\n"),
        (["--wrap=x", "a"], "", 1, "sbatch: error: Script arguments not permitted with --wrap option\n"),
        ([], "echo hi\n", 1, NO_SCRIPT),
        (["--array=1-3", "--wrap=x"], "", 1, "sbatch: error: Batch job submission failed: --array=1-3: job arrays are not served"),
        ([], "#!/bin/sh\n#SBATCH --array=1-3\n", 1, "line 2: #SBATCH --array=1-3: job arrays are not served"),
        ([], "#!/bin/sh\n#SBATCH --nope=1\n", 1, "line 2: #SBATCH --nope=1: unrecognized option '--nope'"),
        (["-t", "soon", "--wrap=x"], "", 1, "sbatch: error: Batch job submission failed: --time=soon"),
        (["-p", "nope", "--wrap=x"], "", 1, 'vCluster "nope" not found'),
    ],
)  # fmt: skip
def test_sbatch_refuses_what_slurm_refuses_and_submits_nothing(
    bench: Bench, words: list[str], stdin: str, code: int, sentence: str
) -> None:
    result = bench.slurm("sbatch", *words, stdin=stdin)
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err
    assert not bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items


def test_sbatch_takes_back_what_is_given_no_number(bench: Bench) -> None:
    result = bench.slurm("sbatch", "--wrap=true")
    assert (result.code, result.out) == (1, "")
    assert (
        "sbatch: error: Batch job submission failed: no scheduler gave physics/wrap-x7k2p a number within 60 s: it is cancelled"
        in result.err
    )
    assert submitted(bench)["spec"]["cancel"] == {"reason": "sbatch: it was given no number in time"}


def test_variables_beyond_the_limit_go_the_largest_first_and_are_named() -> None:
    environ = {f"V{index}": "x" * 20_000 for index in range(4)} | {
        "SMALL": "1",
        "BASH_FUNC_f%%": "() { :; }",
        "a-b": "1",
        "HUGE": "y" * 40_000,
    }
    passed = passed_on(environ, {"NAMED": "1"})
    assert passed.variables.keys() == {"V0", "V1", "V2", "SMALL", "NAMED"}
    assert sum(len(name) + len(value) for name, value in passed.variables.items()) <= MOST_BYTES
    assert any("V3" in sentence and "HUGE" in sentence for sentence in passed.warnings)
    assert any("a-b" in sentence for sentence in passed.warnings)


@pytest.mark.parametrize(
    ("value", "named", "everything"),
    [(None, "", True), ("ALL", "", True), ("NONE", "", False), ("ALL,A=1", "A=1", True), ("A,B=2", "A,B=2", False)],
)
def test_export_passes_all_by_default_and_with_all(value: str | None, named: str, everything: bool) -> None:
    given = None if value is None else Given("export", value, "command line", f"--export={value}")
    assert split_export(given) == (named, everything)


def four(bench: Bench) -> None:
    """Jobs 1 to 4: running, waiting, failed and completed within five minutes."""
    bench.allocation("run", number=1, status=RUNNING, tags={"name": "sleeper"})
    bench.allocation("wait", number=2, status=WAITING, tags={"name": "wrap"})
    bench.allocation("fail", number=3, status=FAILED, tags={"name": "fails"})
    bench.allocation("done", number=4, status=COMPLETED, user="bob")


def test_squeue_lists_what_waits_and_runs_and_with_all_states_what_has_just_ended(bench: Bench) -> None:
    four(bench)
    assert bench.slurm("squeue", "-h", "-o", "%i %t %R").out == "2 PD (Resources)\n1 R nid001\n"
    assert bench.slurm("squeue", "--noheader", "-o", "%i %t", "-t", "all").out == "4 CD\n3 F\n2 PD\n1 R\n"
    assert bench.slurm("squeue", "-h", "-t", "F", "-o", "%i|%T|%r").out == "3|FAILED|NonZeroExitCode\n"
    assert bench.slurm("squeue", "-h", "--me", "-n", "sleeper", "-o", "%i").out == "1\n"
    assert bench.slurm("squeue", "-h", "-t", "all", "-u", "bob", "-o", "%i").out == "4\n"


def test_squeue_of_an_ended_job_prints_nothing_and_of_an_unknown_one_is_an_error(bench: Bench) -> None:
    four(bench)
    ended = bench.slurm("squeue", "-h", "-j", "4")
    assert (ended.code, ended.out) == (0, "")
    unknown = bench.slurm("squeue", "-j", "9999")
    assert (unknown.code, unknown.out, unknown.err) == (1, "", "slurm_load_jobs error: Invalid job id specified\n")
    assert bench.slurm("squeue", "-h", "-j", "1,9999", "-o", "%i").out == "1\n"
    assert bench.slurm("squeue", "-j", "abc").err == "squeue: error: Invalid job id: abc\n"
    assert bench.slurm("squeue", "--nope").code == 1


def test_scancel_cancels_what_has_not_ended_and_is_silent_about_the_rest(bench: Bench) -> None:
    four(bench)
    assert (bench.slurm("scancel", "1", "4", "9999").code, bench.slurm("scancel", "--signal=KILL", "2").out) == (0, "")
    assert bench.read("run")["spec"]["cancel"] == bench.read("wait")["spec"]["cancel"] == {"reason": "scancel"}
    assert "cancel" not in bench.read("done")["spec"]


def test_scancel_by_filters_takes_only_ones_own(bench: Bench) -> None:
    four(bench)
    bench.allocation("other", number=5, status=RUNNING, user="bob", tags={"name": "sleeper"})
    assert bench.slurm("scancel", "--name=sleeper").code == 0
    assert bench.read("run")["spec"]["cancel"]
    assert "cancel" not in bench.read("other")["spec"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "scancel: error: No job identification provided\n"),
        (["abc"], "scancel: error: Invalid job id abc\n"),
        (["--signal=NOPE", "1"], "Unknown job signal: NOPE\n"),
        (["--signal=USR1", "1"], "scancel: error: signal USR1 is not sent to a job by this release"),
    ],
)
def test_scancel_refuses_what_it_cannot_do_and_cancels_nothing(bench: Bench, words: list[str], sentence: str) -> None:
    four(bench)
    result = bench.slurm("scancel", *words)
    assert result.code == 1
    assert sentence in result.err
    assert "cancel" not in bench.read("run")["spec"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scancel", "-u", "alice", "--qos=debug"], "scancel: error: --qos is not served by this release: name the jobs"),
        (["scancel", "--me", "-R", "maintenance"], "scancel: error: --reservation is not served by this release"),
        (["squeue", "-q", "debug"], "squeue: error: --qos is not served by this release"),
        (["sinfo", "--json"], "sinfo: error: --json is not served by this release: `lattice nodes -o json`"),
        (["scontrol", "show", "job", "1", "--json"], "scontrol: error: --json is not served by this release"),
        (["sacct", "--json"], "sacct: error: --json is not served by this release: `lattice history -o json`"),
    ],
)
def test_what_would_choose_or_print_something_else_is_refused_and_not_passed_over(bench: Bench, words: list[str], sentence: str) -> None:
    four(bench)
    result = bench.slurm(*words)
    assert (result.code, result.out) == (1, "")
    assert sentence in result.err
    assert "cancel" not in bench.read("run")["spec"]
    assert "--json" not in bench.slurm("sinfo", "--help").out


def test_scancel_asks_before_each_job_where_it_is_to_ask(bench: Bench) -> None:
    four(bench)
    result = bench.slurm("scancel", "-i", "1", "2", stdin="n\ny\n")
    first = "Cancel job_id=1 name=sleeper partition=hpc-batch [y/n]? "
    assert (result.code, result.out.startswith(first)) == (0, True), result.out
    assert "cancel" not in bench.read("run")["spec"]
    assert bench.read("wait")["spec"]["cancel"]
    assert bench.slurm("scancel", "-i", "1", stdin="").code == 0
    assert "cancel" not in bench.read("run")["spec"]


def test_sinfo_tells_nodes_that_answer_from_those_that_do_not(bench: Bench) -> None:
    three_nodes(bench)
    vcluster = {"metadata": {"name": "all"}, "spec": {"policy": "Backfill"}}
    bench.cluster.create(VCLUSTERS, vcluster, type=dict[str, Any])
    bench.cluster.patch(NODES, "n2", {"status": {"state": "Down"}}, subresource="status", type=dict[str, Any])
    assert bench.slurm("sinfo", "-h", "-N", "-o", "%N", "-d").out == "n2\n"
    assert bench.slurm("sinfo", "-h", "-N", "-o", "%N", "-r").out == "n1\nn3\n"


def test_a_job_has_all_cpus_of_its_nodes(bench: Bench) -> None:
    four(bench)
    assert bench.slurm("squeue", "-h", "-o", "%i %C").out == "2 1\n1 1\n"  # nodes that nobody can read count as one CPU
    bench.cluster.create(NODES, {"metadata": {"name": "nid001"}, "spec": {"group": "g0"}}, type=dict[str, Any])
    bench.cluster.patch(NODES, "nid001", {"status": {"capabilities": {"cpus": 48}}}, subresource="status", type=dict[str, Any])
    assert bench.slurm("squeue", "-h", "-o", "%i %C").out == "2 1\n1 48\n"
    assert bench.slurm("squeue", "-h", "-S", "-C", "-o", "%i").out == "1\n2\n"
    assert "NumNodes=1 NumCPUs=48 " in bench.slurm("scontrol", "show", "job", "1").out
    assert bench.slurm("sacct", "-n", "-X", "-P", "-j", "1", "-o", "AllocCPUS").out == "48\n"


def test_squeue_without_ones_own_jobs_lists_those_of_others(bench: Bench) -> None:
    four(bench)
    bench.allocation("other", number=5, status=RUNNING, user="bob")
    assert bench.slurm("squeue", "-h", "--notme", "-o", "%i").out == "5\n"


def test_scancel_of_other_peoples_jobs_is_denied_in_slurms_words(bench: Bench) -> None:
    four(bench)
    bench.cluster.fake.fail(Denied("no"), verb="patch", resource=ALLOCATIONS)
    result = bench.slurm("scancel", "1", "2")
    assert (result.code, result.err) == (1, "scancel: error: Kill job error on job id 1: Access/permission denied\n")
    assert bench.read("wait")["spec"]["cancel"]


def test_sacct_lists_states_of_slurm_with_codes_and_steps(bench: Bench) -> None:
    four(bench)
    bench.time = NOW
    shown = bench.slurm("sacct", "-X", "-P", "-n", "-j", "1,2,3,4", "-o", "JobIDRaw,State,ExitCode,NodeList")
    assert (shown.code, shown.out.splitlines()) == (
        0, ["1|RUNNING|0:0|nid001", "2|PENDING|0:0|None assigned", "3|FAILED|3:0|nid001", "4|COMPLETED|0:0|nid001"],
    )  # fmt: skip
    assert bench.slurm("sacct", "-n", "-P", "-j", "3", "-o", "JobID,JobName").out == "3|fails\n3.batch|batch\n"
    assert bench.slurm("sacct", "-n", "-P", "-j", "3.batch", "-o", "JobID").out == "3.batch\n"
    assert bench.slurm("sacct", "-X").code == 0
    assert "Invalid field requested" in bench.slurm("sacct", "-o", "nope").err


def test_scontrol_holds_releases_requeues_and_updates(bench: Bench) -> None:
    four(bench)
    assert bench.slurm("scontrol", "hold", "2").code == 0
    assert bench.read("wait")["spec"]["hold"] is True
    assert bench.slurm("scontrol", "release", "2").code == 0
    assert bench.read("wait")["spec"]["hold"] is False
    assert bench.slurm("scontrol", "requeuehold", "1").code == 0
    assert (bench.read("run")["spec"]["requeueAttempt"], bench.read("run")["spec"]["hold"]) == (1, True)
    assert bench.slurm("scontrol", "update", "JobId=2", "TimeLimit=2:00:00", "JobName=new").code == 0
    assert (bench.read("wait")["spec"]["lifecycle"]["walltime"], bench.read("wait")["spec"]["tags"]) == ("2h", {"name": "new"})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hold", "9999"], "Invalid job id specified for job 9999\n"),
        (["hold", "1"], "Job is no longer pending execution"),
        (["requeue", "4"], "Invalid job id specified for job 4\n"),
        (["update", "JobId=2", "Nope=1"], "Update of this parameter is not supported: Nope=1\nRequest aborted\n"),
        (["update", "NodeName=n1", "State=DRAIN"], "`lattice node drain`"),
        (["show", "job", "9999"], "slurm_load_jobs error: Invalid job id specified\n"),
        (["frob"], "invalid keyword: frob\n"),
        (["suspend", "1"], "work is not suspended"),
        ([], "give a command"),
    ],
)
def test_scontrol_refuses_in_slurms_words_or_says_what_to_do(bench: Bench, words: list[str], sentence: str) -> None:
    four(bench)
    result = bench.slurm("scontrol", *words)
    assert result.code == 1
    assert sentence in result.err


def test_scontrol_shows_what_clients_read(bench: Bench) -> None:
    four(bench)
    shown = bench.slurm("scontrol", "show", "job", "3").out
    assert shown.startswith("JobId=3 JobName=fails\n   UserId=alice ")
    assert "JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n" in shown
    assert " ExitCode=3:0\n" in shown
    assert bench.slurm("scontrol", "-o", "show", "job", "3").out.count("\n") == 1
    config = bench.slurm("scontrol", "show", "config").out
    assert "MaxArraySize            = 1001\n" in config
    assert "MinJobAge               = 300 sec\n" in config
    assert bench.slurm("scontrol", "show", "hostnames", "n[1-2],m3").out == "n1\nn2\nm3\n"
    assert bench.slurm("scontrol", "show", "hostlist", "n1,n2").out == "n[1-2]\n"


@pytest.mark.parametrize("program", sorted(set(SLURM_PROGRAMS) - {"srun"}))
def test_every_program_tells_its_version_and_its_options(bench: Bench, program: str) -> None:
    assert bench.slurm(program, "--version").out == "slurm-wlm 22.05.8\n"
    assert bench.slurm(program, "--help").out.startswith(f"Usage: {program} [OPTIONS...]\n")


def test_salloc_and_srun_outside_of_work_say_what_to_do_and_allocate_nothing(bench: Bench) -> None:
    for program, words in (("salloc", ("-N2", "bash")), ("srun", ("-n4", "hostname"))):
        result = bench.slurm(program, *words)
        assert (result.code, result.out) == (1, "")
        assert f"{program}: error: Hint: put the" in result.err
    assert not bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items
