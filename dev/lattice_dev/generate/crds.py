"""Generates `crds/*.yaml` from `lattice.models`: pydantic's JSON Schema made structural, with Kubernetes' additions.

No defaults are emitted: the object holds what a person gave, and daemons apply the defaults when they read (`lattice.views`), so that a
manifest applied twice never drifts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from lattice.models.allocation import Allocation
from lattice.models.config import LatticeConfig
from lattice.models.dag import DAG
from lattice.models.elastic_quota import ElasticQuota
from lattice.models.history import NodeHistory
from lattice.models.ledger import KINDS_WITHOUT_STATUS, Ledger, NodeGroupPlan, NodeIndex
from lattice.models.node import LatticeNode
from lattice.models.reservation import Reservation
from lattice.models.shape import GROUP, VERSION, Column, Kind, Meta
from lattice.models.tenant import Tenant
from lattice.models.usage import UsageRecord
from lattice.models.vcluster import VCluster
from lattice_dev.generate.placing import place_rules

KINDS: Final[tuple[type[Kind], ...]] = (
    Allocation, DAG, Tenant, VCluster, Reservation, ElasticQuota, LatticeConfig, Ledger, LatticeNode, NodeIndex, NodeGroupPlan,
    NodeHistory, UsageRecord,
)  # fmt: skip
"""Every kind that Lattice serves."""
SPEC_BY_POLICY: Final[tuple[type[Kind], ...]] = (Allocation,)
"""The kinds whose rules of the spec stand in an admission policy: a schema's rules are asked at each write of the status as well."""

HEADER: Final = "# Generated from lattice/models by `make generate`; change the model, not this file.\n"

_INT32_MAX: Final = 2**31 - 1
POLICIES: Final = "x-lattice-policies"
"""The key, in pydantic's schema of a class, of the rules that an admission policy checks."""
_DROPPED: Final = frozenset({"title", "default", "examples", "propertyNames", "discriminator", "$defs", POLICIES})
_ORDER: Final = (
    "description", "type", "format", "enum", "pattern", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "required",
)  # fmt: skip

RULES: Final = "x-kubernetes-validations"

Schema = dict[str, Any]


class _WithRules(GenerateJsonSchema):
    """A generator of JSON Schema that adds each class's CEL rules to the schema of that class."""

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        """Returns pydantic's schema of one class, with the class's rules and policies added."""
        made = super().model_schema(schema)
        for name, key in (("rules", RULES), ("policies", POLICIES)):
            rules = getattr(schema["cls"], name, ())
            if rules:
                made[key] = [rule.schema() for rule in rules]
        return made


def crd(kind: type[Kind]) -> Schema:
    """Returns the CustomResourceDefinition of a kind."""
    meta = kind.meta
    metadata: Schema = {"name": f"{meta.plural}.{GROUP}"}
    if meta.annotations:
        metadata["annotations"] = dict(sorted(meta.annotations.items()))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": GROUP,
            "names": _names(meta),
            "scope": "Namespaced" if meta.namespaced else "Cluster",
            "versions": [_version(kind)],
        },
    }


def json_schema(kind: type[Kind]) -> Schema:
    """Returns pydantic's schema of a kind, defaults and references included, with each class's rules."""
    return kind.model_json_schema(by_alias=True, mode="validation", schema_generator=_WithRules)


def openapi(kind: type[Kind]) -> Schema:
    """Returns the structural schema of a whole object of the kind, as its CustomResourceDefinition holds it."""
    schema = with_every_rule(kind)
    if kind in SPEC_BY_POLICY:
        schema["properties"]["spec"] = _without_rules(schema["properties"]["spec"])
    return schema


def with_every_rule(kind: type[Kind]) -> Schema:
    """Returns the structural schema of a whole object of the kind, with the rules of its spec that an admission policy holds, too."""
    raw = json_schema(kind)
    schema = structural(raw, raw.get("$defs", {}))
    schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    if kind.meta.rules:
        schema[RULES] = [rule.schema() for rule in kind.meta.rules]
    return schema


def _without_rules(node: Schema) -> Schema:
    """Returns the node without the CEL rules of itself and of its properties at any depth; those in items of lists stay."""
    made = {key: value for key, value in node.items() if key != RULES}
    if "properties" in made:
        made["properties"] = {name: _without_rules(child) for name, child in made["properties"].items()}
    return made


def structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Returns one JSON Schema node as the API server accepts it: references inlined, `| None` merged, titles and defaults removed.

    `definitions` holds what references name. Raises TypeError for a field of several types.
    """
    merged = resolve(node, definitions)
    made: Schema = {key: value for key, value in merged.items() if key not in _DROPPED}
    if "const" in made:
        made["enum"] = [made.pop("const")]
    if "description" in made:
        made["description"] = " ".join(made["description"].split())
    _bounds(made)
    if "items" in made:
        made["items"] = structural(made["items"], definitions)
    if "properties" in made:
        made["properties"] = {name: structural(child, definitions) for name, child in made["properties"].items()}
        made.pop("additionalProperties", None)
        made = place_rules(made)
    elif isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(made["additionalProperties"], definitions)
    elif "additionalProperties" in made:
        del made["additionalProperties"]
    return _ordered(made)


def resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Returns the node with `$ref`, and `allOf`, `anyOf` and `oneOf` of one type besides null, replaced by their targets; keys beside them
    win.

    Children are left as they are. Raises TypeError where several types remain.
    """
    for key in ("anyOf", "oneOf", "allOf"):
        if key not in node:
            continue
        choices = [choice for choice in node[key] if choice.get("type") != "null"]
        if len(choices) != 1:
            raise TypeError(f"{node.get('title', 'a field')}: {key} of {len(choices)} types is not structural; declare one type")
        beside = {name: value for name, value in node.items() if name != key}
        return resolve({**choices[0], **beside}, definitions)
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        return resolve({**target, **{name: value for name, value in node.items() if name != "$ref"}}, definitions)
    return dict(node)


def render(kind: type[Kind]) -> str:
    """Returns the text of a kind's file, byte for byte the same at each call."""
    return HEADER + yaml.dump(crd(kind), Dumper=_Plain, sort_keys=False, width=140, allow_unicode=True)


def files(folder: Path) -> dict[Path, str]:
    """Returns the text of each kind's file by its path below `folder`; writes nothing."""
    return {folder / f"{kind.meta.plural}.yaml": render(kind) for kind in KINDS}


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors, so that each schema is written where it is used."""

    def ignore_aliases(self, data: Any) -> bool:
        """Returns True: no anchor is ever written."""
        return True


def _names(meta: Meta) -> Schema:
    """Returns the names of a kind for its CRD."""
    names: Schema = {"kind": meta.kind, "listKind": f"{meta.kind}List", "plural": meta.plural, "singular": meta.singular}
    short = [name for name in meta.short_names if name not in (meta.plural, meta.singular)]
    if short:
        names["shortNames"] = short
    names["categories"] = list(meta.categories)
    return names


def _version(kind: type[Kind]) -> Schema:
    """Returns the version of a kind for its CRD, with schema, subresources and columns."""
    version: Schema = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": openapi(kind)}}
    if kind.meta.kind not in KINDS_WITHOUT_STATUS:
        version["subresources"] = {"status": {}}
    if kind.meta.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.meta.selectable]
    version["additionalPrinterColumns"] = [_column(column) for column in kind.meta.columns]
    return version


def _column(column: Column) -> Schema:
    """Returns a column for a CRD, without what is absent."""
    entry: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.format:
        entry["format"] = column.format
    if column.description:
        entry["description"] = column.description
    if column.priority:
        entry["priority"] = column.priority
    return entry


def _bounds(made: Schema) -> None:
    """Rewrites `exclusiveMinimum: n` of the node in OpenAPI 3.0's form, and adds the width of an integer; changes `made`."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        limit = made.get(exclusive)
        if limit is not None and not isinstance(limit, bool):
            made[inclusive], made[exclusive] = limit, True
    if made.get("type") == "integer":
        made["format"] = "int32" if made.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"


def _ordered(made: Schema) -> Schema:
    """Returns the node with its keys in one order: type, bounds, content, Kubernetes' additions."""
    inside = ("items", "additionalProperties", "properties")
    extras = sorted(key for key in made if key not in _ORDER and key not in inside)
    return {key: made[key] for key in (*_ORDER, *extras, *inside) if key in made}
