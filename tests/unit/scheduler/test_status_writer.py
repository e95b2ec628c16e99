"""A status that is replaced as a whole loses nothing: the view holds every field, and merges as the API server does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.patches import merge
from lattice.kube.resources import ALLOCATIONS
from lattice.views.allocation import Allocation, AllocationStatus
from lattice_controllers.scheduler.status_writer import whole_status, write_status

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
    written = await write_status(cluster, made, FULL)
    assert written == await cluster.get(ALLOCATIONS, "a", "physics", type=Allocation)
    with pytest.raises(Stale):
        await write_status(cluster, made, {"phase": "Running"})
