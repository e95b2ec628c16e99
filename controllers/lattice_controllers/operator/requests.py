"""Answers the certificate requests of nodes: approves or denies each, and signs it where this operator has the agents' authority.

Only a renewal is approved: the node's own user as subject, and no server name but its own. Answered requests are deleted after a minute, so
that a node has at most one a use, and a stolen key at most two objects.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.node_certificates import (
    AGENT,
    API,
    GROUP,
    LIFETIME_SECONDS,
    PEER,
    REQUEST_PREFIX,
    SHORTEST_SECONDS,
    SIGNERS,
    USAGES,
    request_name,
)
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound, Rejected, Retry
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import CERTIFICATE_REQUESTS
from lattice.units import format_time, parse_time
from lattice.views import Node
from lattice_controllers.operator.agents import FORGET
from lattice_controllers.operator.metrics import OperatorMetrics

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger(__name__)

KEPT_SECONDS: Final = 60.0
"""Longest time that an answered request is kept for its agent to read; the agent reuses the name for its next request."""
KEPT_PART: Final = 1 / 6
"""The same, as a part of a certificate's life, where that is shorter."""
BACKDATED_SECONDS: Final = 300.0
"""How far before now a certificate begins to be valid, for machines whose clocks are behind."""
CURVES: Final = ("secp256r1", "secp384r1")


@dataclass(frozen=True)
class Signing:
    """PEM files of the agents' authority and its key, read at each signature, and the life of a node's certificate in seconds.

    Without files, approved requests are signed by somebody else.
    """

    certificate: str = ""
    key: str = ""
    lifetime: float = float(LIFETIME_SECONDS)


BY_ANOTHER: Final = Signing()


class Requests:
    """Reconciles the certificate requests of nodes.

    `nodes` is a live view of the LatticeNodes by name; `is_forgotten` tells whether a node's name was forgotten.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, nodes: Mapping[str, Node], is_forgotten: Callable[[str], bool], signing: Signing,
        measured: OperatorMetrics,
    ) -> None:  # fmt: skip
        self.queue = KeyedQueue(self.reconcile, clock, workers=4, name="requests")
        self.informer: Informer[dict[str, Any]] = Informer(cluster, CERTIFICATE_REQUESTS, clock=clock, on_change=self._on_request)
        self._cluster = cluster
        self._clock = clock
        self._nodes = nodes
        self._is_forgotten = is_forgotten
        self._signing = signing
        self._kept = min(KEPT_SECONDS, signing.lifetime * KEPT_PART)
        self._measured = measured

    def _on_request(self, change: Change[dict[str, Any]]) -> None:
        """Enqueues a certificate request that changed or vanished, if its name and signer are those of a node's; ignores all others."""
        found = change.new or change.old
        if found is not None and change.key.startswith(REQUEST_PREFIX) and found["spec"]["signerName"] in SIGNERS.values():
            self.queue.add(change.key)

    async def reconcile(self, name: str) -> float | None:
        """Answers one certificate request: approves or denies it, and signs an approved one for peers where this operator has the
        authority.

        An answered one is deleted when its answer is old enough. Returns the seconds until that is to be checked; None: a change wakes
        it.
        """
        found = self.informer.objects.get(name)
        if found is None:
            return None
        status = found.get("status") or {}
        said = {one["type"] for one in status.get("conditions") or ()}
        if status.get("certificate") or said & {"Denied", "Failed"}:
            return await self._put_away(found)
        if "Approved" not in said:
            found = await self._cluster.get(CERTIFICATE_REQUESTS, name)
            refusal = await asyncio.to_thread(self._refusal, found)
            found = await self._decide(found, refusal)
            if refusal:
                return self._kept
        if found["spec"]["signerName"] == SIGNERS[PEER] and self._signing.key:
            await self._sign(found)
        return None

    def _refusal(self, found: Mapping[str, Any]) -> str:
        """Returns the sentence why a request is denied; empty: it is a node's renewal of its own certificate."""
        node = self._nodes.get(str(found["spec"].get("username", "")).removeprefix(AGENT))
        return refusal_of(found, node, forgotten=node is not None and self._is_forgotten(node.metadata.name))

    async def _put_away(self, found: Mapping[str, Any]) -> float | None:
        """Deletes an answered request once its agent has had the time to read the answer, at most a minute after the answer.

        Returns the seconds that are left until then; None: it is deleted.
        """
        metadata = found["metadata"]
        told = [one["lastTransitionTime"] for one in found["status"].get("conditions") or () if one.get("lastTransitionTime")]
        left = parse_time(max(told, default=metadata["creationTimestamp"])) + self._kept - self._clock.now()
        if left > 0:
            return left
        with contextlib.suppress(NotFound):
            await self._cluster.delete(CERTIFICATE_REQUESTS, metadata["name"], uid=metadata["uid"])
        return None

    async def _decide(self, found: dict[str, Any], refusal: str) -> dict[str, Any]:
        """Approves a request, or with a refusal (not empty) denies it, counts and logs that; returns the object as written."""
        word, reason = ("Denied", "NotTheNodesOwn") if refusal else ("Approved", "NodeRenewal")
        message = refusal or "the node renews its own certificate"
        at = format_time(self._clock.now())
        verdict = {"type": word, "status": "True", "reason": reason, "message": message[:1000], "lastTransitionTime": at}
        body = {**found, "status": {**(found.get("status") or {}), "conditions": [verdict]}}
        name = found["metadata"]["name"]
        written = await self._cluster.replace(CERTIFICATE_REQUESTS, name, body, subresource="approval")
        self._measured.certificate_requests.labels(word).inc()
        level = logging.WARNING if refusal else logging.INFO
        event(log, f"CertificateRequest{word}", level, request=name, user=found["spec"].get("username"), message=message)
        return written

    async def _sign(self, found: dict[str, Any]) -> None:
        """Signs an approved request with the agents' authority in a thread, for the shorter of the times that it asks for and that the
        settings allow, and writes the certificate into its status.

        Raises Retry while the authority's files cannot be read, Rejected where they do not belong together.
        """
        name, asked = found["metadata"]["name"], found["spec"].get("expirationSeconds") or LIFETIME_SECONDS
        life = min(float(asked), self._signing.lifetime)
        pem = await asyncio.to_thread(sign, base64.b64decode(found["spec"]["request"]), self._signing, self._clock.now(), life)
        body = {**found, "status": {**(found.get("status") or {}), "certificate": base64.b64encode(pem).decode()}}
        await self._cluster.replace(CERTIFICATE_REQUESTS, name, body, subresource="status")
        event(log, "CertificateSigned", request=name, user=found["spec"].get("username"), until=format_time(self._clock.now() + life))


def refusal_of(found: Mapping[str, Any], node: Node | None, *, forgotten: bool) -> str:
    """Returns the sentence why a certificate request (`found`) is denied; empty: it is a node's renewal of its own certificate.

    `node` is the LatticeNode of the requester, None: there is none; `forgotten`: its name was forgotten.
    """
    spec = found["spec"]
    user, use = str(spec.get("username", "")), next((use for use, signer in SIGNERS.items() if signer == spec["signerName"]), "")
    name = user.removeprefix(AGENT)
    if not user.startswith(AGENT) or GROUP not in (spec.get("groups") or ()):
        return f"{user or 'nobody'} is no agent: agents alone ask for certificates of nodes"
    if found["metadata"]["name"] != request_name(name, use):
        return f"the request of {user} is called {request_name(name, use)}"
    if node is None or forgotten or FORGET in node.metadata.annotations:
        return f"node {name} is not registered, or was forgotten"
    asked = spec.get("expirationSeconds")
    if asked is None or not SHORTEST_SECONDS <= asked <= LIFETIME_SECONDS:
        return f"expirationSeconds is {asked}: between {SHORTEST_SECONDS} and {LIFETIME_SECONDS} (30 days)"
    if sorted(spec.get("usages") or ()) != sorted(USAGES[use]):
        return f"usages are {', '.join(spec.get('usages') or ())}: they must be {', '.join(USAGES[use])}"
    return _content_refusal(base64.b64decode(spec["request"]), user, name, use, node.status.address)


def _content_refusal(pem: bytes, user: str, node: str, use: str, address: str) -> str:
    """Returns a sentence on what a PEM request claims that is not the node's own (key, subject, names); empty: nothing.

    `user` and `node` are the names that it may have, `use` is API or PEER, `address` the HOST:PORT that the LatticeNode shows.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        request = x509.load_pem_x509_csr(pem)
        key, names = request.public_key(), {extension.oid: extension for extension in request.extensions}
        subject = sorted((attribute.rfc4514_attribute_name, str(attribute.value)) for attribute in request.subject)
    except (ValueError, TypeError) as error:
        return f"the request cannot be read: {error}"
    if not request.is_signature_valid:
        return "the request is not signed with the key that it names"
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        return f"the key is on none of the curves {', '.join(CURVES)}"
    if subject != [("CN", user), ("O", GROUP)]:
        return f"the subject is {request.subject.rfc4514_string()}: it must be O={GROUP}, CN={user}"
    san = names.pop(x509.SubjectAlternativeName.oid, None)
    if names:
        return f"it asks for the extension {next(iter(names)).dotted_string}"
    hosts = [_text(one) for one in san.value] if san is not None and isinstance(san.value, x509.SubjectAlternativeName) else []
    host = address.rpartition(":")[0].strip("[]")
    allowed = set() if use == API else {f"DNS:{node}"} | _address(node, host)
    if strange := [one for one in hosts if one not in allowed]:
        return f"it asks for {', '.join(strange)}: a node's certificate is for {', '.join(sorted(allowed)) or 'no host name or address'}"
    return ""


def _address(node: str, host: str) -> set[str]:
    """Returns the host of a node's address as names of a certificate: its IP, or a DNS name that begins with the node's and a dot.

    Empty for any other host.
    """
    try:
        return {f"IP:{ipaddress.ip_address(host)}"}
    except ValueError:
        return {f"DNS:{host}"} if host.startswith(node + ".") else set()


def _text(name: x509.GeneralName) -> str:
    """Returns a name of a certificate as text with its kind: DNS:node-1, IP:10.0.0.1, or the class of any other."""
    from cryptography import x509

    kind = "DNS" if isinstance(name, x509.DNSName) else "IP" if isinstance(name, x509.IPAddress) else type(name).__name__
    return f"{kind}:{name.value}"


def sign(pem: bytes, signing: Signing, now: float, life: float) -> bytes:
    """Returns the PEM certificate that the agents' authority signs for a PEM request, valid until `life` seconds after `now` at most.

    It holds the request's subject, key and extensions, and ends with the authority's own. Raises Retry while the authority's files cannot
    be read, Rejected where they do not belong together.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        authority = x509.load_pem_x509_certificate(Path(signing.certificate).read_bytes())
        key = serialization.load_pem_private_key(Path(signing.key).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise Retry(f"the agents' authority cannot be read: {error}", reason="AuthorityUnreadable") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
        raise Rejected(f"{signing.key} is not the elliptic curve key of {signing.certificate}", reason="AuthorityUnreadable")
    request = x509.load_pem_x509_csr(pem)
    end = min(dt.datetime.fromtimestamp(now + life, dt.UTC), authority.not_valid_after_utc)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(authority.subject)
        .public_key(request.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(now - BACKDATED_SECONDS, dt.UTC))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for extension in request.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
