"""Nodes as people read them: hardware and software that can be asked for are seen."""

from __future__ import annotations

from typing import Any

import msgspec

from lattice.cli.render.nodes import node_details, node_table
from lattice.scheduling.queries.node_rows import node_row, short_fingerprint
from lattice.views.cluster import Node

MARK = "sha256:0123456789abcdef" + 48 * "0"


def node(name: str, **capabilities: Any) -> Node:
    status = {"state": "Ready", "fingerprint": MARK, "components": {"gpu-driver": "550.1"}, "capabilities": {"cpus": 8, **capabilities}}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"group": "g0"}, "status": status}, Node)


GPU = node("gh1", memory="480Gi", gpus=4, gpuType="GH200", gpuMemory="96Gi", unifiedMemory=True, nominalWatts=2800)
CPU = node("c1", memory="512Gi", cxlMemory="2Ti")


def test_the_table_names_the_type_of_gpus_and_the_wide_one_a_short_fingerprint() -> None:
    head, first, second = node_table([node_row(GPU), node_row(CPU)], {}, now=0.0, wide=True, width=0, color=False)
    assert head.split()[:4] == ["NODE", "STATE", "CPUS", "MEMORY"]
    assert " 4  GH200 " in first
    assert "GH200" not in second
    assert "0123456789ab" in first
    assert "0123456789abc" not in first


def test_where_no_node_has_gpus_the_columns_of_gpus_vanish() -> None:
    assert "GPU" not in node_table([node_row(CPU)], {}, now=0.0, wide=False, width=0, color=False)[0]


def test_a_table_of_nodes_with_long_names_and_reasons_fits_a_narrow_terminal() -> None:
    name = "x1000c0s0b0n0"
    status = {"state": "Draining", "since": "2026-09-21T14:13:20Z", "capabilities": {"cpus": 288, "memory": "857Gi", "gpus": 4}}
    wish = {"reason": "waiting for a new power supply of the chassis", "by": "olga"}
    one = msgspec.convert({"metadata": {"name": name}, "spec": {"group": "group-17", "drain": wish}, "status": status}, Node)
    lines = node_table([node_row(one)], {"group-17": "hpc-batch"}, now=1_790_000_400.0, wide=False, width=80, color=False)
    assert all(len(line) <= 80 for line in lines)
    assert all(word in lines[1] for word in (name, "Draining", "waiting for a"))
    assert "VCLUSTER" not in lines[0]


def test_the_details_say_everything_that_can_be_asked_for() -> None:
    shown = dict(line.split(":", 1) for line in node_details(GPU, {}, 0.0))
    assert shown["GPUs"].strip() == "4 GH200, 96Gi each"
    assert shown["Memory"].strip() == "480Gi, one domain with the GPUs"
    assert shown["Power"].strip() == "2800 W at full load"
    assert shown["Conformance"].strip() == f"{MARK} (gpu-driver 550.1)"
    assert dict(line.split(":", 1) for line in node_details(CPU, {}, 0.0))["Memory"].strip() == "512Gi, CXL 2Ti"


def test_a_fingerprint_of_another_form_is_shortened_too() -> None:
    assert short_fingerprint("6.1/0.1") == "6.1/0.1"
