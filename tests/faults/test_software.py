"""Operator, gateway, scheduler and agents are killed while software is resolved, pulled, mounted and undone: it runs once, and leaves nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.kube.resources import ALLOCATIONS
from tests.e2e.waiting import until
from tests.faults.load import Wish
from tests.faults.scene import LONG, Scene
from tests.faults.site import TENANT, Site
from tests.faults.test_fault_run import SEED
from tests.registries import RegistryProgram, running_registry
from tests.squashfs import described, make_image, needs_mksquashfs

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(0 if LONG else 600), needs_mksquashfs()]

ROUNDS = 60 if LONG else 6
LONGEST_SECONDS = 1.5
"""From the submission to the fault: about the time in which software is resolved, pulled and mounted, and its work ends."""
PLACE = "deploy/daint/gh200/app/42"


@pytest.fixture(scope="module")
def registry(shared: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry that the nodes reach."""
    network = shared.instance.site().network
    assert network is not None
    with running_registry(tmp_path_factory.mktemp("registry"), address=network.gateway) as program:
        shared.configure({"software": {"registry": program.url, "system": "daint"}})
        yield program
        shared.configure({"software": None})


def push(registry: RegistryProgram, folder: Path, number: int) -> str:
    """An image that no node has yet; its label."""
    folder.mkdir()
    image = make_image(folder / "image", {"number": f"{number} {random.random()}"}, described("app", "/user-environment"))
    registry.push_uenv(folder / "push", PLACE, f"v{number}", image.read_bytes(), metadata=None)
    return f"app/42:v{number}"


def submit(scene: Scene, number: int, label: str, node: str) -> str:
    """Work in that software, with scratch space, on that node; its exit code tells which it was."""
    wish = Wish(f"software-{number:03d}", 1, 0.3, number % 100 + 1, False, 1, 0)
    body = wish.body(TENANT, scene.here.script, scene.here.directory)
    body["spec"].setdefault("environment", {})["uenv"] = label
    body["spec"]["data"] = {"scratchPerNode": "1Mi"}
    body["spec"]["resources"]["constraints"] = {"nodeList": node}
    with scene.here.alice() as cluster:
        cluster.create(ALLOCATIONS, body, TENANT)
    return wish.name


def left(scene: Scene) -> list[str]:
    """Loop devices, drafts and scratch space of the instance's nodes."""
    where = str(scene.instance.where.directory)
    loops = [str(path) for path in Path("/sys/block").glob("loop*/loop/backing_file") if path.exists() and where in path.read_text()]
    agents = scene.instance.where.node(scene.instance.site().nodes[0]).parent
    return [*loops, *map(str, agents.glob("*/cache/drafts/*")), *map(str, agents.glob("*/scratch/*/*-*"))]


def test_whoever_is_killed_while_software_is_brought_it_runs_once_and_leaves_nothing(
    scene: Scene, registry: RegistryProgram, tmp_path: Path
) -> None:
    draw, nodes = random.Random(SEED), scene.instance.site().nodes
    expected: list[tuple[str, int | None, int]] = []
    names: list[str] = []
    for number in range(ROUNDS):
        node = nodes[number % len(nodes)]
        victim = ("operator", f"agent-{node}", "gateway", "operator", f"agent-{node}", "scheduler")[number % 6]
        label = push(registry, tmp_path / str(number), number)
        if number % 12 == 3:  # nobody is there to resolve it
            scene.instance.kill("operator")
            names.append(submit(scene, number, label, node))
            time.sleep(draw.uniform(0, 0.5))
            scene.instance.start("operator")
        else:
            names.append(submit(scene, number, label, node))
            time.sleep(draw.uniform(0, LONGEST_SECONDS))
            scene.instance.kill(victim)
            scene.instance.start(victim, wait=False)
        expected.append(("TaskFailed", number % 100 + 1, 1))
    assert scene.ends(names, within=120) == expected
    until(lambda: left(scene) == [], within=20, what=f"nothing left of {left(scene)}")
