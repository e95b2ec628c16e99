"""What a node counts for, whatever it reports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.lifecycle.hardware import counted, deviation
from lattice.views import Metadata, Node, NodeSpec, NodeStatus
from lattice.views.cluster import Capabilities, Hardware

FIRST = {"cpus": 128, "memory": "512Gi", "gpus": 4, "gpu_type": "GH200", "gpu_memory": "96Gi", "cxl_memory": "0"}


def node(now: dict[str, Any], *, accepted: dict[str, Any] | None = None, declared: dict[str, Any] | None = None) -> Node:
    return Node(
        Metadata(name="n1"),
        NodeSpec(hardware=Hardware(**declared) if declared is not None else None),
        NodeStatus(capabilities=Capabilities(**now), accepted=Hardware(**accepted) if accepted is not None else None),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"gpus": 512}, "gpus 512, 4 reported first"),
        ({"gpus": 3}, ""),
        ({"cpus": 129}, "cpus 129, 128 reported first"),
        ({"memory": "520Gi"}, ""),
        ({"memory": "600Gi"}, "memory 600Gi, 512Gi reported first"),
        ({"memory": "100Gi"}, ""),
        ({"gpu_type": "H200"}, "gpuType H200, GH200 reported first"),
        ({"cxl_memory": "2Ti"}, "cxlMemory 2Ti, 0 reported first"),
    ],
)
def test_without_a_declaration_less_is_believed_and_more_is_not(change: dict[str, Any], said: str) -> None:
    assert deviation(node({**FIRST, **change}, accepted=FIRST)) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"memory": "500Gi"}, ""),
        ({"memory": "400Gi"}, "memory 400Gi, 512Gi declared"),
        ({"gpus": 3}, "gpus 3, 4 declared"),
        ({"gpus": 5, "gpu_type": ""}, "gpus 5, 4 declared, gpuType none, GH200 declared"),
        ({"cpus": 1}, ""),
    ],
)
def test_what_is_declared_is_to_be_there(change: dict[str, Any], said: str) -> None:
    declared = {"memory": "512Gi", "gpus": 4, "gpu_type": "GH200"}
    assert deviation(node({**FIRST, **change}, accepted=FIRST, declared=declared)) == said


facts = st.fixed_dictionaries(
    {"cpus": st.integers(0, 512), "memory": st.integers(0, 1 << 50), "gpus": st.integers(0, 1024), "gpu_type": st.sampled_from(["", "H200"]),
     "gpu_memory": st.integers(0, 1 << 40), "cxl_memory": st.integers(0, 1 << 50)}
)  # fmt: skip


@given(facts, facts, st.none() | facts)
def test_no_node_counts_for_more_than_is_known_of_it(now: dict[str, Any], first: dict[str, Any], declared: dict[str, Any] | None) -> None:
    found = node(now, accepted=first, declared=declared)
    counts, limit = counted(found), declared or first
    for name in ("cpus", "gpus", "memory", "gpu_memory", "cxl_memory"):
        assert getattr(counts, name) <= max(limit[name], limit[name] * 1.02)
        assert getattr(counts, name) <= now[name]
    if not deviation(found):
        assert counts == found.status.capabilities
    assert counted(node(now)) == node(now).status.capabilities
