"""How a pydantic model becomes a structural schema."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from lattice.models.shape import Column, Kind, Meta, Part, Rule, Untyped, kube
from lattice_dev.generate import crds


class Inner(Part):
    """What is inside."""

    rules: ClassVar = (Rule("has(self.size)", "give a size"),)
    size: Annotated[int, Field(gt=0, lt=100)] | None = None
    """How big."""


class SampleSpec(Part):
    """What is asked."""

    name: Annotated[str, Field(max_length=10)]
    """Its name."""
    inner: Inner | None = None
    """The inner part, as this field sees it."""
    inners: Annotated[list[Inner], Field(max_length=3)] = Field(default_factory=list)
    """Several."""
    by_name: Annotated[dict[str, Inner], Field(max_length=4)] = Field(default_factory=dict)
    """By name."""
    one: Literal["Only"] = "Only"
    """One choice."""
    rest: Untyped | None = None
    """Anything."""
    marks: Annotated[list[Annotated[str, Field(max_length=2)]], Field(max_length=2, json_schema_extra=kube(list_type="set"))] = Field(
        default_factory=list
    )
    """A set."""
    big: Annotated[int, Field(ge=0)] = 0
    """A counter."""


class Sample(Kind):
    """A sample of a kind."""

    meta: ClassVar = Meta(
        kind="Sample",
        plural="samples",
        short_names=("sm",),
        namespaced=True,
        columns=(Column("Name", ".spec.name"), Column("Big", ".spec.big", "integer", priority=1)),
        selectable=(".spec.name",),
        rules=(Rule("self.metadata.name != 'x'", "not x"),),
        annotations={"lattice.dev/note": "n"},
    )
    spec: SampleSpec
    """What is asked."""


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    found: dict[str, Any] = crds.openapi(Sample)["properties"]["spec"]
    return found


def test_references_are_inlined_and_the_fields_own_description_wins(spec: dict[str, Any]) -> None:
    assert spec["properties"]["inner"]["description"] == "The inner part, as this field sees it."
    assert spec["properties"]["inners"]["items"]["description"] == "What is inside."
    assert "$ref" not in str(spec)
    assert "$defs" not in str(crds.openapi(Sample))


def test_optional_is_merged_without_nullable(spec: dict[str, Any]) -> None:
    assert spec["properties"]["inner"]["type"] == "object"
    assert "anyOf" not in str(spec)
    assert "nullable" not in str(spec)


def test_titles_defaults_and_additional_properties_false_are_gone(spec: dict[str, Any]) -> None:
    text = str(spec)
    assert "title" not in text
    assert "default" not in text
    assert "'additionalProperties': False" not in text


def test_exclusive_bounds_take_the_form_of_openapi_3(spec: dict[str, Any]) -> None:
    size = spec["properties"]["inner"]["properties"]["size"]
    assert size == {
        "description": "How big.", "type": "integer", "format": "int32",
        "minimum": 0, "exclusiveMinimum": True, "maximum": 100, "exclusiveMaximum": True,
    }  # fmt: skip


def test_an_unbounded_integer_is_int64(spec: dict[str, Any]) -> None:
    assert spec["properties"]["big"]["format"] == "int64"


def test_a_single_choice_is_an_enum(spec: dict[str, Any]) -> None:
    assert spec["properties"]["one"]["enum"] == ["Only"]


def test_rules_stand_at_the_level_of_their_class(spec: dict[str, Any]) -> None:
    rule = [{"rule": "has(self.size)", "message": "give a size"}]
    assert spec["properties"]["inner"]["x-kubernetes-validations"] == rule
    assert spec["properties"]["inners"]["items"]["x-kubernetes-validations"] == rule
    assert spec["properties"]["byName"]["additionalProperties"]["x-kubernetes-validations"] == rule
    assert crds.openapi(Sample)["x-kubernetes-validations"] == [{"rule": "self.metadata.name != 'x'", "message": "not x"}]


def test_only_fields_without_default_are_required(spec: dict[str, Any]) -> None:
    assert spec["required"] == ["name"]


def test_registration_comes_from_meta() -> None:
    made = crds.crd(Sample)
    assert made["metadata"] == {"name": "samples.lattice.dev", "annotations": {"lattice.dev/note": "n"}}
    assert made["spec"]["scope"] == "Namespaced"
    assert made["spec"]["names"]["shortNames"] == ["sm"]
    version = made["spec"]["versions"][0]
    assert version["selectableFields"] == [{"jsonPath": ".spec.name"}]
    assert version["additionalPrinterColumns"][1] == {"name": "Big", "type": "integer", "jsonPath": ".spec.big", "priority": 1}
    assert version["subresources"] == {"status": {}}


def test_a_choice_of_types_is_refused_with_the_fields_name() -> None:
    node = {"title": "Odd", "anyOf": [{"type": "string"}, {"type": "integer"}]}
    with pytest.raises(TypeError, match="Odd: anyOf of 2 types is not structural"):
        crds.structural(node, {})


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: str(kind.meta.kind))
def test_rendering_twice_gives_the_same_bytes_and_reads_back(kind: type[Kind]) -> None:
    assert crds.render(kind) == crds.render(kind)
    assert yaml.safe_load(crds.render(kind)) == crds.crd(kind)


LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "boolean"])}, optional={"title": st.text(), "default": st.none()}
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda node: {"anyOf": [node, {"type": "null"}], "default": None, "title": "T"}, inner),
        st.builds(lambda node: {"type": "array", "items": node, "maxItems": 3}, inner),
        st.builds(
            lambda fields: {"type": "object", "properties": fields, "additionalProperties": False},
            st.dictionaries(st.sampled_from(["title", "default", "name", "items"]), inner, max_size=4),
        ),
    ),
    max_leaves=8,
)


def fields_of(node: dict[str, Any]) -> list[str]:
    found = list(node.get("properties", {}))
    for child in (*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])):
        found += fields_of(child)
    return found


def plain(node: dict[str, Any]) -> dict[str, Any]:
    return plain(node["anyOf"][0]) if "anyOf" in node else node


def fields_before(node: dict[str, Any]) -> list[str]:
    node = plain(node)
    found = list(node.get("properties", {}))
    for child in (*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])):
        found += fields_before(child)
    return found


@given(NODES)
def test_no_field_is_lost_and_the_result_is_a_fixed_point(node: dict[str, Any]) -> None:
    made = crds.structural(node, {})
    assert sorted(fields_of(made)) == sorted(fields_before(node))
    assert crds.structural(made, {}) == made
