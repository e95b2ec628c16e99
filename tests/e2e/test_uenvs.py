"""`lattice uenv` through the gateway, with a real registry: images as `uenv` pushes them, by label, and what one says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.registries import RegistryProgram, running_registry


@pytest.fixture
def me(control_plane: Instance, tenant: Room) -> Person:
    """alice, in a tenant of this test."""
    return person(control_plane, "alice", tenant.namespace)


@pytest.fixture(scope="module")
def registry(admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry with three images, which the cluster's configuration names."""
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder) as program:
        program.push_uenv(folder / "a", "deploy/daint/gh200/prgenv/24.11", "v1", "one")
        program.push_uenv(folder / "b", "deploy/daint/gh200/prgenv/24.11", "v2", "two", metadata=None)
        program.push_uenv(folder / "c", "deploy/eiger/zen2/pytorch/2.4", "cuda12", "three")
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": program.url, "system": "daint"}}})
        yield program
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


def test_people_find_an_image_and_what_its_views_do(registry: RegistryProgram, me: Person) -> None:
    table = me.lattice("uenv", "list").stdout
    assert [line.split()[:3] for line in table.splitlines()] == [
        ["UENV", "SYSTEM", "UARCH"], ["prgenv/24.11:v1", "daint", "gh200"], ["prgenv/24.11:v2", "daint", "gh200"],
    ]  # fmt: skip
    assert me.lattice("uenv", "list", "@*", "-o", "name").stdout.splitlines()[-1] == "pytorch/2.4:cuda12@eiger%zen2"
    for label in me.lattice("uenv", "list", "deploy::", "-o", "name").stdout.splitlines():
        assert label.startswith("deploy::")
        assert me.lattice("uenv", "inspect", label, "-o", "name").stdout.strip() == label
    shown = me.lattice("uenv", "inspect", "prgenv/24.11:v1").stdout
    for said in ("compilers and MPI", "/user-environment", "default: everything", "modules: module files", "3"):
        assert said in shown
    lines = me.lattice("uenv", "inspect", "prgenv/24.11:v1", "--view", "default").stdout.splitlines()
    assert lines == ["set CUDA_HOME /user-environment/cuda", "unset MODULEPATH", "prepend PATH /user-environment/env/default/bin"]
    document = json.loads(me.lattice("uenv", "inspect", "prgenv/24.11:v2", "-o", "json").stdout)
    assert (document["attached"], document["row"]["size"]) == (False, 3)


def test_bad_labels_and_unknown_images_are_refused_with_the_next_step(registry: RegistryProgram, me: Person) -> None:
    for words, code, said in (
        (("inspect", "prgenv"), 2, "more than one uenv matches"),
        (("inspect", "prgenv/99"), 4, "lattice uenv list"),
        (("inspect", "pr genv"), 2, "unexpected ' ' at character 3"),
        (("inspect", "prgenv/24.11:v1", "--view", "x"), 4, "there are: default, modules"),
        (("inspect", "prgenv/24.11:v2", "--view", "default"), 4, "not known before it is mounted"),
        (("inspect", "prgenv/24.11:v2", "--view", "default"), 4, "--view=default` sets the view where the image has it"),
        (("list", "a@b@c"), 2, "two systems"),
    ):
        done = me.lattice("uenv", *words, ok=False)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_registry_that_is_gone_is_told(admin: BlockingCluster, registry: RegistryProgram, me: Person) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": "http://127.0.0.1:9"}}})
    try:
        done = me.lattice("uenv", "list", ok=False)
        assert done.returncode == 6
        assert "the registry 127.0.0.1:9 cannot be asked" in done.stderr
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": registry.url}}})
