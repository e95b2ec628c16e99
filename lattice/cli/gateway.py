"""Finds the gateway, which alone talks to agents and scheduler, and asks it the questions of verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from lattice.cli.stream import SILENCE_SECONDS, GatewayStream
from lattice.errors import Denied, NotFound, Rejected, Retry, TooMany

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.scheduling.queries.answers import Plan

T = TypeVar("T")
LONGEST_PAUSE = 8.0
"""Longest pause between two tries of a question that the gateway refused because too many are under way."""
ANSWER_SECONDS = 40.0
"""How long an answer may take; the gateway allows the scheduler 30 s."""


def find_gateway(console: Console) -> tuple[str, str]:
    """Returns URL and CA certificate of the gateway (empty: the system's CAs): of LATTICE_GATEWAY,
    the configuration, else the cluster's.
    """
    data = read_public(console)
    return gateway_at(console, data), str(data.get("ca") or "")


def read_public(console: Console) -> dict[str, Any]:
    """Returns what the cluster publishes to everybody, such as `gateway` and its `ca`; empty where it publishes nothing, but a gateway is
    named.
    """
    from lattice.kube.resources import CONFIG_MAPS

    try:
        return console.cluster.get(CONFIG_MAPS, "lattice-public", "lattice-system", type=dict[str, Any]).get("data") or {}
    except (NotFound, Denied):
        if not _named(console):
            raise NotFound(
                "this cluster names no gateway: there is no ConfigMap lattice-public in lattice-system. Hint: set LATTICE_GATEWAY",
                reason="GatewayUnknown",
            ) from None
        return {}


def _named(console: Console) -> str:
    return console.outside.environ.get("LATTICE_GATEWAY") or console.configuration.gateway


def gateway_at(console: Console, data: Mapping[str, Any]) -> str:
    """Returns the gateway's URL: of LATTICE_GATEWAY, the configuration, else of the published
    `data`; raises Rejected where it is not safe.
    """
    url = _named(console) or str(data.get("gateway") or "")
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise Rejected(f"the gateway {url!r} is no https:// address", reason="BadInput")
    return url.rstrip("/")


def open_logs(console: Console, namespace: str, name: str, **query: str) -> GatewayStream:
    """Opens the stream of an allocation's output."""
    url, ca = find_gateway(console)
    wanted = urlencode({key: value for key, value in query.items() if value})
    path = f"/v1/namespaces/{namespace}/allocations/{name}/logs?{wanted}"
    return console.outside.stream(console.cluster_config, url, ca, path, None, SILENCE_SECONDS)


def ask_plan(console: Console, made: Sequence[Mapping[str, Any]], *, optimal: bool = False, seconds: float = ANSWER_SECONDS) -> Plan:
    """Asks how these Allocations, as a server-side dry run returned them, would be planned in this order."""
    import msgspec

    from lattice.scheduling.queries.answers import Plan

    documents = [{"metadata": {key: one["metadata"].get(key, "") for key in ("name", "namespace")}, "spec": one["spec"]} for one in made]
    try:
        return msgspec.json.decode(ask(console, "/v1/plan", {"allocations": documents, "optimal": optimal}, seconds), type=Plan)
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what is no plan: {error}", reason="AnswerBroken") from error


def ask_scheduler(console: Console, path: str, kind: type[T], what: str) -> T:
    """Asks the scheduler through the gateway, and decodes the answer; `what` names a wrong answer in the error, such as "is no queue"."""
    import msgspec

    from lattice.cli.leadership import with_silence

    try:
        return msgspec.json.decode(ask(console, path), type=kind)
    except Retry as error:
        raise with_silence(console, error) from error
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what {what}: {error}", reason="AnswerBroken") from error


def ask_records(console: Console, path: str, kind: type[T], *, everybody: bool, **query: str) -> T:
    """Asks for usage or history of the tenant, user and project that the flags name: of oneself where they name nobody."""
    args = console.args
    tenant, user = args.tenant or "", args.user
    if not (tenant or user or everybody):
        user = "me"
    query = {"tenant": tenant, "user": user, "project": args.project, **query}
    wanted = urlencode({key: value for key, value in query.items() if value})
    return ask_document(console, f"{path}?{wanted}", kind)


def ask_document(console: Console, path: str, kind: type[T]) -> T:
    """Returns the gateway's answer as the document that it is; raises Retry (AnswerBroken) where it is another."""
    import msgspec

    try:
        return msgspec.json.decode(ask(console, path), type=kind)
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what is no {kind.__name__}: {error}", reason="AnswerBroken") from error


def ask(console: Console, path: str, body: object = None, seconds: float = ANSWER_SECONDS) -> bytes:
    """Returns the gateway's answer to a GET, or to a POST of `body` as JSON.

    A person with too many questions under way waits as long as the gateway says, each time longer, for `seconds` at most.
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
