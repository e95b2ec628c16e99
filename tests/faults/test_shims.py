"""Processes that a node cannot end by asking: shims that are stopped, work that KILL does not reach. Nothing is released under them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import FINISHED, HEALTHY, READY
from lattice.views import Allocation
from lattice_dev import processes
from tests.e2e.waiting import Seen, until
from tests.faults.kills import shims_below
from tests.faults.scene import Scene
from tests.faults.site import TENANT
from tests.faults.test_disks import judged

pytestmark = [pytest.mark.faults, pytest.mark.root]


def stop_shim(scene: Scene, found: Allocation) -> None:
    """Stops the process that keeps the attempt's exit code, so that it reaps nothing."""
    root = scene.instance.where.scope_root()
    assert root is not None
    for (uid, _), shim in shims_below(root / found.status.head):
        if uid == found.metadata.uid:
            assert processes.send(shim, signal.SIGSTOP)


def test_a_stopped_shim_outlasts_no_walltime_and_no_cancel_and_its_code_is_known(scene: Scene) -> None:
    walltime, cancelled = scene.submit(seconds=300, walltime=6), scene.submit(seconds=300)
    for name in (walltime, cancelled):
        stop_shim(scene, scene.running(name))
    with scene.here.alice() as cluster:
        cluster.patch(ALLOCATIONS, cancelled, {"spec": {"cancel": {"reason": "a stopped shim"}}}, TENANT)
    ends = scene.ends([walltime, cancelled], within=60)
    assert [(reason, attempt) for reason, _, attempt in ends] == [("WalltimeExceeded", 1), ("Cancelled", 1)]
    assert {code for _, code, _ in ends} <= {143, 137}, ends  # 137: its `sleep` ended by TERM before the script, which kills itself then


@contextlib.contextmanager
def freezable(place: Path) -> Iterator[Path]:
    """A disk of its own for everybody, whose writes can be made to wait."""
    image, disk = place / "image", place / "disk"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    disk.mkdir()
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    disk.chmod(0o777)
    try:
        yield disk
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=False, capture_output=True)
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_work_that_survives_kill_keeps_its_node_and_says_so_until_it_is_gone(scene: Scene) -> None:
    home = scene.instance.where.user_home("alice")
    node = scene.instance.site().nodes[0]
    scene.instance.stop(f"agent-{node}")  # it looks at the machine's mounts as they are when it starts
    with freezable(home) as disk:
        scene.instance.start(f"agent-{node}")
        scene.becomes(node, "Ready")
        name = submit_writer(scene, disk, node)
        until(lambda: (disk / "out").exists(), within=40, what="its first line")
        subprocess.run(["fsfreeze", "--freeze", disk], check=True)
        until(Seen(lambda: shown(scene, name), lambda seen: seen == ("Unkillable", "Unkillable")), within=60, what="Unkillable")
        found = condition(scene.get(name).status.conditions, READY)
        assert found is not None
        assert node in found.message
        assert "state D" in found.message
        until(Seen(lambda: judged(scene, node), lambda seen: seen[0] == "Degraded" and "survived KILL" in seen[2]), within=20, what=HEALTHY)
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)
        assert scene.ends([name])[0][::2] == ("WalltimeExceeded", 1)
        scene.becomes(node, "Ready")
        scene.instance.stop(f"agent-{node}")
    (home / "image").unlink()
    scene.instance.start(f"agent-{node}")


def submit_writer(scene: Scene, disk: Path, node: str) -> str:
    """Work that writes to the disk all the time, for 5 s."""
    name = "writer"
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name, "namespace": TENANT},
        "spec": {
            "tenant": TENANT, "user": "alice", "vcluster": "hpc-batch", "entrypoint": f"sh -c 'while sleep 0.1; do echo on >> {disk}/out; done'",
            "resources": {"nodes": 1, "constraints": {"nodeList": node}},
            "lifecycle": {"type": "Bounded", "walltime": "5s", "gracePeriod": "1s"},
        },
    }  # fmt: skip
    with scene.here.alice() as cluster:
        cluster.create(ALLOCATIONS, body, TENANT)
    return name


def shown(scene: Scene, name: str) -> tuple[str, str]:
    """The reasons of Finished and Ready."""
    status = scene.get(name).status
    finished, ready = condition(status.conditions, FINISHED), condition(status.conditions, READY)
    return finished.reason if finished else "", ready.reason if ready else ""
