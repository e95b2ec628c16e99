"""A tree as it is written: what is read, and a sentence with quota, field, value and limit for each thing that is wrong."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import Rejected
from lattice.quota.document import answer, read_document
from lattice.quota.groups import ROOT
from lattice.quota.rules import REASONS

from . import by_hand

TREES = int(os.environ.get("LATTICE_QUOTA_TREES", "1000")) // 5
"""How many random documents, as in `test_tree`."""


def quota(name: str = "A", **fields: Any) -> dict[str, Any]:
    return {"name": name, "min": {"nodes": 2}, "max": {"nodes": 8}, **fields}


def text(*quotas: Any, total: Any = None, **more: Any) -> str:
    return json.dumps({"total": {"nodes": 10} if total is None else total, "quotas": list(quotas), **more})


PARENT = quota("P", isParent=True)

UNREADABLE: list[Any] = [
    pytest.param(" \n", "BadDocument", 'the document is empty: write {"total"', id="empty"),
    pytest.param("{", "BadDocument", "the document is no JSON", id="no JSON"),
    pytest.param("[" * 100_000, "BadDocument", "nests too deep", id="nested too deep"),
    pytest.param("7", "BadDocument", "the document is 7, not an object", id="no object"),
    pytest.param('{"total": {}, "total": {}, "quotas": []}', "BadDocument", 'the key "total" stands twice', id="a key twice"),
    pytest.param('{"total": {"nodes": NaN}, "quotas": []}', "NotAWholeNumber", "total.nodes is NaN, not a whole number", id="NaN"),
    pytest.param('{"total": {"nodes": 1e400}, "quotas": []}', "NotAWholeNumber", "total.nodes is Infinity, not a whole", id="infinite"),
    pytest.param('{"total": {"nodes": ' + "9" * 5000 + "}}", "BadDocument", "no JSON", id="five thousand digits"),
    pytest.param('{"quotas": []}', "MissingValue", "total is missing", id="no total"),
    pytest.param('{"total": {"nodes": 1}}', "MissingValue", "quotas is missing", id="no quotas"),
    pytest.param('{"total": {"nodes": 1}, "quotas": {}}', "BadDocument", "quotas is {}, not a list", id="quotas no list"),
    pytest.param(text(5), "BadDocument", "quotas[0] is 5, not an object", id="a quota no object"),
    pytest.param(text({"min": {}, "max": {}}), "MissingValue", "quotas[0]: name is missing", id="no name"),
    pytest.param(text(quota("")), "BadDocument", 'name is "", not a text', id="an empty name"),
    pytest.param(text({"name": "A", "min": {}}), "MissingValue", 'quota "A": max is missing', id="no max"),
    pytest.param(text({"name": "A", "max": {}}), "MissingValue", 'quota "A": min is missing', id="no min"),
    pytest.param(text(quota(min=None)), "BadDocument", 'quota "A": min is null, not an object', id="min null"),
    pytest.param(text(quota(min={"nodes": None})), "MissingValue", 'quota "A": min.nodes is missing (null)', id="a value null"),
    pytest.param(text(quota(min={"nodes": 1.5})), "NotAWholeNumber", 'quota "A": min.nodes is 1.5, not a whole number', id="1.5 nodes"),
    pytest.param(text(quota(max={"nodes": "8"})), "NotAWholeNumber", 'quota "A": max.nodes is "8", not a whole', id="a text"),
    pytest.param(text(quota(max={"nodes": "1e1"})), "NotAWholeNumber", "all else in its own unit): write 10", id="a quantity"),
    pytest.param(text(quota(), total={"cpu": "500m"}), "NotAWholeNumber", "all else in its own unit): write 500", id="millicores"),
    pytest.param(text(quota(), total={"cpu": "1.5"}), "NotAWholeNumber", "all else in its own unit): write 1500", id="cores"),
    pytest.param(text(quota(), total={"memory": "1Ki"}), "NotAWholeNumber", "all else in its own unit): write 1024", id="bytes"),
    pytest.param(text(quota(), total={"nodes": "-1"}), "NotAWholeNumber", "all else in its own unit)", id="a negative text"),
    pytest.param(text(quota(used={"nodes": True})), "NotAWholeNumber", 'quota "A": used.nodes is true, not a whole', id="a truth"),
    pytest.param(text(quota(request={"nodes": -3})), "NegativeAmount", 'quota "A": request.nodes is -3, below 0', id="negative"),
    pytest.param(text(quota(), total={"nodes": -1}), "NegativeAmount", "total.nodes is -1, below 0", id="a negative total"),
    pytest.param(text(quota(sharedWeight={"nodes": -1})), "NegativeAmount", "sharedWeight.nodes is -1, below 0", id="a negative weight"),
    pytest.param(text(quota(max={"nodes": 2**63})), "AmountTooLarge", "above 9223372036854775807", id="beyond int64"),
    pytest.param(text(quota(allowLent="no")), "BadDocument", 'quota "A": allowLent is "no", not true or false', id="no switch"),
    pytest.param(text(quota(parent=5)), "BadDocument", 'quota "A": parent is 5, not the name', id="a parent no name"),
    pytest.param(text(quota(maximum={})), "UnknownField", 'quota "A": there is no field "maximum"', id="an unknown field"),
    pytest.param(
        text(quota(), options={"scalemin": True}), "UnknownField", 'options: there is no field "scalemin"', id="an unknown option"
    ),
    pytest.param(text(quota(), options={"sysUsed": {"nodes": -1}}), "NegativeAmount", "sysUsed.nodes is -1", id="an option negative"),
    pytest.param(text(quota(), quota()), "DuplicateName", 'quotas[1]: the name "A" is taken by quotas[0]', id="a name twice"),
    pytest.param(text(quota(ROOT)), "DuplicateName", "is a built-in group", id="a built-in name"),
    pytest.param(text(quota(parent="B")), "ParentUnknown", 'quota "A": parent is "B", which is not in the tree', id="an unknown parent"),
    pytest.param(text(quota(parent="A")), "ParentCycle", 'quota "A": parent is "A", which leads back to it: A → A', id="its own parent"),
    pytest.param(
        text(quota("A", parent="B"), quota("B", parent="C"), quota("C", parent="B")), "ParentCycle", "B → C → B", id="a cycle above a leaf"
    ),
]


@pytest.mark.parametrize(("document", "reason", "sentence"), UNREADABLE)
def test_what_is_no_tree_is_refused_with_its_place(document: str, reason: str, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_document(document)
    assert (refused.value.reason, sentence in refused.value.message) == (reason, True), refused.value.message
    assert reason in REASONS


BROKEN: list[Any] = [
    pytest.param(text(quota(), total={"nodes": 0}), "NothingToDivide", "nodes 0", id="a total of zero"),
    pytest.param(text(quota(max={}, min={}), total={}), "NothingToDivide", "nothing", id="an empty total"),
    pytest.param(
        text(quota(), options={"sysUsed": {"nodes": 6}, "defUsed": {"nodes": 4}}), "NothingToDivide", "nodes 0", id="all used by system"
    ),
    pytest.param(
        text(quota(min={"nodes": 9})), "MinAboveMax", 'quota "A": min.nodes is 9, above max.nodes, which is 8', id="min above max"
    ),
    pytest.param(text(quota(min={"gpu": 1})), "MinAboveMax", 'quota "A": min.gpu is 1, and max has no gpu', id="min without max"),
    pytest.param(
        text(quota(sharedWeight={"gpu": 1})), "ResourcesDiffer", "sharedWeight.gpu is 1, and max has no gpu", id="a foreign weight"
    ),
    pytest.param(text(quota(max={"nodes": 8, "fpga": 1})), "NoSuchResource", "max.fpga is 1, and total has no fpga", id="no such resource"),
    pytest.param(
        text(PARENT, quota(parent="P", max={"nodes": 8, "gpu": 3})),
        "ResourcesDiffer",
        'quota "A": max.gpu is 3, and max of its parent "P" has no gpu',
        id="a resource at a leaf only",
    ),
    pytest.param(
        text(PARENT, quota(parent="P", min={}, max={})),
        "ResourcesDiffer",
        'quota "A": max has no nodes, and max.nodes of its parent "P" is 8',
        id="a resource at the parent only",
    ),
    pytest.param(
        text(quota("P", isParent=False), quota(parent="P")), "ParentIsLeaf", 'quota "P": isParent is false', id="a leaf as parent"
    ),
    pytest.param(text(quota(isParent=True, used={"nodes": 1})), "ParentHasWork", "used.nodes is 1", id="a parent with work"),
    pytest.param(
        text(PARENT, quota("A", parent="P"), quota("B", parent="P")),
        "MinSumAboveParent",
        'quota "P": min.nodes of its children (2) is 4 in sum, above its own, which is 2',
        id="mins above the parent's",
    ),
]


@pytest.mark.parametrize(("document", "reason", "sentence"), BROKEN)
def test_what_breaks_a_rule_is_said_with_quota_field_value_and_limit(document: str, reason: str, sentence: str) -> None:
    faults = read_document(document).faults()
    assert any(fault.reason == reason and sentence in fault.sentence for fault in faults), faults
    assert reason in REASONS


ODD: list[Any] = [
    pytest.param(
        text(quota(request={"nodes": 9}, used={"nodes": 9})),
        "MaxBelowUsed",
        'quota "A": used.nodes is 9, above max.nodes, which is 8: nothing more starts until 1 end',
        id="max below used",
    ),
    pytest.param(
        text(quota(request={"nodes": 1}, used={"nodes": 3})),
        "RequestBelowUsed",
        'quota "A": used.nodes is 3, above request.nodes, which is 1',
        id="request below used",
    ),
]


@pytest.mark.parametrize(("document", "reason", "sentence"), ODD)
def test_what_is_rarely_meant_is_said_and_divided_all_the_same(document: str, reason: str, sentence: str) -> None:
    read = read_document(document)
    assert [(odd.reason, sentence in odd.sentence) for odd in read.oddities()] == [(reason, True)]
    assert read.faults() == []
    assert reason in REASONS


def test_a_number_with_a_point_or_an_exponent_that_is_whole_is_that_number() -> None:
    tree = read_document('{"total": {"nodes": 1e3}, "quotas": [{"name": "A", "min": {"nodes": 2.0}, "max": {"nodes": 8}}]}').tree()
    assert (tree.runtime(ROOT), tree.group("A").min) == ({"nodes": 1000}, {"nodes": 2})


def test_every_reason_of_the_room_is_given_by_some_document() -> None:
    assert {case.values[1] for case in (*UNREADABLE, *BROKEN, *ODD)} == REASONS.keys()


def test_every_reason_stands_in_the_documentation() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "howto" / "quota-solve.md").read_text(encoding="utf-8")
    assert [f"| {word} | {meaning} |" for word, meaning in REASONS.items() if f"| {word} | {meaning} |" not in page] == []


def test_all_faults_are_said_at_once_up_to_twenty() -> None:
    with pytest.raises(Rejected) as refused:
        read_document(text(*(quota(f"q{at}", min={"nodes": -1}) for at in range(23))))
    lines = refused.value.message.split("\n  ")
    assert (len(lines), lines[0], lines[-1]) == (21, 'quota "q0": min.nodes is -1, below 0: write 0 or more', "and 3 more")


def test_absent_fields_have_their_defaults() -> None:
    document = read_document(text(quota("A", parent=""), quota("P", parent=None), quota("B", parent="P", min={})))
    first, parent, child = document.groups
    assert (first.parent, first.is_parent, first.lends, first.scales, first.request) == (ROOT, False, True, None, {})
    assert (parent.is_parent, child.parent, document.options.scale_min, document.of_koordinator) == (True, "P", False, False)
    assert document.faults() == []


@pytest.mark.parametrize(
    ("given", "literal", "weight"),
    [
        pytest.param({}, False, {"nodes": 8, "gpu": 4}, id="absent: max"),
        pytest.param({"nodes": 0, "gpu": 0}, False, {"nodes": 8, "gpu": 4}, id="all zero: max"),
        pytest.param({"nodes": 0, "gpu": 0}, True, {"nodes": 0, "gpu": 0}, id="all zero, taken literally"),
        pytest.param({"nodes": 0, "gpu": 1}, False, {"nodes": 0, "gpu": 1}, id="partly zero: literally"),
        pytest.param({"gpu": 1}, False, {"nodes": 8, "gpu": 1}, id="what is missing: max"),
    ],
)
def test_a_weight_that_says_nothing_is_max(given: dict[str, int], literal: bool, weight: dict[str, int]) -> None:
    group = read_document(text(quota(max={"nodes": 8, "gpu": 4}, sharedWeight=given))).groups[0]
    assert group.weight(literal=literal) == weight


def test_an_amount_that_is_lent_at_most_has_two_names_and_stands_once() -> None:
    for word in ("lendLimit", "lendingLimit"):
        tree = read_document(text(quota("A", min={"nodes": 6}, **{word: {"nodes": 2}}), quota("B", request={"nodes": 9}))).tree()
        assert (tree.runtime("A"), tree.runtime("B")) == ({"nodes": 4}, {"nodes": 6})
    with pytest.raises(Rejected, match="are one field"):
        read_document(text(quota(lendLimit={}, lendingLimit={})))


def test_demand_for_what_max_does_not_name_is_not_counted() -> None:
    tree = read_document(text(quota(request={"nodes": 3, "disk": 9}))).tree()
    assert tree.request(ROOT) == {"nodes": 3}
    kept = read_document(text(quota(request={"nodes": 3, "disk": 9}, usedKeepKeys=True))).tree()
    assert kept.request(ROOT) == {"nodes": 3, "disk": 9}
    assert kept.runtime("A") == {"nodes": 3}


def test_a_floor_that_is_given_stands_above_min() -> None:
    tree = read_document(text(quota(request={"nodes": 8}, allocatedFloor={"nodes": 7}), quota("B", request={"nodes": 8}))).tree()
    assert (tree.runtime("A"), tree.runtime("B")) == ({"nodes": 8}, {"nodes": 2})


def test_a_document_divides_as_the_rules_say_whatever_it_says() -> None:
    """The rules once more, by hand (`by_hand`), on documents with every field, odd names, missing keys and amounts near 2^63."""
    for seed in range(TREES):
        document = by_hand.strange(random.Random(seed))
        read = read_document(json.dumps(document))
        found = answer(read.tree(), [group.name for group in read.groups])
        for name, expected in by_hand.divided(document).items():
            shown = {field: {key: amount for key, amount in amounts.items() if amount} for field, amounts in found[name].items()}
            assert shown == expected, (seed, name)
