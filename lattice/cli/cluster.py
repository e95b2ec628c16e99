"""The verbs of an API server that the command line uses, as a Protocol; `lattice.kube.blocking` implements them."""

# ruff: noqa: A002 - the verbs of lattice.kube name the wanted type `type`

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from lattice.kube.cluster import Listing, PatchKind, WatchEvent
    from lattice.kube.resources import Resource

T = TypeVar("T")


class Blocking(Protocol):
    """An API server that answers one request at a time; errors are those of `lattice.errors`."""

    def get(self, resource: Resource, name: str, namespace: str = "", *, type: type[T]) -> T:
        """Returns one object of this kind and name, decoded as `type`; raises NotFound where there is none."""
        ...

    def list(self, resource: Resource, namespace: str = "", *, type: type[T], labels: str = "", fields: str = "") -> Listing[T]:
        """Returns all objects of a namespace (empty: of all) that match the selectors, decoded as `type`, with the list's version."""
        ...

    def ask_list(self, resource: Resource, namespace: str = "", *, fields: str = "") -> None:
        """Sends the request of the next `list` with these arguments ahead, so that the server works on it meanwhile."""
        ...

    def create(self, resource: Resource, obj: Mapping[str, Any], namespace: str = "", *, type: type[T], dry_run: bool = False) -> T:
        """Creates an object and returns it as stored, decoded as `type`; raises AlreadyExists when its name is taken.

        `dry_run`: the server checks and answers, and stores nothing.
        """
        ...

    def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str = "",
        *,
        subresource: str = "",
        type: type[T],
        kind: PatchKind = ...,
        manager: str = "",
        force: bool = False,
    ) -> T:
        """Changes a part of an object, or of its `subresource`, and returns it as stored, decoded as `type`.

        Raises NotFound where there is none (APPLY creates it), Stale when the patch names a version that is not the newest.
        """
        ...

    def delete(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Asks for the deletion of an object, and returns before it is gone; raises NotFound where there is none.

        With `uid` it deletes exactly that one, else raises Stale.
        """
        ...

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        type: type[T],
        resource_version: str = "",
        labels: str = "",
        fields: str = "",
        timeout_seconds: int = 300,
    ) -> Generator[WatchEvent[T], None, None]:
        """Yields changes after `resource_version` of the objects that match, until the server ends the stream after `timeout_seconds`."""
        ...

    def version(self) -> dict[str, str]:
        """Returns the server's version as it tells it, such as `gitVersion`."""
        ...
