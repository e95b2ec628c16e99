"""Keeps the processes of one attempt as a set, its scope, which is counted and killed as a whole.

`CgroupScopes` keeps `ROOT/alloc-UID-ATTEMPT.scope/{shim,hold,work/main}` on cgroup v2: the shim, the process that keeps namespaces (`hold`
where there is one), the tasks. `work` carries the limits and holds no process, so that its parts may have limits of their own. The tree is
asked for nothing but `cgroup.kill`, `cgroup.events` and `cpu.stat`, so it serves a pure v2 machine and a hybrid one, whose v2 tree has no
controllers: there limits stand in cgroups of the v1 hierarchies, which the tasks join beside. A v2 scope is made before the cgroups beside
it and removed after them: whoever finds the scope finds all of them. `ProcessScopes` is what remains without the right to make cgroups: it
finds processes by the environment that their shim gave them, allocation, attempt and node, which a process can shed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lattice.units import is_digits
from lattice_agent.attempts import EarlySignal, Key
from lattice_agent.host import processes
from lattice_agent.host.controllers import NO_LIMITS, Controllers, WorkLimits, find_controllers, find_hierarchies, remove_tree
from lattice_agent.host.delegation import SLICE, DelegatedScope, manages_cgroups
from lattice_agent.standalone import shim
from lattice_agent.state.journal import parse_key

PARTS = ("shim", "work/main")
"""The cgroups of every scope."""
HOLD, CONTAINER = "hold", "container"
"""The cgroups of the process that keeps namespaces and of process 1 of the container, where there are such: these are no work."""


@dataclass(frozen=True)
class Entrances:
    """The files by which shim and tasks join the scope; empty without cgroups."""

    shim_procs: str = ""
    work_procs: tuple[str, ...] = ()
    work_kill: str = ""
    meters: dict[str, str] = field(default_factory=dict)
    """By name, the files in which the kernel counts what the work uses: `cpu`, `peak`, `limit`, `oom`."""


class Scopes(Protocol):
    """Keeps the scopes of attempts; the work is the tasks and all processes that come from them."""

    kind: str
    complete: bool
    """True where no process of the work can hide from the scope."""

    def make(self, key: Key, limits: WorkLimits = NO_LIMITS) -> None:
        """Makes the scope of an attempt and sets the limits of its work, which do not hold where there are no cgroups; may be repeated."""
        ...

    def entrances(self, key: Key) -> Entrances:
        """Returns the files by which shim and tasks join the scope, and those that end and measure the work; empty ones without cgroups."""
        ...

    def make_hold(self, key: Key) -> str:
        """Makes the cgroup of the process that holds an attempt's namespaces; returns the file by which it joins, empty without cgroups."""
        ...

    def hold_procs(self, key: Key) -> str:
        """Returns the file by which the process that holds an attempt's namespaces joins its cgroup, whether it exists or not."""
        ...

    def hold_pids(self, key: Key) -> list[int]:
        """Returns the pids of the process that holds an attempt's namespaces; empty: there is none, or it is not known here."""
        ...

    def standing_limits(self, key: Key) -> dict[str, str]:
        """Returns the limits that the kernel holds the attempt's work to, by controller, in its words; empty: none, or no cgroups."""
        ...

    def remove_hold(self, key: Key) -> bool:
        """Kills the process that holds an attempt's namespaces and removes its cgroup; returns False while the cgroup still exists."""
        ...

    def container_path(self, key: Key) -> str:
        """Returns the path of the container's cgroup below the root of every hierarchy, as an OCI runtime has it; empty without cgroups."""
        ...

    def container_procs(self, key: Key) -> str:
        """Returns the file by which a process joins the container's cgroup in the v2 tree, whether it exists or not."""
        ...

    def ruled_cgroups(self, key: Key) -> tuple[str, str]:
        """Returns the v2 cgroups of the container and of the work, whose device rules are the same; empty texts without cgroups."""
        ...

    def remove_container(self, key: Key) -> bool:
        """Kills what is in the container's cgroup and removes it in every hierarchy; returns False while it still exists in one."""
        ...

    def work(self, key: Key) -> list[int]:
        """Returns the pids of the work; empty: none is left."""
        ...

    def whole(self, key: Key) -> list[int]:
        """Returns the pids of the whole scope, the shim's included where it is known."""
        ...

    def populated(self, key: Key) -> bool:
        """Tells whether any process of the work is left, or the shim where the scope knows it; hold and container do not count."""
        ...

    def shim_pid(self, key: Key) -> int:
        """Returns the shim's pid where the scope itself knows it, else 0."""
        ...

    def send_early(self, key: Key, early: EarlySignal, shim: int) -> int:
        """Sends the signal before the end to those processes that get it; returns how many had it.

        `shim`: the pid of the attempt's shim; 0: there is none.
        """
        ...

    def terminate(self, key: Key) -> int:
        """Sends TERM to the processes of the work, and CONT so that stopped ones receive it; returns how many TERM has reached."""
        ...

    def kill(self, key: Key, *, whole: bool = False) -> None:
        """Sends KILL to the processes of the work, with `whole` to all of the scope, the shim too; returns at once, whoever survives."""
        ...

    def remove_scope(self, key: Key) -> bool:
        """Removes a scope without work; kills what keeps namespaces and a container in it. Returns False while the scope is not gone."""
        ...

    def standing_scopes(self) -> list[Key]:
        """Returns the attempts that have a scope."""
        ...

    def unenforced(self) -> str:
        """Returns which limits of work do not hold on this machine, as a clause; empty: all do."""
        ...

    def close(self) -> None:
        """Removes the cgroups that this object made for all attempts, unless a scope is left."""
        ...


class CgroupScopes:
    """Keeps scopes as cgroup v2 directories below `root`."""

    complete = True

    def __init__(self, root: Path, kind: str, controllers: Controllers, delegated: DelegatedScope | None = None) -> None:
        """Makes the root; `delegated` is systemd's scope in which it stands, None: it stands in none."""
        self.root, self.kind, self.controllers, self._delegated = root, kind, controllers, delegated
        if delegated is not None:
            delegated.keep()
        root.mkdir(parents=True, exist_ok=True)

    def make(self, key: Key, limits: WorkLimits = NO_LIMITS) -> None:
        """Makes the scope of an attempt and sets the limits of its work; may be repeated.

        A limit that the kernel refuses is logged. Raises Retry where systemd's scope has gone and does not come again.
        """
        if self._delegated is not None:
            self._delegated.keep()
        for part in PARTS:
            (self.directory(key) / part).mkdir(parents=True, exist_ok=True)
        self.controllers.limit(self.directory(key), limits)

    def entrances(self, key: Key) -> Entrances:
        """Returns the files by which shim and tasks join the scope, and those that end and measure the work; empty ones without cgroups."""
        path = self.directory(key)
        work = (*self.controllers.procs(path), str(path / "work/main/cgroup.procs"))
        meters = {"cpu": str(path / "work/cpu.stat")} | self.controllers.meters(path)
        return Entrances(str(path / "shim/cgroup.procs"), work, str(path / "work/cgroup.kill"), meters)

    def make_hold(self, key: Key) -> str:
        """Makes the cgroup of the process that keeps namespaces in the attempt's scope; returns the file by which it joins."""
        (self.directory(key) / HOLD).mkdir(exist_ok=True)
        return self.hold_procs(key)

    def hold_procs(self, key: Key) -> str:
        """Returns the file by which the process that keeps namespaces joins, whether it exists or not."""
        return str(self.directory(key) / HOLD / "cgroup.procs")

    def hold_pids(self, key: Key) -> list[int]:
        """Returns the pids of the process that keeps namespaces; empty: there is none."""
        return _members(self.directory(key) / HOLD)

    def standing_limits(self, key: Key) -> dict[str, str]:
        """Returns the limits that the kernel holds the attempt's work to, by controller, in its words; empty: none."""
        return self.controllers.standing_limits(self.directory(key))

    def remove_hold(self, key: Key) -> bool:
        """Kills the process that keeps namespaces and removes its cgroup, so that none can join it; returns False while it is not gone."""
        hold = self.directory(key) / HOLD
        kill_cgroup(hold)
        with suppress(OSError):
            hold.rmdir()
        return not hold.exists()

    def container_path(self, key: Key) -> str:
        """Returns the path of the container's cgroup below the root of every hierarchy."""
        return self.controllers.below_mount(self.directory(key) / CONTAINER)

    def container_procs(self, key: Key) -> str:
        """Returns the file by which a process joins the container's cgroup in the v2 tree, whether it exists or not."""
        return str(self.directory(key) / CONTAINER / "cgroup.procs")

    def ruled_cgroups(self, key: Key) -> tuple[str, str]:
        """Returns the v2 cgroups of the container and of the work, whose device rules are the same."""
        return str(self.directory(key) / CONTAINER), str(self.directory(key) / "work")

    def remove_container(self, key: Key) -> bool:
        """Kills what is in the container's cgroup and removes it in every hierarchy; returns False while it still exists in one."""
        container = self.directory(key) / CONTAINER
        kill_cgroup(container)
        if is_populated(container):
            return False
        remove_tree(container)
        return not container.exists() and self.controllers.remove_beside(container)

    def work(self, key: Key) -> list[int]:
        """Returns the pids of the work, also in cgroups that the work made itself; empty: none is left, or there is no scope."""
        return _members(self.directory(key) / "work")

    def whole(self, key: Key) -> list[int]:
        """Returns the pids of the whole scope, the shim's included."""
        return _members(self.directory(key))

    def populated(self, key: Key) -> bool:
        """Tells whether any process of the work is left, or the shim where the scope knows it; hold and container do not count."""
        scope = self.directory(key)
        if not is_populated(scope):
            return False
        with suppress(OSError):
            return any(part.name not in (HOLD, CONTAINER) and part.is_dir() and is_populated(part) for part in scope.iterdir())
        return False

    def shim_pid(self, key: Key) -> int:
        """Returns the pid of the shim, which is in a cgroup of its own; 0: there is none."""
        return next(iter(_members(self.directory(key) / "shim")), 0)

    def send_early(self, key: Key, early: EarlySignal, shim: int) -> int:
        """Sends the signal before the end to those processes that get it; `shim`: the pid of the attempt's shim, 0: there is none."""
        return processes.send_all(lambda: self._early(key, early.to, shim), signal.Signals[f"SIG{early.name}"])

    def terminate(self, key: Key) -> int:
        """Sends TERM to the processes of the work, and CONT so that stopped ones receive it; returns how many TERM has reached."""
        reached = processes.send_all(lambda: self.work(key), signal.SIGTERM)
        processes.send_all(lambda: self.work(key), signal.SIGCONT)
        return reached

    def kill(self, key: Key, *, whole: bool = False) -> None:
        """Sends KILL to the processes of the work, with `whole` to all of the scope, the shim too; returns at once, whoever survives."""
        path = self.directory(key) if whole else self.directory(key) / "work"
        kill_cgroup(path)

    def remove_scope(self, key: Key) -> bool:
        """Removes a scope without work; kills what keeps namespaces and a container in it. Returns False while the scope is not gone."""
        if self.populated(key) or not self.remove_hold(key) or not self.remove_container(key):
            return False
        scope = self.directory(key)
        for part in scope.iterdir() if scope.exists() else ():
            remove_tree(part)
        if not self.controllers.remove_beside(scope):
            return False
        remove_tree(scope)
        return not scope.exists()

    def standing_scopes(self) -> list[Key]:
        """Returns the attempts that have a scope."""
        names = [path.name for path in self.root.glob("alloc-*.scope")]
        return [key for name in names if (key := parse_key(name[len("alloc-") : -len(".scope")]))]

    def unenforced(self) -> str:
        """Returns which limits of work do not hold on this machine, as a clause; empty: all do."""
        lacking = self.controllers.unserved()
        return f"its kernel does not serve the cgroup controllers {', '.join(lacking)}" if lacking else ""

    def close(self) -> None:
        """Removes the root directory, and what was made above it, when it holds no scope; else does nothing."""
        with suppress(OSError):
            self.root.rmdir()
            self.controllers.close(self.root)
            if self._delegated is not None:
                self._delegated.drop()
            elif self.root.parent.name == SLICE:
                self.root.parent.rmdir()

    def _early(self, key: Key, to: str, shim: int) -> list[int]:
        """Returns the pids that get the signal before the end."""
        if to == "launches":
            return [pid for ranks in (self.directory(key) / "work").glob("launch-*") for pid in _members(ranks)]
        return _first_processes(self.work(key), shim) if to == "script" else self.work(key)

    def directory(self, key: Key) -> Path:
        """Returns the directory of an attempt's scope, whether it exists or not."""
        return self.root / f"alloc-{key.uid}-{key.attempt}.scope"


class ProcessScopes:
    """Scopes without cgroups: the processes whose environment names the attempt on this node, and their descendants.

    Another agent of the same user may have the same attempt on another node of the same machine.
    """

    kind, complete = "processes", False

    def __init__(self, node: str) -> None:
        self._node = node
        self._made: set[Key] = set()

    def make(self, key: Key, limits: WorkLimits = NO_LIMITS) -> None:
        """Notes the attempt; without cgroups nothing is made, and `limits` are not applied."""
        self._made.add(key)

    def entrances(self, key: Key) -> Entrances:
        """Returns no files: there is nothing to join."""
        return Entrances()

    def make_hold(self, key: Key) -> str:
        """Returns an empty text and makes nothing: without cgroups nobody could find the process again."""
        return ""

    def hold_procs(self, key: Key) -> str:
        """Returns an empty text: there is no such process."""
        return ""

    def hold_pids(self, key: Key) -> list[int]:
        """Returns no pids: there is no such process."""
        return []

    def standing_limits(self, key: Key) -> dict[str, str]:
        """Returns no limits: without cgroups none is held."""
        return {}

    def remove_hold(self, key: Key) -> bool:
        """Returns True and does nothing: there is no such process."""
        return True

    def container_path(self, key: Key) -> str:
        """Returns an empty text: without cgroups there are no containers."""
        return ""

    def container_procs(self, key: Key) -> str:
        """Returns an empty text: there is no container."""
        return ""

    def ruled_cgroups(self, key: Key) -> tuple[str, str]:
        """Returns empty texts: there is no container."""
        return "", ""

    def remove_container(self, key: Key) -> bool:
        """Returns True and does nothing: there is no container."""
        return True

    def work(self, key: Key) -> list[int]:
        """Returns the pids of the work whose environment still names attempt and node, and of their descendants; empty: none is found."""
        marked = {int(entry.name) for entry in Path("/proc").iterdir() if is_digits(entry.name) and _names(entry, key, self._node)}
        return sorted(marked | set(shim.descendants(*marked)))

    def whole(self, key: Key) -> list[int]:
        """Returns the pids of the work, without the shim, which is known only by its claim."""
        return self.work(key)

    def populated(self, key: Key) -> bool:
        """Tells whether any process of the work is left; the shim is not seen here."""
        return bool(self.work(key))

    def shim_pid(self, key: Key) -> int:
        """Returns 0: the shim is not known here."""
        return 0

    def send_early(self, key: Key, early: EarlySignal, shim: int) -> int:
        """Sends the signal before the end to those processes that get it; `shim`: the pid of the attempt's shim, 0: there is none."""
        return processes.send_all(lambda: self._early(key, early.to, shim), signal.Signals[f"SIG{early.name}"])

    def terminate(self, key: Key) -> int:
        """Sends TERM to the processes of the work, and CONT so that stopped ones receive it; returns how many TERM has reached."""
        reached = processes.send_all(lambda: self.work(key), signal.SIGTERM)
        processes.send_all(lambda: self.work(key), signal.SIGCONT)
        return reached

    def kill(self, key: Key, *, whole: bool = False) -> None:
        """Sends KILL to the processes of the work until none is found, 20 times at most; `whole` changes nothing."""
        for _ in range(20):
            if not processes.send_all(lambda: self.work(key), signal.SIGKILL):
                return

    def _early(self, key: Key, to: str, shim: int) -> list[int]:
        """Returns the pids that get the signal before the end; without cgroups there are no launches."""
        if to == "launches":
            return []
        return _first_processes(self.work(key), shim) if to == "script" else self.work(key)

    def remove_scope(self, key: Key) -> bool:
        """Drops the note that the attempt was made; returns False, and keeps it, while processes are left."""
        if self.populated(key):
            return False
        self._made.discard(key)
        return True

    def standing_scopes(self) -> list[Key]:
        """Returns the attempts that this process has made and not removed; those of earlier processes are unknown."""
        return sorted(self._made)

    def unenforced(self) -> str:
        """Returns that no limit holds but that of processes for each user: there are no cgroups."""
        return "its agent may make no cgroups: work is not limited in memory and processors, and may hide processes"

    def close(self) -> None:
        """Does nothing: nothing was made."""


def find_mount(mounts: str) -> tuple[Path, str] | None:
    """Returns where cgroup v2 is mounted, read from the text of /proc/self/mounts, and `unified` (v2 alone) or `hybrid` (v1 beside it).

    None: it is not mounted.
    """
    rows = [line.split() for line in mounts.splitlines()]
    v2 = next((Path(row[1]) for row in rows if len(row) > 2 and row[2] == "cgroup2"), None)
    if v2 is None:
        return None
    return v2, "hybrid" if any(len(row) > 2 and row[2] == "cgroup" for row in rows) else "unified"


def choose(node: str, root: Path | None) -> Scopes:
    """Returns cgroup scopes below `root`, which it makes, or process scopes where cgroups may not be made.

    Without `root` they stand in `lattice.slice/NODE` of the v2 mount; under systemd in `lattice.slice/lattice-work.scope/NODE`, which
    systemd delegates. Raises Retry where systemd does not.
    """
    mounts = Path("/proc/self/mounts").read_text()
    found = find_mount(mounts)
    if found is None:
        return ProcessScopes(node)
    mount, kind = found
    delegated = DelegatedScope(mount) if root is None and manages_cgroups() and os.geteuid() == 0 else None
    try:
        above = mount / SLICE if delegated is None else delegated.path
        scopes = CgroupScopes(root or above / node, kind, Controllers(mount, find_controllers(mounts), find_hierarchies(mounts)), delegated)
        probe = scopes.root / "cgroup.kill"
        return scopes if probe.exists() and os.access(probe, os.W_OK) else ProcessScopes(node)
    except OSError:
        return ProcessScopes(node)


def is_populated(cgroup: Path) -> bool:
    """Tells whether a process is in a cgroup or below it; False where there is no such cgroup."""
    try:
        return "populated 1" in (cgroup / "cgroup.events").read_text()
    except OSError:
        return False


def kill_cgroup(cgroup: Path) -> None:
    """Sends KILL to every process in a cgroup and below it; passes over a cgroup that is gone."""
    with suppress(OSError):
        fd = os.open(cgroup / "cgroup.kill", os.O_WRONLY)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)


def _members(path: Path) -> list[int]:
    """Returns the pids in a cgroup and below it, in no order; empty where there is none."""
    found: list[int] = []
    for directory, _, _ in os.walk(path):
        with suppress(OSError):
            found += map(int, Path(directory, "cgroup.procs").read_text().split())
    return [pid for pid in found if pid > 0]


def _first_processes(pids: list[int], shim: int) -> list[int]:
    """Returns those of the pids whose parent is the shim: the first process of each task."""
    found = []
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == shim:
                found.append(pid)
    return found


def _names(process: Path, key: Key, node: str) -> bool:
    """Tells whether the environment of a process (a directory of /proc) names the attempt on a node; False where it cannot be read."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    wanted = (f"LATTICE_ALLOC_ID={key.uid}", f"LATTICE_ATTEMPT={key.attempt}", f"LATTICE_NODENAME={node}")
    return all(text.encode() in variables for text in wanted)
