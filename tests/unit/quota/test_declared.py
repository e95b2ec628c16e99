"""Groups as people declared them: quantities, Koordinator's labels and annotations, and whose work is where."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.quota.amounts import LARGEST, amount_of, amounts_of, quantities, quantity, resource_of, shown
from lattice.quota.declared import (
    PREFIX,
    Binding,
    Declared,
    bindings_of,
    declared_of,
    declared_of_koordinator,
    declared_of_profile,
    tree_id_of,
    tree_of,
)
from lattice.quota.gathering import gather
from lattice.quota.selection import LabelTest, Selection, Traits, share_out, traits_of
from lattice.quota.settings import rules_of
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota, Node
from lattice.views.cluster import QuotaTreeOptions


def ours(name: str, *, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> ElasticQuota:
    spec.setdefault("max", {"nodes": 10})
    return msgspec.convert({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}, ElasticQuota)


def theirs(
    name: str, namespace: str = "ns", labels: dict[str, str] | None = None, notes: dict[str, Any] | None = None, **spec: Any
) -> KoordinatorQuota:
    metadata = {
        "name": name, "namespace": namespace, "labels": {PREFIX + key: value for key, value in (labels or {}).items()},
        "annotations": {PREFIX + key: json.dumps(value) for key, value in (notes or {}).items()}, "creationTimestamp": "2026-01-02T00:00:00Z",
    }  # fmt: skip
    return msgspec.convert({"metadata": metadata, "spec": spec}, KoordinatorQuota)


def profile(**spec: Any) -> KoordinatorProfile:
    body = {"quotaName": "root", "nodeSelector": {"matchLabels": {"zone": "a"}}, **spec}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ns"}, "spec": body}, KoordinatorProfile)


@pytest.mark.parametrize(
    ("resource", "value", "amount"),
    [
        ("nodes", 4, 4), ("nodes", "4", 4), ("cpu", "1500m", 1500), ("cpu", 2, 2000), ("cpu", "0.1m", 1), ("memory", "1Ki", 1024),
        ("memory", "1.5Gi", 3 << 29), ("memory", "1e3", 1000), ("memory", "1E", 10**18), ("memory", "2E3", 2000), ("gpu", "1k", 1000),
        ("licences", "2.5", 3), ("cpu", LARGEST // 5, LARGEST), ("nodes", "+3", 3), ("memory", ".5k", 500), ("memory", "3.", 3),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_reads_them(resource: str, value: int | str, amount: int) -> None:
    assert amount_of(resource, value, field="x") == amount


@pytest.mark.parametrize(
    ("resource", "value", "reason"),
    [
        ("nodes", "1.5", "NotAWholeNumber"), ("gpu/GH200", "500m", "NotAWholeNumber"), ("cpu", "-1", "NegativeAmount"),
        ("nodes", -1, "NegativeAmount"), ("memory", "16E", "AmountTooLarge"), ("memory", "", "QuantityInvalid"), ("memory", ".", "QuantityInvalid"),
        ("memory", "1KiB", "QuantityInvalid"), ("memory", "٣", "QuantityInvalid"), ("memory", "1 Gi", "QuantityInvalid"),
    ],
)  # fmt: skip
def test_what_is_no_amount_is_refused_with_its_field(resource: str, value: int | str, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        amount_of(resource, value, field="spec.min.x")
    assert refused.value.reason == reason
    assert refused.value.fields == ("spec.min.x",)
    assert "spec.min.x" in refused.value.message


@given(st.sampled_from(["nodes", "cpu", "memory", "gpu", "gpu/GH200", "licences"]), st.integers(0, LARGEST))
def test_an_amount_is_shown_as_the_quantity_that_reads_as_it(resource: str, amount: int) -> None:
    assert amount_of(resource, quantity(resource, amount), field="x") == amount


def test_vendors_and_spellings_of_gpus_are_one_resource() -> None:
    assert [resource_of(name) for name in ("nvidia.com/gpu", "amd.com/gpu", "gpu", "gpu/gh200", "nvidia.com/mig")] == [
        "gpu", "gpu", "gpu", "gpu/GH200", "nvidia.com/mig",
    ]  # fmt: skip
    assert amounts_of({"nvidia.com/gpu": 4, "gpu": 1, "gpu/gh200": 2}, field="x") == {"gpu": 5, "gpu/GH200": 2}


def test_amounts_are_shown_in_the_order_that_people_look_for() -> None:
    amounts = {"memory": 1 << 40, "cpu": 1500, "nodes": 8, "gpu/GH200": 32, "x": 1}
    assert shown(amounts) == "8 nodes, 32 gpu/GH200, 1500m cpu, 1Ti memory, 1 x"
    assert shown({}) == "-"
    assert quantities({"cpu": 2000, "memory": 1024}) == {"cpu": "2", "memory": "1Ki"}


def test_our_kind_says_everything_in_its_spec() -> None:
    read = declared_of(
        ours(
            "a",
            parent="top",
            min={"nodes": 2},
            sharedWeight={"nodes": 0},
            lending={"enabled": True, "limit": {"nodes": 1}},
            admission={"nodes": 0},
            bindings=[{"tenant": "t"}, {"tenant": "u", "vclusters": ["x", "y"]}],
            strictKeys=["nodes"],
        )
    )
    assert read.parent == "top"
    assert read.weight == {"nodes": 0}
    assert read.lend_limit == {"nodes": 1}
    assert read.admission == {"nodes": 0}
    assert read.bindings == (Binding("t"), Binding("u", "x"), Binding("u", "y"))
    assert read.group().kept("nodes") == 1
    assert read.group().weight(literal=True) == {"nodes": 0}


def test_the_tree_of_our_kind_comes_before_the_configuration() -> None:
    tree = {"nodes": {"gpuTypes": ["gh200"]}, "ratio": "900m", "scaleMin": False, "delay": "5s", "revocation": "On"}
    read = declared_of(ours("a", tree=tree)).tree
    assert read is not None
    assert (read.ratio, read.nodes.gpu_types) == (Fraction(9, 10), frozenset({"GH200"}))
    rules = rules_of(QuotaTreeOptions(max_per_round=3), read)
    assert (rules.options.scale_min, rules.delay_seconds, rules.revocation, rules.max_per_round) == (False, 5.0, "On", 3)
    assert rules_of(QuotaTreeOptions(), None).revocation == "Notify"


@pytest.mark.parametrize(
    ("labels", "notes", "field", "value"),
    [
        ({"parent": "koordinator-root-quota"}, {}, "parent", ""),
        ({"parent": "top"}, {}, "parent", "top"),
        ({"is-parent": "true"}, {}, "is_parent", True),
        ({"is-parent": "yes"}, {}, "is_parent", False),
        ({"allow-lent-resource": "false"}, {}, "lends", False),
        ({"allow-lent-resource": "no"}, {}, "lends", True),
        ({"allow-force-update": "true"}, {}, "forced", True),
        ({"tree-id": "7"}, {}, "tree_id", "7"),
        ({}, {}, "weight", {"cpu": 40000, "gpu": 8}),
        ({}, {"shared-weight": {"cpu": 0, "nvidia.com/gpu": 0}}, "weight", {"cpu": 40000, "gpu": 8}),
        ({}, {"shared-weight": {"cpu": 0, "nvidia.com/gpu": 1}}, "weight", {"cpu": 0, "gpu": 1}),
        ({}, {"shared-weight": {"cpu": "100m", "foreign": 3}}, "weight", {"cpu": 100, "gpu": 8}),
        ({}, {"namespaces": ["a", "b"]}, "namespaces", ("a", "b")),
        ({}, {"max-strict-check-resource-keys": ["nvidia.com/gpu"]}, "strict", frozenset({"gpu"})),
        ({}, {"admission": {"cpu": 0}}, "admission", {"cpu": 0}),
        ({}, {"admission": {}}, "admission", None),
    ],
)
def test_labels_and_annotations_of_koordinator_mean_what_they_mean_there(labels: Any, notes: Any, field: str, value: object) -> None:
    read = declared_of_koordinator(theirs("a", labels=labels, notes=notes, min={"cpu": "500m"}, max={"cpu": 40, "nvidia.com/gpu": 8}))
    assert getattr(read, field) == value
    assert read.min == {"cpu": 500}


def test_a_profile_makes_its_quota_the_root_of_a_tree() -> None:
    made = profile(resourceRatio="0.9")
    root = declared_of_koordinator(theirs("root", max={"cpu": 1}), [made])
    assert root.tree is not None
    assert (root.tree.ratio, root.tree.resources, root.tree.profile) == (Fraction(9, 10), ("cpu", "memory"), "ns/p")
    assert declared_of_koordinator(theirs("root", "other", max={"cpu": 1}), [made]).tree is None
    assert declared_of_profile(made).tree == root.tree
    assert tree_id_of(made) == "5367319587633080321"


@pytest.mark.parametrize("ratio", ["0", "1.5", "-1", "x"])
def test_a_ratio_is_above_nothing_and_at_most_one(ratio: str) -> None:
    with pytest.raises(Rejected):
        tree_of(profile(resourceRatio=ratio))


# Whose work is where


def site() -> list[Declared]:
    return [
        declared_of(ours("physics", isParent=True)),
        declared_of(ours("theory", parent="physics", bindings=[{"tenant": "physics"}], namespaces=["th"])),
        declared_of(ours("fast", parent="physics", bindings=[{"tenant": "physics", "vclusters": ["ml"]}])),
        declared_of_koordinator(theirs("lab", "lab", max={"cpu": 1})),
        declared_of_koordinator(theirs("guests", notes={"namespaces": ["g1", "lab"]}, max={"cpu": 1})),
    ]


@pytest.mark.parametrize(
    ("quota", "label", "tenant", "vcluster", "namespace", "leaf"),
    [
        ("guests", "fast", "physics", "ml", "th", "guests"),
        ("physics/theory", "", "", "", "", "theory"),
        ("chemistry/theory", "fast", "", "", "", "fast"),
        ("physics", "", "physics", "hpc", "", "theory"),
        ("gone", "gone", "physics", "ml", "th", "fast"),
        ("", "fast", "", "", "", "fast"),
        ("", "", "physics", "ml", "th", "fast"),
        ("", "", "physics", "hpc", "g1", "theory"),
        ("", "", "", "", "g1", "guests"),
        ("", "", "", "", "lab", "lab"),
        ("", "", "bio", "", "bio", "default"),
    ],
)
def test_the_leaf_of_work_is_what_is_named_then_bound_then_default(
    quota: str, label: str, tenant: str, vcluster: str, namespace: str, leaf: str
) -> None:
    assert bindings_of(site()).leaf(quota, label, tenant, vcluster, namespace) == leaf


def test_of_two_that_claim_the_same_the_earlier_has_it() -> None:
    late = declared_of(ours("a", created="2026-03-01T00:00:00Z", namespaces=["n"]))
    early = declared_of(ours("b", created="2026-02-01T00:00:00Z", namespaces=["n"]))
    for order in ([late, early], [early, late]):
        assert bindings_of(order).leaf("", "", "", "", "n") == "b"


def test_what_makes_no_tree_is_left_out_with_its_reason() -> None:
    objects = [
        *site(),
        declared_of(ours("lab", created="2026-05-01T00:00:00Z")),
        declared_of(ours("orphan", parent="nowhere")),
        declared_of(ours("under", parent="theory")),
        declared_of(ours("x", parent="y", isParent=True)),
        declared_of(ours("y", parent="x", isParent=True)),
        declared_of(ours("z", parent="y")),
        declared_of(ours("default")),
        declared_of(ours("cut", parent="physics", tree={"nodes": {"groups": ["g"]}})),
        declared_of_koordinator(theirs("koordinator-default-quota", max={"cpu": 3})),
    ]
    for order in (objects, objects[::-1]):
        found = gather(order)
        assert {each.declared.name: each.reason for each in found.left_out} == {
            "lab": "NameTaken", "orphan": "ParentUnknown", "under": "ParentIsLeaf", "x": "ParentCycle", "y": "ParentCycle", "z": "ParentUnknown",
            "default": "BuiltInGroup", "cut": "TreeNotAtTop",
        }  # fmt: skip
        assert set(found.groups) == {"physics", "theory", "fast", "lab", "guests"}
        assert [each.name for each in found.built_in] == ["koordinator-default-quota"]
        assert list(found.groups).index("physics") < list(found.groups).index("theory")
    taken = next(each for each in gather(objects).left_out if each.reason == "NameTaken")
    assert "lab (lattice.dev)" in taken.message
    assert "lab/lab (scheduling.sigs.k8s.io)" in taken.message


def test_a_group_is_in_the_tree_of_its_root() -> None:
    tree = {"nodes": {"groups": ["g"]}}
    found = gather([declared_of(ours("top", isParent=True, tree=tree)), declared_of(ours("low", parent="top")), declared_of(ours("else"))])
    assert {name: found.tree_of(name) for name in found.groups} == {"top": "top", "low": "top", "else": ""}


# Nodes of a tree


def test_a_selection_takes_what_has_all_that_is_given() -> None:
    spec = {"group": "g0", "features": ["nvme"]}
    status = {"capabilities": {"gpuType": "gh200", "features": ["ib"]}}
    node = traits_of(msgspec.convert({"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": spec, "status": status}, Node))
    for fits in (
        Selection(groups=frozenset({"g0", "g1"})), Selection(gpu_types=frozenset({"GH200"})), Selection(features=frozenset({"nvme", "ib"})),
        Selection(labels={"zone": "a", "lattice.dev/group": "g0"}), Selection(everything=True),
        Selection(tests=(LabelTest("zone", "In", ("a",)), LabelTest("x", "DoesNotExist"), LabelTest("zone", "Exists"), LabelTest("x", "NotIn", ("1",)))),
    ):  # fmt: skip
        assert fits.selects(node)
    for other in (
        Selection(), Selection(groups=frozenset({"g1"})), Selection(gpu_types=frozenset({"A100"})), Selection(features=frozenset({"x"})),
        Selection(labels={"zone": "b"}), Selection(tests=(LabelTest("zone", "Matches"),)), Selection(tests=(LabelTest("zone", "NotIn", ("a",)),)),
    ):  # fmt: skip
        assert not other.selects(node)


def test_a_node_belongs_to_the_first_tree_that_selects_it() -> None:
    nodes = [Traits("n1", "g0"), Traits("n2", "g1"), Traits("n3", "g2")]
    one, two, none = Selection(groups=frozenset({"g0", "g1"})), Selection(groups=frozenset({"g1"})), Selection(groups=frozenset({"g9"}))
    shares = share_out([("one", one), ("two", two), ("none", none)], nodes)
    assert shares.tree_of == {"n1": "one", "n2": "one", "n3": ""}
    assert shares.contested == {"two": {"one": 1}}
    assert shares.empty == ("none",)
