"""What an agent is told of its machine reaches its LatticeNode; what nobody tells is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.daemon.clock import ManualClock
from lattice.errors import Rejected
from lattice.inventory import read_inventory
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import NODES
from lattice.units import quantity_bytes
from lattice.views.cluster import Node
from lattice_agent.__main__ import AgentSettings
from lattice_agent.cluster.capabilities import StaticCapabilities, fingerprint, from_node_class, read_components
from lattice_agent.cluster.registration import NodeDescription, Registration
from lattice_agent.host.interface import MachineFacts

FACTS = MachineFacts(8, 1 << 34, "6.1", "x86_64", "boot-1")
GH200 = StaticCapabilities(4, "GH200", 96 << 30, 0, True, 2800, {"gpu-driver": "550.1"})


def settings(**given: Any) -> AgentSettings:
    needed: dict[str, Any] = {"hollow": 1, "certificate": "-", "key": "-", "ca": "-", "gateway": ("gateway:8444",)}
    return AgentSettings(**needed | given)


async def registered(cluster: FakeCluster, declared: StaticCapabilities) -> Node:
    me = NodeDescription("n1", FACTS, "i", "n1:1", group="g0", switch="s0", declared=declared)
    await Registration(cluster, ManualClock(), me, heartbeat_seconds=10).register()
    return await cluster.get(NODES, "n1", type=Node)


async def test_what_is_declared_stands_in_the_node_and_registering_again_writes_nothing() -> None:
    cluster = FakeCluster(ManualClock())
    node = await registered(cluster, GH200)
    had = node.status.capabilities
    assert (had.cpus, had.gpus, had.gpu_type, had.gpu_memory) == (8, 4, "GH200", "96Gi")
    assert (had.unified_memory, had.nominal_watts) == (True, 2800)
    assert (node.spec.group, node.spec.switch) == ("g0", "s0")
    assert node.status.components == {"gpu-driver": "550.1"}
    assert (await registered(cluster, GH200)).metadata.resource_version == node.metadata.resource_version


async def test_what_is_not_declared_any_more_is_gone() -> None:
    cluster = FakeCluster(ManualClock())
    before = await registered(cluster, GH200)
    after = await registered(cluster, StaticCapabilities())
    had = after.status.capabilities
    assert (had.gpus, had.gpu_type, had.gpu_memory, had.unified_memory, had.nominal_watts) == (0, "", "0", False, 0)
    assert after.status.components == {}
    assert after.status.fingerprint != before.status.fingerprint


async def test_of_a_real_node_nothing_is_invented() -> None:
    node = await registered(FakeCluster(ManualClock()), StaticCapabilities())
    told = msgspec.to_builtins(node.status.capabilities)
    assert {name: value for name, value in told.items() if name not in ("cpus", "memory", "architecture")} == {
        "gpuMemory": "0",
        "cxlMemory": "0",
        "scratch": "0",
    }


versions = st.dictionaries(st.text("abc-", min_size=1, max_size=8), st.text("0123.", min_size=1, max_size=6), max_size=5)


@given(one=versions, other=versions)
def test_nodes_have_one_fingerprint_exactly_if_all_their_versions_are_equal(one: dict[str, str], other: dict[str, str]) -> None:
    assert (fingerprint("6.1", "0.1", one) == fingerprint("6.1", "0.1", other)) == (one == other)
    assert fingerprint("6.1", "0.1", one) == fingerprint("6.1", "0.1", dict(reversed(one.items())))
    assert fingerprint("6.1", "0.1", one) != fingerprint("6.2", "0.1", one)
    assert fingerprint("6.1", "0.1", one) != fingerprint("6.1", "0.2", one)


def test_flags_become_what_is_declared() -> None:
    given = settings(
        gpus=4, gpu_type="GH200", gpu_memory="96Gi", cxl_memory="2Ti", unified_memory=True, watts=2800, component=("gpu-driver=550.1",)
    )
    assert given.declared() == StaticCapabilities(4, "GH200", 96 << 30, 2 << 40, True, 2800, {"gpu-driver": "550.1"})
    assert settings().declared() == StaticCapabilities()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gpu_type": "GH200"}, "--gpu-type GH200: this node declares no GPUs"),
        ({"gpu_memory": "96Gi"}, "--gpu-memory 103079215104: this node declares no GPUs"),
        ({"gpus": 1, "gpu_memory": "much"}, "--gpu-memory: 'much' is not a quantity"),
        ({"cxl_memory": "-1"}, "--cxl-memory: '-1' is not a quantity"),
        ({"gpus": -1}, "0 to 1024 GPUs"),
        ({"watts": -1}, "no power below 0"),
        ({"component": ("driver",)}, "--component driver: write NAME=VERSION"),
        ({"component": ("driver=1", "driver=2")}, "--component driver is given twice, as 1 and as 2"),
        ({"component": tuple(f"c{number}=1" for number in range(17))}, "17 components (limit: 16)"),
    ],
)
def test_flags_that_contradict_themselves_are_refused_by_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Rejected) as caught:
        settings(**given)
    assert sentence in caught.value.message


def test_a_hollow_node_declares_what_its_class_in_the_inventory_has(tmp_path: Path) -> None:
    text = "classes:\n  g: {cpus: 8, memory: 1Gi, gpus: 2, gpuType: A100, watts: 900}\nnodes:\n  - {names: n1, class: g, group: g0, fingerprint: a}\n"
    node = read_inventory(text).nodes[0]
    assert from_node_class(node.node_class, node.fingerprint) == StaticCapabilities(2, "A100", watts=900, components={"inventory": "a"})
    assert settings(hollow=0, hollow_inventory=tmp_path / "site.yaml").is_hollow


def test_components_are_read_by_name() -> None:
    assert read_components(["nic=2.1", "gpu-driver=550.54.14"]) == {"nic": "2.1", "gpu-driver": "550.54.14"}


def test_memory_is_told_in_whole_mebibytes_with_the_unit() -> None:
    machine = MachineFacts(2, 25_276_510_208, "6", "x86_64", "b")
    told = NodeDescription("nid001", machine, "i", "h:1").status()["capabilities"]["memory"]
    assert told == "24105Mi"
    assert 0 <= machine.memory_bytes - quantity_bytes(told) < 1 << 20
