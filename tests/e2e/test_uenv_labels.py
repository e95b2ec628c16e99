"""Work in software environments of the site's registry: resolved once, pulled by the nodes, mounted; and every way in which that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.registries import RegistryProgram, running_registry
from tests.squashfs import described, make_image, needs_mksquashfs

pytestmark = [needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")]
PLACE = "deploy/daint/gh200/app/42"
METADATA = described("app", "/user-environment", {"app": {"list": {"PATH": [{"op": "prepend", "value": ["/user-environment/bin"]}]}}})


def squashfs(folder: Path, says: str) -> bytes:
    """An image whose program says this."""
    folder.mkdir(parents=True)
    make_image(folder / "image.squashfs", {"bin/app": f"#!/bin/sh\necho {says}\n"}, METADATA)
    return (folder / "image.squashfs").read_bytes()


@pytest.fixture(scope="module")
def registry(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry that the nodes reach, with app/42:v1, :v2, and bare/1:v1, to which no metadata is attached."""
    folder, network = tmp_path_factory.mktemp("labels"), control_plane.site().network
    with running_registry(folder, address=network.gateway if network is not None else "127.0.0.1") as program:
        for tag in ("v1", "v2"):
            program.push_uenv(folder / tag, PLACE, tag, squashfs(folder / f"{tag}-image", f"hello {tag}"), METADATA)
        program.push_uenv(folder / "bare", "deploy/daint/gh200/bare/1", "v1", squashfs(folder / "bare-image", "hello bare"), metadata=None)
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": program.url, "system": "daint"}}})
        yield program
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def printed(me: Person, name: str) -> list[str]:
    status = me.ended(name)
    assert status["phase"] == "Completed", status
    return [line.rpartition(": ")[2] for line in me.lattice("logs", name).stdout.splitlines()]


def finished(status: dict[str, Any]) -> str:
    message: str = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    return message


def test_work_names_a_label_and_runs_in_its_image_on_every_node(registry: RegistryProgram, me: Person) -> None:
    me.apply("label", nodes=2, entrypoint="app", environment={"uenv": "app/42:v1", "view": "app"})
    assert printed(me, "label") == ["hello v1", "hello v1"]
    pinned = me.get("label")["status"]["software"]
    assert [(one["source"], one["mount"], one["repository"]) for one in pinned] == [("app/42:v1", "/user-environment", f"uenv/{PLACE}")]


def test_work_is_staged_once_every_node_has_its_image_and_bare_work_never(registry: RegistryProgram, me: Person) -> None:
    me.apply("staged", nodes=2, entrypoint="sleep 2", environment={"uenv": "app/42:v1"})
    status = until(lambda: (found := me.get("staged").get("status", {})).get("startTime") and found, within=60, what="its start")
    (staged,) = [one for one in status["conditions"] if one["type"] == "Staged"]
    assert (staged["status"], staged["reason"]) == ("True", "SoftwareStaged")
    assert staged["message"].startswith("each of its 2 nodes has its image of ")
    assert f"Staged: {staged['lastTransitionTime']}: {staged['message']}" in " ".join(me.lattice("status", "staged").stdout.split())
    me.ended("staged")
    me.apply("bare-work", entrypoint="true")
    assert "Staged" not in [one["type"] for one in me.ended("bare-work")["conditions"]]


def test_an_image_without_attached_metadata_has_that_which_is_in_it(registry: RegistryProgram, me: Person) -> None:
    me.apply("bare", entrypoint="app", environment={"uenv": "bare/1:v1", "view": "app"})
    assert printed(me, "bare") == ["hello bare"]


def test_the_same_image_in_another_repository_gives_work_nothing_of_that_ones_metadata(
    registry: RegistryProgram, me: Person, tmp_path: Path
) -> None:
    content = squashfs(tmp_path / "image", "hello twins")
    views = {place: described("app", "/user-environment", {"app": {"scalar": {"FROM": place}}}) for place in ("build", "deploy")}
    digests = {registry.push_uenv(tmp_path / at, f"{at}/daint/gh200/twins/1", "v1", content, said) for at, said in views.items()}
    assert len(digests) == 1
    for number, place in enumerate(("build", "deploy", "build")):
        me.apply(f"twin-{number}", nodes=2, entrypoint="printenv FROM", environment={"uenv": f"{place}::twins/1:v1", "view": "app"})
        assert printed(me, f"twin-{number}") == [place, place]


def test_a_tag_that_moves_changes_nothing_of_work_that_was_submitted(registry: RegistryProgram, me: Person, tmp_path: Path) -> None:
    registry.push_uenv(tmp_path / "old", PLACE, "moving", squashfs(tmp_path / "old-image", "hello old"), METADATA)
    me.apply("moving", entrypoint="app", environment={"uenv": "app/42:moving", "view": "app"}, hold=True)
    until(lambda: bool(me.get("moving").get("status", {}).get("software")), within=20, what="its image resolved")
    registry.push_uenv(tmp_path / "new", PLACE, "moving", squashfs(tmp_path / "new-image", "hello new"), METADATA)
    me.lattice("release", "moving")
    assert printed(me, "moving") == ["hello old"]
    me.apply("moved", entrypoint="app", environment={"uenv": "app/42:moving", "view": "app"})
    assert printed(me, "moved") == ["hello new"]


@pytest.mark.parametrize(
    ("name", "environment", "expected", "said"),
    [
        ("missing", {"uenv": "app/43:v1"}, "ImageNotFound", "lattice uenv list"),
        ("ambiguous", {"uenv": "app/42"}, "ImageRefused", "more than one uenv matches app/42: deploy::app/42:"),
        ("view", {"uenv": "app/42:v1", "view": "wombat"}, "ViewUnknown", "there are: app:app"),
        ("twice", {"uenv": "app/42:v1,app/42:v2"}, "MountInvalid", "more than one image mounted at the mount point"),
    ],
)
def test_what_no_node_could_mount_fails_before_it_has_nodes(
    registry: RegistryProgram, me: Person, name: str, environment: dict[str, str], expected: str, said: str
) -> None:
    me.apply(name, entrypoint="true", environment=environment, lifecycle={"requeue": {"policy": "Always"}})
    status = me.ended(name)
    assert (status["phase"], reason(status), said in finished(status)) == ("Failed", expected, True), finished(status)
    assert not status.get("attempt")
    assert "scheduledTime" not in status


def test_work_waits_for_a_registry_that_is_away_and_runs_once_it_answers(
    registry: RegistryProgram, admin: BlockingCluster, me: Person
) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": "http://127.0.0.1:9"}}})
    try:
        me.apply("away", entrypoint="app", environment={"uenv": "app/42:v1", "view": "app"})
        until(lambda: "cannot be asked" in me.lattice("status", "away").stdout, within=20, what="why it waits")
        assert reason(me.get("away")["status"], "Scheduled") == "WaitingForImages"
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": registry.url}}})
    assert printed(me, "away") == ["hello v1"]


def test_work_that_is_never_resolved_fails_after_the_time_of_the_site(
    registry: RegistryProgram, admin: BlockingCluster, me: Person
) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": "http://127.0.0.1:9", "resolveTimeout": "3s"}}})
    try:
        me.apply("never", entrypoint="app", environment={"uenv": "app/42:v1"})
        status = me.ended("never")
        assert (status["phase"], reason(status)) == ("Failed", "ImagesUnresolved")
        assert "not resolved within 3s (software.resolveTimeout)" in finished(status)
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": registry.url, "resolveTimeout": None}}})
