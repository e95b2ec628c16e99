"""A mutex has one holder, whatever ends, is requeued, changed or deleted when, and whichever scheduler looks; in order of submission.

As in `test_dependencies`, a simulation stands in for the API server and the nodes; what decides is the scheduler's own `Dependencies` and
the committer's `Book`.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from lattice.accounting.records import Records
from lattice.daemon.clock import ManualClock
from lattice.kube.informer import Change
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Accepted, Claim, Limits, Pool, Release, Stop
from lattice.ledger.verify import verify
from lattice.lifecycle.settle import is_final
from lattice.views.allocation import Allocation, Condition, Edge
from lattice.workflow.mutexes import is_mutex_name, mutex_of_job, mutexes_of
from lattice.workflow.release import Released
from lattice_controllers.scheduler.dag_gates import DagGates
from lattice_controllers.scheduler.dependencies import Dependencies
from tests.build import uid

RUNS = 80
NODES = 8


class Simulation:
    """Up to ten works that share three mutexes, one ledger, and one scheduler that may be replaced at any moment."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.clock = rng, ManualClock()
        self.book = Book.empty("term", "commit")
        self.book.apply(Limits("physics", None, None))
        self.book.apply(Pool(NODES))
        self.objects: dict[str, Allocation] = {}
        self.unsaid: list[Change[Allocation]] = []
        self.started: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.unsaid.clear()
        self.scheduler = Dependencies(self.clock, self.objects, Records(), self.book.mutexes, DagGates(lambda: ""))
        for one in self.rng.sample(list(self.objects.values()), len(self.objects)):
            self.scheduler.on_allocation(Change(one.metadata.key, None, one))
        self.scheduler.started()

    def store(self, changed: Allocation) -> None:
        before = self.objects.get(changed.metadata.uid)
        self.objects[changed.metadata.uid] = changed
        self.unsaid.append(Change(changed.metadata.key, before, changed))

    def hear(self) -> None:
        while self.unsaid and self.rng.random() < 0.7:
            self.scheduler.on_allocation(self.unsaid.pop(0))

    def submit(self, place: int) -> None:
        names = self.rng.sample(("gpu", "disk", "net"), self.rng.randint(0, 2))
        body: dict[str, Any] = {
            "metadata": {
                "name": f"w{place:02d}", "namespace": self.rng.choice(("physics", "physics", "lab")), "uid": uid(place),
                "resourceVersion": "1", "creationTimestamp": f"2026-11-01T00:00:{place // 3:02d}Z",
            },
            "spec": {
                "tenant": "physics", "user": self.rng.choice(("alice", "alice", "bob")),
                "dependsOn": [{"ref": name, "condition": "Mutex"} for name in names],
            },
            "status": {"phase": "Pending", "number": place + 1, "attempt": 1},
        }  # fmt: skip
        self.store(msgspec.convert(body, Allocation))
        while self.unsaid:
            self.scheduler.on_allocation(self.unsaid.pop(0))

    def older(self, one: Allocation) -> list[str]:
        """Work that has not ended, was submitted before, and names a mutex of this one: said once more, without lines."""
        mine = {(one.spec.user, one.metadata.namespace, edge.ref) for edge in one.spec.depends_on}
        return [
            other.metadata.name for other in self.objects.values()
            if not is_final(other.status) and (other.status.number or 0) < (one.status.number or 0)
            and mine & {(other.spec.user, other.metadata.namespace, edge.ref) for edge in other.spec.depends_on}
        ]  # fmt: skip

    def reconcile(self, one: Allocation) -> None:
        rows = list(self.book.rows_of(one.metadata.uid))
        if is_final(one.status):
            for row in rows:
                if self.rng.random() < 0.5:
                    self.book.apply(Release(row.key))
            return
        old = [row for row in rows if row.attempt < one.status.attempt]
        if old and self.rng.random() < 0.5:
            self.book.apply(Release(old[0].key))
        if any(row.attempt == one.status.attempt for row in rows):
            self.run(one)
            return
        judged = self.scheduler.judge(one)
        if not isinstance(judged.verdict, Released):
            return
        if judged.unwritten:
            self.store(self.changed(one, edges=judged.edges))
            return
        free = next(node for node in range(NODES) if node not in self.book.holders)
        claim = Claim(
            one.metadata.uid, one.status.attempt, 1, one.spec.user, "physics", "hpc", "B", free, (free,), mutex="+".join(mutexes_of(one))
        )
        verdict, _ = self.book.apply(claim)
        assert isinstance(verdict, Accepted), verdict
        assert self.older(one) == [], f"{one.metadata.name} starts before {self.older(one)}"
        self.started.append(one.metadata.name)

    def run(self, one: Allocation) -> None:
        """Running work ends, is requeued, or loses what it depends on."""
        chance = self.rng.random()
        key = (one.metadata.uid, one.status.attempt)
        if chance < 0.25:
            self.book.apply(Stop(key, "w"))
            over = (Condition(type="Finished", status="True", reason="Completed"), Condition(type="Ready", status="True"))
            self.store(self.changed(one, phase="Completed", conditions=over))
        elif chance < 0.3 and one.status.attempt < 4:
            self.book.apply(Stop(key, "l"))
            self.store(self.changed(one, attempt=one.status.attempt + 1))
        elif chance < 0.32:
            self.store(msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, depends_on=())))

    def changed(self, one: Allocation, **status: Any) -> Allocation:
        return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, **status))

    def play(self) -> None:
        works = self.rng.randint(2, NODES)
        submitted = 0
        for _ in range(600):
            if submitted < works and self.rng.random() < 0.2:
                self.submit(submitted)
                submitted += 1
            self.hear()
            if self.objects:
                self.reconcile(self.rng.choice(list(self.objects.values())))
            if self.rng.random() < 0.03:
                self.restart()
            if self.book.changes:
                self.book.changes.clear()
                self.book.validate()
                assert verify(self.book.render(), {index: f"n{index}" for index in range(NODES)}) == []
        assert all(is_final(one.status) for one in self.objects.values()), "somebody waits for ever"


@pytest.mark.parametrize("part", range(4))
def test_a_mutex_never_has_two_holders_and_goes_round_in_order_of_submission(part: int) -> None:
    for seed in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        Simulation(random.Random(seed)).play()


def test_the_end_of_the_first_wakes_the_next_alone_and_edges_show_that_it_had_the_mutex() -> None:
    simulation = Simulation(random.Random(1))
    for place in range(3):
        body = {
            "metadata": {"name": f"w{place}", "namespace": "lab", "uid": uid(place), "creationTimestamp": "2026-11-01T00:00:00Z"},
            "spec": {"tenant": "physics", "user": "alice", "dependsOn": [{"ref": "gpu", "condition": "Mutex"}]},
            "status": {"number": 7 - place},
        }
        simulation.store(msgspec.convert(body, Allocation))
    simulation.restart()
    first, last = simulation.objects[uid(2)], simulation.objects[uid(0)]
    assert simulation.scheduler.judge(first).edges == (Edge(index=0, answer="M"),)
    judged = simulation.scheduler.judge(last)
    assert judged.edges == (Edge(index=0),)
    assert "waits for mutex gpu" in getattr(judged.verdict, "message", "")
    over = (Condition(type="Finished", status="True"), Condition(type="Ready", status="True"))
    woken = simulation.scheduler.on_allocation(Change("lab/w2", first, simulation.changed(first, conditions=over)))
    assert woken == {uid(1)}
    assert simulation.scheduler.next_of(mutexes_of(first)) == {uid(1)}


@pytest.mark.parametrize(
    ("name", "starts"), [("train", "train"), ("My Job", "my-job-"), ("2024", "2024-"), ("ü", "job-"), ("x" * 200, "x" * 40)]
)
def test_every_job_name_has_a_mutex_of_its_own(name: str, starts: str) -> None:
    found = mutex_of_job(name)
    assert is_mutex_name(found)
    assert found.startswith(starts)
    assert mutex_of_job(name) == found
    assert mutex_of_job(name + " ") != found
