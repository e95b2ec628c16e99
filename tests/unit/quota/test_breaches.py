"""What stands against a rule: writers that raced, or wrote while nobody judged."""

from __future__ import annotations

from lattice.quota.breaches import breaches, unmanaged_below
from lattice.quota.declared import Declared, declared_of, declared_of_koordinator
from lattice.quota.gathering import gather

from .test_declared import ours, theirs


def stands(*objects: Declared) -> dict[str, tuple[str, str]]:
    return breaches(gather(objects).groups)


def test_what_two_writers_made_together_is_said_and_nobody_is_left_out() -> None:
    dept = declared_of(ours("dept", isParent=True, min={"nodes": 8}, max={"nodes": 10}))
    teams = [declared_of(ours(name, parent="dept", min={"nodes": least}, max={"nodes": 10})) for name, least in (("a", 5), ("b", 4))]
    found = stands(dept, *teams)
    assert list(found) == ["dept"]
    reason, sentence = found["dept"]
    assert reason == "MinSumAboveParent"
    assert "min.nodes of the groups below it (2) is 9 in sum, above its own, which is 8" in sentence
    assert stands(dept, teams[0]) == {}
    forced = declared_of_koordinator(
        theirs("b", labels={"parent": "dept", "allow-force-update": "true"}, min={"nodes": 4}, max={"nodes": 9})
    )
    assert "dept" not in stands(dept, teams[0], forced)


def test_claims_limits_and_resources_against_a_rule_are_said_with_the_numbers() -> None:
    early = declared_of(ours("early", created="2026-01-01T00:00:00Z", namespaces=["n"], bindings=[{"tenant": "t"}]))
    late = declared_of(ours("late", created="2026-01-02T00:00:00Z", bindings=[{"tenant": "t", "vclusters": ["v"]}, {"tenant": "u"}]))
    again = declared_of(ours("again", created="2026-01-03T00:00:00Z", bindings=[{"tenant": "u"}]))
    lead = declared_of(ours("lead", created="2025-01-01T00:00:00Z", isParent=True, namespaces=["n"]))
    found = stands(early, late, again, lead)
    assert found == {
        "again": (
            "BindingTaken",
            'tenant "u" belongs to ElasticQuota late (lattice.dev), which was made earlier: take it out of one of the two',
        )
    }
    above = declared_of(ours("above", min={"nodes": 30, "gpu": 1}, max={"nodes": 20}))
    lacks = declared_of(ours("lacks", isParent=True, min={"gpu": 1}, max={"nodes": 20}))
    found = stands(above, lacks)
    assert {name: breach[0] for name, breach in found.items()} == {"above": "MinAboveMax", "lacks": "MinAboveMax"}
    assert "min.nodes is 30, above max.nodes, which is 20" in found["above"][1]
    parent = declared_of(ours("parent", isParent=True, max={"nodes": 9, "gpu": 4}))
    fewer, more = (
        declared_of(ours(name, parent="parent", max=most))
        for name, most in (("fewer", {"nodes": 9}), ("more", {"gpu": 1, "nodes": 1, "x": 1}))
    )
    found = stands(parent, fewer, more)
    assert 'max has no gpu, and max of its parent "parent" has' in found["fewer"][1]
    assert 'max has x, and max of its parent "parent" has not' in found["more"][1]
    assert unmanaged_below(gather([parent, fewer, more]).groups) == {"fewer"}
