"""Counts the allocations of each tenant and vcluster that are not final, and knows which final ones retention may delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from lattice.errors import Rejected
from lattice.kube.informer import Change
from lattice.lifecycle.conditions import condition
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import FINISHED
from lattice.units import parse_time
from lattice.views import Allocation, Metadata

TRACKED_BY = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "app.kubernetes.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
)
"""Labels and annotations by which GitOps tools mark their objects; such a tool would make a deleted object, and so run it, again."""


def is_tracked(metadata: Metadata) -> bool:
    """Tells whether a GitOps tool tracks the object; retention leaves such objects alone."""
    return any(key in marks for marks in (metadata.labels, metadata.annotations) for key in TRACKED_BY)


def ended_at(allocation: Allocation) -> float | None:
    """Returns when a final allocation ended, seconds since the epoch: its end time, else when Finished was written; None where its status
    names no readable time.
    """
    finished = condition(allocation.status.conditions, FINISHED)
    for text in (allocation.status.end_time, finished.last_transition_time if finished else None):
        if text:
            try:
                return parse_time(text)
            except Rejected:
                continue
    return None


class UseObserver(Protocol):
    """Is told when a tenant or vcluster comes into use or goes out of it; `Operator` is the implementation."""

    def use_changed(self, kind: str, name: str) -> None:
        """Receives a tenant or vcluster (`kind`) whose first allocation that is not final has appeared, or whose last one has ended."""
        ...


class Usage:
    """Counts allocations that are not final, by tenant and vcluster; tells its `observers` when a count leaves or reaches 0."""

    def __init__(self) -> None:
        self.observers: list[UseObserver] = []
        self.ended: dict[str, float] = {}
        """When each final allocation ended, by key, seconds since the epoch; without tracked ones and those being deleted."""
        self._open: Counter[tuple[str, str]] = Counter()

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Counts a changed allocation, or counts it no more where it has ended or is gone, and tells observers where a count leaves or
        reaches 0; keeps `ended` current.
        """
        before, after = _users(change.old), _users(change.new)
        for user in before - after:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
                self._tell(*user)
        for user in after - before:
            self._open[user] += 1
            if self._open[user] == 1:
                self._tell(*user)
        ended = _removable(change.new)
        if ended is None:
            self.ended.pop(change.key, None)
        else:
            self.ended[change.key] = ended

    def _tell(self, kind: str, name: str) -> None:
        """Tells every observer that a tenant or vcluster (`kind`) came into use or went out of it."""
        for observer in self.observers:
            observer.use_changed(kind, name)

    def open_of_tenant(self, name: str) -> int:
        """Returns how many allocations of a tenant, by name, are not final."""
        return self._open[("tenant", name)]

    def open_of_vcluster(self, name: str) -> int:
        """Returns how many allocations of a vcluster, by name, are not final."""
        return self._open[("vcluster", name)]

    def validate(self, allocations: Mapping[str, Allocation]) -> None:
        """Raises AssertionError where the counts are not those of these allocations."""
        counted = Counter(user for allocation in allocations.values() for user in _users(allocation))
        assert counted == self._open, "the counts have drifted"  # noqa: S101 - an invariant


def _users(allocation: Allocation | None) -> frozenset[tuple[str, str]]:
    """Returns the tenant and the vcluster of an allocation that is not final, as (kind, name); empty for a final one, and for None."""
    if allocation is None or is_final(allocation.status):
        return frozenset()
    return frozenset({("tenant", allocation.spec.tenant), ("vcluster", allocation.spec.vcluster)})


def _removable(allocation: Allocation | None) -> float | None:
    """Returns when a final allocation ended, if retention may delete it; None where it may not (not final, being deleted, tracked by a
    GitOps tool), or its end is unknown.
    """
    if allocation is None or allocation.metadata.deletion_timestamp or is_tracked(allocation.metadata):
        return None
    return ended_at(allocation) if is_final(allocation.status) else None
