"""Reads a quota tree from one JSON object that a person or program wrote, and returns its division as plain data.

{"total": {…}, "options": {…}, "quotas": [{"name", "parent", "isParent", "min", "max", "sharedWeight", …}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lattice.errors import Rejected
from lattice.quota.amounts import amount_of, resource_of
from lattice.quota.groups import ROOT, Group, Options
from lattice.quota.rules import Fault, odd_faults, rule_faults, structural_faults
from lattice.quota.tree import QuotaTree

LARGEST: Final = 2**63 - 1
LONGEST_NAME: Final = 253
EXACT: Final = 2**53
"""Smaller numbers written with a point or an exponent are exact: 1e3 means 1000."""
_SHOWN: Final = 20
_TOP: Final = ("total", "options", "quotas")
_OPTIONS: Final = ("scaleMin", "guarantee", "rawWeight", "sysUsed", "defUsed")
_AMOUNTS: Final = ("min", "max", "sharedWeight", "request", "used", "npRequest", "npUsed", "allocatedFloor", "lendLimit", "lendingLimit")
_SWITCHES: Final = ("isParent", "allowLent", "scaleMin", "usedKeepKeys")
_FIELDS: Final = ("name", "parent", *_AMOUNTS, *_SWITCHES)
_REQUIRED: Final = ("min", "max")


@dataclass(frozen=True, slots=True)
class Document:
    """A quota tree as a JSON document states it: the amounts to divide, the options, the groups with their demand."""

    total: dict[str, int]
    options: Options
    groups: tuple[Group, ...]
    of_koordinator: bool
    """Its groups name Koordinator's root as parent: a state that its scheduler divides, whether or not its webhook would allow it."""

    def faults(self) -> list[Fault]:
        """Returns the rules that the groups break; empty: none."""
        system, default = self.options.system_used, self.options.default_used
        free = {key: max(0, amount - system.get(key, 0) - default.get(key, 0)) for key, amount in self.total.items()}
        return rule_faults(free, self.groups)

    def oddities(self) -> list[Fault]:
        """Returns states that are allowed but deserve a warning."""
        return odd_faults(self.groups)

    def tree(self) -> QuotaTree:
        """Returns the quota tree of the document."""
        return QuotaTree(self.total, self.options, self.groups)


def read_document(text: str) -> Document:
    """Returns the tree of a JSON text; raises Rejected with a line for each fault where it is malformed or its groups make no tree."""
    if not text.strip():
        raise Rejected('the document is empty: write {"total": {"nodes": 100}, "quotas": […]}', reason="BadDocument")
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise Rejected("the document nests too deep to be a tree of quotas", reason="BadDocument") from error
    except ValueError as error:
        raise Rejected(f"the document is no JSON: {error}", reason="BadDocument") from error
    reader = _DocumentReader()
    document = reader.document(data)
    refuse(reader.faults)
    refuse(structural_faults(document.groups))
    return document


def refuse(faults: list[Fault]) -> None:
    """Raises Rejected with a line for each fault; returns where there is none."""
    if not faults:
        return
    lines = [fault.sentence for fault in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"and {len(faults) - _SHOWN} more")
    raise Rejected("\n  ".join(lines), reason=faults[0].reason)


def answer(tree: QuotaTree, names: Iterable[str]) -> dict[str, Any]:
    """Returns the runtime and the effective min of the root and of each named group."""
    tree.refresh()
    return {name: {"runtime": tree.runtime(name), "effectiveMin": tree.effective_min(name)} for name in (ROOT, *names)}


class _DocumentReader:
    """Converts a parsed document and collects all its faults, each with its place."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def document(self, data: object) -> Document:
        """Returns the document that this JSON object says, with a fault added to `faults` for each part that is missing or wrong.

        Such a part is read as empty, so that all faults are found in one pass.
        """
        top = self._object("the document", data, _TOP)
        for key, example in (("total", '"total": {"nodes": 100}'), ("quotas", '"quotas": []')):
            if key not in top and isinstance(data, Mapping):
                self._fault("MissingValue", f"{key} is missing: write for example {example}")
        total = self._amounts("total", top.get("total", {}))
        options = self._options(top.get("options", {}))
        entries = top.get("quotas", [])
        if not isinstance(entries, list):
            self._fault("BadDocument", f"quotas is {_shown(entries)}, not a list of groups")
            entries = []
        parents = {parent for entry in entries if isinstance(entry, Mapping) and isinstance(parent := entry.get("parent"), str)}
        groups = tuple(self._group(f"quotas[{at}]", entry, parents) for at, entry in enumerate(entries))
        return Document(total, options, groups, of_koordinator=ROOT in parents or not entries)

    def _options(self, value: object) -> Options:
        """Returns the options of the tree; notes a fault for each wrong field, and takes its default instead."""
        given = self._object("options", value, _OPTIONS)
        return Options(
            scale_min=self._switch("options: scaleMin", given.get("scaleMin", False)),
            guarantee_used=self._switch("options: guarantee", given.get("guarantee", False)),
            raw_weight=self._switch("options: rawWeight", given.get("rawWeight", False)),
            system_used=self._amounts("options: sysUsed", given.get("sysUsed", {})),
            default_used=self._amounts("options: defUsed", given.get("defUsed", {})),
        )

    def _group(self, place: str, value: object, parents: set[str]) -> Group:
        """Returns one group from its JSON object; notes a fault for each missing, unknown or wrong field, which then counts as empty.

        `parents`: the names that any group gives as its parent; such a group is a parent unless isParent says otherwise.
        """
        if not isinstance(value, Mapping):
            self._object(place, value, _FIELDS)
            return Group("")
        name = self._name(place, value)
        place = f'quota "{name}"' if name else place
        given = self._object(place, value, _FIELDS)
        for key in _REQUIRED:
            if key not in given:
                self._fault("MissingValue", f"{place}: {key} is missing (write {{}} for nothing)")
        amounts = {key: self._amounts(f"{place}: {key}", given.get(key, {})) for key in _AMOUNTS}
        if "lendLimit" in given and "lendingLimit" in given:
            self._fault("BadDocument", f"{place}: lendLimit and lendingLimit are one field: write one of them")
        switches = {key: self._switch(f"{place}: {key}", given[key]) for key in _SWITCHES if key in given}
        return Group(
            name=name,
            parent=self._parent(place, given.get("parent")),
            is_parent=switches.get("isParent", name in parents),
            min=amounts["min"],
            max=amounts["max"],
            shared_weight=amounts["sharedWeight"],
            lends=switches.get("allowLent", True),
            lend_limit=amounts["lendLimit"] or amounts["lendingLimit"],
            scales=switches.get("scaleMin"),
            request=amounts["request"],
            used=amounts["used"],
            non_preemptible_used=amounts["npUsed"],
            floor=amounts["allocatedFloor"],
            keeps_unmanaged=switches.get("usedKeepKeys", False),
        )

    def _object(self, place: str, value: object, known: tuple[str, ...]) -> Mapping[str, Any]:
        """Returns a JSON object, with a fault noted for each field that is not in `known`.

        Anything else than an object is a fault too, and counts as an empty one.
        """
        if not isinstance(value, Mapping):
            self._fault("BadDocument", f"{place} is {_shown(value)}, not an object with {', '.join(known)}")
            return {}
        for key in value:
            if key not in known:
                self._fault("UnknownField", f"{place}: there is no field {_shown(key)}; there are {', '.join(known)}")
        return value

    def _name(self, place: str, given: Mapping[str, Any]) -> str:
        """Returns the name of a group; notes a fault and returns the empty text where it is missing, not text, too long or not
        printable.
        """
        name = given.get("name")
        if name is None:
            self._fault("MissingValue", f"{place}: name is missing: give the group one that no other has")
        elif not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            self._fault("BadDocument", f"{place}: name is {_shown(name)}, not a text of 1 to {LONGEST_NAME} printable characters")
        else:
            return name
        return ""

    def _parent(self, place: str, value: object) -> str:
        """Returns the name of a group's parent, the root where it is absent or empty.

        Anything but text is a fault, and counts as the root.
        """
        if value is None or value == "":
            return ROOT
        if not isinstance(value, str):
            self._fault("BadDocument", f"{place}: parent is {_shown(value)}, not the name of a group")
            return ROOT
        return value

    def _switch(self, place: str, value: object) -> bool:
        """Returns true or false; anything else is a fault, and counts as false."""
        if not isinstance(value, bool):
            self._fault("BadDocument", f"{place} is {_shown(value)}, not true or false")
        return value is True

    def _amounts(self, place: str, value: object) -> dict[str, int]:
        """Returns whole numbers by resource; anything but an object is a fault, and counts as empty."""
        if not isinstance(value, Mapping):
            self._fault("BadDocument", f"{place} is {_shown(value)}, not an object of whole numbers by resource")
            return {}
        return {key: self._amount(f"{place}.{key}", key, amount) for key, amount in value.items()}

    def _amount(self, place: str, key: str, value: object) -> int:
        """Returns an amount of a resource (`key`) as a whole number; a float that is a whole number counts as one.

        Notes a fault and returns 0 for null, a fraction, other types, and numbers below 0 or above the largest.
        """
        if isinstance(value, float) and abs(value) < EXACT and value.is_integer():
            value = int(value)
        if value is None:
            self._fault("MissingValue", f"{place} is missing (null): write a whole number, or leave {_shown(key)} out")
        elif isinstance(value, bool) or not isinstance(value, int):
            units = "cpu in millicores, memory in bytes, all else in its own unit"
            self._fault("NotAWholeNumber", f"{place} is {_shown(value)}, not a whole number ({units}){_instead(key, value)}")
        elif value < 0:
            self._fault("NegativeAmount", f"{place} is {_shown(value)}, below 0: write 0 or more")
        elif value > LARGEST:
            self._fault("AmountTooLarge", f"{place} is {_shown(value)}, above {LARGEST}: count in a larger unit")
        else:
            return value
        return 0

    def _fault(self, reason: str, sentence: str) -> None:
        """Adds a fault to those found."""
        self.faults.append(Fault(reason, sentence))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; raises ValueError where a key stands in it twice."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"the key {_shown(key)} stands twice in one object")
        made[key] = value
    return made


def _instead(key: str, value: object) -> str:
    """Returns the whole number of a Kubernetes quantity as a next step; empty where the value is no quantity."""
    if not isinstance(value, str):
        return ""
    try:
        return f": write {amount_of(resource_of(key), value, field=key)}"
    except Rejected:
        return ""


def _shown(value: object) -> str:
    """Returns a value as JSON writes it, cut to a line's width."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
