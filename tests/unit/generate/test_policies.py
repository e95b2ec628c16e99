"""The policy of an Allocation's spec says what the model says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lattice.models.allocation import FIXED_LIFECYCLE, IMMUTABLE, Allocation, AllocationSpec
from lattice.models.shape import Rule
from lattice_dev.generate.crds import openapi, with_every_rule
from lattice_dev.generate.policies import condition, files, rules_of_parts
from lattice_dev.install import BEFORE_SCHEMAS

(TEXT,) = files(Path()).values()
POLICY, BINDING = yaml.safe_load_all(TEXT)
BROKEN = {entry["name"]: entry["expression"] for entry in POLICY["spec"]["variables"]}["broken"]


@pytest.mark.parametrize("rule", AllocationSpec.policies, ids=lambda rule: rule.message[:40])
def test_every_rule_of_the_spec_stands_in_the_policy_with_its_sentence(rule: Rule) -> None:
    assert f"({condition(rule)}) ? '' : '{rule.message}'" in BROKEN
    assert "'" not in rule.message


def test_it_is_not_asked_of_a_new_object_that_keeps_every_rule_and_of_every_other() -> None:
    (asked,) = POLICY["spec"]["matchConditions"]
    of_new = [rule for rule in AllocationSpec.policies if "oldSelf" not in rule.rule and "oldObject." not in rule.rule]
    kept = " && ".join(f"({condition(rule, spec='object.spec')})" for rule in (*of_new, *(rule for _, rule in rules_of_parts())))
    assert asked["expression"] == f"oldObject != null || !({kept})"
    assert len(of_new) >= 2


@pytest.mark.parametrize(("field", "rule"), rules_of_parts(), ids=[f"{name}: {rule.message[:40]}" for name, rule in rules_of_parts()])
def test_every_rule_of_a_part_of_the_spec_stands_in_the_policy_and_what_was_there_before_is_let_be(field: str, rule: Rule) -> None:
    unchanged = f"(oldObject != null && variables.spec.?{field} == variables.former.?{field})"
    assert f"({condition(rule)}) || {unchanged} ? '' : '{rule.message}'" in BROKEN
    assert "'" not in rule.message


def test_every_field_that_is_fixed_has_its_rule() -> None:
    for name in IMMUTABLE:
        assert f"variables.spec.?{name} == variables.former.?{name}" in BROKEN
    for name in FIXED_LIFECYCLE:
        assert f"variables.spec.?lifecycle.?{name} == variables.former.?lifecycle.?{name}" in BROKEN


def test_the_policy_is_asked_of_everybody_and_of_no_status() -> None:
    (asked,) = POLICY["spec"]["matchConditions"]
    assert "request" not in asked["expression"]
    (resources,) = POLICY["spec"]["matchConstraints"]["resourceRules"]
    assert (resources["resources"], resources["operations"]) == (["allocations"], ["CREATE", "UPDATE"])
    assert BINDING["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}


def test_it_is_installed_before_a_schema_that_lost_these_rules() -> None:
    assert POLICY["metadata"]["name"] in BEFORE_SCHEMAS


def test_a_write_of_the_status_asks_no_rule_of_the_spec() -> None:
    def rules(node: dict[str, object]) -> list[str]:
        own = [entry["rule"] for entry in node.get("x-kubernetes-validations", ())]  # type: ignore[attr-defined]
        below = list(node.get("properties", {}).values())  # type: ignore[attr-defined]
        return own + [rule for child in below for rule in rules(child)]

    assert rules(openapi(Allocation)["properties"]["spec"]) == []
    assert len(rules(with_every_rule(Allocation)["properties"]["spec"])) == len(rules_of_parts()) >= 10
