"""People who know Slurm: what they type is understood, or the answer says what is meant here."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lattice.cli.__main__ import parse
from lattice.cli.failures import explain
from lattice.cli.hints import BOOK, PROGRAMS, meant_by, meant_by_option
from lattice.cli.registry import ALIASES, VERBS, overview, split_verb
from lattice.errors import Denied, Retry
from lattice.kube.resources import CONFIGS, TENANTS
from lattice.scripts.options import SLURM, SLURM_SHORT, Argument

from .conftest import Bench

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "coming-from-slurm.md"
_CODE = re.compile(r"`(lattice [^`…]+)`")
_WITHIN = re.compile(r"\$\((lattice [^)]+)\)")


def commands(text: str) -> list[str]:
    """The commands of `lattice` that a text names, those within `$(…)` as well."""
    found = [_WITHIN.sub("NAME", code) for code in _CODE.findall(text)] + _WITHIN.findall(text)
    return [command for command in found if command.split()[1] not in PROGRAMS]


@pytest.mark.parametrize("command", commands(PAGE.read_text(encoding="utf-8")))
def test_every_command_for_people_from_slurm_is_understood(command: str) -> None:
    verb, rest = split_verb(shlex.split(command)[1:])
    assert verb in VERBS
    assert parse(verb, rest).verb == verb


def test_the_page_speaks_of_each_program_that_has_its_like_here() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(commands(text)) > 30
    for program, said in PROGRAMS.items():
        if program not in text:
            assert "not served" in said or program in ("sacctmgr", "sattach"), program


@pytest.mark.parametrize("word", [*PROGRAMS, *BOOK])
def test_a_word_of_slurms_or_of_the_book_is_no_verb_and_says_what_is_meant(word: str) -> None:
    assert word not in VERBS
    assert word not in ALIASES
    sentence, instead = meant_by(word)
    assert word in sentence
    for known in re.findall(r"`lattice (\w+)", instead):
        assert known in VERBS


def test_a_program_of_slurms_as_a_verb_is_answered_with_ours() -> None:
    done = subprocess.run([sys.executable, "-m", "lattice.cli", "squeue"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "Error: 'squeue' is a program of Slurm's, not a verb of lattice",
        "  Hint: `lattice status --all` lists work, `lattice queue` the order of what waits",
    ]


def test_the_overview_leads_there_and_fits_a_narrow_terminal() -> None:
    lines = overview().splitlines()
    assert max(map(len, lines)) <= 80
    assert "sbatch is submit, squeue status" in overview()
    assert all(any(line.startswith(f"  {verb} ") for line in lines) for verb in VERBS)


def test_a_terminal_that_lacks_a_letter_gets_a_question_mark_and_no_traceback() -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    argv = [sys.executable, "-m", "lattice.cli", "submit", "--help"]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60, env=environ)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"[ARGUMENT ?]" in done.stdout


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("-N", "2", "job.sh"), "-N: write --nodes"),
        (("-N2", "job.sh"), "-N: write --nodes"),
        (("-J", "a", "-p", "long", "job.sh"), "-J: write --job-name; -p: write --partition"),
        (("-a", "0-9", "job.sh"), "-a: job arrays are not served"),
        (("-o", "out-%j.txt", "job.sh"), "--stdout out-%j.txt"),
        (("job.sh", "input.dat", "3"), "--tasks-on=head-node -- ./SCRIPT input.dat 3"),
        (("--frobnicate", "job.sh"), "lattice submit --help"),
        (("--waltime=5m", "job.sh"), "did you mean --walltime?"),
    ],
)
def test_a_short_option_of_sbatch_is_answered_with_its_long_one(
    bench: Bench, argv: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("submit", *argv).code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("letter", sorted(SLURM_SHORT))
def test_every_short_option_of_sbatch_leads_to_a_long_one_that_submit_takes_or_refuses(letter: str) -> None:
    hint = meant_by_option(f"unrecognized arguments: -{letter} x")
    option = SLURM_SHORT[letter]
    assert hint == f"-{letter}: {option.refused or f'write --{option.name}'}"
    if not option.refused and option.name not in ("quiet", "verbose", "wait", "output"):
        value = [] if option.argument.value != "required" else ["1"]
        assert getattr(parse("submit", [f"--{option.name}", *value, "job.sh"]), f"ask:{option.name}") is not None


def test_long_options_of_sbatch_count_on_the_command_line_and_what_is_moot_is_said(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 --mem=1G\nhostname\n")
    bench.at(0, lambda: bench.report("job-sh-x7k2p", {"number": 7}))
    result = bench.run("submit", "--gres=gpu:4", "--mem=64G", "--exclusive", "--time=0:30:00", str(script))
    assert result.code == 0
    assert bench.read("job-sh-x7k2p")["spec"]["resources"] == {"nodes": 1, "gpus": 4}
    assert "Warning: --mem=64G ignored (Lattice uses full-node scheduling, memory is not constrainable)" in result.err
    for refused in ("--dependency=aftercorr:12", "--licenses=x", "--array=0-9"):
        assert bench.run("submit", refused, str(script)).code == 2


def test_every_option_of_sbatch_that_is_refused_in_a_script_is_refused_on_the_command_line(bench: Bench) -> None:
    for name, option in SLURM.items():
        if option.refused:
            given = f"--{name}" if option.argument is Argument.NONE else f"--{name}=1"
            result = bench.run("submit", given, "--", "true")
            assert (result.code, option.refused.partition(";")[0] in result.err) == (2, True), name


def test_a_time_given_as_a_tenant_and_a_number_given_as_a_namespace_are_explained(bench: Bench) -> None:
    late = bench.run("submit", "-t", "1:00", "--", "true")
    assert (late.code, "-t the tenant: a number of tasks is --ntasks, a time --walltime (given: 1:00)" in late.err) == (4, True)
    sentence = 'User "alice" cannot create resource "allocations" in API group "lattice.dev" in the namespace '
    for given, slipped in (("8", True), ("1:00", True), ("chemistry", False), ("2d-flow", False)):
        assert ("--ntasks" in explain(Denied(f'{sentence}"{given}"'))[-1]) == slipped
    bench.cluster.create(TENANTS, {"metadata": {"name": "physics"}, "spec": {"namespaces": ["physics"]}}, type=dict[str, object])
    other = bench.run("submit", "-t", "chemistry", "--", "true")
    assert (other.code, "--walltime" in other.err) == (4, False)


def test_the_account_of_another_site_is_named_with_its_line(bench: Bench) -> None:
    result = bench.run("submit", stdin="#!/bin/sh\n#SBATCH -t 10 -A s1234\nhostname\n")
    assert result.code == 4
    assert "the tenant comes from line 2: #SBATCH -t 10 -A s1234; -t TENANT is stronger" in result.err
    bench.cluster.create(TENANTS, {"metadata": {"name": "physics"}, "spec": {"accountNames": ["six@v100"]}}, type=dict[str, Any])
    known = bench.run("submit", stdin="#!/bin/sh\n#SBATCH -t 10 -A s1234\nhostname\n")
    assert known.code == 4
    assert 'line 2: #SBATCH -t 10 -A s1234: account "s1234" means no tenant of yours (physics)' in known.err
    assert "spec.accountNames" in known.err


def test_the_account_of_a_tenant_means_it_for_its_members_and_for_admins(bench: Bench) -> None:
    bench.cluster.create(TENANTS, {"metadata": {"name": "physics"}, "spec": {"accountNames": ["six@v100"]}}, type=dict[str, Any])
    script = "#!/bin/sh\n#SBATCH -N 1 -t 10 -A six@v100\nhostname\n"
    bench.at(0, lambda: bench.report("stdin-x7k2p", {"number": 7}))
    assert bench.run("submit", stdin=script).code == 0
    assert bench.read("stdin-x7k2p")["spec"]["tenant"] == "physics"
    bench.cluster.rules = [{"resources": ["tenants"], "resourceNames": ["physics"], "verbs": ["get"]}]
    bench.cluster.fake.fail(Denied("no"), verb="list", times=1)
    bench.random = "other"
    bench.at(0, lambda: bench.report("stdin-other", {"number": 8}))
    assert bench.run("submit", stdin=script).code == 0


def test_a_client_dry_run_leaves_out_what_only_the_cluster_knows_and_says_which_line(bench: Bench) -> None:
    script = "#!/bin/sh\n#SBATCH -N 1 -t 10\n#SBATCH -A six@gpu\n#SBATCH -p gpu_p1,long\nhostname\n"
    bench.cluster.fake.fail(Retry("away"), times=99)
    result = bench.run("submit", "--dry-run=client", "-o", "json", stdin=script)
    assert result.code == 0
    spec = json.loads(result.out)["spec"]
    assert {"tenant", "vcluster"}.isdisjoint(spec)
    for line in (
        "line 3: #SBATCH -A six@gpu: no cluster was asked what account six@gpu means: spec.tenant is left out here",
        "line 4: #SBATCH -p gpu_p1,long: no cluster was asked what partition gpu_p1,long means",
    ):
        assert line in result.err
    named = bench.run("submit", "--dry-run=client", stdin="#!/bin/sh\n#LATTICE --vcluster=gpu_p1 --walltime=1m\nhostname\n")
    assert named.code == 2
    assert "line 2: #LATTICE --vcluster=gpu_p1 --walltime=1m: 'gpu_p1' cannot be the name of a vcluster" in named.err
    assert "comes from" not in bench.run("submit", "-t", "s1234", "--", "true").err


def test_a_script_that_reads_slurms_variables_asks_the_site_whether_they_are_there(bench: Bench) -> None:
    script = "#!/bin/sh\n#SBATCH -t 10\ncd $SLURM_SUBMIT_DIR\n"
    config = {"metadata": {"name": "lattice"}, "spec": {"compat": {"setSlurmEnv": False}}}
    bench.at(0, lambda: bench.report("stdin-x7k2p", {"number": 7}))
    assert bench.run("submit", stdin=script).err == "", "a site that leaves it open sets them for scripts with such lines"
    bench.cluster.create(CONFIGS, config, type=dict[str, object])
    bench.random = "zzzzz"
    bench.at(0, lambda: bench.report("stdin-zzzzz", {"number": 8}))
    assert "SLURM_SUBMIT_DIR is LATTICE_SUBMIT_DIR" in bench.run("submit", stdin=script).err


@pytest.mark.parametrize(
    ("words", "output", "code"), [("--help", ">/dev/full", 1), ("--help", ">&-", 0), ("status --help", ">&-", 0), ("status", ">&-", 2)]
)
def test_output_that_cannot_be_written_is_no_traceback(words: str, output: str, code: int) -> None:
    lattice = Path(sys.executable).with_name("lattice")
    environ = {**os.environ, "KUBECONFIG": "/nonexistent"}
    done = subprocess.run(["sh", "-c", f"{lattice} {words} {output}"], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr.startswith("Error: ")) == (code, code != 0), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("status", "-j", "7"), "-j: name them: lattice status 12,14 or 12-17"),
        (("cancel", "--jobs", "7"), "--jobs: name them: lattice cancel 12,14"),
        (("update", "7", "--class", "8"), "did you mean --preemption-class?"),
        (("update", "7", "--nodes", "8"), "--nodes: what it asks for is fixed"),
        (("admin", "tenant", "set-quota", "bio", "--nodes", "2"), "did you mean --max-nodes? lattice admin tenant set-quota --help"),
        (("admin", "tenant", "delete", "bio"), "kubectl delete tenant NAME"),
        (("node", "show", "nid001"), "lattice nodes NODE"),
        (("nodes", "--frobnicate"), "lattice nodes --help"),
    ],
)
def test_what_people_expect_elsewhere_is_led_to_what_there_is(
    bench: Bench, argv: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run(*argv).code == 2
    assert f"Hint: {hint}" in capsys.readouterr().err


def test_an_argument_that_sbatch_lets_people_leave_out_is_taken_and_does_not_count(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nhostname\n")
    bench.at(0, lambda: bench.report("job-sh-x7k2p", {"number": 7}))
    result = bench.run("submit", "--exclusive=user", "--walltime=5m", str(script))
    assert (result.code, result.err) == (0, "")


def test_a_program_beside_gets_what_follows_its_name_also_where_a_flags_value_is_the_same_word(tmp_path: Path) -> None:
    program = tmp_path / "lattice-echoes"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    argv = [sys.executable, "-m", "lattice.cli", "--context", "echoes", "echoes", "x", "echoes"]
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert (done.stdout, done.returncode) == ("x echoes\n", 0), done.stderr
