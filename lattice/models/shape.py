"""What every kind is made of: the base of a part, the kind's registration data, and the scalar types.

A field's docstring is its description in the CRD. `Kube` carries what JSON Schema cannot say
(list-map keys, CEL rules); `lattice_dev.generate.crds` turns all of it into structural schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from lattice.errors import Rejected
from lattice.models.forms import pattern_of
from lattice.units import parse_node_count, parse_quantity, parse_time

GROUP = "lattice.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True)
class Rule:
    """One rule of a CRD or an admission policy (`x-kubernetes-validations`): a CEL expression, and the message where it is False."""

    rule: str
    message: str = ""
    message_expression: str = ""
    field_path: str = ""
    reason: str = ""
    optional_old_self: bool = False

    def schema(self) -> dict[str, Any]:
        """Returns the rule as a dict in the CRD's form, without fields that are empty."""
        entry: dict[str, Any] = {"rule": self.rule}
        if self.message:
            entry["message"] = self.message
        if self.message_expression:
            entry["messageExpression"] = self.message_expression
        if self.field_path:
            entry["fieldPath"] = self.field_path
        if self.reason:
            entry["reason"] = self.reason
        if self.optional_old_self:
            entry["optionalOldSelf"] = True
        return entry


@dataclass(frozen=True)
class Column:
    """One printer column of `kubectl get`; priority 1 is shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""


@dataclass(frozen=True)
class Meta:
    """The registration of a kind in its CRD: names, scope, printer columns, selectable fields and rules of the whole object."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    namespaced: bool
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    categories: tuple[str, ...] = ("lattice",)
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def singular(self) -> str:
        """Returns the kind's name in lower case, by which kubectl finds it too."""
        return self.kind.lower()


class Part(BaseModel):
    """The base of every part of a kind: fields in camelCase outside, unknown fields refused, instances frozen."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True)
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules of the schema: the API server asks them at every write of the object, of its status too."""
    policies: ClassVar[tuple[Rule, ...]] = ()
    """Rules of a ValidatingAdmissionPolicy: asked when the object itself is written, so that a write of its status costs nothing.

    On creation `oldSelf` is `self`; `object` is the whole object.
    """


class ObjectMeta(BaseModel):
    """The part of `metadata` that people write; the server owns the rest."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")
    name: str | None = Field(default=None, max_length=253)
    generate_name: str | None = Field(default=None, max_length=200)
    namespace: str | None = Field(default=None, max_length=63)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Kind(Part):
    """The base of every kind: an object with apiVersion, kind and metadata; `meta` is its registration in the CRD."""

    meta: ClassVar[Meta]
    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)


def kube(**extensions: Any) -> dict[str, Any]:
    """Returns JSON schema extensions with `x-kubernetes-` before each name, as `kube(list_type="map", list_map_keys=["type"])`."""
    return {"x-kubernetes-" + key.replace("_", "-"): value for key, value in extensions.items()}


def rules(*entries: Rule) -> dict[str, Any]:
    """Returns JSON schema extensions that hold these CEL rules, for one field."""
    return {"x-kubernetes-validations": [entry.schema() for entry in entries]}


def _read_by(parse: Callable[[Any], object]) -> AfterValidator:
    """Returns a validator that keeps the value as given and refuses it with the sentence of the error that `parse` raises."""

    def check(value: Any) -> Any:
        """Returns a value unchanged. Raises ValueError, with the parser's sentence, where it does not parse."""
        try:
            parse(value)
        except Rejected as error:
            raise ValueError(error.message) from error
        return value

    return AfterValidator(check)


DURATION_PATTERN = pattern_of("duration")
Duration = Annotated[str, Field(pattern=DURATION_PATTERN, min_length=2, max_length=32)]
"""`45s`, `30m`, `1h30m`, `72h`, `7d`: at least one number with its unit."""

QUANTITY_PATTERN = pattern_of("quantity")
Quantity = Annotated[
    int | str,
    _read_by(parse_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "maxLength": 32, "minimum": 0}),
]
"""A Kubernetes quantity: `500Gi`, `150m`, `24`."""

NodeCount = Annotated[
    int | str,
    _read_by(parse_node_count),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": pattern_of("nodeCount"),
            "maxLength": 13,
            "minimum": 1,
            "maximum": 999999,
        }
    ),
]
"""A number of nodes, or a range `"32-128"`."""

Name = Annotated[str, Field(pattern=pattern_of("name"), max_length=63)]
"""A DNS label: the name of a tenant or vcluster."""

Time = Annotated[str, _read_by(parse_time), WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 35})]
"""An RFC 3339 time in UTC."""

LINE_PATTERN = pattern_of("line")
"""No control characters: what people write is shown on others' terminals."""

Untyped = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""A part that a later release acts on; a rule refuses it until then."""

UntypedList = Annotated[
    list[dict[str, Any]],
    WithJsonSchema({"type": "array", "maxItems": 64, "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}),
]
"""A list that a later release acts on; a rule refuses it until then."""


class Condition(Part):
    """One observation about an object (type, status, reason, message), in the form of the Kubernetes API conventions."""

    type: Annotated[str, Field(max_length=64)]
    """What is observed."""
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]}, max_length=7)]
    """True, False or Unknown."""
    reason: Annotated[str, Field(pattern=pattern_of("reason"), max_length=64)]
    """A CamelCase word of the documented list."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """A sentence with the numbers."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation that was judged."""


Conditions = Annotated[list[Condition], Field(max_length=12, json_schema_extra=kube(list_type="map", list_map_keys=["type"]))]


def not_served(field_name: str, what: str, *, unless: str = "") -> Rule:
    """Returns the rule that refuses a field on which no daemon acts yet; `unless` is the CEL expression for values that pass."""
    test = f"!has(self.{field_name})" + (f" || {unless}" if unless else "")
    return Rule(test, f"spec.{field_name} is not served yet: {what}; remove the field")
