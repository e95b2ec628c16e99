"""Every field that a daemon caches exists in the kind, under the same name and with the same default."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from lattice import views
from lattice.models import allocation, config, dag, elastic_quota, history, ledger, node, reservation, tenant, usage, vcluster
from lattice.views import cluster, koordinator, meta, work
from lattice.views.allocation import AllocationStatus
from lattice.views.history import NodeHistory
from lattice.views.usage import UsageRecord

PAIRS: dict[str, tuple[type[msgspec.Struct], type[BaseModel]]] = {
    "Allocation": (views.Allocation, allocation.Allocation),
    "Work": (work.Work, allocation.Allocation),
    "DAG": (views.Dag, dag.DAG),
    "DAG as the scheduler reads it": (views.DagGate, dag.DAG),
    "LatticeNode": (views.Node, node.LatticeNode),
    "Tenant": (views.Tenant, tenant.Tenant),
    "VCluster": (views.VCluster, vcluster.VCluster),
    "Reservation": (views.Reservation, reservation.Reservation),
    "UsageRecord": (UsageRecord, usage.UsageRecord),
    "ElasticQuota": (views.ElasticQuota, elastic_quota.ElasticQuota),
    "LatticeConfig": (views.Config, config.LatticeConfig),
    "Ledger": (views.Ledger, ledger.Ledger),
    "NodeIndex": (views.NodeIndex, ledger.NodeIndex),
    "NodeGroupPlan": (views.Plan, ledger.NodeGroupPlan),
    "NodeHistory": (NodeHistory, history.NodeHistory),
}
METADATA = {
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "finalizers", "labels",
    "annotations", "ownerReferences",
}  # fmt: skip
LEASE = {"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}
OWNER = {"kind", "name", "uid"}


def classes(annotation: Any) -> Iterator[type]:
    """Every class that a type annotation names."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_args(annotation):
        for part in typing.get_args(annotation):
            yield from classes(part)


T = TypeVar("T")


def inner(annotation: Any, parent: type[T]) -> type[T] | None:
    return next((found for found in classes(annotation) if issubclass(found, parent)), None)


def names(view: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(view)}


def compare(view: type[msgspec.Struct], model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each field of the view with its default and the model's field, or None where the model has none."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for field in msgspec.structs.fields(view):
        if not path and field.encode_name == "metadata":
            continue
        where = f"{path}.{field.encode_name}"
        found = fields.get(field.encode_name)
        yield where, field, found
        below = inner(field.type, msgspec.Struct)
        if found is not None and below is not None:
            model_below = inner(found.annotation, BaseModel)
            assert model_below is not None, where
            yield from compare(below, model_below, where)


every_pair = pytest.mark.parametrize(("view", "model"), PAIRS.values(), ids=PAIRS.keys())


@every_pair
def test_every_cached_field_exists_in_the_model(view: type[msgspec.Struct], model: type[BaseModel]) -> None:
    assert [where for where, _, found in compare(view, model) if found is None] == []


@every_pair
def test_the_cached_default_is_the_documented_one(view: type[msgspec.Struct], model: type[BaseModel]) -> None:
    for where, field, found in compare(view, model):
        documented = None if found is None else found.default
        if documented in (None, PydanticUndefined) or field.required:
            continue
        assert field.default == documented, where


@every_pair
def test_what_the_model_requires_may_be_absent_only_where_the_view_says_so(view: type[msgspec.Struct], model: type[BaseModel]) -> None:
    for where, field, found in compare(view, model):
        if field.required and found is not None:
            assert found.is_required(), f"{where} is required by the view, but the server may leave it out"


def test_the_cached_status_of_an_allocation_holds_every_field_of_the_kind() -> None:
    """Whoever replaces a status writes what the view holds: a field that it lacked would be lost."""

    def lacking(view: type[msgspec.Struct], model: type[BaseModel], path: str) -> Iterator[str]:
        fields = {field.encode_name: field for field in msgspec.structs.fields(view)}
        for name, info in model.model_fields.items():
            held = fields.get(info.alias or name)
            if held is None:
                yield f"{path}.{info.alias or name}"
                continue
            below, model_below = inner(held.type, msgspec.Struct), inner(info.annotation, BaseModel)
            assert (below is None) == (model_below is None), f"{path}.{name}"
            if below is not None and model_below is not None:
                yield from lacking(below, model_below, f"{path}.{name}")

    assert list(lacking(AllocationStatus, allocation.AllocationStatus, "status")) == []


def test_metadata_and_lease_have_the_names_of_kubernetes() -> None:
    assert names(meta.Metadata) <= METADATA
    assert names(meta.Owner) <= OWNER
    assert names(cluster.LeaseSpec) <= LEASE


def test_every_view_is_compared() -> None:
    def below(view: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
        children = (inner(field.type, msgspec.Struct) for field in msgspec.structs.fields(view))
        return {view}.union(*(below(child) for child in children if child is not None))

    compared = set().union(*(below(view) for view, _ in PAIRS.values()))
    every = {view for view in descendants(meta.View) if view.__module__.startswith("lattice.views")}
    koordinators = {view for view in every if view.__module__ == koordinator.__name__}
    assert every - compared == {cluster.Lease, cluster.LeaseSpec, meta.Written} | koordinators


def descendants(view: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    children = set(view.__subclasses__())
    return children.union(*(descendants(child) for child in children)) if children else set()


def test_a_view_reads_an_object_and_skips_what_it_does_not_know() -> None:
    text = b'{"apiVersion":"x","metadata":{"name":"a","namespace":"n","managedFields":[]},"spec":{"hold":true,"unknown":1}}'
    read = msgspec.json.decode(text, type=views.Allocation)
    assert read.metadata.key == "n/a"
    assert read.spec.hold
    assert read.spec.lifecycle.preemption_class == 5
