"""The whole system at once: everything killed, what everything rests on paused, two agents where one belongs, peers of the gateway."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from lattice.errors import NotFound, Retry
from lattice_dev import processes
from lattice_dev.processes import ProcessId
from tests.e2e.waiting import until
from tests.faults.kills import runner_of
from tests.faults.scene import LONG, Scene, administrator
from tests.faults.site import TENANT

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.netns, pytest.mark.timeout(0 if LONG else 600)]

SEED = int(os.environ.get("LATTICE_FAULTS_SEED", "1"))
CODES = (0, 3, 7, 0, 3, 7)
RIGHT = [("Completed", 0, 1) if code == 0 else ("TaskFailed", code, 1) for code in CODES]
PAUSE_SECONDS = 12.0 if LONG else 5.0
PAUSED = [("etcd", "kube-apiserver"), ("etcd",), ("kube-apiserver",), ("scheduler", "operator", "gateway", "webhook")]
PEER_KILLS = 500 if LONG else 2


def works(scene: Scene, seconds: float) -> list[str]:
    """Six allocations on one node and on two, running."""
    names = [scene.submit(nodes=1 + number % 2, seconds=seconds, code=code) for number, code in enumerate(CODES)]
    for name in names:
        scene.running(name)
    return names


@contextlib.contextmanager
def paused(found: Sequence[ProcessId]) -> Iterator[None]:
    """Meanwhile these processes stand still."""
    for process in found:
        processes.send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in found:
            processes.send(process, signal.SIGCONT)


def identified(scene: Scene, *components: str) -> list[ProcessId]:
    """The processes of components that run."""
    return [found for name in components if (found := processes.identify(scene.instance.pid(name)))]


def test_everything_is_killed_at_once_and_started_in_any_order(scene: Scene) -> None:
    rng = random.Random(SEED)
    for _ in range(5 if LONG else 1):
        names = works(scene, 15.0)
        every = [component.name for component in scene.instance.components()]
        agents = [name for name in every if name.startswith("agent-")]
        runners = [found for name in agents if (found := runner_of(scene.instance.pid(name)))]
        for name in every:
            scene.instance.kill(name)
        for runner in runners:
            processes.send(runner, signal.SIGKILL)
        rng.shuffle(every)
        for name in every:
            scene.instance.start(name, wait=False)
        until(partial(all_run, scene, every), within=60, every=1.0, what=f"every program, started in the order {every}")
        assert scene.ends(names) == RIGHT


def all_run(scene: Scene, every: Sequence[str]) -> bool:
    """Whether everything is ready; what has given up before the API server was there is started again."""
    for name in every:
        try:
            scene.instance.pid(name)
        except NotFound:
            scene.instance.start(name, wait=False)
    with contextlib.suppress(Retry):
        scene.instance.wait_ready(within=10)
        return True
    return False


@pytest.mark.parametrize("components", PAUSED if LONG else PAUSED[:1], ids=" ".join)
def test_what_stands_still_for_a_while_costs_nothing(scene: Scene, components: tuple[str, ...]) -> None:
    names = works(scene, 4.0)
    with paused(identified(scene, *components)):
        time.sleep(PAUSE_SECONDS)  # the work ends meanwhile
    late = scene.submit(seconds=1, code=3)
    assert scene.ends([*names, late]) == [*RIGHT, ("TaskFailed", 3, 1)]


def test_agents_that_stand_still_past_their_timeout_lose_nothing(scene: Scene) -> None:
    names = works(scene, 6.0)
    with paused(identified(scene, *(f"agent-{node}" for node in scene.instance.site().nodes))):
        time.sleep(9.0)  # longer than the timeout: the nodes are Degraded, and their work ends
    assert scene.ends(names) == RIGHT


def test_a_second_agent_on_the_same_state_directory_is_refused(scene: Scene, tmp_path: Path) -> None:
    name = scene.submit(seconds=5, code=3)
    head = scene.running(name).status.head
    pid = scene.instance.pid(f"agent-{head}")
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    environ = dict(entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0") if "=" in entry)
    second = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", *argv], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2
    assert "StateDirectoryInUse" in second.stderr.splitlines()[-1]
    assert "stop one of the two" in second.stderr
    assert scene.instance.pid(f"agent-{head}") == pid
    assert scene.ends([name]) == [("TaskFailed", 3, 1)]


def test_a_gateway_outlives_its_peers_however_often_they_are_killed(scene: Scene) -> None:
    rng, me = random.Random(SEED), administrator(scene)
    name = scene.submit(seconds=3600, walltime=7200)  # it outlasts the kills, and is cancelled at the end
    scene.running(name)
    (gateway,) = identified(scene, "gateway")
    for number in range(PEER_KILLS):
        peer = ("kube-apiserver", "scheduler", "etcd")[rng.choices((0, 1, 2), (6, 3, 1))[0]]
        asking = subprocess.Popen(
            ["timeout", "20", str(Path(sys.executable).with_name("lattice")), "logs", name, "--follow", "-n", TENANT],
            env={**os.environ, "KUBECONFIG": str(me.kubeconfig)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(rng.uniform(0.0, 1.0))
            scene.instance.kill(peer)
            time.sleep(rng.uniform(0.0, 1.0))
            scene.instance.start(peer)
        finally:
            asking.kill()
            asking.wait()
        words = scene.instance.log_files("gateway")[0].read_text(errors="replace").splitlines()[-8:]
        assert processes.alive(gateway), f"the gateway has ended after {number + 1} kills of its peers ({peer}): {words}"
    scene.whole()
    until(lambda: me.lattice("logs", name, "-n", TENANT, ok=False).returncode == 0, within=20, every=1.0, what="an answer of the gateway")
    assert processes.alive(gateway)
    me.lattice("cancel", name, "-n", TENANT)
    assert scene.ended(name).status.phase == "Cancelled"
