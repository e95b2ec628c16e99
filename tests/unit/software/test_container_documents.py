"""Manifests, indices and configurations of OCI images are read as Docker and OCI write them, and what cannot be run is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.errors import Rejected
from lattice.software.container_documents import ContainerIndex, ContainerManifest, read_config, read_image
from tests.containers import FOREIGN_LAYER, image, index, layer, member

LAYER = layer(member("a", "1"))


def changed(**fields: Any) -> bytes:
    """A good manifest with other fields."""
    return json.dumps(json.loads(image(LAYER).manifest) | fields).encode()


@pytest.mark.parametrize("docker", [False, True], ids=["OCI", "Docker"])
def test_a_manifest_and_an_index_of_both_kinds_are_read(docker: bool) -> None:
    built = image(LAYER, LAYER, docker=docker)
    found = read_image(built.manifest)
    assert isinstance(found, ContainerManifest)
    assert (len(found.layers), found.size) == (2, built.size)
    several = read_image(index((built, "arm64"), (image(LAYER), "amd64"), docker=docker).manifest)
    assert isinstance(several, ContainerIndex)
    assert [several.manifest_for(machine).digest for machine in ("aarch64", "x86_64")] == [built.digest, image(LAYER).digest]
    with pytest.raises(Rejected, match=r"not made for riscv64 \(riscv64\); it is made for: amd64, arm64"):
        several.manifest_for("riscv64")


def test_of_several_variants_the_usual_one_is_taken() -> None:
    one, other = (
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f"sha256:{digit * 64}", "size": 1,
         "platform": {"os": "linux", "architecture": "arm64", "variant": variant}}
        for digit, variant in (("1", "v9"), ("2", "v8"))
    )  # fmt: skip
    found = read_image(json.dumps({"schemaVersion": 2, "manifests": [one, other]}).encode())
    assert isinstance(found, ContainerIndex)
    assert found.manifest_for("aarch64").digest == "sha256:" + "2" * 64


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"nonsense", "cannot be read"),
        (b"[" * 5000, "cannot be read"),
        (b'{"schemaVersion": 1, "fsLayers": []}', "has schema 1"),
        (changed(mediaType="application/vnd.cncf.helm.config.v1+json"), "no image's"),
        (
            changed(config={"mediaType": "application/vnd.oci.empty.v1+json", "digest": "sha256:" + "a" * 64, "size": 2}),
            "it is an artifact",
        ),
        (changed(layers=[]), "it has 0 layers"),
        (changed(layers=[{"mediaType": FOREIGN_LAYER, "digest": "sha256:" + "a" * 64, "size": 2}]), "foreign layer"),
        (changed(layers=[{"mediaType": "application/x-squashfs", "digest": "sha256:" + "a" * 64, "size": 2}]), "cannot be unpacked"),
        (changed(layers=[{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:../../x", "size": 2}]), "of the digest"),
        (changed(layers=[{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:" + "a" * 64, "size": -2}]), "-2 bytes"),
        (changed(layers="x"), "cannot be read"),
        (b'{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}', "no image for Linux"),
        (image(LAYER, layer_type="application/vnd.oci.image.layer.v1.tar+gzip+encrypted").manifest, "cannot be unpacked"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(document: bytes, said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        read_image(document)
    assert refused.value.reason == "ImageRefused"


def config(**fields: Any) -> bytes:
    """A good configuration with other fields."""
    return json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}} | fields).encode()


def test_variables_and_working_directory_come_from_the_configuration() -> None:
    found = read_config(
        config(config={"Env": ["A=1", "B=x=y", "A=2", "C", "=d"], "WorkingDir": "/srv", "User": "root", "Entrypoint": ["x"]})
    )
    assert (found.variables, found.workdir, found.architecture) == ({"A": "2", "B": "x=y"}, "/srv", "amd64")
    assert (read_config(config()).variables, read_config(config(config={"Env": None})).workdir) == ({}, "")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (config(os="windows"), "made for 'windows'"),
        (config(config={"Env": ["A=\0"]}), "with NUL"),
        (config(config={"Env": ["A=1"] * 5000}), "5000 variables"),
        (config(config={"Env": ["A=" + "x" * (1 << 21)]}), "together 1 MiB"),
        (config(config={"WorkingDir": "../etc"}), "no absolute path"),
        (config(config={"WorkingDir": "/a\nb"}), "no absolute path"),
        (config(rootfs={"diff_ids": ["md5:1"]}), "something else than sha256"),
        (b'{"config": 5}', "cannot be read"),
    ],
)
def test_a_configuration_that_no_program_could_be_given_is_refused(document: bytes, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        read_config(document)
