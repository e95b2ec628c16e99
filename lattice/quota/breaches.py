"""Finds declared groups that break a rule and are in force all the same: two writers raced, or the webhook was away.

Admission judges one change by the groups around it; the builder of the trees judges all groups. A breach leaves no group out: each
is divided as it was declared, and its status names the breach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from lattice.quota.amounts import quantity
from lattice.quota.declared import Declared, precedence

Breach = tuple[str, str]
"""The reason and the sentence of a broken rule."""


def breaches(groups: Mapping[str, Declared]) -> dict[str, Breach]:
    """Returns a breach of each group that breaks a rule, by name; `groups` by name, parents before their children.

    Of several breaches the first counts: of its limits, of its resources, of the mins below it, else of what it claims.
    """
    children: dict[str, list[Declared]] = {}
    for group in groups.values():
        children.setdefault(group.parent, []).append(group)
    found = dict(_claims(groups))
    for name, group in groups.items():
        own = chain(_limits(group), _resources(group, groups.get(group.parent)), _sums(group, children.get(name, ())))
        breach = next(own, None)
        if breach is not None:
            found[name] = breach
    return found


def unmanaged_below(groups: Mapping[str, Declared]) -> frozenset[str]:
    """Returns the groups whose max lacks a resource that a group above them manages; their use of it is counted above them."""
    above: dict[str, frozenset[str]] = {"": frozenset()}
    for name, group in groups.items():
        above[name] = above[group.parent] | group.max.keys()
    return frozenset(name for name, group in groups.items() if above[group.parent] - group.max.keys())


def _limits(group: Declared) -> Iterator[Breach]:
    """Yields breaches of R4: every resource of min is in max, and min is not above it."""
    for key, amount in group.min.items():
        most = group.max.get(key)
        if most is not None and amount <= most:
            continue
        least = f"min.{key} is {quantity(key, amount)}"
        if most is None:
            yield "MinAboveMax", f"{least}, and max has no {key}: it guarantees nothing; add {key} to max, or take it out of min"
        else:
            yield "MinAboveMax", f"{least}, above max.{key}, which is {quantity(key, most)}: max bounds it; lower min or raise max"


def _resources(group: Declared, parent: Declared | None) -> Iterator[Breach]:
    """Yields breaches of R10: a group manages the same resources as its parent.

    A profile's root, which has all that its nodes have, is not judged.
    """
    if parent is None or parent.forced or parent.max.keys() == group.max.keys():
        return
    for key in sorted(group.max.keys() - parent.max.keys()):
        yield "ResourcesDiffer", f'max has {key}, and max of its parent "{parent.name}" has not: add {key} there, or take it out here'
    for key in sorted(parent.max.keys() - group.max.keys()):
        sentence = f'max has no {key}, and max of its parent "{parent.name}" has: use of it counts there and is not bounded here'
        yield "ResourcesDiffer", f"{sentence}; add {key}"


def _sums(group: Declared, children: Sequence[Declared]) -> Iterator[Breach]:
    """Yields breaches of R11: the mins of the children together are not above the parent's, unless the parent or one of them was forced."""
    if group.forced or any(child.forced for child in children):
        return
    sums: dict[str, int] = {}
    for child in children:
        for key, amount in child.min.items():
            sums[key] = sums.get(key, 0) + amount
    for key, total in sorted(sums.items()):
        least = group.min.get(key, 0)
        if total > least:
            sentence = f"min.{key} of the groups below it ({len(children)}) is {quantity(key, total)} in sum, above its own"
            rest = f"which is {quantity(key, least)}: they are not guaranteed all at once; lower a min below it, or raise its own"
            yield "MinSumAboveParent", f"{sentence}, {rest}"


def _claims(groups: Mapping[str, Declared]) -> Iterator[tuple[str, Breach]]:
    """Yields breaches of R2: the groups that claim a tenant, or a namespace, which belongs to a group made earlier."""
    owners: dict[str, Declared] = {}
    claiming = (group for group in groups.values() if (group.bindings or group.namespaces) and not group.is_parent)  # a parent has no work
    for group in sorted(claiming, key=precedence):
        tenants = (f'tenant "{binding.tenant}"{_in(binding.vcluster)}' for binding in group.bindings)
        for claim in (*tenants, *(f'namespace "{name}"' for name in group.namespaces)):
            owner = owners.setdefault(claim, group)
            if owner is not group:
                sentence = f"{claim} belongs to {owner.source.text}, which was made earlier: take it out of one of the two"
                yield group.name, ("BindingTaken", sentence)


def _in(vcluster: str) -> str:
    """Returns ' in vCluster "NAME"' for a sentence; empty for an empty name."""
    return f' in vCluster "{vcluster}"' if vcluster else ""
