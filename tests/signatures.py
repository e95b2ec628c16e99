"""Signatures that cosign has made once (see `tests/data/cosign/README.md`), and the image that they are of."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256

from lattice.software.signatures import PAYLOAD_TYPE, SIGNATURE_ANNOTATION, SIMPLE_SIGNING
from lattice.views.cluster import TrustedKey
from tests.containers import OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, BuiltImage, files, image, index, push, sha256

PLACE = Path(__file__).parent / "data" / "cosign"
KEY, OTHER_KEY = (TrustedKey(name=name, key=(PLACE / f"{name}.pub").read_text()) for name in ("site", "other"))


def signed_image(says: str = "signed") -> BuiltImage:
    """The image that was signed: the same bytes wherever it is made, since its layers are not compressed."""
    layer = files({"bin/app": f"#!/bin/sh\necho {says}\n"})
    both = [(image(layer, packing="", architecture=name, env=["FROM=image"]), name) for name in ("amd64", "arm64")]
    return index(*both)


def signature(name: str) -> dict[str, Any]:
    """A signature as cosign pushed it: `manifest` and `blobs` (by digest), of the kinds simple, other, referrer, bundle."""
    found: dict[str, Any] = json.loads((PLACE / f"{name}.json").read_text())
    return {"manifest": found["manifest"].encode(), "blobs": {key: base64.b64decode(body) for key, body in found["blobs"].items()}}


def attach(host: str, repository: str, name: str, digest: str) -> None:
    """Puts a signature where cosign puts it for an image of this digest, whether it is of that image or not."""
    found = signature(name)
    made = BuiltImage(found["manifest"], OCI_MANIFEST, found["blobs"])
    if name in ("simple", "other"):
        push(host, repository, f"{digest.replace(':', '-')}.sig", made)
        return
    push(host, repository, made.digest, made)
    kind = json.loads(made.manifest)["config"]["mediaType"]  # as cosign has it, where the registry has no API of referrers
    entry = {"mediaType": OCI_MANIFEST, "digest": made.digest, "size": len(made.manifest), "artifactType": kind}
    body = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}).encode()
    push(host, repository, digest.replace(":", "-"), BuiltImage(body, OCI_INDEX, {}))


def sign(host: str, repository: str, digest: str, key: EllipticCurvePrivateKey) -> None:
    """Signs an image as cosign does, with a key that is made for the test."""
    said = {"critical": {"identity": {"docker-reference": repository}, "image": {"docker-manifest-digest": digest}, "type": PAYLOAD_TYPE}}
    payload, config = json.dumps(said).encode(), b"{}"
    entry = {"mediaType": SIMPLE_SIGNING, "digest": sha256(payload), "size": len(payload)}
    made = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": {"mediaType": OCI_CONFIG, "digest": sha256(config), "size": len(config)},
        "layers": [entry | {"annotations": {SIGNATURE_ANNOTATION: base64.b64encode(key.sign(payload, ECDSA(SHA256()))).decode()}}],
    }  # fmt: skip
    blobs = {sha256(payload): payload, sha256(config): config}
    push(host, repository, f"{digest.replace(':', '-')}.sig", BuiltImage(json.dumps(made).encode(), OCI_MANIFEST, blobs))


__all__ = ["KEY", "OTHER_KEY", "attach", "sha256", "sign", "signature", "signed_image"]
