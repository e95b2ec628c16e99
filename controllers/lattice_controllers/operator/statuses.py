"""Writes statuses of declared kinds: one merge patch of the fields that changed, with resourceVersion; none when nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lattice.kube.cluster import Cluster
from lattice.kube.resources import Resource
from lattice.lifecycle.conditions import FALSE, TRUE, encode, same_but_for_times, with_condition, without_conditions
from lattice.models.conditions import READY, STALLED
from lattice.views import Condition, Metadata

IN_USE = "InUse"
IN_USE_FINALIZER = "lattice.dev/in-use"
RESYNC_SECONDS = 300.0
"""Time without a change after which an object of a declared kind is reconciled again."""
DELETION_AGAIN_SECONDS = 2.0
"""Time between two checks whether a deleted object is still in use."""


def ready(conditions: tuple[Condition, ...], generation: int, now: str) -> tuple[Condition, ...]:
    """Returns the conditions with Ready true and without Stalled: the spec is carried out. `now`: RFC 3339."""
    kept = without_conditions(conditions, [STALLED])
    return with_condition(kept, READY, TRUE, "InForce", "the spec is carried out", generation=generation, now=now)


def stalled(conditions: tuple[Condition, ...], reason: str, message: str, generation: int, now: str) -> tuple[Condition, ...]:
    """Returns the conditions with Ready false and Stalled true: the object cannot become ready until somebody changes something."""
    unready = with_condition(conditions, READY, FALSE, reason, message, generation=generation, now=now)
    return with_condition(unready, STALLED, TRUE, reason, message, generation=generation, now=now)


def waiting(conditions: tuple[Condition, ...], reason: str, message: str, generation: int, now: str) -> tuple[Condition, ...]:
    """Returns the conditions with Ready false and without Stalled: the object becomes ready, or goes, by itself."""
    kept = without_conditions(conditions, [STALLED])
    return with_condition(kept, READY, FALSE, reason, message, generation=generation, now=now)


def use_sentence(pending: int, rows: int | None) -> str:
    """Returns the sentence on what keeps an object that is deleted: allocations that are not final, and rows of the ledger (None: it is
    lost).
    """
    if rows is None:
        return f"{pending} allocations are not final; the Ledger is lost, so who holds nodes is not known: `lattice admin ledger recover`"
    return f"{pending} allocations are not final, {rows} still hold nodes"


def used(conditions: tuple[Condition, ...], in_use: bool, generation: int, now: str) -> tuple[Condition, ...]:
    """Returns the conditions with InUse true or false (`in_use`); the deletion policy reads it."""
    reason, message = ("AllocationsNotFinal", "allocations of it are pending or running, or hold nodes") if in_use else ("NotInUse", "")
    return with_condition(conditions, IN_USE, TRUE if in_use else FALSE, reason, message, generation=generation, now=now)


def changes(
    before: tuple[Condition, ...], after: tuple[Condition, ...], former: Mapping[str, Any], latter: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the fields of a status that changed, as a merge patch; empty: nothing changed.

    `former` and `latter` are the other fields as shown and as wanted; conditions are included unless their times alone changed.
    """
    changed = {name: value for name, value in latter.items() if former.get(name) != value}
    if not same_but_for_times(before, after):
        changed["conditions"] = encode(after)
    return changed


async def write(cluster: Cluster, resource: Resource, metadata: Metadata, changed: Mapping[str, Any]) -> bool:
    """Patches the status of an object with these fields and returns True; without any, writes nothing and returns False.

    Raises Stale when the object has changed since it was read, NotFound when it is gone.
    """
    if not changed:
        return False
    patch = {"metadata": {"resourceVersion": metadata.resource_version}, "status": dict(changed)}
    await cluster.patch(resource, metadata.name, patch, metadata.namespace, subresource="status")
    return True


async def set_finalizers(cluster: Cluster, resource: Resource, metadata: Metadata, finalizers: tuple[str, ...]) -> None:
    """Replaces the finalizers of an object; raises Stale when it has changed since it was read, NotFound when it is gone."""
    patch = {"metadata": {"resourceVersion": metadata.resource_version, "finalizers": list(finalizers)}}
    await cluster.patch(resource, metadata.name, patch, metadata.namespace)
