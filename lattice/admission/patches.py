"""Builds the JSON patch (RFC 6902) from one object to another, which the mutating webhook returns."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.admission.verdicts import Object


def difference(old: Object, new: Object, path: str = "") -> list[Object]:
    """Returns the operations that turn `old` into `new`, in the order of their application; a changed list is replaced as a whole.

    `path`: the JSON pointer of both in their document, written before each operation's path.
    """
    return list(_operations(old, new, path))


def _operations(old: Object, new: Object, path: str) -> Iterator[Object]:
    """Yields the operations of a JSON patch that make `new` out of `old`, both at this path.

    Maps are compared key by key, anything else, lists too, is replaced whole; values of different types differ.
    """
    for key in old.keys() - new.keys():
        yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in new.items():
        if key in old and old[key] is value:
            continue  # shared by both
        at = f"{path}/{_escaped(key)}"
        if key not in old:
            yield {"op": "add", "path": at, "value": value}
        elif isinstance(old[key], dict) and isinstance(value, dict):
            yield from _operations(old[key], value, at)
        elif old[key] != value or type(old[key]) is not type(value):
            yield {"op": "replace", "path": at, "value": value}


def _escaped(key: str) -> str:
    """Returns a key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
