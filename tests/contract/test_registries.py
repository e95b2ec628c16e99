"""The registry's client against the real program, with and without a login: images that the oras client pushed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import aiohttp
import pytest

from lattice.clients.registry import Credentials, Registry, parse_address, read_credentials
from lattice.clients.uenv_images import UenvImages, closest
from lattice.errors import Denied, NotFound, Rejected
from lattice.software.catalog import SoftwareDefaults
from lattice.software.labels import UenvLabel, parse_label
from tests.registries import RegistryProgram, docker_config, running_referrers_registry, running_registry

LOGIN = ("robot", "open sesame")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry with a login, and images of two systems."""
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder, LOGIN) as program:
        program.push_uenv(folder / "a", "deploy/daint/gh200/prgenv/24.11", "v1", "one")
        program.push_uenv(folder / "b", "deploy/daint/zen2/prgenv/24.11", "v1", "two", metadata=None)
        program.push_uenv(folder / "c", "deploy/eiger/zen2/prgenv/24.7", "v3", "three")
        program.push_uenv(folder / "d", "build/daint/gh200/prgenv/24.11", "9", "four")
        yield program


async def find(program: RegistryProgram, text: str, credentials: Credentials | None) -> list[str]:
    """The labels that a label names."""
    async with aiohttp.ClientSession() as session:
        found, _ = await images(program, session, credentials).find(parse_label(text) if text else UenvLabel(), 100)
    return [str(image.label) for image in found]


def images(program: RegistryProgram, session: aiohttp.ClientSession, credentials: Credentials | None) -> UenvImages:
    """The images of a site whose system is daint."""
    address = parse_address(program.url)
    return UenvImages(Registry(session, address, credentials), address.prefix, SoftwareDefaults(system="daint"))


async def test_labels_name_images_as_uenv_has_it(registry: RegistryProgram, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(docker_config(registry.host, LOGIN))
    login = read_credentials(str(file), registry.host)
    gh200, zen2, eiger = "deploy::prgenv/24.11:v1@daint%gh200", "deploy::prgenv/24.11:v1@daint%zen2", "deploy::prgenv/24.7:v3@eiger%zen2"
    assert await find(registry, "", login) == [gh200, zen2]
    assert await find(registry, "prgenv%zen2", login) == [zen2]
    assert await find(registry, "prgenv@*", login) == [gh200, zen2, eiger]
    assert await find(registry, "prgenv/24.11:v1%gh200", login) == [gh200]  # without the catalog
    assert await find(registry, "prgenv/24.11:v2%gh200", login) == []
    assert await find(registry, "build::prgenv", login) == ["build::prgenv/24.11:9@daint%gh200"]


async def test_metadata_is_read_from_what_is_attached(registry: RegistryProgram) -> None:
    async with aiohttp.ClientSession() as session:
        asked = images(registry, session, Credentials(*LOGIN))
        found, left_out = await asked.find(parse_label("prgenv"), 100)
        with pytest.raises(Rejected, match=r"more than one uenv matches prgenv: deploy::prgenv/24.11:v1@daint%gh200 \(") as refused:
            closest(parse_label("prgenv"), found)
        assert (refused.value.reason, left_out) == ("LabelAmbiguous", 0)
        assert (await asked.find(parse_label("prgenv"), 1))[1] == 1
        with_meta, without = found
        attached = await asked.metadata(with_meta)
        assert attached is not None
        archive, metadata = attached
        assert archive.startswith("sha256:")
        assert [view.name for view in metadata.views] == ["default", "modules"]
        assert await asked.metadata(without) is None
        [by_id] = (await asked.find(parse_label(with_meta.digest.removeprefix("sha256:")[:16]), 100))[0]
        assert by_id == with_meta
        assert closest(parse_label("x"), [by_id, by_id]) == by_id
        with pytest.raises(NotFound, match="no uenv matches x"):
            closest(parse_label("x"), [])


async def test_metadata_is_found_by_the_referrers_api_where_the_registry_has_it(tmp_path: Path) -> None:
    with running_referrers_registry() as program:
        digest = program.push_uenv(tmp_path / "a", "deploy/daint/gh200/prgenv/24.11", "v1", "one")
        program.push_uenv(tmp_path / "b", "deploy/daint/gh200/prgenv/24.11", "v2", "two", metadata=None)
        async with aiohttp.ClientSession() as session:
            asked = images(program, session, None)
            found, _ = await asked.find(parse_label("prgenv"), 100)
            assert [(image.tag, image.digest == digest) for image in found] == [("v1", True), ("v2", False)], "no fallback tag is listed"
            attached = await asked.metadata(found[0])
            assert attached is not None
            assert [view.name for view in attached[1].views] == ["default", "modules"]
            assert await asked.metadata(found[1]) is None


async def test_a_manifest_that_lies_about_the_size_of_its_file_is_refused(registry: RegistryProgram, tmp_path: Path) -> None:
    registry.push_uenv(tmp_path / "a", "deploy/daint/gh200/liar/1", "v1", "one", metadata=None, said_size=1 << 40)
    async with aiohttp.ClientSession() as session:
        asked = images(registry, session, Credentials(*LOGIN))
        for name, said in (("prgenv/24.11:v1%gh200", ""), ("liar/1:v1%gh200", "its manifest says 1099511627776 bytes, and its file has 3")):
            image = closest(parse_label(name), (await asked.find(parse_label(name), 100))[0])
            with pytest.raises(Rejected, match=said) if said else nullcontext():
                await asked.check_size(image)


async def test_without_the_login_nothing_is_told(registry: RegistryProgram) -> None:
    for wrong in (None, Credentials("robot", "guess")):
        with pytest.raises(Denied):
            await find(registry, "prgenv/24.11:v1%gh200", wrong)
