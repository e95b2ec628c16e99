"""The verbs of an API server as a Protocol: what all rooms above use, and what the fake implements too.

Answers are decoded by msgspec into the `type` asked for (default: the plain object). Every error is one of `lattice.errors`: NotFound
(404), Stale (409 conflict), AlreadyExists (409), Expired (410), Denied (401, 403), Rejected (400, 413, 415, 422), Retry (429, 503 with
Retry-After, no connection, or a read that did not go through) and UnknownOutcome (a write whose answer never came, or a 5xx).
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
"""The plain object, into which a verb decodes when no type is asked for."""


class PatchKind(enum.Enum):
    """The kinds of a patch; the value is the content type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class EventKind(enum.Enum):
    """The kinds of watch events."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event of a watch. A bookmark has no object; `initial_end` marks the bookmark after the last initial event."""

    kind: EventKind
    object: T | None
    resource_version: str
    initial_end: bool = False


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list, and the resourceVersion of the list."""

    items: list[T]
    resource_version: str


class Cluster(Protocol):
    """An API server reached through asyncio; `namespace` is empty for cluster objects, and for lists of all namespaces."""

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
        """Returns all objects of a namespace (empty: of all) that match the selectors, read from etcd and in one page, with the list's
        version.
        """
        ...

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
        """Creates an object and returns it as stored; raises AlreadyExists when its name is taken.

        `dry_run`: the server checks and answers, and stores nothing. `strict`: it refuses fields that the kind does not have.
        """
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
        """Replaces an object or its subresource; raises Stale when `metadata.resourceVersion` is given and is not the newest.

        With `metadata_only` the answer is only the metadata, for a `type` that has no other field.
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
        """Changes a part of an object, or of its `subresource`, and returns it as stored; APPLY needs `manager`, and with `force` it takes
        fields from other managers.

        Raises NotFound where there is none (APPLY creates it), Stale when the patch names a resourceVersion that is not the newest.
        """
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
        """Asks for the deletion of an object, and returns before it is gone; raises NotFound where there is none.

        With `uid` or `resource_version` it deletes exactly that one (else raises Stale).
        """
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
        """Yields changes after `resource_version` until the server ends the stream; raises Expired when that is too old.

        With `initial_events` (and no version) the existing objects come first, as ADDED, ended by a bookmark with `initial_end`; raises
        Rejected where the server does not serve that. Close it with `aclosing`.
        """
        ...
