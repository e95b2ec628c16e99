"""What each node must offer is judged at submission: sizes, contradictions, node lists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.admission.builders import accepted, allocation, facts, refused, submit

PREFIX = "spec.resources.constraints"


def resources(gpus: int | None = None, memory: str | None = None, nodes: int | str = 2, **constraints: Any) -> dict[str, Any]:
    """`spec.resources` with these constraints; None is left out."""
    given = {"nodes": nodes, "gpus": gpus, "memory": memory, "constraints": constraints}
    return {key: value for key, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("asked", "field", "sentence"),
    [
        pytest.param(
            resources(gpus=0, gpuType="GH200"), "gpuType", f"{PREFIX}.gpuType is GH200 and spec.resources.gpus is 0", id="a type of no GPU"
        ),
        pytest.param(
            resources(gpus=0, gpuMemory="90Gi"), "gpuMemory", "gpuMemory is 90Gi and spec.resources.gpus is 0", id="memory of no GPU"
        ),
        pytest.param(
            resources(gpuMemory="90Gi"), "gpuMemory", f"neither spec.resources.gpus nor {PREFIX}.gpuType is set", id="memory of which GPUs"
        ),
        pytest.param(
            resources(gpus=0, requireUnifiedMemory=True),
            "requireUnifiedMemory",
            "requireUnifiedMemory is true and spec.resources.gpus is 0",
            id="unified with no GPU",
        ),
    ],
)
def test_constraints_that_cannot_hold_together_are_refused_naming_both_fields(asked: dict[str, Any], field: str, sentence: str) -> None:
    verdict = refused(submit(allocation(resources=asked), facts()))
    assert (verdict.reason, verdict.field) == ("ConstraintsContradict", f"{PREFIX}.{field}")
    assert sentence in verdict.sentence
    assert verdict.hint


@pytest.mark.parametrize(
    ("asked", "reason", "sentence"),
    [
        pytest.param(resources(gpus=1, gpuMemory="0"), "QuantityInvalid", f"{PREFIX}.gpuMemory is 0, and must be above 0", id="0"),
        pytest.param(resources(gpus=1, gpuMemory="much"), "QuantityInvalid", f"{PREFIX}.gpuMemory: 'much' is not", id="no size"),
        pytest.param(
            resources(nodeList="nid[001-003]", excludeNodes="nid[002-003]"),
            "NodeListTooSmall",
            f"{PREFIX}.nodeList less {PREFIX}.excludeNodes leaves 1 nodes and 2 are asked for",
            id="the excluded nodes leave too few",
        ),
        pytest.param(
            resources(nodes="4-8", nodeList="nid[001-003]"), "NodeListTooSmall", "nodeList leaves 3 nodes and 4 are", id="minimum above"
        ),
    ],
)
def test_what_no_node_could_offer_is_refused(asked: dict[str, Any], reason: str, sentence: str) -> None:
    verdict = refused(submit(allocation(resources=asked), facts()))
    assert verdict.reason == reason
    assert sentence in verdict.sentence


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(resources(gpuType="GH200"), id="a type alone asks for GPUs of that type"),
        pytest.param(resources(gpus=4, gpuMemory="90Gi", topology="Tight", conformance="Required"), id="everything of GPUs"),
        pytest.param(resources(requireUnifiedMemory=True), id="unified memory"),
        pytest.param(resources(gpus=0), id="no GPUs"),
        pytest.param(resources(memory="1Ti", allowCxlMemory=True), id="CXL memory counts"),
    ],
)
def test_constraints_that_go_together_are_accepted_without_a_word(asked: dict[str, Any]) -> None:
    assert accepted(submit(allocation(resources=asked), facts())).warnings == ()


def test_a_range_that_the_node_list_can_never_fill_and_cxl_without_memory_are_warned_of() -> None:
    range_of = accepted(submit(allocation(resources=resources(nodes="2-8", nodeList="nid[001-003]")), facts()))
    assert range_of.warnings == (f"{PREFIX}.nodeList leaves 3 nodes: of the 8 asked for at most it never gets more",)
    cxl = accepted(submit(allocation(resources=resources(allowCxlMemory=True)), facts()))
    assert cxl.warnings == (f"{PREFIX}.allowCxlMemory has no effect without spec.resources.memory",)


def test_a_long_node_set_is_refused_and_no_name_of_it_is_made() -> None:
    for text in ("n[1-16000]", "n[0-63]x[0-63]y[0-1]"):
        verdict = refused(submit(allocation(resources=resources(excludeNodes=text)), facts()))
        assert (verdict.reason, "names " in verdict.sentence, "(limit: 4096)" in verdict.sentence) == ("NodeSetInvalid", True, True)


def test_names_are_made_of_short_sets_only() -> None:
    """What a name repeated in a long list leaves is the scheduler's to say: admission counts it as written."""
    short, long = resources(nodes=300, nodeList="n[1-250],n[1-250]"), resources(nodes=400, nodeList="n[1-300],n[1-300]")
    assert "leaves 250 nodes" in refused(submit(allocation(resources=short), facts())).sentence
    accepted(submit(allocation(resources=long), facts()))
    assert "leaves 4096 nodes" in refused(submit(allocation(resources=resources(nodes=5000, nodeList="n[1-4096]")), facts())).sentence
