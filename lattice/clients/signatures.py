"""Reads what has been signed of an image in its registry: the tag `sha256-HEX.sig`, and what is attached to it as referrer."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lattice.clients.registry import Descriptor, Registry
from lattice.errors import NotFound, Rejected
from lattice.software.claims import SignedClaim
from lattice.software.signatures import (
    BUNDLE_TYPE,
    SIGNATURE_ANNOTATION,
    SIMPLE_SIGNING,
    claim_of,
    claims_of,
)  # fmt: skip

MOST_SIGNATURES: Final = 64
"""That are read of one image."""
LARGEST_PAYLOAD: Final = 256 * 1024
MOST_BYTES: Final = 1 << 20
"""Of documents that are read of one image."""


async def read_claims(registry: Registry, repository: str, digest: str) -> list[SignedClaim]:
    """Returns the claims that are attached to an image of this digest, 64 at the most and not verified, in the forms of cosign 2; empty: it
    is not signed.

    Reads each document once, 64 and 1 MiB of them at the most. Raises as the registry does where it cannot be asked; what is gone or
    too large to be a signature is passed over.
    """
    reading = _Reading(registry, repository)
    with suppress(NotFound):
        _, manifest = await registry.manifest(repository, f"{digest.replace(':', '-')}.sig")
        await reading.take_layers(manifest.layers)
    for attached in (await registry.referrers(repository, digest, ""))[:MOST_SIGNATURES]:  # cosign gives some of them another type
        if reading.is_full or not reading.is_new(attached.digest):
            continue
        with suppress(NotFound):
            _, manifest = await registry.manifest(repository, attached.digest)
            await reading.take_layers(manifest.layers)
    return reading.claims[:MOST_SIGNATURES]


class _Reading:
    """The claims of one image that have been read so far: whoever may push to its repository chooses how many there are, and how large."""

    def __init__(self, registry: Registry, repository: str) -> None:
        self.claims: list[SignedClaim] = []
        self._registry, self._repository = registry, repository
        self._seen: set[str] = set()
        self._documents = self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Tells whether no more documents are read: 64 claims or documents, or 1 MiB of documents, have been."""
        return max(len(self.claims), self._documents) >= MOST_SIGNATURES or self._bytes >= MOST_BYTES

    def is_new(self, digest: str) -> bool:
        """Tells whether a manifest or document of this digest has not been asked for yet, and notes that it has been now."""
        new = digest not in self._seen
        self._seen.add(digest)
        return new

    async def take_layers(self, layers: list[Descriptor]) -> None:
        """Reads the claims in layers of simple signing and in bundles, as long as it is not full; other layers are passed over."""
        for layer in layers[:MOST_SIGNATURES]:
            annotation = layer.annotations.get(SIGNATURE_ANNOTATION, "")
            wanted = layer.media_type == BUNDLE_TYPE or (layer.media_type == SIMPLE_SIGNING and annotation)
            if not wanted or self.is_full or not self.is_new(f"{layer.digest} {annotation}"):
                continue
            payload = await self._payload(layer)
            if payload is not None:
                self.claims += claims_of(payload) if layer.media_type == BUNDLE_TYPE else claim_of(payload, annotation)

    async def _payload(self, layer: Descriptor) -> bytes | None:
        """Returns the bytes of a signed document, and counts them; None: it is too large, or gone."""
        self._documents += 1
        try:
            payload = await self._registry.blob(self._repository, layer.digest, most=LARGEST_PAYLOAD)
        except (NotFound, Rejected):
            return None
        self._bytes += len(payload)
        return payload
