"""The root of a profile's tree: what its nodes have, made once, left to Koordinator where it is Koordinator's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS
from lattice.quota.declared import PREFIX, declared_of_koordinator
from lattice.views import KoordinatorProfile, KoordinatorQuota, Node
from lattice_controllers.operator.profiles import FAULT, Profiles

NODES: dict[str, Node] = {
    name: msgspec.convert(
        {
            "metadata": {"name": name, "labels": {"zone": zone}},
            "status": {"state": state, "capabilities": {"cpus": 10, "memory": "1Gi", "gpus": 4, "gpuType": "GH200"}},
        },
        Node,
    )
    for name, zone, state in (("n1", "a", "Ready"), ("n2", "a", "Draining"), ("n3", "a", "Down"), ("n4", "b", "Ready"))
}


def profile(**spec: Any) -> dict[str, Any]:
    body = {"quotaName": "root", "nodeSelector": {"matchLabels": {"zone": "a"}}, **spec}
    metadata = {"name": "p", "namespace": "ns"}
    return {"apiVersion": KOORDINATOR_PROFILES.api_version, "kind": KOORDINATOR_PROFILES.kind, "metadata": metadata, "spec": body}


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(ManualClock())


async def look(cluster: FakeCluster, nodes: dict[str, Node] = NODES) -> dict[str, Any]:
    """The root after one look."""
    await Profiles(cluster, ManualClock(), nodes).publish()
    found: dict[str, Any] = await cluster.get(KOORDINATOR_QUOTAS, "root", "ns")
    return found


async def test_the_root_has_what_the_counted_nodes_have(cluster: FakeCluster) -> None:
    await cluster.create(KOORDINATOR_PROFILES, profile(resourceRatio="0.5", quotaLabels={"team": "x"}), "ns")
    root = await look(cluster)
    assert root["spec"]["min"] == {"cpu": "10", "memory": "1Gi"}
    labels, notes = root["metadata"]["labels"], root["metadata"]["annotations"]
    assert (labels["team"], labels[PREFIX + "is-root"], labels[PREFIX + "tree-id"]) == ("x", "true", "5367319587633080321")
    assert json.loads(notes[PREFIX + "total-resource"]) == {"cpu": "10", "memory": "1Gi"}
    assert json.loads(notes[PREFIX + "unschedulable-resource"]) == {"cpu": "10", "memory": "1Gi"}
    view, owner = msgspec.convert(root, KoordinatorQuota), msgspec.convert(profile(), KoordinatorProfile)
    declared = declared_of_koordinator(view, [owner])
    assert declared.is_parent
    assert declared.tree is not None


async def test_looking_twice_writes_once_and_a_change_of_nodes_writes_again(cluster: FakeCluster) -> None:
    await cluster.create(KOORDINATOR_PROFILES, profile(), "ns")
    first = await look(cluster)
    assert (await look(cluster))["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert (await look(cluster, {"n1": NODES["n1"]}))["spec"]["min"] == {"cpu": "10", "memory": "1Gi"}


async def test_a_root_that_koordinator_made_is_left_to_it(cluster: FakeCluster) -> None:
    await cluster.create(KOORDINATOR_PROFILES, profile(), "ns")
    spec = {"min": {"cpu": 1}, "max": {"cpu": 2}}
    theirs = {
        "apiVersion": KOORDINATOR_QUOTAS.api_version,
        "kind": "ElasticQuota",
        "metadata": {"name": "root", "namespace": "ns"},
        "spec": spec,
    }
    await cluster.create(KOORDINATOR_QUOTAS, theirs, "ns")
    assert (await look(cluster))["spec"] == spec


async def test_a_profile_that_selects_nothing_or_does_not_read_says_so_until_it_is_better(cluster: FakeCluster) -> None:
    await cluster.create(KOORDINATOR_PROFILES, profile(nodeSelector={"matchLabels": {"zone": "z"}}), "ns")
    assert (await look(cluster))["spec"]["min"] == {"cpu": "0", "memory": "0"}

    async def fault() -> str:
        metadata = (await cluster.get(KOORDINATOR_PROFILES, "p", "ns"))["metadata"]
        return str(metadata.get("annotations", {}).get(FAULT, ""))

    assert await fault() == "spec.nodeSelector selects none of the 4 nodes"
    await cluster.patch(KOORDINATOR_PROFILES, "p", {"spec": {"resourceRatio": "2"}}, "ns")
    await look(cluster)
    assert "must be above 0 and at most 1" in await fault()
    await cluster.patch(KOORDINATOR_PROFILES, "p", {"spec": {"resourceRatio": "1", "nodeSelector": {"matchLabels": {"zone": "a"}}}}, "ns")
    await look(cluster)
    assert await fault() == ""
