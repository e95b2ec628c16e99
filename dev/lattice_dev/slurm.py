"""Brings a small real Slurm up beside an instance: its own munged, slurmctld and some slurmd on this machine, in a folder of its own.

For what is compared with Slurm. It needs root and Debian's packages (`PACKAGES`); the machine's own munge and /etc/slurm are left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lattice.errors import Rejected, Retry
from lattice_dev.waiting import Clock

PACKAGES: Final = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
PROGRAMS: Final = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "scancel", "squeue", "sinfo")
PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
READY_SECONDS, END_SECONDS, LOOK_SECONDS = 120.0, 15.0, 0.1
ASK_SECONDS: Final = 60.0
KEY_BYTES: Final = 128


@dataclass(frozen=True)
class SlurmCluster:
    """A Slurm that runs: its folder and its nodes."""

    directory: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables by which Slurm's commands find it."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": PATH}

    def ask(self, *argv: str, directory: Path | None = None) -> str:
        """Runs one of Slurm's commands as root and returns what it prints; raises Retry, with what it says, where it fails."""
        command = [program(argv[0]), *argv[1:]]
        try:
            done = subprocess.run(
                command, env=self.environment, cwd=directory or self.directory, capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL, timeout=ASK_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Retry(f"{argv[0]} has not ended for {ASK_SECONDS:g} s", reason="SlurmFailed") from error
        if done.returncode:
            raise Retry(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-500:]}", reason="SlurmFailed")
        return done.stdout

    def submit(self, script: Path, *words: str) -> int:
        """Submits a batch script from its own folder, as root, and returns its job's number."""
        return int(self.ask("sbatch", "--parsable", *words, str(script), directory=script.parent).partition(";")[0])

    def await_end(self, job: int, clock: Clock, *, within: float) -> None:
        """Waits until a job has left the queue; raises Retry where it takes too long."""
        until = clock.monotonic() + within
        while str(job) in self.ask("squeue", "--noheader", "--format=%i").split():
            if clock.monotonic() > until:
                raise Retry(f"Slurm's job {job} has not ended within {within:g} s", reason="SlurmFailed")
            clock.sleep(LOOK_SECONDS)


def missing() -> str:
    """Returns why no Slurm can be brought up here, as a clause; empty: it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(lacking)}: apt-get install --no-install-recommends {PACKAGES}" if lacking else ""


def program(name: str) -> str:
    """Returns the path of one of Slurm's programs; raises Rejected where it is not installed."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise Rejected(f"no {name}: apt-get install --no-install-recommends {PACKAGES}", reason="NoSlurm")
    return found


def configuration(directory: Path, host: str, ports: Sequence[int], *, cpus: int, scheduler_parameters: str = "") -> str:
    """Returns the text of slurm.conf: one slurmd for each port but the first, which is slurmctld's; each node has `cpus` CPUs, whatever
    this machine has. `scheduler_parameters`: those of Slurm's SchedulerParameters that are not its defaults.
    """
    nodes = [
        f"NodeName=n{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN"
        for index, port in enumerate(ports[1:])
    ]
    parameters = [f"SchedulerParameters={scheduler_parameters}"] if scheduler_parameters else []
    lines = (
        "ClusterName=beside", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={ports[0]}", "SlurmUser=root", "SlurmdUser=root",
        "AuthType=auth/munge", "CredType=cred/munge", f"AuthInfo=socket={directory}/munge/socket", f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool-%n", f"SlurmctldPidFile={directory}/slurmctld.pid", f"SlurmdPidFile={directory}/slurmd-%n.pid",
        f"SlurmctldLogFile={directory}/slurmctld.log", f"SlurmdLogFile={directory}/slurmd-%n.log", "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none", "SwitchType=switch/none", "JobAcctGatherType=jobacct_gather/none", "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core", "SlurmdParameters=config_overrides", "MpiDefault=pmi2", "ReturnToService=2",
        "MaxStepCount=1000000", "KillWait=5", *parameters, *nodes,
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP",
    )  # fmt: skip
    return "\n".join(lines) + "\n"


@contextmanager
def running(clock: Clock, *, nodes: int = 4, cpus: int = 2, scheduler_parameters: str = "") -> Iterator[SlurmCluster]:
    """Runs a Slurm of so many nodes for the block; at its end nothing of it is left: jobs, daemons, files.

    Raises Rejected where it is not installed, Retry, with the ends of its logs, where it does not come up.
    """
    if why := missing():
        raise Rejected(why, reason="NoSlurm")
    directory = Path(tempfile.mkdtemp(prefix="lattice-slurm-"))
    directory.chmod(0o755)  # users' srun reads slurm.conf and munge's socket
    cluster, daemons = SlurmCluster(directory, tuple(f"n{index}" for index in range(nodes))), list[subprocess.Popen[bytes]]()
    try:
        _write_files(cluster, cpus, scheduler_parameters)
        _start(cluster, daemons, _munge(directory))
        _await(lambda: (directory / "munge/socket").exists(), cluster, clock)
        _start(cluster, daemons, [program("slurmctld"), "-D", "-c"])
        for node in cluster.nodes:
            _start(cluster, daemons, [program("slurmd"), "-D", "-N", node])
        _await(lambda: _are_idle(cluster), cluster, clock)
        yield cluster
    finally:
        _end(cluster, daemons, clock)
        shutil.rmtree(directory, ignore_errors=True)


def _write_files(cluster: SlurmCluster, cpus: int, scheduler_parameters: str) -> None:
    """Writes slurm.conf and munge's key, and makes the directories that the daemons want."""
    directory = cluster.directory
    for name in ("munge", "state", *(f"spool-{node}" for node in cluster.nodes)):
        (directory / name).mkdir(mode=0o755)
    key = directory / "munge" / "key"
    key.write_bytes(os.urandom(KEY_BYTES))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    ports = free_ports(len(cluster.nodes) + 1)
    text = configuration(directory, host, ports, cpus=cpus, scheduler_parameters=scheduler_parameters)
    (directory / "slurm.conf").write_text(text)


def free_ports(count: int) -> list[int]:
    """Returns so many ports on which nobody listens now."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            found.append(int(held.getsockname()[1]))
        return found


def _munge(directory: Path) -> list[str]:
    """Returns the command of a munged whose key, socket and files stand in the folder."""
    files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    return [program("munged"), "--foreground", "--force", *(f"--{name}={directory}/munge/{file}" for name, file in files.items())]


def _start(cluster: SlurmCluster, daemons: list[subprocess.Popen[bytes]], argv: Sequence[str]) -> None:
    """Starts a daemon, whose words go to a file of the folder."""
    with (cluster.directory / f"{Path(argv[0]).name}-{len(daemons)}.out").open("ab") as output:
        daemons.append(
            subprocess.Popen(
                argv,
                env=cluster.environment,
                cwd=cluster.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        )


def _are_idle(cluster: SlurmCluster) -> bool:
    """Tells whether every node takes work."""
    try:
        states = cluster.ask("sinfo", "--noheader", "--Node", "--format=%T").split()
    except Retry:
        return False
    return states == ["idle"] * len(cluster.nodes)


def _await(ready: Callable[[], bool], cluster: SlurmCluster, clock: Clock) -> None:
    """Waits until something holds; raises Retry, with the ends of all logs, where it takes too long."""
    until = clock.monotonic() + READY_SECONDS
    while not ready():
        if clock.monotonic() > until:
            logs = [*cluster.directory.glob("*.log"), *cluster.directory.glob("*.out")]
            said = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-500:]}" for log in logs)
            raise Retry(f"Slurm has not come up within {READY_SECONDS:g} s; the ends of its logs:\n{said}", reason="SlurmFailed")
        clock.sleep(LOOK_SECONDS)


def _end(cluster: SlurmCluster, daemons: Sequence[subprocess.Popen[bytes]], clock: Clock) -> None:
    """Ends all jobs, then the daemons, those that were started last first; kills what is left after a while."""
    with contextlib.suppress(Retry):
        for job in cluster.ask("squeue", "--noheader", "--format=%i").split():
            cluster.ask("scancel", "--full", job)
            cluster.await_end(int(job), clock, within=END_SECONDS)
    for daemon in reversed(daemons):
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
