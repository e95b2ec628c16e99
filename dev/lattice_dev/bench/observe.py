"""Watches allocations, plans and the ledger, and notes when this process first sees each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lattice.daemon.clock import SystemClock
from lattice.errors import LatticeError, Retry
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS, LEDGERS, PLANS
from lattice.ledger.format import Key, rows_of
from lattice.ledger.plans import RUN, parse_plan
from lattice.views.allocation import Allocation, Condition
from lattice.views.ledger import Ledger, Plan

FINAL = frozenset({"Completed", "Failed", "Cancelled"})
LOOK_SECONDS = 0.02


@dataclass
class Life:
    """One allocation as it was seen: times on the monotonic clock, None until they come."""

    uid: str
    seen: float
    last: Allocation
    scheduled: float | None = None
    started: float | None = None
    ended: float | None = None
    reasons: list[str] = field(default_factory=list)
    """The reasons for waiting, in the order in which they were shown."""
    phases: list[str] = field(default_factory=list)


@dataclass
class Step:
    """One commit of the ledger: the rows (uid, attempt) that it added and removed."""

    seq: int
    at: float
    claimed: tuple[Key, ...]
    released: tuple[Key, ...]


class Watching:
    """Follows one namespace's allocations, every plan and the ledger; `changed` is set at each change."""

    def __init__(self, cluster: Cluster, namespace: str, *, ledger: bool = False, plans: bool = False) -> None:
        self.clock = SystemClock()
        self.lives: dict[str, Life] = {}
        """By name of the allocation."""
        self.steps: list[Step] = []
        self.planned: dict[str, float] = {}
        """When a plan that orders this uid to run was first readable."""
        self.changed = asyncio.Event()
        self._rows: set[Key] | None = None
        self._ends: dict[str, asyncio.Event] = {}
        self._informers: list[Informer[Any]] = [
            Informer(cluster, ALLOCATIONS, type=Allocation, clock=self.clock, namespace=namespace, on_change=self._on_allocation)
        ]
        if ledger:
            self._informers.append(Informer(cluster, LEDGERS, type=Ledger, clock=self.clock, on_change=self._on_ledger))
        if plans:
            self._informers.append(Informer(cluster, PLANS, type=Plan, clock=self.clock, on_change=self._on_plan))

    async def run(self) -> None:
        """Follows the watched kinds, and notes when each step of each allocation is first seen, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    async def synced(self) -> None:
        """Waits until everything that exists was listed; `run` must be running."""
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers))

    async def until(self, done: Callable[[], bool], *, within: float, what: str) -> None:
        """Waits until `done` holds, which is asked at once and after changes; raises Retry(NotInTime) with what was last seen after
        `within` seconds.

        Several changes may come before `done` is called again: times are noted when a change comes, not then.
        """
        try:
            async with asyncio.timeout(within):
                while not done():
                    self.changed.clear()
                    await self.changed.wait()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise Retry(f"{what}: not within {within:.0f} s; {self.summary()}", reason="NotInTime") from None

    def expect(self, name: str) -> None:
        """Prepares to wait for the end of an allocation that is not created yet, as `end_of` needs it."""
        self._ends[name] = asyncio.Event()

    async def end_of(self, name: str, *, within: float) -> Life:
        """Waits for the end of an allocation that `expect` was called for, without checking the others; returns its life, and expects it no
        more.

        Raises Retry(NotInTime).
        """
        over = self._ends[name]
        try:
            async with asyncio.timeout(within):
                await over.wait()
        except TimeoutError:
            raise Retry(f"the end of {name}: not within {within:.0f} s; {self.summary()}", reason="NotInTime") from None
        del self._ends[name]
        return self.lives[name]

    def summary(self) -> str:
        """Returns how many allocations are in which phase, as a clause."""
        phases: dict[str, int] = {}
        for life in self.lives.values():
            phase = life.last.status.phase or "new"
            phases[phase] = phases.get(phase, 0) + 1
        return ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "no allocation"

    def count_reached(self, moment: str, names: Iterable[str]) -> int:
        """Returns how many of these allocations have reached `scheduled`, `started` or `ended`."""
        return sum(1 for name in names if (life := self.lives.get(name)) is not None and getattr(life, moment) is not None)

    def _on_allocation(self, change: Change[Allocation]) -> None:
        """Notes a change of an Allocation; the life of one that is gone is dropped, and one that was made anew begins a new life."""
        new = change.new
        if new is None:
            self.lives.pop(change.key.partition("/")[2], None)
            self.changed.set()
            return
        now = self.clock.monotonic()
        life = self.lives.get(new.metadata.name)
        if life is None or life.uid != new.metadata.uid:
            life = self.lives[new.metadata.name] = Life(new.metadata.uid, now, new)
        life.last = new
        self._note(life, new, now)
        self.changed.set()

    def _note(self, life: Life, allocation: Allocation, now: float) -> None:
        """Notes when a life was first seen scheduled, started and ended, and each new reason and phase."""
        conditions = {condition.type: condition for condition in allocation.status.conditions}
        if _true(conditions.get("Scheduled")):
            life.scheduled = life.scheduled or now
        elif (waiting := conditions.get("Scheduled")) and waiting.reason not in life.reasons[-1:]:
            life.reasons.append(waiting.reason)
        if _true(conditions.get("Started")):
            life.started = life.started or now
        if allocation.status.phase in FINAL:
            life.ended = life.ended or now
            if over := self._ends.get(allocation.metadata.name):
                over.set()
        if allocation.status.phase not in life.phases[-1:]:
            life.phases.append(allocation.status.phase)

    def _on_ledger(self, change: Change[Ledger]) -> None:
        """Notes which rows a commit of the ledger added and removed; the first one that is seen counts as adding none."""
        if change.new is None or change.new.status is None:
            return
        rows = {row.key for row in rows_of(change.new.status)}
        before = self._rows if self._rows is not None else rows
        self._rows = rows
        claimed, released = tuple(sorted(rows - before)), tuple(sorted(before - rows))
        self.steps.append(Step(change.new.status.seq, self.clock.monotonic(), claimed, released))
        self.changed.set()

    def _on_plan(self, change: Change[Plan]) -> None:
        """Notes when a plan first told to run an allocation."""
        if change.new is None or not change.new.spec.text:
            return
        now = self.clock.monotonic()
        for row in parse_plan(change.new.spec.text):
            if row.order == RUN:
                self.planned.setdefault(row.uid, now)
        self.changed.set()


def _true(condition: Condition | None) -> bool:
    """Tells whether a condition is there and true."""
    return condition is not None and condition.status == "True"


@asynccontextmanager
async def watching(cluster: Cluster, namespace: str, *, ledger: bool = False, plans: bool = False) -> AsyncIterator[Watching]:
    """Yields a watch that has listed everything, and ends with the block. Raises the first error of the watch."""
    seen = Watching(cluster, namespace, ledger=ledger, plans=plans)
    try:
        async with asyncio.TaskGroup() as group:
            follower = group.create_task(seen.run())
            await seen.synced()
            yield seen
            follower.cancel()
    except* LatticeError as errors:
        raise errors.exceptions[0] from None
