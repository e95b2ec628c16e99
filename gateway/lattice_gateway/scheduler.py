"""The scheduler as the gateway sees it: the leader's Lease says where it answers, mTLS says who asks and who answers."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import quote

import aiohttp

from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEASES
from lattice.views import Lease
from lattice_gateway.agents import AgentFiles

LEASE, NAMESPACE = "lattice-scheduler", "lattice-system"
ANNOTATION: Final = "lattice.dev/answers"
"""On the Lease: the URL at which its holder answers."""
SERVER_NAME: Final = "lattice-scheduler"
"""The host name in the scheduler's certificate, whatever its address."""
CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 30.0
_CONTEXT: Final = re.compile(r" ssl:(?:<[^>]*>|\w+)")
"""What the HTTP client's sentences say of its TLS, which is nothing for people."""


class Scheduler(Protocol):
    """Who answers questions about the queue."""

    async def ask(self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: bytes = b"") -> bytes:
        """The answer as JSON; Retry while no scheduler answers, else the error that it gives."""
        raise NotImplementedError


class LeadingScheduler:
    """The scheduler that holds the Lease."""

    def __init__(self, cluster: Cluster, files: AgentFiles) -> None:
        self._cluster = cluster
        self._files = files

    async def ask(self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: bytes = b"") -> bytes:
        """The leader's answer; a standby that still stands in the Lease is asked once, then the Lease is read again."""
        try:
            return await self._asked(await self._address(), method, path, query, body)
        except Retry as error:
            if error.reason != "NotLeading":
                raise
        return await self._asked(await self._address(), method, path, query, body)

    async def _address(self) -> str:
        try:
            lease = await self._cluster.get(LEASES, LEASE, NAMESPACE, type=Lease)
        except NotFound:
            raise Retry("the scheduler has never run on this cluster", reason="SchedulerAway") from None
        if not lease.spec.holder_identity:
            raise Retry(f"no scheduler leads since {lease.spec.renew_time or 'the start'}", reason="SchedulerAway")
        address = lease.metadata.annotations.get(ANNOTATION, "")
        if not address.startswith("https://"):
            raise Retry("the scheduler that leads has not said where it answers (--answers-listen)", reason="SchedulerAway")
        return address

    async def _asked(self, address: str, method: str, path: tuple[str, ...], query: Mapping[str, str], body: bytes) -> bytes:
        url = address.rstrip("/") + "".join("/" + quote(part, safe="") for part in path)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, url, params=query, data=body or None, ssl=self._context(), server_hostname=SERVER_NAME) as response,
            ):
                content = await response.read()
                if response.status >= 300:
                    raise error_of(response.status, content)
                return content
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            cause = _CONTEXT.sub("", str(error)) or type(error).__name__
            raise Retry(f"the scheduler does not answer at {address}: {cause}", reason="SchedulerSilent") from error

    def _context(self) -> ssl.SSLContext:
        """The files as they are now."""
        try:
            context = ssl.create_default_context(cafile=self._files.authority)
            context.load_cert_chain(self._files.certificate, self._files.key)
        except (OSError, ssl.SSLError) as error:
            raise Rejected(f"{self._files.certificate} cannot be used: {error}", reason="CertificateUnreadable") from error
        return context


def error_of(status: int, body: bytes) -> LatticeError:
    """The error that the scheduler gave, as the same kind of error."""
    try:
        said = json.loads(body)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    message, reason = str(said.get("message") or f"the scheduler answered {status}"), str(said.get("reason") or "")
    if status == 404:
        return NotFound(message, reason=reason)
    if status in (401, 403):
        return Denied(message, reason=reason or "SchedulerRefused")
    if status in (400, 409):
        return Rejected(message, reason=reason)
    return Retry(message, reason=reason or "SchedulerSilent")
