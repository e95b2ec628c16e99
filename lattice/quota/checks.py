"""Checks the rules of a quota tree for one group that is made, changed or removed, given the groups around it.

The rules are Koordinator's (R1 to R13 of its webhook) without its gaps: a cycle is found, no field is left out, and nothing is kept
between two questions. A fault that existed before, and that the change does not make worse, does not refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lattice.quota.amounts import KNOWN, quantity
from lattice.quota.declared import DEFAULT, DEFAULT_OBJECT, KOORDINATOR, KOORDINATOR_BUILT_IN, PROFILE, SYSTEM, Declared
from lattice.quota.groups import Resources


@dataclass(frozen=True, slots=True)
class Wrong:
    """A reason to refuse the change of a group: the word, the sentence with the numbers, the field, and the next step."""

    reason: str
    sentence: str
    field: str
    hint: str


@dataclass(frozen=True, slots=True)
class Odd:
    """A warning for a change that is allowed although it is seldom intended."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Around:
    """The facts around the checked group, as the webhook or the command line gathered them; None: unknown, and the rule is not checked."""

    others: Mapping[str, Declared]
    """All other groups by name."""
    used: Resources | None = None
    """The amounts that the work of the checked group holds."""
    work: int | None = None
    """How many allocations of the checked group, or of groups below it, have not ended."""
    capacity: Resources | None = None
    """The amounts that all nodes have together."""
    held: Mapping[str, Resources] | None = None
    """By name of a group: the amounts that its work holds."""

    def children(self, name: str) -> list[Declared]:
        """Returns the groups directly below the named one."""
        return [other for other in self.others.values() if other.parent == name]


Check = Callable[[Declared, Declared | None, Around], Iterator[Wrong | Odd]]


def check_group(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields every refusal and warning for a group that is made (`before` is None) or changed."""
    for check in _CHECKS:
        yield from check(group, before, around)


def check_removal(group: Declared, around: Around) -> Iterator[Wrong]:
    """Yields the reasons why a group cannot be removed: it is built in, has groups below it, or has work (R13)."""
    if group.name in KOORDINATOR_BUILT_IN or group.name in (DEFAULT, SYSTEM):
        yield Wrong("BuiltInGroup", f'quota "{group.name}" is built in and stays', "metadata.name", "set its max instead")
    children = around.children(group.name)
    if children:
        names = ", ".join(sorted(child.name for child in children)[:5])
        yield Wrong(
            "HasChildren",
            f'quota "{group.name}" has {len(children)} groups below it: {names}',
            "metadata.name",
            "delete or move these first",
        )
    if around.work:
        sentence = f'quota "{group.name}" has {around.work} allocations that have not ended'
        yield Wrong("InUse", sentence, "metadata.name", "wait for them or cancel them; admission 0 of every resource takes no more")


def _name(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R1 and R6: a name is used once, no object is called default or system, Lattice's objects do not take
    Koordinator's built-in names, and Koordinator's root and system are not changed.
    """
    ours = group.source.group != KOORDINATOR
    if group.name in (DEFAULT, SYSTEM) or (ours and group.name in KOORDINATOR_BUILT_IN):
        yield Wrong("BuiltInGroup", f'the quota "{group.name}" exists without an object', "metadata.name", "choose another name")
    if before is not None and group.name in KOORDINATOR_BUILT_IN and group.name != DEFAULT_OBJECT:
        hint = f'change the groups below it; the max of "{DEFAULT_OBJECT}" may be changed'
        yield Wrong("BuiltInGroup", f'the quota "{group.name}" is built in and cannot be changed', "spec", hint)
    other = around.others.get(group.name)
    if other is not None:
        sentence = f'the name "{group.name}" of {group.source.text} is taken by {other.source.text}: a name stands once in all quota trees'
        yield Wrong("NameTaken", sentence, "metadata.name", "choose another name, or delete the other object")


def _amounts(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R4: Lattice's groups have a max, and min is part of max and not above it.

    Yields a caution (Odd) on lending limits and weights without effect.
    """
    del before, around
    if not group.max and group.source.group != KOORDINATOR:
        yield Wrong("MissingValue", "spec.max names no resource: the group would manage nothing", "spec.max", "write for example nodes: 16")
    for key, amount in group.min.items():
        if key not in group.max:
            sentence = f"spec.min.{key} is {quantity(key, amount)}, and spec.max has no {key}"
            yield Wrong("MinAboveMax", sentence, f"spec.min.{key}", f"add {key} to spec.max, at least {quantity(key, amount)}")
        elif amount > group.max[key]:
            sentence = f"spec.min.{key} is {quantity(key, amount)}, above spec.max.{key}, which is {quantity(key, group.max[key])}"
            yield Wrong("MinAboveMax", sentence, f"spec.min.{key}", "lower min or raise max")
    for key, amount in group.lend_limit.items():
        if amount > group.min.get(key, 0):
            least = quantity(key, group.min.get(key, 0))
            yield Odd(f"spec.lending.limit.{key} is {quantity(key, amount)}, and there is only min to lend, which is {least}")
    if group.max and not any(group.weight.values()):
        yield Odd("every weight is 0: the group gets nothing beyond its min")
    else:
        for key in (key for key, weight in group.weight.items() if not weight and group.max[key]):
            yield Odd(f"the weight of {key} is 0: the group gets nothing of it beyond its min")


def _strict(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields a breach of R5 for each strict resource whose max is below its use, and a caution (Odd) for another resource whose max was
    lowered below it.
    """
    for key, used in (around.used or {}).items():
        most = group.max.get(key)
        if not used or (most is not None and most >= used):
            continue
        shown = "absent" if most is None else quantity(key, most)
        if key in group.strict:
            sentence = f"spec.max.{key} is {shown}, below the {quantity(key, used)} that are used, and {key} is a strict key"
            yield Wrong(
                "MaxBelowUsed", sentence, f"spec.max.{key}", f"set it to at least {quantity(key, used)}, or wait until less is used"
            )
        elif most is not None and (before is None or before.max.get(key) != most):
            yield Odd(f"spec.max.{key} is {shown}, below the {quantity(key, used)} that are used: nothing new starts until less is used")


def _claims(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R2: a namespace, a tenant, or a tenant in a vcluster is bound to one group only.

    Yields a caution (Odd) where something is bound to a parent.
    """
    del before
    namespaces = {name: other for other in around.others.values() for name in other.namespaces}
    for name in group.namespaces:
        if name in namespaces:
            sentence = f'namespace "{name}" belongs to {namespaces[name].source.text} already'
            yield Wrong("BindingTaken", sentence, _field(group, "namespaces"), "take it out there first")
    bindings = {binding: other for other in around.others.values() for binding in other.bindings}
    for binding in group.bindings:
        if binding in bindings:
            where = f' in vCluster "{binding.vcluster}"' if binding.vcluster else ""
            sentence = f'tenant "{binding.tenant}"{where} belongs to {bindings[binding].source.text} already'
            yield Wrong("BindingTaken", sentence, "spec.bindings", "take it out there first")
    if group.is_parent and (group.namespaces or group.bindings):
        yield Odd(f'"{group.name}" is a parent and has no work of its own: what is bound to it goes to the group "{DEFAULT}"')


def _parent(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields a breach of R9 where the parent does not exist, may have no children, is below the group, or changes while its work has not
    ended.

    A group of the first level breaks nothing here.
    """
    if not group.parent:
        return
    way = [group.name]
    name = group.parent
    while name and name not in way and name in around.others:
        way.append(name)
        name = around.others[name].parent
    if name == group.name:
        sentence = f'parent "{group.parent}" of "{group.name}" is below it, or is itself: {" → ".join([*way, name])}'
        yield Wrong("ParentCycle", sentence, _field(group, "parent"), "name a group that is not below this one")
        return
    parent = around.others.get(group.parent)
    if parent is None:
        parents = sorted(other.name for other in around.others.values() if other.is_parent)[:10]
        there = f"parents are {', '.join(parents)}" if parents else "there is no parent yet"
        sentence = f'parent "{group.parent}" of "{group.name}" does not exist'
        hint = f"make it first and apply this again, or name another ({there}); leave it out for the first level"
        yield Wrong("ParentUnknown", sentence, _field(group, "parent"), hint)
    elif not parent.is_parent:
        sentence = f'parent "{group.parent}" of "{group.name}" is no parent: its isParent is false'
        yield Wrong("ParentIsLeaf", sentence, _field(group, "parent"), "set isParent of that group to true; its work must go first")
    if before is not None and before.parent != group.parent and around.work:
        sentence = f'"{group.name}" cannot move from "{before.parent or "the first level"}": {around.work} allocations have not ended'
        yield Wrong("InUse", sentence, _field(group, "parent"), "wait for them or cancel them; or make a new group there")


def _role(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R7: a group with children stays a parent, a group with work stays a leaf."""
    children = around.children(group.name)
    if children and not group.is_parent:
        names = ", ".join(sorted(child.name for child in children)[:5])
        sentence = f'isParent of "{group.name}" is false, and {len(children)} groups are below it: {names}'
        yield Wrong("HasChildren", sentence, _field(group, "isParent"), "delete or move these first")
    if before is not None and group.is_parent and not before.is_parent and around.work:
        sentence = f'"{group.name}" cannot become a parent: {around.work} allocations of it have not ended, and a parent has no work'
        yield Wrong("ParentHasWork", sentence, _field(group, "isParent"), "wait for them or cancel them; or make a new parent above it")


def _moved(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields a breach where a group whose work has not ended moves to the first level."""
    if before is not None and before.parent and not group.parent and around.work:
        sentence = f'"{group.name}" cannot move from "{before.parent}" to the first level: {around.work} allocations have not ended'
        yield Wrong("InUse", sentence, _field(group, "parent"), "wait for them or cancel them; or make a new group there")


def _tree(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R8: the root of a tree is on the first level and selects nodes, no group with work or children enters or leaves
    a tree, and tree-ids never change and are those of the parents.
    """
    if group.tree is not None and group.parent:
        sentence = f'"{group.name}" is below "{group.parent}", and only a group of the first level is the root of a tree'
        yield Wrong("TreeInvalid", sentence, "spec.tree", "remove spec.tree or spec.parent")
    if group.tree is not None and not group.tree.nodes:
        yield Wrong("TreeInvalid", "spec.tree.nodes selects nothing: no field of it is given", "spec.tree.nodes", "name groups or features")
    if before is not None and (before.tree is None) != (group.tree is None) and (around.work or around.children(group.name)):
        sentence = f'"{group.name}" has groups below it or work, and would come into another tree with them'
        yield Wrong("InUse", sentence, "spec.tree", "make a new group with spec.tree, and move the others below it")
    if before is not None and group.tree_id != before.tree_id:
        sentence = f'the tree-id of "{group.name}" is "{before.tree_id}", and cannot become "{group.tree_id}"'
        yield Wrong("TreeInvalid", sentence, _field(group, "tree-id"), "make a new group in the other tree")
    near = [(around.others[group.parent], group)] if group.parent in around.others else []
    for above, below in (*near, *((group, child) for child in around.children(group.name))):
        theirs = below.source.group == KOORDINATOR and above.source.group in (KOORDINATOR, PROFILE)
        if theirs and above.tree_id != below.tree_id:
            sentence = f'the tree-id of "{below.name}" is "{below.tree_id}", and that of its parent "{above.name}" is "{above.tree_id}"'
            yield Wrong("TreeInvalid", sentence, _field(group, "tree-id"), "a group is in the tree of its parent")


def _resources(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R10: parent and child manage the same resources, and those of an existing tree change from the top, one group
    at a time.

    Yields a caution (Odd) on a resource that no node has.
    """
    if before is None or before.parent != group.parent:
        yield from _same_resources(group, around)
    elif before.max.keys() != group.max.keys():
        yield from _changed_resources(group, before, around)
    else:
        return
    if around.capacity is None:
        return
    for key in sorted(group.max.keys() - around.capacity.keys()):
        known = ", ".join(sorted(around.capacity)) or ", ".join(KNOWN)
        yield Odd(f"no node has {key}: the group gets nothing of it (nodes have {known})")


def _same_resources(group: Declared, around: Around) -> Iterator[Wrong]:
    """Yields where the resources of a new or moved group differ from those of the groups directly above and below it."""
    parent = around.others.get(group.parent)
    for above, below in [*([] if parent is None else [(parent, group)]), *((group, child) for child in around.children(group.name))]:
        for key in sorted(above.max.keys() ^ below.max.keys()):
            has, lacks = (above, below) if key in above.max else (below, above)
            sentence = (
                f'max of "{has.name}" has {key}, and max of "{lacks.name}" has not: a group and those below it manage the same resources'
            )
            yield Wrong("ResourcesDiffer", sentence, "spec.max", f"add {key} to both, or to neither")
        for key in sorted(key for key, amount in below.min.items() if amount and key not in above.min):
            sentence = f'min of "{below.name}" has {key}, and min of its parent "{above.name}" has not'
            yield Wrong("ResourcesDiffer", sentence, f"spec.min.{key}", f'add {key} to min of "{above.name}" first')


def _changed_resources(group: Declared, before: Declared, around: Around) -> Iterator[Wrong | Odd]:
    """Yields the reasons against a change of the resources that a group manages.

    A resource is added to a tree from the top and removed from the bottom, so no group manages one that a group above it lacks.
    """
    parent, children = around.others.get(group.parent), around.children(group.name)
    for key in sorted(group.max.keys() - before.max.keys()):
        if parent is not None and key not in parent.max:
            sentence = f'max of "{group.name}" would have {key}, and max of its parent "{parent.name}" has not'
            yield Wrong("ResourcesDiffer", sentence, "spec.max", f'add {key} to "{parent.name}" first')
        lacking = sorted(child.name for child in children if key not in child.max)
        if lacking:
            yield Odd(f'{key} is bounded at "{group.name}" alone until the groups below it have it in their max: {_first(lacking)}')
    for key in sorted(before.max.keys() - group.max.keys()):
        having = sorted(child.name for child in children if key in child.max)
        if having:
            sentence = f'max of "{group.name}" would have no {key}, and {len(having)} groups below it have: {_first(having)}'
            yield Wrong("ResourcesDiffer", sentence, "spec.max", f"take {key} out of these first")
        if parent is not None and key in parent.max:
            yield Odd(f'{key} is bounded at "{parent.name}" alone, not at "{group.name}", until it is taken out there, too')


def _first(names: list[str]) -> str:
    """Returns the first five of some names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _sums(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R11: where mins have grown or their parent's has shrunk, those of its children are not more than its own.

    Yields a caution (Odd) where the mins of the first level exceed the nodes.
    """
    if group.forced:
        return
    parent = around.others.get(group.parent)
    if parent is not None:
        old = before.min if before is not None and before.parent == group.parent else {}
        grown = {key: amount for key, amount in group.min.items() if amount > old.get(key, 0)}
        siblings = around.children(parent.name)
        for key in sorted(grown):
            total = group.min[key] + sum(sibling.min.get(key, 0) for sibling in siblings)
            yield from _over(group, key, total, len(siblings) + 1, parent)
    children = around.children(group.name)
    for key in sorted({key for child in children for key in child.min}):
        if before is None or group.min.get(key, 0) < before.min.get(key, 0):
            yield from _over(group, key, sum(child.min.get(key, 0) for child in children), len(children), group)
    if around.capacity is not None and not group.parent and group.tree is None and (before is None or before.min != group.min):
        level = [group, *(other for other in around.others.values() if not other.parent and other.tree is None)]
        for key in sorted(group.min.keys() & around.capacity.keys()):
            total = sum(each.min.get(key, 0) for each in level)
            there = around.capacity[key]
            if total > there:
                numbers = f"min.{key} of the first level is {quantity(key, total)} in sum, and the nodes have {quantity(key, there)}"
                yield Odd(f"{numbers}: mins shrink in proportion where all are asked for (status.effectiveMin)")


def _guarantees(group: Declared, before: Declared | None, around: Around) -> Iterator[Wrong | Odd]:
    """Yields each breach of R12: where a tree guarantees use, a min grows only as far as the groups above have the amount guaranteed;
    yields nothing where the use is not known.
    """
    above = _above(group, around)
    if around.held is None or not above or above[-1].tree is None or not above[-1].tree.guarantee_used:
        return
    old = before.min if before is not None and before.parent == group.parent else {}
    below = _below(around)
    for key in sorted(key for key, amount in group.min.items() if amount > old.get(key, 0)):
        floor, last, there = _guaranteed(group, key, below, around.held), group, 0
        for parent in above:
            others = sum(_guaranteed(child, key, below, around.held) for child in below.get(parent.name, ()) if child.name != last.name)
            wanted = max(parent.min.get(key, 0), others + floor)
            there = _guaranteed(parent, key, below, around.held)
            if wanted <= there:
                break
            floor, last = wanted, parent
        else:
            grown = f'spec.min.{key} of "{group.name}" would be {quantity(key, group.min[key])}, and this tree guarantees what is used'
            numbers = f'"{last.name}" would have to guarantee {quantity(key, floor)}, and has {quantity(key, there)}'
            yield Wrong("GuaranteeNotCovered", f"{grown}: {numbers}", f"spec.min.{key}", "wait until less is used there, or raise its min")


def _below(around: Around) -> dict[str, list[Declared]]:
    """Returns the groups directly below each group."""
    below: dict[str, list[Declared]] = {}
    for other in around.others.values():
        below.setdefault(other.parent, []).append(other)
    return below


def _above(group: Declared, around: Around) -> list[Declared]:
    """Returns the groups above one, the nearest first; empty where they do not lead to the first level."""
    way: list[Declared] = []
    name = group.parent
    while name:
        parent = around.others.get(name)
        if parent is None or parent in way:
            return []
        way.append(parent)
        name = parent.parent
    return way


def _guaranteed(group: Declared, key: str, below: Mapping[str, list[Declared]], held: Mapping[str, Resources]) -> int:
    """Returns how much of a resource is never taken back from a group: its min, or its use and its children's guarantees if more."""
    children = below.get(group.name, ())
    used = held.get(group.name, {}).get(key, 0)
    allocated = sum(_guaranteed(child, key, below, held) for child in children) if children else used
    return max(group.min.get(key, 0), allocated)


def _over(group: Declared, key: str, total: int, count: int, parent: Declared) -> Iterator[Wrong]:
    """Yields the broken rule MinSumAboveParent where `total`, the sum of the mins of a parent's `count` children, is above its own min of
    this resource.

    The rule is told with the figures of `group`, the child that is made or changed.
    """
    limit = parent.min.get(key, 0)
    if total > limit:
        sentence = f'min.{key} of the {count} groups below "{parent.name}" would be {quantity(key, total)} in sum, above its own min'
        numbers = f"(sum: {quantity(key, total)}, limit: {quantity(key, limit)}, this group: {quantity(key, group.min.get(key, 0))})"
        yield Wrong("MinSumAboveParent", f"{sentence} {numbers}", f"spec.min.{key}", f'lower a min below "{parent.name}", or raise its own')


_CHECKS: Final[tuple[Check, ...]] = (_name, _amounts, _strict, _claims, _parent, _moved, _role, _tree, _resources, _sums, _guarantees)
"""The checks in the order in which a person should hear of them."""


def _field(group: Declared, name: str) -> str:
    """Returns the path of a property: in the spec of Lattice's kind, or in a label or annotation of Koordinator's."""
    if group.source.group != KOORDINATOR:
        return f"spec.{name}"
    if name == "namespaces":
        return "metadata.annotations[quota.scheduling.koordinator.sh/namespaces]"
    label = {"isParent": "is-parent"}.get(name, name)
    return f"metadata.labels[quota.scheduling.koordinator.sh/{label}]"
