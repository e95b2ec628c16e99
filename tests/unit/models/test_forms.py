"""Every pattern of a schema has a form, so that nobody is shown a regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lattice.cli.failures import explain
from lattice.errors import Rejected
from lattice.models.forms import FORMS, MOST_CHARACTERS, form_of

CRDS = sorted((Path(__file__).resolve().parents[3] / "crds").glob("*.yaml"))
WITHOUT_EXAMPLE = ("key",)
"""Forms whose example is words."""


def patterns(node: Any) -> Iterator[str]:
    """Every pattern in a schema."""
    if isinstance(node, dict):
        found = node.get("pattern")
        if isinstance(found, str):
            yield found
        for child in node.values():
            yield from patterns(child)
    elif isinstance(node, list):
        for child in node:
            yield from patterns(child)


@pytest.mark.parametrize("file", CRDS, ids=lambda file: file.stem)
def test_every_pattern_of_a_schema_has_a_form(file: Path) -> None:
    assert [pattern for pattern in patterns(yaml.safe_load(file.read_text(encoding="utf-8"))) if form_of(pattern) is None] == []


@pytest.mark.parametrize("name", [name for name in FORMS if name not in WITHOUT_EXAMPLE])
def test_each_example_has_its_form(name: str) -> None:
    form = FORMS[name]
    assert [text for text in re.split(", | or ", form.example.strip("'")) if not form.matches(text)] == []


@pytest.mark.parametrize("name", list(FORMS))
def test_a_refusal_names_field_value_form_example_and_next_step_whoever_speaks(name: str) -> None:
    form = FORMS[name]
    in_words = form.refusal("spec.x[0]", "\x1b!")
    assert in_words.startswith("spec.x[0]: '\\x1b!' ")
    assert in_words.endswith(f", such as {form.example}")
    assert form.what_next("Allocation", "spec.x[0]") == (form.next_step or "`kubectl explain allocation.spec.x` says what belongs there")
    how = f"should match '{form.pattern}'" if name != "time" else r'must be of type date-time: "\x1b!"'
    said = explain(Rejected(f'Allocation.lattice.dev "x" is invalid: spec.x[0]: Invalid value: "\\x1b!": spec.x[0] in body {how}'))
    assert said[0] == f"Error: {in_words}"
    assert said[1].startswith("  Hint: ")


def test_several_refusals_of_the_schema_are_put_into_words_and_what_is_no_pattern_stays() -> None:
    first = (
        'spec.environment.devices[0]: Invalid value: "foo": spec.environment.devices[0] in body should match \'' + FORMS["device"].pattern
    )
    second = f"spec.resources.memory: Invalid value: \"1 Gi\": spec.resources.memory in body should match '{FORMS['quantity'].pattern}'"
    third = "spec.tags.name: Too long: may not be more than 253 bytes"
    error, hint = explain(Rejected(f'Allocation.lattice.dev "x" is invalid: [{first}\', {second}, {third}]'))
    assert error == (
        f"Error: {FORMS['device'].refusal('spec.environment.devices[0]', 'foo')}, {FORMS['quantity'].refusal('spec.resources.memory', '1 Gi')}, {third}"
    )
    assert hint == "  Hint: Ask the operators which devices the nodes' CDI specifications name"


@given(st.sampled_from(sorted(FORMS)), st.text(max_size=40))
def test_a_form_agrees_with_its_pattern_but_for_a_line_break_at_the_end(name: str, text: str) -> None:
    form = FORMS[name]
    assert form.matches(text) == (re.search(form.pattern, text) is not None) or text.endswith("\n")
    assert not FORMS["name"].matches(f"{text}\n")


def test_a_text_beyond_every_limit_is_left_to_the_schema() -> None:
    assert FORMS["name"].matches("A" * (MOST_CHARACTERS + 1))
