"""Software environments for people: the images of the site's registry, and what one says of itself.

Whoever is known to the cluster may ask: the images are the site's offer to everybody, and the registry is read with the site's login.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web

from lattice.clients.kept_lists import KeptLists
from lattice.clients.uenv_images import UenvImage, UenvImages, closest, opened
from lattice.daemon.logs import event
from lattice.errors import NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.resources import CONFIGS
from lattice.software.answers import UenvDetails, UenvRow, UenvRows, ViewRow
from lattice.software.image_metadata import ImageMetadata, View
from lattice.software.labels import UenvLabel, parse_label
from lattice.views.cluster import Config, SoftwareOptions
from lattice_gateway.identity import Identity

log = logging.getLogger(__name__)

UENVS: Final = "/uenvs"
UENV: Final = "/uenv"
MOST_IMAGES: Final = 1000
"""Images of one answer."""


class SoftwareCatalog:
    """Answers questions about software environments; the login's file is read again for each."""

    def __init__(self, cluster: Cluster, registry_auth: str) -> None:
        self._cluster = cluster
        self._registry_auth = registry_auth
        self._lists = KeptLists()

    async def list_images(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the images that the parameter `label` names, 1,000 at most, and how many were left out.

        Without a label, with all of the site's namespace and system. Raises Rejected for a bad parameter, or without a registry.
        """
        label = _label(request, needed=False)
        event(log, "UenvsAsked", user=identity.user, label=str(label))
        async with self.images() as images:
            found, left_out = await images.find(label, MOST_IMAGES)
        return _answer(UenvRows([_row(image) for image in found], left_out))

    async def inspect(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the one image that the parameter `label` names, its mount point and views.

        Raises NotFound where there is none, Rejected where the label is missing or names several.
        """
        label = _label(request, needed=True)
        event(log, "UenvAsked", user=identity.user, label=str(label))
        async with self.images() as images:
            found, left_out = await images.find(label, MOST_IMAGES)
            image = closest(label, found, left_out)
            attached = await images.metadata(image)
        return _answer(_details(image, attached[1] if attached is not None else None))

    @asynccontextmanager
    async def images(self) -> AsyncIterator[UenvImages]:
        """Opens the site's registry for the block; raises Rejected (NoRegistry) where the LatticeConfig names none."""
        async with opened(await software_options(self._cluster), self._registry_auth, self._lists) as images:
            yield images


async def software_options(cluster: Cluster) -> SoftwareOptions:
    """Returns the options of the site's software, the defaults where there is no configuration."""
    try:
        return (await cluster.get(CONFIGS, "lattice", type=Config)).spec.software
    except NotFound:
        return SoftwareOptions()


def _label(request: web.Request, *, needed: bool) -> UenvLabel:
    """Returns the label of a request; where it is absent, one that names every image.

    Raises Rejected for an unknown parameter, a label that does not parse, or one that is absent and needed.
    """
    if unknown := sorted(set(request.query) - {"label"}):
        raise Rejected(f"the parameter {unknown[0]} is not known; known is label", reason="ParameterInvalid")
    text = request.query.get("label", "")
    if needed and not text:
        raise Rejected("the parameter label is missing", reason="ParameterInvalid")
    return parse_label(text) if text else UenvLabel()


def _row(image: UenvImage) -> UenvRow:
    """Returns an image as a row of the answer."""
    at = image.repository
    return UenvRow(
        at.namespace, at.name, at.version, image.tag, at.system, at.uarch, image.digest, image.layer.size, created=image.created
    )  # fmt: skip


def _details(image: UenvImage, metadata: ImageMetadata | None) -> UenvDetails:
    """Returns what an image says of itself; None: nothing is attached to it."""
    if metadata is None:
        return UenvDetails(_row(image), attached=False)
    views = [ViewRow(_text(view.name), _text(view.description), _changes(view)) for view in metadata.views]
    return UenvDetails(_row(image), attached=True, description=_text(metadata.description), mount=metadata.mount, views=views)


def _text(written: str) -> str:
    """Returns a text of an image's metadata with `?` for what UTF-8 cannot say, such as half a pair of surrogates."""
    return written.encode(errors="replace").decode()


def _changes(view: View) -> list[str]:
    """Returns the changes that a view makes to variables, a line each, in the order in which they are made: scalars, then lists."""
    scalars = [f"unset {one.variable}" if one.value is None else f"set {one.variable} {one.value}" for one in view.scalars]
    return [_text(change) for change in scalars + [f"{one.operation} {one.variable} {':'.join(one.paths)}".rstrip() for one in view.lists]]


def _answer(found: UenvRows | UenvDetails) -> web.Response:
    """Returns the answer with these images as JSON, which nobody may keep."""
    return web.Response(body=msgspec.json.encode(found), content_type="application/json", headers={"Cache-Control": "no-store"})
