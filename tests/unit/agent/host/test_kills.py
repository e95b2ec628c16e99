"""kill -9 of agent, runner and shims at random moments: nothing starts twice, no exit code is lost, nothing is left."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lattice.views.allocation import SoftwareImage
from lattice_agent.attempts import Key
from lattice_agent.host import processes
from lattice_agent.host.scopes import choose
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from lattice_agent.state.journal import Journal
from tests.oci import keep_image, make_root, needs_runc, stub
from tests.squashfs import make_image, needs_mksquashfs
from tests.system_files import below, loop_files
from tests.unit.agent.machine import await_nothing, needs_root, open_directory, work

pytestmark = [pytest.mark.root, pytest.mark.faults, needs_root()]

WORKS, KILLS, SECONDS = 40, 24, 600.0

SCRIPT = """#!/bin/sh
echo "$LATTICE_ALLOC_ID" >> {witness}
setsid sleep 300 &
sleep 0.{tenths}
while ! test -e {kills}/{least}; do sleep 0.1; done
exit {code}
"""
"""Work ends once there were so many kills, so that those come while it runs, however fast the machine is."""


class Run:
    """One keeper, restarted whenever it is dead, and what was done to it."""

    def __init__(self, place: Path, seed: int, image: Path | None, container: SoftwareImage | None = None) -> None:
        """Every second work mounts the image, or runs in the container's, where there is one."""
        self.container = container
        self.place, self.random, self.node = place, random.Random(seed), place.name
        self.journal = Journal(place / "state", place / "memory")
        self.witness, self.results, self.works = place / "witness", place / "results", place / "works"
        self.killed_shims: set[str] = set()
        self.killed_holds: set[str] = set()
        self.image = image or container
        self.kills: Counter[str] = Counter()
        self.witness.touch()
        self.witness.chmod(0o666)
        self.codes = {f"{node_uid:02d}-{seed}": node_uid + 1 for node_uid in range(WORKS)}
        self.killed = place / "killed"
        self.killed.mkdir()
        scripts = {
            uid: SCRIPT.format(
                witness=self.witness,
                tenths=self.random.randrange(1, 6),
                kills=self.killed,
                least=math.ceil(code * KILLS / WORKS),
                code=code,
            )
            for uid, code in self.codes.items()
        }
        (place / "mounted").mkdir()
        works = [work(uid, script=script, key=Key(uid, 1), **self.software(uid)) for uid, script in scripts.items()]
        self.works.write_bytes(msgspec.json.encode(works))
        self.keeper = self.spawn()

    def software(self, uid: str) -> dict[str, Any]:
        """The fields of the work that ask for software."""
        if self.codes[uid] % 2 == 0:
            return {}
        if self.container is not None:
            mounts = (str(self.place),)
            return {"image": self.container.source, "software": (self.container,), "container_mounts": mounts, "private_tmp": True}
        return {"uenv": f"{self.image}:{self.place}/mounted"} if self.image else {}

    def spawn(self) -> subprocess.Popen[bytes]:
        """A new keeper on the same state."""
        arguments = [self.place / "state", self.node, self.works, self.results]
        environ = os.environ | ({"LATTICE_STUB": str(stub())} if self.container is not None else {})
        return subprocess.Popen([sys.executable, "-m", "tests.unit.agent.keeper", *map(str, arguments)], env=environ)

    def torment(self) -> None:
        """Kills until the list is done."""
        deadline = time.monotonic() + SECONDS
        while self.keeper.poll() != 0:
            assert time.monotonic() < deadline, f"not done after {SECONDS} s; kills: {self.kills}"
            if self.keeper.poll() is not None:
                assert self.keeper.returncode == -signal.SIGKILL
                self.keeper = self.spawn()
            time.sleep(self.random.choice((0.01, 0.05, 0.2)))
            if self.kills.total() < KILLS and self.journal.attempts_dir.is_dir():
                self.kill_one()
                for number in range(self.kills.total() + 1):
                    (self.killed / str(number)).touch()

    def is_due(self, whom: str) -> bool:
        """Whether enough works have ended since whoever makes them was killed.

        On a slow machine an agent killed as often as on a fast one comes to nothing, and a container is given up whose making was cut off
        five times.
        """
        return len(self.results_by_uid()) * KILLS >= self.kills[whom] * WORKS

    def kill_one(self) -> None:
        """One of the three, where it is there."""
        match self.random.choice(("keeper", "runner", "runner", "shim", *(("hold", "hold") if self.image else ()))):
            case "keeper" if self.is_due("keeper"):
                self.keeper.kill()
                self.keeper.wait()
                self.kills["keeper"] += 1
            case "runner" if self.is_due("runner"):
                for pid in children_of(self.keeper.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.kills["runner"] += 1
            case "shim":
                self.kill_a_shim()
            case "hold":
                self.kill_a_hold()

    def kill_a_shim(self) -> None:
        """Any that lives, whatever it does at the moment."""
        claims = [(key, self.journal.claimed(key)) for key in self.journal.known()]
        living = [(key, claim) for key, claim in claims if claim and processes.is_live(claim.pid, claim.start_ticks)]
        if living:
            key, claim = self.random.choice(living)
            with suppress(ProcessLookupError):
                os.kill(claim.pid, signal.SIGKILL)
                self.killed_shims.add(key.uid)
                self.kills["shim"] += 1

    def kill_a_hold(self) -> None:
        """Any that lives, whatever it does at the moment."""
        parts = [path / "cgroup.procs" for path in below(Path("/sys/fs/cgroup")) if path.name in ("hold", "container")]
        found = [path for path in parts if path.parts[-4:-3] == (self.node,)]
        living = [(path, pid) for path in found for pid in read_pids(path)]
        if living:
            path, pid = self.random.choice(living)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed_holds.add(path.parent.parent.name.removeprefix("alloc-").rpartition("-")[0])
                self.kills["hold"] += 1

    def results_by_uid(self) -> dict[str, set[tuple[int | None, str]]]:
        """What the keepers noted, all of it."""
        found: dict[str, set[tuple[int | None, str]]] = {}
        for line in self.results.read_text().splitlines() if self.results.exists() else []:
            entry = json.loads(line)
            found.setdefault(entry["uid"], set()).add((entry["code"], entry["failure"]))
        return found


def read_pids(path: Path) -> list[int]:
    """The processes of a cgroup that may be gone."""
    with suppress(OSError):
        return [int(pid) for pid in path.read_text().split()]
    return []


def children_of(parent: int) -> list[int]:
    """Direct children."""
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return []


def processes_of(place: Path) -> list[str]:
    """Command lines of processes that belong to the run."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            with suppress(OSError):
                if str(place).encode() in (directory / "cmdline").read_bytes():
                    found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


SEEDS = range(1, 1 + int(os.environ.get("LATTICE_KILL_SEEDS", "2")))


@pytest.fixture(params=["bare", pytest.param("software", marks=needs_mksquashfs()), pytest.param("container", marks=needs_runc())])
def kind(request: pytest.FixtureRequest) -> str:
    """In what works run."""
    return str(request.param)


@pytest.fixture(params=SEEDS)
def run(request: pytest.FixtureRequest, kind: str) -> Iterator[Run]:
    with open_directory() as place:
        container = None
        if kind == "container":
            cache = ImageCache(place / "cache", CacheLimits(free=0))
            cache.open()
            container = keep_image(cache, make_root(place / "root"))
        run = Run(place, request.param, make_image(place / "image", {"file": "x\n"}) if kind == "software" else None, container)
        yield run
        run.keeper.kill()
        run.keeper.wait()
        scopes = choose(run.node, None)
        for key in scopes.standing_scopes():
            scopes.kill(key, whole=True)
            for _ in range(200):
                if scopes.remove_scope(key):
                    break
                time.sleep(0.01)
        scopes.close()


def test_nothing_starts_twice_no_code_is_lost_and_nothing_is_left(run: Run) -> None:
    run.torment()
    print(run.kills)
    results, starts = run.results_by_uid(), Counter(run.witness.read_text().split())
    assert set(results) == set(run.codes)
    assert run.kills.total() >= KILLS // 2, run.kills
    for uid, code in run.codes.items():
        if uid in run.killed_holds:
            assert starts[uid] <= 1
            said = ("software", "container", "runc")
            assert all(found == code or any(map(failure.__contains__, said)) or not failure for found, failure in results[uid]), (
                f"{uid}: {results[uid]}, not {code}"
            )
        elif uid in run.killed_shims:
            assert starts[uid] <= 1
            assert results[uid] <= {(code, ""), (None, "")}, (uid, run.kills)
        else:
            assert starts[uid] == 1, (uid, run.kills)
            assert results[uid] == {(code, "")}, (uid, run.kills)
    scopes = choose(run.node, None)
    assert scopes.standing_scopes() == []
    assert [path for path in below(Path("/sys/fs/cgroup")) if path.name.startswith("alloc-") and path.parent.name == run.node] == []
    scopes.close()
    assert await_nothing(lambda: processes_of(run.place)) == []
    assert await_nothing(lambda: [str(file) for file, behind in loop_files() if str(run.place) in behind]) == []
    assert str(run.place) not in Path("/proc/self/mountinfo").read_text()
    assert not [key for key in run.journal.known() if not run.journal.is_settled(key)]
