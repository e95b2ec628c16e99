"""What is said to who makes, changes or removes a group of a quota tree, of either kind."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.admission import Accepted, Facts, Refused, Request, Requester, Verdict, fill, judge
from lattice.admission.chain import unreadable
from lattice.admission.facts import QuotaFacts
from lattice.admission.quotas import KOORDINATORS, OURS, PROFILE, read_quota
from lattice.quota.declared import PREFIX, Declared, bindings_of
from lattice.quota.gathering import gather
from lattice.quota.groups import ROOT, Options
from lattice.quota.selection import Traits
from lattice.quota.tree import QuotaTree
from lattice.views import KoordinatorProfile
from tests.unit.admission.builders import tenant, vcluster

Object = dict[str, Any]
NODES = (Traits("n1", "g0", "GH200"), Traits("n2", "g0", "GH200"), Traits("n3", "g1", "A100"))


def quota(name: str, parent: str = "", **spec: Any) -> Object:
    """An ElasticQuota of Lattice; min and max as `n` mean nodes."""
    body = {"parent": parent, "max": 10, **spec}
    body = {
        key: {"nodes": value} if key in ("min", "max", "sharedWeight") and not isinstance(value, dict) else value
        for key, value in body.items()
    }
    return {
        "kind": OURS,
        "metadata": {"name": name, "uid": f"u-{name}"},
        "spec": {key: value for key, value in body.items() if value != ""},
    }


def theirs(name: str, parent: str = "", *, namespace: str = "ns", notes: dict[str, Any] | None = None, **spec: Any) -> Object:
    """An ElasticQuota of Koordinator; keywords with a dash-less name in `labels`."""
    labels = {PREFIX + key: value for key, value in {"parent": parent, **spec.pop("labels", {})}.items() if value}
    annotations = {PREFIX + key: value if isinstance(value, str) else json.dumps(value) for key, value in (notes or {}).items()}
    metadata = {"name": name, "namespace": namespace, "uid": f"k-{name}", "labels": labels, "annotations": annotations}
    return {"kind": OURS, "metadata": metadata, "spec": {"max": {"cpu": 40}, **spec}}


def profile(name: str, quota_name: str, **labels: str) -> Object:
    spec = {"quotaName": quota_name, "nodeSelector": {"matchLabels": labels}}
    return {"kind": "ElasticQuotaProfile", "metadata": {"name": name, "namespace": "ns", "uid": f"p-{name}"}, "spec": spec}


def around(*objects: Object, koordinators: tuple[Object, ...] = (), profiles: tuple[Object, ...] = (), **known: Any) -> Facts:
    """A site where these objects stand, with three nodes of two groups."""
    read = [read_quota(OURS, each) for each in objects] + [read_quota(KOORDINATORS, each) for each in koordinators]
    declared = tuple(each for each in read if isinstance(each, Declared))
    assert len(declared) == len(read)
    groups = gather(declared).groups
    base = QuotaFacts(
        declared=declared,
        groups=groups,
        bindings=bindings_of(groups.values()),
        profiles=tuple(msgspec.convert(each, KoordinatorProfile) for each in profiles),
        capacity={"nodes": 100, "cpu": 1000, "gpu": 8, "gpu/GH200": 8},
        nodes=NODES,
    )
    tenants = {name: tenant(name) for name in ("physics", "chemistry")}
    return Facts(Requester("root"), tenants=tenants, vclusters={"hpc": vcluster("hpc")}, quotas=replace(base, **known))


def made(obj: Object, known: Facts | None = None, kind: str = OURS) -> Verdict:
    return judge(Request(kind, "CREATE", obj, {}), known or around())


def changed(old: Object, new: Object, known: Facts, kind: str = OURS) -> Verdict:
    return judge(Request(kind, "UPDATE", new, old), known)


def removed(obj: Object, known: Facts, kind: str = OURS) -> Verdict:
    return judge(Request(kind, "DELETE", {}, obj), known)


def refusal(verdict: Verdict) -> Refused:
    assert isinstance(verdict, Refused), verdict
    return verdict


def warnings(verdict: Verdict) -> str:
    assert isinstance(verdict, Accepted), verdict
    return "\n".join(verdict.warnings)


DEPARTMENT = quota("physics", min=8, isParent=True)
THEORY = quota("theory", "physics", min=5)


@pytest.mark.parametrize(
    ("obj", "reason", "words"),
    [
        pytest.param(quota("a", min=-1), "NegativeAmount", ("spec.min.nodes is -1", "least is 0"), id="negative"),
        pytest.param(quota("a", min="-2"), "NegativeAmount", ("spec.min.nodes is -2",), id="negative text"),
        pytest.param(quota("a", min="1.5"), "NotAWholeNumber", ("spec.min.nodes is 1.5", "only whole nodes", "write 2"), id="1.5 nodes"),
        pytest.param(quota("a", min={"nodes": 1.5}), "NotAWholeNumber", ("spec.min.nodes is 1.5", "only whole nodes", "write 2"), id="a number 1.5"),
        pytest.param(
            quota("a", max={"cpu": 1.5}), "QuantityInvalid", ("spec.max.cpu is the number 1.5", 'write it as a text: "1.5"'), id="cpu 1.5"
        ),
        pytest.param(quota("a", max={"nodes": True}), "QuantityInvalid", ("spec.max.nodes is true", "64Gi"), id="a truth"),
        pytest.param(
            quota("a", lending={"limit": {"nodes": [1]}}), "QuantityInvalid", ("spec.lending.limit.nodes is [1]",), id="a list"
        ),
        pytest.param(quota("a", max={"gpu/GH200": "500m"}), "NotAWholeNumber", ("only whole gpu/GH200",), id="half a gpu"),
        pytest.param(quota("a", max="many"), "QuantityInvalid", ("spec.max.nodes is 'many'", "64Gi"), id="no quantity"),
        pytest.param(quota("a", sharedWeight=-3), "NegativeAmount", ("spec.sharedWeight.nodes is -3",), id="negative weight"),
        pytest.param(quota("a", sharedWeight="10E"), "AmountTooLarge", ("9223372036854775807",), id="weight beyond int64"),
        pytest.param(quota("a", max={"memory": "9E", "memory/x": 1}), None, (), id="odd but fine"),
        pytest.param(quota("a", max={}), "MissingValue", ("spec.max names no resource",), id="empty max"),
        pytest.param(quota("a", min=11), "MinAboveMax", ("spec.min.nodes is 11", "spec.max.nodes, which is 10", "raise max"), id="min above max"),
        pytest.param(quota("a", min={"gpu": 1}), "MinAboveMax", ("spec.max has no gpu", "add gpu"), id="min key without max"),
        pytest.param(quota("default"), "BuiltInGroup", ('"default"', "choose another name"), id="default"),
        pytest.param(quota("koordinator-root-quota"), "BuiltInGroup", ("choose another name",), id="root"),
        pytest.param(quota("a", "nowhere"), "ParentUnknown", ('parent "nowhere" of "a" does not exist', "physics"), id="unknown parent"),
        pytest.param(quota("a", "theory"), "ParentIsLeaf", ('"theory"', "isParent is false"), id="parent is a leaf"),
        pytest.param(quota("a", "a"), "ParentCycle", ("a → a",), id="its own parent"),
        pytest.param(
            quota("a", "physics", min=4), "MinSumAboveParent", ("sum: 9, limit: 8, this group: 4", "lower a min"), id="sum above the parent"
        ),
        pytest.param(quota("a", "physics", max={"nodes": 1, "gpu": 1}), "ResourcesDiffer", ('"a" has gpu', "physics"), id="key at a leaf only"),
        pytest.param(quota("a", "physics", max={"gpu": 1}), "ResourcesDiffer", ("gpu",), id="other keys"),
        pytest.param(quota("a", namespaces=["th"]), "BindingTaken", ('namespace "th"', "ElasticQuota bound"), id="namespace of another"),
        pytest.param(quota("a", bindings=[{"tenant": "physics"}]), "BindingTaken", ('tenant "physics"', "bound"), id="tenant of another"),
        pytest.param(quota("a", bindings=[{"tenant": "physics", "vclusters": ["hpc"]}]), None, (), id="tenant in one vcluster"),
        pytest.param(quota("a", "physics", tree={"nodes": {"groups": ["g0"]}}), "TreeInvalid", ("first level",), id="tree below"),
        pytest.param(quota("a", tree={"nodes": {}}), "TreeInvalid", ("selects nothing",), id="tree of nothing"),
        pytest.param(quota("a", tree={"nodes": {"groups": ["g0"]}, "ratio": "0"}), "RatioInvalid", ("above 0",), id="ratio 0"),
        pytest.param(quota("a", tree={"nodes": {"gpuTypes": ["a100"]}}), "NodesTaken", ("1 of the 1 nodes", "n3", "other"), id="node twice"),
        pytest.param(quota("a", tree={"nodes": {"groups": ["g0"]}, "delay": "soon"}), "BadDuration", ("soon",), id="delay"),
        pytest.param({"metadata": {"name": "a"}, "spec": {"max": [1]}}, "Malformed", ("spec.max",), id="wrong type"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_field_value_limit_and_next_step(obj: Object, reason: str | None, words: tuple[str, ...]) -> None:
    bound = quota("bound", namespaces=["th"], bindings=[{"tenant": "physics"}])
    other = quota("other", tree={"nodes": {"groups": ["g1"]}})
    verdict = made(obj, around(DEPARTMENT, THEORY, bound, other))
    if reason is None:
        warnings(verdict)
        return
    found = refusal(verdict)
    assert found.reason == reason
    assert found.field
    for word in words:
        assert word in found.message


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        pytest.param(quota("a", sharedWeight=0), "nothing beyond its min", id="zero weight"),
        pytest.param(quota("a", max={"gpu/H100": 4}), "no node has gpu/H100", id="a model that no node has"),
        pytest.param(quota("a", min=101, max=200), "101 in sum, and the nodes have 100", id="more than the nodes"),
        pytest.param(quota("a", bindings=[{"tenant": "bio", "vclusters": ["x"]}]), "tenants that do not exist yet: bio", id="no tenant"),
        pytest.param(quota("a", tree={"nodes": {"groups": ["g9"]}}), "selects none of the 3 nodes", id="a tree without nodes"),
        pytest.param(quota("a", isParent=True, namespaces=["x"]), "is a parent and has no work", id="a parent that is bound"),
        pytest.param(quota("a", min=2, lending={"limit": {"nodes": 5}}), "only min to lend, which is 2", id="lends more than min"),
    ],
)
def test_what_is_rarely_meant_is_said(obj: Object, words: str) -> None:
    assert words in warnings(made(obj))


def test_a_change_is_judged_as_a_whole_whatever_field_it_touches() -> None:
    known = around(DEPARTMENT, THEORY)
    assert refusal(changed(THEORY, quota("theory", "physics", min=5, sharedWeight=-1), known)).reason == "NegativeAmount"
    assert refusal(changed(THEORY, quota("theory", "physics", min=9), known)).reason == "MinSumAboveParent"
    assert refusal(changed(DEPARTMENT, quota("physics", min=4, isParent=True), known)).reason == "MinSumAboveParent"
    assert refusal(changed(DEPARTMENT, quota("physics", min=8), known)).reason == "HasChildren"


def test_a_resource_comes_to_a_tree_from_the_top_and_leaves_it_from_the_bottom() -> None:
    both = {"nodes": 10, "gpu": 9}
    known = around(DEPARTMENT, THEORY)
    found = refusal(changed(THEORY, quota("theory", "physics", min=5, max=both), known))
    assert (found.reason, found.field) == ("ResourcesDiffer", "spec.max")
    assert 'max of "theory" would have gpu, and max of its parent "physics" has not' in found.message
    assert 'add gpu to "physics" first' in found.message
    wide = quota("physics", min=8, isParent=True, max=both)
    assert 'gpu is bounded at "physics" alone until the groups below it have it in their max: theory' in warnings(
        changed(DEPARTMENT, wide, known)
    )
    between = around(wide, THEORY)
    assert refusal(made(quota("lab", "physics", max={"nodes": 1}), between)).reason == "ResourcesDiffer"
    assert warnings(changed(THEORY, quota("theory", "physics", min=5, max=both), between)) == ""
    after = around(wide, quota("theory", "physics", min=5, max=both))
    found = refusal(changed(wide, DEPARTMENT, after))
    assert 'max of "physics" would have no gpu, and 1 groups below it have: theory' in found.message
    assert 'gpu is bounded at "physics" alone' in warnings(changed(quota("theory", "physics", min=5, max=both), THEORY, after))


def test_a_cycle_is_shown_with_its_way() -> None:
    lower = quota("lower", "physics", isParent=True)
    found = refusal(changed(DEPARTMENT, quota("physics", "lower", isParent=True, min=0), around(DEPARTMENT, lower)))
    assert found.reason == "ParentCycle"
    assert "physics → lower → physics" in found.sentence


def test_a_group_in_use_neither_moves_nor_becomes_a_parent_nor_goes() -> None:
    known = around(DEPARTMENT, THEORY, quota("biology", min=9, isParent=True), work={"theory": 3})
    assert "3 allocations have not ended" in refusal(changed(THEORY, quota("theory", "biology", min=5), known)).sentence
    assert refusal(changed(THEORY, quota("theory", min=5), known)).reason == "InUse"
    assert refusal(changed(THEORY, quota("theory", "physics", min=5, isParent=True), known)).reason == "ParentHasWork"
    assert refusal(removed(THEORY, known)).reason == "InUse"
    assert refusal(removed(DEPARTMENT, known)).reason == "HasChildren"
    idle = around(DEPARTMENT, THEORY, quota("biology", min=9, isParent=True), work={"default": 3})
    for verdict in (changed(THEORY, quota("theory", "biology", min=5), idle), removed(THEORY, idle)):
        warnings(verdict)


def test_a_strict_resource_is_not_set_below_what_is_used() -> None:
    strict = quota("a", max=10, strictKeys=["nodes"])
    known = around(strict, used={"a": {"nodes": 7}})
    assert "spec.max.nodes is 6, below the 7" in refusal(changed(strict, quota("a", max=6, strictKeys=["nodes"]), known)).sentence
    assert warnings(changed(strict, quota("a", max=7, strictKeys=["nodes"]), known)) == ""
    assert "nothing new starts" in warnings(changed(quota("a"), quota("a", max=6), around(quota("a"), used={"a": {"nodes": 7}})))


@pytest.mark.parametrize(
    ("minimum", "guarantees", "refused"),
    [
        pytest.param(5, True, "", id="some group above covers it"),
        pytest.param(7, True, '"top" would have to guarantee 13, and has 12', id="no group above covers it"),
        pytest.param(7, False, "", id="a tree that guarantees min alone"),
        pytest.param(1, True, "", id="a min that falls"),
    ],
)
def test_where_use_is_guaranteed_a_min_grows_only_into_what_a_group_above_has_guaranteed(
    minimum: int, guarantees: bool, refused: str
) -> None:
    top = quota("top", min=12, max=20, isParent=True, tree={"nodes": {"groups": ["g0"]}, "guaranteeUsed": guarantees})
    middle = quota("middle", "top", min=8, max=20, isParent=True)
    leaf, beside = quota("leaf", "middle", min=2, max=20), quota("beside", "middle", min=1, max=20)
    known = around(
        top, middle, leaf, beside, used={"beside": {"nodes": 6}, "leaf": {"nodes": 1}, "middle": {"nodes": 7}, "top": {"nodes": 7}}
    )
    found = changed(leaf, quota("leaf", "middle", min=minimum, max=20), known)
    if refused:
        assert refusal(found).reason == "GuaranteeNotCovered"
        assert refused in refusal(found).sentence
    else:
        assert warnings(found) == ""


def test_a_fault_that_stood_before_is_not_in_the_way_of_its_repair() -> None:
    big = quota("big", "physics", min=7)
    known = around(DEPARTMENT, THEORY, big)  # 12 of 8, by a race
    assert warnings(changed(big, quota("big", "physics", min=6), known)) == ""
    assert warnings(changed(DEPARTMENT, quota("physics", min=9, isParent=True), known)) == ""


def test_what_a_tree_does_not_look_at_is_not_judged() -> None:
    broken = quota("a", "nowhere")
    touched = {**broken, "metadata": {**broken["metadata"], "annotations": {"x": "y"}}, "status": {"used": {}}}
    assert warnings(changed(broken, touched, around())) == ""


def test_amounts_that_do_not_read_are_named_before_the_schema_refuses_them() -> None:
    found = unreadable(Request(OURS, "CREATE", quota("a", min="-1"), {}))
    assert found is not None
    assert found.sentence == "spec.min.nodes is -1, and the least is 0"
    assert unreadable(Request(OURS, "CREATE", quota("a"), {})) is None


def test_what_did_not_read_before_keeps_no_finalizer_from_going() -> None:
    broken = quota("a", min=-1)
    freed = {**broken, "metadata": {**broken["metadata"], "finalizers": []}}
    assert unreadable(Request(OURS, "UPDATE", freed, broken)) is None
    assert warnings(changed(broken, freed, around())) == ""
    assert refusal(changed(broken, quota("a", min=-2), around())).reason == "NegativeAmount"


# Koordinator's kinds


def test_the_defaults_of_koordinator_are_filled_in_and_nothing_given_is_changed() -> None:
    parent = theirs("root", labels={"is-parent": "true", "tree-id": "77"})
    filled = fill(Request(KOORDINATORS, "CREATE", theirs("a", "root"), {}), around(koordinators=(parent,))).obj["metadata"]
    assert filled["labels"] == {PREFIX + "parent": "root", PREFIX + "tree-id": "77"}
    assert filled["annotations"] == {PREFIX + "shared-weight": '{"cpu":40}'}
    own = theirs("a", notes={"shared-weight": {"cpu": 1}})
    assert fill(Request(KOORDINATORS, "CREATE", own, {}), around()).obj["metadata"]["annotations"][PREFIX + "shared-weight"] == '{"cpu": 1}'
    assert fill(Request(KOORDINATORS, "CREATE", own, {}), around()).obj["metadata"]["labels"] == {PREFIX + "parent": ROOT}


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        pytest.param(theirs("a", min={"cpu": -1}), "NegativeAmount", id="R3"),
        pytest.param(theirs("a", notes={"shared-weight": "{"}), "AnnotationInvalid", id="R3 no JSON"),
        pytest.param(theirs("a", notes={"shared-weight": {"cpu": -1}}), "NegativeAmount", id="R3 weight"),
        pytest.param(theirs("a", min={"cpu": 41}), "MinAboveMax", id="R4"),
        pytest.param(theirs("a", min={"memory": 1}), "MinAboveMax", id="R4 key"),
        pytest.param(theirs("a", notes={"namespaces": ["taken"]}), "BindingTaken", id="R2"),
        pytest.param(theirs("a", notes={"namespaces": "x"}), "AnnotationInvalid", id="R2 no JSON"),
        pytest.param(theirs("a", notes={"max-strict-check-resource-keys": "x"}), "AnnotationInvalid", id="R5 no JSON"),
        pytest.param(theirs("a", "nowhere"), "ParentUnknown", id="R9"),
        pytest.param(theirs("a", "leaf"), "ParentIsLeaf", id="R9 leaf"),
        pytest.param(theirs("a", "top", labels={"tree-id": "2"}), "TreeInvalid", id="R8"),
        pytest.param(theirs("a", "top", max={"cpu": 1, "memory": 1}), "ResourcesDiffer", id="R10"),
        pytest.param(theirs("a", "top", min={"cpu": 5}), "MinSumAboveParent", id="R11"),
        pytest.param(theirs("a", "top", min={"cpu": 5}, labels={"allow-force-update": "true"}), None, id="R11 forced"),
        pytest.param(theirs("leaf", namespace="elsewhere"), "NameTaken", id="R1"),
        pytest.param(theirs("ours"), "NameTaken", id="a name of our kind"),
        pytest.param(theirs(ROOT, namespace="koordinator-system", max={"cpu": 2**63 - 1}), None, id="built in"),
    ],
)
def test_the_rules_of_koordinator_hold_for_its_kind(obj: Object, reason: str | None) -> None:
    standing = (
        theirs("top", labels={"is-parent": "true"}, min={"cpu": 10}),
        theirs("leaf", "top", min={"cpu": 6}, notes={"namespaces": ["taken"]}),
    )
    verdict = made(obj, around(quota("ours"), koordinators=standing), KOORDINATORS)
    if reason is None:
        warnings(verdict)
    else:
        assert refusal(verdict).reason == reason


def test_root_and_system_of_koordinator_stay_as_they_are_and_the_max_of_its_default_may_change() -> None:
    for name, reason in ((ROOT, "BuiltInGroup"), ("koordinator-system-quota", "BuiltInGroup"), ("koordinator-default-quota", None)):
        before, after = theirs(name, max={"cpu": 9}), theirs(name, max={"cpu": 8})
        verdict = changed(before, after, around(koordinators=(before,)), KOORDINATORS)
        if reason is None:
            warnings(verdict)
        else:
            assert (refusal(verdict).reason, "cannot be changed" in refusal(verdict).sentence) == (reason, True)
        noted = {**before, "metadata": {**before["metadata"], "annotations": {PREFIX + "runtime": "{}"}}}
        assert warnings(changed(before, noted, around(koordinators=(before,)), KOORDINATORS)) == ""


def test_a_name_used_by_both_kinds_is_refused_with_both_objects_named() -> None:
    sentence = refusal(made(quota("leaf"), around(koordinators=(theirs("leaf"),)))).sentence
    assert "ElasticQuota leaf (lattice.dev)" in sentence
    assert "ElasticQuota ns/leaf (scheduling.sigs.k8s.io)" in sentence


def test_profiles_do_not_share_nodes_nor_names_and_an_empty_one_is_said() -> None:
    known = around(quota("taken"), profiles=(profile("p0", "root-a", **{"lattice.dev/group": "g0"}),))
    nodes = (Traits("n1", "g0", labels={"lattice.dev/group": "g0"}), Traits("n2", labels={"zone": "a"}))
    known = replace(known, quotas=replace(known.quotas or QuotaFacts(), nodes=nodes))
    assert refusal(made(profile("p1", "root-a", zone="a"), known, PROFILE)).reason == "NameTaken"
    assert refusal(made(profile("p1", "taken", zone="a"), known, PROFILE)).reason == "NameTaken"
    assert "ElasticQuotaProfile ns/p0" in refusal(made(profile("p1", "b", **{"lattice.dev/group": "g0"}), known, PROFILE)).sentence
    assert "selects none of the 2 nodes" in warnings(made(profile("p1", "b", zone="z"), known, PROFILE))
    bad = profile("p1", "b", zone="a")
    bad["spec"]["resourceRatio"] = "1.5"
    assert refusal(made(bad, known, PROFILE)).reason == "RatioInvalid"


# No sequence of accepted writes leaves an invalid tree

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
WRITES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete"]), NAMES, st.sampled_from(["", "a", "b", "c", "d", "e", "x"]), st.booleans(),
        st.integers(-1, 6), st.integers(0, 8), st.sampled_from([("nodes",), ("nodes",), ("nodes", "gpu")]), st.booleans(),
    ),
    max_size=30,
)  # fmt: skip


def write(site: dict[str, Object], seen: dict[str, Object], step: Any) -> None:
    """One write, judged by what its writer has seen, and stored if it was accepted."""
    verb, name, parent, is_parent, least, most, keys, koordinators = step
    kind = KOORDINATORS if koordinators else OURS
    key = f"{kind}/{name}"
    split = {"objects": [], "koordinators": []}  # type: dict[str, list[Object]]
    for each, obj in seen.items():
        split["koordinators" if each.startswith(KOORDINATORS) else "objects"].append(obj)
    known = around(*split["objects"], koordinators=tuple(split["koordinators"]))
    if verb == "delete":
        if key in site and isinstance(removed(site[key], known, kind), Accepted):
            del site[key]
        return
    amounts = {"min": dict.fromkeys(keys, least), "max": dict.fromkeys(keys, most)}
    labels = {"is-parent": str(is_parent).lower()}
    obj = (
        theirs(name, parent, labels=labels, min=amounts["min"], max=amounts["max"])
        if koordinators
        else quota(name, parent, isParent=is_parent, **amounts)
    )
    verdict = changed(site[key], obj, known, kind) if key in site else made(obj, known, kind)
    if isinstance(verdict, Accepted):
        site[key] = obj


def declared(site: dict[str, Object]) -> list[Declared]:
    found = [read_quota(key.partition("/")[0], obj) for key, obj in site.items()]
    return [each for each in found if isinstance(each, Declared)]


@settings(max_examples=80, deadline=None)
@given(WRITES)
def test_no_sequence_of_accepted_writes_leaves_an_invalid_tree(steps: list[Any]) -> None:
    site: dict[str, Object] = {}
    for step in steps:
        write(site, dict(site), step)
        groups = {each.name: each for each in declared(site)}
        gathered = gather(groups.values())
        assert not gathered.left_out
        assert len(groups) == len(site)
        for group in groups.values():
            assert all(0 <= amount <= group.max[key] for key, amount in group.min.items())
            children = [other for other in groups.values() if other.parent == group.name]
            assert not children or group.is_parent
            for child in children:
                assert child.max.keys() <= group.max.keys()
            for key, amount in group.min.items():
                assert sum(child.min.get(key, 0) for child in children) <= amount


PLACES = {"top": "", "mid": "top", "low": "mid", "ear": "top", "eye": "ear", "own": ""}
"""Six groups of three levels, by name with their parents."""


def tree_of(amounts: dict[str, tuple[int, int]], keys: tuple[str, ...]) -> dict[str, Object]:
    """The six groups with these mins, which are sums upwards, of these resources."""
    parents = set(PLACES.values())
    own = {name: dict(zip(keys, amounts[name], strict=False)) for name in PLACES}
    for name in ("mid", "ear", "top"):
        own[name] = {key: own[name][key] + sum(own[below][key] for below, at in PLACES.items() if at == name) for key in keys}
    return {
        name: quota(name, parent, isParent=name in parents, min=own[name], max=dict.fromkeys(keys, 99)) for name, parent in PLACES.items()
    }


def applied(site: dict[str, Object], wanted: dict[str, Object], order: list[str]) -> None:
    """What `kubectl apply -f DIR` does: each object once, in this order; what is refused stays as it was."""
    for name in order:
        known, obj = around(*site.values()), wanted[name]
        verdict = changed(site[name], obj, known) if name in site else made(obj, known)
        if isinstance(verdict, Accepted):
            site[name] = obj


AMOUNTS = st.fixed_dictionaries({name: st.tuples(st.integers(0, 3), st.integers(0, 3)) for name in PLACES})
Amounts = dict[str, tuple[int, int]]


@settings(max_examples=60, deadline=None)
@given(AMOUNTS, AMOUNTS, st.booleans(), st.permutations(list(PLACES)))
def test_applied_in_any_order_again_and_again_a_tree_becomes_what_was_asked_for(
    first: Amounts, then: Amounts, grows: bool, order: list[str]
) -> None:
    """GitOps tools apply in any order and try again: a new tree, then other mins, then a resource more or less."""
    keys: tuple[str, ...] = ("nodes",) if grows else ("nodes", "gpu")
    moved = {name: (then[name][0], first[name][1]) for name in PLACES}
    site: dict[str, Object] = {}
    for wanted in (tree_of(first, keys), tree_of(moved, keys), tree_of(moved, ("nodes", "gpu") if grows else ("nodes",))):
        for _ in range(6):
            applied(site, wanted, order)
        assert site == wanted


@settings(max_examples=80, deadline=None)
@given(WRITES, st.lists(st.booleans(), min_size=30, max_size=30))
def test_writers_that_race_leave_what_still_makes_sound_trees(steps: list[Any], late: list[bool]) -> None:
    site: dict[str, Object] = {}
    before: dict[str, Object] = {}
    for step, stale in zip(steps, late, strict=False):
        now = dict(site)
        write(site, before if stale else now, step)  # a writer that raced judged what stood before the last write
        before = now
    gathered = gather(declared(site))
    QuotaTree(
        {"nodes": 10, "gpu": 4}, Options(scale_min=True, raw_weight=True), [group.group() for group in gathered.groups.values()]
    ).validate()
    assert len(gathered.groups) + len(gathered.left_out) == len(site)
