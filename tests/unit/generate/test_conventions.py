"""What every CRD of Lattice has in common, read from the committed files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.models.ledger import KINDS_WITHOUT_STATUS
from lattice.models.shape import Kind
from lattice_dev.generate.crds import KINDS, with_every_rule

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "crds").glob("*.yaml"))
CRDS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
SPECS_OF_MEMBERS = {".spec.defaults", ".spec.members[].spec"}
"""Of a DAG: judged by admission, and by the schema of Allocations when members are made; here each write of a status would pay for them."""
ATOMIC = {".spec.members", ".status.members", ".spec.members[].dependsOn", ".spec.dependsOn", ".status.edges"}
"""Of a DAG, and of work that waits for others: a thousand entries, whose fields the server does not keep apart for whoever has set them."""
NOT_OURS = {"apiVersion", "kind", "metadata"}

every_crd = pytest.mark.parametrize("crd", CRDS.values(), ids=CRDS.keys())


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def walk(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node below spec and status with its path."""
    if path:
        yield path, node
    for name, child in node.get("properties", {}).items():
        if path or name not in NOT_OURS:
            yield from walk(child, f"{path}.{name}")
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from walk(node["additionalProperties"], f"{path}.*")


def is_untyped(node: dict[str, Any]) -> bool:
    return bool(node.get("x-kubernetes-preserve-unknown-fields"))


def test_there_is_one_file_for_each_kind() -> None:
    assert sorted(CRDS) == sorted(kind.meta.plural for kind in KINDS)


@every_crd
def test_every_string_list_and_map_has_a_limit(crd: dict[str, Any]) -> None:
    for path, node in walk(schema(crd)):
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("x-kubernetes-int-or-string"):
            assert {"maxLength", "pattern", "minimum"} <= set(node), path


@every_crd
def test_there_are_no_floats_and_every_integer_has_a_width_and_a_minimum(crd: dict[str, Any]) -> None:
    for path, node in walk(schema(crd)):
        assert node.get("type") != "number", path
        if node.get("type") == "integer":
            assert node["format"] in {"int32", "int64"}, path
            assert "minimum" in node, path


@every_crd
def test_every_field_is_described_in_one_line(crd: dict[str, Any]) -> None:
    assert schema(crd)["description"].endswith(".")
    for path, node in walk(schema(crd)):
        if path.endswith(("[]", ".*")):
            continue
        assert node.get("description", "").endswith("."), path
        assert len(node["description"]) <= 140, path


@every_crd
def test_every_object_says_what_is_in_it_unless_a_rule_refuses_it(crd: dict[str, Any]) -> None:
    for path, node in walk(schema(crd)):
        if node.get("type") == "object" and "properties" not in node and "additionalProperties" not in node:
            assert is_untyped(node), path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.meta.plural)
def test_every_untyped_part_is_refused_by_a_rule_of_its_own(kind: type[Kind]) -> None:
    """In the schema, or in the policy of an Allocation's spec, which has every rule that is not in the schema (test_policies.py)."""
    for path, node in walk(with_every_rule(kind)):
        for name, child in node.get("properties", {}).items():
            if (is_untyped(child) or is_untyped(child.get("items", {}))) and f"{path}.{name}" not in SPECS_OF_MEMBERS:
                rules = {rule["rule"] for rule in child.get("x-kubernetes-validations", ())}
                assert rules & {"false", "size(self) == 0"}, f"{path}.{name}"


@every_crd
def test_names_are_lower_camel_case_and_enums_are_camel_case(crd: dict[str, Any]) -> None:
    for path, node in walk(schema(crd)):
        for name in node.get("properties", {}):
            assert re.fullmatch(r"[a-z][A-Za-z0-9]*", name), f"{path}.{name}"
        for value in node.get("enum", ()):
            assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", value), f"{path}: {value}"


@every_crd
def test_nothing_is_filled_in_by_the_server(crd: dict[str, Any]) -> None:
    for path, node in walk(schema(crd)):
        assert not {"default", "nullable", "title"} & set(node), path


@every_crd
def test_lists_of_objects_are_keyed(crd: dict[str, Any]) -> None:
    for path, node in walk(schema(crd)):
        items = node.get("items", {})
        if node.get("x-kubernetes-list-type") == "atomic":
            assert path in ATOMIC, path
        elif items.get("type") == "object" and not is_untyped(items):
            assert node["x-kubernetes-list-type"] == "map", path
            assert set(node["x-kubernetes-list-map-keys"]) <= set(items["required"]), path


@every_crd
def test_conditions_follow_the_api_conventions(crd: dict[str, Any]) -> None:
    status = schema(crd)["properties"].get("status", {}).get("properties", {})
    if "conditions" not in status:
        return
    conditions = status["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert {"type", "status", "reason", "lastTransitionTime"} <= set(conditions["items"]["required"])
    assert conditions["items"]["properties"]["status"]["enum"] == ["True", "False", "Unknown"]
    assert "observedGeneration" in conditions["items"]["properties"]
    assert "observedGeneration" in status


@every_crd
def test_status_is_a_subresource_where_there_is_one(crd: dict[str, Any]) -> None:
    version = crd["spec"]["versions"][0]
    has_status = crd["spec"]["names"]["kind"] not in KINDS_WITHOUT_STATUS
    assert ("status" in schema(crd)["properties"]) == has_status
    assert ("status" in version.get("subresources", {})) == has_status


@every_crd
def test_every_kind_has_a_short_name_and_the_category(crd: dict[str, Any]) -> None:
    names = crd["spec"]["names"]
    assert names["categories"] == ["lattice"]
    assert names.get("shortNames") or len(names["singular"]) <= 8


@every_crd
def test_columns_end_with_age_and_name_fields_that_exist(crd: dict[str, Any]) -> None:
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    assert columns[-1] == {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    known = {".metadata.generation", *(path for path, _ in walk(schema(crd)))}
    for column in columns[:-1]:
        path = column["jsonPath"]
        if "?(@" in path:
            path = re.sub(r"\[\?\(.*?\)\]", "[]", path)
        elif path not in known:
            path = re.sub(r"\.\w+$", ".*", path)  # an entry of a map
        assert path in known, column["jsonPath"]


@every_crd
def test_a_kind_with_a_ready_condition_shows_its_reason(crd: dict[str, Any]) -> None:
    if crd["spec"]["names"]["kind"] == "LatticeConfig":
        return
    status = schema(crd)["properties"].get("status", {}).get("properties", {})
    columns = {column["name"]: column for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]}
    if "conditions" in status:
        assert columns["Reason"].get("priority", 0) == 0
        assert columns["Message"]["priority"] == 1


@every_crd
def test_selectable_fields_are_few_and_scalar(crd: dict[str, Any]) -> None:
    fields = crd["spec"]["versions"][0].get("selectableFields", [])
    known = dict(walk(schema(crd)))
    assert len(fields) <= 8
    for entry in fields:
        assert known[entry["jsonPath"]]["type"] in {"string", "integer", "boolean"}


@every_crd
def test_every_rule_has_a_message_for_people(crd: dict[str, Any]) -> None:
    nodes = [("", schema(crd)), *walk(schema(crd))]
    for path, node in nodes:
        for rule in node.get("x-kubernetes-validations", ()):
            assert 5 <= len(rule["message"]) <= 200, path
            assert "\n" not in rule["message"], path


def test_the_allocations_schema_is_lean() -> None:
    assert len(yaml.dump(CRDS["allocations"])) <= 55_000
