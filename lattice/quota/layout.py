"""Converts all objects that declare groups into trees, their rules, and the bindings of work, and names the objects left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from lattice.errors import Rejected
from lattice.quota.amounts import is_boundless
from lattice.quota.breaches import Breach, breaches, unmanaged_below
from lattice.quota.declared import (
    DEFAULT_OBJECT,
    PROFILE,
    Bindings,
    Declared,
    Source,
    bindings_of,
    declared_of,
    declared_of_koordinator,
    declared_of_profile,
    is_root_of,
    tree_of,
)
from lattice.quota.forest import DEFAULT_TREE, TreeSpec
from lattice.quota.gathering import Gathered, gather
from lattice.quota.groups import Group, Resources
from lattice.quota.selection import Selection
from lattice.quota.settings import TreeRules, default_group, rules_of
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota
from lattice.views.cluster import QuotaTreeOptions

UNREADABLE: Final = "SpecInvalid"

T = TypeVar("T", ElasticQuota, KoordinatorQuota, KoordinatorProfile)
R = TypeVar("R")
Origin = tuple[str, str, str]
"""API group, namespace and name of an object."""


@dataclass(frozen=True)
class Layout:
    """All quota trees as the objects declare them; the scheduler makes one whenever such an object changes."""

    groups: Mapping[str, Declared] = field(default_factory=dict)
    """By name, parents before their children."""
    trees: tuple[TreeSpec, ...] = ()
    rules: Mapping[str, TreeRules] = field(default_factory=dict)
    """By tree: the settings for its division and its revocation."""
    bindings: Bindings = field(default_factory=lambda: bindings_of(()))
    selections: tuple[tuple[str, Selection], ...] = ()
    """(tree, nodes that it divides) of all trees but the default one, those declared earlier first."""
    shares: Mapping[str, tuple[int, int, tuple[str, ...] | None]] = field(default_factory=dict)
    """By tree but the default one: the part of its nodes' capacity that it divides (numerator, denominator), and the resources
    (None: all).
    """
    faults: Mapping[Origin, tuple[str, str]] = field(default_factory=dict)
    """By object that takes no part: the reason and the sentence."""
    breaches: Mapping[str, Breach] = field(default_factory=dict)
    """By group that takes part: the first rule that it breaks."""
    default: Declared | None = None
    """Koordinator's object for the default group, whose max limits the work in no other group; None: there is none."""


def origin_of(source: Source) -> Origin:
    """Returns the identity of the object that declares a group."""
    return source.group, source.namespace, source.name


def text_of(origin: Origin) -> str:
    """Returns an object as people name it: `ElasticQuota physics (lattice.dev)`."""
    group, namespace, name = origin
    return Source(group, name, namespace).text


def layout(
    ours: Iterable[ElasticQuota], theirs: Iterable[KoordinatorQuota], profiles: Iterable[KoordinatorProfile], config: QuotaTreeOptions
) -> Layout:
    """Returns the trees of all sound objects; `ours`: Lattice's ElasticQuotas, `theirs`: Koordinator's.

    An object that does not parse or collides with another is left out and named in `faults`. Raises Rejected where an option of `config`
    does not parse.
    """
    faults: dict[Origin, tuple[str, str]] = {}
    sound = [profile for profile in profiles if _read(profile, tree_of, PROFILE, faults) is not None]
    quotas = list(theirs)
    found = [
        *(_read(each, declared_of, "lattice.dev", faults) for each in ours),
        *(_read(each, lambda one: declared_of_koordinator(one, sound), "scheduling.sigs.k8s.io", faults) for each in quotas),
        *(declared_of_profile(one) for one in sound if one.spec.quota_name and not any(is_root_of(one, quota) for quota in quotas)),
    ]
    gathered = gather([each for each in found if each is not None])
    faults |= {origin_of(one.declared.source): (one.reason, one.message) for one in gathered.left_out}
    return _laid_out(gathered, config, faults)


def _laid_out(gathered: Gathered, config: QuotaTreeOptions, faults: Mapping[Origin, tuple[str, str]]) -> Layout:
    """Returns the trees, rules, bindings and settings of all gathered groups; the default tree comes first, the others by creation time,
    then name.

    `faults`: by object, the reason and sentence for which it was left out.
    """
    default = next((one for one in gathered.built_in if one.name == DEFAULT_OBJECT), None)
    members: dict[str, list[Group]] = {DEFAULT_TREE: [_bounded(default_group(config), default)]}
    unmanaged = unmanaged_below(gathered.groups)
    for name, declared in gathered.groups.items():
        members.setdefault(gathered.tree_of(name), []).append(replace(declared.group(), keeps_unmanaged=name in unmanaged))
    roots = [gathered.groups[name] for name in members if name]
    roots.sort(key=lambda each: (each.source.created, each.name))
    rules = {DEFAULT_TREE: rules_of(config, None)} | {root.name: rules_of(config, root.tree) for root in roots}
    settings = {root.name: root.tree for root in roots if root.tree is not None}
    return Layout(
        groups=gathered.groups,
        trees=tuple(TreeSpec(name, tuple(groups), rules[name].options) for name, groups in members.items()),
        rules=rules,
        bindings=bindings_of(gathered.groups.values()),
        selections=tuple((name, tree.nodes) for name, tree in settings.items()),
        shares={name: (tree.ratio.numerator, tree.ratio.denominator, tree.resources) for name, tree in settings.items()},
        faults=faults,
        breaches=breaches(gathered.groups),
        default=default,
    )


def _bounded(group: Group, default: Declared | None) -> Group:
    """Returns the default group with the max of Koordinator's object for it, if there is one."""
    if default is None:
        return group
    bounds = {key: most for key, most in default.max.items() if not is_boundless(most)}
    return replace(group, max={key: min(most, group.max.get(key, most)) for key, most in {**group.max, **bounds}.items()})


def capacities(layout: Layout, counted: Mapping[str, Resources]) -> dict[str, dict[str, int]]:
    """Returns the capacity that each tree divides, by resource; `counted`: the resources of the counted nodes of each tree.

    A tree divides its ratio of its nodes, rounded down; the default tree divides the rest.
    """
    rest: dict[str, int] = {}
    for amounts in counted.values():
        for resource, amount in amounts.items():
            rest[resource] = rest.get(resource, 0) + amount
    divided: dict[str, dict[str, int]] = {}
    for tree, (part, of, resources) in layout.shares.items():
        own = {
            resource: amount * part // of
            for resource, amount in counted.get(tree, {}).items()
            if resources is None or resource in resources
        }
        divided[tree] = own
        for resource, amount in own.items():
            rest[resource] -= amount
    return {DEFAULT_TREE: rest, **divided}


def _read(view: T, made: Callable[[T], R], group: str, faults: dict[Origin, tuple[str, str]]) -> R | None:
    """Returns what `made` makes of an object; None, with an entry in `faults`, where an amount of it does not parse."""
    try:
        return made(view)
    except Rejected as error:
        faults[group, view.metadata.namespace, view.metadata.name] = (UNREADABLE, error.message)
        return None


def objects(groups: Mapping[str, Declared]) -> Iterator[tuple[Origin, Declared]]:
    """Yields the identity of the declaring object and the group, for each group; groups that only a profile declares are left out."""
    for declared in groups.values():
        if declared.source.group != PROFILE:
            yield origin_of(declared.source), declared
