"""The site's demands on software: whose images must be signed, and which devices of its nodes work in images may name. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.errors import Rejected
from lattice.views.allocation import SoftwareRequirement
from lattice.views.cluster import SignatureRule

EVERYBODY: Final = "*"
EVERY_KIND: Final = "*"


def wants_signature(asked: SoftwareRequirement, tenant: str, vcluster: str, rule: SignatureRule) -> bool:
    """Tells whether the images of work must be signed: it asks for that, or the site does for its tenant or its vcluster."""
    named = {tenant, EVERYBODY} & set(rule.tenants) if tenant else EVERYBODY in rule.tenants
    return asked.signature or bool(named) or vcluster in rule.vclusters or EVERYBODY in rule.vclusters


def check_devices(names: Sequence[str], kinds: Sequence[str]) -> None:
    """Raises Rejected (ImageRefused) for the CDI name (`VENDOR/CLASS=NAME`) of a device whose kind (`VENDOR/CLASS`) is none of these; `*`
    is every kind.
    """
    if EVERY_KIND in kinds:
        return
    for name in names:
        if name.partition("=")[0] not in kinds:
            known = f"of {', '.join(sorted(kinds))}" if kinds else "of no kind"
            said = f"spec.environment.devices names {name!r}, and work may name devices {known} on this site (software.containerDevices)"
            raise Rejected(f"{said}; leave it out, or ask the operators", reason="ImageRefused")
