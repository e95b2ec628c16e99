"""Finds the gateway, which alone talks to agents and scheduler, and asks it the questions of verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

from lattice.cli.stream import SILENCE_SECONDS, GatewayStream
from lattice.errors import Denied, NotFound, Rejected, Retry, TooMany

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.scheduling.queries.answers import Plan

T = TypeVar("T")
LONGEST_PAUSE = 8.0
"""Longest pause between two tries of a question that the gateway refused because too many are under way."""
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts to which a token may go without TLS."""
ANSWER_SECONDS = 40.0
"""How long an answer may take; the gateway allows the scheduler 30 s."""


def find_gateway(console: Console) -> tuple[str, str]:
    """Returns (URL, CA certificate) of the gateway; an empty certificate stands for the CAs of the system.

    The URL is that of LATTICE_GATEWAY, else of the user's configuration, else the one that the cluster publishes.
    """
    data = read_public(console)
    return gateway_at(console, data), str(data.get("ca") or "")


def read_public(console: Console) -> dict[str, Any]:
    """Returns the data of the ConfigMap that the cluster publishes to everybody, with the keys `gateway` and `ca`.

    Empty where there is none, or it may not be read, and the user names a gateway; raises NotFound where he names none.
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
    """Returns the gateway's address that the environment or the configuration names; empty where neither does."""
    return console.outside.environ.get("LATTICE_GATEWAY") or console.configuration.gateway


def gateway_at(console: Console, data: Mapping[str, Any]) -> str:
    """Returns the gateway's URL without a slash at its end: of LATTICE_GATEWAY, else of the user's configuration, else of the published
    `data`.

    Raises Rejected where it is empty, names a user, or is neither https nor on this machine: the user's token would be readable on the
    way.
    """
    url = _named(console) or str(data.get("gateway") or "")
    if not _keeps_tokens_secret(url):
        raise Rejected(f"the gateway {url!r} is no https:// address, such as https://gateway.example:8443", reason="BadInput")
    return url.rstrip("/")


def _keeps_tokens_secret(url: str) -> bool:
    """Tells whether a URL is of https, or of http to exactly this machine, and has a host, a valid port if any, and no user."""
    if not url.isprintable() or any(character in url for character in " \\@"):
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in _THIS_MACHINE))


def open_logs(console: Console, namespace: str, name: str, **query: str) -> GatewayStream:
    """Returns the open stream of an allocation's output (`lattice logs`); `query`: the parameters of the request, such as `follow`."""
    url, ca = find_gateway(console)
    wanted = urlencode({key: value for key, value in query.items() if value})
    path = f"/v1/namespaces/{namespace}/allocations/{name}/logs?{wanted}"
    return console.outside.stream(console.cluster_config, url, ca, path, None, SILENCE_SECONDS)


def ask_plan(console: Console, made: Sequence[Mapping[str, Any]], *, optimal: bool = False, seconds: float = ANSWER_SECONDS) -> Plan:
    """Returns the scheduler's plan for these Allocations, as if they were submitted now, in this order; waits `seconds` at most; raises
    Retry where there is no answer or it does not parse.

    `made`: the objects as a server-side dry run returned them; `optimal`: asks for the upper bound by the solver too.
    """
    import msgspec

    from lattice.scheduling.queries.answers import Plan

    documents = [{"metadata": {key: one["metadata"].get(key, "") for key in ("name", "namespace")}, "spec": one["spec"]} for one in made]
    try:
        return msgspec.json.decode(ask(console, "/v1/plan", {"allocations": documents, "optimal": optimal}, seconds), type=Plan)
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what is no plan: {error}", reason="AnswerBroken") from error


def ask_scheduler(console: Console, path: str, kind: type[T], what: str) -> T:
    """Returns the scheduler's answer to a GET of `path` through the gateway as a `kind`; raises Retry where there is none, with since when
    the scheduler is silent, and with `what` for another answer.
    """
    import msgspec

    from lattice.cli.leadership import with_silence

    try:
        return msgspec.json.decode(ask(console, path), type=kind)
    except Retry as error:
        raise with_silence(console, error) from error
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what {what}: {error}", reason="AnswerBroken") from error


def ask_records(console: Console, path: str, kind: type[T], *, everybody: bool, **query: str) -> T:
    """Returns the gateway's document of usage or history for the tenant, user and project that flags name, as a `kind`.

    Without tenant and user it is about the caller, or with `everybody` about all.
    """
    args = console.args
    tenant, user = args.tenant or "", args.user
    if not (tenant or user or everybody):
        user = "me"
    query = {"tenant": tenant, "user": user, "project": args.project, **query}
    wanted = urlencode({key: value for key, value in query.items() if value})
    return ask_document(console, f"{path}?{wanted}", kind)


def ask_document(console: Console, path: str, kind: type[T], seconds: float = ANSWER_SECONDS) -> T:
    """Returns the gateway's answer to a GET of `path`, within `seconds`, decoded as a `kind`; raises Retry (AnswerBroken) for another."""
    import msgspec

    try:
        return msgspec.json.decode(ask(console, path, seconds=seconds), type=kind)
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway answered what is no {kind.__name__}: {error}", reason="AnswerBroken") from error


def open_cache(console: Console, order: Mapping[str, Any]) -> GatewayStream:
    """Returns the open stream of what nodes answer to an order about their image caches."""
    url, ca = find_gateway(console)
    return console.outside.stream(console.cluster_config, url, ca, "/v1/cache", json.dumps(order).encode(), SILENCE_SECONDS)


def ask(console: Console, path: str, body: object = None, seconds: float = ANSWER_SECONDS) -> bytes:
    """Returns the gateway's answer to a GET, or to a POST of `body` (not None) as JSON; raises the error that it answers.

    Where the gateway refuses because the user has too many requests open, repeats after the time it names, with a note, for `seconds` at
    most; then raises TooMany.
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
