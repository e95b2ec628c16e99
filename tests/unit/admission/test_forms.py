"""The webhook refuses a text of a wrong form before the schema does, by field, value, what is allowed and an example."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.admission import Refused, Request
from lattice.admission.chain import unreadable
from lattice.admission.patterned import PATTERNED
from lattice.models.forms import FORMS

WRONG = "\x1b!"
"""A text of no form."""
FIELDS = [(kind, path) for kind, paths in PATTERNED.items() for path in paths]


def holding(path: str, value: Any) -> dict[str, Any]:
    """An object with this value at a path of the table."""
    made: Any = value
    for step in reversed(path.split(".")):
        made = {"entry" if step == "*" else step: made}
    found: dict[str, Any] = made
    return found


def refusal(kind: str, old: dict[str, Any], new: dict[str, Any]) -> Refused | None:
    return unreadable(Request(kind, "UPDATE" if old else "CREATE", new, old))


@pytest.mark.parametrize(("kind", "path"), FIELDS, ids=[f"{kind} {path}" for kind, path in FIELDS])
def test_every_field_with_a_form_is_refused_in_words(kind: str, path: str) -> None:
    found = refusal(kind, {}, holding(path, WRONG))
    assert found is not None
    if found.reason == "FormInvalid":  # quotas have checks of their own before
        form = FORMS[PATTERNED[kind][path]]
        assert found.sentence == form.refusal(found.field, WRONG)
        assert found.field.replace(".entry", ".*") == path
        assert found.hint


def test_what_was_wrong_before_does_not_keep_other_changes_out() -> None:
    old = holding("spec.tags.*", WRONG)
    new = {"spec": {**old["spec"], "hold": True}}
    assert refusal("Allocation", old, new) is None
    worse = refusal("Allocation", old, {"spec": {**new["spec"], "project": "a\tb"}})
    assert worse is not None
    assert worse.field == "spec.project"


def test_other_types_are_left_to_the_schema_and_many_faults_are_counted() -> None:
    assert refusal("Allocation", {}, {"spec": {"resources": {"nodes": 0.5, "memory": 7}, "tags": ["x"]}}) is None
    assert refusal("Allocation", {}, {"spec": "x"}) is None
    many = refusal("Allocation", {}, {"spec": {"tags": {str(number): WRONG for number in range(9)}}})
    assert many is not None
    assert many.sentence.count("holds a control character") == 5
    assert many.sentence.endswith("; and 4 more fields")


def test_the_two_of_the_newcomer_say_what_to_write() -> None:
    found = refusal(
        "Allocation", {}, {"spec": {"environment": {"devices": ["vendor.example/gpu=0", "foo"]}, "data": {"scratchPerNode": "-1Gi"}}}
    )
    assert found is not None
    assert found.message == (
        "spec.environment.devices[1]: 'foo' is no CDI name of a device: write VENDOR/CLASS=DEVICE, such as nvidia.com/gpu=all; "
        "spec.data.scratchPerNode: '-1Gi' is no quantity: write a number that is not below 0, with a unit where it needs one, such as 24, 1.5Ti, "
        "500Gi or 150m. Hint: ask the operators which devices the nodes' CDI specifications name"
    )
