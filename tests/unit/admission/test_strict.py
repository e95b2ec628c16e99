"""The strict reading says in a sentence what the server's schema says with a pattern."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.admission.strict import parse_strict


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param({"resources": {"nodes": "many"}}, "spec.resources.nodes: 'many' is not a number of nodes", id="nodes"),
        pytest.param({"resources": {"nodes": "4-2"}}, "spec.resources.nodes: the range of nodes '4-2' runs backwards", id="range"),
        pytest.param({"resources": {"nodes": 0}}, "spec.resources.nodes: '0' is not a number of nodes", id="no-nodes"),
        pytest.param({"resources": {"memory": "lots"}}, "spec.resources.memory: 'lots' is not a quantity", id="memory"),
        pytest.param(
            {"lifecycle": {"walltime": "soon"}}, "spec.lifecycle.walltime: 'soon' is no duration: write whole numbers", id="walltime"
        ),
        pytest.param({"lifecycle": {"notBefore": "never"}}, "spec.lifecycle.notBefore: 'never' is not a time", id="time"),
        pytest.param({"tags": {"name": "a\tb"}}, "spec.tags.name: 'a\\tb' holds a control character", id="control"),
    ],
)
def test_a_value_that_does_not_read_is_named_with_its_field(spec: dict[str, Any], problem: str) -> None:
    problems = parse_strict("Allocation", {"kind": "Allocation", "metadata": {"name": "x"}, "spec": spec})
    assert len(problems) == 1
    assert problems[0].startswith(problem)
