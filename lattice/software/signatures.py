"""Judges signatures of images as cosign makes them: simple signing payloads, and bundles with an in-toto statement; pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from lattice.errors import Corrupt, Rejected
from lattice.software.claims import SignedClaim
from lattice.views.cluster import TrustedKey

SIMPLE_SIGNING: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNATURE_ANNOTATION: Final = "dev.cosignproject.cosign/signature"
PAYLOAD_TYPE: Final = "cosign container image signature"
STATEMENT_TYPE: Final = "application/vnd.in-toto+json"
SIGN_PREDICATE: Final = "https://sigstore.dev/cosign/sign/v1"
PublicKey = EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey


class _Image(msgspec.Struct):
    digest: str = msgspec.field(name="docker-manifest-digest")


class _Critical(msgspec.Struct):
    image: _Image
    type: str


class _SimplePayload(msgspec.Struct):
    critical: _Critical


class _Subject(msgspec.Struct):
    digest: dict[str, str]


class _Statement(msgspec.Struct, rename="camel"):
    subject: list[_Subject]
    predicate_type: str


class _EnvelopeSignature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_EnvelopeSignature]


class _Bundle(msgspec.Struct, rename="camel"):
    dsse_envelope: _Envelope


def claim_of(payload: bytes, annotation: str) -> list[SignedClaim]:
    """Returns the claim of a simple signing payload and its signature in base64; empty: that is no base64."""
    try:
        return [SignedClaim(payload, base64.b64decode(annotation, validate=True))]
    except (binascii.Error, ValueError):
        return []


def claims_of(bundle: bytes) -> list[SignedClaim]:
    """Returns the claims of a bundle, one for each signature, none of them verified; empty where it does not read."""
    try:
        envelope = msgspec.json.decode(bundle, type=_Bundle).dsse_envelope
        payload = base64.b64decode(envelope.payload, validate=True)
        signatures = [base64.b64decode(one.sig, validate=True) for one in envelope.signatures]
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        return []
    return [SignedClaim(payload, signature, envelope.payload_type) for signature in signatures]


def check_signed(source: str, digest: str, claims: Sequence[SignedClaim], keys: Sequence[TrustedKey]) -> str:
    """Returns the name of the first of the keys that has signed an image of this digest; `source` names the image in messages.

    Raises Rejected (ImageRefused) where none of the claims is of one of the keys and about the digest, or there are no keys, Corrupt where
    a key is none.
    """
    if not keys:
        said = f"{source} must be signed, and this site trusts no key. Hint: an administrator sets software.trustedKeys"
        raise Rejected(said, reason="ImageRefused")
    listed = ", ".join(key.name for key in keys)
    others: set[str] = set()
    for key in keys:
        public = _public_key(key)
        for claim in claims:
            if _is_valid(public, claim):
                named = _named_digests(claim)
                if digest in named:
                    return key.name
                others |= named
    if others:
        said = f"{source} is {digest}, and the signature that is attached to it is for {', '.join(sorted(others)[:3])}"
    elif claims:
        said = f"{source} ({digest}) is signed by none of this site's keys ({listed})"
    else:
        said = f"{source} ({digest}) is not signed, and work of this kind runs images signed by {listed} alone"
    raise Rejected(f"{said}. Hint: `cosign sign --key KEY IMAGE@{digest[:19]}…`, or name a signed image", reason="ImageRefused")


def _public_key(key: TrustedKey) -> PublicKey:
    """Returns a key of the site, read from PEM; raises Corrupt (KeyInvalid) where it is no public key of a kind that cosign knows."""
    try:
        found = load_pem_public_key(key.key.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Corrupt(f"the key {key.name} of software.trustedKeys is no public key in PEM", reason="KeyInvalid") from error
    if not isinstance(found, PublicKey):
        raise Corrupt(f"the key {key.name} of software.trustedKeys is neither ECDSA, RSA nor Ed25519", reason="KeyInvalid")
    return found


def _is_valid(key: PublicKey, claim: SignedClaim) -> bool:
    """Tells whether a key has signed a claim."""
    try:
        if isinstance(key, EllipticCurvePublicKey):
            key.verify(claim.signature, claim.signed, ECDSA(SHA256()))
        elif isinstance(key, RSAPublicKey):
            key.verify(claim.signature, claim.signed, PKCS1v15(), SHA256())
        else:
            key.verify(claim.signature, claim.signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _named_digests(claim: SignedClaim) -> set[str]:
    """Returns the digests of the images that a claim is about; empty: it is about something else."""
    try:
        if not claim.type:
            critical = msgspec.json.decode(claim.payload, type=_SimplePayload).critical
            return {critical.image.digest} if critical.type == PAYLOAD_TYPE else set()
        statement = msgspec.json.decode(claim.payload, type=_Statement)
    except (msgspec.MsgspecError, RecursionError):
        return set()
    if claim.type != STATEMENT_TYPE or statement.predicate_type != SIGN_PREDICATE:
        return set()
    return {f"sha256:{subject.digest['sha256']}" for subject in statement.subject if "sha256" in subject.digest}
