"""OCI images in a real registry: pushed by hand, by skopeo of what umoci built; found by the operator's client, packed by the node's puller."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.clients.containers import find_container
from lattice.daemon.clock import SystemClock
from lattice.errors import NotFound, Rejected
from lattice.software.container_documents import read_config
from lattice.software.containers import parse_container
from lattice.views.allocation import OCI, SoftwareImage
from lattice.views.cluster import ImageRegistry, SoftwareOptions
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host.images import Images
from lattice_agent.host.threads import Threads
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from tests.build import uid
from tests.containers import FOREIGN_LAYER, BuiltImage, files, image, index, layer, member, push
from tests.registries import RegistryProgram, docker_config, running_referrers_registry, running_registry
from tests.signatures import KEY, OTHER_KEY, attach, signed_image
from tests.squashfs import needs_mksquashfs

pytestmark = needs_mksquashfs()
LOGIN = ("robot", "open sesame")
GOOD = image(files({"bin/app": "#!/bin/sh\n", "etc/x": "1"}), layer(member("etc/.wh.x", "")), env=["A=1"], workdir="/srv")


@pytest.fixture(scope="module", params=["docker-registry", "go-containerregistry"])
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry without a login."""
    debian = request.param == "docker-registry"
    with running_registry(tmp_path_factory.mktemp("images")) if debian else running_referrers_registry() as program:
        yield program


def site(program: RegistryProgram, **options: object) -> SoftwareOptions:
    """A site that lists the registry."""
    registries = (ImageRegistry(name="r.example", url=f"http://{program.host}"),)
    return SoftwareOptions(registries=registries, **options)  # type: ignore[arg-type]


async def resolved(program: RegistryProgram, text: str) -> SoftwareImage:
    """An image as the operator pins it."""
    found = await find_container(site(program), parse_container(text))
    return SoftwareImage(
        source=text, digest=found.digest, size=found.size, repository=found.repository, kind=OCI, registry=found.registry,
        architectures=found.architectures,
    )  # fmt: skip


def work(program: RegistryProgram, *images: SoftwareImage) -> NodeWork:
    """Work of these images."""
    return NodeWork(
        Key(uid(1), 1), 1, "physics", "job", "alice", "physics", "job", ("n1",), "n1", 0, "n1", 1, 0, 1, entrypoint="true",
        software=images, image=images[0].source, registries=site(program).registries, largest_image=64 << 20,
    )  # fmt: skip


@pytest.fixture
def images(tmp_path: Path) -> Images:
    cache = ImageCache(tmp_path / "cache", CacheLimits(free=0))
    cache.open()
    return Images(cache, "", "boot-1", SystemClock(), Threads("the image cache", count=2, within=30.0), frozenset)


def content(images: Images, found: SoftwareImage) -> list[str]:
    """The paths of the packed image."""
    listed = subprocess.run(["unsquashfs", "-l", images.cache.squashfs_file(found.digest)], check=True, capture_output=True, text=True)
    return sorted(line.removeprefix("squashfs-root/") for line in listed.stdout.splitlines() if line.startswith("squashfs-root/"))


ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(GOOD, id="OCI"),
        pytest.param(image(files({"bin/app": ""}), env=["A=1"], workdir="/srv", docker=True), id="Docker schema 2"),
        pytest.param(image(files({"bin/app": ""}), env=["A=1"], workdir="/srv", packing="zstd"), id="zstd"),
        pytest.param(image(files({"bin/app": ""}), env=["A=1"], workdir="/srv", packing=""), id="not compressed"),
        pytest.param(index((GOOD, ARCH), (image(files({"other": ""}), architecture="s390x"), "s390x")), id="an index"),
    ],
)
async def test_an_image_is_resolved_once_and_packed_with_its_configuration(
    registry: RegistryProgram, images: Images, built: BuiltImage
) -> None:
    digest = push(registry.host, "team/app", "v1", built)
    found = await resolved(registry, "r.example/team/app:v1")
    assert (found.digest, found.repository, found.registry) == (digest, "team/app", "r.example")
    await images.bring(work(registry, found))
    config = images.cache.image_config(found.digest)
    assert config is not None
    assert (read_config(config).variables, read_config(config).workdir) == ({"A": "1"}, "/srv")
    assert set(content(images, found)) - {"etc"} == {"bin", "bin/app"}
    assert list(images.cache.drafts.iterdir()) == []


@pytest.mark.parametrize(
    ("built", "said"),
    [
        pytest.param(image(layer(member("../etc/passwd", "x"))), "leads out of the image", id="a path that leads out"),
        pytest.param(image(layer(member("disk", kind=b"4"))), "is a device node", id="a device"),
        pytest.param(image(files({"a": ""}), diff_ids=["sha256:" + "1" * 64]), "unpacks to", id="another diff id"),
        pytest.param(image(layer(member("a", "x" * (65 << 20)))), r"software\.largestImage", id="too large"),
    ],
)
async def test_what_a_node_must_not_unpack_is_refused_and_nothing_is_kept(
    registry: RegistryProgram, images: Images, built: BuiltImage, said: str
) -> None:
    push(registry.host, "team/bad", "v1", built)
    with pytest.raises(Rejected, match=said) as refused:
        await images.bring(work(registry, await resolved(registry, "team/bad:v1")))
    assert (refused.value.reason, images.cache.listed()) == ("ImageRefused", [])


async def test_the_architectures_of_an_image_are_those_of_nodes_that_can_run_it(registry: RegistryProgram) -> None:
    other = image(files({"other": ""}), architecture="arm64")
    push(registry.host, "team/arm", "v1", other)
    push(registry.host, "team/many", "v1", index((GOOD, "amd64"), (other, "arm64"), (other, "mips64le")))
    assert (await resolved(registry, "team/arm:v1")).architectures == ("aarch64",)
    assert (await resolved(registry, "team/many:v1")).architectures == ("aarch64", "x86_64")
    push(registry.host, "team/none", "v9", image(files({"a": ""}), architecture=""))
    with pytest.raises(Rejected, match="names the architecture ''"):
        await resolved(registry, "team/none:v9")


async def test_what_no_node_could_run_is_refused_when_it_is_resolved(registry: RegistryProgram) -> None:
    push(registry.host, "team/foreign", "v1", image(files({"a": ""}), layer_type=FOREIGN_LAYER))
    push(
        registry.host, "team/windows", "v1", image(files({"a": ""}), config={"os": "windows", "rootfs": {"type": "layers", "diff_ids": []}})
    )
    for name, said in (("foreign", "foreign layer"), ("windows", "made for 'windows'")):
        with pytest.raises(Rejected, match=said):
            await resolved(registry, f"team/{name}:v1")
    for name in ("team/none", "team/foreign:v2"):
        with pytest.raises(NotFound, match=r"the registry r\.example has no image"):
            await resolved(registry, name)


async def test_a_login_is_sent_to_the_registry_that_asks_for_it(tmp_path: Path) -> None:
    with running_registry(tmp_path, LOGIN) as program:
        (tmp_path / "auth").write_text(docker_config(program.host, LOGIN))
        headers = {"Authorization": "Basic cm9ib3Q6b3BlbiBzZXNhbWU="}
        digest = push(program.host, "team/app", "v1", GOOD, headers)
        found = await find_container(site(program), parse_container("team/app:v1"), registry_auth=str(tmp_path / "auth"))
        assert found.digest == digest


@pytest.mark.skipif(shutil.which("umoci") is None or shutil.which("skopeo") is None, reason="umoci or skopeo is not installed")
async def test_an_image_that_umoci_built_and_skopeo_pushed_is_packed(registry: RegistryProgram, images: Images, tmp_path: Path) -> None:
    def run(*words: str) -> None:
        subprocess.run(words, check=True, cwd=tmp_path, capture_output=True)

    (tmp_path / "app").write_text("#!/bin/sh\necho hello\n")
    run("umoci", "init", "--layout", "layout")
    run("umoci", "new", "--image", "layout:v1")
    run("umoci", "insert", "--image", "layout:v1", "app", "/opt/bin/app")
    run("umoci", "config", "--image", "layout:v1", "--config.env", "FROM=umoci", "--config.workingdir", "/opt")
    for form in ("oci", "v2s2"):
        run("skopeo", "copy", "--dest-tls-verify=false", "--format", form, "oci:layout:v1", f"docker://{registry.host}/built/{form}:v1")
        found = await resolved(registry, f"built/{form}:v1")
        await images.bring(work(registry, found))
        assert content(images, found) == ["opt", "opt/bin", "opt/bin/app"]
        config = images.cache.image_config(found.digest)
        assert config is not None
        assert (read_config(config).variables["FROM"], read_config(config).workdir) == ("umoci", "/opt")


@pytest.mark.parametrize("name", ["simple", "referrer", "bundle"])
async def test_an_image_that_a_trusted_key_has_signed_is_taken_by_operator_and_node(
    registry: RegistryProgram, images: Images, name: str
) -> None:
    digest = push(registry.host, f"signed/{name}", "v1", signed_image())
    attach(registry.host, f"signed/{name}", name, digest)
    reference = parse_container(f"signed/{name}:v1")
    assert (await find_container(site(registry, trusted_keys=(OTHER_KEY, KEY)), reference, signed=True)).digest == digest
    with pytest.raises(Rejected, match=r"signed by none of this site's keys \(other\)"):
        await find_container(site(registry, trusted_keys=(OTHER_KEY,)), reference, signed=True)
    asked = replace(work(registry, await resolved(registry, f"signed/{name}:v1")), require_signature=True, trusted_keys=(KEY,))
    await images.bring(asked)
    assert images.cache.signatures(digest, SystemClock().now()) is not None
    with pytest.raises(Rejected, match="signed by none") as refused:
        await images.bring(replace(asked, trusted_keys=(OTHER_KEY,)))
    assert refused.value.reason == "ImageRefused"


async def test_a_node_believes_no_signature_for_longer_than_a_day_and_none_of_another_image(
    registry: RegistryProgram, images: Images
) -> None:
    digest = push(registry.host, "signed/kept", "v1", signed_image())
    found = replace(work(registry, await resolved(registry, "signed/kept:v1")), require_signature=True, trusted_keys=(KEY,))
    with pytest.raises(Rejected, match="is not signed"):
        await images.bring(found)
    attach(registry.host, "signed/kept", "simple", digest)
    await images.bring(found)
    kept = images.cache.signatures(digest, SystemClock().now())
    assert kept is not None
    attach(registry.host, "signed/kept", "other", digest)  # it replaces the first
    await images.bring(found)
    images.cache.keep_signatures(digest, kept, SystemClock().now() - 90_000)
    with pytest.raises(Rejected, match="signed by none"):
        await images.bring(found)
    stranger = push(registry.host, "signed/stranger", "v1", signed_image("another"))
    attach(registry.host, "signed/stranger", "simple", stranger)
    with pytest.raises(Rejected, match=f"is for {digest}"):
        await images.bring(replace(found, software=(await resolved(registry, "signed/stranger:v1"),)))
