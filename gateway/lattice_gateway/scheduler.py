"""The scheduler as the gateway calls it: at the address in the leader's Lease, over mTLS.

The address is kept for a second and a connection for a minute, so that ten people who ask at a time cost one reading of the Lease and few
handshakes.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

import aiohttp

from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEASES
from lattice.views import Lease
from lattice_gateway.agents import AgentFiles
from lattice_gateway.memory import Memory

LEASE, NAMESPACE = "lattice-scheduler", "lattice-system"
ANNOTATION: Final = "lattice.dev/answers"
"""The annotation on the leader's Lease with the URL at which it answers."""
SERVER_NAME: Final = "lattice-scheduler"
"""The host name in the scheduler's certificate, whatever its address."""
CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 30.0
ADDRESS_SECONDS, CONNECTION_SECONDS = 1.0, 60.0
"""How long the leader's address, and connections to it, are used before they are read and made again."""
_CONTEXT: Final = re.compile(r" ssl:(?:<[^>]*>|\w+)")
"""The part of the HTTP client's messages about TLS, which is cut out of sentences for people."""


class TaggedAnswer(NamedTuple):
    """An answer of the scheduler, and the name by which it knows it again."""

    tag: str
    body: bytes


class Scheduler(Protocol):
    """Answers questions about the queue; `LeadingScheduler` is the implementation."""

    async def ask(
        self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: bytes = b"", *, seconds: float = ANSWER_SECONDS
    ) -> bytes:
        """Returns the answer as JSON; raises Retry while no scheduler answers within `seconds`, else the error that it answered with."""
        raise NotImplementedError

    async def ask_unless(
        self, known: TaggedAnswer | None, path: tuple[str, ...], query: Mapping[str, str], *, seconds: float = ANSWER_SECONDS
    ) -> TaggedAnswer:
        """Returns the answer to a GET; `known` itself where the scheduler says that it would give the same. Raises what `ask` raises."""
        raise NotImplementedError


class _SchedulerQuestion(NamedTuple):
    """A question as it is sent: each try sends the same."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes
    seconds: float
    known: TaggedAnswer | None = None


class LeadingScheduler:
    """Asks the scheduler that holds the Lease."""

    def __init__(self, cluster: Cluster, clock: Clock, files: AgentFiles) -> None:
        self._cluster = cluster
        self._clock = clock
        self._files = files
        self._addresses: Memory[None, str] = Memory(clock, ADDRESS_SECONDS)
        self._line: _SchedulerSession | None = None

    async def run(self) -> None:
        """Does nothing until cancelled; then closes the connections to the scheduler."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._line is not None:
                await self._line.session.close()

    async def ask(
        self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: bytes = b"", *, seconds: float = ANSWER_SECONDS
    ) -> bytes:
        """Returns the leader's answer as JSON; where the known leader does not answer, the Lease is read and its holder asked once more.

        Raises Retry while none answers (after `seconds` it is not asked again), else the error that it answered with.
        """
        return (await self._ask_leader(_SchedulerQuestion(method, path, query, body, seconds))).body

    async def ask_unless(
        self, known: TaggedAnswer | None, path: tuple[str, ...], query: Mapping[str, str], *, seconds: float = ANSWER_SECONDS
    ) -> TaggedAnswer:
        """Returns the leader's answer to a GET; `known` itself where the leader says that it would give the same.

        Raises Retry while none answers, else the error that it answered with.
        """
        return await self._ask_leader(_SchedulerQuestion("GET", path, query, b"", seconds, known))

    async def _ask_leader(self, asked: _SchedulerQuestion) -> TaggedAnswer:
        """Returns the answer of the leading scheduler; where the one at the known address does not lead or answer, asks once more at the
        address that the Lease names now.

        A question that takes too long is not asked again.
        """
        address = self._addresses.get(None)
        try:
            return await self._asked(address[0] if address else await self._address(), asked)
        except Retry as error:
            if error.reason not in ("NotLeading", "SchedulerSilent") or isinstance(error.__cause__, TimeoutError):
                raise
        return await self._asked(await self._address(), asked)

    async def _address(self) -> str:
        """Returns the address in the leader's Lease, and keeps it.

        Raises Retry where no scheduler leads or it has not said where it answers.
        """
        try:
            lease = await self._cluster.get(LEASES, LEASE, NAMESPACE, type=Lease)
        except NotFound:
            raise Retry("the scheduler has never run on this cluster", reason="SchedulerAway") from None
        if not lease.spec.holder_identity:
            raise Retry(f"no scheduler leads since {lease.spec.renew_time or 'the start'}", reason="SchedulerAway")
        address = lease.metadata.annotations.get(ANNOTATION, "")
        if not address.startswith("https://"):
            raise Retry("the scheduler that leads has not said where it answers (--answers-listen)", reason="SchedulerAway")
        return self._addresses.keep(None, address)

    async def _asked(self, address: str, asked: _SchedulerQuestion) -> TaggedAnswer:
        """Returns the answer of the scheduler at an address; the known one where it has not changed.

        Raises the error that it answers, or Retry where it does not answer.
        """
        url = address.rstrip("/") + "".join("/" + quote(part, safe="") for part in asked.path)
        timeout = aiohttp.ClientTimeout(total=asked.seconds, sock_connect=CONNECT_SECONDS)
        headers = {"If-None-Match": asked.known.tag} if asked.known is not None else None
        try:
            async with (
                self._session() as session,
                session.request(
                    asked.method, url, params=asked.query, data=asked.body or None, headers=headers, server_hostname=SERVER_NAME,
                    timeout=timeout,
                ) as response,
            ):  # fmt: skip
                if response.status == 304 and asked.known is not None:
                    return asked.known
                content = await response.read()
                if response.status >= 300:
                    raise error_of(response.status, content)
                return TaggedAnswer(response.headers.get("ETag", ""), content)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            cause = _CONTEXT.sub("", str(error)) or type(error).__name__
            raise Retry(f"the scheduler does not answer at {address}: {cause}", reason="SchedulerSilent") from error

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Yields the current connections; new ones each minute and when a file has changed: the old ones close with their last answer."""
        line, marks = self._line, self._marks()
        if line is None or line.marks != marks or self._clock.monotonic() - line.made >= CONNECTION_SECONDS:
            line, former = _SchedulerSession(aiohttp.TCPConnector(ssl=self._context()), marks, self._clock.monotonic()), line
            self._line = line
            if former is not None and not former.users:
                await former.session.close()
        line.users += 1
        try:
            yield line.session
        finally:
            line.users -= 1
            if line is not self._line and not line.users:
                await line.session.close()

    def _marks(self) -> tuple[int, ...]:
        """Returns the change times of the certificate's files; 0 for one that is missing."""
        paths = (self._files.authority, self._files.certificate, self._files.key)
        return tuple(Path(path).stat().st_mtime_ns if Path(path).exists() else 0 for path in paths)

    def _context(self) -> ssl.SSLContext:
        """Returns a TLS context from the files as they are now; raises Rejected where they cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self._files.authority)
            context.load_cert_chain(self._files.certificate, self._files.key)
        except (OSError, ssl.SSLError) as error:
            raise Rejected(f"{self._files.certificate} cannot be used: {error}", reason="CertificateUnreadable") from error
        return context


class _SchedulerSession:
    """Connections to the scheduler, the marks of the files that they were made with, and how many questions are under way on them."""

    def __init__(self, connector: aiohttp.TCPConnector, marks: tuple[int, ...], made: float) -> None:
        self.session = aiohttp.ClientSession(connector=connector)
        self.marks = marks
        self.made = made
        self.users = 0


def error_of(status: int, body: bytes) -> LatticeError:
    """Returns the error in the scheduler's answer by its status: NotFound (404), Denied (401, 403), Rejected (400, 409), else Retry."""
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
