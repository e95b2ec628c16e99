"""Disks of nodes that fill up, and state files that are cut off: nothing is lost that can be known, and the rest is said."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lattice.kube.resources import ALLOCATIONS, NODES
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import HEALTHY, READY
from lattice.views import Allocation, Node
from tests.e2e.waiting import Seen, until
from tests.faults.failing import loop_disk
from tests.faults.scene import Scene
from tests.faults.site import TENANT

pytestmark = [pytest.mark.faults, pytest.mark.root]


sockets = shutil.ignore_patterns("socket")
"""Leaves out the socket for launches, which cannot be copied; each agent makes it anew."""


@contextlib.contextmanager
def small_disk(scene: Scene, node: str) -> Iterator[Path]:
    """The node's state directory, with all that is in it, on a disk of 64 MiB."""
    state, agent = scene.instance.where.node(node) / "state", f"agent-{node}"
    aside = state.with_name("state-aside")
    scene.instance.stop(agent)
    shutil.copytree(state, aside, ignore=sockets)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=711", "tmpfs", state], check=True)
    try:
        shutil.copytree(aside, state, dirs_exist_ok=True)
        scene.instance.start(agent)
        scene.becomes(node, "Ready")
        yield state
    finally:
        scene.instance.stop(agent)
        shutil.rmtree(aside)
        shutil.copytree(state, aside, ignore=sockets)
        subprocess.run(["umount", "--lazy", state], check=True)
        shutil.rmtree(state)
        aside.rename(state)
        scene.instance.start(agent)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """The disk without a free page, until the end."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        filler.unlink()


def judged(scene: Scene, node: str) -> tuple[str, str, str]:
    """State of a node, the reason of its condition Ready, and what it says of itself."""
    with scene.here.admin() as cluster:
        status = cluster.get(NODES, node, type=Node).status
    ready, healthy = condition(status.conditions, READY), condition(status.conditions, HEALTHY)
    return status.state, ready.reason if ready else "", healthy.message if healthy else ""


def test_a_full_disk_takes_no_exit_code_and_its_node_no_work_until_there_is_room(scene: Scene) -> None:
    node, other = scene.instance.site().nodes[:2]
    with small_disk(scene, node) as disk:
        runs = scene.submit(seconds=5, code=7, on=node)
        scene.running(runs)
        with full(disk):
            until(Seen(lambda: judged(scene, node), lambda seen: seen[:2] == ("Degraded", "Unhealthy")), within=20, what="Degraded")
            assert "MiB free, 16 MiB are needed" in judged(scene, node)[2]
            assert scene.ends([runs]) == [("TaskFailed", 7, 1)]
        scene.becomes(node, "Ready")
        busy = scene.submit(seconds=6, code=0, on=other)
        scene.running(busy)
        scene.instance.kill("operator", signal.SIGSTOP)  # nobody learns yet that the node is unfit
        with full(disk):
            try:
                moved = scene.submit(seconds=1, code=3, on=f"{node},{other}")
                until(Seen(lambda: scene.get(moved), lambda found: bool(found.status.attempts)), within=20, what="the refusal")
            finally:
                scene.instance.kill("operator", signal.SIGCONT)
            assert scene.ends([moved, busy]) == [("TaskFailed", 3, 2), ("Completed", 0, 1)]
            assert scene.get(moved).status.attempts[0].reason == "NodeUnfit"
            assert scene.get(moved).status.head == other


def test_a_read_only_state_hinders_no_walltime_and_no_cancel_and_ends_are_judged_by_when_they_came(scene: Scene) -> None:
    node = scene.instance.site().nodes[0]
    with small_disk(scene, node):
        runs = scene.submit(seconds=300, on=node, walltime=8)
        scene.running(runs)
        with read_only(scene, node):
            until(Seen(lambda: judged(scene, node), lambda seen: seen[:2] == ("Degraded", "Unhealthy")), within=20, what="Degraded")
            assert scene.ends([runs], within=40) == [("WalltimeExceeded", 143, 1)]
        scene.becomes(node, "Ready")
        short = scene.submit(seconds=4, code=3, on=node, walltime=30)
        scene.running(short)
        with read_only(scene, node):
            assert scene.ends([short], within=40) == [("TaskFailed", 3, 1)]
            until(
                Seen(lambda: judged(scene, node)[2], lambda said: "stands in" in said and "only" in said),
                within=20,
                what="the end in memory",
            )
        scene.becomes(node, "Ready")
        until(lambda: (attempt_of(scene, scene.get(short)) / "exit").exists(), within=20, what="the end on the disk")


@contextlib.contextmanager
def read_only(scene: Scene, node: str) -> Iterator[None]:
    """Meanwhile the agent and all that it started find the node's state read-only, as a disk with errors is remounted."""
    pid = str(scene.instance.pid(f"agent-{node}"))
    state = str(scene.instance.where.node(node) / "state")
    subprocess.run(["nsenter", "-t", pid, "-m", "mount", "--bind", state, state], check=True)
    subprocess.run(["nsenter", "-t", pid, "-m", "mount", "-o", "remount,bind,ro", state], check=True)
    try:
        yield
    finally:
        subprocess.run(["nsenter", "-t", pid, "-m", "mount", "-o", "remount,bind,rw", state], check=True)
        subprocess.run(["nsenter", "-t", pid, "-m", "umount", "--lazy", state], check=True)


@pytest.mark.netns
def test_a_disk_whose_requests_fail_hinders_no_walltime_no_kill_and_no_end(scene: Scene) -> None:
    nodes = scene.instance.site().nodes[:3]
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(loop_disk(scene, node)) for node in nodes]
        outruns = scene.submit(seconds=300, on=nodes[0], walltime=10)
        resists = scene.submit(seconds=300, on=nodes[1], stubborn=True)
        finishes = scene.submit(seconds=8, code=3, on=nodes[2])
        found = [scene.running(name) for name in (outruns, resists, finishes)]
        for disk in disks:
            disk.fail()
        for node in nodes:
            until(Seen(partial(judged, scene, node), lambda seen: seen[:2] == ("Degraded", "Unhealthy")), within=20, what="Degraded")
        with scene.here.alice() as cluster:
            cluster.patch(ALLOCATIONS, resists, {"spec": {"cancel": {"reason": "enough"}}}, TENANT)
        assert scene.ends([outruns, finishes], within=60) == [("WalltimeExceeded", 143, 1), ("TaskFailed", 3, 1)]
        assert [(why, attempt) for why, _, attempt in scene.ends([resists], within=60)] == [("Cancelled", 1)]
        for one in found:
            until(partial(is_gone, scene, one), within=20, what=f"the last process on {one.status.head}")
    for one in found:
        scene.becomes(one.status.head, "Ready")
        until((attempt_of(scene, one) / "exit").exists, within=20, what="the end on the disk")


def is_gone(scene: Scene, found: Allocation) -> bool:
    """Whether nothing of it lives on its head."""
    return scene.alive(found, found.status.head) == []


def attempt_of(scene: Scene, found: Allocation) -> Path:
    """Where the agent keeps the first attempt."""
    return scene.instance.where.node(found.status.head) / "state" / "attempts" / f"{found.metadata.uid}-1"


def run_directory(scene: Scene, found: Allocation) -> Path:
    """What stands in memory of the first attempt."""
    return scene.instance.where.node(found.status.head) / "run" / f"{found.metadata.uid}-1"


def cut_off(path: Path) -> None:
    """Half of the file is gone."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_journal_that_is_cut_off_costs_nothing_while_the_work_runs(scene: Scene) -> None:
    name = scene.submit(seconds=None, code=7)
    found = scene.running(name)
    scene.instance.kill(f"agent-{found.status.head}")
    cut_off(attempt_of(scene, found) / "journal")
    scene.instance.start(f"agent-{found.status.head}")
    scene.finish(name)
    assert scene.ends([name]) == [("TaskFailed", 7, 1)]


def test_an_exit_record_that_is_cut_off_is_an_unknown_exit_and_nothing_runs_again(scene: Scene) -> None:
    name = scene.submit(seconds=2, code=7)
    found = scene.running(name)
    agent = f"agent-{found.status.head}"
    scene.instance.kill(agent)
    records = [attempt_of(scene, found) / "exit", run_directory(scene, found) / "exit"]
    until(
        lambda: all(record.exists() for record in records) and scene.alive(found, found.status.head) == [],
        within=20, what="the exit record",
    )  # fmt: skip
    for record in records:
        cut_off(record)
    scene.instance.start(agent)
    assert scene.ends([name]) == [("ExitUnknown", None, 1)]


def test_an_agent_whose_memory_of_plans_is_cut_off_touches_nothing_and_says_what_to_do(scene: Scene) -> None:
    name = scene.submit(seconds=280)
    found = scene.running(name)
    agent = f"agent-{found.status.head}"
    seq = scene.instance.where.node(found.status.head) / "state" / "seq"
    kept = seq.read_bytes()
    (log,) = scene.instance.log_files(agent)
    scene.instance.kill(agent)
    seq.write_bytes(b"")
    try:
        scene.instance.start(agent, wait=False)
        until(lambda: "remove it only if this node runs nothing" in log.read_text(), within=20, what="the agent's refusal")
        assert scene.alive(found, found.status.head) == [1]
    finally:
        seq.write_bytes(kept)
        scene.instance.stop(agent)
        scene.instance.start(agent)
    with scene.here.alice() as cluster:
        cluster.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "enough"}}}, TENANT)
    assert [(why, attempt) for why, _, attempt in scene.ends([name])] == [("Cancelled", 1)]
