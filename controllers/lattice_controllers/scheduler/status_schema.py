"""Compares the fields that the API server stores in the status of an Allocation with those that this scheduler knows.

Fields that the CRD does not name are pruned by the API server, whoever writes them. So a scheduler that is older than a writer of the
status loses nothing as long as it knows every field of the CRD that is installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lattice.daemon.logs import event
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS, CRDS
from lattice.views.allocation import AllocationStatus
from lattice.views.meta import Metadata, View

log = logging.getLogger(__name__)

MOST_SHOWN = 5


class _Schema(View, frozen=True):
    open_a_p_i_v3_schema: dict[str, Any] = msgspec.field(default_factory=dict, name="openAPIV3Schema")


class _Version(View, frozen=True):
    served: bool = False
    schema: _Schema = _Schema()


class _Spec(View, frozen=True):
    versions: tuple[_Version, ...] = ()


class Definition(View, frozen=True):
    """The part of a CustomResourceDefinition that says which fields there are."""

    metadata: Metadata
    spec: _Spec = _Spec()


class StatusSchema:
    """Follows the CRD of Allocations; `is_known` is asked before each write of a status."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._lacks_nothing = False
        self.informer: Informer[Definition] = Informer(
            cluster, CRDS, type=Definition, clock=clock, fields=f"metadata.name={ALLOCATIONS.name}", on_change=self.on_definition
        )

    @property
    def is_known(self) -> bool:
        """Tells whether the view holds every field of the installed CRD; False too while the CRD has not been read or cannot be watched."""
        return self._lacks_nothing and not self.informer.lost

    def on_definition(self, change: Change[Definition]) -> None:
        """Compares the fields of a changed CRD with those of the view, and logs fields that the view lacks; of a deleted CRD no field is
        known to be held.
        """
        if change.key != ALLOCATIONS.name:
            return
        lacking = sorted(unknown_fields(change.new)) if change.new is not None else []
        self._lacks_nothing = change.new is not None and not lacking
        if lacking:
            message = "the CRD is newer than this scheduler: it changes statuses by patches, which keep what it does not know"
            event(log, "StatusFieldsUnknown", logging.WARNING, fields=",".join(lacking[:MOST_SHOWN]), message=message)


def unknown_fields(definition: Definition) -> set[str]:
    """Returns the paths of fields at or below `status` that a served version of the CRD has, and the view has not."""
    found: set[str] = set()
    for version in definition.spec.versions:
        schema = version.schema.open_a_p_i_v3_schema.get("properties", {}).get("status")
        if version.served and schema is not None:
            found.update(_lacking(schema, AllocationStatus, "status"))
    return found


def _lacking(schema: Mapping[str, Any], view: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Yields the paths of the fields of a schema that the view has not; structs and lists of structs are compared inside too."""
    held = {field.encode_name: field.type for field in msgspec.structs.fields(view)}
    for name, below in schema.get("properties", {}).items():
        if name not in held:
            yield f"{path}.{name}"
            continue
        inner = next(_structs(held[name]), None)
        if inner is not None:
            yield from _lacking(below.get("items", below), inner, f"{path}.{name}")


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    """Yields the struct types in a type annotation, such as Attempt in `tuple[Attempt, ...]` and Exit in `Exit | None`."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _structs(part)
