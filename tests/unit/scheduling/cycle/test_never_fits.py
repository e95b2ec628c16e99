"""A need that never fits says which demand is too much, and what exists instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.inventory import read_inventory
from lattice.scheduling.cluster.eligibility import census_of
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.conversion.candidates import need_of
from lattice.scheduling.conversion.facts import facts_of_inventory
from lattice.scheduling.cycle.never_fits import never_fits
from lattice.scheduling.model.hardware import Need
from lattice.views.allocation import Resources
from tests import build

SITE = """\
classes:
  gh200: {cpus: 288, memory: 480Gi, gpus: 4, gpuType: GH200, gpuMemory: 96Gi, unifiedMemory: true}
  a100: {cpus: 128, memory: 512Gi, gpus: 8, gpuType: A100, gpuMemory: 80Gi}
  cpu: {cpus: 256, memory: 256Gi, cxlMemory: 2Ti, features: [nvme]}
nodes:
  - {names: "g[1-8]", class: gh200, group: g0}
  - {names: "a[1-4]", class: a100, group: g1}
  - {names: "c[1-2]", class: cpu, group: g2}
"""


@pytest.fixture(scope="module")
def node_cache() -> NodeCache:
    made = NodeCache()
    for facts in facts_of_inventory(read_inventory(SITE)):
        made.put(facts)
    return made


def need(**fields: Any) -> Need:
    return need_of(msgspec.convert(fields, Resources), {"g1": 0, "c1": 12})


@pytest.mark.parametrize(
    ("asked", "wanted", "clause"),
    [
        pytest.param(
            {"constraints": {"gpuType": "H100"}}, 1, "no node has GPU type H100; there are A100 (4 nodes), GH200 (8 nodes)", id="type"
        ),
        pytest.param(
            {"constraints": {"gpuType": "A100"}}, 6, "4 nodes have GPU type A100; there are A100 (4 nodes), GH200 (8 nodes)", id="too many"
        ),
        pytest.param({"gpus": 9}, 1, "no node has 9 GPUs; the most on one node is 8", id="GPUs"),
        pytest.param(
            {"gpus": 1, "constraints": {"gpuMemory": "100Gi"}}, 1, "no node has GPUs of 100Gi; the most of one GPU is 96Gi", id="GPU memory"
        ),
        pytest.param({"cpus": 300}, 1, "no node has 300 CPUs; the most on one node is 288", id="CPUs"),
        pytest.param(
            {"memory": "1Ti"},
            2,
            "no node has 1Ti of memory; the most on one node is 512Gi, and with CXL memory (allowCxlMemory) 2 nodes would do",
            id="memory without CXL",
        ),
        pytest.param(
            {"memory": "3Ti", "constraints": {"allowCxlMemory": True}},
            1,
            "no node has 3Ti of memory; the most on one node is 2304Gi",
            id="CXL",
        ),
        pytest.param(
            {"constraints": {"features": ["oci"]}},
            1,
            "no node has the feature oci, which runs environment.image; features that nodes have: A100, GH200, gpu, nvme",
            id="images",
        ),
        pytest.param(
            {"constraints": {"features": ["pmix"]}},
            1,
            "no node has the feature pmix, which serves PMIx; features that nodes have: A100, GH200, gpu, nvme",
            id="PMIx",
        ),
        pytest.param(
            {"constraints": {"features": ["ib"]}},
            1,
            "no node has the feature ib; features that nodes have: A100, GH200, gpu, nvme",
            id="feature",
        ),
        pytest.param({"constraints": {"requireUnifiedMemory": True}}, 9, "8 nodes have unified memory", id="unified"),
        pytest.param(
            {"gpus": 8, "constraints": {"gpuType": "GH200"}},
            1,
            "4 nodes would do without GPU type GH200, 8 nodes would do without 8 GPUs",
            id="two that do not meet",
        ),
        pytest.param({"constraints": {"nodeList": "g1,c1"}}, 3, "2 of the nodes in its nodeList exist and fit", id="node list"),
        pytest.param({}, 15, "", id="no demand at all"),
    ],
)
def test_the_demand_that_is_too_much_is_named_with_what_exists(
    node_cache: NodeCache, asked: dict[str, Any], wanted: int, clause: str
) -> None:
    assert never_fits(node_cache, need(**asked), wanted) == clause


def test_nodes_that_only_wait_are_offered_by_their_feature() -> None:
    made = NodeCache()
    for facts in facts_of_inventory(read_inventory(SITE))[:4]:
        made.put(replace(facts, hollow=True))
    assert never_fits(made, need(constraints={"gpuType": "GH200"}), 2) == (
        "no node has GPU type GH200; no node declares GPUs (4 nodes that only wait would do: constraints.features: [hollow])"
    )


demands = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(0, 9),
        "cpus": st.integers(1, 300),
        "memory": st.sampled_from(["1Gi", "300Gi", "1Ti"]),
        "constraints": st.fixed_dictionaries(
            {},
            optional={
                "gpuType": st.sampled_from(["GH200", "a100", "H100"]),
                "gpuMemory": st.sampled_from(["1Gi", "90Gi", "99Gi"]),
                "features": st.lists(st.sampled_from(["nvme", "gpu", "ib"]), max_size=2, unique=True),
                "requireUnifiedMemory": st.booleans(),
            },
        ),
    },
)


@given(asked=demands, wanted=st.integers(1, 14))
def test_whatever_does_not_fit_has_a_clause(node_cache: NodeCache, asked: dict[str, Any], wanted: int) -> None:
    wish = need(**asked)
    if census_of(node_cache, wish).eligible < wanted:
        assert never_fits(node_cache, wish, wanted)


def test_an_image_of_another_architecture_says_which_nodes_have() -> None:
    made = NodeCache()
    for index in range(3):
        made.put(build.node(index, architecture="x86_64" if index else "aarch64"))
    assert never_fits(made, Need(architectures=frozenset({"s390x"})), 1) == (
        "no node has the architecture s390x, for which its image is made; there are aarch64 (1 node), x86_64 (2 nodes)"
    )
    assert never_fits(made, Need(architectures=frozenset({"s390x", "aarch64"})), 2).startswith(
        "1 node has one of the architectures aarch64, s390x, for which its image is made"
    )
    assert never_fits(made, Need(architectures=frozenset({"x86_64"})), 2) == ""
