"""The reconciler of allocations: gathers the facts of one allocation, decides its next step, carries the step out, and looks again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from lattice.accounting.records import Records
from lattice.accounting.settlement import is_settled
from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger import projection
from lattice.ledger.format import Row
from lattice.ledger.proposals import ProposalRefused, Release, Verdict
from lattice.ledger.starting import START_SECONDS
from lattice.ledger.steps import (
    FINALIZER,
    PROLOGUE_RETRIES,
    QUOTA_RECLAIMED,
    REQUEUED,
    AddFinalizer,
    AnswerEdges,
    AwaitEdges,
    AwaitImages,
    End,
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
    StepFacts,
    fenced_wait,
    next_step,
)
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import SOFTWARE_RESOLVED
from lattice.scheduling.conversion.candidates import candidate_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.priority.scoring import shown
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.software.pinning import WAITING_FOR_IMAGES
from lattice.units import format_ranges, parse_duration, parse_time
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, VCluster
from lattice.views.dag import DagGate
from lattice.workflow.release import WITHOUT_EDGES, EdgesAwaited, EdgesJudged
from lattice_controllers.scheduler.allocation_cache import AllocationCache
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.dag_gates import WAITING_FOR_DAG, DagGates
from lattice_controllers.scheduler.dependencies import Dependencies
from lattice_controllers.scheduler.expectations import Expectations
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.status_writer import write_status

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 12
REFUSED_SECONDS = 1.0
EDGES_SECONDS, SECONDS_OF_EDGE, URGENT_SECONDS_OF_EDGE, FEW_EDGES = 5.0, 0.1, 0.01, 100
"""How often the status of work that still waits shows that one edge more is answered: less often the more edges it has, as it shows all
of them each time (`edges_pause`)."""
SECONDS_BETWEEN_EDGES = 0.0002
"""How long, for each of its edges, the next status with many edges waits for one: the API server takes a third of a second for a thousand.
"""
WHOLE_SECONDS = 30.0
"""How old a member of a DAG is before its status says that it waits for the others: a thousand are all there before that, and each is then
written once, with its edges."""
IMAGES_SECONDS = 1.5
"""How old work is before its status says that its images are awaited, by its time of creation, which is of whole seconds."""
WORKERS, LATE_WORKERS = 48, 4


@dataclass(frozen=True, slots=True)
class EdgesShown:
    """A status as it was last written of work that waits for its edges: its reason, when that was, and before when it is not written again.

    Times are monotonic.
    """

    reason: str
    at: float
    slot: float


class Judging(Protocol):
    """Judges allocations by the limits and quotas in force; `Admission` is the implementation, the reconciler of allocations asks."""

    def enter(self, allocation: Allocation) -> Iterable[str]:
        """Counts an allocation as waiting for nodes; returns the uids of waiting allocations that it pushes beyond a limit on pending work.

        Their `blocked` may answer otherwise now.
        """
        ...

    def leave(self, uid: str) -> Iterable[str]:
        """Counts an allocation as waiting no more; returns the uids of waiting allocations that come within a limit by that."""
        ...

    def blocked(self, allocation: Allocation) -> tuple[str, str] | None:
        """Returns the reason and the sentence that keep a pending allocation from nodes; None: a cycle may look for nodes for it."""
        ...

    def renewed(self, allocation: Allocation, stands: int | None) -> int | None:
        """Returns the walltime, in seconds, that work on nodes gets by its newest generation.

        None: the walltime in the ledger, `stands` (None: without end), stays.
        """
        ...


class QuotaPlaces(Protocol):
    """Knows to which leaf of the quota trees an allocation belongs, and which nodes that tree divides."""

    def leaf(self, allocation: Allocation) -> str:
        """Returns the name of the leaf that an allocation belongs to; empty where no elastic quota is declared."""
        ...

    def within(self, leaf: str) -> int | None:
        """Returns the nodes that the tree of a leaf divides, as a bit set of node indices; None: any node."""
        ...


class Doubts(Protocol):
    """Knows which pending allocations may have run unseen before etcd was restored; `Recovery` is the implementation."""

    def held(self, allocation: Allocation) -> str:
        """Returns the sentence that says why a pending allocation is not placed after a restore of etcd; empty: it may be placed."""
        ...


class KnownSchema(Protocol):
    """Compares the status fields of the installed CRD with those of our view: an older scheduler must not replace a whole status."""

    @property
    def is_known(self) -> bool:
        """Tells whether our view holds every status field of the installed CRD; False too while the CRD cannot be watched."""
        ...


class Allocations:
    """The reconciler of allocations, one at a time by uid: it brings ledger row, status and finalizer of each to where they should be.

    `synced` is False until the informers have listed everything; until then nothing is reconciled. `reported`: up to which version their
    informer has reported all changes of Allocations.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, state: ClusterState, metrics: SchedulerMetrics, *, cache: AllocationCache,
        pending: PendingWork, ledger: LedgerAccess, nodes: Nodes, numbers: AllocationNumbers, vclusters: Mapping[str, VCluster],
        config: LastKnown[Config], records: Records, quotas: QuotaPlaces, admission: Judging, doubts: Doubts, schema: KnownSchema,
        reported: Callable[[], str],
    ) -> None:  # fmt: skip
        self.objects: Mapping[str, Allocation] = cache.objects
        self.synced = False
        self._ending: dict[str, tuple[int, float]] = {}
        """By uid: the attempt whose row is releasing, and since when (monotonic)."""
        self._cluster = cluster
        self._clock = clock
        self._state = state
        self._cache = cache
        self._pending = pending
        self._ledger = ledger
        self._stored = ledger.stored
        self._nodes = nodes
        self._metrics = metrics
        self._numbers = numbers
        self._vclusters = vclusters
        self._config = config
        self._records = records
        self._quotas = quotas
        self._admission = admission
        self.dag_gates = DagGates(reported)
        self.dependencies = Dependencies(clock, cache.objects, records, ledger.stored.mutexes, self.dag_gates)
        self._edges_shown: dict[str, EdgesShown] = {}
        """By uid: how the status of work that waits for its edges was last written."""
        self._edges_slot = 0.0
        """Before when (monotonic) no status with many edges is written again, those aside that say something new."""
        self._doubts = doubts
        self._schema = schema
        self.queue = KeyedQueue(self.reconcile, clock, workers=WORKERS, late_workers=LATE_WORKERS, name="allocations")
        self.expectations = Expectations(clock, self.objects, self.queue, pending.budget)
        """The expected starts that statuses show; `Forecasts` hands each new forecast to it."""

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Handles a change of the informer of Allocations: it keeps the new version unless a newer one is known, and drops all that is kept
        of an allocation that is gone, also where another one of its name has taken its place.

        It enqueues each allocation concerned, the old and the new one, to be reconciled.
        """
        if change.new is not None:
            self._cache.keep(change.new)
            if change.old is None and self.synced:
                starts.reached(self._clock, "informer", change.new.metadata.uid, key=change.new.metadata.key)
            if change.old is not None and change.old.metadata.uid != change.new.metadata.uid:
                self._lost(change.old.metadata.uid)
            self.queue.add(change.new.metadata.uid)
        elif change.old is not None:
            self._lost(change.old.metadata.uid)
        members = self.dag_gates.on_allocation(change)
        self.touch(self.dependencies.on_allocation(change))
        self.dependencies.on_whole(members)
        self.touch(members)

    def on_dag(self, change: Change[DagGate]) -> None:
        """Handles a change of the informer of DAGs: enqueues the members that may start now, or may not any more, or may go."""
        members = self.dag_gates.on_dag(change)
        self.dependencies.on_whole(members)
        self.touch(members)

    def _lost(self, uid: str) -> None:
        """Drops all that is kept of an allocation, by uid, whose object is gone, and enqueues it, since its row may still be in the
        ledger.
        """
        self._cache.remove(uid)
        self._numbers.release(uid)
        self._edges_shown.pop(uid, None)
        self._waits_no_more(uid)
        self._pending.clear_placed(uid)
        self.queue.add(uid)

    def _waits_no_more(self, uid: str) -> None:
        """Counts an allocation, by uid, as waiting no more, and enqueues those that come within a limit on pending work by that."""
        self.touch(self._admission.leave(uid))

    def touch(self, uids: Iterable[str]) -> None:
        """Enqueues these allocations, by uid, to be reconciled."""
        for uid in uids:
            self.queue.add(uid)

    async def catch_up(self, seconds: float) -> None:
        """Waits until every allocation that is ready to be reconciled, or being reconciled, now has been reconciled, `seconds` at most;
        returns alike in both cases.

        Delayed ones are not waited for.
        """
        await self.queue.pass_by(seconds)

    def requeue_pending(self) -> None:
        """Enqueues every pending allocation to be reconciled."""
        self.touch(list(self._pending.candidates))

    def renew_candidates(self) -> None:
        """Makes the candidate of every pending allocation anew, from its object, the limits and the quota trees, for the next cycle."""
        for uid in list(self._pending.candidates):
            allocation = self.objects.get(uid)
            if allocation is not None:
                self._pending.enqueue(self.candidate(allocation), allocation.status.reserved_at)

    def all_rows(self) -> None:
        """Sets `synced`, and enqueues every allocation that has a row in the ledger; called once the informers have listed everything."""
        self.dependencies.started()
        self.synced = True
        self.touch({row.uid for row in self._stored.rows.values()})

    async def reconcile(self, uid: str) -> float | None:
        """Carries out steps for one allocation until none is left to do now, 12 at most.

        Returns the seconds until it is to be looked at again; None: only a change wakes it, as while not synced, paused for a recovery, or
        while a claim waits for the ledger's answer. Errors of the API server are raised: the queue tries again.
        """
        if not self.synced or self._ledger.paused:
            return None  # looked at again once synced, or recovered
        for _ in range(STEPS_AT_ONCE):
            if uid in self._pending.claiming:
                return None  # nothing is decided of it until the ledger has answered; then it is looked at again
            step = next_step(self._facts(uid))
            again = await self._act(uid, step)
            if again is not _ON:
                return again
        return 0.05

    def _facts(self, uid: str) -> StepFacts:
        """Gathers all that `next_step` reads of one allocation: object, rows, the state of their nodes, settlement, time-outs and
        limits.
        """
        rows = tuple(self._stored.rows_of(uid))
        standings = {(row.attempt, node): self._nodes.standing(row, node) for row in rows for node in row.nodes}
        allocation = self.objects.get(uid)
        deleted = allocation is not None and bool(allocation.metadata.deletion_timestamp)
        settled = allocation is None or not deleted or is_settled(allocation, self._records)
        ending = self._ending_seconds(uid, rows)
        config = self._config.object
        retries = config.spec.work.prologue_retries if config is not None else PROLOGUE_RETRIES
        admitted = self._renewed(allocation, rows)
        return StepFacts(
            allocation, rows, self._clock.now(), standings, self._nodes.names, settled, ending, self._start_timeout(), retries, admitted,
            edges=self._judged(allocation, rows),
            awaited=deleted and self.dependencies.awaited(uid),
        )  # fmt: skip

    def _judged(self, allocation: Allocation | None, rows: Sequence[Row]) -> EdgesJudged:
        """Returns what becomes of work by its edges, and by the DAG that it is a member of, while its present attempt has no row."""
        if allocation is None or any(row.attempt >= allocation.status.attempt for row in rows):
            return WITHOUT_EDGES
        edges = self.dependencies.judge(allocation) if allocation.spec.depends_on else WITHOUT_EDGES
        return self.dag_gates.judged(allocation, edges)

    def _renewed(self, allocation: Allocation | None, rows: tuple[Row, ...]) -> int | None:
        """Returns the walltime in seconds that the object's newest generation gives to work on nodes.

        None: the row's walltime stays, no row is held, or the held row is of that generation already.
        """
        held = next((row for row in rows if row.held), None)
        if allocation is None or held is None or held.generation >= allocation.metadata.generation:
            return None
        return self._admission.renewed(allocation, held.walltime)

    def _ending_seconds(self, uid: str, rows: Sequence[Row]) -> float:
        """Returns for how many seconds this process has seen the newest row releasing; 0 without a row, or while that row is held."""
        newest = max(rows, key=lambda row: row.attempt, default=None)
        if newest is None or newest.held:
            self._ending.pop(uid, None)
            return 0.0
        attempt, since = self._ending.setdefault(uid, (newest.attempt, self._clock.monotonic()))
        if attempt != newest.attempt:
            _, since = self._ending[uid] = newest.attempt, self._clock.monotonic()
        return self._clock.monotonic() - since

    def _start_timeout(self) -> float:
        """Returns how many seconds work may take to start, by the LatticeConfig; the default without one, or where the text does
        not parse.
        """
        config = self._config.object
        with suppress(Rejected):  # the operator refuses such options: the default stays
            return parse_duration(config.spec.work.start_timeout) if config is not None else START_SECONDS
        return START_SECONDS

    async def _act(self, uid: str, step: Step) -> float | None:
        """Carries out one step for an allocation; returns `_ON` to look again at once, seconds until the next look, None: only a change
        wakes it.

        A step other than `Queue` takes the allocation out of the pending work; without its object only proposals and rests are carried out.
        """
        allocation = self.objects.get(uid)
        if not isinstance(step, Queue):
            self._waits_no_more(uid)
            self._pending.withdraw(uid)
        match step:
            case Propose(proposal):
                row = self._stored.rows.get(proposal.key) if isinstance(proposal, Release) else None
                verdict: Verdict = await self._ledger.propose(proposal)
                if isinstance(verdict, ProposalRefused):
                    event(log, "The ledger refused", allocation=uid, reason=verdict.reason, message=verdict.message)
                    return REFUSED_SECONDS
                if row is not None and row.mutexes:
                    self.touch(self.dependencies.next_of(row.mutexes))
                return _ON
            case Rest(seconds):
                return seconds
        if allocation is None:
            return None
        match step:
            case Queue():
                return await self._wait(allocation)
            case AwaitEdges(judged, awaited):
                return await self._await_edges(allocation, judged, awaited)
            case AnswerEdges(judged):
                self._edges_shown.pop(uid, None)
                patch = projection.edges_answered(allocation, judged.edges, **await self._stamp(uid))
                return await self._write(allocation, patch, "edges")
            case AwaitImages(message):
                return await self._await_images(allocation, message)
            case AddFinalizer():
                finalizers = [*allocation.metadata.finalizers, FINALIZER]
                return await self._write(allocation, {"metadata": _meta(allocation, finalizers)}, "finalizer", subresource="")
            case RemoveFinalizer():
                finalizers = [name for name in allocation.metadata.finalizers if name != FINALIZER]
                await self._write(allocation, {"metadata": _meta(allocation, finalizers)}, "finalizer", subresource="")
                return None  # it is gone, or the informer tells what is left of it
            case Project(row):
                return await self._show_placed(allocation, row)
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

    async def _show_placed(self, allocation: Allocation, row: Row) -> float | None:
        """Writes into the status the nodes of its row, with the score by which it got them; returns what `_act` does."""
        uid, hollow, gpus = allocation.metadata.uid, self._nodes.hollow(row.nodes), self._nodes.gpus(row.nodes)
        score, stamp = self._score(uid), await self._stamp(uid)
        patch = projection.placed(allocation, row, self._nodes.names, hollow=hollow, score=score, gpus=gpus, **stamp)
        again = await self._write(allocation, patch, "placed")
        self._pending.clear_placed(uid)
        return again

    async def _stamp(self, uid: str) -> dict[str, Any]:
        """Returns the parts that every status patch shows: the allocation's number (0 where its object is gone), the ledger's seq, the
        time.

        Waits until enough numbers are reserved; raises Stale where the ledger refuses them.
        """
        await self._numbers.ensure_reserved()
        allocation = self.objects.get(uid)
        number = self._numbers.number_of(allocation) if allocation is not None else 0
        return {"number": number, "seq": self._stored.head.seq, "now": self._clock.now()}

    async def _write(self, allocation: Allocation, patch: dict[str, Any], what: str, *, subresource: str = "status") -> float | None:
        """Patches the status, or with an empty `subresource` the object, at the version that was judged, and keeps the answer; returns that
        the caller looks again at once (`_ON`), None where the object is gone.

        `what`: the label of the write in the metrics. Other errors of the API server are raised, Stale among them.
        """
        meta = allocation.metadata
        self._metrics.writes.labels(what).inc()
        try:
            if subresource:
                written = await write_status(self._cluster, allocation, patch["status"], whole=self._schema.is_known)
            else:
                written = await self._cluster.patch(ALLOCATIONS, meta.name, patch, meta.namespace, type=Allocation)
        except NotFound:
            return None  # the informer tells
        self._cache.keep(written)
        return _ON

    async def _wait(self, allocation: Allocation) -> float | None:
        """Counts an allocation as waiting, enqueues it for the next cycle, and writes the reason that the last cycle found, score and
        expected start into its status where they differ.

        Returns the seconds until its deadline, when it is to be looked at again; None: it has no deadline, or no reason was found yet.
        """
        uid = allocation.metadata.uid
        self.touch(self._admission.enter(allocation))
        self._pending.enqueue(self.candidate(allocation), allocation.status.reserved_at)
        waiting = self._pending.shown(uid)
        if waiting is None:
            return None
        expected, alone = self.expectations.status_patch(uid), self.expectations.due(uid)
        reserved = self._state.reserved_since(allocation.spec.vcluster, uid)
        parts = {"score": self._score(uid), "expected": expected, "alone": alone, "reserved": reserved, **await self._stamp(uid)}
        patch = projection.pending(allocation, waiting.reason, waiting.message, **parts)
        if patch is not None and uid in self._pending.candidates:
            await self._write(allocation, patch, "pending" if "conditions" in patch["status"] else "expected")
            self.expectations.wrote(uid)
        return self._until_deadline(allocation)

    async def _await_images(self, allocation: Allocation, message: str) -> float | None:
        """Writes into the status which images are awaited (`message`), once for each sentence; not before `IMAGES_SECONDS` while the
        operator has said nothing of them: it mostly resolves them first, and its write would meet this one.

        Returns the seconds until it is to be looked at again; None: it has no deadline.
        """
        age = self._clock.now() - parse_time(allocation.metadata.creation_timestamp)
        if 0 <= age < IMAGES_SECONDS and condition(allocation.status.conditions, SOFTWARE_RESOLVED) is None:
            return IMAGES_SECONDS - age
        patch = projection.pending(allocation, WAITING_FOR_IMAGES, message, **await self._stamp(allocation.metadata.uid))
        if patch is not None:
            await self._write(allocation, patch, "pending")
        return self._until_deadline(allocation)

    async def _await_edges(self, allocation: Allocation, judged: EdgesJudged, awaited: EdgesAwaited) -> float | None:
        """Writes into the status which edges are open, with the answers of the others: at once what is bound or held, else after a pause
        (`edges_pause`).

        Returns the seconds until it is to be looked at again: its deadline, the end of a delay, the next write; None: none of these.
        """
        uid, now = allocation.metadata.uid, self._clock.monotonic()
        age = self._clock.now() - parse_time(allocation.metadata.creation_timestamp)
        if awaited.reason == WAITING_FOR_DAG and 0 <= age < WHOLE_SECONDS and not judged.urgent:
            return WHOLE_SECONDS - age
        shown, count = self._edges_shown.get(uid), len(judged.edges)
        late = 0.0
        if shown is not None and shown.reason == awaited.reason:
            late = max(0.0, shown.slot - now, shown.at + edges_pause(count, urgent=judged.urgent) - now)
        if not late:
            patch = projection.pending(allocation, awaited.reason, awaited.message, **await self._stamp(uid), edges=judged.edges)
            if patch is not None:
                await self._write(allocation, patch, "pending")
                slot = edges_slot(self._edges_slot, now, count)
                self._edges_slot = max(self._edges_slot, slot)
                self._edges_shown[uid] = EdgesShown(awaited.reason, now, slot)
        times = [self._until_deadline(allocation), late or None]
        times.append(None if awaited.due is None else max(0.0, awaited.due - self._clock.now()) + 0.01)
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _until_deadline(self, allocation: Allocation) -> float | None:
        """Returns the seconds until an allocation's deadline, and 0.1 more; None: it has none."""
        deadline = allocation.spec.lifecycle.deadline
        return max(0.0, parse_time(deadline) - self._clock.now()) + 0.1 if deadline else None

    def _score(self, uid: str) -> dict[str, Any] | None:
        """Returns the candidate's last score in the form of `status.score`; None: it has not been scored, or its score has no terms."""
        score = self._pending.scores.get(uid)
        return shown(score) if score is not None and score.terms else None

    def candidate(self, allocation: Allocation) -> Candidate:
        """Makes the candidate of an allocation as cycles read it, with its back-off, its quota leaf, the nodes without room for its images,
        and the reason that blocks it, if any.

        That reason is the doubt after a recovery, else an attempt that has not provably ended (fenced), else a refusal of admission.
        """
        vcluster = self._vclusters.get(allocation.spec.vcluster)
        rows = tuple(self._stored.rows_of(allocation.metadata.uid))
        blocked: tuple[str, str] | None = None
        if fenced_wait(allocation, rows):
            blocked = (
                "RetryBackOff",
                f"waits for proof that attempt {rows[0].attempt} has ended on node indices {format_ranges(rows[0].nodes)}",
            )
        else:
            blocked = self._admission.blocked(allocation)
        if doubtful := self._doubts.held(allocation):
            blocked = ("RecoveryUncertain", doubtful)
        quota = self._quotas.leaf(allocation)
        within = self._quotas.within(quota)
        return candidate_of(
            allocation, vcluster, self._nodes.indices, back_off_until=self._back_off(allocation), blocked=blocked,
            quota=quota, within=within, avoid=self._nodes.without_room_for(allocation.status.software),
        )  # fmt: skip

    def _back_off(self, allocation: Allocation) -> float:
        """Returns when the next attempt may start, seconds since the epoch; 0: at once.

        Attempts in a row that never started double the delay, up to 5 minutes; one whose nodes the quota tree took back, or that its
        owner had requeued, ends the row, as one that started does.
        """
        failed = 0
        for entry in reversed(allocation.status.attempts):
            if entry.start_time is not None or entry.reason in (QUOTA_RECLAIMED, REQUEUED):
                break
            failed += 1
        if not failed or allocation.status.attempts[-1].end_time is None:
            return 0.0
        config = self._config.object
        first = parse_duration(config.spec.scheduling.retry_back_off) if config else 10.0
        return parse_time(allocation.status.attempts[-1].end_time) + min(300.0, first * 2.0 ** min(failed - 1, 16))


_ON = -1.0
"""The step was carried out: look again at once."""


def edges_pause(count: int, *, urgent: bool) -> float:
    """Returns how many seconds lie between two writes of a status with so many edges; `urgent`: work that is to go waits for the next.

    A thousand statuses of a thousand edges each are 200 MB in etcd, which keeps every version for minutes.
    """
    if urgent:
        return count * URGENT_SECONDS_OF_EDGE if count > FEW_EDGES else 0.0
    return max(EDGES_SECONDS, count * SECONDS_OF_EDGE)


def edges_slot(before: float, now: float, count: int) -> float:
    """Returns before when a status with so many edges, written now, is not written again, where the last such slot ends at `before`.

    At once for few; many take turns, however many statuses there are (monotonic times).
    """
    return max(now, before) + count * SECONDS_BETWEEN_EDGES if count > FEW_EDGES else now


def _meta(allocation: Allocation, finalizers: list[str]) -> dict[str, Any]:
    """Returns the metadata of a patch that sets the finalizers, and that the API server refuses if the object has changed."""
    return {"resourceVersion": allocation.metadata.resource_version, "finalizers": finalizers}
