"""An inventory says which machines there are; what it says wrongly is refused with the line and the field."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.inventory import read_inventory
from lattice.scheduling.conversion.facts import facts_of_inventory

SITE = """\
classes:
  gh200: {cpus: 288, memory: 480Gi, gpus: 4, gpuType: GH200, gpuMemory: 96Gi, unifiedMemory: true, watts: 2800}
  cpu: {cpus: 256, memory: 512Gi, cxlMemory: 2Ti, features: [nvme_scratch]}
nodes:
  - {names: "nid[001-002]", class: gh200, group: g0, switch: s0, fingerprint: a, vcluster: ml}
  - {names: nid003, class: cpu, group: g1}
"""


def test_the_nodes_have_what_their_class_has_and_stand_where_the_text_says() -> None:
    site = read_inventory(SITE)
    assert [node.name for node in site.nodes] == ["nid001", "nid002", "nid003"]
    first, _, last = facts_of_inventory(site)
    assert (first.index, first.group, first.switch, first.fingerprint, first.home) == (0, "g0", "s0", "a", "ml")
    assert (first.gpus, first.gpu_type, first.gpu_memory, first.unified, first.watts) == (4, "GH200", 96 << 30, True, 2800)
    assert first.features == {"gpu", "GH200"}
    assert (last.index, last.memory, last.cxl_memory, last.home) == (2, 512 << 30, 2 << 40, "")
    assert last.features == {"nvme_scratch"}
    assert all(node.usable and node.state == "Ready" and not node.hollow for node in facts_of_inventory(site))


def test_nodes_without_a_fingerprint_run_what_the_rest_of_their_class_runs() -> None:
    assert read_inventory(SITE).nodes[2].fingerprint == "cpu"


def test_a_vcluster_is_at_home_in_the_groups_of_its_nodes() -> None:
    site = read_inventory(SITE)
    assert site.homes() == {"ml": ("g0",)}
    site.require_vclusters(["ml"])
    with pytest.raises(Rejected, match='no node of the inventory is at home in vcluster "hpc"; vclusters with nodes: ml'):
        site.require_vclusters(["ml", "hpc"])


CPU = "classes:\n  cpu: {cpus: 8, memory: 1Gi}\nnodes:\n"
ONE = "  - {names: n1, class: cpu, group: g0}\n"


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        pytest.param("", "", "it is a map of `classes` and `nodes`", id="empty"),
        pytest.param("- a", "", "it is a map of `classes` and `nodes`", id="a list"),
        pytest.param("classes: {", "", "is no YAML", id="no YAML"),
        pytest.param("nodes: []\n", "line 1: classes:", "it is missing", id="no classes"),
        pytest.param(CPU + "  - {names: n1, class: gpu, group: g0}\n", "line 4: nodes[0].class:", "'gpu' is not one of", id="class"),
        pytest.param(CPU + ONE + "  - {names: 'n[1-2]', class: cpu, group: g0}\n", "line 5: nodes[1].names:", "node n1 stands in line 4", id="twice"),
        pytest.param(CPU + "  - {names: n1, class: cpu}\n", "line 4: nodes[0].group:", "every node has a topology group", id="no group"),
        pytest.param(CPU + "  - {names: 'n[1', class: cpu, group: g}\n", "line 4: nodes[0].names:", "a missing ']'", id="node set"),
        pytest.param(CPU + "  - {names: N1, class: cpu, group: g}\n", "line 4: nodes[0].names:", "'N1' cannot name a node", id="name"),
        pytest.param(CPU + "  - {names: n1, class: cpu, group: 'a b'}\n", "line 4: nodes[0].group:", "'a b' is no name", id="group"),
        pytest.param(CPU + "  - {names: n1, class: cpu, group: g, rack: r}\n", "line 4: nodes[0].rack:", "it is not known", id="field"),
        pytest.param(CPU + ONE + "vclusters: [hpc]\n", "line 5: vclusters:", 'vcluster "hpc" has no nodes', id="vcluster without nodes"),
        pytest.param(
            CPU + ONE + "  - {names: n2, class: cpu, group: g0, vcluster: hpc}\n",
            "line 4: vcluster:",
            'group g0 is at home in no vcluster and "hpc"',
            id="a group with two homes",
        ),
        pytest.param(CPU.replace("8", "many") + ONE, "line 2: classes.cpu.cpus:", "'many' is no whole number", id="cpus"),
        pytest.param(CPU.replace("8", "0") + ONE, "line 2: classes.cpu.cpus:", "'0' is no whole number from 1", id="no cpus"),
        pytest.param(CPU.replace("1Gi", "1Qi") + ONE, "line 2: classes.cpu.memory:", "'1Qi' is not a quantity", id="memory"),
        pytest.param(CPU.replace("1Gi", "1Gi, gpuType: A") + ONE, "line 2: classes.cpu.gpuType:", "has no GPUs", id="type of none"),
        pytest.param(CPU.replace("1Gi", "1Gi, unifiedMemory: maybe") + ONE, "line 2: classes.cpu.unifiedMemory:", "'maybe'", id="switch"),
        pytest.param(CPU.replace("cpus: 8, ", "") + ONE, "line 2: classes.cpu.cpus:", "it is missing", id="class without cpus"),
        pytest.param(CPU.replace("1Gi", "1Gi, cpus: 4") + ONE, "line 2: classes.cpu.cpus:", "it is given twice", id="field twice"),
        pytest.param(CPU.rstrip() + " []\n", "line 3: nodes:", "there is no node", id="no nodes"),
    ],
)  # fmt: skip
def test_an_inventory_that_is_wrong_is_refused_with_its_line_and_field(text: str, place: str, sentence: str) -> None:
    with pytest.raises(Rejected) as caught:
        read_inventory(text, "site.yaml")
    assert caught.value.message.startswith(f"site.yaml, {place}" if place else "site.yaml is no ")
    assert sentence in caught.value.message
