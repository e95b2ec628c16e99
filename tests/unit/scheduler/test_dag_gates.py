"""When all members of a DAG are known, whichever of the two watches is ahead, and after etcd was restored."""

from __future__ import annotations

from msgspec.structs import replace

from lattice.accounting.records import Records
from lattice.daemon.clock import ManualClock
from lattice.kube.informer import Change
from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Dependency
from lattice.views.dag import DagGate, GateStatus
from lattice.views.meta import Metadata, Owner
from lattice.workflow.release import EdgesAwaited
from lattice_controllers.scheduler.dag_gates import DagGates
from lattice_controllers.scheduler.dependencies import Dependencies
from tests.build import uid

DAG = uid(99)


def gate(version: int, *, made: int, complete: bool = True) -> DagGate:
    metadata = Metadata(name="d", namespace="lab", uid=DAG, resource_version=str(version))
    return DagGate(metadata=metadata, status=GateStatus(made=made, complete=complete))


def member(place: int) -> Allocation:
    owner = Owner(kind="DAG", name="d", uid=DAG)
    metadata = Metadata(
        name=f"d.m{place}", namespace="lab", uid=uid(place), creation_timestamp="2026-11-28T00:00:00Z", owner_references=(owner,)
    )
    return Allocation(metadata=metadata, spec=AllocationSpec(tenant="lab"), status=AllocationStatus())


def test_members_are_known_once_as_many_are_there_as_were_made() -> None:
    gates = DagGates(lambda: "5")
    assert gates.on_allocation(Change("lab/d.m0", None, member(0))) == set()
    gates.on_dag(Change("lab/d", None, gate(10, made=2)))
    assert (gates.is_whole(member(0)), gates.is_catching_up(member(0)), gates.is_growing(member(0))) == (False, True, True)
    assert gates.on_allocation(Change("lab/d.m1", None, member(1))) == {uid(0), uid(1)}
    assert (gates.is_whole(member(0)), gates.is_catching_up(member(0)), gates.is_growing(member(0))) == (True, False, False)
    gates.on_allocation(Change("lab/d.m1", member(1), None))
    assert gates.is_whole(member(0)), "one that goes later was known"


def test_members_that_are_gone_already_are_not_waited_for_once_all_changes_to_then_are_reported() -> None:
    reported = "9"
    gates = DagGates(lambda: reported)
    gates.on_dag(Change("lab/d", None, gate(10, made=2)))
    gates.on_allocation(Change("lab/d.m0", None, member(0)))
    assert not gates.is_whole(member(0))
    reported = "10"
    assert gates.is_whole(member(0))


def test_after_a_restore_the_older_version_counts_and_a_dag_that_is_not_whole_any_more_is_waited_for() -> None:
    reported = ""
    gates = DagGates(lambda: reported)
    whole = gate(10, made=2)
    gates.on_dag(Change("lab/d", None, whole))
    gates.on_allocation(Change("lab/d.m0", None, member(0)))
    restored = gate(7, made=2)
    gates.on_dag(Change("lab/d", whole, restored))
    reported = "8"
    assert gates.is_whole(member(0))
    gates.on_dag(Change("lab/d", restored, gate(6, made=1, complete=False)))
    assert (gates.is_whole(member(0)), gates.is_growing(member(0))) == (False, True)


def test_a_sentence_gives_the_numbers_of_predecessors_outside_of_the_own_dag_alone() -> None:
    inside, outside = replace(member(0), status=AllocationStatus(number=7)), member(8)
    outside = replace(
        outside,
        metadata=Metadata(name="prep", namespace="lab", uid=uid(8), creation_timestamp="2026-11-27T00:00:00Z"),
        status=AllocationStatus(number=8),
    )
    asked = (Dependency(ref="d.m0", condition="Success"), Dependency(ref="prep", condition="Success"))
    follower = replace(member(1), spec=AllocationSpec(tenant="lab", depends_on=asked))
    objects = {one.metadata.uid: one for one in (inside, outside, follower)}
    gates = DagGates(lambda: "10")
    dependencies = Dependencies(ManualClock(), objects, Records(), {}, gates)
    for one in objects.values():
        gates.on_allocation(Change(one.metadata.key, None, one))
        dependencies.on_allocation(Change(one.metadata.key, None, one))
    gates.on_dag(Change("lab/d", None, gate(10, made=2)))
    dependencies.started()
    verdict = dependencies.judge(follower).verdict
    assert isinstance(verdict, EdgesAwaited)
    assert verdict.message == "waits for Success of d.m0, Success of prep (8) (2 of 2 open)"
