"""Launches while something is killed: kill −9 at each point of their life and at random; ranks witness it outside Lattice.

What keeps no rank (agents, runners, controllers, the API server) costs time only; a keeper, a rank or a client takes its launch along,
whose script goes on and starts the next one.
"""

from __future__ import annotations

import glob
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from lattice.units import expand_nodes
from lattice_dev import processes
from tests.containers import push, small_system
from tests.e2e.people import person
from tests.e2e.waiting import until
from tests.faults.kills import runner_of
from tests.faults.scene import LONG, Scene
from tests.faults.site import TENANT, Site
from tests.oci import APPLETS, needs_runc
from tests.registries import running_registry

pytestmark = [pytest.mark.faults, pytest.mark.root]

SEED = int(os.environ.get("LATTICE_FAULTS_SEED", "1"))
POINTS = ("launch", "init", "fence", "run", "finalize")
HARMLESS = ("scheduler", "operator", "gateway", "kube-apiserver", "agent of the head", "agent", "runner of the head", "runner")
FATAL = ("keeper of the head", "keeper", "rank of the head", "rank", "client")
EVERY = [(point, victim) for point in POINTS for victim in (*HARMLESS, *FATAL) if point != "launch" or victim in (*HARMLESS, "client")]
CASES = EVERY if LONG else sorted(random.Random(SEED).sample(EVERY, 18), key=EVERY.index)
ON_NODES = [case for case in EVERY if case[1] not in ("scheduler", "operator", "gateway", "kube-apiserver")]
IN_IMAGES = ON_NODES if LONG else sorted(random.Random(SEED).sample(ON_NODES, 12), key=ON_NODES.index)
"""Cases of launches in OCI images: of whom a container is an affair."""
IMAGE = "images.example/faults/bash:1"
AT_RANDOM = int(os.environ.get("LATTICE_FAULTS_KILLS", "22")) // 4
LAUNCH_SECONDS = 90.0

RANK = """\
#!/bin/bash
# says when it comes to each point, in a file of its own, and goes on once it may; rank 0 waits in the fence itself
at() { echo "$BASHPID" >> "$1-$PMI_RANK"; [ "$2" ] || until [ -e "go-$1" ]; do sleep 0.05; done; }
ask() { echo "cmd=$1" >&$PMI_FD && read -ru $PMI_FD told; }
at begin on
ask "init pmi_version=1 pmi_subversion=1"
at init
if [ $PMI_RANK = 0 ]; then at fence on; else at fence; fi
ask barrier_in
at run
ask finalize
at finalize
echo "rank $PMI_RANK: done"
"""
SCRIPT = """\
#!/bin/bash
# a launch for each folder that is made for one
cd "$1"
for ((n = 0; ; n++)); do
  until [ -e $n/ready ]; do [ -e stop ] && exit 0; sleep 0.05; done
  cd $n
  srun -N 2 -n 2 ../rank > out 2> err &
  echo $! > client
  touch launch-0 launch-1
  wait $!
  echo $? > code.new && mv code.new code
  cd ..
done
"""


@dataclass
class Launches:
    """An allocation whose script starts a launch whenever it is asked for one."""

    scene: Scene
    folder: Path
    name: str
    uid: str
    nodes: tuple[str, ...]
    in_image: bool = False
    number: int = -1

    @property
    def place(self) -> Path:
        """The folder of the last launch."""
        return self.folder / str(self.number)

    def begin(self, *gates: str) -> None:
        """Starts a launch whose ranks pass these points without waiting."""
        self.number += 1
        self.place.mkdir()
        user = self.scene.instance.user("alice").uid
        os.chown(self.place, user, user)
        self.open(*gates)
        (self.place / "ready").touch()

    def open(self, *points: str) -> None:
        """Lets ranks pass these points."""
        for point in points:
            (self.place / f"go-{point}").touch()

    def reach(self, point: str) -> None:
        """Until both ranks are at a point."""
        until(lambda: all(self.pids(point)), within=LAUNCH_SECONDS, what=f"both ranks at {point}: {self.told()}")

    def pids(self, point: str) -> list[list[int]]:
        """By rank, the processes that came to a point."""
        files = [self.place / f"{point}-{rank}" for rank in (0, 1)]
        if point == "launch":
            return [[1] if file.exists() else [] for file in files]
        return [list(map(int, file.read_text().split())) if file.exists() else [] for file in files]

    def code(self) -> int:
        """The exit code of srun, once it has ended."""
        until((self.place / "code").exists, within=LAUNCH_SECONDS, what=f"the end of launch {self.number}")
        return int((self.place / "code").read_text())

    def told(self) -> str:
        """What the launch has written."""
        return "".join(file.read_text() for file in (self.place / "out", self.place / "err") if file.exists())

    def kill(self, victim: str) -> str:
        """kill −9; returns which component is to be started again (empty: none)."""
        kind, _, head = victim.partition(" of the ")
        node = self.nodes[0] if head else self.nodes[1]
        instance = self.scene.instance
        match kind:
            case "agent":
                instance.kill(f"agent-{node}")
                return f"agent-{node}"
            case "runner":
                runner = runner_of(instance.pid(f"agent-{node}"))
                assert runner is not None
                processes.send(runner, signal.SIGKILL)
            case "keeper":
                for file in (self._scopes_root() / node).glob(f"alloc-{self.uid}-*.scope/keep/{self.number}/cgroup.procs"):
                    for pid in map(int, file.read_text().split()):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            case "rank":
                for pid in self.pids("begin")[0 if head else 1]:
                    self._kill_work(pid, node)
            case "client":
                self._kill_work(int((self.place / "client").read_text()), self.nodes[0])
            case _:
                instance.kill(victim)
                return victim
        return ""

    def _kill_work(self, pid: int, node: str) -> None:
        """Kills a process of the work on a node, by its own pid: in an image that of its container."""
        for process in Path("/proc").glob("[0-9]*") if self.in_image else [Path("/proc", str(pid))]:
            with suppress(OSError):
                own = next(line.split()[-1] for line in (process / "status").read_text().splitlines() if line.startswith("NSpid:"))
                if own == str(pid) and f"/{node}/alloc-{self.uid}-" in (process / "cgroup").read_text():
                    os.kill(int(process.name), signal.SIGKILL)

    def _scopes_root(self) -> Path:
        root = self.scene.instance.where.scope_root()
        assert root is not None
        return root

    def left(self) -> list[str]:
        """Cgroups, processes and sockets of launches that stand although no launch runs."""
        scope = f"{self._scopes_root()}/*/alloc-{self.uid}-*.scope"
        runs = f"{self.scene.instance.where.directory}/agents/*/run/{self.uid}-*"
        patterns = (f"{scope}/work/launch-*/", f"{scope}/keep/*/", f"{runs}/keep-*")
        found = [path for pattern in patterns for path in glob.glob(pattern)]  # noqa: PTH207 - pathlib's fails where a directory goes
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
                if b"../rank" in words and str(self.folder) in str((process / "cwd").readlink()):
                    found.append(f"process {process.name}")
        return found


@pytest.fixture
def launches(scene: Scene) -> Iterator[Launches]:
    """The allocation, on two nodes."""
    yield from launched(scene)


@pytest.fixture
def launches_in_image(scene: Scene, shared: Site, tmp_path: Path) -> Iterator[Launches]:
    """The same in an OCI image: containers on two nodes."""
    network = shared.instance.site().network
    assert network is not None
    with running_registry(tmp_path, address=network.gateway) as program:
        bash = shutil.which("bash")
        assert bash
        push(program.host, "faults/bash", "1", small_system({"bin/bash": Path(bash).resolve()}, (*APPLETS, "mv")))
        shared.configure({"software": {"registries": [{"name": "images.example", "url": f"http://{program.host}"}]}})
        yield from launched(scene, image=IMAGE)
        shared.configure({"software": None})


def launched(scene: Scene, image: str = "") -> Iterator[Launches]:
    """The allocation, in an image where one is named, until the test has ended; it ends well then."""
    home, user = scene.instance.where.user_home("alice"), scene.instance.user("alice").uid
    folder = home / f"launches-{time.monotonic_ns()}"
    folder.mkdir()
    (folder / "rank").write_text(RANK)
    (folder / "rank").chmod(0o755)
    os.chown(folder, user, user)
    words = ["--nodes=2", "--time=120", f"--job-name={folder.name}", f"--stdout={folder}/out", *([f"--image={image}"] if image else [])]
    me = person(scene.instance, "alice", TENANT)
    me.lattice("submit", "--parsable", *words, "-", stdin=SCRIPT.replace('"$1"', str(folder)))
    (name,) = (name for name in scene.here.allocations() if name.startswith(folder.name))
    until(lambda: scene.get(name).status.phase == "Running", within=60, what="the script")
    found = scene.get(name)
    nodes = tuple(sorted(expand_nodes(found.status.nodes), key=lambda node: node != found.status.head))
    yield Launches(scene, folder, name, found.metadata.uid, nodes, in_image=bool(image))
    (folder / "stop").touch()
    assert scene.ends([name]) == [("Completed", 0, 1)]


def judge(launches: Launches, victim: str, *, at_random: bool = False) -> None:
    """The launch has ended as it must where this victim was killed, and nothing of it is left; `at_random`: it may have ended before."""
    code, told = launches.code(), launches.told()
    where = f"launch {launches.number}, {victim} killed: {code}\n{told}"
    begun = launches.pids("begin")
    assert all(len(pids) <= 1 for pids in begun), f"a rank has begun twice: {where}"
    if victim in FATAL and not (code == 0 and at_random):
        assert code == 137, where
        if victim != "client":
            assert "srun: error: " in told, where
    else:
        assert code == 0, where
        assert sorted(line for line in told.splitlines() if line.startswith("rank ")) == ["rank 0: done", "rank 1: done"], where
        for point in ("begin", "init", "fence", "run", "finalize"):
            assert [len(pids) for pids in launches.pids(point)] == [1, 1], f"{point}: {where}"
    until(lambda: not launches.left(), within=60, what=f"nothing left: {launches.left()} of {where}")


def test_what_is_killed_at_a_point_of_a_launch_costs_time_or_ends_it_with_a_reason(launches: Launches) -> None:
    kill_at_points(launches, CASES)


@needs_runc()
def test_what_is_killed_at_a_point_of_a_launch_in_an_image_does_the_same(launches_in_image: Launches) -> None:
    kill_at_points(launches_in_image, IN_IMAGES)


def kill_at_points(launches: Launches, cases: Sequence[tuple[str, str]]) -> None:
    """Starts a launch for each case, and kills whom it names at its point."""
    for point, victim in cases:
        began = time.monotonic()
        before = POINTS[1 : POINTS.index(point)] if point != "launch" else ()
        launches.begin(*before)
        launches.reach(point)
        component = launches.kill(victim)
        launches.open(*POINTS[1:])
        if component:
            launches.scene.instance.start(component, wait=False)
        print(f"{victim} killed at {point}: launch {launches.number}", flush=True)
        judge(launches, victim)
        print(f"  over after {time.monotonic() - began:.1f} s: {launches.told()!r}", flush=True)
        if component:
            launches.scene.instance.wait_ready()


def test_what_is_killed_at_random_costs_time_or_ends_a_launch_with_a_reason(launches: Launches) -> None:
    chance = random.Random(SEED)
    for _ in range(AT_RANDOM):
        victim, pause = chance.choice((*HARMLESS, *FATAL)), chance.uniform(0.0, 0.4)
        launches.begin(*POINTS[1:])
        launches.reach("launch")
        time.sleep(pause)
        component = launches.kill(victim)
        if component:
            launches.scene.instance.start(component, wait=False)
        print(f"{victim} killed {pause:.2f} s after the beginning of launch {launches.number}", flush=True)
        judge(launches, victim, at_random=True)
        if component:
            launches.scene.instance.wait_ready()


def test_the_audit_log_shows_no_write_for_launches(launches: Launches) -> None:
    launches.scene.whole()
    log = launches.scene.instance.where.audit_log
    time.sleep(2)  # what the start of the work itself writes
    begun = log.stat().st_size
    for _ in range(5):
        launches.begin(*POINTS[1:])
        assert launches.code() == 0, launches.told()
    time.sleep(1)
    with log.open("rb") as file:
        file.seek(begun)
        events = [json.loads(line) for line in file.read().splitlines()]
    writes = [
        (event["verb"], event["user"]["username"], event.get("objectRef", {}).get("resource"), event.get("objectRef", {}).get("name"))
        for event in events
        if event["verb"] in ("create", "update", "patch", "delete") and event.get("objectRef", {}).get("name") == launches.name
    ]
    assert writes == []
