"""The OCI images of the site's registries: what a name stands for now, and whether nodes could run it."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.clients.registry import LARGEST_DOCUMENT, Registry, opened_registry, parse_address
from lattice.clients.signatures import read_claims
from lattice.errors import NotFound, Rejected
from lattice.software.container_documents import (
    ARCHITECTURES,
    DOCUMENT_TYPES,
    ContainerIndex,
    ContainerManifest,
    machine_of,
    read_config,
    read_image,
)  # fmt: skip
from lattice.software.containers import ContainerReference, place_of
from lattice.software.signatures import check_signed
from lattice.views.cluster import SoftwareOptions


@dataclass(frozen=True)
class FoundContainer:
    """An OCI image of a registry: its digest, the bytes of its layers, the repository's whole path, the registry by its name, and the
    architectures for which it is made, as the kernel calls them.
    """

    digest: str
    size: int
    repository: str
    registry: str
    architectures: tuple[str, ...] = ()


async def find_container(
    options: SoftwareOptions, reference: ContainerReference, *, registry_auth: str = "", signed: bool = False
) -> FoundContainer:
    """Returns what a name stands for now, asked of the registry that it means with the login in the file `registry_auth` (empty: none).

    Raises NotFound for no such image, Rejected (ImageRefused) for a registry that is not listed and an image that no node could run; where
    it must be `signed`, for one that no trusted key has.
    """
    place = place_of(reference, options.registries)
    async with opened_registry(place.url, registry_auth) as registry:
        prefix = parse_address(place.url).prefix
        repository = f"{prefix}/{place.repository}" if prefix else place.repository
        try:
            digest, document = await registry.manifest_document(repository, reference.version, DOCUMENT_TYPES)
        except NotFound as error:
            version = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
            said = f"the registry {place.registry} has no image {place.repository}{version}"
            raise NotFound(f"{said}: {error.message}", reason="ImageNotFound") from error
        try:
            size, architectures = await _contents(registry, repository, read_image(document))
        except Rejected as error:
            raise Rejected(f"{reference.text}: {error.message}", reason="ImageRefused") from error
        if signed:
            check_signed(reference.text, digest, await read_claims(registry, repository, digest), options.trusted_keys)
    return FoundContainer(digest, size, repository, place.registry, tuple(sorted(architectures)))


async def _contents(registry: Registry, repository: str, found: ContainerIndex | ContainerManifest) -> tuple[int, set[str]]:
    """Returns the bytes of the layers of an image, and the architectures of nodes that can run it; of an index, the bytes of the largest
    image that a node may pick.

    Raises Rejected where none can be run; of an index, configurations are not read.
    """
    if isinstance(found, ContainerManifest):
        config = read_config(await registry.blob(repository, found.config.digest, most=LARGEST_DOCUMENT))
        if len(config.diff_ids) != len(found.layers):
            said = f"its configuration has {len(config.diff_ids)} layers, its manifest {len(found.layers)}"
            raise Rejected(f"the image cannot be run: {said}", reason="ImageRefused")
        return found.size, {machine_of(config.architecture)}
    sizes: dict[str, int] = {}
    failures: list[Rejected] = []
    for digest, machines in _picked(found).items():
        _, document = await registry.manifest_document(repository, digest, DOCUMENT_TYPES)
        try:
            one = read_image(document)
        except Rejected as error:
            failures.append(error)
            continue
        if isinstance(one, ContainerManifest):
            sizes |= dict.fromkeys(machines, one.size)
    if not sizes:
        raise failures[0] if failures else Rejected("the image cannot be run: its index names an index", reason="ImageRefused")
    return max(sizes.values()), set(sizes)


def _picked(index: ContainerIndex) -> dict[str, list[str]]:
    """Returns the digests of the manifests that nodes of the known architectures pick, with these; raises Rejected for none."""
    found: dict[str, list[str]] = {}
    refusal: Rejected | None = None
    for machine in ARCHITECTURES:
        try:
            found.setdefault(index.manifest_for(machine).digest, []).append(machine)
        except Rejected as error:
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    return found
