"""Parses label and field selectors as the server does, for the fake: text in, a test of an object out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lattice.errors import Rejected

Test = Callable[[Mapping[str, Any]], bool]

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<verb>in|notin)\s+\((?P<values>[^()]*)\)$")
_COMMA = re.compile(r",(?![^(]*\))")


def parse(labels: str, fields: str) -> Test:
    """Returns the test of both selectors; raises Rejected where one does not parse."""
    tests = [_label_test(part.strip()) for part in _COMMA.split(labels) if part.strip()]
    tests += [_field_test(part.strip()) for part in fields.split(",") if part.strip()]
    return lambda obj: all(test(obj) for test in tests)


def _label_test(part: str) -> Test:
    """Returns the test of an object for one part of a label selector: in, notin, !=, =, a key that exists, or does not (!key).

    Raises Rejected where it does not parse.
    """
    if found := _SET.match(part):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        wanted = found["verb"] == "in"
        return lambda obj: (_labels(obj).get(key) in values) is wanted
    for operator in ("!=", "==", "="):
        if operator in part:
            key, value = (side.strip() for side in part.split(operator, 1))
            if operator == "!=":
                return lambda obj: _labels(obj).get(key) != value
            return lambda obj: _labels(obj).get(key) == value
    if part.startswith("!"):
        return lambda obj: part[1:] not in _labels(obj)
    if re.search(r"[\s()]", part):
        raise Rejected(f"the label selector {part!r} does not parse", reason="BadRequest")
    return lambda obj: part in _labels(obj)


def _field_test(part: str) -> Test:
    """Returns the test of an object for one part of a field selector: PATH=VALUE or PATH!=VALUE; a missing field counts as empty.

    Raises Rejected where it does not parse.
    """
    for operator in ("!=", "==", "="):
        if operator in part:
            path, value = (side.strip() for side in part.split(operator, 1))
            wanted = operator != "!="
            return lambda obj: (_field(obj, path) == value) is wanted
    raise Rejected(f"the field selector {part!r} does not parse", reason="BadRequest")


def _labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the labels of an object; empty where it has none."""
    return obj["metadata"].get("labels") or {}


def _field(obj: Mapping[str, Any], path: str) -> str:
    """Returns the text of the field at a dotted path; empty where it is missing or null."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
