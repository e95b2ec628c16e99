"""Keeps the cgroups of the launches of attempts: `SCOPE/keep/N` of the keeper of launch N, `SCOPE/work/launch-N` of its ranks."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import Rejected
from lattice_agent.attempts import Key
from lattice_agent.host.scopes import CgroupScopes, kill_cgroup

KEEP, WORK, RANKS = "keep", "work", "launch-"
MOST_LAUNCHES = 4096
"""Of one attempt on one node at a time: each has a keeper, a process of root's that no limit of the work counts."""
KEEPERS_SHARE, LEAST_KEEPERS_BYTES = 8, 1 << 30
"""All keepers of an attempt together may have an eighth of the node's memory, one GiB at least: a keeper takes 4 MiB and what it keeps."""
MOST_ASKED = 4
"""Of so many other keepers a new one asks for the work's mount namespace, where there is no shim."""


@dataclass(frozen=True)
class LaunchEntrances:
    """The files by which the keeper of a launch and its ranks join the scope, and those that end and measure the ranks."""

    keep_procs: str
    work_procs: tuple[str, ...]
    work_kill: str
    meters: dict[str, str]
    namespace_procs: tuple[str, ...]
    """The files that name processes of root's that may keep the work's mount namespace: the shim's, then those of keepers."""


class LaunchCgroups:
    """Makes, counts, kills and removes the cgroups of launches; an attempt's scope stands before them, and goes with them."""

    def __init__(self, scopes: CgroupScopes) -> None:
        self._scopes = scopes

    def scope(self, key: Key) -> Path:
        """Returns the directory of an attempt's scope, whether it exists or not."""
        return self._scopes.directory(key)

    def make_launch(self, key: Key, number: int) -> LaunchEntrances:
        """Makes the cgroups of a launch, and returns their files; may be repeated.

        Raises FileNotFoundError where the scope is gone, Rejected where it has more launches than a node keeps at a time.
        """
        scope = self.scope(key)
        keepers = scope / KEEP
        others = [entry.path for entry in os.scandir(keepers) if entry.is_dir()] if keepers.is_dir() else []
        if len(others) >= MOST_LAUNCHES and str(keepers / str(number)) not in others:
            raise Rejected(f"{len(others)} launches of it run on this node, which keeps {MOST_LAUNCHES} at a time: wait for some of them")
        for path in (keepers, keepers / str(number), scope / WORK / f"{RANKS}{number}"):
            path.mkdir(exist_ok=True)
        self._scopes.controllers.limit_memory(keepers, keepers_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
        ranks = scope / WORK / f"{RANKS}{number}"
        *beside, _ = self._scopes.entrances(key).work_procs
        return LaunchEntrances(
            str(keepers / str(number) / "cgroup.procs"), (*beside, str(ranks / "cgroup.procs")), str(ranks / "cgroup.kill"),
            {"cpu": str(ranks / "cpu.stat")}, (f"{scope}/shim/cgroup.procs", *(f"{path}/cgroup.procs" for path in others[:MOST_ASKED])),
        )  # fmt: skip

    def keeper_pid(self, key: Key, number: int) -> int:
        """Returns the pid of a launch's keeper; 0: there is none."""
        with suppress(OSError, ValueError):
            pids = (self.scope(key) / KEEP / str(number) / "cgroup.procs").read_text().split()
            return int(pids[0]) if pids else 0
        return 0

    def remove_launch(self, key: Key, number: int) -> bool:
        """Kills keeper and ranks of a launch, and removes its cgroups; returns False while one still exists. May be repeated."""
        scope = self.scope(key)
        left = False
        for path in (scope / WORK / f"{RANKS}{number}", scope / KEEP / str(number)):
            kill_cgroup(path)
            with suppress(OSError):
                path.rmdir()
            left = left or path.exists()
        return not left


def keepers_bytes(memory_bytes: int) -> int:
    """Returns the memory that all keepers of one attempt may have together, on a node of so much memory (both in bytes)."""
    return max(LEAST_KEEPERS_BYTES, memory_bytes // KEEPERS_SHARE)
