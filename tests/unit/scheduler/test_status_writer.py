"""A status that is replaced as a whole loses nothing: the view holds every field, and merges as the API server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lattice.daemon.clock import SystemClock
from lattice.errors import Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.patches import merge
from lattice.kube.resources import ALLOCATIONS, CRDS
from lattice.views.allocation import Allocation, AllocationStatus
from lattice_controllers.scheduler.status_schema import Definition, StatusSchema, unknown_fields
from lattice_controllers.scheduler.status_writer import whole_status, write_status

DEFINITION: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "crds" / "allocations.yaml").read_text())
EXIT = {"code": 137, "signal": 9, "node": "nid001", "rank": 3}
FULL: dict[str, Any] = {
    "observedGeneration": 3, "number": 12, "phase": "Pending",
    "conditions": [
        {"type": "Scheduled", "status": "False", "reason": "WaitingForNodes", "message": "needs 4",
         "lastTransitionTime": "2026-11-21T08:00:00Z", "observedGeneration": 3},
    ],
    "nodes": "nid[001-004]", "nodeCount": 4, "gpus": 16, "head": "nid001", "reporter": "nid001",
    "report": {"attempt": 2, "by": "nid001"}, "attempt": 2, "ledgerSeq": 77, "submitTime": "2026-11-21T07:00:00Z",
    "scheduledTime": "2026-11-21T08:00:00Z", "startTime": "2026-11-21T08:00:01Z", "endTime": "2026-11-21T08:00:02Z",
    "killTime": "2026-11-21T08:00:03Z",
    "expectedStart": {"p50": "2026-11-21T09:00:00Z", "p90": "2026-11-21T10:00:00Z", "reason": "busy"},
    "reservedAt": "2026-11-21T07:30:00Z", "score": {"total": "0.700", "terms": {"f1": "0.500"}}, "exit": EXIT,
    "attempts": [
        {"attempt": 1, "nodes": "nid007", "nodeCount": 1, "gpus": 4, "scheduledTime": "2026-11-21T07:00:00Z",
         "startTime": "2026-11-21T07:00:01Z", "endTime": "2026-11-21T07:00:02Z", "exit": EXIT, "reason": "NodeLost"},
    ],
    "usage": {"attempts": 1, "nodeSeconds": 2, "gpuSeconds": 8, "endTime": "2026-11-21T07:00:02Z"}, "requeues": 1, "hollow": True,
    "launches": {
        "total": 3, "completed": 1, "failed": 1, "timeout": 1,
        "failures": [{"step": "12.2", "result": "Timeout", "code": 143, "signal": 15, "node": "nid001", "reason": "ran for 60 s"}],
    },
    "edges": [{"index": 0, "uid": "u", "answer": "M", "due": "2026-11-21T07:40:00Z"}, {"index": 1, "uid": "v"}],
    "software": [
        {"source": "a/1:v1", "digest": "sha256:" + "a" * 64, "size": 7, "mount": "/m", "repository": "uenv/a", "layer": "sha256:" + "b" * 64},
        {"source": "b/1:v1", "digest": "sha256:" + "c" * 64, "layer": "sha256:" + "d" * 64},
    ],
}  # fmt: skip


ZEROS: dict[str, Any] = {
    "phase": "Failed", "attempt": 2, "exit": {"code": 0, "signal": 0, "node": "nid001", "rank": 0},
    "attempts": [{"attempt": 1, "nodeCount": 0, "gpus": 0, "exit": {"code": 0, "signal": 0}, "reason": "NodeLost"}],
    "usage": {"attempts": 1, "nodeSeconds": 0, "gpuSeconds": 0},
}  # fmt: skip


def test_the_example_has_every_field_of_the_status() -> None:
    assert set(FULL) == {field.encode_name for field in msgspec.structs.fields(AllocationStatus)}


@pytest.mark.parametrize(
    "change",
    [{}, {"phase": "Running"}, {"killTime": None, "exit": None}, {"score": {"terms": None}}, {"nodes": "", "nodeCount": 0, "attempt": 3}],
    ids=str,
)
def test_a_replacement_is_what_the_merge_patch_would_make(change: dict[str, Any]) -> None:
    assert whole_status(msgspec.convert(FULL, AllocationStatus), change) == merge(FULL, change)


def test_zeros_that_were_written_stay() -> None:
    assert whole_status(msgspec.convert(ZEROS, AllocationStatus), {"phase": "Failed"}) == ZEROS


async def test_the_answer_is_the_allocation_as_it_stands_then() -> None:
    cluster = FakeCluster(SystemClock())
    made = await cluster.create(ALLOCATIONS, {"metadata": {"name": "a", "namespace": "physics"}, "spec": {}}, "physics", type=Allocation)
    written = await write_status(cluster, made, FULL, whole=True)
    assert written == await cluster.get(ALLOCATIONS, "a", "physics", type=Allocation)
    with pytest.raises(Stale):
        await write_status(cluster, made, {"phase": "Running"}, whole=True)


NEWER = st.dictionaries(st.sampled_from(["newer", "other"]), st.integers() | st.text(max_size=8) | st.just({"deep": 1}), min_size=1)
CHANGES: list[dict[str, Any]] = [
    {"phase": "Running"},
    {"killTime": None, "exit": None},
    {"score": {"total": "0.100"}},
    {"nodes": "", "nodeCount": 0},
]


@given(newer=NEWER, below=st.sampled_from(["", "score", "report", "usage"]), change=st.sampled_from(CHANGES))
def test_a_field_that_this_scheduler_does_not_know_outlives_its_write(newer: dict[str, Any], below: str, change: dict[str, Any]) -> None:
    stands = {**FULL, **newer} if not below else {**FULL, below: {**FULL[below], **newer}}
    installed = json.loads(json.dumps(DEFINITION))
    fields = status_properties(installed)
    (fields if not below else fields[below]["properties"]).update({name: {"type": "object"} for name in newer})
    left = asyncio.run(written(installed, stands, change))
    assert newer.items() <= (left if not below else left[below]).items()
    assert msgspec.convert(left, AllocationStatus) == msgspec.convert(merge(stands, change), AllocationStatus)


@given(change=st.sampled_from(CHANGES))
def test_under_the_crd_of_its_own_release_a_status_is_replaced_to_the_same_effect(change: dict[str, Any]) -> None:
    assert asyncio.run(written(DEFINITION, FULL, change)) == merge(FULL, change)


async def written(installed: dict[str, Any], stands: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """What is left of a status after this scheduler's write, with this CRD installed."""
    cluster = FakeCluster(SystemClock())
    await cluster.create(CRDS, installed)
    async with following(cluster) as schema:
        assert schema.is_known == (installed == DEFINITION)
        known = schema.is_known
    await cluster.create(ALLOCATIONS, {"metadata": {"name": "a", "namespace": "physics"}, "spec": {}}, "physics")
    await cluster.patch(ALLOCATIONS, "a", {"status": stands}, "physics", subresource="status")
    read = await cluster.get(ALLOCATIONS, "a", "physics", type=Allocation)
    await write_status(cluster, read, change, whole=known)
    left: dict[str, Any] = (await cluster.get(ALLOCATIONS, "a", "physics"))["status"]
    return left


@asynccontextmanager
async def following(cluster: FakeCluster) -> AsyncIterator[StatusSchema]:
    schema = StatusSchema(cluster, SystemClock())
    async with asyncio.TaskGroup() as group:
        follower = group.create_task(schema.informer.run())
        await schema.informer.synced.wait()
        yield schema
        follower.cancel()


def status_properties(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    return found


def paths(fields: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every object below these fields, as the names that lead to its own fields."""
    for name, below in fields.items():
        for step in ((), ("items",)):
            inner = below.get("items", {}) if step else below
            if "properties" in inner:
                yield (*path, name, *step, "properties")
                yield from paths(inner["properties"], (*path, name, *step, "properties"))


@pytest.mark.parametrize("path", [(), *paths(status_properties(DEFINITION))], ids="/".join)
def test_a_new_field_of_the_crd_is_found_wherever_it_stands(path: tuple[str, ...]) -> None:
    installed = json.loads(json.dumps(DEFINITION))
    fields = status_properties(installed)
    for name in path:
        fields = fields[name]
    fields["newer"] = {"type": "string"}
    (found,) = unknown_fields(msgspec.convert(installed, Definition))
    assert found.endswith(".newer")


async def test_nothing_is_known_of_a_status_before_the_crd_is_read_and_once_it_is_gone() -> None:
    cluster = FakeCluster(SystemClock())
    await cluster.create(CRDS, DEFINITION)
    assert not StatusSchema(cluster, SystemClock()).is_known
    async with following(cluster) as schema:
        assert schema.is_known
        schema.on_definition(Change(ALLOCATIONS.name, msgspec.convert(DEFINITION, Definition), None))
        assert not schema.is_known
