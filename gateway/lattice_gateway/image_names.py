"""Finds what names of images stand for in the site's registries: uenv labels and OCI images, for image caches and for `lattice plan`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from lattice.clients.containers import find_container
from lattice.clients.kept_lists import KeptLists
from lattice.clients.resolution import ResolvedLabel, container_entry, reason_of, resolve_images, resolve_label, uenv_entry
from lattice.clients.uenv_images import opened
from lattice.errors import LatticeError, NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.software.answers import PlannedImages
from lattice.software.containers import ContainerReference, parse_container
from lattice.software.labels import UenvLabel, parse_label
from lattice.software.pinning import WAITING_FOR_IMAGES, names_registry
from lattice.software.site_rules import check_devices, wants_signature
from lattice.views.allocation import Allocation, SoftwareImage, SoftwareReferences
from lattice.views.cluster import SoftwareOptions
from lattice_gateway.software import software_options

PLAN_SECONDS: Final = 8.0
"""Within which registries must have answered all questions of one plan."""
AT_ONCE: Final = 8
"""Allocations of one plan whose images are sought at a time."""


class ImageNames:
    """Resolves names of images now, with the site's login to its registries, whose file is read again for each."""

    def __init__(self, cluster: Cluster, registry_auth: str) -> None:
        self._cluster, self._registry_auth, self._lists = cluster, registry_auth, KeptLists()

    async def find(self, text: str) -> SoftwareImage:
        """Returns the image that a text names: a uenv by label, id or digest, else an OCI image, as one is that names its registry.

        Raises Rejected where it reads as neither or names several, NotFound where the site has neither.
        """
        options = await software_options(self._cluster)
        label, container = _read(text)
        named = container is not None and container.registry in {one.name for one in options.registries}
        if label is None or named or not options.registry:
            return await self._container(options, container) if container is not None else await self._uenv(options, label, text)
        try:
            return await self._uenv(options, label, text)
        except NotFound as missing:
            if container is None or not options.registries:
                raise
            try:
                return await self._container(options, container)
            except NotFound as error:
                raise NotFound(f"{missing.message}; as an OCI image: {error.message}", reason=missing.reason) from error

    async def planned(self, documents: Sequence[Mapping[str, Any]]) -> list[PlannedImages]:
        """Returns what the registries say now of the images of work that is not submitted, in order; what keeps or refuses it where they
        have none, or do not answer within 8 s.
        """
        turn, options = asyncio.Semaphore(AT_ONCE), await software_options(self._cluster)

        async def one(document: Mapping[str, Any]) -> PlannedImages:
            """Returns what is said of one document's images."""
            async with turn:
                return await self._planned(document, options)

        return list(await asyncio.gather(*(one(document) for document in documents)))

    async def _planned(self, document: Mapping[str, Any], options: SoftwareOptions) -> PlannedImages:
        """Returns what the registries say of the images of one document; nothing of one that does not read, which others refuse."""
        try:
            given = msgspec.convert({**document, "status": {}}, Allocation).spec
        except msgspec.ValidationError:
            return PlannedImages()
        if not names_registry(given.environment):
            return PlannedImages()
        signed = wants_signature(given.environment.require, given.tenant, given.vcluster, options.require_signature)
        return await _said(self._resolved(given.environment, options, signed=signed))

    async def _resolved(self, asked: SoftwareReferences, options: SoftwareOptions, *, signed: bool) -> list[SoftwareImage]:
        """Returns the images that work asks for, as the operator would pin them; raises as `resolve_images` does."""
        if asked.image:
            check_devices(asked.devices, options.container_devices)
        return await resolve_images(
            asked,
            lambda label: self._label(options, label, signed=signed),
            lambda name: find_container(options, name, registry_auth=self._registry_auth, signed=signed),
        )

    async def _label(self, options: SoftwareOptions, label: UenvLabel, *, signed: bool) -> ResolvedLabel:
        """Returns what the registry says of a uenv label."""
        async with opened(options, self._registry_auth, self._lists) as images:
            return await resolve_label(images, label, options, signed=signed)

    async def _uenv(self, options: SoftwareOptions, label: UenvLabel | None, text: str) -> SoftwareImage:
        """Returns the uenv that a label names; raises the refusal of a text that is no label (None)."""
        return uenv_entry(text, await self._label(options, label if label is not None else parse_label(text), signed=False))

    async def _container(self, options: SoftwareOptions, name: ContainerReference) -> SoftwareImage:
        """Returns the OCI image of a name."""
        return container_entry(name, await find_container(options, name, registry_auth=self._registry_auth))


def _read(text: str) -> tuple[UenvLabel | None, ContainerReference | None]:
    """Returns a text as a uenv label and as the name of an OCI image; None: it does not read so."""
    label: UenvLabel | None = None
    container: ContainerReference | None = None
    with suppress(Rejected):
        label = parse_label(text)
    with suppress(Rejected):
        container = parse_container(text)
    return label, container


async def _said(asked: Awaitable[list[SoftwareImage]]) -> PlannedImages:
    """Returns the images that a question resolves, or the refusal, or why they are not resolved."""
    try:
        async with asyncio.timeout(PLAN_SECONDS):
            return PlannedImages(images=tuple(await asked))
    except (NotFound, Rejected) as refusal:
        return PlannedImages(reason=reason_of(refusal), message=refusal.message)
    except LatticeError as failure:
        return PlannedImages(reason=WAITING_FOR_IMAGES, message=f"{failure.message}; asked again until software.resolveTimeout")
    except TimeoutError:
        said = f"its registry has not answered within {PLAN_SECONDS:g} s; asked again until software.resolveTimeout"
        return PlannedImages(reason=WAITING_FOR_IMAGES, message=said)
