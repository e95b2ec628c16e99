"""Opens an answer of the gateway over HTTP with the kubeconfig's identity; the answer is one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol

from lattice.cli.plain_http import LONGEST_LINE, exchange
from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry, TooMany
from lattice.units import is_digits

if TYPE_CHECKING:
    from socket import socket

    from lattice.kube.kubeconfig import ClusterConfig

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 3600.0
"""Longest silence of a followed stream; a dead connection is found earlier, by TCP keepalive."""


class GatewayStream(Protocol):
    """An open answer of the gateway."""

    def lines(self) -> Iterator[bytes]:
        """Yields the lines as they arrive."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


def open_stream(
    config: ClusterConfig, url: str, ca: str, path: str, body: bytes | None = None, seconds: float = SILENCE_SECONDS
) -> GatewayStream:
    """Returns the open answer of the gateway to a GET, or to a POST of `body` (not None), sent with the kubeconfig's identity; an empty
    `ca` stands for the kubeconfig's own.

    `seconds` is the longest silence; the connection must be made within a fourth of it, and 10 s at most. Raises Retry where the gateway
    cannot be reached, and the error that a refusal means.
    """
    from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_NODELAY, create_connection
    from urllib.parse import urlsplit

    from lattice.kube.credentials import Credentials

    there = config._replace(server=url)
    if ca:
        there = there._replace(ca_data=ca.encode(), ca_file="", insecure=False, server_name="")
    identity = Credentials(there).identity()
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if identity.tls is not None else 80)
    headers = {**dict(identity.headers), "Accept": "application/x-ndjson, application/json", "Content-Type": "application/json"}
    try:
        connection = create_connection((host, port), min(CONNECT_SECONDS, seconds / 4))
    except OSError as error:
        raise _unreachable(url, error) from error
    try:
        connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        if identity.tls is not None:
            connection = identity.tls.wrap_socket(connection, server_hostname=host)
        connection.settimeout(seconds)
        answer = exchange(connection, "GET" if body is None else "POST", parts.netloc, parts.path + path, headers, body)
        if answer.status < 300:
            return _HttpStream(connection, answer.body, url)
        with answer.body:
            refusal = answer.body.read(LONGEST_LINE)
    except OSError as error:
        connection.close()
        raise _unreachable(url, error) from error
    connection.close()
    raise error_of(answer.status, refusal, url, answer.headers.get("retry-after", ""))


def _unreachable(url: str, error: OSError) -> Retry:
    """Returns the error that the gateway cannot be reached."""
    return Retry(f"the gateway {url} cannot be reached: {error}", reason="GatewayUnreachable")


def error_of(status: int, body: bytes, url: str, after: str = "") -> LatticeError:
    """Returns the error of an answer that is no success, by its status, with its `message`, `reason` and `Retry-After` header: Retry for
    502 to 504, TooMany for 429, Rejected for what fits no other.
    """
    try:
        said = json.loads(body)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    message = str(said.get("message") or f"the gateway {url} answered {status}")
    reason = str(said.get("reason") or "")
    if status in (401, 403):
        return Denied(message, reason=reason or "Forbidden")
    if status == 404:
        return NotFound(message, reason=reason)
    if status == 429:
        seconds = float(after) if is_digits(after) else None
        return TooMany(message, reason=reason or "GatewayBusy", after_seconds=seconds)
    if status in (502, 503, 504):
        return Retry(message, reason=reason or "GatewayBusy")
    return Rejected(message, reason=reason or f"Http{status}")


class _HttpStream:
    def __init__(self, connection: socket, body: BinaryIO, url: str) -> None:
        self._connection = connection
        self._body = body
        self._url = url

    def lines(self) -> Iterator[bytes]:
        """Yields the lines of the answer as they come, until its end. Raises Retry where the stream breaks."""
        try:
            while line := self._body.readline():
                yield line
        except OSError as error:
            raise Retry(f"the stream from the gateway {self._url} broke off: {error}", reason="StreamBroken") from error

    def close(self) -> None:
        """Closes the answer and its connection."""
        self._body.close()
        self._connection.close()
