"""Graphs of work: whatever ends when, is deleted when, and whichever scheduler looks, the end is that of a naive reference.

The simulation stands in for the API server and the nodes; what decides is the scheduler's own (`Dependencies`, `judge_edges`). At every
write it checks that no work starts before its edges, and that no edge that was answered changes.
"""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

from lattice.accounting.charges import charges_of, settled_only
from lattice.accounting.records import Records, rows_text
from lattice.daemon.clock import ManualClock
from lattice.kube.informer import Change
from lattice.lifecycle.settle import is_final
from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Condition, Dependency, Edge
from lattice.views.meta import Metadata
from lattice.views.usage import UsageRecord, UsageRecordSpec
from lattice.workflow.edges import predecessor_of
from lattice.workflow.release import EdgesAwaited, EdgesUnmet, Released, is_released
from lattice_controllers.scheduler.dag_gates import DagGates
from lattice_controllers.scheduler.dependencies import Dependencies
from tests.build import uid

GRAPHS = 5000
CONDITIONS = ("Success", "Failure", "Any", "Started")
MADE, ENDED = "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"
Plan = dict[str, Any]


def graph(rng: random.Random) -> list[Plan]:
    """Up to eight works; each names earlier ones by name or number, and says how it would end."""
    works: list[Plan] = []
    for place in range(rng.randint(2, 8)):
        before = rng.sample(range(place), rng.randint(0, min(place, 3)))
        edges = {(one, rng.choice(CONDITIONS)) for one in before}
        works.append(
            {
                "edges": [
                    {"ref": rng.choice((f"w{one}", f"physics/w{one}", str(one + 1))), "condition": asked} for one, asked in sorted(edges)
                ],
                "before": sorted(edges),
                "mode": rng.choice(("All", "All", "Any")),
                "unmet": rng.choice(("Cancel", "Cancel", "Hold")),
                "end": rng.choice(("Completed", "Completed", "Failed", "Cancelled")),
            }
        )
    return works


def reference(works: list[Plan]) -> list[str]:
    """How each work ends, empty for one that waits for ever: said once more, without edges that are kept, moments or daemons."""
    ends: list[str] = []
    ran: list[bool] = []
    for work in works:
        found = []
        for place, asked in work["before"]:
            end = ends[place]
            holds = {"Success": end == "Completed", "Failure": end == "Failed", "Any": end != "", "Started": ran[place] or end != ""}[asked]
            found.append(True if holds else None if end == "" else False)
        if work["mode"] == "All":
            released, never = all(found), False in found
        else:
            released, never = True in found or not found, bool(found) and set(found) == {False}
        ran.append(released)
        ends.append(work["end"] if released else "Cancelled" if never and work["unmet"] == "Cancel" else "")
    return ends


class Simulation:
    """The objects in etcd, the records of what is gone, and one scheduler that may be replaced at any moment."""

    def __init__(self, works: list[Plan], rng: random.Random) -> None:
        self.works, self.rng = works, rng
        self.clock, self.objects, self.records = ManualClock(), dict[str, Allocation](), Records()
        self.ends: dict[int, str] = {}
        self.unsaid: list[Change[Allocation]] = []
        """Changes that the informer has not shown yet, in their order."""
        self.version = 0
        self.there: dict[str, set[str]] = {}
        """By uid of an object that is being deleted: the uids of those that were there when that was asked."""
        self.restart()

    def restart(self) -> None:
        """Replaces the scheduler by a new one, which lists everything."""
        self.unsaid.clear()
        self.scheduler = Dependencies(self.clock, self.objects, self.records, {}, DagGates(lambda: ""))
        listed = list(self.objects.values())
        self.rng.shuffle(listed)
        for one in listed:
            self.scheduler.on_allocation(Change(one.metadata.key, None, one))
        self.scheduler.started()

    def store(self, changed: Allocation) -> None:
        """Stores an object as it is now, after the checks of what may never happen."""
        before = self.objects.get(changed.metadata.uid)
        if before is not None:
            kept = {edge.index: edge for edge in before.status.edges}
            for edge in changed.status.edges:
                former = kept.get(edge.index, edge)
                assert former.uid in ("", edge.uid), "bound twice"
                assert former.answer in ("", edge.answer), "answered twice"
        self.objects[changed.metadata.uid] = changed
        self.unsaid.append(Change(changed.metadata.key, before, changed))

    def write(self, one: Allocation, phase: str = "", edges: tuple[Edge, ...] | None = None, **status: Any) -> None:
        conditions = one.status.conditions
        if phase in ("Completed", "Failed", "Cancelled"):
            kind = "Ready" if phase == "Completed" else "Stalled"
            conditions = (Condition(type="Finished", status="True", reason=phase), Condition(type=kind, status="True"))
            status["end_time"] = ENDED
        changed = msgspec.structs.replace(
            one.status, phase=phase or one.status.phase, conditions=conditions, edges=one.status.edges if edges is None else edges, **status
        )
        self.store(msgspec.structs.replace(one, status=changed))

    def submit(self, place: int) -> None:
        work = self.works[place]
        body = {
            "metadata": {"name": f"w{place}", "namespace": "physics", "uid": uid(place), "resourceVersion": "1", "creationTimestamp": MADE},
            "spec": {"tenant": "physics", "dependsOn": work["edges"], "dependsOnMode": work["mode"], "onUnmet": work["unmet"]},
            "status": {"phase": "Pending", "number": place + 1},
        }
        self.store(msgspec.convert(body, Allocation))

    def hear(self) -> None:
        """The informer shows the next change."""
        if self.unsaid:
            self.scheduler.on_allocation(self.unsaid.pop(0))

    def reconcile(self, place: int) -> None:
        """One look of the scheduler at pending work, or at an object that is to go."""
        one = self.objects.get(uid(place))
        if one is None:
            return
        if is_final(one.status):
            self.ends[place] = one.status.phase
            if one.metadata.deletion_timestamp and self.settled(one) and not self.scheduler.awaited(one.metadata.uid):
                self.check_heirs(place, one)
                del self.objects[one.metadata.uid]
                self.unsaid.append(Change(one.metadata.key, one, None))
            return
        if one.status.phase == "Running" or not self.seen(place):
            return
        judged = self.scheduler.judge(one)
        match judged.verdict:
            case EdgesAwaited():
                if judged.unwritten and (judged.urgent or self.rng.random() < 0.3):
                    self.write(one, edges=judged.edges)
            case Released() | EdgesUnmet() if judged.unwritten:
                self.write(one, edges=judged.edges)
            case EdgesUnmet():
                self.write(one, "Cancelled")
            case Released():
                assert is_released(one.spec, one.status.edges, self.clock.now())
                self.write(one, "Running", start_time=ENDED, attempt=1)

    def check_heirs(self, place: int, gone: Allocation) -> None:
        """Work that was there before the deletion, and still waits for its object, shows its answer."""
        for heir in self.there[gone.metadata.uid] & self.objects.keys():
            after = self.objects[heir]
            if is_final(after.status) or is_released(after.spec, after.status.edges, self.clock.now()):
                continue
            mine = [index for index, (before, _) in enumerate(self.works[int(after.metadata.name[1:])]["before"]) if before == place]
            answers = {edge.index: edge.answer for edge in after.status.edges}
            assert all(answers.get(index) for index in mine), f"{after.metadata.name} lost its answer"

    def seen(self, place: int) -> bool:
        """Whether the informer has shown it: a scheduler knows of no object before."""
        return not any(change.new is not None and change.old is None and change.key == f"physics/w{place}" for change in self.unsaid)

    def settled(self, one: Allocation) -> bool:
        """The operator's part: its charges stand in the records."""
        rows = settled_only(charges_of(one))
        if one.metadata.uid and not self.records.holds(one.metadata.uid, rows[-1].attempt):
            self.version += 1
            page = self.records.pages.get("physics-2026-11")
            text = rows_text(rows, page.text if page is not None else "")
            meta = Metadata(name="physics-2026-11", resource_version=str(self.version))
            self.records.put(UsageRecord(metadata=meta, spec=UsageRecordSpec(tenant="physics", month="2026-11", rows=text)))
        return True

    def step(self) -> None:
        """One thing that may happen."""
        place = self.rng.randrange(len(self.works))
        one = self.objects.get(uid(place))
        match self.rng.randrange(12):
            case 0 if one is not None and is_final(one.status) and not one.metadata.deletion_timestamp:
                self.there[one.metadata.uid] = set(self.objects)
                self.store(msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, deletion_timestamp=ENDED)))
            case 1 if self.rng.random() < 0.2:
                self.restart()
            case 2 if one is not None and one.status.phase == "Running":
                self.write(one, self.works[place]["end"])
            case 3 | 4 | 5 | 6:
                self.hear()
            case _:
                self.reconcile(place)


def play(works: list[Plan], rng: random.Random) -> list[str]:
    """How each work of a graph ends, after whatever happens in between; the rest is then carried on until nothing changes."""
    world = Simulation(works, rng)
    for place in range(len(works)):
        world.submit(place)
        for _ in range(rng.randint(0, 25)):
            world.step()
    for _ in range(6 * len(works)):
        while world.unsaid:
            world.hear()
        for place in range(len(works)):
            one = world.objects.get(uid(place))
            if one is not None and one.status.phase == "Running":
                world.write(one, works[place]["end"])
            while world.unsaid:
                world.hear()
            world.reconcile(place)
    return [world.ends.get(place, "") for place in range(len(works))]


@pytest.mark.parametrize("part", range(10))
def test_graphs_end_as_the_naive_reference_whatever_is_deleted_or_killed_meanwhile(part: int) -> None:
    for seed in range(part * GRAPHS // 10, (part + 1) * GRAPHS // 10):
        works = graph(random.Random(seed))
        assert play(works, random.Random(-seed - 1)) == reference(works), (seed, works)


def test_each_predecessor_is_read_once_however_many_wait_for_a_thousand_of_them() -> None:
    count = 20

    def work(place: int, *before: int) -> Allocation:
        meta = Metadata(name=f"w{place}", namespace="physics", uid=uid(place), creation_timestamp=MADE)
        asked = tuple(Dependency(ref=f"w{one}", condition="Any") for one in before)
        return Allocation(metadata=meta, spec=AllocationSpec(tenant="physics", depends_on=asked), status=AllocationStatus())

    objects = {uid(place): work(place) for place in range(count)}
    objects |= {uid(place): work(place, *range(count)) for place in range(count, 2 * count)}
    scheduler = Dependencies(ManualClock(), objects, Records(), {}, DagGates(lambda: ""))
    for one in list(objects.values()):
        scheduler.on_allocation(Change(one.metadata.key, None, one))
    scheduler.started()
    read = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal read
        read += event == "call" and frame.f_code is predecessor_of.__code__

    sys.setprofile(note)
    try:
        for place in range(count, 2 * count):
            scheduler.judge(objects[uid(place)])
    finally:
        sys.setprofile(None)
    assert read == count
