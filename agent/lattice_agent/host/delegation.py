"""Keeps a transient scope of systemd's, with delegated cgroups, below which the scopes of attempts stand.

On a machine whose cgroups systemd manages nobody else may make cgroups outside of what it has delegated. Below the agent's own unit they
must not stand either: a unit whose old cgroups are populated does not start again (219/CGROUP). One sleeping process keeps the scope,
as slurmd's does; it outlives the agent, and the next agent finds it.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from lattice.daemon.logs import event
from lattice.errors import Retry

log = logging.getLogger(__name__)

SLICE, UNIT = "lattice.slice", "lattice-work.scope"
SLEEPER: Final = "sleeper"
"""The scope's own cgroup for its sleeping process: a cgroup with limits for others holds none itself."""
SLEEP: Final = ("sleep", "infinity")
SYSTEMD_RUN: Final = (
    "systemd-run", "--quiet", "--scope", "--collect", f"--unit={UNIT}", f"--slice={SLICE}", "--description=Work of Lattice",
    "--property=Delegate=yes", "--property=TasksMax=infinity",
)  # fmt: skip
ANSWER_SECONDS = 20.0
TRIES = 3


def manages_cgroups() -> bool:
    """Tells whether systemd is this machine's init (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


class DelegatedScope:
    """The scope, in the v2 tree mounted at `mount`. All of it blocks for milliseconds, and for seconds where systemd is slow."""

    def __init__(self, mount: Path) -> None:
        self.path = mount / SLICE / UNIT

    def keep(self) -> None:
        """Makes the scope and its sleeping process where they do not stand; raises Retry with what systemd says."""
        said = ""
        for _ in range(TRIES):
            if self._is_kept():
                return
            try:
                said = self._enter() if self.path.is_dir() else self._begin()
            except OSError as error:  # there is no such program: without the scope nothing may be made
                said = str(error)
        if not self._is_kept():
            raise Retry(f"systemd gives no scope {UNIT}: {said or 'its sleeping process ends at once'}", reason="StateUnwritable")

    def drop(self) -> None:
        """Ends the sleeping process where nothing else stands in the scope; systemd removes the scope then."""
        with suppress(OSError):
            if [path.name for path in self.path.iterdir() if path.is_dir()] == [SLEEPER]:
                for pid in (self.path / SLEEPER / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)

    def _is_kept(self) -> bool:
        """Tells whether the scope stands with its sleeping process in it."""
        try:
            return "populated 1" in (self.path / SLEEPER / "cgroup.events").read_text()
        except OSError:
            return False

    def _begin(self) -> str:
        """Asks systemd for the scope with a sleeping process in it; returns what it says against that."""
        with tempfile.TemporaryFile() as errors:
            child = _sleeping(SYSTEMD_RUN, errors.fileno())
            until = time.monotonic() + ANSWER_SECONDS
            while time.monotonic() < until and child.poll() is None and UNIT not in _cgroup_of(child.pid):
                time.sleep(0.005)
            if child.poll() is None and self._move(child):
                event(log, "ScopeDelegated", scope=str(self.path), pid=child.pid)
                return ""
            errors.seek(0)
            return errors.read().decode(errors="replace").strip() or f"no answer within {ANSWER_SECONDS:g} s"

    def _enter(self) -> str:
        """Puts a new sleeping process into a scope that stands, as it does while work of an earlier agent is in it.

        Returns an empty text, also where the scope has gone meanwhile: the caller looks again.
        """
        self._move(_sleeping((), subprocess.DEVNULL))
        return ""

    def _move(self, child: subprocess.Popen[bytes]) -> bool:
        """Moves the sleeping process into its own cgroup; where the scope has gone meanwhile, ends it and returns False."""
        try:
            (self.path / SLEEPER).mkdir(exist_ok=True)
            (self.path / SLEEPER / "cgroup.procs").write_text(str(child.pid))
        except OSError:
            child.kill()
            child.wait()
            return False
        return True


def _sleeping(runner: tuple[str, ...], errors: int) -> subprocess.Popen[bytes]:
    """Starts a process that sleeps, in a session of its own, with none of the agent's descriptors and variables."""
    return subprocess.Popen(
        (*runner, *SLEEP), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )  # fmt: skip


def _cgroup_of(pid: int) -> str:
    """Returns the text of /proc/PID/cgroup; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
