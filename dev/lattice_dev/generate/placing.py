"""Moves each CEL rule to the field that it concerns, where the API server evaluates it only if the field is present; pure.

A rule on an object looks each field up by name, and each look-up costs as much as the object has fields: rules on optional fields, which
are mostly absent, are most of what a write of an Allocation costs. What is refused, and the sentence, stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Entry = dict[str, Any]

_ABSENT: Final = re.compile(r"!has\(self\.(?P<name>\w+)\)(?: \|\| (?P<unless>.+))?")
_KEPT: Final = re.compile(r"has\(self\.(\w+)\) == has\(oldSelf\.\1\) && \(!has\(self\.\1\) \|\| self\.\1 == oldSelf\.\1\)")
_RULES: Final = "x-kubernetes-validations"


def place_rules(node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of an object with each rule moved to the field that it concerns, where it can be; what is refused stays the same.

    Fields and rules keep their order.
    """
    properties = {name: dict(child) for name, child in node["properties"].items()}
    rules = node.get(_RULES, ())
    never = {found["name"] for entry in rules if (found := _ABSENT.fullmatch(entry["rule"])) and not found["unless"]}
    here: list[Entry] = []
    for entry in rules:
        if (kept := _KEPT.fullmatch(entry["rule"])) and kept[1] in never:
            continue  # what is refused whenever it is there cannot change
        for where, placed in _placed(entry, properties):
            if where:
                properties[where].setdefault(_RULES, []).append(placed)
            else:
                here.append(placed)
    made = {**node, "properties": properties}
    if here:
        made[_RULES] = here
    else:
        made.pop(_RULES, None)
    return made


def _placed(entry: Entry, properties: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
    """Yields (field, rule) for each rule that this one becomes; an empty field is the object itself."""
    rule = entry["rule"]
    absent = _ABSENT.fullmatch(rule)
    names = _KEPT.findall(rule)
    if absent and absent["name"] in properties and (at_field := _of_field(absent["name"], absent["unless"])):
        yield absent["name"], {**entry, "rule": at_field}
    elif names and rule == " && ".join(_kept(name) for name in names) and set(names) <= properties.keys():
        yield "", {**entry, "rule": " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in names)}
        for name in names:
            yield name, {**entry, "rule": "self == oldSelf"}
    else:
        yield "", entry


def _of_field(name: str, unless: str | None) -> str:
    """Returns what `self.NAME` must meet, in the words of the field itself; empty where the rule concerns anything else too.

    `unless` None: the field is refused whenever it is there.
    """
    if unless is None:
        return "false"
    own, count = re.subn(rf"\bself\.{name}\b", "self", unless)
    return own if count == len(re.findall(r"\b(?:self|oldSelf)\b", unless)) else ""


def _kept(name: str) -> str:
    """Returns the expression that a field is as it was, absent or equal."""
    return f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
