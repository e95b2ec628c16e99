"""The uenv images of a registry, as CSCS's `uenv` pushes them: which of them a label names, and what is attached to one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lattice.clients.kept_lists import KEPT_SECONDS, KeptLists
from lattice.clients.registry import Descriptor, Registry, opened_registry, parse_address
from lattice.clients.signatures import read_claims
from lattice.errors import NotFound, Rejected
from lattice.software.catalog import SoftwareDefaults, UenvRepository, filled_in, names, read_repository, repository_of
from lattice.software.claims import SignedClaim
from lattice.software.image_metadata import LARGEST_ARCHIVE, ImageMetadata, read_metadata, unpack_metadata
from lattice.software.labels import ID_LENGTH, UenvLabel
from lattice.views.cluster import SoftwareOptions

T = TypeVar("T")
ARTIFACT_TYPE: Final = "application/x-squashfs"
METADATA_TYPE: Final = "uenv/meta"
CREATED: Final = "org.opencontainers.image.created"
AT_ONCE: Final = 8
"""Questions to the registry at a time."""
MOST_REPOSITORIES: Final = 500
"""That one label may name: of more, it has to say more."""
MOST_READ: Final = 2000
"""Images that are read to find one by its id."""
LONGEST_REPOSITORY: Final = 512
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class UenvImage:
    """One image of the registry: a tag of a repository, the digest of its manifest, and a reference to its squashfs file."""

    repository: UenvRepository
    tag: str
    digest: str
    layer: Descriptor
    created: str

    @property
    def label(self) -> UenvLabel:
        """Returns the complete label of this image, which no other image has."""
        at = self.repository
        return UenvLabel(at.namespace, at.name, at.version, self.tag, at.system, at.uarch)

    def has_digest(self, digits: str) -> bool:
        """Tells whether the image's digest begins with these hexadecimal digits."""
        return self.digest.removeprefix("sha256:").startswith(digits)


class UenvImages:
    """Finds images by label in one registry; fills the site's namespace and system into labels that leave them out."""

    def __init__(
        self, registry: Registry, prefix: str, defaults: SoftwareDefaults, lists: KeptLists | None = None, address: str = ""
    ) -> None:
        """Shares the lists of the registry at `address` with others that have the same `lists`."""
        self._registry, self._address = registry, address
        self._lists = lists or KeptLists()
        self._oldest = 0.0
        """When the oldest list was asked for that served the present question (monotonic)."""
        self._prefix = prefix
        self._defaults = defaults
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def find(self, label: UenvLabel, most: int) -> tuple[list[UenvImage], int]:
        """Returns the images that a label matches, in order of their labels, and how many matching tags beyond `most` were not read; tags
        that are gone, or no image, count among the read.

        An id or a digest is sought among all images of the site's namespace and system, `most` at a time until it is found. The registry's
        lists may be some seconds old, unless nothing is found in them. Raises Rejected (NoCatalog, LabelTooWide).
        """
        begun = self._oldest = self._lists.present
        found = await self._find(label, most, begun - KEPT_SECONDS)
        return found if found[0] or self._oldest >= begun else await self._find(label, most, begun)

    async def _find(self, label: UenvLabel, most: int, since: float) -> tuple[list[UenvImage], int]:
        """Returns the images of a label by lists that were asked for at `since` (monotonic) or later. Raises as `find` does."""
        repositories = await self._repositories(filled_in(label, self._defaults), since)
        tags = await _answers([self._tags(repository, label, since) for repository in repositories])
        tagged = [(repository, tag) for repository, found in zip(repositories, tags, strict=True) for tag in found]
        wanted: list[UenvImage] = []
        begin = 0
        while begin < len(tagged) and (begin == 0 or (label.digest and not wanted)):
            if begin >= MOST_READ:
                said = f"{label} is not among the first {MOST_READ} of {len(tagged)} images: write the label, name/version:tag"
                raise Rejected(said, reason="LabelTooWide")
            images = await _answers([self._image(repository, tag) for repository, tag in tagged[begin : begin + most]])
            wanted += [image for image in images if image is not None and image.has_digest(label.digest)]
            begin += most
        return sorted(wanted, key=lambda image: str(image.label)), max(0, len(tagged) - begin)

    async def check_size(self, image: UenvImage) -> None:
        """Raises Rejected (ImageRefused) where an image's file has another size in the registry than its manifest says: whoever pushes an
        image writes that, and nodes make so much room for it. A registry that does not tell sizes is believed.
        """
        found = await self._registry.blob_size(image.repository.path, image.layer.digest)
        if found is not None and found != image.layer.size:
            said = f"its manifest says {image.layer.size} bytes, and its file has {found} in the registry"
            raise Rejected(f"{image.label} is no image that can be pulled: {said}; push it again", reason="ImageRefused")

    async def claims(self, image: UenvImage) -> list[SignedClaim]:
        """Returns the claims that are attached to an image, not verified; empty: it is not signed."""
        return await read_claims(self._registry, image.repository.path, image.digest)

    async def metadata(self, image: UenvImage) -> tuple[str, ImageMetadata] | None:
        """Returns the metadata attached to an image, and the digest of the archive that it was in; None: none is attached.

        Raises Rejected (MetadataInvalid) or Corrupt where it is broken.
        """
        path = image.repository.path
        for attached in await self._registry.referrers(path, image.digest, METADATA_TYPE):
            _, manifest = await self._registry.manifest(path, attached.digest)
            for layer in manifest.layers:
                document = unpack_metadata(await self._registry.blob(path, layer.digest, most=LARGEST_ARCHIVE))
                if document is not None:
                    return layer.digest, read_metadata(document)
        return None

    async def _repositories(self, label: UenvLabel, since: float) -> list[UenvRepository]:
        """Returns the repositories that a label can mean: one, unasked, where it names all parts, else those of the registry's list that it
        matches, by path.

        Raises Rejected where there are more than MOST_REPOSITORIES.
        """
        if (whole := repository_of(label, self._prefix)) is not None:
            return [whole]
        listed = (read_repository(path, self._prefix) for path in await self._list("", self._registry.repositories, since))
        found = sorted((one for one in listed if one is not None and names(label, one)), key=lambda one: one.path)
        if len(found) > MOST_REPOSITORIES:
            said = f"{label} names {len(found)} repositories (limit: {MOST_REPOSITORIES}): add a version, @system or %uarch"
            raise Rejected(said, reason="LabelTooWide")
        return found

    async def _list(self, name: str, ask: Callable[[], Awaitable[list[str]]], since: float) -> list[str]:
        """Returns a list of the registry that was asked for at `since` or later, and notes how old it is. Raises as `ask` does."""
        listed, asked = await self._lists.names((self._address, name), ask, since)
        self._oldest = min(self._oldest, asked)
        return listed

    async def _tags(self, repository: UenvRepository, label: UenvLabel, since: float) -> list[str]:
        """Returns the tag of the label, unasked, or all tags of a repository in order, without those of attachments; none where the
        repository does not exist.
        """
        if label.tag:
            return [label.tag]
        try:
            async with self._turns:
                path = repository.path
                listed = await self._list(path, lambda: self._registry.tags(path), since)
        except NotFound:
            return []
        return sorted(tag for tag in listed if not tag.startswith("sha256-"))  # these hold what is attached to images

    async def _image(self, repository: UenvRepository, tag: str) -> UenvImage | None:
        """Returns the image of a tag; None: the tag is gone, or its manifest is not that of one squashfs file."""
        try:
            async with self._turns:
                digest, manifest = await self._registry.manifest(repository.path, tag)
        except NotFound:
            return None
        if len(manifest.layers) != 1 or manifest.artifact_type not in ("", ARTIFACT_TYPE):
            return None
        return UenvImage(repository, tag, digest, manifest.layers[0], manifest.annotations.get(CREATED, ""))


async def _answers(questions: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits all coroutines at once and returns their results in order; on the first error cancels the others and raises it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def closest(label: UenvLabel, images: list[UenvImage], left_out: int = 0) -> UenvImage:
    """Returns the first of `images`, which all must have one digest, where `left_out` others of the label were not read; those do not
    matter for a label that is a digest.

    Raises NotFound for none, Rejected where digests differ (LabelAmbiguous) or may (LabelTooWide), and for what is no image (ImageRefused).
    """
    if left_out and len({image.digest for image in images}) < 2 and not (label.digest and images):
        raise Rejected(f"{label} names too many images, {left_out} of which were not read: add a version and a tag", reason="LabelTooWide")
    if not images:
        raise NotFound(f"no uenv matches {label}. Hint: `lattice uenv list` lists them", reason="ImageNotFound")
    if len({image.digest for image in images}) > 1:
        listed = ", ".join(f"{image.label} ({image.digest.removeprefix('sha256:')[:ID_LENGTH]})" for image in images[:10])
        raise Rejected(f"more than one uenv matches {label}: {listed}{', …' if len(images) > 10 else ''}", reason="LabelAmbiguous")
    found = images[0]
    if not _DIGEST.fullmatch(found.layer.digest) or found.layer.size < 0 or len(found.repository.path) > LONGEST_REPOSITORY:
        said = f"its file has the digest {found.layer.digest[:72]!r} and {found.layer.size} bytes, it lies in {found.repository.path[:80]}"
        raise Rejected(f"{found.label} is no image that can be pulled: {said}", reason="ImageRefused")
    return found


@asynccontextmanager
async def opened(options: SoftwareOptions, registry_auth: str, lists: KeptLists | None = None) -> AsyncIterator[UenvImages]:
    """Opens the site's registry with the login in the file `registry_auth` (empty: none), which is read again each time.

    Raises Rejected (NoRegistry, RegistryInvalid), Corrupt (RegistryAuthInvalid).
    """
    if not options.registry:
        said = "this site has no registry of software environments. Hint: an administrator sets software.registry of the LatticeConfig"
        raise Rejected(said, reason="NoRegistry")
    defaults = SoftwareDefaults(options.namespace, options.system)
    async with opened_registry(options.registry, registry_auth) as registry:
        yield UenvImages(registry, parse_address(options.registry).prefix, defaults, lists, options.registry)
