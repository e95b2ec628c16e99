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
    """Holds the site's directories of prologue and epilogue hooks; every executable file in one is a hook (None: no directory)."""

    prologue: Path | None = None
    epilogue: Path | None = None

    def check(self) -> None:
        """Raises Rejected where a configured path is not a directory."""
        for directory in (self.prologue, self.epilogue):
            if directory is not None and not directory.is_dir():
                raise Rejected(f"{directory} is no directory of hooks (--prologue-dir, --epilogue-dir)", reason="SettingWrong")


class HookCgroups:
    """Makes and removes the cgroup in which an attempt's hooks run (beside the scope of its work), and signals the processes in it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def make(self, key: Key) -> str:
        """Makes the cgroup of an attempt's hooks; may be repeated. Returns the file to which a process writes its pid to join it."""
        self._path(key).mkdir(parents=True, exist_ok=True)
        return str(self._path(key) / "cgroup.procs")

    def pids(self, key: Key) -> list[int]:
        """Returns the pids in the cgroup of an attempt's hooks; empty where there is no cgroup."""
        try:
            return [int(pid) for pid in (self._path(key) / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def terminate(self, key: Key) -> bool:
        """Sends TERM to all processes of an attempt's hooks; returns False where there are none."""
        found = self.pids(key)
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        return bool(found)

    def remove_killed(self, key: Key) -> bool:
        """Sends KILL to all processes of an attempt's hooks and removes their cgroup; returns False where a process still keeps it."""
        with suppress(OSError):
            (self._path(key) / "cgroup.kill").write_text("1")
        with suppress(OSError):
            self._path(key).rmdir()
        return not self._path(key).exists()

    def _path(self, key: Key) -> Path:
        """Returns the cgroup of an attempt's hooks, whether it exists or not."""
        return self._root / f"hook-{key.uid}-{key.attempt}"


class Hooks:
    """Runs the site's hooks through the runner, and ends processes that a hook, or an agent killed while one ran, has left."""

    def __init__(self, directories: HookDirectories, cgroups: HookCgroups, runner: RunnerClient, kernel: Threads, clock: Clock) -> None:
        self.directories = directories
        self._cgroups, self._runner, self._kernel, self._clock = cgroups, runner, kernel, clock

    def exist(self) -> bool:
        """Tells whether a hook directory contains a hook; True also where one cannot be read or could be changed by others."""
        try:
            return any(_listed(directory) for directory in (self.directories.prologue, self.directories.epilogue))
        except HookFailure:
            return True

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names of the prologue and of the epilogue hooks, in order; raises HookFailure where one is not to be run."""
        prologue, epilogue = _listed(self.directories.prologue), _listed(self.directories.epilogue)
        return tuple(path.name for path in prologue), tuple(path.name for path in epilogue)

    async def prologue(self, work: NodeWork) -> Mapping[str, str]:
        """Runs the prologue hooks in the order of their names; returns the variables that their output exports to the work.

        Raises Rejected (PrologueFailed) where a hook fails, runs longer than its timeout, or could be changed by others.
        """
        variables: dict[str, str] = {}
        try:
            for hook in await self._kernel.call(_listed, self.directories.prologue):
                variables |= exports(await self._run(hook, work, PROLOGUE))
        except HookFailure as failure:
            raise Rejected(f"node {work.node}: {failure}", reason="PrologueFailed") from failure
        return variables

    async def epilogue(self, key: Key, work: NodeWork | None) -> None:
        """Ends processes left by hooks, then runs the epilogue hooks in the order of their names (none where `work` is None).

        Raises Retry (EpilogueFailed) where one fails, runs longer than its timeout, or could be changed by others.
        """
        await self._end(key)
        if work is None:
            return  # the journal that named the work is gone: no hook could be told what it is about
        try:
            for hook in await self._kernel.call(_listed, self.directories.epilogue):
                await self._run(hook, work, EPILOGUE)
        except HookFailure as failure:
            raise Retry(f"node {work.node}: {failure}", reason="EpilogueFailed") from failure

    async def _run(self, hook: Path, work: NodeWork, when: str) -> str:
        """Runs one hook to its end and returns its standard output; raises HookFailure where it fails or runs too long.

        A hook over which the runner was killed is ended and run again.
        """
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
        """Ends all processes of an attempt's hooks: TERM, KILL a second later; raises Retry where one survives that."""
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
    """A hook failed; the text is a sentence that names the hook and the cause."""


def _listed(directory: Path | None) -> list[Path]:
    """Returns the hooks of a directory by name: files executable by their owner, neither hidden nor a backup; none without a directory.

    Raises HookFailure where others could change one, or they cannot be read.
    """
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
    """Raises HookFailure where somebody other than root and the agent's own user could change a file or directory, by its owner or mode."""
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        whose = f"it belongs to uid {status.st_uid} with mode {status.st_mode & 0o7777:o}"
        raise HookFailure(f"{path} is not run: {whose}, so others can change it")


def _judged(answer: Mapping[str, Any], hook: Path, when: str, seconds: float) -> str:
    """Returns a hook's standard output.

    Raises HookFailure, with the last line of its standard error, where it took too long, did not run, or its exit code is not 0.
    """
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
    """Returns the variables of the lines `export NAME=value`; ignores other lines, and names that begin with LATTICE_ or SLURM_."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        name, equals, value = line.removeprefix("export ").partition("=")
        if line.startswith("export ") and equals and name.isidentifier() and not name.startswith(("LATTICE_", "SLURM_")):
            found[name] = value
    return found
