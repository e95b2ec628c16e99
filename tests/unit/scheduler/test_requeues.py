"""A requeue races an end: no exit code is lost or invented, no attempt requeued twice, whoever writes first and whoever is killed when.

The object stands in a fake API server, which compares versions; owner, reporter and scheduler each act on what they have read, which may be
old. What decides is their own: `next_step` with its projections, and the reporter's `decide`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger import projection
from lattice.ledger.commit import Book
from lattice.ledger.format import WITHDRAWN
from lattice.ledger.proposals import Claim, Limits, Pool, Stop
from lattice.ledger.starting import AttemptNodeState
from lattice.ledger.steps import End, Project, Propose, Queue, Retry, StepFacts, next_step
from lattice.lifecycle.settle import is_final
from lattice.units import format_time
from lattice.views import Allocation
from lattice.views.work import Work
from lattice_agent.attempts import Key
from lattice_agent.members import TaskEnd
from lattice_agent.reporter.head import Begun, FirstFailure, Over
from lattice_agent.reporter.status import Write, decide
from tests.build import allocation, condition, row

RACES = 600
NAMES = {0: "a"}
BODY: dict[str, Any] = {
    "apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation",
    "metadata": {"name": "job", "namespace": "physics", "finalizers": ["lattice.dev/release"]},
    "spec": {"tenant": "physics", "user": "alice", "vcluster": "hpc", "lifecycle": {"requeue": {"policy": "Never"}}},
}  # fmt: skip


class Race:
    """One allocation, its ledger and its node, and what each of the three has read of the object."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.clock = rng, ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.book = Book.empty("term", "commit")
        self.book.apply(Pool(1))
        self.book.apply(Limits("physics", None, None))
        self.codes: dict[int, int] = {}
        """How each attempt really ended on its node."""
        self.ordered: set[int] = set()
        """Which of them ended after they were told to."""
        self.asked = 0
        self.silent = rng.random() < 0.3
        """Whether the reporter never writes."""

    async def begin(self) -> None:
        self.seen = await self.cluster.create(ALLOCATIONS, BODY, "physics", type=Allocation)
        self.work = await self.read(Work)

    async def read(self, kind: type[Any]) -> Any:
        return await self.cluster.get(ALLOCATIONS, "job", "physics", type=kind)

    async def owner(self) -> None:
        """Asks for a requeue of the attempt that stands there, as the policy of the API server allows."""
        stands: Allocation = await self.read(Allocation)
        if is_final(stands.status) or not stands.status.nodes or self.asked >= 3:
            return
        self.asked = max(self.asked, stands.status.attempt)
        await self.cluster.patch(ALLOCATIONS, "job", {"spec": {"requeueAttempt": stands.status.attempt}}, "physics")

    def node(self) -> None:
        """An attempt ends by itself, or as it is told to."""
        for one in self.book.rows.values():
            if one.attempt not in self.codes and self.rng.random() < (0.3 if one.held else 0.8):
                self.codes[one.attempt] = self.rng.choice((0, 3)) if one.held else self.rng.choice((0, 143))
                self.ordered |= set() if one.held else {one.attempt}

    async def reporter(self) -> None:
        """Writes what it has to say of the newest attempt on the version that it read; what was refused is read again."""
        row = max(self.book.rows.values(), key=lambda one: one.attempt, default=None)
        if row is None or self.silent:
            return
        code, now = self.codes.get(row.attempt), self.clock.now()
        verdict: Begun | Over = Begun(now, 1)
        if code is not None:
            failure = FirstFailure("a", TaskEnd(0, code, max(0, code - 128))) if code else None
            reason = "Stopped" if row.attempt in self.ordered else "TaskFailed" if code else "Completed"
            verdict = Over(reason, "", True, now, now, failure)
        outcome = decide(self.work, Key(self.seen.metadata.uid, row.attempt), "a", verdict, now=now)
        if isinstance(outcome, Write):
            patch = {"metadata": {"resourceVersion": self.work.metadata.resource_version}, "status": outcome.status}
            with suppress(Stale):  # it decides again by what it reads below
                await self.cluster.patch(ALLOCATIONS, "job", patch, "physics", subresource="status")
        self.work = await self.read(Work)

    def standing(self, attempt: int) -> AttemptNodeState:
        code = self.codes.get(attempt)
        if code is None:
            return AttemptNodeState("a", state="r")
        return AttemptNodeState("a", state="e", detail=str(code), vouched_seconds=60.0 if self.silent else 0.0)

    async def scheduler(self) -> None:
        """One step on the version that it knows, which may be old; it may be killed before its write, or learn nothing from it."""
        rows = tuple(self.book.rows_of(self.seen.metadata.uid))
        known = {(row.attempt, 0): self.standing(row.attempt) for row in rows}
        step = next_step(StepFacts(self.seen, rows, self.clock.now(), known, NAMES))
        if self.rng.random() < 0.25:
            self.seen = await self.read(Allocation)  # killed: its successor lists anew
            return
        stamp: dict[str, Any] = {"number": 1, "seq": self.book.head.seq, "now": self.clock.now()}
        patch: dict[str, Any] | None = None
        match step:
            case Propose(proposal):
                self.book.apply(proposal)
            case Queue():
                attempt = max(1, self.seen.status.attempt)
                self.book.apply(Claim(self.seen.metadata.uid, attempt, 1, "alice", "physics", "hpc", "B", 0, (0,)))
            case Project(row):
                patch = projection.placed(self.seen, row, NAMES, **stamp)
            case End():
                patch = projection.ended(self.seen, step, **stamp)
            case Retry():
                patch = projection.retried(self.seen, step, **stamp)
            case _:
                pass  # it shows something, or rests
        if patch is not None:
            with suppress(Stale):  # it decides again by what it is told
                await self.cluster.patch(ALLOCATIONS, "job", patch, "physics", subresource="status")
        if patch is not None or self.rng.random() < 0.5:
            self.seen = await self.read(Allocation)

    async def run(self) -> Allocation:
        await self.begin()
        for _ in range(400):
            for act in self.rng.sample((self.reporter, self.scheduler, self.scheduler, self.scheduler), 4):
                await act()
            self.node()
            if self.rng.random() < 0.25:
                await self.owner()
            self.clock.advance(1)
            stands: Allocation = await self.read(Allocation)
            if is_final(stands.status) and not self.book.rows:
                return stands
        raise AssertionError("it never ended")


@pytest.mark.parametrize("part", range(4))
async def test_no_exit_is_lost_or_invented_and_no_attempt_requeued_twice(part: int) -> None:
    requeues = 0
    for seed in range(part * RACES // 4, (part + 1) * RACES // 4):
        race = Race(random.Random(seed))
        status = (await race.run()).status
        told = {entry.attempt: entry.exit.code if entry.exit is not None else None for entry in status.attempts}
        told[status.attempt] = status.exit.code if status.exit is not None else None
        assert told == race.codes, (seed, told, race.codes)
        assert [entry.reason for entry in status.attempts] == ["Requeued"] * race.asked, seed
        assert (status.attempt, status.requeues) == (race.asked + 1, 0), seed
        requeues += race.asked
    assert requeues > RACES // 8


def test_a_requeue_is_stopped_as_any_other_order_is() -> None:
    """The letter in the ledger is one that every reader knows: the wish itself stands in the spec."""
    running = allocation(
        1, condition("Scheduled"), condition("Started"), spec={"requeueAttempt": 1}, status_attempt=1, status_nodes="a", status_reporter="a",
        status_scheduled_time=format_time(0.0),
    )  # fmt: skip
    assert next_step(StepFacts(running, (row(),), 1.8e9, {}, NAMES)) == Propose(Stop((running.metadata.uid, 1), WITHDRAWN))
    followed = allocation(1, spec={"requeueAttempt": 1}, status_attempt=2)
    assert next_step(StepFacts(followed, (), 1.8e9, {}, NAMES)) == Queue()
    assert isinstance(next_step(StepFacts(followed, (row(attempt=2),), 1.8e9, {}, NAMES)), Project)
