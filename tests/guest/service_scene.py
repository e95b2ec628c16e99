"""What the guest runs under systemd: the agent's unit started, restarted and killed while its work goes on. `test_service.py` starts it.

`python -m tests.guest.service_scene PLACE restart|reboot|rebooted` fails with an assertion, or prints `SCENE OK`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lattice_agent.host.delegation import SLICE, UNIT
from lattice_agent.node.service_unit import service_unit

SCOPE = Path("/sys/fs/cgroup") / SLICE / UNIT
SERVICE = "lattice-agent.service"


def systemctl(*words: str) -> str:
    """What systemctl prints; fails where it does."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr, journal())
    return done.stdout.strip()


def journal() -> str:
    return subprocess.run(["journalctl", "-b", "-n", "60", "--no-pager"], capture_output=True, text=True, check=False).stdout


def until(true: Callable[[], object], what: str, within: float = 60.0) -> None:
    print(f"waiting: {what}", flush=True)
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, f"{what}: not within {within} s\n{journal()}"
        time.sleep(0.1)


def begin(place: Path) -> None:
    """Installs the unit as `lattice-agent unit` prints it, with the agent's host alone as its program, and starts it."""
    (place / "home").mkdir(exist_ok=True)
    (place / "home").chmod(0o777)
    place.chmod(0o755)
    unit = service_unit(("-m", "tests.guest.node_service", str(place)), sys.executable)
    Path("/run/systemd/system", SERVICE).write_text(unit, encoding="utf-8")
    dropin = Path("/run/systemd/system", f"{SERVICE}.d")
    dropin.mkdir(exist_ok=True)
    (dropin / "guest.conf").write_text(f"[Service]\nWorkingDirectory={Path.cwd()}\n", encoding="utf-8")
    systemctl("daemon-reload")
    systemctl("start", SERVICE)


def said(place: Path) -> list[str]:
    path = place / "said"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def work_scope() -> Path:
    (found,) = SCOPE.glob("guest/alloc-*.scope")
    return found


def pid_of_service() -> int:
    return int(systemctl("show", "-p", "MainPID", "--value", SERVICE))


def restart(place: Path) -> None:
    """A restart by systemd, and kill -9 of the agent, leave the work alone; its exit code reaches the third process."""
    begin(place)
    until(lambda: (place / "home/began").exists(), "the work begins")
    assert said(place) == ["started limits_missing=[]"], said(place)
    assert "Delegate=yes" in systemctl("show", "-p", "Delegate", UNIT)
    (task,) = (work_scope() / "work/main/cgroup.procs").read_text().split()[:1]
    assert (work_scope() / "work/pids.max").read_text().strip() == "100"
    assert Path("/sys/fs/cgroup/system.slice", SERVICE, "cgroup.procs").exists()

    first = pid_of_service()
    systemctl("restart", SERVICE)
    until(lambda: len(said(place)) >= 2, "the second process finds the work")
    assert said(place)[1] == "found alive=True populated=True same_boot=True code=None"
    second = pid_of_service()
    assert second not in (0, first)
    assert systemctl("is-active", SERVICE) == "active"

    systemctl("kill", "--kill-whom=main", "--signal=KILL", SERVICE)
    until(lambda: len(said(place)) >= 3, "the third process finds the work")
    assert Path(f"/proc/{task}").exists(), "the work lives on"

    (sleeper,) = (SCOPE / "sleeper/cgroup.procs").read_text().split()
    subprocess.run(["kill", "-9", sleeper], check=True)
    systemctl("restart", SERVICE)
    until(lambda: len(said(place)) >= 4, "the fourth process finds the work in a scope without its sleeping process")
    assert said(place)[3] == "found alive=True populated=True same_boot=True code=None"
    assert (SCOPE / "sleeper/cgroup.procs").read_text().split() not in ([], [sleeper])

    (place / "home/go").touch()
    until(lambda: said(place)[-1] == "ended 1 7", "the end of the work is heard")
    systemctl("daemon-reload")
    systemctl("stop", SERVICE)


def reboot(place: Path) -> None:
    """Starts the work; the machine is then switched off without a word to anybody."""
    begin(place)
    until(lambda: (place / "home/began").exists(), "the work begins")
    assert said(place) == ["started limits_missing=[]"], said(place)
    time.sleep(1)  # what is fsynced stands; what is not may be lost


def rebooted(place: Path) -> None:
    """After the boot the attempt is found, dead, without an invented exit code; what it began is undone."""
    begin(place)
    until(lambda: said(place)[-1:] and said(place)[-1].startswith("cleared"), "the process after the boot has looked and cleared")
    assert said(place)[-2:] == [
        "found alive=False populated=False same_boot=False code=None",
        "cleared scopes=0 steps=False",
    ], said(place)


if __name__ == "__main__":
    {"restart": restart, "reboot": reboot, "rebooted": rebooted}[sys.argv[2]](Path(sys.argv[1]))
    print("SCENE OK", flush=True)
