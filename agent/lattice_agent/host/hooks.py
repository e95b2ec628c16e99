"""Runs the site's hooks before and after an attempt's work, as the agent's own user, each in a cgroup that ends with it."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice.daemon.clock import Clock
from lattice.errors import Rejected, Retry, UnknownOutcome
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.host.threads import Threads
from lattice_agent.work import environment

TERM_SECONDS = 1.0
"""From TERM to KILL for a hook that is interrupted or has outrun its time."""
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.01
PROLOGUE, EPILOGUE = "prologue", "epilogue"


@dataclass(frozen=True)
class HookDirectories:
    """Names the directories whose executable files are run, in the order of their names; None: there are none."""

    prologue: Path | None = None
    epilogue: Path | None = None

    def check(self) -> None:
        """Raises Rejected for a directory that is none: a site that names one wants its hooks to run."""
        for directory in (self.prologue, self.epilogue):
            if directory is not None and not directory.is_dir():
                raise Rejected(f"{directory} is no directory of hooks (--prologue-dir, --epilogue-dir)", reason="SettingWrong")


class HookCgroups:
    """Makes the cgroup of an attempt's hooks, beside its scope, kills what is in it, and removes it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def make(self, key: Key) -> str:
        """Makes the cgroup. Returns the file by which a process joins it."""
        self._path(key).mkdir(parents=True, exist_ok=True)
        return str(self._path(key) / "cgroup.procs")

    def pids(self, key: Key) -> list[int]:
        """Lists the processes of the hooks."""
        try:
            return [int(pid) for pid in (self._path(key) / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def terminate(self, key: Key) -> bool:
        """Sends TERM to the hooks' processes. Tells whether there are any."""
        found = self.pids(key)
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        return bool(found)

    def remove_killed(self, key: Key) -> bool:
        """Sends KILL to all processes of the hooks, and removes their cgroup. Tells whether it is gone."""
        with suppress(OSError):
            (self._path(key) / "cgroup.kill").write_text("1")
        with suppress(OSError):
            self._path(key).rmdir()
        return not self._path(key).exists()

    def _path(self, key: Key) -> Path:
        return self._root / f"hook-{key.uid}-{key.attempt}"


class Hooks:
    """Runs hooks through the runner, and ends what a hook, or an agent that was killed over it, has left."""

    def __init__(self, directories: HookDirectories, cgroups: HookCgroups, runner: RunnerClient, kernel: Threads, clock: Clock) -> None:
        self.directories = directories
        self._cgroups, self._runner, self._kernel, self._clock = cgroups, runner, kernel, clock

    def exist(self) -> bool:
        """Tells whether the site has hooks now, or had them where they cannot be read."""
        try:
            return any(_listed(directory) for directory in (self.directories.prologue, self.directories.epilogue))
        except HookFailure:
            return True

    async def prologue(self, work: NodeWork) -> Mapping[str, str]:
        """Runs the prologue's hooks. Returns the variables that they export.

        Raises Rejected (PrologueFailed) for one that fails or outruns its time.
        """
        variables: dict[str, str] = {}
        try:
            for hook in await self._kernel.call(_listed, self.directories.prologue):
                variables |= exports(await self._run(hook, work, PROLOGUE))
        except HookFailure as failure:
            raise Rejected(f"node {work.node}: {failure}", reason="PrologueFailed") from failure
        return variables

    async def epilogue(self, key: Key, work: NodeWork | None) -> None:
        """Ends what a prologue has left, and runs the epilogue's hooks. Raises Retry (EpilogueFailed) for one that fails."""
        await self._end(key)
        if work is None:
            return  # the journal that named the work is gone: no hook could be told what it is about
        try:
            for hook in await self._kernel.call(_listed, self.directories.epilogue):
                await self._run(hook, work, EPILOGUE)
        except HookFailure as failure:
            raise Retry(f"node {work.node}: {failure}", reason="EpilogueFailed") from failure

    async def _run(self, hook: Path, work: NodeWork, when: str) -> str:
        """Runs one hook to its end. Returns what it printed; raises HookFailure."""
        begun = self._clock.monotonic()
        try:
            while True:
                left = work.hook_seconds - (self._clock.monotonic() - begun)
                request = {
                    "op": "hook",
                    "argv": [str(hook)],
                    "environment": environment.of_hook(work, when),
                    "seconds": max(0.0, left),
                    "procs": await self._kernel.call(self._cgroups.make, work.key),
                }
                with suppress(UnknownOutcome):  # the runner was killed: the hook is ended, and run again
                    return _judged(await self._runner.request(request), hook, when, work.hook_seconds)
                await self._end(work.key)
        finally:
            await self._end(work.key)

    async def _end(self, key: Key) -> None:
        """Ends every process of the hooks: TERM, a second, KILL. Raises Retry for one that survives."""
        until = self._clock.monotonic() + TERM_SECONDS
        if await self._kernel.call(self._cgroups.terminate, key):
            while await self._kernel.call(self._cgroups.pids, key) and self._clock.monotonic() < until:
                await self._clock.sleep(LOOK_SECONDS)
        until = self._clock.monotonic() + KILL_SECONDS
        while not await self._kernel.call(self._cgroups.remove_killed, key):
            if self._clock.monotonic() > until:
                raise Retry("a process of a hook has survived KILL", reason="EpilogueFailed")
            await self._clock.sleep(LOOK_SECONDS)


class HookFailure(Exception):
    """Tells why a hook failed, as a sentence."""


def _listed(directory: Path | None) -> list[Path]:
    """Lists the hooks of a directory in the order of their names. Raises HookFailure where others could change one."""
    if directory is None:
        return []
    try:
        _check(directory, directory.stat())
        found: list[Path] = []
        for path in sorted(directory.iterdir()):
            status = path.stat()
            if path.name.startswith(".") or path.name.endswith("~") or not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o100:
                continue
            _check(path, status)
            found.append(path)
    except OSError as error:
        raise HookFailure(f"the hooks of {directory} cannot be read: {error.strerror}") from error
    return found


def _check(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        whose = f"it belongs to uid {status.st_uid} with mode {status.st_mode & 0o7777:o}"
        raise HookFailure(f"{path} is not run: {whose}, so others can change it")


def _judged(answer: Mapping[str, Any], hook: Path, when: str, seconds: float) -> str:
    """Gives what the hook printed; raises HookFailure, with the last line of its errors, where it did not end with 0."""
    said = str(answer.get("stderr", "")).strip().splitlines()
    last = f": {said[-1][:200]}" if said else ""
    name = f"the {when} hook {hook.name}"
    if answer.get("late"):
        raise HookFailure(f"{name} had not ended after {seconds:g} s (work.hookTimeout){last}")
    if "code" not in answer:
        raise HookFailure(f"{name} did not run: {answer.get('failure', 'its process was killed')}")
    code = int(answer["code"])
    if code:
        raise HookFailure(f"{name} ended {f'by signal {-code}' if code < 0 else f'with exit code {code}'}{last}")
    return str(answer["stdout"])


def exports(printed: str) -> dict[str, str]:
    """Reads the lines `export NAME=value`; others are none of ours, and LATTICE_* and SLURM_* are not changed."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        name, equals, value = line.removeprefix("export ").partition("=")
        if line.startswith("export ") and equals and name.isidentifier() and not name.startswith(("LATTICE_", "SLURM_")):
            found[name] = value
    return found
