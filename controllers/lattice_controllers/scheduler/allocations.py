"""Each allocation's level, reconciled: facts gathered, one step decided, carried out, looked at again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger import projection
from lattice.ledger.proposals import Proposal, Refused, Verdict
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
    Step,
    fenced_wait,
    next_step,
)
from lattice.ledger.stored import Stored
from lattice.scheduling.candidates import candidate_of
from lattice.scheduling.scoring import shown
from lattice.scheduling.work import Candidate
from lattice.units import format_ranges, parse_duration, parse_time
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, VCluster
from lattice_controllers.scheduler.expectations import Expectations
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 12
REFUSED_SECONDS = 1.0
WORKERS, LATE_WORKERS = 48, 16


class Committing(Protocol):
    """What is asked of the committer."""

    def propose(self, proposal: Proposal) -> Any:
        """A future of the verdict."""
        ...


class Allocations:
    """The reconciler of allocations, by uid."""

    def __init__(
        self, cluster: Cluster, clock: Clock, stored: Stored, nodes: Nodes, metrics: SchedulerMetrics, *,
        propose: Callable[[Proposal], Any], numbers: Numbering, vcluster: Callable[[str], VCluster | None],
        config: Callable[[], Config | None], stopped: Callable[[], bool], settled: Callable[[Allocation], bool] = lambda _allocation: True,
        place: Callable[[Allocation], tuple[str, int | None]] = lambda _allocation: ("", None),
    ) -> None:  # fmt: skip
        self.objects: dict[str, Allocation] = {}
        self.loop: Loop | None = None
        self.synced = False
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
        self.queue = KeyedQueue(self.reconcile, clock, workers=WORKERS, late_workers=LATE_WORKERS, name="allocations")
        self.expectations = Expectations(clock, allocation=self.get, tell=self.queue.add)
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
        self._numbers.forget(uid)
        if self.loop is not None:
            self.loop.forget(uid)
        self.queue.add(uid)

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
        return allocation.status.number or self._numbers.give(uid)

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
        rows = tuple(self._stored.of(uid))
        standings = {(row.attempt, node): self._nodes.standing(row, node) for row in rows for node in row.nodes}
        allocation = self.objects.get(uid)
        settled = allocation is None or not allocation.metadata.deletion_timestamp or self._settled(allocation)
        return Facts(allocation, rows, self._clock.now(), standings, self._nodes.names, settled)

    async def _act(self, uid: str, step: Step) -> float | None:
        allocation = self.objects.get(uid)
        if not isinstance(step, Queue) and self.loop is not None:
            self.loop.drop(uid)
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
                    self.loop.forget(uid)
                return again
            case End():
                return await self._write(allocation, projection.ended(allocation, step, **await self._stamp(uid)), "ended")
            case Observe():
                return await self._write(allocation, projection.observed(allocation, seq=self._stored.head.seq), "observed")
            case Retry():
                event(log, "Another attempt follows", allocation=allocation.metadata.key, reason=step.reason, message=step.message)
                return await self._write(allocation, projection.retried(allocation, step, **await self._stamp(uid)), "retried")

    async def _stamp(self, uid: str) -> dict[str, Any]:
        await self._numbers.ready()
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
        self.loop.want(self.candidate(allocation))
        waiting = self.loop.reasons.get(uid)
        if waiting is None:
            return None
        expected, alone = self.expectations.patch(uid), self.expectations.due(uid)
        parts = {"score": self._score(uid), "expected": expected, "alone": alone, **await self._stamp(uid)}
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
        rows = tuple(self._stored.of(allocation.metadata.uid))
        blocked: tuple[str, str] | None = None
        if fenced_wait(allocation, rows):
            blocked = (
                "RetryBackOff",
                f"waits for proof that attempt {rows[0].attempt} has ended on node indices {format_ranges(rows[0].nodes)}",
            )
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


class Numbering(Protocol):
    """Numbers of allocations, from blocks that the ledger reserved."""

    def give(self, uid: str) -> int:
        """The number of this allocation, the same each time."""
        ...

    def forget(self, uid: str) -> None:
        """It is gone."""
        ...

    async def ready(self) -> None:
        """Wait until a number can be given."""
        ...


def _meta(allocation: Allocation, finalizers: list[str]) -> dict[str, Any]:
    return {"resourceVersion": allocation.metadata.resource_version, "finalizers": finalizers}
