"""Lists objects of a kind for people who may read only some of them by name, as the server's rules review says."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from lattice.errors import Denied, NotFound
from lattice.kube.resources import SELF_SUBJECT_RULES_REVIEWS, Resource

if TYPE_CHECKING:
    from lattice.cli.console import Console

T = TypeVar("T")


def list_readable(console: Console, resource: Resource, namespace: str = "default", *, type: type[T]) -> list[T]:  # noqa: A002 - as in lattice.kube
    """Returns all objects of a kind in the whole cluster; for a person who may not list them, those that rules for `namespace` let him read
    by name, sorted, deleted ones left out.
    """
    try:
        return console.cluster.list(resource, type=type).items
    except Denied:
        pass  # ordinary users read those that concern them
    found = []
    for name in _names_readable(console, resource.plural, namespace):
        with contextlib.suppress(NotFound):  # deleted just now
            found.append(console.cluster.get(resource, name, type=type))
    return found


def _names_readable(console: Console, plural: str, namespace: str) -> list[str]:
    """Returns the object names that the person's rules name for this resource, sorted."""
    review = console.cluster.create(SELF_SUBJECT_RULES_REVIEWS, {"spec": {"namespace": namespace}}, type=dict[str, Any])
    rules = (review.get("status") or {}).get("resourceRules") or []
    return sorted({name for rule in rules if plural in rule.get("resources", ()) for name in rule.get("resourceNames", ())})
