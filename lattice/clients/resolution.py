"""Resolves the images that work names: what the registries say of each, checked together, as entries of `status.software`.

The operator does so once for all attempts; the gateway for `lattice plan`, which submits nothing, and for image caches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lattice.clients.containers import FoundContainer
from lattice.clients.uenv_images import UenvImage, closest
from lattice.errors import LatticeError, NotFound
from lattice.models.conditions import SOFTWARE_REFUSED
from lattice.software.claims import SignedClaim
from lattice.software.containers import ContainerReference, parse_container
from lattice.software.image_metadata import ImageMetadata
from lattice.software.labels import UenvLabel
from lattice.software.pinning import asked_images
from lattice.software.references import MountedImage, check_images, parse_views
from lattice.software.signatures import check_signed
from lattice.views.allocation import OCI, SoftwareImage, SoftwareReferences
from lattice.views.cluster import SoftwareOptions

MOST_IMAGES: Final = 50
"""Of one label: of more, the sentence that it names several is the same."""
REFUSED: Final = "ImageRefused"


class ImageFinder(Protocol):
    """Finds images by label; `UenvImages` is the implementation."""

    async def find(self, label: UenvLabel, most: int) -> tuple[list[UenvImage], int]:
        """Returns the images that a label names, and how many matching tags beyond `most` were not asked for."""
        ...

    async def check_size(self, image: UenvImage) -> None:
        """Raises Rejected where an image's file has another size than its manifest says."""
        ...

    async def claims(self, image: UenvImage) -> list[SignedClaim]:
        """Returns what has been signed of an image; empty: nothing."""
        ...

    async def metadata(self, image: UenvImage) -> tuple[str, ImageMetadata] | None:
        """Returns the metadata attached to an image in the registry, and the digest of its archive; None: none is attached."""
        ...


@dataclass(frozen=True)
class ResolvedLabel:
    """The registry's answer for one label: the image that it names, and what is attached to it, by the digest of its archive."""

    image: UenvImage
    metadata: ImageMetadata | None = None
    archive: str = ""


async def resolve_label(images: ImageFinder, label: UenvLabel, options: SoftwareOptions, *, signed: bool) -> ResolvedLabel:
    """Returns which image a label names, and the metadata attached to it; that of an image which must be `signed` does not count, since a
    signature of the image does not cover it.

    Raises NotFound where there is none, Rejected where there are several, its manifest lies, or no trusted key has signed it.
    """
    found, left_out = await images.find(label, MOST_IMAGES)
    image = closest(label, found, left_out)
    await images.check_size(image)
    if signed:
        check_signed(str(label), image.digest, await images.claims(image), options.trusted_keys)
        return ResolvedLabel(image)
    attached = await images.metadata(image)
    return ResolvedLabel(image, attached[1], attached[0]) if attached is not None else ResolvedLabel(image)


async def resolve_images(
    asked: SoftwareReferences,
    label_of: Callable[[UenvLabel], Awaitable[ResolvedLabel]],
    container_of: Callable[[ContainerReference], Awaitable[FoundContainer]],
) -> list[SoftwareImage]:
    """Returns the entries of `status.software` for the OCI image, or for the uenv images that are named by label, after the registries
    were asked by the two functions, and all images and views were checked together.

    Raises NotFound or Rejected for a refusal, and what the functions raise.
    """
    if asked.image:
        container = parse_container(asked.image)
        return [container_entry(container, await container_of(container))]
    references, views = asked_images(asked.uenv, asked.tools_uenv), parse_views(asked.view)
    found = [(one, await label_of(one.label) if one.label is not None else None) for one in references]
    mounted = [MountedImage(reference, one.metadata if one is not None else None) for reference, one in found]
    check_images(mounted, views)
    images: dict[str, SoftwareImage] = {}
    for image, (reference, one) in zip(mounted, found, strict=True):
        if one is not None and (reference.text not in images or not reference.mount):  # the mount of those that name none
            images[reference.text] = uenv_entry(reference.text, one, image.mount)
    return list(images.values())


def uenv_entry(source: str, found: ResolvedLabel, mount: str = "") -> SoftwareImage:
    """Returns the entry of `status.software` for a uenv that work calls `source`."""
    return SoftwareImage(
        source=source, digest=found.image.digest, size=found.image.layer.size, mount=mount, repository=found.image.repository.path,
        layer=found.image.layer.digest, metadata=found.archive,
    )  # fmt: skip


def container_entry(reference: ContainerReference, found: FoundContainer) -> SoftwareImage:
    """Returns the entry of `status.software` for an OCI image."""
    return SoftwareImage(
        source=reference.text, digest=found.digest, size=found.size, repository=found.repository, kind=OCI, registry=found.registry,
        architectures=found.architectures,
    )  # fmt: skip


def reason_of(refusal: LatticeError) -> str:
    """Returns the reason of the condition for a refusal: `ImageNotFound` for NotFound, the refusal's own where it is among those of
    software, and `ImageRefused`, whose sentence says why, for all others.
    """
    if isinstance(refusal, NotFound):
        return "ImageNotFound"
    return refusal.reason if refusal.reason in SOFTWARE_REFUSED else REFUSED
