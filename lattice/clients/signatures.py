"""Reads what has been signed of an image in its registry: the tag `sha256-HEX.sig`, and what is attached to it as referrer."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lattice.clients.registry import Descriptor, Registry
from lattice.errors import NotFound, Rejected
from lattice.software.signatures import (
    BUNDLE_TYPE,
    SIGNATURE_ANNOTATION,
    SIMPLE_SIGNING,
    SignedClaim,
    claim_of,
    claims_of,
)  # fmt: skip

MOST_SIGNATURES: Final = 64
"""That are read of one image."""
LARGEST_PAYLOAD: Final = 256 * 1024


async def read_claims(registry: Registry, repository: str, digest: str) -> list[SignedClaim]:
    """Returns the claims that are attached to an image of this digest, 64 at the most and not verified, in the forms of cosign 2; empty: it
    is not signed.

    Raises as the registry does where it cannot be asked; what is gone or too large to be a signature is passed over.
    """
    claims: list[SignedClaim] = []
    with suppress(NotFound):
        _, manifest = await registry.manifest(repository, f"{digest.replace(':', '-')}.sig")
        claims += await _claims(registry, repository, manifest.layers)
    for attached in (await registry.referrers(repository, digest, ""))[:MOST_SIGNATURES]:  # cosign gives some of them another type
        with suppress(NotFound):
            _, manifest = await registry.manifest(repository, attached.digest)
            claims += await _claims(registry, repository, manifest.layers)
    return claims[:MOST_SIGNATURES]


async def _claims(registry: Registry, repository: str, layers: list[Descriptor]) -> list[SignedClaim]:
    """Returns the claims in layers of simple signing and in bundles; other layers are passed over."""
    claims: list[SignedClaim] = []
    for layer in layers[:MOST_SIGNATURES]:
        annotation = layer.annotations.get(SIGNATURE_ANNOTATION, "")
        wanted = layer.media_type == BUNDLE_TYPE or (layer.media_type == SIMPLE_SIGNING and annotation)
        payload = await _payload(registry, repository, layer) if wanted else None
        if payload is not None:
            claims += claims_of(payload) if layer.media_type == BUNDLE_TYPE else claim_of(payload, annotation)
    return claims


async def _payload(registry: Registry, repository: str, layer: Descriptor) -> bytes | None:
    """Returns the bytes of a signed document; None: it is too large, or gone."""
    try:
        return await registry.blob(repository, layer.digest, most=LARGEST_PAYLOAD)
    except (NotFound, Rejected):
        return None
