"""Reads names of OCI images, `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`, and finds the registry of the site that each of them means. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.views.cluster import ImageRegistry

LONGEST_NAME: Final = 512
LONGEST_REPOSITORY: Final = 255
DOCKER_HUB: Final = "docker.io"
DOCKER_HUB_URL: Final = "https://registry-1.docker.io"
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_REGISTRY: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?", re.ASCII)
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_PATHS: Final = ("/", "./", "../", "~")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class ContainerReference:
    """A parsed name of an OCI image: `text` as it was written; `registry` empty: the site's first one.

    Of tag and digest one is given; a digest wins over the tag beside it.
    """

    text: str
    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def version(self) -> str:
        """Returns what a registry is asked for: the digest, else the tag."""
        return self.digest or self.tag


@dataclass(frozen=True)
class ContainerPlace:
    """Names the place of an image: the registry by its name and its URL as the site has them, and the repository's path there."""

    registry: str
    url: str
    repository: str


def parse_container(text: str) -> ContainerReference:
    """Returns the parts of an image's name as Docker reads them, the registry in small letters; without tag and digest the tag is `latest`.

    The first part of the path is a registry where it has a dot or a colon, or is `localhost`. Raises Rejected (ImageInvalid).
    """
    if len(text) > LONGEST_NAME:
        raise _invalid(text[:40] + "…", f"it has {len(text)} characters (limit: {LONGEST_NAME})")
    if "://" in text:
        raise _invalid(text, f"leave out {text.partition('://')[0][:40]}://")
    if text.startswith(_PATHS):
        raise _invalid(text, "image files are not taken: push the image to a registry of the site")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _invalid(text, f"{digest[:80]!r} is no digest: write sha256: and 64 hexadecimal digits")
    registry, path = _split_registry(rest)
    repository, _, tag = path.partition(":")
    if ":" in path and not _TAG.fullmatch(tag):
        raise _invalid(text, f"{tag[:80]!r} is no tag")
    if registry and not _REGISTRY.fullmatch(registry):
        raise _invalid(text, f"{registry[:80]!r} is no registry: write HOST or HOST:PORT")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > LONGEST_REPOSITORY:
        raise _invalid(text, f"{repository[:80]!r} is no repository: lower-case letters, digits, and single . _ - between them")
    return ContainerReference(text, registry.lower(), repository, tag or ("" if digest else "latest"), digest)


def _split_registry(path: str) -> tuple[str, str]:
    """Returns the registry (empty: none is named) and what is behind it."""
    first, slash, rest = path.partition("/")
    return (first, rest) if slash and ("." in first or ":" in first or first == "localhost") else ("", path)


def place_of(reference: ContainerReference, registries: Sequence[ImageRegistry]) -> ContainerPlace:
    """Returns where an image lies, in the site's first registry if it names none (`library/` is added for Docker Hub); raises Rejected
    (ImageRefused) for a registry that the site has not listed.

    So no name that a user writes makes the operator or a node ask another host.
    """
    if not registries:
        said = f"{reference.text}: this site runs no OCI images of registries. Hint: an administrator sets software.registries"
        raise Rejected(f"{said} of the LatticeConfig", reason="ImageRefused")
    named = reference.registry or registries[0].name
    found = next((one for one in registries if one.name == named), None)
    if found is None:
        listed = ", ".join(one.name for one in registries)
        said = f"{reference.text}: the registry {named} is not one of this site's (software.registries: {listed})"
        raise Rejected(f"{said}; push the image to one of these", reason="ImageRefused")
    library = "library/" if named == DOCKER_HUB and "/" not in reference.repository else ""
    return ContainerPlace(named, url_of(found), library + reference.repository)


def url_of(registry: ImageRegistry) -> str:
    """Returns the URL of a registry of the site: the one that is configured, else https at its name."""
    return registry.url or (DOCKER_HUB_URL if registry.name == DOCKER_HUB else f"https://{registry.name}")


def _invalid(text: str, why: str) -> Rejected:
    """Returns the error that says why a text is no OCI image, and how one is written."""
    form = "[REGISTRY/]REPOSITORY[:TAG][@sha256:…], such as registry.example/team/app:1.0"
    return Rejected(f"{text!r} is no OCI image: {why}. An image is {form}", reason="ImageInvalid")
