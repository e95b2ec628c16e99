"""Each allocation's level, reconciled: facts gathered, one step decided, carried out, looked at again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger import projection
from lattice.ledger.format import Row
from lattice.ledger.proposals import Proposal, Refused, Verdict
from lattice.ledger.starting import START_SECONDS
from lattice.ledger.steps import (
    FINALIZER,
    QUOTA_RECLAIMED,
    AddFinalizer,
    End,
    Facts,
    Observe,
    Project,
    Propose,
    Queue,
    RemoveFinalizer,
    Rest,
    Retry,
    ShowEnding,
    Stage,
    Step,
    fenced_wait,
    next_step,
)
from lattice.ledger.stored import Stored
from lattice.scheduling.conversion.candidates import candidate_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.priority.scoring import shown
from lattice.units import format_ranges, parse_duration, parse_time
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, VCluster
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.expectations import Expectations
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.write_budget import WriteBudget

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 12
REFUSED_SECONDS = 1.0
WORKERS, LATE_WORKERS = 48, 4


class Judging(Protocol):
    """What knows the limits of now."""

    def enter(self, allocation: Allocation) -> None:
        """It waits for nodes."""
        ...

    def leave(self, uid: str) -> None:
        """It waits no more."""
        ...

    def blocked(self, allocation: Allocation) -> tuple[str, str] | None:
        """A reason and a sentence that keep it from nodes."""
        ...

    def renewed(self, allocation: Allocation, stands: int | None) -> int | None:
        """The walltime of work on nodes by its newest generation; None: what stands stays."""
        ...


class Allocations:
    """The reconciler of allocations, by uid."""

    def __init__(
        self, cluster: Cluster, clock: Clock, stored: Stored, nodes: Nodes, metrics: SchedulerMetrics, *,
        propose: Callable[[Proposal], Any], numbers: AllocationNumbers, vcluster: Callable[[str], VCluster | None],
        config: Callable[[], Config | None], stopped: Callable[[], bool], settled: Callable[[Allocation], bool] = lambda _allocation: True,
        place: Callable[[Allocation], tuple[str, int | None]] = lambda _allocation: ("", None), admission: Judging | None = None,
        held: Callable[[Allocation], str] = lambda _allocation: "",
    ) -> None:  # fmt: skip
        self.objects: dict[str, Allocation] = {}
        self.loop: Loop | None = None
        self.synced = False
        self._ending: dict[str, tuple[int, float]] = {}
        """By uid: the attempt whose row is releasing, and since when (monotonic)."""
        self._cluster = cluster
        self._clock = clock
        self._stored = stored
        self._nodes = nodes
        self._metrics = metrics
        self._propose = propose
        self._numbers = numbers
        self._vcluster = vcluster
        self._config = config
        self._stopped = stopped
        self._settled = settled
        self._place = place
        self._admission = admission
        self._held = held
        self.queue = KeyedQueue(self.reconcile, clock, workers=WORKERS, late_workers=LATE_WORKERS, name="allocations")
        self.budget = WriteBudget(clock)
        """Of the writes that only inform; the loop's reworded reasons are paid from it, too."""
        self.expectations = Expectations(clock, allocation=self.get, tell=lambda uid: self.queue.add(uid, late=True), budget=self.budget)
        """Expected starts; whoever forecasts gives them to it."""

    def on_allocation(self, change: Change[Allocation]) -> None:
        """The informer saw a change."""
        if change.new is not None:
            self._keep(change.new)
            if change.old is not None and change.old.metadata.uid != change.new.metadata.uid:
                self._lost(change.old.metadata.uid)
            self.queue.add(change.new.metadata.uid)
        elif change.old is not None:
            self._lost(change.old.metadata.uid)

    def _lost(self, uid: str) -> None:
        self.objects.pop(uid, None)
        self._numbers.release(uid)
        self._waits_no_more(uid)
        if self.loop is not None:
            self.loop.clear_placed(uid)
        self.queue.add(uid)

    def _waits_no_more(self, uid: str) -> None:
        if self._admission is not None:
            self._admission.leave(uid)

    def _keep(self, allocation: Allocation) -> None:
        known = self.objects.get(allocation.metadata.uid)
        if known is None or int(allocation.metadata.resource_version) >= int(known.metadata.resource_version):
            self.objects[allocation.metadata.uid] = allocation

    def get(self, uid: str) -> Allocation | None:
        """The newest version that this process knows of."""
        return self.objects.get(uid)

    def touch(self, uids: Iterable[str]) -> None:
        """Have them looked at."""
        for uid in uids:
            self.queue.add(uid)

    def all_rows(self) -> None:
        """Have every holder looked at, once the consistent list has come."""
        self.synced = True
        self.touch({row.uid for row in self._stored.rows.values()})

    def number(self, uid: str) -> int:
        """The number it has or gets; 0 for an object that is gone."""
        allocation = self.objects.get(uid)
        if allocation is None:
            return 0
        return allocation.status.number or self._numbers.assign(uid)

    def shown_number(self, uid: str) -> int | None:
        """The number that its status shows; None where it shows none yet. May be asked from any thread."""
        allocation = self.objects.get(uid)
        return (allocation.status.number or None) if allocation is not None else None

    async def reconcile(self, uid: str) -> float | None:
        """Carry out steps until there is none left to do now."""
        if not self.synced or self._stopped():
            return None  # looked at again once synced, or recovered
        for _ in range(STEPS_AT_ONCE):
            if self.loop is not None and uid in self.loop.claiming:
                return None  # nothing is decided of it until the ledger has answered; then it is looked at again
            step = next_step(self._facts(uid))
            again = await self._act(uid, step)
            if again is not _ON:
                return again
        return 0.05

    def _facts(self, uid: str) -> Facts:
        rows = tuple(self._stored.rows_of(uid))
        standings = {(row.attempt, node): self._nodes.standing(row, node) for row in rows for node in row.nodes}
        allocation = self.objects.get(uid)
        settled = allocation is None or not allocation.metadata.deletion_timestamp or self._settled(allocation)
        ending = self._ending_seconds(uid, rows)
        admitted = self._renewed(allocation, rows)
        return Facts(allocation, rows, self._clock.now(), standings, self._nodes.names, settled, ending, self._start_timeout(), admitted)

    def _renewed(self, allocation: Allocation | None, rows: tuple[Row, ...]) -> int | None:
        """The walltime that a newer generation of work on nodes is admitted for; None: what stands stays."""
        held = next((row for row in rows if row.held), None)
        if self._admission is None or allocation is None or held is None or held.generation >= allocation.metadata.generation:
            return None
        return self._admission.renewed(allocation, held.walltime)

    def _ending_seconds(self, uid: str, rows: Sequence[Row]) -> float:
        """For how long its newest row has been releasing, as seen here; 0 while it holds."""
        newest = max(rows, key=lambda row: row.attempt, default=None)
        if newest is None or newest.held:
            self._ending.pop(uid, None)
            return 0.0
        attempt, since = self._ending.setdefault(uid, (newest.attempt, self._clock.monotonic()))
        if attempt != newest.attempt:
            _, since = self._ending[uid] = newest.attempt, self._clock.monotonic()
        return self._clock.monotonic() - since

    def _start_timeout(self) -> float:
        config = self._config()
        with suppress(Rejected):  # the operator refuses such options: the default stays
            return parse_duration(config.spec.work.start_timeout) if config is not None else START_SECONDS
        return START_SECONDS

    async def _act(self, uid: str, step: Step) -> float | None:
        allocation = self.objects.get(uid)
        if not isinstance(step, Queue):
            self._waits_no_more(uid)
            if self.loop is not None:
                self.loop.withdraw(uid)
        match step:
            case Propose(proposal):
                verdict: Verdict = await self._propose(proposal)
                if isinstance(verdict, Refused):
                    event(log, "The ledger refused", allocation=uid, reason=verdict.reason, message=verdict.message)
                    return REFUSED_SECONDS
                return _ON
            case Rest(seconds):
                return seconds
        if allocation is None:
            return None
        match step:
            case Queue():
                return await self._wait(allocation)
            case AddFinalizer():
                finalizers = [*allocation.metadata.finalizers, FINALIZER]
                return await self._write(allocation, {"metadata": _meta(allocation, finalizers)}, "finalizer", subresource="")
            case RemoveFinalizer():
                finalizers = [name for name in allocation.metadata.finalizers if name != FINALIZER]
                await self._write(allocation, {"metadata": _meta(allocation, finalizers)}, "finalizer", subresource="")
                return None  # it is gone, or the informer tells what is left of it
            case Project(row):
                hollow = self._nodes.hollow(row.nodes)
                score = self._score(uid)
                gpus, stamp = self._nodes.gpus(row.nodes), await self._stamp(uid)
                patch = projection.placed(allocation, row, self._nodes.names, hollow=hollow, score=score, gpus=gpus, **stamp)
                again = await self._write(allocation, patch, "placed")
                if self.loop is not None:
                    self.loop.clear_placed(uid)
                return again
            case ShowEnding():
                patch = projection.ending(allocation, step, seq=self._stored.head.seq, now=self._clock.now())
                return await self._write(allocation, patch, "ending")
            case Stage(reason, message):
                event(log, "WaitsForStart", allocation=allocation.metadata.key, reason=reason, message=message)
                patch = projection.staged(allocation, reason, message, seq=self._stored.head.seq, now=self._clock.now())
                return await self._write(allocation, patch, "staged")
            case End():
                return await self._write(allocation, projection.ended(allocation, step, **await self._stamp(uid)), "ended")
            case Observe():
                return await self._write(allocation, projection.observed(allocation, seq=self._stored.head.seq), "observed")
            case Retry():
                event(log, "Another attempt follows", allocation=allocation.metadata.key, reason=step.reason, message=step.message)
                return await self._write(allocation, projection.retried(allocation, step, **await self._stamp(uid)), "retried")

    async def _stamp(self, uid: str) -> dict[str, Any]:
        await self._numbers.ensure_reserved()
        return {"number": self.number(uid), "seq": self._stored.head.seq, "now": self._clock.now()}

    async def _write(self, allocation: Allocation, patch: dict[str, Any], what: str, *, subresource: str = "status") -> float | None:
        meta = allocation.metadata
        self._metrics.writes.labels(what).inc()
        try:
            written = await self._cluster.patch(ALLOCATIONS, meta.name, patch, meta.namespace, subresource=subresource, type=Allocation)
        except NotFound:
            return None  # the informer tells
        self._keep(written)
        return _ON

    async def _wait(self, allocation: Allocation) -> float | None:
        """It waits for nodes: tell the loop, and show the reason that the last cycle found."""
        uid = allocation.metadata.uid
        if self.loop is None:
            return None
        if self._admission is not None:
            self._admission.enter(allocation)
        self.loop.enqueue(self.candidate(allocation))
        waiting = self.loop.shown(uid)
        if waiting is None:
            return None
        expected, alone = self.expectations.status_patch(uid), self.expectations.due(uid)
        reserved = self.loop.scene.reserved_since(allocation.spec.vcluster, uid)
        parts = {"score": self._score(uid), "expected": expected, "alone": alone, "reserved": reserved, **await self._stamp(uid)}
        patch = projection.pending(allocation, waiting.reason, waiting.message, **parts)
        if patch is not None and uid in self.loop.candidates:
            await self._write(allocation, patch, "pending" if "conditions" in patch["status"] else "expected")
            self.expectations.wrote(uid)
        deadline = allocation.spec.lifecycle.deadline
        return max(0.0, parse_time(deadline) - self._clock.now()) + 0.1 if deadline else None

    def _score(self, uid: str) -> dict[str, Any] | None:
        """Its score as `status.score` has it."""
        score = self.loop.scores.get(uid) if self.loop is not None else None
        return shown(score) if score is not None and score.terms else None

    def candidate(self, allocation: Allocation) -> Candidate:
        """The allocation as the cycle reads it."""
        vcluster = self._vcluster(allocation.spec.vcluster)
        rows = tuple(self._stored.rows_of(allocation.metadata.uid))
        blocked: tuple[str, str] | None = None
        if fenced_wait(allocation, rows):
            blocked = (
                "RetryBackOff",
                f"waits for proof that attempt {rows[0].attempt} has ended on node indices {format_ranges(rows[0].nodes)}",
            )
        elif self._admission is not None:
            blocked = self._admission.blocked(allocation)
        if doubtful := self._held(allocation):
            blocked = ("RecoveryUncertain", doubtful)
        quota, within = self._place(allocation)
        return candidate_of(
            allocation, vcluster, self._nodes.indices, back_off_until=self._back_off(allocation), blocked=blocked,
            quota=quota, within=within,
        )  # fmt: skip

    def _back_off(self, allocation: Allocation) -> float:
        """When the next attempt may start: attempts that never started double the delay, at most 5 minutes."""
        failed = 0
        for entry in reversed(allocation.status.attempts):
            if entry.start_time is not None or entry.reason == QUOTA_RECLAIMED:
                break
            failed += 1
        if not failed or allocation.status.attempts[-1].end_time is None:
            return 0.0
        config = self._config()
        first = parse_duration(config.spec.scheduling.retry_back_off) if config else 10.0
        return parse_time(allocation.status.attempts[-1].end_time) + min(300.0, first * 2.0 ** min(failed - 1, 16))


_ON = -1.0
"""The step was carried out: look again at once."""


def _meta(allocation: Allocation, finalizers: list[str]) -> dict[str, Any]:
    return {"resourceVersion": allocation.metadata.resource_version, "finalizers": finalizers}
