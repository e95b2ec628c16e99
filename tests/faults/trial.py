"""One attempt on one node that meets its faults, and everything that it could have left on the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lattice_agent.attempts import Key
from lattice_agent.host import processes
from lattice_agent.host.scopes import find_mount
from lattice_agent.standalone import private_tmp
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from lattice_agent.state.journal import Journal
from lattice_agent.state.step_journal import StepJournal
from tests.faults.step_agent import Fault, Setup
from tests.system_files import below, loop_files

CODE = 7
LONGEST_SECONDS = 100.0
SETTLE_SECONDS = 20.0
STATE_MEBIBYTES = 32
"""Of a disk that is filled up."""

SCRIPT = """#!/bin/sh
echo start >> {work}/witness
{check}
sleep 0.15
exit {code}
"""
HOOK = """#!/bin/bash
echo {when} >> {place}/hooks
sleep 0.05
"""


@dataclass(frozen=True)
class Software:
    """What the work asks for beside the machine: `environment` and `data` of the Allocation, its images, and a check of the script's."""

    environment: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] | None = None
    images: tuple[Mapping[str, Any], ...] = ()
    registry: str = ""
    registries: tuple[Mapping[str, Any], ...] = ()
    check: str = ""
    disk: bool = False
    """Whether scratch space is on a disk; else it is in memory."""


class Trial:
    """The place of one attempt: its directories, its agents one after the other, its boots."""

    def __init__(self, place: Path, faults: tuple[Fault, ...], software: Software) -> None:
        self.place, self.faults, self.software = place, faults, software
        self.uid = str(uuid.uuid4())
        self.node = place.name
        self.key = Key(self.uid, 1)
        self.journal = Journal(place / "state", place / "memory")
        self.agents = 0

    def prepare(self) -> None:
        """Lays everything down that a site and a user have there before."""
        place, work = self.place, self.place / "work"
        for name in ("state", "memory", "cache", "work", "mounted", "also", "prologue.d", "epilogue.d"):
            (place / name).mkdir(exist_ok=True)
            (place / name).chmod(0o755)
        if self.software.disk:
            (place / "scratch").mkdir(exist_ok=True)
        work.chmod(0o777)
        (work / "witness").touch()
        (work / "witness").chmod(0o666)
        for when in ("prologue", "epilogue"):
            hook = place / f"{when}.d" / "10-site"
            hook.write_text(HOOK.format(when=when, place=place))
            hook.chmod(0o755)
        self._boot()
        script = SCRIPT.format(work=work, check=self.software.check.format(place=place), code=CODE)
        environment = {"workdir": str(work)} | {name: str(text).format(place=place) for name, text in self.software.environment.items()}
        spec = {"tenant": "physics", "user": "nobody", "script": script, "environment": environment}
        if self.software.data is not None:
            spec["data"] = dict(self.software.data)
        allocation = {
            "metadata": {"name": "job", "namespace": "physics", "uid": self.uid, "generation": 1},
            "spec": spec, "status": {"attempt": 1, "software": list(self.software.images)},
        }  # fmt: skip
        config = {
            "work": {"removeLeftovers": False},
            "software": {"registry": self.software.registry, "registries": list(self.software.registries)},
        }
        (place / "setup").write_bytes(msgspec.json.encode(Setup(self.node, self.uid, allocation, config, self.faults)))

    def _boot(self) -> None:
        (self.place / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def run(self) -> None:
        """Starts agents until one has brought the attempt to its end and forgotten it."""
        until = time.monotonic() + LONGEST_SECONDS
        while True:
            agent = self._spawn()
            try:
                code = agent.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.send_signal(signal.SIGABRT)
                agent.wait()
                raise AssertionError(f"not over after {LONGEST_SECONDS:g} s; struck: {self.struck}; {self.notes()}") from None
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"the agent ended with {code}; struck: {self.struck}"
            if self.struck and self.struck[-1][0] == "reboot":
                self.reboot()
        if any(target.endswith("scratch") for target, _ in self.struck):
            self._spawn().wait(LONGEST_SECONDS)  # what could not be deleted waits for its disk, or for the next agent

    def _spawn(self) -> subprocess.Popen[bytes]:
        """An agent in a mount namespace of its own, as under systemd, on a machine with this boot id."""
        self.agents += 1
        bind = f"mount --bind {self.place}/boot_id /proc/sys/kernel/random/boot_id"
        argv = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.step_agent", str(self.place)]
        return subprocess.Popen(["unshare", "-m", "--propagation", "slave", "sh", "-c", f'{bind} && exec "$@"', "-", *argv])

    @property
    def struck(self) -> list[tuple[str, int]]:
        """The faults that were struck: target and number of processes that were there."""
        path = self.place / "struck"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(target, int(count)) for target, _, count in (line.rpartition(" ") for line in lines)]

    def notes(self) -> str:
        """Everything that the journal says of the steps, for people."""
        found = [path for name in ("state/attempts", "memory") for path in (self.place / name).glob("*/steps")]
        return "; ".join(f"{path}: {path.read_text()}" for path in found)

    def reboot(self) -> None:
        """Leaves only what a machine that was switched off has kept: disks."""
        for root in self.cgroups():
            with suppress(OSError):
                (root / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := [*self.processes()]) and time.monotonic() < deadline:
            for pid, _ in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        assert not left, left
        for root in self.cgroups():
            for directory, _, _ in os.walk(root, topdown=False):
                with suppress(OSError):
                    Path(directory).rmdir()
        shutil.rmtree(self.place / "memory")
        (self.place / "memory").mkdir()
        self._boot()

    # what it ended with

    def result(self) -> dict[str, Any]:
        """The end as a reporter would have written it."""
        found: dict[str, Any] = json.loads((self.place / "results").read_text())
        return found

    def starts(self) -> int:
        """How often the script began."""
        return (self.place / "work/witness").read_text().splitlines().count("start")

    def hooks(self) -> list[str]:
        """What the site's hooks ran for, in order."""
        path = self.place / "hooks"
        return path.read_text().splitlines() if path.exists() else []

    # what it could have left

    def left(self) -> list[str]:
        """Everything that was not there before, once what is ending has ended."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (found := [*self._left()]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _left(self) -> Iterator[str]:
        place = str(self.place)
        for pid, how in self.processes():
            yield f"process {pid} {processes.describe(pid)}: {how}"
        yield from (f"cgroup {root}" for root in self.cgroups())
        yield from (f"loop device {path}" for path, behind in loop_files() if place in behind)
        yield from (f"socket {line}" for line in Path("/proc/net/unix").read_text().splitlines() if place in line)
        begins = private_tmp.beginning(f"{place}/state/attempts")
        yield from (f"directory {path}" for path in Path("/tmp").iterdir() if path.name.startswith(begins))
        yield from (f"run directory {path}" for path in below(self.place / "memory") if path.name != "scratch")
        yield from (
            f"scratch {path}"
            for path in below(self.place / "scratch")
            if path.name.startswith(self.uid) or (path.is_file() and path.name != "filler")
        )
        yield from (f"attempt {key}" for key in self.journal.known() if not self.journal.is_settled(key))
        yield from (f"step {name}" for name in StepJournal(self.journal).standing(self.key))
        if ("puller", 1) in self.struck:  # its draft waits for the next pull, or the next agent
            ImageCache(self.place / "cache", CacheLimits(free=0)).open()
        yield from (f"draft {path}" for path in (self.place / "cache").glob("drafts/*"))

    def processes(self) -> Iterator[tuple[int, str]]:
        """Processes that stand in a mount namespace of this node's, or whose arguments or environment name it."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                if f"{self.node}/boot_id" in (entry / "mountinfo").read_text():
                    yield int(entry.name), "in a mount namespace of the node's"
                elif f"LATTICE_ALLOC_ID={self.uid}".encode() in (entry / "environ").read_bytes():
                    yield int(entry.name), "of the work"

    def cgroups(self) -> list[Path]:
        """The cgroup of the node in each hierarchy that has one."""
        rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        mounts = [Path(row[1]) for row in rows if len(row) > 2 and row[2] in ("cgroup", "cgroup2")]
        return [path for mount in mounts for path in below(mount / "lattice.slice") if path.name == self.node]

    def sweep(self) -> None:
        """Ends and removes what a failed trial has left."""
        with suppress(AssertionError, OSError):
            self.reboot()


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """The directory on a disk of its own, small enough to be filled."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STATE_MEBIBYTES}m,mode=755", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def has_unified() -> bool:
    """Whether scopes are cgroups here."""
    return find_mount(Path("/proc/self/mounts").read_text()) is not None
