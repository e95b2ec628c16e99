"""Reads the documents of an OCI image: an index, the manifest of one architecture, the configuration; pure.

Docker's schema 2 and OCI's own are read alike. What a node could not run is refused here, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from lattice.errors import Rejected

INDEX_TYPES: Final = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST_TYPES: Final = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
DOCUMENT_TYPES: Final = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))
"""What a registry is asked for (`Accept`)."""
CONFIG_TYPES: Final = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
LAYER_TYPES: Final = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
)
MOST_LAYERS: Final = 512
MOST_PLATFORMS: Final = 256
LARGEST_IMAGE: Final = 1 << 50
"""Bytes of all layers together, as a manifest says them: more is no image."""
MOST_VARIABLES: Final = 4096
LARGEST_ENVIRONMENT: Final = 1 << 20
LONGEST_PATH: Final = 4096
ARCHITECTURES: Final = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64",
}  # fmt: skip
"""Go's names of architectures, as images have them, by the kernel's."""
_MACHINES: Final = {name: machine for machine, name in ARCHITECTURES.items()}
_ARCHITECTURE: Final = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
T = TypeVar("T")


class Platform(msgspec.Struct):
    """The machines for which an image is made, in Go's words (`linux`, `amd64`, `v8`)."""

    architecture: str = ""
    os: str = ""
    variant: str = ""


class BlobReference(msgspec.Struct, rename="camel"):
    """A document or a layer that another document names, by digest and bytes."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None


class ContainerIndex(msgspec.Struct, rename="camel"):
    """The manifests of an image that exists for several architectures."""

    manifests: list[BlobReference] = msgspec.field(default_factory=list)
    media_type: str = ""

    def manifest_for(self, machine: str) -> BlobReference:
        """Returns the manifest for a machine (`x86_64`), of those for Linux; raises Rejected (ImageRefused), naming those that there are,
        where it has none.

        Of several the first without a variant, or with the usual one (`v8`), is taken, else the first.
        """
        wanted = ARCHITECTURES.get(machine, machine)
        found = [one for one in self.runnable() if one.platform is not None and one.platform.architecture == wanted]
        usual = [one for one in found if one.platform is not None and one.platform.variant in ("", "v8")]
        if not found:
            there = ", ".join(sorted({one.platform.architecture[:40] for one in self.runnable() if one.platform is not None})) or "none"
            raise _refused(f"the image is not made for {wanted} ({machine}); it is made for: {there}")
        return (usual or found)[0]

    def runnable(self) -> list[BlobReference]:
        """Returns the manifests that are for Linux, without attestations and what else indices carry."""
        return [one for one in self.manifests if one.platform is not None and one.platform.os == "linux"]


class ContainerManifest(msgspec.Struct, rename="camel"):
    """The configuration and the layers, the lowest first, of an image for one architecture."""

    config: BlobReference
    layers: list[BlobReference]
    media_type: str = ""

    @property
    def size(self) -> int:
        """Returns the bytes of all its layers as they are transferred."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True)
class ContainerConfig:
    """The parts of an image's configuration that who runs it needs: variables, working directory, architecture, and its layers' hashes."""

    variables: dict[str, str]
    workdir: str
    architecture: str
    diff_ids: tuple[str, ...]
    """The digests of the unpacked layers, the lowest first."""


class _RootFs(msgspec.Struct):
    type: str = ""
    diff_ids: list[str] = msgspec.field(default_factory=list)


class _RunOptions(msgspec.Struct):
    env: list[str] | None = msgspec.field(name="Env", default=None)
    workdir: str | None = msgspec.field(name="WorkingDir", default=None)


class _ConfigDocument(msgspec.Struct):
    architecture: str = ""
    os: str = ""
    rootfs: _RootFs = msgspec.field(default_factory=_RootFs)
    config: _RunOptions | None = None


class _SchemaVersion(msgspec.Struct, rename="camel"):
    schema_version: int = 2
    media_type: str = ""
    manifests: msgspec.Raw = msgspec.Raw(b"")


def read_image(document: bytes) -> ContainerIndex | ContainerManifest:
    """Returns an index or a manifest, OCI's or Docker's, checked so far that what it names could be pulled; raises Rejected (ImageRefused)
    for anything else.
    """
    head = _decoded(document, _SchemaVersion, "manifest")
    if head.schema_version != 2:
        said = f"its manifest has schema {head.schema_version}, which Docker gave up in 2017"
        raise _refused(f"{said}; push it again with a program of today, such as skopeo copy --format oci")
    if head.media_type in INDEX_TYPES or (not head.media_type and head.manifests):
        return _checked_index(_decoded(document, ContainerIndex, "index"))
    if head.media_type and head.media_type not in MANIFEST_TYPES:
        raise _refused(f"its manifest has the media type {head.media_type[:100]!r}, which is no image's")
    return _checked_manifest(_decoded(document, ContainerManifest, "manifest"))


def _checked_index(index: ContainerIndex) -> ContainerIndex:
    """Returns an index unchanged.

    Raises Rejected where it has too many manifests, none for Linux, or one that is no manifest of an image.
    """
    if len(index.manifests) > MOST_PLATFORMS:
        raise _refused(f"its index has {len(index.manifests)} manifests (limit: {MOST_PLATFORMS})")
    if not index.runnable():
        raise _refused("its index has no image for Linux")
    for one in index.runnable():
        _check_reference(one, "manifest")
        if one.media_type not in MANIFEST_TYPES:
            raise _refused(f"its index names {one.media_type[:100]!r}, which is no manifest of an image")
    return index


def _checked_manifest(manifest: ContainerManifest) -> ContainerManifest:
    """Returns a manifest unchanged. Raises Rejected where it is of no image that can be run, or has too many, too large or no layers."""
    if manifest.config.media_type not in CONFIG_TYPES:
        said = f"its configuration has the media type {manifest.config.media_type[:100]!r}: it is an artifact, no image to be run"
        raise _refused(f"{said}; a configuration of an image is {CONFIG_TYPES[0]}")
    if not 0 < len(manifest.layers) <= MOST_LAYERS:
        raise _refused(f"it has {len(manifest.layers)} layers (1 to {MOST_LAYERS} are run)")
    for one in (manifest.config, *manifest.layers):
        _check_reference(one, "layer")
    for layer in manifest.layers:
        _check_layer(layer)
    if manifest.size > LARGEST_IMAGE:
        raise _refused(f"its layers have {manifest.size} bytes")
    return manifest


def _check_layer(layer: BlobReference) -> None:
    """Raises Rejected for a layer that a registry does not have, or that is no tar."""
    if "foreign" in layer.media_type or "nondistributable" in layer.media_type:
        said = f"its layer {layer.digest} stands at another place than its registry (foreign layer), where nothing is fetched from"
        raise _refused(f"{said}; push the image with its layers")
    if layer.media_type not in LAYER_TYPES:
        raise _refused(f"its layer {layer.digest} has the media type {layer.media_type[:100]!r}, which cannot be unpacked")


def _check_reference(one: BlobReference, what: str) -> None:
    """Raises Rejected where the digest or the size of a reference (`what`: to what) cannot be right."""
    if not _DIGEST.fullmatch(one.digest) or one.size < 0:
        raise _refused(f"it names a {what} of the digest {one.digest[:80]!r} and {one.size} bytes")


def machine_of(architecture: str) -> str:
    """Returns the kernel's name of an architecture (`x86_64`) for Go's (`amd64`); another word as it is."""
    return _MACHINES.get(architecture, architecture)


def read_config(document: bytes) -> ContainerConfig:
    """Returns the configuration of an image for Linux; raises Rejected (ImageRefused) where it is none, is for another system, or sets what
    no program could be given.
    """
    found = _decoded(document, _ConfigDocument, "configuration")
    options = found.config or _RunOptions()
    if found.os != "linux":
        raise _refused(f"it is made for {found.os[:40] or 'no system'!r}, not for linux")
    if not _ARCHITECTURE.fullmatch(found.architecture):
        raise _refused(f"its configuration names the architecture {found.architecture[:40]!r}, which is none")
    if any(not _DIGEST.fullmatch(one) for one in found.rootfs.diff_ids):
        raise _refused("its configuration names a layer by something else than sha256")
    workdir = options.workdir or ""
    if len(workdir) > LONGEST_PATH or not workdir.isprintable() or (workdir and not workdir.startswith("/")):
        raise _refused(f"its working directory {workdir[:80]!r} is no absolute path")
    return ContainerConfig(_variables(options.env or []), workdir, found.architecture, tuple(found.rootfs.diff_ids))


def _variables(entries: Sequence[str]) -> dict[str, str]:
    """Returns the variables of an image's configuration, the last of a name; entries without a name or `=` are left out.

    Raises Rejected for too many, too long ones, or a NUL.
    """
    if len(entries) > MOST_VARIABLES or sum(map(len, entries)) > LARGEST_ENVIRONMENT:
        raise _refused(f"its configuration sets {len(entries)} variables (limits: {MOST_VARIABLES}, together 1 MiB)")
    variables: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if "\0" in entry:
            raise _refused(f"its configuration sets the variable {name[:80]!r} to a text with NUL")
        if name and equals:
            variables[name] = value
    return variables


def _decoded(document: bytes, kind: type[T], what: str) -> T:
    """Returns a document as an instance of a type. Raises Rejected where it does not decode."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refused(f"its {what} cannot be read: {error}") from error


def _refused(why: str) -> Rejected:
    """Returns the error that says why an image cannot be run."""
    return Rejected(f"the image cannot be run: {why}", reason="ImageRefused")
