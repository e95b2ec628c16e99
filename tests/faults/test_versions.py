"""An upgrade one program after the other, and back, with work running: two numbers of the formats side by side.

The older build is this one made to know the format numbers of the build before it: a `sitecustomize` in front of the daemons' path
sets `FORMAT` of ledger shard and plan to 1, so that the process offers, reads and writes 1 alone and refuses 2. That is what the numbers
are for; other differences between two builds are not shown here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lattice.kube.resources import PLANS
from tests.e2e.waiting import until
from tests.faults.scene import Scene
from tests.faults.site import site

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(400)]

OLDER = """
import lattice.ledger.format, lattice.ledger.plans
lattice.ledger.format.FORMAT = lattice.ledger.plans.FORMAT = 1
"""
NODES = ("nid001", "nid002")


@pytest.fixture
def scene() -> Iterator[Scene]:
    """An instance of its own: what it writes depends on who runs in it."""
    with site("versions", nodes=len(NODES)) as made:
        yield Scene(made)


@contextmanager
def older(directory: Path) -> Iterator[None]:
    """Programs that are started meanwhile are of the older build."""
    (directory / "sitecustomize.py").write_text(OLDER)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(directory)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def written(scene: Scene) -> tuple[str, set[str]]:
    """The numbers of the plan and of the ledger's shards."""
    with scene.here.admin() as cluster:
        plan: str = cluster.get(PLANS, "group-0000")["spec"]["text"]
    return plan[:1], {shard[:1] for shard in scene.here.ledger().shards}


def writes(scene: Scene, number: str) -> None:
    """Waits until both are written in this number; a commit is made meanwhile, since the ledger is written with the next one."""

    def written_so() -> bool:
        scene.ends([scene.submit(seconds=0.1)])
        return written(scene) == (number, {number})

    until(written_so, within=40, every=1.0, what=f"format {number}")


def test_agents_and_controllers_change_one_by_one_with_work_running_and_none_of_it_is_lost(scene: Scene, tmp_path: Path) -> None:
    work = [scene.submit(seconds=None, code=3, on="nid001")]
    scene.running(work[0])
    writes(scene, "2")
    with older(tmp_path):  # back: agents first, then controllers
        scene.instance.restart("agent-nid001")
        writes(scene, "1")
        scene.instance.restart("agent-nid002")
        for controller in ("operator", "scheduler"):
            scene.instance.restart(controller)
        writes(scene, "1")
        work.append(scene.submit(seconds=None, code=4, on="nid002"))
        scene.running(work[1])
    for program in ("scheduler", "operator", "agent-nid001"):  # forth: controllers first
        scene.instance.restart(program)
        assert written(scene) == ("1", {"1"}), "one agent knows format 1 alone"
    scene.instance.restart("agent-nid002")
    scene.finish(*work)  # what the next lines submit needs a node
    writes(scene, "2")
    assert scene.ends(work) == [("TaskFailed", 3, 1), ("TaskFailed", 4, 1)]
    assert scene.here.settle(60) == []
    assert scene.here.ledger_faults() == []
    assert scene.here.witness_faults() == []
