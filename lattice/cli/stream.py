"""An open answer of the gateway over HTTP: one JSON object a line, with the kubeconfig's identity."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry, TooMany

if TYPE_CHECKING:
    from lattice.kube.kubeconfig import ClusterConfig

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 3600.0
"""A followed stream may be silent for long; a dead connection is found by TCP keepalive before that."""


class GatewayStream(Protocol):
    """Reads an open answer of the gateway."""

    def lines(self) -> Iterator[bytes]:
        """Yields the lines as they come."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


def open_stream(
    config: ClusterConfig, url: str, ca: str, path: str, body: bytes | None = None, seconds: float = SILENCE_SECONDS
) -> GatewayStream:
    """Sends the GET, or the POST of a body, with the kubeconfig's identity, and reads the head of the answer.

    `seconds` is how long the gateway may be silent; a fourth of it, and 10 s at most, for making the connection.
    """
    import http.client
    import socket
    from urllib.parse import urlsplit

    from lattice.kube.credentials import Credentials

    there = replace(config, server=url, plugin=config.plugin)
    if ca:
        there = replace(there, ca_data=ca.encode(), ca_file="", insecure=False, server_name="")
    identity = Credentials(there).identity()
    parts = urlsplit(url)
    host = parts.hostname or ""
    patience = min(CONNECT_SECONDS, seconds / 4)
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection(host, parts.port, timeout=patience)
        if identity.tls is None
        else http.client.HTTPSConnection(host, parts.port, timeout=patience, context=identity.tls)
    )
    try:
        connection.connect()
        headers = {**dict(identity.headers), "Accept": "application/x-ndjson, application/json", "Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", parts.path + path, body=body, headers=headers)
        if connection.sock is not None:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.sock.settimeout(seconds)
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise Retry(f"the gateway {url} cannot be reached: {error}", reason="GatewayUnreachable") from error
    if response.status >= 300:
        body = response.read(65536)
        connection.close()
        raise error_of(response.status, body, url, response.getheader("Retry-After", ""))
    return _HttpStream(connection, response, url)


def error_of(status: int, body: bytes, url: str, after: str = "") -> LatticeError:
    """Returns the error of an answer that is no success, as its `message` and `reason` say, and its `Retry-After` when to ask again."""
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
        seconds = float(after) if after.isascii() and after.isdigit() else None
        return TooMany(message, reason=reason or "GatewayBusy", after_seconds=seconds)
    if status in (502, 503, 504):
        return Retry(message, reason=reason or "GatewayBusy")
    return Rejected(message, reason=reason or f"Http{status}")


class _HttpStream:
    def __init__(self, connection: Any, response: Any, url: str) -> None:
        self._connection = connection
        self._response = response
        self._url = url

    def lines(self) -> Iterator[bytes]:
        from http.client import HTTPException

        try:
            while line := self._response.readline():
                yield line
        except (OSError, HTTPException) as error:
            raise Retry(f"the stream from the gateway {self._url} broke off: {error}", reason="StreamBroken") from error

    def close(self) -> None:
        self._connection.close()
