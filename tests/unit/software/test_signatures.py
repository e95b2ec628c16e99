"""Signatures that cosign has made count for the image that they are of, by a key that the site trusts, and for nothing else."""

from __future__ import annotations

import json

import pytest

from lattice.errors import Corrupt, Rejected
from lattice.software.claims import SignedClaim
from lattice.software.signatures import SIGNATURE_ANNOTATION, check_signed, claim_of, claims_of
from lattice.software.site_rules import wants_signature
from lattice.views.allocation import SoftwareRequirement
from lattice.views.cluster import SignatureRule, TrustedKey
from tests.signatures import KEY, OTHER_KEY, signature, signed_image

DIGEST = signed_image().digest


def claims(name: str) -> list[SignedClaim]:
    """The claims of a signature that cosign has made."""
    found = signature(name)
    entry = json.loads(found["manifest"])["layers"][0]
    payload = found["blobs"][entry["digest"]]
    annotation = entry.get("annotations", {}).get(SIGNATURE_ANNOTATION)
    return claim_of(payload, annotation) if annotation else claims_of(payload)


@pytest.mark.parametrize("name", ["simple", "referrer", "bundle"])
def test_what_cosign_signs_is_valid_for_its_key(name: str) -> None:
    assert check_signed("app", DIGEST, claims(name), (OTHER_KEY, KEY)) == "site"


@pytest.mark.parametrize("name", ["simple", "referrer", "bundle"])
def test_another_digest_another_key_and_no_signature_are_refused_with_their_own_sentence(name: str) -> None:
    for digest, given, keys, said in (
        ("sha256:" + "1" * 64, claims(name), (KEY,), f"the signature that is attached to it is for {DIGEST}"),
        (DIGEST, claims(name), (OTHER_KEY,), r"is signed by none of this site's keys \(other\)"),
        (DIGEST, claims("other"), (KEY,), r"is signed by none of this site's keys \(site\)"),
        (DIGEST, [], (KEY,), r"is not signed, .* signed by site alone"),
        (DIGEST, claims(name), (), r"trusts no key. Hint: an administrator sets software\.trustedKeys"),
    ):
        with pytest.raises(Rejected, match=said) as refused:
            check_signed("app", digest, given, keys)
        assert refused.value.reason == "ImageRefused"


@pytest.mark.parametrize("name", ["simple", "bundle"])
def test_a_changed_byte_makes_a_signature_worthless(name: str) -> None:
    [claim] = claims(name)
    for forged in (
        SignedClaim(claim.payload.replace(b"cosign", b"cosagn"), claim.signature, claim.type),
        SignedClaim(claim.payload, claim.signature[:-1] + b"\0", claim.type),
        SignedClaim(claim.payload, b"", claim.type),
        SignedClaim(claim.payload, claim.signature, "" if claim.type else "application/vnd.in-toto+json"),
    ):
        with pytest.raises(Rejected, match="signed by none"):
            check_signed("app", DIGEST, [forged], (KEY,))


def test_what_is_no_bundle_and_no_key_is_said_so() -> None:
    assert [claims_of(raw) for raw in (b"", b"{}", b"[" * 9999, b'{"dsseEnvelope": 1}')] == [[], [], [], []]
    assert claim_of(b"{}", "no base64!") == []
    with pytest.raises(Corrupt, match=r"the key broken of software\.trustedKeys is no public key"):
        check_signed("app", DIGEST, claims("simple"), (TrustedKey(name="broken", key="-----BEGIN PUBLIC KEY-----\nx"),))


@pytest.mark.parametrize(
    ("asked", "tenants", "vclusters", "expected"),
    [
        (False, (), (), False), (True, (), (), True), (False, ("physics",), (), True), (False, ("bio",), ("gpu",), False),
        (False, (), ("hpc",), True), (False, ("*",), (), True), (False, (), ("*",), True),
    ],
)  # fmt: skip
def test_the_work_its_tenant_or_its_vcluster_requires_signatures(
    asked: bool, tenants: tuple[str, ...], vclusters: tuple[str, ...], expected: bool
) -> None:
    rule = SignatureRule(tenants=tenants, vclusters=vclusters)
    assert wants_signature(SoftwareRequirement(signature=asked), "physics", "hpc", rule) is expected
