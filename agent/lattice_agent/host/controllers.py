"""Limits the processes and the memory of an attempt, in cgroup v2, or in the v1 hierarchies that a hybrid machine has them in."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.daemon.logs import event

log = logging.getLogger(__name__)

FILES = {"pids": ("pids.max", "pids.max"), "memory": ("memory.max", "memory.limit_in_bytes")}
"""By controller: the file of its limit in v2, and in v1."""


@dataclass(frozen=True)
class WorkLimits:
    """Limits the work of one attempt on this node; 0: no limit."""

    processes: int = 0
    memory_bytes: int = 0

    def by_controller(self) -> dict[str, int]:
        """Gives the limits that are set, by the name of the controller."""
        return {name: limit for name, limit in (("pids", self.processes), ("memory", self.memory_bytes)) if limit}


NO_LIMITS = WorkLimits()


def limits_for(*, max_processes: int, reserved_memory: int, memory_bytes: int) -> WorkLimits:
    """Gives what work may have of this node: at most half of the kernel's process numbers, at least nine tenths of the memory."""
    numbers = int(Path("/proc/sys/kernel/pid_max").read_text())
    memory = memory_bytes - min(reserved_memory, memory_bytes // 10) if reserved_memory else 0
    return WorkLimits(min(max_processes, numbers // 2), memory)


class Controllers:
    """Writes limits into and beside the scopes of one v2 tree; logs once what the machine has no controller for."""

    def __init__(self, mount: Path, v1: dict[str, Path]) -> None:
        self._mount, self._v1 = mount, v1
        self._missing: set[str] = set()

    def limit(self, scope: Path, limits: WorkLimits) -> None:
        """Sets the limits of the scope's work."""
        for controller, limit in limits.by_controller().items():
            try:
                if controller in self._v1:
                    directory = self._beside(controller, scope)
                    directory.mkdir(parents=True, exist_ok=True)
                    _write(directory / FILES[controller][1], str(limit))
                else:
                    self._enable(controller, scope)
                    _write(scope / "work" / FILES[controller][0], str(limit))
            except OSError as error:
                if controller not in self._missing:
                    event(log, "LimitNotSet", logging.WARNING, controller=controller, message=str(error))
                self._missing.add(controller)

    def procs(self, scope: Path) -> list[str]:
        """Lists the files by which a process of one thread joins the v1 cgroups that were made for the scope.

        `tasks` moves the thread that writes it at once; `cgroup.procs`, which moves whole processes, waits for all processors.
        """
        files = [self._beside(controller, scope) / "tasks" for controller in self._v1]
        return [str(file) for file in files if file.exists()]

    def remove_limits(self, scope: Path) -> bool:
        """Removes the v1 cgroups of an empty scope; False while one is not empty."""
        directories = [self._beside(controller, scope) for controller in self._v1]
        for directory in directories:
            with suppress(OSError):  # a process is just leaving it: the answer says so
                directory.rmdir()
        return not any(directory.exists() for directory in directories)

    def close(self, root: Path) -> None:
        """Removes the v1 cgroups of the root of all scopes, as far as nobody uses them."""
        for controller in self._v1:
            with suppress(OSError):
                self._beside(controller, root).rmdir()
                self._beside(controller, root.parent).rmdir()

    def _beside(self, controller: str, path: Path) -> Path:
        return self._v1[controller] / path.relative_to(self._mount)

    def _enable(self, controller: str, scope: Path) -> None:
        """Hands the controller down from the mount to the scope's parts."""
        below = scope.relative_to(self._mount).parts
        for depth in range(len(below) + 1):
            directory = self._mount.joinpath(*below[:depth])
            if controller not in (directory / "cgroup.subtree_control").read_text().split():
                _write(directory / "cgroup.subtree_control", f"+{controller}")


def find_controllers(mounts: str) -> dict[str, Path]:
    """Finds where v1 hierarchies of the controllers are mounted, from /proc/self/mounts; empty on a pure v2 machine."""
    rows = [line.split() for line in mounts.splitlines()]
    return {name: Path(row[1]) for row in rows if len(row) > 3 and row[2] == "cgroup" for name in row[3].split(",") if name in FILES}


def _write(path: Path, text: str) -> None:
    """Writes into an existing file: cgroup files refuse a value at write(2), not at close(2)."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
