"""Writes the status of an Allocation as a whole, where nothing can be lost by it, else what has changed.

A replacement costs the API server less than a merge patch, which it applies to the object that it has to decode first, and an
answer of metadata alone costs less than the object. The view holds every field of the status (a test compares it with the
model). Where a newer CRD has been installed, agents or another scheduler may have written fields that this one does not know
(`StatusSchema`): then it patches. A patch keeps them, but for those inside the entries of a list that it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lattice.kube.cluster import Cluster
from lattice.kube.patches import merge
from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.conditions import encode
from lattice.views.allocation import Allocation, AllocationStatus, Exit
from lattice.views.meta import Written


async def write_status(cluster: Cluster, allocation: Allocation, change: Mapping[str, Any], *, whole: bool) -> Allocation:
    """Writes an Allocation's status with a change, at the version that was judged; returns the Allocation as it stands then.

    `change` is the status part of a merge patch; `whole`: the view knows every field that the status can have, so that it is replaced.
    Raises Stale when somebody else has written since, NotFound when the Allocation is gone.
    """
    meta = allocation.metadata
    if not whole:
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": change}
        return await cluster.patch(ALLOCATIONS, meta.name, patch, meta.namespace, subresource="status", type=Allocation)
    status = whole_status(allocation.status, change)
    kept = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    written = await cluster.replace(
        ALLOCATIONS, meta.name, {"metadata": kept, "status": status}, meta.namespace, subresource="status", type=Written,
        metadata_only=True,
    )  # fmt: skip
    return msgspec.structs.replace(allocation, metadata=written.metadata, status=msgspec.convert(status, AllocationStatus))


def whole_status(status: AllocationStatus, change: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a status as JSON, whole, after a merge patch (`change`) of it."""
    whole: dict[str, Any] = merge(_encode(status), change)
    return whole


def _encode(status: AllocationStatus) -> dict[str, Any]:
    """Returns a status as JSON; zeros in exits, ended attempts and usage are written, other empty fields are left out."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    if status.conditions:
        found["conditions"] = encode(status.conditions)
    if status.exit is not None:
        found["exit"] |= _zeros(status.exit)
    for entry, attempt in zip(found.get("attempts", ()), status.attempts, strict=True):
        entry |= {"nodeCount": attempt.node_count, "gpus": attempt.gpus}
        if attempt.exit is not None:
            entry["exit"] |= _zeros(attempt.exit)
    if status.usage is not None:
        found["usage"] |= {"nodeSeconds": status.usage.node_seconds, "gpuSeconds": status.usage.gpu_seconds}
    return found


def _zeros(ended: Exit) -> dict[str, int]:
    """Returns the zeros of an exit that are written out: its signal, and its rank where it names a node."""
    return {"signal": ended.signal} | ({"rank": ended.rank} if ended.node else {})
