"""The transport of one-shot commands: the verbs on http.client, one connection, no event loop.

It imports neither aiohttp nor asyncio, so that a command which asks one question starts quickly.
"""

from __future__ import annotations

import http.client
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from lattice.errors import Denied, LatticeError
from lattice.kube import answers, attempts, requests
from lattice.kube.answers import Failure
from lattice.kube.cluster import OBJECT, Listing, PatchKind, T, WatchEvent
from lattice.kube.credentials import ClientIdentity, Credentials
from lattice.kube.kubeconfig import ClusterConfig
from lattice.kube.requests import Request
from lattice.kube.resources import Resource

_CHUNK = 1 << 16


class BlockingCluster:
    """The verbs of `Cluster`, synchronous, for one thread. `close` it, or use it in a `with`."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "lattice",
        timeout_seconds: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Stores the server's address and credentials, and connects nothing yet.

        Each request may take `timeout_seconds`; `warn` is called with each sentence of warning in the server's answer to a write.
        """
        self._credentials = Credentials(config)
        self._headers = {"User-Agent": user_agent, "Accept": requests.JSON, "Accept-Encoding": "identity"}
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._jitter = jitter
        self._warn = warn
        self._connection: http.client.HTTPConnection | None = None
        self._identity: ClientIdentity | None = None
        self._ahead: Request | None = None
        """The request that was sent and whose answer is not read yet; None: none."""

    @property
    def config(self) -> ClusterConfig:
        """Returns the server's address and our credentials there."""
        return self._credentials.config

    def __enter__(self) -> BlockingCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and drops what `ask_list` sent; the next verb opens another connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._ahead = None

    def get(self, resource: Resource, name: str, namespace: str = "", *, type: type[T] = OBJECT) -> T:
        """Returns one object of this kind and name, decoded as `type`; raises NotFound where there is none."""
        request = requests.get(resource, name, namespace)
        return answers.decode(request, self._send(request), type)

    def list(self, resource: Resource, namespace: str = "", *, type: type[T] = OBJECT, labels: str = "", fields: str = "") -> Listing[T]:
        """Returns all objects of a namespace (empty: of all) that match the selectors, decoded as `type`, with the list's version."""
        request = requests.list_all(resource, namespace, labels, fields)
        return answers.decode_list(request, self._send(request), type)

    def ask_list(self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "") -> None:
        """Sends the request of a list ahead, so that the server works on it while the caller does something else.

        The `list` with the same arguments reads the answer, if it is the next verb; any other closes the connection and loses it. An error
        here is ignored: that `list` asks again.
        """
        request = requests.list_all(resource, namespace, labels, fields)
        with suppress(LatticeError):
            identity = self._credentials.identity()
            self._send_on(request, identity)
            self._ahead = request

    def create(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str = "", *, type: type[T] = OBJECT, dry_run: bool = False
    ) -> T:
        """Creates an object and returns it as stored, decoded as `type`; raises AlreadyExists when its name is taken.

        `dry_run`: the server checks and answers, and stores nothing.
        """
        request = requests.create(resource, obj, namespace, dry_run)
        return answers.decode(request, self._send(request), type)

    def replace(
        self,
        resource: Resource,
        name: str,
        obj: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        type: type[T] = OBJECT,
    ) -> T:
        """Replaces an object, or its `subresource`, and returns it as stored.

        Raises NotFound where there is none, Stale when `obj` names a version that is not the newest.
        """
        request = requests.replace(resource, name, obj, namespace, subresource)
        return answers.decode(request, self._send(request), type)

    def patch(
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
        return answers.decode(request, self._send(request), type)

    def delete(
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
        self._send(requests.delete(resource, name, namespace, uid=uid, resource_version=resource_version, propagation=propagation))

    def version(self) -> dict[str, str]:
        """Returns the server's version, as /version has it (`gitVersion`, …)."""
        request = Request("GET", "/version", "get /version", safe=True)
        return answers.decode(request, self._send(request), dict[str, str])

    def ready(self) -> None:
        """Asks the server once, without repeating, whether it is ready, and returns if it is; raises Retry where it is not or gives no
        answer.
        """
        self._once(Request("GET", "/readyz", "get /readyz", safe=True))

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        resource_version: str = "",
        labels: str = "",
        fields: str = "",
        initial_events: bool = False,
        timeout_seconds: int = 300,
    ) -> Generator[WatchEvent[T], None, None]:
        """Yields changes after `resource_version` until the server ends the stream, which it is asked to do after `timeout_seconds`, on a
        connection of its own; with `initial_events` the existing objects come first.

        Raises Expired when that version is too old, and the error of a broken connection after `timeout_seconds` and a minute of silence.
        Nothing is repeated.
        """
        request = requests.watch(
            resource,
            namespace,
            resource_version=resource_version,
            labels=labels,
            fields=fields,
            initial_events=initial_events,
            timeout_seconds=timeout_seconds,
        )
        identity = self._credentials.identity()
        connection = self._open(request, identity)
        lines = answers.Lines()
        try:
            response = self._ask(connection, request, identity)
            if response.status >= 300:
                with _lost_after_sending(request):
                    body = response.read()
                raise answers.error_of(request, Failure.from_answer(response.status, body, dict(response.headers)))
            if connection.sock is not None:
                connection.sock.settimeout(timeout_seconds + 60.0)
            for chunk in _chunks(request, response):
                for line in lines.feed(chunk):
                    yield answers.decode_event(request, line, type)
        finally:
            connection.close()

    def _send(self, request: Request) -> bytes:
        """Returns the body of the answer; repeats the request only where `attempts.pause` says that nothing can have happened, and once
        with new credentials.

        Raises the error of a request that fails.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._once(request)
            except Denied as error:
                if error.reason != "Unauthorized" or attempt > 1 or not self._credentials.refused():
                    raise self._credentials.explained(error) from None
            except LatticeError as error:
                seconds = attempts.pause(request, error, attempt, self._jitter)
                if seconds is None:
                    raise
                self._sleep(seconds)

    def _once(self, request: Request) -> bytes:
        """Sends a request once and returns the body of the answer; a server's warnings on a write are passed to `warn`.

        Raises the error of a refusal, or of a connection that broke, which is closed then.
        """
        connection = self._asked(request)
        try:
            with _lost_after_sending(request):
                response = connection.getresponse()
                body = response.read()
        except LatticeError:
            self.close()
            raise
        if response.will_close:
            self.close()
        if self._warn is not None and request.method != "GET":
            for header in response.headers.get_all("Warning") or ():
                self._warn(answers.warning_of(header))
        if response.status < 300:
            return body
        raise answers.error_of(request, Failure.from_answer(response.status, body, dict(response.headers)))

    def _asked(self, request: Request) -> http.client.HTTPConnection:
        """Returns the connection on which the answer to a request comes; sends the request, unless `ask_list` has sent it already."""
        ahead, self._ahead = self._ahead, None
        if ahead == request and self._connection is not None:
            return self._connection
        if ahead is not None:
            self.close()  # its answer would be taken for that of this request
        return self._send_on(request, self._credentials.identity())

    def _send_on(self, request: Request, identity: ClientIdentity) -> http.client.HTTPConnection:
        """Sends the request on the open connection, or a new one, and returns it; it is closed when that fails, and the error is raised."""
        connection = self._connected(request, identity)
        try:
            self._put(connection, request, identity)
        except LatticeError:
            self.close()
            raise
        return connection

    def _connected(self, request: Request, identity: ClientIdentity) -> http.client.HTTPConnection:
        """Returns the open connection, or a new one where it was closed or our credentials changed."""
        connection = self._connection
        if connection is not None and self._identity is identity and not _is_closed(connection):
            return connection
        self.close()
        self._connection, self._identity = self._open(request, identity), identity
        return self._connection

    def _open(self, request: Request, identity: ClientIdentity) -> http.client.HTTPConnection:
        """Returns a new connection, connected; raises Denied for a certificate that is not trusted, else the error of a request that was
        certainly not sent.
        """
        connection = _connection(self.config, identity, self._timeout_seconds)
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except ssl.SSLCertVerificationError as error:
            text = f"{request.what}: the API server's certificate is not trusted: {error}"
            raise Denied(text, reason="ServerNotTrusted") from error
        except (OSError, http.client.HTTPException) as error:
            raise answers.not_sent(request, f"{self.config.server}: {error}") from error
        return connection

    def _ask(self, connection: http.client.HTTPConnection, request: Request, identity: ClientIdentity) -> http.client.HTTPResponse:
        """Sends the request, and returns the response with its headers read."""
        self._put(connection, request, identity)
        with _lost_after_sending(request):
            return connection.getresponse()

    def _put(self, connection: http.client.HTTPConnection, request: Request, identity: ClientIdentity) -> None:
        """Writes the request to the connection."""
        with _lost_after_sending(request):
            connection.putrequest(request.method, request.target, skip_accept_encoding=True)
            for name, value in (*self._headers.items(), *identity.headers):
                connection.putheader(name, value)
            if request.body is not None:
                connection.putheader("Content-Type", request.content_type)
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)


def _connection(config: ClusterConfig, identity: ClientIdentity, timeout_seconds: float) -> http.client.HTTPConnection:
    """Returns a connection to the server that is not opened yet: HTTP without TLS, else HTTPS, under another server name where one is
    configured.
    """
    parts = urlsplit(config.server)
    host = parts.hostname or ""
    if identity.tls is None:
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_seconds)
    if config.server_name:
        return _NamedConnection(host, parts.port, timeout=timeout_seconds, context=identity.tls, server_name=config.server_name)
    return http.client.HTTPSConnection(host, parts.port, timeout=timeout_seconds, context=identity.tls)


class _NamedConnection(http.client.HTTPSConnection):
    """A connection to one address that expects the certificate of another name (`tls-server-name`)."""

    def __init__(self, host: str, port: int | None, *, timeout: float, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._server_name = server_name
        self._tls = context

    def connect(self) -> None:
        """Connects, and checks the certificate against the expected name."""
        plain = socket.create_connection((self.host, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self._server_name)


def _is_closed(connection: http.client.HTTPConnection) -> bool:
    """Tells whether the server has closed an idle connection, or sent something unasked: it can then be read."""
    if connection.sock is None:
        return True
    readable, _, _ = select.select([connection.sock], [], [], 0)
    return bool(readable)


@contextmanager
def _lost_after_sending(request: Request) -> Iterator[None]:
    """Turns errors of the block into `no_answer`: they may have come after the server acted."""
    try:
        yield
    except TimeoutError as error:
        raise answers.no_answer(request, f"timed out: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise answers.no_answer(request, error if str(error) else repr(error)) from error


def _chunks(request: Request, response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yields the bytes of an answer as they come, until its end.

    Raises the error of a connection that breaks, or is silent for longer than its time limit, after the request was sent.
    """
    while True:
        with _lost_after_sending(request):
            chunk = response.read1(_CHUNK)
        if not chunk:
            return
        yield chunk
