"""Reads how much processor time the programs of an instance take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import NotFound
from lattice_dev.instance import Instance

DRIVER = "the driver"
"""The process that puts the load on."""


@dataclass(frozen=True)
class ProcessorTime:
    """The processor time of a process."""

    pid: int

    def seconds(self) -> float:
        """Returns user and system time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ProgramTimes:
    """The processor time of each program of an instance and of this process, from the moment at which this is made.

    A program that is started later counts from its start; one that has ended meanwhile counts no more.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._before = self._now()

    def spent(self, count: int) -> dict[str, float]:
        """Returns milliseconds of each program since this was made, for each of `count` (above 0) things that were done, the most first; of
        a name's several processes only those that run now count.
        """
        now = self._now()
        spent = {name: 1000 * (seconds - self._before.get((name, pid), 0.0)) / count for (name, pid), seconds in now.items()}
        return dict(sorted(spent.items(), key=lambda entry: -entry[1]))

    def _now(self) -> Mapping[tuple[str, int], float]:
        """Returns the processor seconds of each program so far, by name and pid; those that do not run are left out."""
        pids = {DRIVER: os.getpid()}
        for component in self._instance.components():
            with suppress(NotFound):
                pids[component.name] = self._instance.pid(component.name)
        found = {}
        for name, pid in pids.items():
            with suppress(FileNotFoundError):  # it has ended
                found[name, pid] = ProcessorTime(pid).seconds()
        return found
