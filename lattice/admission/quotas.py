"""Checks the objects that declare quota trees: Lattice's ElasticQuota, Koordinator's ElasticQuota and ElasticQuotaProfile.

The rules themselves are `lattice.quota.checks`; this module reads the objects and turns the results into refusals and warnings.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from lattice.admission.facts import Facts, QuotaFacts
from lattice.admission.submission import malformed, part
from lattice.admission.verdicts import Caution, Finding, Object, Refused
from lattice.errors import Rejected
from lattice.quota.amounts import is_whole, resource_of
from lattice.quota.checks import Around, Odd, check_group, check_removal
from lattice.quota.declared import KOORDINATOR, PREFIX, Declared, declared_of, declared_of_koordinator, path_of, precedence, tree_of
from lattice.quota.declared import PROFILE as PROFILE_GROUP
from lattice.quota.groups import ROOT
from lattice.quota.selection import Selection
from lattice.units import fold_nodes, parse_duration
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota

OURS: Final = "ElasticQuota"
KOORDINATORS: Final = "KoordinatorQuota"
"""The kind by which a request names an ElasticQuota of scheduling.sigs.k8s.io, to tell it from Lattice's."""
PROFILE: Final = "KoordinatorProfile"
QUOTA_KINDS: Final = frozenset({OURS, KOORDINATORS})
QUANTITIES: Final = "amounts are quantities such as 24, 1500m or 64Gi"
View = TypeVar("View")


def read_quota(kind: str, obj: Object, profiles: Iterable[KoordinatorProfile] = ()) -> Declared | Refused:
    """Returns the group that an object of either kind declares, or the refusal of the first amount or field that does not parse; `profiles`
    give a root of Koordinator its tree.
    """
    strange = next(_strange_amounts(obj), None)
    if strange is not None:
        return strange
    try:
        if kind == KOORDINATORS:
            return declared_of_koordinator(msgspec.convert(_named(obj), KoordinatorQuota), profiles)
        view = msgspec.convert(_named(obj), ElasticQuota)
        if view.spec.tree is not None and view.spec.tree.delay is not None:
            parse_duration(view.spec.tree.delay)
        return declared_of(view)
    except msgspec.ValidationError as error:
        return malformed(error, "")
    except Rejected as error:
        return Refused(error.reason, error.message, (*error.fields, "spec")[0], QUANTITIES)


def _strange_amounts(obj: Object) -> Iterator[Refused]:
    """Yields a refusal of each amount in min, max, weights, admission and lending limit that is neither a whole number nor a text; a text
    is not parsed.

    The API server accepts no number with a point as a quantity either.
    """
    lists = {name: part(obj, "spec").get(name) for name in ("min", "max", "sharedWeight", "admission")}
    for name, amounts in (*lists.items(), ("lending.limit", part(obj, "spec", "lending").get("limit"))):
        for key, value in amounts.items() if isinstance(amounts, Mapping) else ():
            if isinstance(value, str) or type(value) is int:
                continue
            field = f"spec.{name}.{key}"
            if not isinstance(value, float):
                yield Refused("QuantityInvalid", f"{field} is {json.dumps(value)[:40]}, which is no quantity", field, QUANTITIES)
            elif is_whole(resource_of(key)):
                sentence = f"{field} is {value:g}, and there are only whole {resource_of(key)}"
                yield Refused("NotAWholeNumber", sentence, field, f"write {math.ceil(value)}")
            else:
                yield Refused(
                    "QuantityInvalid", f"{field} is the number {value:g}, with a point", field, f'write it as a text: "{value:g}"'
                )


def means_the_same(kind: str, old: Object, new: Object) -> bool:
    """Tells whether a change leaves every field unchanged that a quota tree reads; False where either object does not parse.

    Status, finalizers and annotations of others may change.
    """
    before, after = read_quota(kind, old), read_quota(kind, new)
    return isinstance(before, Declared) and isinstance(after, Declared) and replace(before, source=after.source) == after


def unreadable(kind: str, old: Object, new: Object) -> Refused | None:
    """Returns the refusal of a quota object that does not parse; None: it does, or `old` had the same fault, so that other changes pass."""
    read = read_quota(kind, new)
    return None if isinstance(read, Declared) or (old and read_quota(kind, old) == read) else read


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a new ElasticQuota of Lattice."""
    yield from _judge(OURS, {}, obj, facts)


def judge_change(old: Object, new: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a changed ElasticQuota of Lattice; none where no field changes that a tree reads."""
    yield from _judge(OURS, old, new, facts)


def judge_deletion(old: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the refusals to delete an ElasticQuota of Lattice; none where it does not parse, or another object declares its name first."""
    yield from _judge_deletion(OURS, old, facts)


def judge_koordinator(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a new ElasticQuota of Koordinator."""
    yield from _judge(KOORDINATORS, {}, obj, facts)


def judge_koordinator_change(old: Object, new: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a changed ElasticQuota of Koordinator; none where no field changes that a tree reads."""
    yield from _judge(KOORDINATORS, old, new, facts)


def judge_koordinator_deletion(old: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the refusals to delete an ElasticQuota of Koordinator; none where it does not parse, or another object has its name first."""
    yield from _judge_deletion(KOORDINATORS, old, facts)


def judge_profile(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for an ElasticQuotaProfile: its root has a name of its own, its nodes are in no other tree."""
    try:
        profile = msgspec.convert(_named(obj), KoordinatorProfile)
        tree = tree_of(profile)
    except msgspec.ValidationError as error:
        yield malformed(error, "")
        return
    except Rejected as error:
        yield Refused(error.reason, error.message, (*error.fields, "spec")[0], 'as Koordinator has it: a ratio is a text such as "0.9"')
        return
    if not profile.spec.quota_name:
        yield Refused("MissingValue", "spec.quotaName is empty", "spec.quotaName", "name the quota that is the root of the tree")
    quotas = facts.quotas or QuotaFacts()
    key = profile.metadata.key
    for other in quotas.profiles:
        if other.metadata.key != key and other.spec.quota_name == profile.spec.quota_name:
            sentence = f'spec.quotaName "{profile.spec.quota_name}" is the root of ElasticQuotaProfile {other.metadata.key} already'
            yield Refused("NameTaken", sentence, "spec.quotaName", "choose another name")
    for declared in quotas.declared:
        if declared.name == profile.spec.quota_name and declared.source.namespace != profile.metadata.namespace:
            sentence = f'spec.quotaName "{declared.name}" is taken by {declared.source.text}'
            yield Refused("NameTaken", sentence, "spec.quotaName", "choose another name, or delete the other object")
    if not tree.nodes:
        yield Refused("TreeInvalid", "spec.nodeSelector is missing", "spec.nodeSelector", "select nodes by labels of their LatticeNodes")
        return
    yield from _nodes_of_a_tree(f"ElasticQuotaProfile {key}", tree.nodes, _other_trees(quotas, key), quotas, "spec.nodeSelector")


def judge_profile_change(old: Object, new: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a changed ElasticQuotaProfile, changes of annotations included."""
    del old
    yield from judge_profile(new, facts)


def fill_koordinator(obj: Object, facts: Facts) -> Object:
    """Returns a copy of a new ElasticQuota of Koordinator with the defaults that Koordinator's own webhook would fill in.

    They are parent, tree-id, and the keys of shared-weight; nothing is filled in where the object does not parse, or is the root.
    """
    filled = copy.deepcopy(obj)
    declared = read_quota(KOORDINATORS, obj)
    if isinstance(declared, Refused) or declared.name == ROOT:
        return filled
    metadata = filled.setdefault("metadata", {})
    labels, notes = {**(metadata.get("labels") or {})}, {**(metadata.get("annotations") or {})}
    labels.setdefault(PREFIX + "parent", ROOT)
    above = {each.name: each for each in (facts.quotas or QuotaFacts()).declared}.get(declared.parent)
    if above is not None and above.tree_id:
        labels.setdefault(PREFIX + "tree-id", above.tree_id)
    notes[PREFIX + "shared-weight"] = _weights(notes.get(PREFIX + "shared-weight", ""), part(obj, "spec", "max"))
    metadata["labels"], metadata["annotations"] = labels, notes
    return filled


def _weights(given: str, most: Object) -> str:
    """Returns the annotation of weights with exactly the keys of max, JSON; a missing weight is the max, and one that has these keys stays
    as written.

    `given`: the annotation, may be empty. Raises ValueError where it is no JSON.
    """
    weights: Object = json.loads(given) if given else most
    if given and weights.keys() == most.keys():
        return given
    return json.dumps({key: weights.get(key, amount) for key, amount in most.items()}, separators=(",", ":"))


def work_below(name: str, groups: Mapping[str, Declared], work: Mapping[str, int] | None) -> int | None:
    """Returns how many allocations of the group `name` and of the groups below it have not ended; None where `work` is (unknown)."""
    if work is None:
        return None
    return sum(
        count for leaf, count in work.items() if leaf == name or (leaf in groups and name in path_of(groups[leaf], groups).split("/"))
    )


def _judge(kind: str, old: Object, new: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the findings on an object that declares a group, is new (`old` empty) or changed; none where the change means nothing for the
    tree.

    An object that does not read is refused only where this change makes it so, or makes it worse otherwise than before.
    """
    if old and means_the_same(kind, old, new):
        return
    quotas = facts.quotas or QuotaFacts()
    group = read_quota(kind, new, quotas.profiles)
    if isinstance(group, Refused):
        if unreadable(kind, old, new) is not None:
            yield group
        return
    read_before = read_quota(kind, old, quotas.profiles) if old else None
    before = read_before if isinstance(read_before, Declared) else None
    around = _around(group, quotas)
    for finding in check_group(group, before, around):
        yield (
            Caution(finding.sentence)
            if isinstance(finding, Odd)
            else Refused(finding.reason, finding.sentence, finding.field, finding.hint)
        )
    if group.tree is not None and not group.tree.profile:
        yield from _nodes_of_a_tree(f'quota "{group.name}"', group.tree.nodes, _other_trees(quotas, group.name), quotas, "spec.tree.nodes")
    yield from _unknown(group, facts)


def _judge_deletion(kind: str, old: Object, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal for each rule that a group's removal breaks; none for an object that does not read, or whose name another object has
    in the tree.
    """
    quotas = facts.quotas or QuotaFacts()
    group = read_quota(kind, old, quotas.profiles)
    if isinstance(group, Refused):
        return  # what does not read takes no part in any tree
    counted = {each.name: each for each in sorted([*quotas.declared, group], key=precedence, reverse=True)}[group.name]
    if counted.source != group.source:
        return  # another object has the name: this one takes no part
    for finding in check_removal(group, _around(group, quotas)):
        yield Refused(finding.reason, finding.sentence, finding.field, finding.hint)


def _around(group: Declared, quotas: QuotaFacts) -> Around:
    """Returns the facts around a group: all other groups by name, its use, its work, and the capacity; use None: not known."""
    others = {each.name: each for each in sorted(quotas.declared, key=precedence, reverse=True) if not _is_same(each, group)}
    used = None if quotas.used is None else quotas.used.get(group.name, {})
    return Around(others, used, work_below(group.name, {**others, group.name: group}, quotas.work), quotas.capacity, quotas.used)


def _is_same(each: Declared, group: Declared) -> bool:
    """Tells whether two declarations are of one group: the same object, or a profile and the object of the root that it names."""
    source, own = each.source, group.source
    if (source.group, source.namespace, source.name) == (own.group, own.namespace, own.name):
        return True
    means = {source.group, own.group} == {KOORDINATOR, PROFILE_GROUP} and source.namespace == own.namespace
    return means and each.name == group.name


def _other_trees(quotas: QuotaFacts, own: str) -> dict[str, Selection]:
    """Returns the nodes that all other trees select, by the words for the declaring object; `own`: the name or key of the tree left out."""
    trees: dict[str, Selection] = {}
    for each in quotas.declared:
        if each.tree is not None and not each.tree.profile and each.name != own:
            trees[each.source.text] = each.tree.nodes
    for profile in quotas.profiles:
        if profile.metadata.key != own:
            try:
                trees[f"ElasticQuotaProfile {profile.metadata.key}"] = tree_of(profile).nodes
            except Rejected:
                continue  # it takes no part
    return trees


def _nodes_of_a_tree(who: str, selection: Selection, others: Mapping[str, Selection], quotas: QuotaFacts, field: str) -> Iterator[Finding]:
    """Yields a refusal for each other tree that selects nodes that a tree selects, and a caution where it selects none; nothing where the
    nodes are unknown.
    """
    if quotas.nodes is None:
        return
    own = [node for node in quotas.nodes if selection.selects(node)]
    for other, taken in sorted(others.items()):
        both = [node.name for node in own if taken.selects(node)]
        if both:
            shown = fold_nodes(sorted(both)[:1000])
            sentence = f"{len(both)} of the {len(own)} nodes of {who} are in the tree of {other} already: {shown[:200]}"
            yield Refused("NodesTaken", sentence, field, "select other nodes: a node is in one tree")
    if not own:
        yield Caution(f"{field} selects none of the {len(quotas.nodes)} nodes: the tree of {who} has nothing to divide until nodes join")


def _unknown(group: Declared, facts: Facts) -> Iterator[Finding]:
    """Yields a caution on tenants and vclusters in the bindings of a group that do not exist yet, 20 names at most; nothing on those that
    are not known to the facts at all.
    """
    tenants, vclusters = facts.tenants, facts.vclusters
    strange = sorted({binding.tenant for binding in group.bindings if tenants is not None and binding.tenant not in tenants})
    if strange:
        yield Caution(f"spec.bindings names tenants that do not exist yet: {', '.join(strange[:20])}")
    nowhere = {
        binding.vcluster for binding in group.bindings if binding.vcluster and vclusters is not None and binding.vcluster not in vclusters
    }
    if nowhere:
        yield Caution(f"spec.bindings names vclusters that do not exist yet: {', '.join(sorted(nowhere)[:20])}")


def _named(obj: Object) -> Object:
    """Returns the object with an empty name in place of none: the API server may still generate one."""
    metadata = part(obj, "metadata")
    return {**obj, "metadata": {**metadata, "name": str(metadata.get("name") or "")}}
