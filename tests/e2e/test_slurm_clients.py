"""Clients that drive Slurm, unmodified from PyPI, drive Lattice by its programs of Slurm, as alice with an account of her own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e import slurm_clients
from tests.e2e.conftest import Room
from tests.e2e.waiting import patient, until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="people with accounts of their own need root")]
CLIENTS = Path(__file__).parent / "scripts/slurm_clients"


@dataclass
class Shell:
    """alice's shell on a login node: her home, her account, the clients and Slurm's programs on her PATH."""

    home: Path
    programs: Path
    tenant: str
    address: str
    """Where nodes reach this machine."""

    def run(self, *words: str, ok: bool = True, seconds: float = 120, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a program in her home; fails the test on another exit code than 0 unless `ok` is False."""
        account = self.home.stat()
        environ = {
            "HOME": str(self.home), "USER": "alice", "LOGNAME": "alice", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
            "PATH": f"{self.programs}:{slurm_clients.environment()}/bin:/usr/bin:/bin", "LATTICE_TENANT": self.tenant,
            "SECRET_TOKEN": "not to be passed",
        }  # fmt: skip
        done = subprocess.run(
            words, cwd=self.home, env=environ, user=account.st_uid, group=account.st_gid, extra_groups=(), input=stdin,
            capture_output=True, text=True, timeout=patient(seconds), check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def python(self, script: str, *words: str) -> list[str]:
        """Runs one of the client scripts and returns the lines that it prints."""
        return self.run("python3", str(self.programs / script), *words).stdout.splitlines()


@pytest.fixture(scope="module")
def shell(control_plane: Instance, lab: Room) -> Iterator[Shell]:
    """alice's shell, whose home has her kubeconfig, as people have it."""
    if why := slurm_clients.missing():
        pytest.skip(why)
    home = control_plane.where.user_home("alice")
    kube = home / ".kube"
    kube.mkdir(exist_ok=True)
    site = control_plane.site()
    known = control_plane.kubeconfig("alice").read_text()
    (kube / "config").write_text(known.replace(site.server, site.node_server))  # the programs run in her work, too
    (kube / "config").chmod(0o600)
    for path in (kube, kube / "config"):
        os.chown(path, home.stat().st_uid, home.stat().st_gid)
    folder = Path(tempfile.mkdtemp(prefix="lattice-slurm-clients-", dir="/var/tmp"))
    folder.chmod(0o755)
    for script in CLIENTS.iterdir():
        shutil.copy(script, folder / script.name)
    network = site.network
    yield Shell(home, slurm_clients.programs(folder), lab.namespace, network.gateway if network is not None else "127.0.0.1")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(kube, ignore_errors=True)


def test_nextflows_calls_get_the_answers_that_it_reads(shell: Shell) -> None:
    script = "#!/bin/bash -ue\n#SBATCH -J nf-hello\n#SBATCH -o .command.log\n#SBATCH --no-requeue\n#SBATCH --signal B:USR2@30\nsleep 3600\n"
    number = shell.run("sbatch", "--parsable", stdin=script).stdout.strip()
    assert number.isdigit()

    def states() -> dict[str, str]:
        """What Nextflow reads of the queue."""
        words = shell.run("squeue", "--noheader", "-o", "%i %t", "-t", "all").stdout.split()
        return dict(zip(words[::2], words[1::2], strict=True))

    until(lambda: states().get(number) == "R", within=20, what=f"job {number} to run")
    cpus = shell.run("squeue", "-h", "-j", number, "-o", "%C").stdout
    assert cpus == shell.run("sacct", "-n", "-X", "-P", "-j", number, "-o", "AllocCPUS").stdout
    assert f" NumCPUs={cpus.strip()} " in shell.run("scontrol", "show", "job", number).stdout
    shell.run("scancel", number)
    until(lambda: states().get(number) == "CA", within=20, what=f"job {number} to end")
    assert shell.run("squeue", "-h", "-j", number).stdout == ""
    assert shell.run("sacct", "-n", "-X", "-P", "-j", number, "-o", "JobIDRaw,State").stdout == f"{number}|CANCELLED\n"


def test_what_would_choose_other_jobs_is_refused_and_scancel_asks_where_it_is_to(shell: Shell) -> None:
    done = shell.run("env", "SBATCH_MEM_PER_NODE=1G", "sbatch", "--parsable", "-t", "5", "-o", "/dev/null", "--wrap=sleep 280")
    number = done.stdout.strip()
    assert "SBATCH_MEM_PER_NODE=1G ignored" in done.stderr
    state = ("squeue", "-h", "-j", number, "-o", "%t")
    until(lambda: shell.run(*state).stdout == "R\n", within=20, what=f"job {number} to run")
    refused = shell.run("scancel", "--me", "--qos=debug", ok=False)
    assert (refused.returncode, "--qos is not served by this release" in refused.stderr) == (1, True), refused.stderr
    asked = shell.run("scancel", "-i", number, stdin="n\n")
    assert f"Cancel job_id={number} name=wrap" in asked.stdout
    assert shell.run(*state).stdout == "R\n"
    assert number not in shell.run("squeue", "-h", "--notme", "-o", "%i").stdout.split()
    shell.run("scancel", "-i", number, stdin="y\n")
    until(lambda: not shell.run(*state).stdout, within=20, what=f"job {number} to end")


def test_a_script_finds_arguments_variables_and_programs_and_no_secrets(shell: Shell) -> None:
    text = 'echo "$1|$#|$SLURM_JOB_NAME|$USER|${SECRET_TOKEN:-none}|$(squeue -h -j $SLURM_JOB_ID -o %t)|$(command -v sbatch)|$(scontrol show job $SLURM_JOB_ID | head -n1)|$(scontrol show hostnames | wc -l)"'
    path = shell.home / "job.sh"
    path.write_text(f"#!/bin/sh\n{text}\nexit 3\n")
    path.chmod(0o755)
    done = shell.run("sbatch", "--wait", "-o", "said-%J", "job.sh", "a b", "c", ok=False)
    assert done.returncode == 3, done.stderr
    assert "warning: not passed to the job, since they look like secrets" in done.stderr
    number = done.stdout.split()[-1]
    said = (shell.home / f"said-{number}").read_text()
    said = said.replace("|CF|", "|R|")  # the script may ask before its start is reported
    assert said == f"a b|2|job.sh|alice|none|R|{shell.programs}/sbatch|JobId={number} JobName=job.sh|1\n"
    assert shell.run("sacct", "-n", "-P", "-j", number, "-o", "State,ExitCode").stdout == "FAILED|3:0\nFAILED|3:0\n"
    assert f"JobId={number} JobName=job.sh" in shell.run("scontrol", "show", "job", number).stdout


def test_what_slurm_refuses_is_refused_and_nothing_is_submitted(shell: Shell) -> None:
    assert shell.run("sbatch", "--nope", "--wrap=true", ok=False).returncode == 255
    refused = shell.run("sbatch", "--array=1-3", "--wrap=true", ok=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "job arrays are not served by this release" in refused.stderr
    unreachable = shell.run("env", "KUBECONFIG=/nonexistent", "squeue", ok=False)
    assert (unreachable.returncode, unreachable.stdout) == (1, "")
    assert unreachable.stderr.startswith("squeue: error: ")
    assert shell.run("sinfo", "-o", "%P").stdout.splitlines()[1:] == ["hpc-batch*"]
    assert len(shell.run("sinfo", "-h", "-o", "%P %G %l %p %c %m").stdout.split()) == 6


def test_submitit_runs_functions_and_tells_their_results_and_states(shell: Shell) -> None:
    assert shell.python("submitit_jobs") == ["12", "COMPLETED", "FailedJobError", "CANCELLED"]


def test_parsl_runs_apps_in_a_block(shell: Shell) -> None:
    assert shell.python("parsl_apps", shell.address)[-1] == "[0, 1, 4, 9]"


def test_dask_jobqueue_scales_to_four_computes_and_closes(shell: Shell) -> None:
    assert shell.python("dask_cluster", shell.address)[-1] == "4 workers: 55"
    until(lambda: shell.run("squeue", "-h", "-n", "dask-worker").stdout == "", within=30, what="the end of dask's workers")


def test_snakemake_runs_a_dag_of_jobs(shell: Shell) -> None:
    folder = shell.home / "workflow"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(shell.programs / "Snakefile", folder)
    for path in (folder, folder / "Snakefile"):
        os.chown(path, shell.home.stat().st_uid, shell.home.stat().st_gid)
    words = (
        "snakemake", "--executor", "slurm", "--jobs", "2", "--directory", str(folder), "--snakefile", str(folder / "Snakefile"),
        "--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2", "--latency-wait", "10",
        "--slurm-no-account",
    )  # fmt: skip
    shell.run(*words)
    first, second = (folder / "total.txt").read_text().split()
    assert first.isdigit()
    assert first != second
