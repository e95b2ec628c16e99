"""What a reader is shown of the quota trees: his own by name, others in sums, and what may start that really may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.quota.amounts import WIDEST
from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import ROOT, Group
from lattice.scheduling.queries.quota_answers import LeftOut, QuotaGroup, Quotas, Startable
from lattice.scheduling.queries.quota_view import A_SLICE, NO_TREE, NONE_IN_FORCE, Remarks, quotas, slices, startable
from lattice.scheduling.queries.readers import Reader

SCHEMA = json.loads((Path(__file__).resolve().parents[4] / "docs" / "reference" / "schemas" / "quota-v1.json").read_text())
MARK = "FOREIGN"
AT = "2026-11-21T12:00:00Z"
ALICE = Reader("alice")
ADMIN = Reader("ada", groups=True)


def group(name: str, parent: str = ROOT, least: int = 0, most: int = 100, **fields: Any) -> Group:
    return Group(name, parent, min={"nodes": least}, max={"nodes": most}, **fields)


def forest() -> Forest:
    """100 nodes: physics (theory of alice, and another team), and another department with a team."""
    groups = (
        group("physics", least=40, is_parent=True),
        group("theory", "physics", least=20, most=60),
        group(f"{MARK}-lab", "physics", least=20),
        group(f"{MARK}-bio", least=40, is_parent=True),
        group(f"{MARK}-seq", f"{MARK}-bio", least=40),
    )
    made = Forest([TreeSpec(groups=groups)])
    made.capacity("", {"nodes": 100})
    made.demand("theory", {"nodes": 30}, {"nodes": 30}, {"nodes": 5})
    made.demand(f"{MARK}-lab", {"nodes": 50}, {"nodes": 25})
    made.demand(f"{MARK}-seq", {"nodes": 20}, {"nodes": 20})
    return made


def shown(found: Quotas) -> dict[str, QuotaGroup]:
    return {one.name or f"below {one.parent or 'the root'}": one for tree in found.trees for one in tree.groups}


def test_an_ordinary_reader_sees_his_leaf_and_what_is_above_it_and_sums_of_the_rest() -> None:
    found = quotas(forest(), {"theory"}, ALICE, AT)
    jsonschema.validate(json.loads(msgspec.json.encode(found)), SCHEMA)
    assert MARK not in msgspec.json.encode(found).decode()
    groups = shown(found)
    assert {name: (one.whose, one.count, one.depth) for name, one in groups.items()} == {
        "physics": ("above yours", 1, 0),
        "theory": ("yours", 1, 1),
        "below physics": ("others", 1, 1),
        "below the root": ("others", 1, 0),
    }
    (mine,), (rest,) = groups["theory"].shares, groups["below the root"].shares
    assert (mine.used, mine.min, mine.max, mine.borrowed) == (30, 20, 60, 10)
    assert (rest.used, rest.min, rest.max) == (20, 40, None)
    assert found.trees[0].hidden == 2


def test_who_may_list_groups_sees_all_of_them_by_name() -> None:
    found = quotas(forest(), set(), ADMIN, AT, {f"{MARK}-lab": "2026-11-21T11:59:00Z"})
    assert list(shown(found)) == ["physics", "theory", f"{MARK}-lab", f"{MARK}-bio", f"{MARK}-seq"]
    assert {one.whose for one in shown(found).values()} == {"others"}
    assert shown(found)[f"{MARK}-lab"].over_since == "2026-11-21T11:59:00Z"
    assert found.trees[0].hidden == 0


def test_what_is_wrong_with_a_group_is_a_word_for_its_owner_and_a_sentence_for_who_may_know_all() -> None:
    lost = LeftOut(object=f"ElasticQuota {MARK} (lattice.dev)", reason="NameTaken", message=f"taken by {MARK}")
    remarks = Remarks({"theory": ("BindingTaken", f"tenant belongs to {MARK}")}, (lost,))
    own = quotas(forest(), {"theory"}, ALICE, AT, remarks=remarks)
    assert MARK not in msgspec.json.encode(own).decode()
    assert (shown(own)["theory"].reason, shown(own)["theory"].message, own.left_out) == ("BindingTaken", "", [])
    every = quotas(forest(), set(), ADMIN, AT, remarks=remarks)
    jsonschema.validate(json.loads(msgspec.json.encode(every)), SCHEMA)
    assert (shown(every)["theory"].message, every.left_out) == (f"tenant belongs to {MARK}", [lost])
    none = quotas(Forest(), set(), ALICE, AT, remarks=remarks)
    assert (none.message, none.left_out) == (NONE_IN_FORCE, [])


def test_a_max_that_is_written_for_no_bound_is_shown_as_none() -> None:
    made = Forest([TreeSpec(groups=(group("root", most=WIDEST), group("own", most=2**63 - 1), group("real", most=10**9)))])
    made.capacity("", {"nodes": 4})
    assert [one.shares[0].max for one in shown(quotas(made, set(), ADMIN, AT)).values()] == [None, None, 10**9]


def test_a_tree_in_which_the_reader_has_nothing_is_not_shown_to_him() -> None:
    made = forest()
    specs = [TreeSpec(groups=(group("theory", most=60),)), TreeSpec("gpus", (group("gpus", is_parent=True), group("secret", "gpus")))]
    made.declare(specs)
    made.capacity("gpus", {"nodes": 8})
    assert [tree.name for tree in quotas(made, {"theory"}, ALICE, AT).trees] == [""]
    assert [tree.name for tree in quotas(made, {"theory"}, ADMIN, AT).trees] == ["", "gpus"]


def test_a_large_tree_is_looked_at_in_slices_between_which_groups_may_go() -> None:
    made = Forest([TreeSpec(groups=tuple(group(f"g{at}") for at in range(3 * A_SLICE)))])
    made.capacity("", {"nodes": 100})
    looked = slices(made, {"g0"}, ADMIN, AT)
    assert next(looked) is None
    made.declare([TreeSpec(groups=tuple(group(f"g{at}") for at in range(2 * A_SLICE)))])
    assert next(looked) is None
    (found,) = [answer for answer in looked if answer is not None]
    assert len(found.trees[0].groups) == 2 * A_SLICE


def test_without_a_tree_the_answer_says_so() -> None:
    assert quotas(Forest(), set(), ALICE, AT).message == NO_TREE


def test_work_of_no_group_is_told_that_no_tree_bounds_it() -> None:
    found = shown(quotas(forest(), {"default"}, ALICE, AT))
    assert (found["default"].whose, found["default"].startable) == ("yours", [])


def test_what_may_start_counts_what_would_be_asked_for_and_names_the_level_that_leaves_no_more() -> None:
    made = Forest([TreeSpec(groups=(group("dept", least=10, most=12, is_parent=True), group("team", "dept", least=10, most=50)))])
    made.capacity("", {"nodes": 100})
    assert made.standing("team").runtime == {"nodes": 0}  # nobody asks for anything yet
    assert startable(made, "team") == [Startable("nodes", 12, 10, "dept")]
    made.demand("team", {"nodes": 9}, {"nodes": 9}, {"nodes": 9})
    assert startable(made, "team") == [Startable("nodes", 3, 1, "dept")]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(1, 100),
)
def test_what_may_start_is_admitted_and_one_more_is_not_and_nothing_of_the_question_stays(
    teams: list[tuple[int, int, int, int]], total: int
) -> None:
    made = Forest([TreeSpec(groups=tuple(group(f"g{at}", least=least, most=least + more) for at, (least, more, _, _) in enumerate(teams)))])
    made.capacity("", {"nodes": total})
    for at, (_, _, asked, held) in enumerate(teams):
        made.demand(f"g{at}", {"nodes": max(asked, held)}, {"nodes": held})
    before = made.snapshot()
    for at, (least, more, _, _) in enumerate(teams):
        (room,) = startable(made, f"g{at}")
        assert made.snapshot() == before
        for amount, admitted in ((room.amount, True), (room.amount + 1, False)):
            made.demand(f"g{at}", {"nodes": least + more + 1})
            assert amount == 0 or (made.admits(f"g{at}", {"nodes": amount}) is None) == admitted
            made.demand(f"g{at}", {"nodes": -(least + more + 1)})
    made.validate()
