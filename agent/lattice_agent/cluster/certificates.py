"""Renews the node's certificates in place before their end, by certificate requests to the API server that the operator approves.

A renewal makes a new key. Key and request are kept beside the key file (`KEY.next`) until the certificate is issued; that is written beside
the certificate file (`CERTIFICATE.next`), and both are renamed into place. Whatever is interrupted, the old pair or the new one is whole:
`complete` finishes what was begun. Where a file cannot be written, the old pair stays in force.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lattice.daemon.logs import event
from lattice.daemon.node_certificates import AGENT, API, PEER, SHORTEST_SECONDS, SIGNERS, USAGES, request_name
from lattice.errors import AlreadyExists, LatticeError, NotFound, Rejected
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import CERTIFICATE_REQUESTS
from lattice.units import format_time
from lattice_agent.cluster.certificate_facts import fits_key, made_request, read_certificate
from lattice_agent.cluster.registration import Flaw
from lattice_agent.metrics import AgentMetrics
from lattice_agent.standalone.durable import sync_directory, write_durably

log = logging.getLogger(__name__)

LEFT_LEAST, LEFT_SPREAD = 1 / 3, 0.07
"""A renewal begins when this part of the certificate's life is left, a little earlier from node to node."""
ALARM_LEFT: Final = 1 / 4
"""A certificate with less than this part of its life left, not renewed yet, is reported as a flaw of the node."""
TOO_LONG: Final = 1.1
"""A certificate that lives longer than this multiple of the intended life is replaced soon: the first one, made by hand."""
LOOK_SECONDS: Final = 60.0
LOOK_PART: Final = 1 / 20
"""The longest time between two checks as a part of a certificate's life, where that is less than `LOOK_SECONDS`."""
FIRST_POLL, LONGEST_POLL = 0.5, 30.0
REFUSED_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 30.0
"""A request without an answer for longer than this is logged as waiting."""
NEXT: Final = ".next"
WORDS: Final = {API: "for the API server", PEER: "for agents and gateways"}
NOTHING = Flaw("", "")


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key; both may be one file."""

    certificate: Path
    key: Path

    @property
    def asked(self) -> Path:
        """Returns the file that holds a new key and its request until the certificate is issued."""
        return self.key.with_name(self.key.name + NEXT)

    @property
    def given(self) -> Path:
        """Returns the file that holds the new certificate until it is renamed into place."""
        return self.certificate.with_name(self.certificate.name + (NEXT if self.certificate != self.key else ".given"))


def complete(pair: Pair) -> None:
    """Finishes a renewal that was interrupted: a new certificate beside the old one takes its place, with its key.

    A new certificate that fits no kept key is deleted; so are leftovers of a renewal that was finished.
    """
    if not pair.given.exists():
        if pair.certificate.exists() and pair.asked.exists() and fits_key(pair.certificate.read_bytes(), _private(pair.asked.read_bytes())):
            _drop(pair)
        return
    certificate, asked = pair.given.read_bytes(), pair.asked.read_bytes() if pair.asked.exists() else b""
    if asked and fits_key(certificate, _private(asked)):
        _install(pair, certificate, _private(asked))
    else:
        pair.given.unlink()


def _install(pair: Pair, certificate: bytes, key: bytes) -> None:
    """Puts certificate and key into place; raises OSError: the old pair is then whole, or `complete` makes the new one so."""
    if pair.certificate == pair.key:
        write_durably(str(pair.key.parent), pair.key.name, certificate + key)
    else:
        draft = pair.key.name + ".draft"
        write_durably(str(pair.given.parent), pair.given.name, certificate)
        write_durably(str(pair.key.parent), draft, key)
        pair.key.with_name(draft).rename(pair.key)
        pair.given.rename(pair.certificate)
        sync_directory(str(pair.key.parent))
        sync_directory(str(pair.certificate.parent))
    _drop(pair)


def _drop(pair: Pair) -> None:
    """Removes the files of a renewal that is over; missing ones are passed over."""
    for path in (pair.given, pair.asked):
        with suppress(FileNotFoundError):
            path.unlink()


def _private(asked: bytes) -> bytes:
    """Returns the key from the content of a file that holds a key and a request; all of it where there is no request."""
    return asked.partition(b"-----BEGIN CERTIFICATE REQUEST-----")[0]


def hosts_of(node: str, address: str) -> tuple[str, ...]:
    """Returns the host names of the node's server certificate: its name, and the host of `address` where that is an IP or NODE.DOMAIN."""
    host = address.rpartition(":")[0].strip("[]")
    if not host or host == node:
        return (node,)
    with suppress(ValueError):
        return (node, str(ipaddress.ip_address(host)))
    return (node, host) if host.startswith(node + ".") else (node,)


class Renewal:
    """Renews one pair of files in time, for one use.

    `on_flaw` is called with a flaw when the certificate is near its end and cannot be renewed, and with an empty one when it is well.
    """

    def __init__(
        self, use: str, pair: Pair, node: str, hosts: Sequence[str], *, cluster: Cluster, clock: Clock, lifetime: float,
        metrics: AgentMetrics, on_flaw: Callable[[Flaw], None], early: float,
    ) -> None:  # fmt: skip
        """Asks for certificates of `lifetime` seconds; `early`, from 0 to 1, spreads the nodes' renewals."""
        self._use = use
        self._pair = pair
        self._node = node
        self._hosts = hosts
        self._cluster = cluster
        self._clock = clock
        self._lifetime = lifetime
        self._metrics = metrics
        self._on_flaw = on_flaw
        self._early = early
        self._begun = clock.monotonic()
        self._poll = FIRST_POLL
        self._said = ""
        self._waiting = math.inf
        self._refused = False

    async def run(self) -> None:
        """Renews the pair whenever that is due, until cancelled."""
        while True:
            await self._clock.sleep(await self.turn())

    async def turn(self) -> float:
        """Reads the certificate and takes one step of a renewal, if one is due; returns the seconds until the next check.

        Failures are logged, and reported as a flaw near the certificate's end, or at once where it cannot be read; another node's is
        only logged. Nothing is raised.
        """
        try:
            begin, end = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            self._complain("CertificateUnreadable", str(error), 0.0, 1.0)
            return LOOK_SECONDS
        except Rejected as error:
            self._complain(error.reason, error.message, math.inf, 1.0)
            return LOOK_SECONDS
        self._metrics.certificate_expiry.labels(self._node, self._use).set(end)
        now, life = self._clock.now(), min(end - begin, self._lifetime)
        if self._due(now, end, life):
            return await self._renew(end - now, life)
        self._poll, self._said = FIRST_POLL, ""
        self._on_flaw(NOTHING)
        return max(0.05, min(LOOK_SECONDS, life * LOOK_PART, end - now - self._threshold(life)))

    def _threshold(self, life: float) -> float:
        """Returns how many seconds before its end a certificate with this life is renewed."""
        return life * (LEFT_LEAST + LEFT_SPREAD * self._early)

    def _due(self, now: float, end: float, life: float) -> bool:
        """Tells whether a certificate is to be renewed now: little of its life is left, or it was made for much longer than intended.

        `end`: seconds since the epoch.
        """
        if end - now <= self._threshold(life):
            return True
        waited = self._clock.monotonic() - self._begun
        return end - now > TOO_LONG * self._lifetime and waited >= self._early * self._lifetime / 100

    async def _renew(self, left: float, life: float) -> float:
        """Takes the next step of a renewal: asks for a certificate, or installs the one that was given.

        Returns the seconds until the next step; a failure is counted and complained about. `left`, `life`: seconds of the present
        certificate.
        """
        try:
            certificate = await self._asked()
            if certificate is None:
                return self._wait(left, life)
            end = await asyncio.to_thread(self._take, certificate)
        except (OSError, LatticeError) as error:
            reason = error.reason if isinstance(error, LatticeError) else "CertificateNotWritten"
            self._metrics.certificate_renewals.labels(self._node, self._use, "refused" if reason == "RenewalRefused" else "failed").inc()
            self._complain(reason, str(error), left, life)
            return min(REFUSED_SECONDS, life / 20)
        self._waiting, self._refused = math.inf, False
        self._metrics.certificate_renewals.labels(self._node, self._use, "done").inc()
        event(log, "CertificateRenewed", node=self._node, use=self._use, file=str(self._pair.certificate), until=format_time(end))
        return FIRST_POLL

    def _wait(self, left: float, life: float) -> float:
        """Returns the seconds until the request's answer is read again; logs a complaint when the answer is late.

        `left` and `life` are the seconds until the present certificate's end, and its whole life.
        """
        now = self._clock.monotonic()
        self._waiting = min(self._waiting, now)
        if now - self._waiting >= min(PATIENCE_SECONDS, life / 12):
            self._complain("RenewalWaits", f"request {request_name(self._node, self._use)} is not answered yet", left, life)
        self._poll = min(LONGEST_POLL, life / 24, 2 * self._poll)
        return self._poll

    def _complain(self, reason: str, message: str, left: float, life: float) -> None:
        """Logs a complaint, unless it is the last one again; reports it as a flaw where `left` is less than a quarter of `life`.

        Both are in seconds: until the certificate's end (0: it cannot be read), and its whole life.
        """
        if left <= ALARM_LEFT * life:
            end = format_time(self._clock.now() + left)
            ends = (
                f"its certificate {WORDS[self._use]} ({self._pair.certificate}) ends at {end}" if left else "its certificate cannot be read"
            )
            self._on_flaw(Flaw(reason[:64], f"{ends}: {message}"[:1000]))
        if message == self._said:
            return
        self._said = message
        level = logging.INFO if reason == "RenewalWaits" else logging.WARNING
        event(log, "CertificateNotRenewed", level, node=self._node, use=self._use, reason=reason, message=message)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> tuple[float, float]:
        """Returns when the certificate begins and ends, seconds since the epoch, after a renewal that broke off was completed.

        Raises Rejected where it is not this node's.
        """
        complete(self._pair)
        found = read_certificate(self._pair.certificate.read_bytes())
        if AGENT + self._node not in found.names:
            raise Rejected(f"{self._pair.certificate} is not of {AGENT}{self._node}: it is left alone", reason="CertificateForeign")
        return found.begins, found.ends

    def _take(self, certificate: bytes) -> float:
        """Puts the issued certificate and its key into place; returns its end, seconds since the epoch.

        Raises Rejected for a certificate that does not belong to the kept key.
        """
        asked = self._pair.asked.read_bytes()
        if not fits_key(certificate, _private(asked)):
            self._pair.asked.unlink()
            raise Rejected("the certificate that was given does not belong to the key that asked for it", reason="CertificateUnusable")
        _install(self._pair, certificate, _private(asked))
        return read_certificate(certificate).ends

    def _request(self) -> bytes:
        """Returns the PEM request kept beside the key, made anew with a new key where there is none."""
        path = self._pair.asked
        if not path.exists():
            write_durably(str(path.parent), path.name, made_request(self._node, self._hosts))
        return b"".join(path.read_bytes().partition(b"-----BEGIN CERTIFICATE REQUEST-----")[1:])

    # ── the API server ──────────────────────────────────────────────────────────────────────────────────────────

    async def _asked(self) -> bytes | None:
        """Returns the certificate issued for the request; None while there is none, or the request object is of a key that was lost.
        Creates the object where it is missing.

        Raises Rejected when the operator has denied it; a new key and request follow once that object is gone.
        """
        request = base64.b64encode(await asyncio.to_thread(self._request)).decode()
        try:
            found = await self._cluster.get(CERTIFICATE_REQUESTS, request_name(self._node, self._use))
        except NotFound:
            if self._refused:  # what was refused is not asked again word for word
                self._refused = False
                await asyncio.to_thread(self._pair.asked.unlink)
                return None
            await self._ask(request)
            return None
        if found["spec"]["request"] != request:  # made with a key that was lost: the operator deletes it soon
            return None
        status = found.get("status") or {}
        if status.get("certificate"):
            return base64.b64decode(status["certificate"])
        for one in status.get("conditions") or ():
            if one["type"] in ("Denied", "Failed"):
                self._refused, self._waiting = True, math.inf
                raise Rejected(one.get("message") or one.get("reason") or one["type"], reason="RenewalRefused")
        return None

    async def _ask(self, request: str) -> None:
        """Creates the certificate request object with this request (base64); one that exists already is left as it is."""
        body: dict[str, Any] = {
            "apiVersion": CERTIFICATE_REQUESTS.api_version,
            "kind": CERTIFICATE_REQUESTS.kind,
            "metadata": {"name": request_name(self._node, self._use)},
            "spec": {
                "request": request,
                "signerName": SIGNERS[self._use],
                "usages": list(USAGES[self._use]),
                "expirationSeconds": max(SHORTEST_SECONDS, int(self._lifetime)),
            },
        }
        with suppress(AlreadyExists):  # asked in this moment by ourselves, before an answer was lost
            await self._cluster.create(CERTIFICATE_REQUESTS, body)


def both(on_flaw: Callable[[Flaw], None]) -> dict[str, Callable[[Flaw], None]]:
    """Returns a function for each use that takes its flaws and joins them: `on_flaw` gets an empty one once both certificates are well."""
    found = {API: NOTHING, PEER: NOTHING}

    def heard(use: str) -> Callable[[Flaw], None]:
        """Returns the function that takes the flaws of one use."""

        def hear(flaw: Flaw) -> None:
            """Notes the flaw of one use, and passes on the first flaw of any use, or an empty one."""
            found[use] = flaw
            on_flaw(next((one for one in found.values() if one.message), NOTHING))

        return hear

    return {use: heard(use) for use in found}
