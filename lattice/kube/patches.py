"""Applies JSON merge patches (RFC 7386) and JSON patches (RFC 6902) to plain objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from lattice.errors import Rejected


def merge(target: Any, patch: Any) -> Any:
    """Returns a new value: `patch` merged into `target`, which stays; None removes a key, and a patch that is no map replaces the whole."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Returns a new value after the operations in order, `target` stays; raises Rejected where one does not fit, or a `test` fails."""
    document = copy.deepcopy(target)
    for position, operation in enumerate(operations):
        try:
            document = _one(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Rejected(f"operation {position} of the JSON patch does not fit: {operation}", reason="Invalid") from error
    return document


def _one(document: Any, operation: Mapping[str, Any]) -> Any:
    """Returns a document with one operation of a JSON patch applied; the document itself is changed.

    Raises ValueError for a failed test or an unknown operation, KeyError or IndexError for a place that does not exist.
    """
    verb, path = operation["op"], _pointer(operation["path"])
    if verb == "test":
        if _read(document, path) != operation["value"]:
            raise ValueError(operation["path"])
        return document
    if verb in ("move", "copy"):
        source = _pointer(operation["from"])
        value = copy.deepcopy(_read(document, source))
        if verb == "move":
            document = _remove(document, source)
        return _add(document, path, value)
    if verb == "remove":
        return _remove(document, path)
    if verb == "replace":
        _read(document, path)
        return _add(_remove(document, path), path, operation["value"]) if path else operation["value"]
    if verb == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    raise ValueError(verb)


def _pointer(text: str) -> list[str]:
    """Returns the parts of a JSON pointer, unescaped; the empty pointer has none."""
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _read(document: Any, path: Sequence[str]) -> Any:
    """Returns the value at a place of a document. Raises KeyError, IndexError or ValueError where there is none."""
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    """Puts a value at a place and returns the document; an empty path returns the value instead.

    In a list the value is inserted, `-` is its end; raises IndexError beyond that.
    """
    if not path:
        return value
    place, last = _read(document, path[:-1]), path[-1]
    if isinstance(place, list):
        index = len(place) if last == "-" else int(last)
        if not 0 <= index <= len(place):
            raise IndexError(last)
        place.insert(index, value)
    else:
        place[last] = value
    return document


def _remove(document: Any, path: Sequence[str]) -> Any:
    """Deletes what is at a place, and returns the document. Raises KeyError or IndexError where nothing is."""
    place, last = _read(document, path[:-1]), path[-1]
    if isinstance(place, list):
        del place[int(last)]
    else:
        del place[last]
    return document
