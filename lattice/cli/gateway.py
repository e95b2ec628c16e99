"""The gateway, which alone talks to agents and scheduler: where it is, what it streams (one JSON object a line), what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry, TooMany

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.kube.kubeconfig import ClusterConfig
    from lattice.scheduling.answers import Plan

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 3600.0
"""A followed stream may be silent for long; a dead connection is found by TCP keepalive before that."""
LONGEST_PAUSE = 8.0
"""Between two questions of one who asked too many at a time."""
ANSWER_SECONDS = 40.0
"""How long an answer may take: the gateway gives the scheduler 30 s."""


class Stream(Protocol):
    """An open answer of the gateway."""

    def lines(self) -> Iterator[bytes]:
        """Its lines, as they come."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


def find_gateway(console: Console) -> tuple[str, str]:
    """URL and CA certificate: `LATTICE_GATEWAY`, the configuration, else what the cluster says."""
    from lattice.kube.resources import CONFIG_MAPS

    url = console.outside.environ.get("LATTICE_GATEWAY") or console.configuration.gateway
    data: dict[str, str] = {}
    try:
        data = console.cluster.get(CONFIG_MAPS, "lattice-public", "lattice-system", type=dict[str, Any]).get("data") or {}
    except (NotFound, Denied):
        if not url:
            raise NotFound(
                "this cluster names no gateway: there is no ConfigMap lattice-public in lattice-system. Hint: set LATTICE_GATEWAY",
                reason="GatewayUnknown",
            ) from None
    url = url or data.get("gateway", "")
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise Rejected(f"the gateway {url!r} is no https:// address", reason="BadInput")
    return url.rstrip("/"), data.get("ca", "")


def open_logs(console: Console, namespace: str, name: str, **query: str) -> Stream:
    """The stream of what an allocation prints."""
    url, ca = find_gateway(console)
    wanted = urlencode({key: value for key, value in query.items() if value})
    path = f"/v1/namespaces/{namespace}/allocations/{name}/logs?{wanted}"
    return console.outside.stream(console.cluster_config, url, ca, path, None, SILENCE_SECONDS)


def ask_plan(console: Console, made: Sequence[Mapping[str, Any]], *, optimal: bool = False, seconds: float = ANSWER_SECONDS) -> Plan:
    """What would become of Allocations as a server dry run gave them, in this order."""
    import msgspec

    from lattice.scheduling.answers import Plan

    documents = [{"metadata": {key: one["metadata"].get(key, "") for key in ("name", "namespace")}, "spec": one["spec"]} for one in made]
    try:
        return msgspec.json.decode(ask(console, "/v1/plan", {"allocations": documents, "optimal": optimal}, seconds), type=Plan)
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what is no plan: {error}", reason="AnswerBroken") from error


def ask(console: Console, path: str, body: object = None, seconds: float = ANSWER_SECONDS) -> bytes:
    """The gateway's answer to a GET, or to a POST of `body` as JSON, which may take so many seconds.

    Who has too many questions under way waits as long as the gateway says, each time longer, for as many seconds at most.
    """
    url, ca = find_gateway(console)
    given = json.dumps(body).encode() if body is not None else None
    outside, pause = console.outside, 0.0
    until = outside.now() + seconds
    while True:
        try:
            stream = outside.stream(console.cluster_config, url, ca, path, given, seconds)
        except TooMany as error:
            noted, pause = pause > 0, min(LONGEST_PAUSE, max(error.after_seconds or 1.0, 2 * pause))
            if outside.now() + pause > until:
                raise
            if not noted:
                console.note(f"Note: {error.message}; asking again for {until - outside.now():.0f} s")
            outside.sleep(pause)
            continue
        try:
            return b"".join(stream.lines())
        finally:
            stream.close()


def open_stream(config: ClusterConfig, url: str, ca: str, path: str, body: bytes | None = None, seconds: float = SILENCE_SECONDS) -> Stream:
    """Send the GET, or the POST of a body, with the kubeconfig's identity, and read the head of the answer.

    `seconds` is how long the gateway may be silent.
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
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection(host, parts.port, timeout=CONNECT_SECONDS)
        if identity.tls is None
        else http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_SECONDS, context=identity.tls)
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
    """The error of an answer that is no success; the gateway says why in `message` and `reason`, and in `Retry-After` when to ask again."""
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
