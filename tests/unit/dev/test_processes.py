import os
import signal
import sys
from pathlib import Path

import pytest

from lattice import errors
from lattice_dev import processes
from lattice_dev.processes import Launcher, ProcessId
from lattice_dev.waiting import HostClock, wait_until

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def launcher() -> Launcher:
    return Launcher(HostClock())


def start(launcher: Launcher, tmp_path: Path, argv: list[str] = SLEEP, component: str = "sleeper") -> ProcessId:
    environment = processes.environment_for(os.environ, str(tmp_path), component)
    return launcher.start(argv, log=tmp_path / "log", directory=tmp_path, environment=environment)


def test_a_pid_that_another_life_has_now_is_neither_alive_nor_signalled(launcher: Launcher, tmp_path: Path) -> None:
    real = start(launcher, tmp_path)
    earlier = ProcessId(real.pid, real.start - 1)
    assert not processes.alive(earlier)
    assert not processes.send(earlier, signal.SIGKILL)
    assert processes.alive(real)
    launcher.kill([real])


def test_a_killed_child_is_gone_and_no_zombie_stays(launcher: Launcher, tmp_path: Path) -> None:
    process = start(launcher, tmp_path)
    launcher.kill([process])
    assert not processes.alive(process)
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def test_a_zombie_counts_as_dead(launcher: Launcher, tmp_path: Path) -> None:
    process = start(launcher, tmp_path, [sys.executable, "-I", "-S", "-c", "pass"])
    wait_until(lambda: "alive" if processes.alive(process) else "", within=60, clock=HostClock(), what="the end")
    assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("Z"), "nobody has asked for its exit code yet"
    launcher.reap()
    assert not Path(f"/proc/{process.pid}").exists()


def test_what_ignores_term_is_killed_after_the_grace(launcher: Launcher, tmp_path: Path) -> None:
    process = start(launcher, tmp_path, STUBBORN)
    wait_until(lambda: "" if (tmp_path / "log").read_text() else "silent", within=60, clock=HostClock(), what="the child")
    launcher.stop([process], grace_seconds=0.1)
    assert not processes.alive(process)


def test_a_stopped_process_can_still_be_ended(launcher: Launcher, tmp_path: Path) -> None:
    process = start(launcher, tmp_path)
    processes.send(process, signal.SIGSTOP)
    launcher.stop([process], grace_seconds=2)
    assert not processes.alive(process)


def test_a_process_is_found_by_its_mark_and_only_by_that(launcher: Launcher, tmp_path: Path) -> None:
    process = start(launcher, tmp_path, component="etcd")
    found = processes.marked(str(tmp_path))
    assert [(f.id, f.component, list(f.argv)) for f in found] == [(process, "etcd", SLEEP)]
    assert processes.marked(str(tmp_path / "other")) == []
    launcher.kill([process])
    assert processes.marked(str(tmp_path)) == []


def test_a_program_that_is_not_there_is_refused_by_name(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(errors.Rejected, match="/no/such/program"):
        start(launcher, tmp_path, ["/no/such/program"])


def test_components_see_neither_credentials_nor_settings_of_the_caller() -> None:
    given = processes.environment_for({"PATH": "/bin", "KUBECONFIG": "/x", "LATTICE_AGENT_NODE": "y", "SECRET": "z"}, "/i", "etcd")
    own = {"PYTHONUNBUFFERED": "1", "LATTICE_DEV_MARK": "/i", "LATTICE_DEV_COMPONENT": "etcd"}
    assert given == {"PATH": "/bin", **own, **processes.SPARING}


def test_the_chart_has_daemons_give_memory_back_as_an_instance_does() -> None:
    chart = Path("charts/lattice/templates/_programs.tpl").read_text()
    for name, value in processes.SPARING.items():
        assert f'{{name: {name}, value: "{value}"}}' in chart
