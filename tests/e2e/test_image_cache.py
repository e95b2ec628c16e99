"""`lattice cache` on real nodes with a real registry: an image is brought there, shown, kept, and removed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice.units import expand_nodes
from lattice_dev.instance import Instance
from tests.containers import files, image, push
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import until
from tests.registries import RegistryProgram, running_registry
from tests.squashfs import needs_mksquashfs

CONTENT = "an image of 1 MiB " * (1 << 16)


@pytest.fixture(scope="module")
def registry(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry that the nodes reach, with one image, which the cluster's configuration names."""
    folder, network = tmp_path_factory.mktemp("registry"), control_plane.site().network
    with running_registry(folder, address=network.gateway if network is not None else "127.0.0.1") as program:
        program.push_uenv(folder / "a", "deploy/daint/gh200/prgenv/24.11", "v1", CONTENT)
        registries = [{"name": "images.example", "url": f"http://{program.host}"}]
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": program.url, "system": "daint", "registries": registries}}})
        yield program
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


def kept(instance: Instance, node: str) -> dict[str, str]:
    """The files of a node's cache, by name, with the digest of each."""
    folder = instance.site().where.node(node) / "cache" / "images"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} if folder.exists() else {}


def stem(operator: Person) -> str:
    """The name of the image's files: its digest."""
    shown = json.loads(operator.lattice("uenv", "inspect", "prgenv/24.11:v1", "-o", "json").stdout)
    return str(shown["row"]["digest"]).replace(":", "-")


@pytest.fixture
def operator(control_plane: Instance) -> Person:
    """The administrator."""
    return person(control_plane, "admin", "default")


def test_an_image_is_brought_to_nodes_shown_and_removed(registry: RegistryProgram, control_plane: Instance, operator: Person) -> None:
    one, other = control_plane.site().nodes[:2]
    done = operator.lattice("cache", "warm", "--image", "prgenv/24.11:v1", "--nodes", f"{one},{other}", "--sticky")
    assert sorted(done.stdout.splitlines()) == [f"{one} has prgenv/24.11:v1", f"{other} has prgenv/24.11:v1"]
    squashfs = f"{stem(operator)}.squashfs"
    assert kept(control_plane, one)[squashfs] == hashlib.sha256(CONTENT.encode()).hexdigest()
    assert any(name.startswith(stem(operator)) and name.endswith(".env.json") for name in kept(control_plane, one))
    records = json.loads(operator.lattice("cache", "status", "--node", one, "-o", "json").stdout)
    image = next(image for image in records[0]["images"] if image["digest"].replace(":", "-") == stem(operator))
    assert (image["size"], image["sticky"], image["repository"]) == (len(CONTENT), True, "uenv/deploy/daint/gh200/prgenv/24.11")
    shown = operator.lattice("cache", "status", "--nodes", one).stdout
    assert "prgenv/24.11" in shown
    assert re.search(r" images? ", shown)
    operator.lattice("cache", "evict", "--image", image["digest"].removeprefix("sha256:")[:16], "--nodes", one)
    assert not any(name.startswith(stem(operator)) for name in kept(control_plane, one))
    assert squashfs in kept(control_plane, other)
    again = operator.lattice("cache", "evict", "--image", "prgenv/24.11:v1", "--nodes", f"{one},{other}", ok=False)
    assert (again.returncode, "is not in the cache" in again.stderr) == (7, True)


def test_an_image_stays_over_a_restart_of_its_agent(registry: RegistryProgram, control_plane: Instance, operator: Person) -> None:
    node = control_plane.site().nodes[0]
    operator.lattice("cache", "warm", "--image", "prgenv/24.11:v1", "--nodes", node)
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    shown = json.loads(operator.lattice("cache", "status", "--nodes", node, "-o", "json").stdout)
    assert stem(operator) in [image["digest"].replace(":", "-") for image in shown[0]["images"]]


@needs_mksquashfs()
def test_an_oci_image_is_brought_shown_with_its_name_and_registry_and_removed(
    registry: RegistryProgram, control_plane: Instance, operator: Person
) -> None:
    node = control_plane.site().nodes[0]
    digest = push(registry.host, "team/app", "1.0", image(files({"bin/app": "x"})))
    for name in ("images.example/team/app:1.0", "team/app:1.0"):
        done = operator.lattice("cache", "warm", "--image", name, "--nodes", node)
        assert done.stdout == f"{node} has {name}\n"
    assert f"{digest.replace(':', '-')}.config.json" in kept(control_plane, node)
    operator.lattice("cache", "warm", "--image", "prgenv/24.11:v1", "--nodes", node)
    found = {
        one["digest"]: one for one in json.loads(operator.lattice("cache", "status", "--node", node, "-o", "json").stdout)[0]["images"]
    }
    shown = found[digest]
    assert (shown["kind"], shown["registry"]) == ("Oci", "images.example")
    assert shown["names"] == ["images.example/team/app:1.0", "team/app:1.0"]
    uenv = found[stem(operator).replace("-", ":")]
    assert (uenv["kind"], uenv["registry"], uenv["names"]) == ("", f"{registry.host}/uenv", ["prgenv/24.11:v1"])
    table = operator.lattice("cache", "status", "--node", node, "-o", "wide").stdout
    for words in ("images.example/team/app:1.0, team/app:1.0", "prgenv/24.11:v1", "REGISTRY", f"{registry.host}/uenv"):
        assert words in table, table
    operator.lattice("cache", "evict", "--image", "images.example/team/app:1.0", "--nodes", node)
    assert not any(name.startswith(digest.replace(":", "-")) for name in kept(control_plane, node))
    missing = operator.lattice("cache", "warm", "--image", "images.example/team/none:1.0", "--nodes", node, ok=False)
    assert (missing.returncode, "the registry images.example has no image team/none:1.0" in missing.stderr) == (4, True), missing.stderr


def test_what_is_not_there_or_not_allowed_is_refused_with_the_next_step(
    registry: RegistryProgram, control_plane: Instance, operator: Person, tenant: Room
) -> None:
    node, alice = control_plane.site().nodes[0], person(control_plane, "alice", tenant.namespace)
    for who, words, code, said in (
        (operator, ("warm", "--image", "prgenv/99", "--nodes", node), 4, "lattice uenv list"),
        (operator, ("warm", "--image", "prgenv/24.11:v1", "--nodes", "nobody"), 4, "there is no node nobody"),
        (operator, ("status",), 2, "either --nodes, or --group"),
        (alice, ("status", "--nodes", node), 5, "latticenodes/cache is missing"),
        (alice, ("evict", "--image", "prgenv/24.11:v1", "--nodes", node), 5, "operators have it"),
    ):
        done = who.lattice("cache", *words, ok=False)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_node_whose_agent_is_away_is_told_and_the_others_are_served(
    registry: RegistryProgram, control_plane: Instance, operator: Person
) -> None:
    one, other = control_plane.site().nodes[:2]
    control_plane.stop(f"agent-{other}")
    try:
        done = operator.lattice("cache", "status", "--nodes", f"{one},{other}", ok=False)
        assert (done.returncode, f"{other}: the agent of node {other} does not answer" in done.stderr) == (7, True), done.stderr
        assert one in done.stdout
    finally:
        control_plane.start(f"agent-{other}")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_node_without_room_says_so_and_work_goes_where_its_image_fits(
    registry: RegistryProgram, control_plane: Instance, operator: Person, tenant: Room
) -> None:
    node, alice = control_plane.site().nodes[0], person(control_plane, "alice", tenant.namespace)
    folder = control_plane.site().where.node(node) / "cache"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(folder)], check=True)
    try:
        control_plane.restart(f"agent-{node}")
        done = operator.lattice("cache", "warm", "--image", "prgenv/24.11:v1", "--nodes", node, ok=False)
        assert (done.returncode, "has no room for" in done.stderr) == (1, True), done.stderr
        until(lambda: conditions(operator, node).get("CacheFull") == "True", within=30, what="the condition CacheFull")
        alice.apply("elsewhere", entrypoint="true", nodes=len(control_plane.site().nodes) - 1, environment={"uenv": "prgenv/24.11:v1"})
        found = until(lambda: alice.get("elsewhere").get("status", {}).get("scheduledTime"), within=30, what="its nodes")
        assert found
        assert node not in expand_nodes(alice.get("elsewhere")["status"]["nodes"])
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        control_plane.restart(f"agent-{node}")
    until(lambda: conditions(operator, node).get("CacheFull") == "False", within=30, what="room again")


def conditions(operator: Person, node: str) -> dict[str, str]:
    """The conditions of a node, by type."""
    shown = json.loads(operator.kubectl("get", "latticenode", node, "-o", "json").stdout)
    return {one["type"]: one["status"] for one in shown["status"].get("conditions", [])}
