"""The rules for the quota tree of a document; each broken rule is a reason and a sentence with the document's numbers.

`structural_faults` mean that the groups are no tree and can never be divided. `rule_faults` are those that Koordinator's webhook
refuses (R4, R9, R10, R11, R14) although its scheduler can divide such a tree, and capacity of zero. `odd_faults` are allowed for a
time, and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lattice.quota.groups import BUILT_IN, ROOT, Group, Resources

REASONS: Final[dict[str, str]] = {
    "BadDocument": "the document is no JSON, or not of the shape of a tree",
    "UnknownField": "a field or option that does not exist",
    "MissingValue": "a field that must be there is not",
    "NotAWholeNumber": "an amount is no whole number",
    "NegativeAmount": "an amount is below zero",
    "AmountTooLarge": "an amount is above 2^63 - 1",
    "DuplicateName": "two groups have one name, or a group has the name of a built-in one",
    "ParentUnknown": "the parent of a group is not in the tree",
    "ParentCycle": "a group is above itself",
    "NothingToDivide": "the total is zero of every resource",
    "NoSuchResource": "a group manages a resource that the total lacks",
    "MinAboveMax": "a min is above its max, or of a resource that max lacks",
    "ResourcesDiffer": "the resources of max differ from the parent's, or a weight is of a resource that max lacks",
    "ParentIsLeaf": "a group has children although isParent is false",
    "ParentHasWork": "a group that is a parent has work of its own",
    "MinSumAboveParent": "the mins of the children are more than the parent's",
    "MaxBelowUsed": "a group uses more than its max (only a warning)",
    "RequestBelowUsed": "a group asks for less than it uses (only a warning)",
}
"""Every reason in this module, with its meaning."""


class Fault(NamedTuple):
    """One broken rule: the reason and the sentence."""

    reason: str
    sentence: str


def structural_faults(groups: Sequence[Group]) -> list[Fault]:
    """Returns the faults because of which the groups make no tree: doubled names, unknown parents, cycles."""
    return [*_names(groups), *_parents(groups)]


def rule_faults(total: Resources, groups: Sequence[Group]) -> list[Fault]:
    """Returns the rules that a tree breaks which can be divided all the same; `total`: without what the built-in groups use."""
    faults = [*_total(total)]
    by_name = {group.name: group for group in groups}
    children: dict[str, list[Group]] = {}
    for group in groups:
        children.setdefault(group.parent, []).append(group)
    for group in groups:
        faults += _limits(group)
        faults += _resources(group, total, by_name.get(group.parent))
        faults += _role(group, children.get(group.name, []))
        faults += _min_sums(group, children.get(group.name, []))
    return faults


def odd_faults(groups: Sequence[Group]) -> list[Fault]:
    """Returns states that break no rule but are seldom intended: use above max, and requests that are less than the use."""
    faults = []
    for group in groups:
        for key, used in group.used.items():
            name, most, asked = f'quota "{group.name}": used.{key} is {used}', group.max.get(key, used), group.request.get(key, 0)
            if used > most:
                faults.append(
                    Fault("MaxBelowUsed", f"{name}, above max.{key}, which is {most}: nothing more starts until {used - most} end")
                )
            if used > asked and key in group.max:
                sentence = f"{name}, above request.{key}, which is {asked}: request counts all work, pending and running"
                faults.append(Fault("RequestBelowUsed", f"{sentence}; write at least {used}"))
    return faults


def _names(groups: Sequence[Group]) -> Iterator[Fault]:
    """Yields a fault for each group that has the name of a built-in group or of an earlier one."""
    seen: dict[str, int] = {}
    for at, group in enumerate(groups):
        if group.name in BUILT_IN:
            sentence = (
                f'quotas[{at}]: "{group.name}" is a built-in group: leave it out; sysUsed and defUsed say what system and default use'
            )
            yield Fault("DuplicateName", sentence)
        elif seen.setdefault(group.name, at) != at:
            yield Fault("DuplicateName", f'quotas[{at}]: the name "{group.name}" is taken by quotas[{seen[group.name]}]: rename one')


def _parents(groups: Sequence[Group]) -> Iterator[Fault]:
    """Yields a fault for each group whose parent is not in the tree, and one for each cycle of parents."""
    parent = {group.name: group.parent for group in groups}
    safe = {ROOT}
    for group in groups:
        if group.parent != ROOT and group.parent not in parent:
            sentence = f'quota "{group.name}": parent is "{group.parent}", which is not in the tree; on the first level leave it out'
            yield Fault("ParentUnknown", f"{sentence} or write {ROOT}")
            safe.add(group.name)
    for group in groups:
        path: dict[str, None] = {}  # the names in the order of the way up
        name = group.name
        while name not in safe and name not in path and name in parent:
            path[name] = None
            name = parent[name]
        if name in path:
            way = list(path)
            around = way[way.index(name) :]
            shown = " → ".join(around[:8] + (["…"] if len(around) > 8 else []) + [name])
            yield Fault(
                "ParentCycle", f'quota "{name}": parent is "{parent[name]}", which leads back to it: {shown}: give one another parent'
            )
        safe.update(path)


def _total(total: Resources) -> Iterator[Fault]:
    """Yields a fault where no resource of the total is above 0."""
    if not any(total.values()):
        shown = ", ".join(f"{key} {amount}" for key, amount in total.items()) or "nothing"
        yield Fault("NothingToDivide", f"total: there is {shown} to divide: at least one resource must be above 0")


def _limits(group: Group) -> Iterator[Fault]:
    """Yields a fault for each resource of a group whose min is above its max, or that max does not name."""
    for key, amount in group.min.items():
        if key not in group.max:
            yield Fault("MinAboveMax", f'quota "{group.name}": min.{key} is {amount}, and max has no {key}: add it there')
        elif amount > group.max[key]:
            sentence = f'quota "{group.name}": min.{key} is {amount}, above max.{key}, which is {group.max[key]}'
            yield Fault("MinAboveMax", f"{sentence}: lower min or raise max")


def _resources(group: Group, total: Resources, parent: Group | None) -> Iterator[Fault]:
    """Yields a fault for each resource that a group's weight has and its max lacks, and for each that its max and its parent's do not
    share.

    `parent` None: on the first level, where max may name only resources of the total.
    """
    for key in group.shared_weight.keys() - group.max.keys():
        sentence = f'quota "{group.name}": sharedWeight.{key} is {group.shared_weight[key]}, and max has no {key}'
        yield Fault("ResourcesDiffer", f"{sentence}: add it to max, or leave it out")
    if parent is None:
        for key in sorted(group.max.keys() - total.keys()):
            sentence = f'quota "{group.name}": max.{key} is {group.max[key]}, and total has no {key}'
            yield Fault("NoSuchResource", f"{sentence}: add it to total, or leave it out")
        return
    for key in sorted(group.max.keys() - parent.max.keys()):
        sentence = f'quota "{group.name}": max.{key} is {group.max[key]}, and max of its parent "{parent.name}" has no {key}'
        yield Fault("ResourcesDiffer", f"{sentence}: add it to both, or to neither")
    for key in sorted(parent.max.keys() - group.max.keys()):
        sentence = f'quota "{group.name}": max has no {key}, and max.{key} of its parent "{parent.name}" is {parent.max[key]}'
        yield Fault("ResourcesDiffer", f"{sentence}: add it to both, or to neither")


def _role(group: Group, children: Sequence[Group]) -> Iterator[Fault]:
    """Yields a fault where a group with children says that it is no parent, and one for each amount that a parent asks for or uses
    itself.
    """
    if children and not group.is_parent:
        sentence = f'quota "{group.name}": isParent is false, and it is the parent of {len(children)}, the first "{children[0].name}"'
        yield Fault("ParentIsLeaf", f"{sentence}: set isParent to true")
    if not children and not group.is_parent:
        return
    for field, amounts in (("request", group.request), ("used", group.used)):
        own = {key: amount for key, amount in amounts.items() if amount}
        for key, amount in own.items():
            sentence = f'quota "{group.name}": {field}.{key} is {amount}, and a parent has no work of its own (limit: 0)'
            yield Fault("ParentHasWork", f"{sentence}: give it to a group below")


def _min_sums(group: Group, children: Sequence[Group]) -> Iterator[Fault]:
    """Yields a fault for each resource of which the children's mins are more in sum than the group's own min."""
    sums: dict[str, int] = {}
    for child in children:
        for key, amount in child.min.items():
            sums[key] = sums.get(key, 0) + amount
    for key, amount in sums.items():
        if amount > group.min.get(key, 0):
            sentence = f'quota "{group.name}": min.{key} of its children ({len(children)}) is {amount} in sum, above its own'
            yield Fault("MinSumAboveParent", f"{sentence}, which is {group.min.get(key, 0)}: lower a min below it, or raise its own")
