"""Makes each verb an HTTP request: method, path, query, headers, body; it sends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import msgspec

from lattice.errors import Rejected
from lattice.kube.cluster import PatchKind
from lattice.kube.resources import Resource

JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send; `safe`: it changes nothing, so that it may be repeated; `what` names it in messages."""

    method: str
    target: str
    what: str
    safe: bool
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON


METRICS: Final = Request("GET", "/metrics", "get the server's metrics", safe=True, accept="text/plain")


def get(resource: Resource, name: str, namespace: str, *, metadata_only: bool = False, cached: bool = False) -> Request:
    """Makes the request that reads one object, or its metadata alone; `cached`: from the watch cache, of any age."""
    accept = METADATA_ONLY if metadata_only else JSON
    target = _path(resource, namespace, name) + _query(resourceVersion="0" if cached else "")
    return Request("GET", target, _what("get", resource, namespace, name), safe=True, accept=accept)


def list_all(resource: Resource, namespace: str, labels: str, fields: str) -> Request:
    """Makes the request that reads all objects of a namespace (empty: of all) that match the selectors, from etcd: no resourceVersion, no
    pages.
    """
    target = _path(resource, namespace) + _query(labelSelector=labels, fieldSelector=fields)
    return Request("GET", target, _what("list", resource, namespace), safe=True)


def watch(
    resource: Resource, namespace: str, *, resource_version: str, labels: str, fields: str, initial_events: bool, timeout_seconds: int
) -> Request:
    """Makes the request that follows changes, with bookmarks, after `resource_version` (empty: existing objects come first);
    `initial_events`: these come first whatever the version, ended by a marked bookmark.
    """
    query = _query(
        watch="true",
        allowWatchBookmarks="true",
        resourceVersion="" if initial_events else resource_version,
        sendInitialEvents="true" if initial_events else "",
        resourceVersionMatch="NotOlderThan" if initial_events else "",
        labelSelector=labels,
        fieldSelector=fields,
        timeoutSeconds=str(timeout_seconds) if timeout_seconds else "",
    )
    return Request("GET", _path(resource, namespace) + query, _what("watch", resource, namespace), safe=True)


def create(resource: Resource, obj: Mapping[str, Any], namespace: str, dry_run: bool, *, strict: bool = False) -> Request:
    """Makes the request that creates an object, with apiVersion and kind filled in; it is `safe` only as `dry_run`.

    `strict`: the server refuses fields that the kind does not have.
    """
    target = _path(resource, namespace) + _query(dryRun="All" if dry_run else "", fieldValidation="Strict" if strict else "")
    metadata = obj.get("metadata") or {}
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    return Request("POST", target, _what("create", resource, namespace, name), dry_run, _body(resource, obj))


def replace(
    resource: Resource, name: str, obj: Mapping[str, Any], namespace: str, subresource: str, *, metadata_only: bool = False
) -> Request:
    """Makes the request that replaces an object or its subresource; `metadata_only`: the answer is only the object's metadata."""
    what = _what("replace", resource, namespace, name, subresource)
    accept = METADATA_ONLY if metadata_only else JSON
    target = _path(resource, namespace, name, subresource) + _query(fieldValidation="Ignore" if metadata_only else "")
    return Request("PUT", target, what, False, _body(resource, obj), accept=accept)


def patch(
    resource: Resource,
    name: str,
    change: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    namespace: str,
    *,
    subresource: str,
    kind: PatchKind,
    manager: str,
    force: bool,
) -> Request:
    """Makes the request that changes a part of an object, with apiVersion and kind filled in for APPLY; raises Rejected for APPLY without a
    `manager`.
    """
    if kind is PatchKind.APPLY and not manager:
        raise Rejected("server-side apply needs the name of a field manager", reason="ManagerMissing")
    body = _body(resource, change) if kind is PatchKind.APPLY and isinstance(change, Mapping) else _encode(change)
    target = _path(resource, namespace, name, subresource) + _query(fieldManager=manager, force="true" if force else "")
    return Request("PATCH", target, _what("patch", resource, namespace, name, subresource), False, body, kind.value)


def delete(resource: Resource, name: str, namespace: str, *, uid: str, resource_version: str, propagation: str) -> Request:
    """Makes the request that deletes an object, with preconditions where they are given."""
    options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if propagation:
        options["propagationPolicy"] = propagation
    conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
    if conditions:
        options["preconditions"] = conditions
    return Request("DELETE", _path(resource, namespace, name), _what("delete", resource, namespace, name), False, _encode(options))


def _body(resource: Resource, obj: Mapping[str, Any]) -> bytes:
    """Returns an object as JSON, with apiVersion and kind of its resource unless it names both itself."""
    if "apiVersion" in obj and "kind" in obj:
        return _encode(obj)
    return _encode({"apiVersion": resource.api_version, "kind": resource.kind, **obj})


def _path(resource: Resource, namespace: str, name: str = "", subresource: str = "") -> str:
    """Returns the path; raises Rejected for a name that would change its structure."""
    for part in (namespace, name):
        if "/" in part or "%" in part or part in (".", ".."):
            raise Rejected(f"{part!r} cannot be the name of an object", reason="NameWrong")
    return resource.path(quote(namespace, safe=""), quote(name, safe=":"), subresource)


def _query(**parameters: str) -> str:
    """Returns a URL's query with `?` from these parameters, escaped; without empty ones, and empty if none is left."""
    pairs = "&".join(f"{key}={quote(value, safe='')}" for key, value in parameters.items() if value)
    return "?" + pairs if pairs else ""


def _what(verb: str, resource: Resource, namespace: str, name: str = "", subresource: str = "") -> str:
    """Returns verb, resource and name in words for messages."""
    place = resource.name + (f"/{subresource}" if subresource else "")
    full = f"{namespace}/{name}" if namespace and name else name or namespace
    return f"{verb} {place} {full}".rstrip()
