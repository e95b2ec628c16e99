"""Reads a manifest strictly, for the command line: types, unknown fields with "did you mean", parts that are not served yet.

This is the one module of admission that loads pydantic. The server prunes unknown fields with a warning; a person who misspells a
field wants to know before.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from lattice.models.allocation import Allocation
from lattice.models.config import LatticeConfig
from lattice.models.dag import DAG
from lattice.models.forms import form_of
from lattice.models.node import LatticeNode
from lattice.models.reservation import Reservation
from lattice.models.shape import API_VERSION, Kind, Part
from lattice.models.tenant import Tenant
from lattice.models.vcluster import VCluster

KINDS: Final[dict[str, type[Kind]]] = {
    kind.meta.kind: kind for kind in (Allocation, DAG, Tenant, VCluster, Reservation, LatticeConfig, LatticeNode)
}
"""The kinds that people write, by name."""

_UNION_TAGS = frozenset({"int", "str", "dict", "constrained-str", "constrained-int"})
_PATTERN = re.compile(r"String should match pattern '(.*)'", re.DOTALL)
"""Pydantic's words for a text that does not match."""
_ATOM = re.compile(
    r"!has\(self\.(?P<absent>\w+)\)|!self\.(?P<false>\w+)|size\(self\.(?P<empty>\w+)\) == 0"
    r"|self\.(?P<left>[\w.?]+?)(\.orValue\('(?P<default>\w+)'\))? (?P<how>==|!=) '(?P<right>\w+)'"
)


def parse_strict(kind: str, obj: dict[str, Any]) -> list[str]:
    """Returns each problem of a manifest as a sentence that names its field; empty: nothing is found that the server's schema would refuse.

    `status`, and rules of the schema that are not comparisons of single fields, are left to the server.
    """
    model = KINDS.get(kind)
    if model is None:
        return [f'kind "{kind}" is not known (known: {", ".join(sorted(KINDS))}){_meant(kind, list(KINDS))}']
    problems: list[str] = []
    if obj.get("apiVersion", API_VERSION) != API_VERSION:
        problems.append(f'apiVersion is "{obj["apiVersion"]}", and {kind} is served as {API_VERSION}')
    problems += _unknown(model, obj, "")
    problems += _wrong(model, obj)
    problems += _not_served(model, obj)
    return problems


def _unknown(model: type[BaseModel], obj: dict[str, Any], path: str) -> Iterator[str]:
    """Yields a sentence for each field of an object, at any depth, that its model does not have, with the name that was perhaps meant; does
    not look into metadata, status and maps of free names.
    """
    fields = _fields(model)
    for key, value in obj.items():
        at = f"{path}.{key}" if path else str(key)
        if key not in fields:
            yield f"{at} is no field of {path or 'the object'}{_meant(str(key), list(fields))}"
        elif at not in ("metadata", "status"):
            for child, item, where in _children(fields[key], value, at):
                yield from _unknown(child, item, where)


def _wrong(model: type[Kind], obj: dict[str, Any]) -> Iterator[str]:
    """Yields a sentence on the first problem that pydantic finds in each field, by the names that people write; unknown fields and `status`
    are left out.
    """
    judged = {key: value for key, value in obj.items() if key != "status"}
    try:
        model.model_validate(judged, strict=True)
    except ValidationError as error:
        seen: set[str] = set()
        for entry in error.errors(include_url=False, include_input=True):
            path = _path(entry["loc"])
            if entry["type"] != "extra_forbidden" and path not in seen:
                seen.add(path)
                yield f"{path}: {_sentence(entry['msg'], entry.get('input'), model.meta.kind, path)}"


def _not_served(model: type[Kind], obj: dict[str, Any]) -> Iterator[str]:
    """Yields the message of each rule of the schema that a part of an object breaks, of those that compare single fields (`_holds`)."""
    for part, value, _ in _parts(model, obj, ""):
        for rule in getattr(part, "rules", ()):
            if not _holds(rule.rule, value):
                yield rule.message


def _parts(model: type[BaseModel], obj: dict[str, Any], path: str) -> Iterator[tuple[type[BaseModel], dict[str, Any], str]]:
    """Yields model, value and path of an object and of all its parts at any depth, except metadata and status."""
    yield model, obj, path
    for key, annotation in _fields(model).items():
        if key in obj and not (not path and key in ("metadata", "status")):
            for child, item, where in _children(annotation, obj[key], f"{path}.{key}" if path else key):
                yield from _parts(child, item, where)


def _holds(rule: str, value: dict[str, Any]) -> bool:
    """Tells whether a schema rule of a simple shape holds for a part; True for rules of other shapes, which the server checks."""
    atoms = [_ATOM.fullmatch(atom) for atom in rule.split(" || ")]
    if any(atom is None for atom in atoms):
        return True
    return any(_atom_holds(atom, value) for atom in atoms if atom is not None)


def _atom_holds(atom: re.Match[str], value: dict[str, Any]) -> bool:
    """Tells whether one comparison of a rule holds for a part of an object: a field is absent, false or empty, or equal or unequal to a
    text; the rule's default stands for an absent one.
    """
    if atom["absent"]:
        return value.get(atom["absent"]) is None
    if atom["false"]:
        return not value.get(atom["false"])
    if atom["empty"]:
        return not value.get(atom["empty"])
    found: Any = value
    for key in atom["left"].replace("?", "").split("."):
        found = found.get(key) if isinstance(found, dict) else None
    found = atom["default"] if found is None else found
    equal: bool = found == atom["right"]
    return equal is (atom["how"] == "==")


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the annotation of each field of a model, by the names that people write."""
    return {(info.alias or name): info.annotation for name, info in model.model_fields.items()}


def _children(annotation: Any, value: Any, path: str) -> Iterator[tuple[type[BaseModel], dict[str, Any], str]]:
    """Yields (model, value, path) of the parts inside a field's value: the value itself, or each item of a list."""
    part = _part_of(annotation)
    if part is None:
        return
    if isinstance(value, dict):
        yield part, value, path
    elif isinstance(value, list):
        yield from ((part, item, f"{path}[{index}]") for index, item in enumerate(value) if isinstance(item, dict))


def _part_of(annotation: Any) -> type[BaseModel] | None:
    """Returns the model of parts that a type annotation names, also inside a list or an optional; None: it names none."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((part for part in map(_part_of, typing.get_args(annotation)) if part is not None), None)


def _path(location: tuple[int | str, ...]) -> str:
    """Returns the place of an error in a manifest as text, such as `spec.tasks[0]`; `the object` for the whole."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step not in _UNION_TAGS:
            path += f".{step}" if path else step
    return path or "the object"


def _sentence(message: str, given: Any, kind: str, path: str) -> str:
    """Returns what is wrong with the value at a path of an object, from the library's message and the value given, shown if it is short.

    Where its form is wrong, the next step follows.
    """
    message = message.removeprefix("Value error, ")
    pattern = _PATTERN.fullmatch(message)
    form = form_of(pattern[1]) if pattern is not None else None
    if form is not None:
        return f"{form.words(given)} ({form.what_next(kind, path)})"
    lowered = message[:1].lower() + message[1:]
    if type(given).__name__ in ("datetime", "date"):
        return f"{lowered}; YAML reads it as a time: put it in quotes"
    shown = f" (given: {given!r})" if isinstance(given, str | int | float) and len(repr(given)) <= 60 and repr(given) not in lowered else ""
    return lowered + shown


def _meant(word: str, known: list[str]) -> str:
    """Returns a suggestion such as `: did you mean "nodes"?`; empty when no known word is near."""
    folded = {name.replace("_", "").lower(): name for name in known}
    near = difflib.get_close_matches(word.replace("_", "").lower(), list(folded), n=1, cutoff=0.6)
    return f': did you mean "{folded[near[0]]}"?' if near else ""
