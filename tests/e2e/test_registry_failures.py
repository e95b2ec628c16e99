"""A registry that fails once images are resolved: who waits learns which node waits for which registry, since when, and what it answered."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.containers import image, layer, member, push
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import until
from tests.faulty_registry import DOWN, MANIFESTS, PAGE, Fault, FaultyRegistry, faulty_registry
from tests.oci import APPLETS, BUSYBOX, needs_runc
from tests.registries import running_registry
from tests.squashfs import described, make_image, needs_mksquashfs

pytestmark = [
    needs_runc(), needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="mounts and containers need root"),
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]  # fmt: skip
UENV, APP = "deploy/daint/gh200/app/42", "images.example/team/app"


@pytest.fixture(scope="module")
def front(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyRegistry]:
    """The way of operator, gateway and nodes to a registry with a uenv `down` and an OCI image `page`."""
    folder, network = tmp_path_factory.mktemp("failing"), control_plane.site().network
    address = network.gateway if network is not None else "127.0.0.1"
    with running_registry(folder, address=address) as program, faulty_registry(program.host, address) as front:
        made = make_image(folder / "image", {"blob": "down"}, described("app", "/user-environment"))
        program.push_uenv(folder / "push", UENV, "down", made.read_bytes(), metadata=None)
        system = layer(
            *(member(name) for name in ("bin", "etc", "tmp")),
            member("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755),
            *(member(f"bin/{applet}", kind=tarfile.SYMTYPE, target="busybox") for applet in APPLETS),
            member("etc/tag", "page"),
        )
        push(program.host, "team/app", "page", image(system, env=("PATH=/bin",)))
        program.push_uenv(folder / "views", UENV, "views", "never mounted")
        software = {
            "registry": f"http://{front.host}/uenv", "system": "daint",
            "registries": [{"name": "images.example", "url": f"http://{front.host}"}],
        }  # fmt: skip
        admin.patch(CONFIGS, "lattice", {"spec": {"software": software}})
        yield front
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def asked(kind: str, tag: str) -> dict[str, str]:
    return {"uenv": f"app/42:{tag}"} if kind == "uenv" else {"image": f"{APP}:{tag}"}


def command(kind: str) -> str:
    return "cat /user-environment/blob" if kind == "uenv" else "cat /etc/tag"


def test_status_and_why_name_the_node_the_registry_since_when_and_its_answer(
    control_plane: Instance, front: FaultyRegistry, me: Person
) -> None:
    """Of every other fault and of OCI images, tests/contract/test_registry_failures.py holds what a node says."""
    node = control_plane.site().nodes[0]
    me.apply(
        "down", entrypoint="cat /user-environment/blob", environment={"uenv": "app/42:down"}, hold=True,
        resources={"constraints": {"nodeList": node}},
    )  # fmt: skip
    until(lambda: me.get("down").get("status", {}).get("software"), within=30, what="its resolved image")
    front.fault = Fault(DOWN)
    try:
        me.lattice("release", "down")
        said = "(cannot be asked|does not send)"
        wanted = re.compile(rf"{node}: images.* waiting for \d+s? \(since 20\d\d-.*Z\): the registry {re.escape(front.host)} {said}")
        until(lambda: wanted.search(" ".join(me.lattice("status", "down").stdout.split())), within=25, what="what status says")
        until(lambda: wanted.search(" ".join(me.lattice("why", "down").stdout.split())), within=25, what="what why says")
    finally:
        front.fault = None
    status = me.ended("down", within=60)
    assert (status["phase"], status["attempt"]) == ("Completed", 1), status
    assert me.lattice("logs", "down").stdout.strip() == "down"


def test_a_page_in_place_of_an_answer_is_waited_for_and_refuses_nothing(front: FaultyRegistry, me: Person) -> None:
    front.fault = Fault(PAGE, path=MANIFESTS)
    try:
        me.apply("page", entrypoint="cat /etc/tag", environment={"image": f"{APP}:page"})
        shown = until(lambda: re.search("WaitingForImages.*no JSON", " ".join(me.lattice("why", "page").stdout.split())), within=30)
        assert shown
        planned = me.lattice("plan", "--image", f"{APP}:page", "--", "true", ok=False)
        assert (planned.returncode, "no JSON" in planned.stdout) == (3, True), planned
    finally:
        front.fault = None
    assert me.ended("page", within=90)["phase"] == "Completed"


def test_plan_asks_the_registry_and_says_that_work_without_its_image_never_starts(front: FaultyRegistry, me: Person) -> None:
    for words, said in (
        (("--image", f"{APP}:none"), "can never start: ImageNotFound: the registry images.example has no image team/app:none"),
        (("--uenv", "nothing/1:v1"), "can never start: ImageNotFound: no uenv matches nothing/1:v1"),
        (("--uenv", "app/42:views", "--view", "none"), "can never start: ViewUnknown"),
    ):
        done = me.lattice("plan", *words, "--", "true", ok=False)
        assert (done.returncode, said in " ".join(done.stdout.split())) == (4, True), done
    found = me.lattice("plan", "--image", f"{APP}:page", "--", "true")
    assert "starts now" in found.stdout
