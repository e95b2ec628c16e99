"""The groups of the quota tree as objects declare them, in either kind, and which work belongs to which group.

Lattice's own ElasticQuota says everything in its spec. Koordinator's says most of it in labels and annotations (prefix
`quota.scheduling.koordinator.sh/`); the names and defaults below are its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from lattice.errors import Rejected
from lattice.quota.amounts import CPU, MEMORY, WIDEST, amounts_of, resource_of
from lattice.quota.groups import ROOT, Group, Resources
from lattice.quota.selection import LabelTest, Selection
from lattice.units import parse_duration
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota, Metadata
from lattice.views.elastic_quota import TreeSettings as TreeView

OURS: Final = "lattice.dev"
KOORDINATOR: Final = "scheduling.sigs.k8s.io"
PROFILE: Final = "quota.koordinator.sh"
PREFIX: Final = "quota.scheduling.koordinator.sh/"
DEFAULT: Final = "default"
"""The group of work that has no leaf of its own; it takes no part in the division."""
SYSTEM: Final = "system"
NAME_LABEL: Final = PREFIX + "name"
"""The label on work that names the leaf to which it belongs."""
PREEMPTIBLE_LABEL: Final = PREFIX + "preemptible"
"""The label on work of which "false" means that it is never revoked nor preempted, and counts against min."""
DEFAULT_OBJECT: Final = "koordinator-default-quota"
"""Koordinator's object for the group `default`."""
KOORDINATOR_BUILT_IN: Final = frozenset({ROOT, "koordinator-system-quota", DEFAULT_OBJECT})


@dataclass(frozen=True, slots=True)
class Source:
    """The identity of the object that declares a group."""

    group: str
    """Its API group: `lattice.dev` or `scheduling.sigs.k8s.io`; `quota.koordinator.sh` for a root that only a profile declares."""
    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    created: str = ""
    """When it was made (RFC 3339); of two objects with one name the earlier counts."""

    @property
    def text(self) -> str:
        """Returns the object as people name it: `ElasticQuota physics (lattice.dev)`."""
        kind = "ElasticQuotaProfile" if self.group == PROFILE else "ElasticQuota"
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{kind} {where} ({self.group})"


class Binding(NamedTuple):
    """A tenant whose work belongs to a group, in one vcluster or, where that is empty, in all."""

    tenant: str
    vcluster: str = ""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """The settings of a tree that has nodes of its own, as its root declares them; None: as the LatticeConfig says.

    `nodes`: the nodes that it divides. `ratio`: the part of their capacity.
    """

    nodes: Selection
    ratio: Fraction = Fraction(1)
    scale_min: bool | None = None
    guarantee_used: bool | None = None
    revocation: str | None = None
    delay_seconds: float | None = None
    max_per_round: int | None = None
    on_shrink: bool | None = None
    resources: tuple[str, ...] | None = None
    """The resources that it divides; None: all that its nodes have."""
    profile: str = ""
    """NAMESPACE/NAME of the ElasticQuotaProfile that gave the settings; empty: an ElasticQuota did."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One group as its object declares it; amounts in whole units (cpu in millicores, memory in bytes)."""

    name: str
    source: Source
    parent: str = ""
    """The group above; empty: the first level."""
    is_parent: bool = False
    min: Resources = field(default_factory=dict)
    max: Resources = field(default_factory=dict)
    weight: Resources = field(default_factory=dict)
    """The weight of every resource of `max`; a zero is literal."""
    lends: bool = True
    lend_limit: Resources = field(default_factory=dict)
    """The most of min that is lent, by resource; absent: all of it."""
    strict: frozenset[str] = frozenset()
    """The resources of which max may not be set below the use."""
    admission: Resources | None = None
    """The most that submitted work, pending and running together, may ask for; None or an absent resource: no limit. 0 pauses."""
    namespaces: tuple[str, ...] = ()
    bindings: tuple[Binding, ...] = ()
    tree: TreeSettings | None = None
    """The settings of the tree of which the group is the root; None: it is no root of a tree of its own."""
    tree_id: str = ""
    """Koordinator's label of the tree; empty: the default tree, or that of the parent."""
    forced: bool = False
    """Whether sums of min are not checked (Koordinator's allow-force-update)."""

    def group(self) -> Group:
        """Returns the group as the division needs it, without demand; weights are literal (`Options.raw_weight`)."""
        return Group(
            self.name,
            parent=self.parent or ROOT,
            is_parent=self.is_parent,
            min=self.min,
            max=self.max,
            shared_weight=self.weight,
            lends=self.lends,
            lend_limit=self.lend_limit,
        )


def declared_of(view: ElasticQuota) -> Declared:
    """Returns the group of a Lattice ElasticQuota; raises Rejected with the field whose amount does not parse."""
    spec = view.spec
    most = amounts_of(spec.max, field="spec.max")
    limit, admission = spec.lending.limit, spec.admission
    weight = None if spec.shared_weight is None else amounts_of(spec.shared_weight, field="spec.sharedWeight")
    return Declared(
        name=view.metadata.name,
        source=_source(OURS, view.metadata),
        parent=spec.parent,
        is_parent=spec.is_parent,
        min=amounts_of(spec.min, field="spec.min"),
        max=most,
        weight=_aligned(weight, most),
        lends=spec.lending.enabled,
        lend_limit=amounts_of(limit or {}, field="spec.lending.limit"),
        strict=frozenset(map(resource_of, spec.strict_keys)),
        admission=None if admission is None else amounts_of(admission, field="spec.admission"),
        namespaces=spec.namespaces,
        bindings=tuple(Binding(entry.tenant, vcluster) for entry in spec.bindings for vcluster in entry.vclusters or ("",)),
        tree=None if spec.tree is None else _tree(spec.tree),
    )


def declared_of_koordinator(view: KoordinatorQuota, profiles: Iterable[KoordinatorProfile] = ()) -> Declared:
    """Returns the group of a Koordinator ElasticQuota; a profile of `profiles` that names it makes it the root of a tree.

    Raises Rejected naming the field that does not parse.
    """
    labels, notes = view.metadata.labels, view.metadata.annotations
    most = amounts_of(view.spec.max, field="spec.max")
    parent = labels.get(PREFIX + "parent", "")
    profile = next((each for each in profiles if is_root_of(each, view)), None)
    weight = _resource_list(notes, "shared-weight")
    admission = _resource_list(notes, "admission")
    return Declared(
        name=view.metadata.name,
        source=_source(KOORDINATOR, view.metadata),
        parent="" if parent == ROOT else parent,
        is_parent=labels.get(PREFIX + "is-parent") == "true",
        min=amounts_of(view.spec.min, field="spec.min"),
        max=most,
        weight=_aligned(weight if weight and any(weight.values()) else None, most),
        lends=labels.get(PREFIX + "allow-lent-resource") != "false",
        strict=frozenset(map(resource_of, _names(notes, "max-strict-check-resource-keys"))),
        admission=admission or None,
        namespaces=_names(notes, "namespaces"),
        tree=None if profile is None else tree_of(profile),
        tree_id=labels.get(PREFIX + "tree-id", ""),
        forced=labels.get(PREFIX + "allow-force-update") == "true" or labels.get(PREFIX + "is-root") == "true",
    )


def declared_of_profile(profile: KoordinatorProfile) -> Declared:
    """Returns the root group that a profile declares, unbounded in the resources that it names; raises Rejected where its ratio or its
    resource keys do not parse.

    Used only where no ElasticQuota object declares that root.
    """
    tree = tree_of(profile)
    most = dict.fromkeys(tree.resources or (), WIDEST)
    return Declared(
        name=profile.spec.quota_name,
        source=_source(PROFILE, profile.metadata),
        is_parent=True,
        max=most,
        weight=most,
        tree=tree,
        tree_id=tree_id_of(profile),
        forced=True,
    )


def published_of(view: KoordinatorQuota, key: str) -> Resources:
    """Returns the amounts that a scheduler published in an annotation such as `request` or `child-request`; empty without it.

    Raises Rejected where the annotation does not parse.
    """
    return _resource_list(view.metadata.annotations, key) or {}


def tree_of(profile: KoordinatorProfile) -> TreeSettings:
    """Returns the tree settings of an ElasticQuotaProfile; raises Rejected where its ratio or its resource keys do not parse."""
    ratio = _ratio(profile.spec.resource_ratio or "1", "spec.resourceRatio")
    keys = _names(profile.metadata.annotations, "resource-keys") or (CPU, MEMORY)
    selector = profile.spec.node_selector
    tests = () if selector is None else tuple(LabelTest(each.key, each.operator, each.values) for each in selector.match_expressions)
    labels = {} if selector is None else selector.match_labels
    return TreeSettings(
        nodes=Selection(labels=labels, tests=tests, everything=selector is not None and not labels and not tests),
        ratio=ratio,
        resources=tuple(dict.fromkeys(map(resource_of, keys))),
        profile=profile.metadata.key,
    )


def tree_id_of(profile: KoordinatorProfile) -> str:
    """Returns the id of a profile's tree, as Koordinator computes it: its label, else FNV-64a of NAMESPACE/NAME in decimal."""
    given = profile.metadata.labels.get(PREFIX + "tree-id", "")
    if given:
        return given
    number = 0xCBF29CE484222325
    for byte in profile.metadata.key.encode():
        number = ((number ^ byte) * 0x100000001B3) % 2**64
    return str(number)


@dataclass(frozen=True, slots=True)
class Bindings:
    """Answers to which leaf of the quota trees an allocation belongs, by tenant and vcluster, and by namespace."""

    leaves: Mapping[str, str]
    """The path of each leaf by its name, such as `physics/theory`."""
    by_tenant: Mapping[Binding, str]
    by_namespace: Mapping[str, str]

    def named(self, quota: str) -> str | None:
        """Returns the leaf of this name, or of this path or end of one, such as `physics/theory`; None: there is none."""
        path = self.leaves.get(quota.rpartition("/")[2])
        return path.rpartition("/")[2] if path is not None and f"/{path}".endswith(f"/{quota}") else None

    def leaf(self, quota: str, label: str, tenant: str, vcluster: str, namespace: str) -> str:
        """Returns the leaf to which an allocation belongs.

        The first that exists of: the leaf it names (`quota`), its `label`, the binding of vcluster and tenant, of tenant, of
        namespace, `default`. A name that is no leaf (any more) counts as none: the bindings then decide.
        """
        for name in (quota, label):
            leaf = self.named(name) if name else None
            if leaf is not None:
                return leaf
        for binding in (Binding(tenant, vcluster), Binding(tenant)):
            if binding in self.by_tenant:
                return self.by_tenant[binding]
        return self.by_namespace.get(namespace, DEFAULT)


def bindings_of(declared: Iterable[Declared]) -> Bindings:
    """Returns the bindings of all groups; where two groups claim the same work, the one made earlier has it."""
    groups = {each.name: each for each in sorted(declared, key=precedence, reverse=True)}
    leaves = {each.name: path_of(each, groups) for each in groups.values() if not each.is_parent}
    by_tenant: dict[Binding, str] = {}
    by_namespace: dict[str, str] = {}
    living: dict[str, str] = {}
    for each in groups.values():  # the latest first, so that the earlier overwrites it
        if each.is_parent:
            continue
        by_tenant.update(dict.fromkeys(each.bindings, each.name))
        by_namespace.update(dict.fromkeys(each.namespaces, each.name))
        if each.source.namespace == each.name:  # Koordinator: a quota named like the namespace that it lives in
            living[each.name] = each.name
    return Bindings(leaves, by_tenant, by_namespace | living)


def precedence(declared: Declared) -> tuple[str, str, str, str]:
    """Returns a sort key for objects that claim the same name or work: the one made earlier first, then by API group, namespace, name."""
    source = declared.source
    return (source.created, source.group, source.namespace, source.name)


def path_of(declared: Declared, groups: Mapping[str, Declared]) -> str:
    """Returns the path of a group from the first level down, such as `physics/theory`; a cycle is cut at the first repetition."""
    names = [declared.name]
    above = groups.get(declared.parent)
    while above is not None and above.name not in names:
        names.append(above.name)
        above = groups.get(above.parent)
    return "/".join(reversed(names))


def _source(group: str, metadata: Metadata) -> Source:
    """Returns which object declares a group, from the object's metadata."""
    return Source(group, metadata.name, metadata.namespace, metadata.uid, metadata.generation, metadata.creation_timestamp)


def _aligned(weight: Resources | None, most: Resources) -> dict[str, int]:
    """Returns a weight for each resource of max and for no other; where none is given, the max itself."""
    return {key: amount if weight is None else weight.get(key, amount) for key, amount in most.items()}


def _tree(view: TreeView) -> TreeSettings:
    """Returns the settings of a quota tree from its object, in Lattice's units.

    Raises Rejected for a ratio or duration that is not allowed.
    """
    nodes = view.nodes
    return TreeSettings(
        nodes=Selection(
            groups=frozenset(nodes.groups),
            gpu_types=frozenset(model.upper() for model in nodes.gpu_types),
            features=frozenset(nodes.features),
            labels=nodes.labels,
        ),
        ratio=_ratio(str(view.ratio), "spec.tree.ratio"),
        scale_min=view.scale_min,
        guarantee_used=view.guarantee_used,
        revocation=view.revocation,
        delay_seconds=None if view.delay is None else parse_duration(view.delay),
        max_per_round=view.max_per_round,
        on_shrink=view.on_shrink,
    )


def _ratio(text: str, place: str) -> Fraction:
    """Returns a ratio in thousandths exactly, from text such as 0.5 or 500m.

    Raises Rejected, which names `place`, where it is not above 0 and at most 1.
    """
    milli = amounts_of({CPU: text}, field=place)[CPU]
    if not 0 < milli <= 1000:
        raise Rejected(f"{place} is {text}, and must be above 0 and at most 1", reason="RatioInvalid", fields=(place,))
    return Fraction(milli, 1000)


def is_root_of(profile: KoordinatorProfile, view: KoordinatorQuota) -> bool:
    """Tells whether an ElasticQuota is the root that a profile names, in the profile's namespace."""
    return profile.spec.quota_name == view.metadata.name and profile.metadata.namespace == view.metadata.namespace


def _json(notes: Mapping[str, str], key: str) -> object:
    """Returns the parsed JSON of one of Koordinator's annotations (`key` without the prefix); None where it is absent or blank.

    Raises Rejected where it does not parse.
    """
    text = notes.get(PREFIX + key, "")
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        place = f"metadata.annotations[{PREFIX}{key}]"
        raise Rejected(f"{place} is no JSON: {error}", reason="AnnotationInvalid", fields=(place,)) from error


def _resource_list(notes: Mapping[str, str], key: str) -> dict[str, int] | None:
    """Returns the amounts of an annotation by resource; None where it is absent or empty. Raises Rejected where it does not parse."""
    given = _json(notes, key)
    place = f"metadata.annotations[{PREFIX}{key}]"
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Rejected(f'{place} must be a JSON object such as {{"cpu": 4}}', reason="AnnotationInvalid", fields=(place,))
    return amounts_of(given, field=place)


def _names(notes: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Returns the names that an annotation lists; empty where it is absent. Raises Rejected where it is no list of texts."""
    given = _json(notes, key)
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        place = f"metadata.annotations[{PREFIX}{key}]"
        raise Rejected(f'{place} must be a JSON list such as ["a", "b"]', reason="AnnotationInvalid", fields=(place,))
    return tuple(given)
