"""What comes amid a pull: a cancel, a disk that fills up. The registry's link is slow enough for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.registries import RegistryProgram, running_registry
from tests.slow_link import SlowLink, slow_link
from tests.squashfs import described, make_image, needs_mksquashfs

pytestmark = [needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")]
PLACE = "deploy/daint/gh200/app/42"
SIZE = 3 << 20
"""Bytes of each image: a minute over the slow link."""


@pytest.fixture(scope="module")
def link(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowLink]:
    """The nodes' way to a registry with app/42:v1 and :v2, large images of their own."""
    folder, network = tmp_path_factory.mktemp("pulls"), control_plane.site().network
    address = network.gateway if network is not None else "127.0.0.1"
    with running_registry(folder, address=address) as program, slow_link(address, program.host) as link:
        for tag in ("v1", "v2"):
            push(program, folder / tag, tag)
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": f"http://{link.address}/uenv", "system": "daint"}}})
        yield link
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


def push(program: RegistryProgram, folder: Path, tag: str) -> None:
    folder.mkdir()
    image = make_image(folder / "image", {"blob": os.urandom(SIZE).hex()}, described("app", "/user-environment"))
    program.push_uenv(folder / "push", PLACE, tag, image.read_bytes(), metadata=None)


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def on(node: str) -> dict[str, object]:
    return {"constraints": {"nodeList": node}}


def drafts(instance: Instance, node: str) -> list[int]:
    """The bytes that stand of images being pulled to a node."""
    return [path.stat().st_size for path in (instance.where.node(node) / "cache/drafts").glob("*")]


def test_a_cancel_amid_a_pull_ends_it_at_once_and_the_next_work_has_its_image(control_plane: Instance, link: SlowLink, me: Person) -> None:
    """At once: the link stands still, and nothing but the cancel ends the pull."""
    node = control_plane.site().nodes[0]
    link.slow.set()
    try:
        me.apply("waits", entrypoint="true", environment={"uenv": "app/42:v1"}, resources=on(node))
        until(lambda: any(drafts(control_plane, node)), within=30, what="the first bytes")
        assert f"{node}: images" in " ".join(me.lattice("status", "waits").stdout.split())
        link.still.set()
        me.lattice("cancel", "waits")
        status = me.ended("waits")
        assert (status["phase"], status.get("exit")) == ("Cancelled", None)
    finally:
        link.slow.clear()
        link.still.clear()
    pullers = subprocess.run(["pgrep", "-f", "lattice_agent.puller"], capture_output=True, text=True, check=False).stdout.split()
    here = str(control_plane.where.node(node))
    assert [pid for pid in pullers if here in opened(pid)] == [], "no puller of the node is left"
    me.apply("again", entrypoint="test -e /user-environment/blob", environment={"uenv": "app/42:v1"}, resources=on(node))
    assert me.ended("again")["phase"] == "Completed"


def opened(pid: str) -> str:
    """The files that a process has open."""
    try:
        return " ".join(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return ""


@pytest.mark.usefixtures("quick_retries")
def test_a_disk_that_fills_up_amid_a_pull_sends_work_to_a_node_with_room(control_plane: Instance, link: SlowLink, me: Person) -> None:
    small, other = control_plane.site().nodes[1:3]
    folder = control_plane.where.node(small) / "cache"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(folder)], check=True)
    try:
        control_plane.restart(f"agent-{small}")
        link.slow.set()
        me.apply(
            "moves", entrypoint="test -e /user-environment/blob", environment={"uenv": "app/42:v2"}, resources=on(small),
            lifecycle={"requeue": {"policy": "Never"}},
        )  # fmt: skip
        until(lambda: any(drafts(control_plane, small)), within=30, what="the first bytes")
        (folder / "filler").write_bytes(bytes(16))
        with (folder / "filler").open("ab", buffering=0) as filler:
            fill(filler.fileno())
        link.slow.clear()
        shown = until(lambda: me.get("moves")["status"].get("attempts") or cache_full(control_plane, small), within=90, what="no room")
        assert shown
        (folder / "filler").unlink()
        status = me.ended("moves", within=120)
        assert (status["phase"], reason(status)) == ("Completed", "Completed"), status
        assert status["nodes"] in (small, other)
    finally:
        link.slow.clear()
        subprocess.run(["umount", "-l", str(folder)], check=True)
        control_plane.restart(f"agent-{small}")


def fill(fd: int) -> None:
    """Writes until nothing more goes in."""
    while True:
        try:
            os.write(fd, bytes(4096))
        except OSError:
            return


def cache_full(instance: Instance, node: str) -> bool:
    """Whether the node's agent has said that its cache is full."""
    (log,) = instance.log_files(f"agent-{node}")
    return "CacheFull" in log.read_text()
