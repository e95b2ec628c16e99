"""A rule of one field stands at that field: what it refuses stays the same."""

from __future__ import annotations

import pytest

from lattice_dev.generate.placing import place_rules

KEPT = "has(self.mode) == has(oldSelf.mode) && (!has(self.mode) || self.mode == oldSelf.mode)"


def node(*rules: str, **properties: object) -> dict[str, object]:
    fields = {"data": {"type": "object"}, "wish": {"type": "boolean"}, "mode": {"type": "string"}, **properties}
    return {"type": "object", "properties": fields, "x-kubernetes-validations": [{"rule": rule, "message": "why"} for rule in rules]}


def placed(rule: str) -> tuple[list[str], dict[str, list[str]]]:
    """The rules at the object, and those at its fields."""
    made = place_rules(node(rule))
    at_fields = {
        name: [entry["rule"] for entry in child["x-kubernetes-validations"]]
        for name, child in made["properties"].items()
        if "x-kubernetes-validations" in child
    }
    return [entry["rule"] for entry in made.get("x-kubernetes-validations", ())], at_fields


@pytest.mark.parametrize(
    ("rule", "here", "at_fields"),
    [
        ("!has(self.data)", [], {"data": ["false"]}),
        ("!has(self.wish) || !self.wish", [], {"wish": ["!self"]}),
        ("!has(self.mode) || self.mode.?a.orValue('x') == 'x'", [], {"mode": ["self.?a.orValue('x') == 'x'"]}),
        ("!has(self.mode) || self.mode == 'a' || self.wish", ["!has(self.mode) || self.mode == 'a' || self.wish"], {}),
        ("!has(self.mode) || oldSelf.mode == self.mode", ["!has(self.mode) || oldSelf.mode == self.mode"], {}),
        ("!has(self.unknown)", ["!has(self.unknown)"], {}),
        ("has(self.data) != has(self.mode)", ["has(self.data) != has(self.mode)"], {}),
        (
            KEPT,
            ["has(self.mode) == has(oldSelf.mode)"],
            {"mode": ["self == oldSelf"]},
        ),
        (
            f"{KEPT} && {KEPT.replace('mode', 'wish')}",
            ["has(self.mode) == has(oldSelf.mode) && has(self.wish) == has(oldSelf.wish)"],
            {"mode": ["self == oldSelf"], "wish": ["self == oldSelf"]},
        ),
    ],
)
def test_a_rule_of_one_field_moves_there_and_every_other_stays(rule: str, here: list[str], at_fields: dict[str, list[str]]) -> None:
    assert placed(rule) == (here, at_fields)


def test_what_is_refused_whenever_it_is_there_needs_no_rule_against_its_change() -> None:
    made = place_rules(node(KEPT, "!has(self.mode)"))
    assert "x-kubernetes-validations" not in made
    assert [entry["rule"] for entry in made["properties"]["mode"]["x-kubernetes-validations"]] == ["false"]


def test_the_sentence_moves_with_the_rule() -> None:
    made = place_rules(node("!has(self.data)"))
    assert made["properties"]["data"]["x-kubernetes-validations"] == [{"rule": "false", "message": "why"}]


def test_what_is_given_is_not_changed() -> None:
    given = node("!has(self.data)")
    place_rules(given)
    assert given == node("!has(self.data)")
