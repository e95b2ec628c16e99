"""The transport of daemons: the verbs of `Cluster` over aiohttp, with a pool of connections, and streams for watches."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from lattice.errors import Denied, LatticeError
from lattice.kube import answers, attempts, requests
from lattice.kube.answers import Failure
from lattice.kube.cluster import OBJECT, Listing, PatchKind, T, WatchEvent
from lattice.kube.credentials import Credentials
from lattice.kube.kubeconfig import ClusterConfig, load
from lattice.kube.requests import Request
from lattice.kube.resources import Resource

WATCH_SECONDS = (300, 600)
"""A watch is asked to end after a random time between these, so that load moves to other API servers."""


class AiohttpCluster:
    """An API server reached over aiohttp; `connect` makes it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credentials: Credentials,
        *,
        timeout_seconds: float = 30.0,
        connections: int = 64,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._session = session
        self._credentials = credentials
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(connections)
        self._sleep = sleep
        self._jitter = jitter
        self._impersonation: tuple[tuple[str, str], ...] = ()

    def impersonate(self, user: str, groups: Sequence[str] = ()) -> AiohttpCluster:
        """Returns a cluster over these connections that asks as another user (Impersonate-User, Impersonate-Group); this one stays."""
        other = copy.copy(self)
        other._impersonation = (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))
        return other

    @property
    def config(self) -> ClusterConfig:
        """Returns the server's address and our credentials there, as last read."""
        return self._credentials.config

    async def metrics(self) -> str:
        """Returns the server's own metrics in Prometheus's text format."""
        return (await self._send(requests.METRICS)).decode()

    async def forward(
        self, method: str, url: str, *, json: Any = None, headers: Mapping[str, str] | None = None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Returns the response to a request of another library, sent with our identity and over our connections, whatever its status.

        After a 401 the credentials are read again, where they come from a file, and the request is repeated as long as they are new ones.
        Errors of aiohttp are passed on.
        """
        while True:
            identified = self._identified(CIMultiDict(headers or {}))
            response = await self._session.request(method, URL(url), json=json, timeout=timeout, **identified)
            if response.status != 401 or not self._credentials.refused():
                return response
            response.close()

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        metadata_only: bool = False,
        cached: bool = False,
    ) -> T:
        """Returns one object of this kind and name, decoded as `type`; raises NotFound where there is none.

        `metadata_only`: nothing but its metadata; `cached`: as the server's cache has it, which may be behind.
        """
        request = requests.get(resource, name, namespace, metadata_only=metadata_only, cached=cached)
        return answers.decode(request, await self._send(request), type)

    async def list(
        self, resource: Resource, namespace: str = "", *, type: type[T] = OBJECT, labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """Returns all objects of a namespace (empty: of all) that match the selectors, decoded as `type`, with the list's version."""
        request = requests.list_all(resource, namespace, labels, fields)
        return answers.decode_list(request, await self._send(request), type)

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        dry_run: bool = False,
        strict: bool = False,
    ) -> T:
        """Creates an object and returns it as stored, decoded as `type`; raises AlreadyExists when its name is taken.

        `dry_run`: the server checks and answers, and stores nothing. `strict`: it refuses fields that the kind does not have.
        """
        request = requests.create(resource, obj, namespace, dry_run, strict=strict)
        return answers.decode(request, await self._send(request), type)

    async def replace(
        self,
        resource: Resource,
        name: str,
        obj: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        type: type[T] = OBJECT,
        metadata_only: bool = False,
    ) -> T:
        """Replaces an object, or its `subresource`, and returns it as stored.

        Raises NotFound where there is none, Stale when `obj` names a version that is not the newest.
        """
        request = requests.replace(resource, name, obj, namespace, subresource, metadata_only=metadata_only)
        return answers.decode(request, await self._send(request), type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str = "",
        *,
        subresource: str = "",
        type: type[T] = OBJECT,
        kind: PatchKind = PatchKind.MERGE,
        manager: str = "",
        force: bool = False,
    ) -> T:
        """Changes a part of an object, or of its `subresource`, and returns it as stored, decoded as `type`.

        Raises NotFound where there is none (APPLY creates it), Stale when the patch names a version that is not the newest.
        """
        request = requests.patch(resource, name, patch, namespace, subresource=subresource, kind=kind, manager=manager, force=force)
        return answers.decode(request, await self._send(request), type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> None:
        """Asks for the deletion of an object, and returns before it is gone; raises NotFound where there is none.

        With `uid` or `resource_version` it deletes exactly that one, else raises Stale.
        """
        await self._send(requests.delete(resource, name, namespace, uid=uid, resource_version=resource_version, propagation=propagation))

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        resource_version: str = "",
        labels: str = "",
        fields: str = "",
        initial_events: bool = False,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yields changes after `resource_version` until the server ends the stream, which it is asked to do after 5 to 10 minutes; raises
        Expired when that version is too old.

        With `initial_events` the existing objects come first, as ADDED. Nothing is repeated, and silence ends nothing.
        """
        low, high = WATCH_SECONDS
        request = requests.watch(
            resource,
            namespace,
            resource_version=resource_version,
            labels=labels,
            fields=fields,
            initial_events=initial_events,
            timeout_seconds=int(low + (high - low) * self._jitter()),
        )
        lines = answers.Lines()
        async with self._stream(request) as response:
            async for chunk in _chunks(request, response):
                for line in lines.feed(chunk):
                    yield answers.decode_event(request, line, type)

    async def _send(self, request: Request) -> bytes:
        """Returns the body of the answer; repeats the request only where `attempts.pause` says that nothing can have happened, and once
        with new credentials.

        Raises the error of a request that fails.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(request)
            except Denied as error:
                if error.reason != "Unauthorized" or attempt > 1 or not self._credentials.refused():
                    raise self._credentials.explained(error) from None
            except LatticeError as error:
                seconds = attempts.pause(request, error, attempt, self._jitter)
                if seconds is None:
                    raise
                await self._sleep(seconds)

    async def _once(self, request: Request) -> bytes:
        """Sends a request once and returns the body of the answer; waits for a free slot first, which the time limit does not count.

        Raises the error of a refusal, of a connection that broke, or of the time limit.
        """
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_seconds), self._open(request) as response:
                    body = await response.read()
                    if response.status < 300:
                        return body
                    failure = Failure.from_answer(response.status, body, response.headers)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _translated(request, error, self._timeout_seconds) from error
        raise answers.error_of(request, failure)

    def _open(self, request: Request) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Returns the request as a context that yields the response, with the headers of content, credentials and impersonation."""
        headers: CIMultiDict[str] = CIMultiDict(self._impersonation)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if request.accept != requests.JSON:
            headers["Accept"] = request.accept
        url = URL(self._credentials.config.server + request.target, encoded=True)
        return self._session.request(request.method, url, data=request.body, **self._identified(headers))

    def _identified(self, headers: CIMultiDict[str]) -> dict[str, Any]:
        """Returns the options that make a request ours: headers with our identity, and the TLS context."""
        identity, config = self._credentials.identity(), self._credentials.config
        headers.extend(identity.headers)
        return {
            "headers": headers,
            "ssl": identity.tls or True,
            "server_hostname": config.server_name or None,
            "allow_redirects": False,
        }

    @contextlib.asynccontextmanager
    async def _stream(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields a response whose headers have arrived, and whose body is read as it comes.

        Raises the error of a refusal, or of a request without answer.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    response = await stack.enter_async_context(self._open(request))
                    body = b"" if response.status < 300 else await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _translated(request, error, self._timeout_seconds) from error
            if response.status >= 300:
                failure = answers.error_of(request, Failure.from_answer(response.status, body, response.headers))
                if isinstance(failure, Denied) and response.status == 401 and not self._credentials.refused():
                    raise self._credentials.explained(failure)
                raise failure
            stack.callback(_abort, response)
            yield response


def _abort(response: aiohttp.ClientResponse) -> None:
    """Drops a stream's connection at once, unread: it serves nobody else, and closing TLS in order would wait for the server."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _chunks(request: Request, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields the bytes of a stream as they come, until its end. Raises the error of a request without answer where it breaks."""
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise answers.no_answer(request, f"the stream broke: {error!r}") from error


def _translated(request: Request, error: Exception, timeout_seconds: float) -> LatticeError:
    """Returns our error for one of aiohttp: Denied for a certificate that is not trusted, that of a request not sent where no connection
    was made, else that of a request without answer.
    """
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Denied(f"{request.what}: the API server's certificate is not trusted: {error}", reason="ServerNotTrusted")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerFingerprintMismatch):
        return answers.not_sent(request, error)
    if isinstance(error, TimeoutError):
        return answers.no_answer(request, f"nothing within {timeout_seconds:g} s")
    return answers.no_answer(request, error if str(error) else repr(error))


@contextlib.asynccontextmanager
async def connect(
    kubeconfig: str | ClusterConfig,
    *,
    user_agent: str,
    context: str | None = None,
    timeout_seconds: float = 30.0,
    connections: int = 64,
) -> AsyncIterator[AiohttpCluster]:
    """Yields the cluster of a kubeconfig file (empty: the pod's service account); closes its connections at the end.

    At most `connections` requests are under way at a time, watches not counted.
    """
    config = load(kubeconfig, context) if isinstance(kubeconfig, str) else kubeconfig
    credentials = Credentials(config)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0, ttl_dns_cache=60)
    session = aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": user_agent, "Accept": requests.JSON, "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        read_bufsize=2**18,
    )
    session._retry_connection = False  # aiohttp repeats PUT and DELETE on a lost connection; whether they took effect is not its to guess
    async with session:
        yield AiohttpCluster(session, credentials, timeout_seconds=timeout_seconds, connections=connections)
    await asyncio.sleep(0)  # lets aborted transports close their sockets before the loop may end
