"""Limits the processes, the memory, the CPUs and the devices of an attempt's work: one driver, two back ends.

On a pure v2 machine limits stand in the scope's own cgroup `work`, below which every part of the work stands. On a hybrid machine they
stand in cgroups of the v1 hierarchies, at the same path below each of them, which the tasks join beside the v2 scope. A limit that this
machine cannot set is said once in the log (`LimitNotSet`); the work starts without it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.daemon.logs import event
from lattice.units import format_ranges, is_digits
from lattice_agent.standalone.meters import UNLIMITED

log = logging.getLogger(__name__)

V1_FILES = {"pids": "pids.max", "memory": "memory.limit_in_bytes", "cpuset": "cpuset.cpus", "cpu": "cpu.cfs_quota_us"}
V2_FILES = {"pids": "pids.max", "memory": "memory.max", "cpuset": "cpuset.cpus", "cpu": "cpu.max"}
"""By controller: the file of its limit."""
PERIOD = 100_000
"""Microseconds in which the work may use so much processor time: the kernel's default."""
V1_METERS = {"peak": "memory.max_usage_in_bytes", "limit": "memory.limit_in_bytes", "oom": "memory.oom_control"}
V2_METERS = {"peak": "memory.peak", "limit": "memory.max", "oom": "memory.events"}
"""By the name that a shim knows: the memory controller's file (`standalone.meters`)."""


@dataclass(frozen=True)
class WorkLimits:
    """The limits of processes, memory (bytes) and processors for one attempt on this node; 0 and empty: no limit."""

    processes: int = 0
    memory_bytes: int = 0
    cpus: tuple[int, ...] = ()
    """The processors it runs on."""

    def by_controller(self) -> dict[str, str]:
        """Returns the limits that are set, by name of the cgroup controller, as texts in the kernel's form."""
        time = str(len(self.cpus) * PERIOD or "")  # holds where there is no cpuset
        set_ = {
            "pids": str(self.processes or ""), "memory": str(self.memory_bytes or ""), "cpuset": format_ranges(self.cpus), "cpu": time,
        }  # fmt: skip
        return {name: text for name, text in set_.items() if text}


NO_LIMITS = WorkLimits()


@dataclass(frozen=True)
class Reserves:
    """The memory (bytes) and processors that a node keeps for the system, so that work may not have them."""

    cpus: frozenset[int] = frozenset()
    memory_bytes: int | None = None
    """None: as much as the LatticeConfig says."""

    def limits(self, *, max_processes: int, reserved_memory: int, memory_bytes: int) -> WorkLimits:
        """Returns the limits of work on the whole node: memory and processors without the reserves, and `max_processes`.

        The latter (0: no limit) is capped at half of the kernel's process numbers; that of which nothing is reserved is not limited.
        `reserved_memory` (bytes) is the LatticeConfig's, capped at a tenth of `memory_bytes`; a reserve set on the node counts instead.
        """
        numbers = int(Path("/proc/sys/kernel/pid_max").read_text())
        kept = self.kept_memory(reserved_memory, memory_bytes)
        cpus = sorted(os.sched_getaffinity(0) - self.cpus) if self.cpus else ()
        return WorkLimits(min(max_processes, numbers // 2), memory_bytes - kept if kept else 0, tuple(cpus))

    def kept_memory(self, reserved_memory: int, memory_bytes: int) -> int:
        """Returns the bytes that work may not have, of `memory_bytes`: the node's reserve, else the site's, capped at a tenth."""
        return min(reserved_memory, memory_bytes // 10) if self.memory_bytes is None else self.memory_bytes


NO_RESERVES = Reserves()


class Controllers:
    """Sets the limits of attempts: in their scopes of the cgroup v2 tree, or in v1 cgroups of the same path where v1 has the controller."""

    def __init__(self, mount: Path, v1: dict[str, Path], hierarchies: Sequence[Path] = ()) -> None:
        """Limits by the v1 controllers of `v1`; `hierarchies` are all v1 mounts, in which an OCI runtime makes cgroups, too."""
        self._mount, self._v1, self._hierarchies = mount, v1, tuple(dict.fromkeys((*v1.values(), *hierarchies)))
        self.missing: set[str] = set()
        """Controllers whose limits this machine has refused."""

    def limit(self, scope: Path, limits: WorkLimits) -> None:
        """Sets the limits of the work in a scope, made already; may be repeated.

        A limit that the kernel refuses is logged, and its controller added to `missing`; nothing is raised.
        """
        for controller, limit in limits.by_controller().items():
            try:
                if controller in self._v1:
                    self._limit_beside(controller, scope, limit)
                else:
                    self._enable(controller, scope)
                    _write(scope / "work" / V2_FILES[controller], f"{limit} {PERIOD}" if controller == "cpu" else limit)
            except OSError as error:
                self._note_missing(controller, error)

    def limit_memory(self, directory: Path, memory_bytes: int) -> None:
        """Sets the memory limit of a cgroup that stands beside the work in a scope, made already, without swap; may be repeated.

        Nothing where a v1 hierarchy has the controller: only the work joins cgroups there. A limit that the kernel refuses is logged.
        """
        if "memory" in self._v1:
            return
        try:
            self._enable("memory", directory.parent)
            _write(directory / V2_FILES["memory"], str(memory_bytes))
        except OSError as error:
            self._note_missing("memory", error)
        with suppress(OSError):  # the kernel counts no swap
            _write(directory / "memory.swap.max", "0")

    def _note_missing(self, controller: str, error: OSError) -> None:
        """Notes that the kernel has refused a limit of this controller, which is logged once."""
        if controller not in self.missing:
            event(log, "LimitNotSet", logging.WARNING, controller=controller, message=str(error))
        self.missing.add(controller)

    def unserved(self) -> list[str]:
        """Returns the controllers whose limits do not hold here: the kernel has refused one, or offers none in either tree."""
        try:
            offered = {*self._v1, *(self._mount / "cgroup.controllers").read_text().split()}
        except OSError:
            offered = set(self._v1)
        return sorted(self.missing | (V2_FILES.keys() - offered))

    def procs(self, scope: Path) -> list[str]:
        """Returns the files by which a single-threaded process joins the v1 cgroups made for the scope.

        `tasks` moves the writing thread at once; `cgroup.procs`, which moves whole processes, waits for all processors.
        """
        return [str(directory / "tasks") for directory in dict.fromkeys(self._all_beside(scope)) if directory.exists()]

    def meters(self, scope: Path) -> dict[str, str]:
        """Returns the files in which the kernel counts the memory of the scope's work, by their names in `meters.read`.

        Empty: there are none.
        """
        beside = "memory" in self._v1
        directory, files = (self._beside("memory", scope), V1_METERS) if beside else (scope / "work", V2_METERS)
        return {name: str(directory / file) for name, file in files.items() if (directory / file).exists()}

    def standing_limits(self, scope: Path) -> dict[str, str]:
        """Returns the limits that stand in the kernel for the work of a scope, by controller, in its words; those of `max` are left out."""
        found: dict[str, str] = {}
        for controller, file in V2_FILES.items():
            beside = controller in self._v1
            directory = self._beside(controller, scope) if beside else scope / "work"
            with suppress(OSError):
                text = (directory / (V1_FILES[controller] if beside else file)).read_text().strip()
                if text and text != "max" and not (is_digits(text, 20) and int(text) >= UNLIMITED):
                    found[controller] = text
        return found

    def remove_beside(self, path: Path) -> bool:
        """Removes the v1 cgroups at the path of a v2 one, and those below, as far as they are empty; returns False while one is left."""
        directories = [hierarchy / path.relative_to(self._mount) for hierarchy in self._hierarchies]
        for directory in directories:
            remove_tree(directory)
        return not any(directory.exists() for directory in directories)

    def below_mount(self, path: Path) -> str:
        """Returns the path of a cgroup as seen from the root of its hierarchy, beginning with a slash."""
        return f"/{path.relative_to(self._mount)}"

    def close(self, root: Path) -> None:
        """Removes from each v1 hierarchy the cgroup at the path of `root`, and the one above it, where they are empty."""
        for hierarchy in self._hierarchies:
            directory = hierarchy / root.relative_to(self._mount)
            with suppress(OSError):
                directory.rmdir()
                directory.parent.rmdir()

    def _all_beside(self, path: Path) -> Iterator[Path]:
        """Yields, for a path of the v2 tree, the same path below each v1 hierarchy, whether it exists or not."""
        return (self._beside(controller, path) for controller in self._v1)

    def _beside(self, controller: str, path: Path) -> Path:
        """Returns the same path as `path`, of the v2 tree, below the v1 hierarchy of a controller."""
        return self._v1[controller] / path.relative_to(self._mount)

    def _limit_beside(self, controller: str, scope: Path, limit: str) -> None:
        """Makes the v1 cgroup of a scope for one controller, and writes the limit there; raises OSError, with the cgroup removed, where the
        kernel refuses it.
        """
        directory = self._beside(controller, scope)
        directory.mkdir(parents=True, exist_ok=True)
        if controller == "cpuset":
            self._inherit_cpuset(directory)
        try:
            _write(directory / V1_FILES[controller], limit)
        except OSError:
            with suppress(OSError):  # nothing is joined that limits nothing, and a cpuset without processors takes nobody
                directory.rmdir()
            raise

    def _inherit_cpuset(self, directory: Path) -> None:
        """Copies processors and memory nodes of the parent into each new v1 cpuset: an empty cpuset accepts no process."""
        top = self._v1["cpuset"]
        below = directory.relative_to(top).parts
        for depth in range(1, len(below) + 1):
            made = top.joinpath(*below[:depth])
            for name in ("cpuset.cpus", "cpuset.mems"):
                if not (made / name).read_text().strip():
                    _write(made / name, (made.parent / name).read_text().strip())

    def _enable(self, controller: str, scope: Path) -> None:
        """Enables a controller in every directory from the mount down to the scope."""
        below = scope.relative_to(self._mount).parts
        for depth in range(len(below) + 1):
            directory = self._mount.joinpath(*below[:depth])
            if controller not in (directory / "cgroup.subtree_control").read_text().split():
                _write(directory / "cgroup.subtree_control", f"+{controller}")


def find_controllers(mounts: str) -> dict[str, Path]:
    """Returns, by controller, where v1 hierarchies are mounted, read from the text of /proc/self/mounts; empty: there is v2 alone."""
    rows = [line.split() for line in mounts.splitlines()]
    return {name: Path(row[1]) for row in rows if len(row) > 3 and row[2] == "cgroup" for name in row[3].split(",") if name in V1_FILES}


def find_hierarchies(mounts: str) -> tuple[Path, ...]:
    """Returns where all v1 hierarchies are mounted, read from the text of /proc/self/mounts."""
    rows = [line.split() for line in mounts.splitlines()]
    return tuple(dict.fromkeys(Path(row[1]) for row in rows if len(row) > 3 and row[2] == "cgroup"))


def remove_tree(path: Path) -> None:
    """Removes a cgroup and those below it, as far as no process is in them; a missing one is no error."""
    for directory, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):  # a process just joined it, or is just leaving it: whoever asked looks again
            Path(directory).rmdir()


def _write(path: Path, text: str) -> None:
    """Writes into an existing file: cgroup files refuse a value at write(2), not at close(2)."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
