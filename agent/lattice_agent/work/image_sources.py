"""Says where a node's images come from: the URL of each image's registry, as the site's configuration has it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.errors import Rejected
from lattice.software.containers import url_of
from lattice.units import quantity_bytes
from lattice.views.allocation import SoftwareImage
from lattice.views.cluster import ImageRegistry, SoftwareOptions


@dataclass(frozen=True, slots=True)
class ImageSources:
    """Holds the site's registry of uenv, those of OCI images, and the bytes to which one of the latter may unpack."""

    registry: str
    registries: tuple[ImageRegistry, ...] = ()
    largest: int = 0

    def url(self, image: SoftwareImage) -> str:
        """Returns the URL of an image's registry; raises Rejected (ImageRefused) for one that the site lists no more."""
        if not image.is_container:
            return self.registry
        found = next((one for one in self.registries if one.name == image.registry), None)
        if found is None:
            said = f"{image.source}: the registry {image.registry} is none of this site's any more (software.registries)"
            raise Rejected(said, reason="ImageRefused")
        return url_of(found)

    def place(self, image: SoftwareImage) -> str:
        """Returns an image's registry as people know it: of an OCI image the name in the site's list, of a uenv host and path."""
        return image.registry if image.is_container else self.registry.partition("://")[2] or self.registry


def sources_of(options: SoftwareOptions) -> ImageSources:
    """Returns where images come from by the site's configuration."""
    return ImageSources(options.registry, options.registries, quantity_bytes(options.largest_image))
