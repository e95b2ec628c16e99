"""The verbs of an API server as a Protocol: what every room above asks for, and what the fake offers too.

Answers are decoded by msgspec into the `type` that is asked for (default: the plain object). Every error is
one of `lattice.errors`: NotFound (404), Stale (409 conflict), AlreadyExists (409), Expired (410), Denied
(401, 403), Rejected (400, 413, 415, 422), Retry (429, 503 with Retry-After, no connection, or a read
that did not go through) and UnknownOutcome (a write whose answer never came, or a 5xx).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol

from lattice.kube.resources import Resource

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=dict[str, Any])
else:
    from typing import TypeVar

    T = TypeVar("T")

OBJECT: Any = dict[str, Any]
"""The plain object: what a verb decodes into when no type is asked for."""


class PatchKind(enum.Enum):
    """The kind of a patch; the value is its content type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class EventKind(enum.Enum):
    """The kind of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event; a bookmark has no object; `initial_end` marks the bookmark that ends the initial events."""

    kind: EventKind
    object: T | None
    resource_version: str
    initial_end: bool = False


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list, and the version of the whole."""

    items: list[T]
    resource_version: str


class Cluster(Protocol):
    """An API server, seen through asyncio; `namespace` is empty for cluster objects (and lists of all namespaces)."""

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
        """Reads one object, consistently; `metadata_only`: no more than its metadata, for a `type` that has nothing else.

        `cached`: as the server's watch cache has it, of any age, which costs neither etcd a read nor the server a decoding. A cache that is
        behind may also say NotFound of an object that is there.
        """
        ...

    async def list(
        self, resource: Resource, namespace: str = "", *, type: type[T] = OBJECT, labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """Reads all objects that match the selectors, consistently and in one page."""
        ...

    async def create(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str = "", *, type: type[T] = OBJECT, dry_run: bool = False
    ) -> T:
        """Creates an object; AlreadyExists when its name is taken."""
        ...

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
        """Replaces an object, or its subresource; Stale when `metadata.resourceVersion` is given and is not the newest.

        `metadata_only`: the answer is no more than its metadata, for a `type` that has nothing else.
        """
        ...

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
        """Change a part of an object; Stale when the patch names a `metadata.resourceVersion` that is not the newest."""
        ...

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
        """Asks for the end of an object; with `uid` or `resource_version` only of exactly that one (else Stale)."""
        ...

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
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Follows changes after `resource_version` until the server ends the stream; Expired when it is too old.

        With `initial_events` (and no version) the objects that exist come first, as ADDED, ended by a bookmark with `initial_end`;
        Rejected where the server does not serve that. Close it with `aclosing`.
        """
        ...
