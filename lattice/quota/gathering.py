"""Selects from all declared groups those that make trees; leaves out doubled names, groups without a parent, and cycles.

Admission refuses such objects, but it may have been down: the builder of the trees relies on this alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lattice.quota.declared import DEFAULT, KOORDINATOR, KOORDINATOR_BUILT_IN, SYSTEM, Declared, precedence

REASONS: Final[dict[str, str]] = {
    "NameTaken": "another object declares a group of this name, and was made earlier",
    "BuiltInGroup": "the group exists without an object",
    "ParentUnknown": "the group above does not exist, or is itself left out",
    "ParentIsLeaf": "the group above is no parent",
    "ParentCycle": "the group is above itself",
    "TreeNotAtTop": "a group below another one cannot be the root of a tree",
}
"""By reason for which a declared group takes no part in any tree: its meaning."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A declared group that takes no part in any tree, with the reason and the sentence."""

    declared: Declared
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """The declared groups that make trees, and those that are left out."""

    groups: Mapping[str, Declared]
    """The groups that take part, by name, parents before their children."""
    left_out: tuple[LeftOut, ...]
    built_in: tuple[Declared, ...] = ()
    """Koordinator's own objects for its built-in groups: their max bounds the default group."""

    def tree_of(self, name: str) -> str:
        """Returns the root of a group's tree; "" for the default tree."""
        group = self.groups[name]
        while group.parent:
            group = self.groups[group.parent]
        return group.name if group.tree is not None else ""


def gather(declared: Iterable[Declared]) -> Gathered:
    """Returns the declared groups that make trees: their name is theirs alone, and parents lead from them to the first level.

    The others are left out with a reason; Koordinator's objects for its built-in groups are apart.
    """
    left_out: list[LeftOut] = []
    built_in: list[Declared] = []
    by_name: dict[str, Declared] = {}
    for each in sorted(declared, key=precedence):
        if each.name in KOORDINATOR_BUILT_IN and each.source.group == KOORDINATOR:
            built_in.append(each)
        elif each.name in (DEFAULT, SYSTEM) or each.name in KOORDINATOR_BUILT_IN:
            left_out.append(LeftOut(each, "BuiltInGroup", f'the group "{each.name}" exists without an object: choose another name'))
        elif each.name in by_name:
            other = by_name[each.name].source.text
            message = f'{each.source.text}: the name "{each.name}" is taken by {other}, which was made earlier: rename one of the two'
            left_out.append(LeftOut(each, "NameTaken", message))
        else:
            by_name[each.name] = each
    groups: dict[str, Declared] = {}
    below: dict[str, list[Declared]] = {}
    for each in by_name.values():
        below.setdefault(each.parent, []).append(each)
    waiting = list(below.pop("", ()))
    for each in waiting:
        if each.parent and each.tree is not None:
            left_out.append(
                LeftOut(each, "TreeNotAtTop", f'"{each.name}" is below "{each.parent}": only a first level has a tree of its own')
            )
            continue
        if each.parent and not groups[each.parent].is_parent:
            left_out.append(
                LeftOut(each, "ParentIsLeaf", f'parent "{each.parent}" of "{each.name}" is no parent: set its isParent to true')
            )
            continue
        groups[each.name] = each
        waiting.extend(below.pop(each.name, ()))
    left_out += [_lost(each, by_name, groups) for rest in below.values() for each in rest]
    return Gathered(groups, tuple(left_out), tuple(built_in))


def _lost(each: Declared, by_name: Mapping[str, Declared], groups: Mapping[str, Declared]) -> LeftOut:
    """Returns why no parents lead from a group to the first level: a cycle, an unknown parent, or one that takes no part."""
    seen = [each.name]
    above = by_name.get(each.parent)
    while above is not None and above.name not in seen and above.name not in groups:
        seen.append(above.name)
        above = by_name.get(above.parent)
    if above is not None and above.name == each.name:
        way = " → ".join([*seen, each.name])
        return LeftOut(each, "ParentCycle", f'"{each.name}" is above itself: {way}: give one of them another parent')
    if each.parent in by_name:
        return LeftOut(each, "ParentUnknown", f'parent "{each.parent}" of "{each.name}" takes no part itself: its condition says why')
    return LeftOut(each, "ParentUnknown", f'parent "{each.parent}" of "{each.name}" does not exist: make it, or name another one')
