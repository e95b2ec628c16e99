"""Equal parts of cached views are one object, and the views say what they said."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lattice.views import Allocation, Node
from lattice.views.sharing import KEPT, SharedParts

names = st.sampled_from(["", "alice", "bob", "hpc", "2026-01-01T00:00:00Z"])
conditions = st.fixed_dictionaries(
    {"type": st.sampled_from(["Scheduled", "Ready"]), "status": st.sampled_from(["True", "False"])},
    optional={"reason": names, "message": names, "lastTransitionTime": names, "observedGeneration": st.integers(0, 2)},
)
documents = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.text(max_size=5), "uid": st.uuids().map(str)},
            optional={
                "namespace": names, "labels": st.dictionaries(names, names, max_size=2), "finalizers": st.lists(names, max_size=2),
                "creationTimestamp": names, "deletionTimestamp": names, "ownerReferences": st.just([{"kind": "Job", "name": "j"}]),
            },
        )
    },
    optional={
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "user": names, "tenant": names, "vcluster": names, "tags": st.dictionaries(names, names, max_size=2), "hold": st.booleans(),
                "resources": st.just({"nodes": "2-4", "constraints": {"features": ["gpu"]}}),
                "lifecycle": st.just({"walltime": "1h", "requeue": {"policy": "Never"}}), "cancel": st.just({"reason": "no"}),
                "environment": st.just({"uenv": "prgenv"}), "tasks": st.just({"perNode": 4}),
            },
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": names, "conditions": st.lists(conditions, max_size=3), "nodes": names, "number": st.integers(1, 9),
                "score": st.just({"total": "0.5", "terms": {"f1": "0.5", "f2": "0.5"}}), "expectedStart": st.just({"p50": "x"}),
                "exit": st.just({"code": 1, "node": "n1"}), "attempts": st.just([{"attempt": 1, "nodes": "n1"}]),
                "software": st.just([{"source": "a", "digest": "b"}]), "report": st.just({"attempt": 1, "by": "n1"}),
            },
        ),
    },
)  # fmt: skip


@given(st.lists(documents, max_size=5))
def test_a_view_says_the_same_with_shared_parts(found: list[dict[str, object]]) -> None:
    shared = SharedParts()
    for document in found:
        read = msgspec.json.decode(msgspec.json.encode(document), type=Allocation)
        kept = shared.allocation(read)
        assert kept == read
        assert msgspec.json.encode(kept) == msgspec.json.encode(read)


nodes = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": st.text(max_size=5)}, optional={"labels": st.dictionaries(names, names, max_size=2)})},
    optional={
        "spec": st.fixed_dictionaries(
            {}, optional={"group": names, "hardware": st.just({"gpus": 4}), "drain": st.just({"reason": "fan"}), "features": st.just(["a"])}
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "state": names, "index": st.integers(0, 9), "conditions": st.lists(conditions, max_size=3), "health": names,
                "capabilities": st.fixed_dictionaries({}, optional={"cpus": st.integers(0, 1), "unifiedMemory": st.booleans(), "memory": names}),
                "components": st.dictionaries(names, names, max_size=2), "formats": st.dictionaries(names, st.integers(0, 1), max_size=2),
                "bootId": names, "address": names, "hollow": st.booleans(), "cachedImages": st.lists(names, max_size=2),
            },
        ),
    },
)  # fmt: skip


@given(st.lists(nodes, max_size=5))
def test_a_node_says_the_same_with_shared_parts(found: list[dict[str, object]]) -> None:
    shared = SharedParts()
    for document in found:
        read = msgspec.json.decode(msgspec.json.encode(document), type=Node)
        kept = shared.node(read)
        assert kept == read
        assert msgspec.json.decode(msgspec.json.encode(kept), type=Node) == read


def test_nodes_that_are_alike_share_what_they_are() -> None:
    shared = SharedParts()
    one, two = (
        shared.node(
            msgspec.convert(
                {"metadata": {"name": name}, "status": {"capabilities": {"cpus": 128}, "components": {"os": "1"}, "bootId": "b"}}, Node
            )
        )
        for name in ("n1", "n2")
    )
    assert one.status.capabilities is two.status.capabilities
    assert one.status.components is two.status.components
    assert one.status.boot_id is two.status.boot_id


def _waiting(name: str) -> Allocation:
    text = (
        f'{{"metadata":{{"name":"{name}","namespace":"lab","finalizers":["lattice.dev/release"]}},'
        '"spec":{"user":"alice","lifecycle":{"walltime":"1h"},"resources":{"nodes":4}},'
        '"status":{"conditions":[{"type":"Scheduled","status":"False","message":"needs 4 nodes"}],"score":{"total":"0.5","terms":{"f1":"0.5"}}}}'
    )
    return msgspec.json.decode(text, type=Allocation)


def test_equal_parts_are_one_object() -> None:
    shared = SharedParts()
    one, two = (shared.allocation(_waiting(name)) for name in ("a", "b"))
    assert one.metadata.name != two.metadata.name
    assert one.spec.lifecycle is two.spec.lifecycle
    assert one.spec.resources is two.spec.resources
    assert one.spec.user is two.spec.user
    assert one.status.conditions[0] is two.status.conditions[0]
    assert one.metadata.finalizers is two.metadata.finalizers
    assert one.metadata.labels is two.metadata.labels


def test_no_more_parts_are_remembered_than_a_cache_needs() -> None:
    shared = SharedParts()
    for number in range(2 * KEPT):
        shared.allocation(msgspec.convert({"metadata": {"name": "a", "namespace": f"lab-{number}"}}, Allocation))
    assert len(shared._known) <= KEPT
