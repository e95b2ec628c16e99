"""One term of leadership: everything that runs while this process leads, wired together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lattice.accounting.records import NOTHING_NEW, Records
from lattice.daemon import process
from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, LatticeError, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import (
    ALLOCATIONS,
    CONFIGS,
    DAGS,
    LEASES,
    NODE_LEASE_NAMESPACE,
    NODES,
    PLANS,
    RESERVATIONS,
    TENANTS,
    USAGE_RECORDS,
    VCLUSTERS,
)
from lattice.ledger.commit import Book
from lattice.ledger.reports import ANNOTATION, NodeReport, parse_report
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import parse_duration
from lattice.views import Allocation, Config, Lease, Node, Plan, Tenant, VCluster
from lattice.views.cluster import ExternalBudget, TenantSpec
from lattice.views.dag import DagGate
from lattice.views.reservation import Reservation
from lattice.views.sharing import SharedParts
from lattice.views.usage import UsageRecord
from lattice_controllers.scheduler.admission import Admission
from lattice_controllers.scheduler.allocation_cache import AllocationCache
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.allocations import Allocations
from lattice_controllers.scheduler.answers import Queries
from lattice_controllers.scheduler.cache_updater import CacheUpdater
from lattice_controllers.scheduler.committer import Changes, Committer, take_over
from lattice_controllers.scheduler.forecasts import Forecasts
from lattice_controllers.scheduler.index_sync import IndexSync
from lattice_controllers.scheduler.ledger_audit import LedgerAudit
from lattice_controllers.scheduler.limit_sync import LimitSync
from lattice_controllers.scheduler.loop import PLAN_SECONDS, Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics, observe_seconds
from lattice_controllers.scheduler.node_liveness import HEARD_AFTER, await_live_nodes, silent_groups
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.occurrences import Occurrences
from lattice_controllers.scheduler.optimality import OptimalityMonitor
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.plans import Plans
from lattice_controllers.scheduler.query_service import QueryService
from lattice_controllers.scheduler.quota_status import QuotaStatus
from lattice_controllers.scheduler.quotas import Quotas
from lattice_controllers.scheduler.recorder import Recorder
from lattice_controllers.scheduler.recovery import Recovery, node_options
from lattice_controllers.scheduler.reservations import Reservations
from lattice_controllers.scheduler.revocations import Revocations
from lattice_controllers.scheduler.silence_sweep import sweep_silence
from lattice_controllers.scheduler.status_rows import StatusCache
from lattice_controllers.scheduler.status_schema import StatusSchema

log = logging.getLogger(__name__)

CONTROLLER = "lattice.dev/scheduler"
CONFIG = "lattice"
RECORDS = Path("/var/lib/lattice/scheduler/cycles")
SURE_SECONDS = 0.1


@dataclass(frozen=True)
class Outside:
    """Everything outside the process that the scheduler uses: API server, clock, random ids, namespace, and folder of records."""

    cluster: Cluster
    clock: Clock
    new_id: Callable[[], str] = lambda: secrets.token_urlsafe(12)
    namespace: str = "lattice-system"
    """The namespace of the operator's Lease."""
    records: Path = RECORDS
    """The folder of the cycle log."""


@dataclass
class Memory:
    """The things that this process remembers from one term of leadership to the next."""

    options: LastKnown[Config] = field(default_factory=lambda: LastKnown[Config](CONFIG))
    """The last LatticeConfig seen; it stays in force when the object is deleted."""
    written: NodeReport | None = None
    """The last commit of this process's earlier terms, as a node that has seen it would report it; None: no term yet."""


class Term:
    """One term of leadership: takes the ledger over, lists everything, then works until deposed or cancelled.

    `working` is True from when everything has been listed. Its parts are built in `_build`; it hears the events of informers, committer,
    nodes and plans, and passes them to the parts that they concern.
    """

    def __init__(self, outside: Outside, measured: SchedulerMetrics, identity: str, memory: Memory) -> None:
        self._memory = memory
        self._outside = outside
        self._measured = measured
        self._identity = identity
        self.working = False
        self.queries: Queries | None = None
        """The query service, which answers readers while this term works; None before it is built."""

    async def run(self) -> None:
        """Takes the ledger over and works until deposed (raises Stale) or until an error ends the term (raises it).

        The last commit of the term is kept in the process's memory for the next one.
        """
        cluster = self._outside.cluster
        book, version = await take_over(cluster, self._outside.new_id, evidence=lambda: _evidence(cluster))
        event(log, "Took over the ledger", epoch=book.head.epoch, seq=book.head.seq, rows=len(book.rows))
        self._build(version, book)
        try:
            async with asyncio.TaskGroup() as reading:
                reading.create_task(self.nodes.load(book.rows.values()))
                reading.create_task(self.recovery.resume())
                reading.create_task(_ensure_config(cluster, fresh=book.head.next_number == 1))
                foreign = reading.create_task(self.quotas.load())
            self.informers += foreign.result()
            self.recovery.recall(self._memory.written)
            async with asyncio.TaskGroup() as group:
                for work in (self.committer.run, self.schema.informer.run, *(informer.run for informer in self.informers)):
                    group.create_task(process.endless(work()))
                await asyncio.gather(*(informer.synced.wait() for informer in self.informers))
                await self.updater.recount()
                self._synced()
                for later in (
                    self.plans.queue.run, self.allocations.queue.run, self.reservations.queue.run, self._cycle, self.forecasts.run,
                    self.optimality.run, self.index_sync.run, self.limit_sync.run, self.audit.watch_ledger, self.audit.verify,
                    self.quota_status.run, self.revocations.run, self.occurrences.run, self.updater.run,
                    lambda: sweep_silence(self._outside.clock, self.nodes, self.leases, self._memory.options),
                ):  # fmt: skip
                    group.create_task(process.endless(later()))
                for ending in (self._hear, self.recorder.run, self.quotas.run):
                    group.create_task(ending())
                group.create_task(self.recovery.run(self.allocations))
        except* LatticeError as ended:
            raise process.first_cause(ended) from None
        finally:
            head = self.committer.stored.head
            self._memory.written = NodeReport(0, head.seq, "", "", epoch=head.epoch, term=head.term)

    def _build(self, version: str, book: Book) -> None:
        """Builds the parts of the term, each after those whose state it reads; each part owns its own state."""
        self.cycle_due = asyncio.Event()
        """Set whenever a cycle may find more than the last one."""
        self._build_state(version, book)
        self._build_decisions()
        self._build_outputs()
        self.committer.observers.append(self)
        self.nodes.observers.append(self)
        self.plans.observers.append(self)

    def _build_state(self, version: str, book: Book) -> None:
        """Builds the parts that hold facts: ledger, nodes, allocations, and the kinds that people declare."""
        cluster, clock, measured, config = self._outside.cluster, self._outside.clock, self._measured, self._memory.options
        self.committer = Committer(cluster, clock, book, version, identity=self._identity, new_id=self._outside.new_id, metrics=measured)
        self.nodes = Nodes(cluster, clock, book, self.cycle_due)
        self.state = ClusterState(self.nodes.node_cache, accounts=self.committer.stored.accounts)
        self.cache = AllocationCache()
        self.schema = StatusSchema(cluster, clock)
        self.tenants: Informer[Tenant] = Informer(cluster, TENANTS, type=Tenant, clock=clock, on_change=self._on_tenant)
        self.vclusters: Informer[VCluster] = Informer(cluster, VCLUSTERS, type=VCluster, clock=clock, on_change=self._on_policy)
        self.configs: Informer[Config] = Informer(cluster, CONFIGS, type=Config, clock=clock, on_change=self._on_config)
        self.records = Records()
        self.usage: Informer[UsageRecord] = Informer(cluster, USAGE_RECORDS, type=UsageRecord, clock=clock, on_change=self._on_record)
        self.quotas = Quotas(cluster, clock, self.state, nodes=self.nodes.nodes, config=config, cycle_due=self.cycle_due)
        self.reservations = Reservations(cluster, clock, self.nodes.node_cache, self.committer, self.cycle_due)
        self.numbers = AllocationNumbers(book.head.next_number, self.committer)
        self.plans = Plans(
            cluster, clock, self.committer, self.nodes, measured, since=book.head.seq, allocations=self.cache.objects,
            numbers=self.numbers,
        )  # fmt: skip
        self.recovery = Recovery(cluster, clock, self.nodes, self.committer, measured, sent=self.plans.sent, config=config)
        self.limit_sync = LimitSync(self.committer, tenants=self.tenants.objects, config=config, cycle_due=self.cycle_due)
        self.index_sync = IndexSync(clock, self.committer, self.nodes)
        self.audit = LedgerAudit(cluster, clock, self.committer, measured)

    def _build_decisions(self) -> None:
        """Builds the parts that decide: pending work, admission, the reconciler, the cache updater, forecasts, and the scheduling loop."""
        cluster, clock, measured, config = self._outside.cluster, self._outside.clock, self._measured, self._memory.options
        self.pending = PendingWork(clock, self.state, measured, self.cycle_due)
        admission = Admission(tenants=self.tenants.objects, vclusters=self.vclusters.objects, config=config, quotas=self.quotas)
        self.allocations = Allocations(
            cluster, clock, self.state, measured, cache=self.cache, pending=self.pending, ledger=self.committer, nodes=self.nodes,
            numbers=self.numbers, vclusters=self.vclusters.objects, config=config, records=self.records, quotas=self.quotas,
            admission=admission, doubts=self.recovery, schema=self.schema, reported=lambda: self.allocation_informer.reported_version,
        )  # fmt: skip
        scoring = Scoring(policies=self.state.policies, timed=partial(observe_seconds, clock, measured.cost_seconds))
        self.updater = CacheUpdater(
            self.state, clock, self.cycle_due, ledger=self.committer, nodes=self.nodes, reservations=self.reservations,
            quotas=self.quotas, allocations=self.allocations, vclusters=self.vclusters.objects, tenants=self.tenants.objects,
            config=config, records=self.records, scoring=scoring,
        )  # fmt: skip
        self.forecasts = Forecasts(
            clock, self.state, self.pending, measured, ledger=self.committer, candidates=self.allocations,
            expectations=self.allocations.expectations,
        )  # fmt: skip
        self.optimality = OptimalityMonitor(clock, self.state, measured)
        self.recorder = Recorder(clock, self.state, measured, self._outside.records, config=config)
        self.loop = Loop(
            clock, self.state, self.pending, measured, self.cycle_due, refresher=self.updater, ledger=self.committer,
            allocations=self.cache.objects, queue=self.allocations.queue, claim_observers=(self.updater, self.forecasts),
            cycle_observers=(self.recorder, self.optimality),
        )  # fmt: skip

    def _build_outputs(self) -> None:
        """Builds the parts that show decisions: revocations, Events, quota status, the query service; and all informers."""
        cluster, clock, measured, config = self._outside.cluster, self._outside.clock, self._measured, self._memory.options
        self.revocations = Revocations(
            clock, self.state, self.pending, self.quotas, self.committer, measured, allocations=self.cache.objects,
            announcer=Announcer(cluster, clock, self._identity, controller=CONTROLLER),
        )  # fmt: skip
        announcer = Announcer(cluster, clock, self._identity, controller=CONTROLLER)
        self.occurrences = Occurrences(clock, announcer, measured, config=config)
        self.quota_status = QuotaStatus(cluster, clock, self.state, self.quotas, self.revocations, self.committer, measured)
        self.allocation_informer = Informer(
            cluster, ALLOCATIONS, type=Allocation, clock=clock, on_change=self._on_allocation, freeze=True, share=SharedParts().allocation
        )
        self.queries = QueryService(
            clock, self.state, self.pending, candidates=self.allocations, numbers=self.cache, starts=self.forecasts,
            vclusters=self.vclusters.objects, tenants=self.tenants.objects, config=config, usage=self.updater, quotas=self.quotas,
            overuse=self.revocations, rows=StatusCache(self.allocation_informer),
        )  # fmt: skip
        self.leases: Informer[Lease] = Informer(
            cluster, LEASES, type=Lease, clock=clock, namespace=NODE_LEASE_NAMESPACE, on_change=self.nodes.on_lease
        )
        self.informers: list[Informer[Any]] = [
            self.leases, self.tenants, self.vclusters, self.configs, self.usage, self.quotas.ours,
            Informer(cluster, NODES, type=Node, clock=clock, on_change=self._on_node, share=SharedParts().node),
            Informer(cluster, PLANS, type=Plan, clock=clock, on_change=self.plans.on_plan),
            Informer(cluster, DAGS, type=DagGate, clock=clock, on_change=self._on_dag),
            Informer(cluster, RESERVATIONS, type=Reservation, clock=clock, on_change=self.reservations.on_reservation),
            self.allocation_informer,
        ]  # fmt: skip

    def _silent(self) -> bool:
        """Tells whether there is a plan none of whose Ready nodes has been heard: they might have seen another ledger than this one."""
        interval = parse_duration(node_options(self._memory.options).heartbeat_interval)
        return bool(silent_groups(self.nodes, self.leases.objects, self._outside.clock.now(), interval))

    def _synced(self) -> None:
        """Fills all parts once everything has been listed, enqueues what there is to reconcile, and sets `working`."""
        self.pending.awaiting_nodes = True
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.quotas.started()
        self.quotas.refresh_for_cycle(self._outside.clock.now())
        self.updater.load()
        self.reservations.started()
        self.forecasts.learn_from(self.allocations.objects.values())
        self.nodes.leases_synced()
        self.allocations.all_rows()
        self.allocations.touch(list(self.allocations.objects))
        self.plans.enqueue(list(self.plans.plans))
        self.plans.enqueue(self.plans.groups())
        self.index_sync.nodes_changed()
        self.limit_sync.limits_changed()
        self.working = True

    # -- what the committer and nodes tell -----------------------------------------------------------

    def rows_changed(self, changes: Changes) -> None:
        """Updates the cluster state by a stored commit, and enqueues the plans and allocations of its rows; makes a cycle due unless all
        rows are new.
        """
        self.updater.rows_changed(changes)
        for old, new in changes:
            self.plans.row_changed(old, new)
            row = new or old
            if row is not None:
                self.allocations.queue.add(row.uid, PLAN_SECONDS if old is None else 0.0)
        if any(old is not None for old, _ in changes):
            self.cycle_due.set()  # the cycle that made a claim has counted it: no other one finds more for that

    def plan_written(self, uids: Collection[str]) -> None:
        """Enqueues these allocations, by uid, so that their status shows the placement now that their nodes can read it."""
        self.allocations.touch(uids)

    def holders_touched(self, uids: Iterable[str]) -> None:
        """Rebuilds the holders of these allocations, by uid, and enqueues the allocations: nodes that they hold have changed."""
        for uid in uids:
            self.updater.refresh_holders(uid)
            self.allocations.queue.add(uid)

    def plans_touched(self, groups: Iterable[str]) -> None:
        """Enqueues these plans, by name; a worker writes each whose stored text differs from the one that the ledger demands."""
        self.plans.enqueue(groups)

    def caches_changed(self) -> None:
        """Enqueues every pending allocation, so that its candidate avoids nodes whose image cache is full and lacks its images."""
        self.allocations.requeue_pending()

    def report_heard(self, node: str, report: NodeReport) -> None:
        """Passes a node's report to the recovery, which pauses the committer where the report shows a seq that this ledger never had."""
        self.recovery.heard(node, report)

    # -- what informers tell ------------------------------------------------------------------------

    def _on_dag(self, change: Change[DagGate]) -> None:
        """Has the members of a changed DAG looked at again."""
        self.allocations.on_dag(change)

    def _on_allocation(self, change: Change[Allocation]) -> None:
        """Passes a changed Allocation to the parts that it concerns; before everything is listed only to the reconciler and to
        reservations.
        """
        self.allocations.on_allocation(change)
        self.reservations.on_allocation(change)
        if not self.working:
            return  # the rest is counted once everything is read
        self.updater.on_allocation(change)
        self.occurrences.on_allocation(change)
        if change.new is not None:
            self.forecasts.learn(change.new)
        elif change.old is not None:
            self.forecasts.drop_allocation(change.old.metadata.uid)

    def _on_record(self, change: Change[UsageRecord]) -> None:
        """Handles a changed UsageRecord: counts its new rows, or drops those of one that is gone, and enqueues the allocations of new rows,
        which may wait for them to be deleted, and those that depend on them.

        Before everything is listed, it is only kept.
        """
        fresh = self.records.put(change.new) if change.new is not None else NOTHING_NEW
        if change.new is None:
            self.records.drop(change.key)
        if not self.working:
            return  # everything is counted once everything is read
        rows = fresh.rows()
        self.updater.usage_recorded(rows)
        ended = {row.uid for row in rows}
        self.allocations.touch(ended | self.allocations.dependencies.followers(ended))

    def _on_tenant(self, change: Change[Tenant]) -> None:
        """Handles a changed Tenant: puts its limits, and once everything is listed its contract, in force and enqueues its pending work.

        A status field that the operator only mirrors changes nothing.
        """
        if change.old is not None and change.new is not None and contract(change.old) == contract(change.new):
            return
        self.limit_sync.limits_changed()
        if self.working:
            self.updater.contracts_changed()
            self.allocations.touch([one.uid for one in self.pending.candidates.values() if one.tenant == change.key])

    def _on_node(self, change: Change[Node]) -> None:
        """Passes a changed LatticeNode to nodes, quota trees, reservations and the index sync, in this order."""
        self.nodes.on_node(change)
        self.quotas.node_changed(change)
        self.reservations.node_changed(change.key)
        self.index_sync.nodes_changed()

    def _on_config(self, change: Change[Config]) -> None:
        """Remembers a changed LatticeConfig beyond the term, and puts it in force."""
        self._memory.options.heard(change)
        self._on_policy(change)

    def _on_policy(self, change: Change[VCluster] | Change[Config]) -> None:
        """Handles a changed VCluster or LatticeConfig: copies limits and, once everything is listed, puts policies, home groups and
        defaults of pending work in force.
        """
        del change
        self.limit_sync.limits_changed()
        if not self.working:
            return
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.updater.policies_changed()
        self.allocations.requeue_pending()

    async def _cycle(self) -> None:
        """Runs the scheduling loop, once nodes of every plan could have told of another ledger."""
        await self._be_sure()
        await self.loop.run()

    async def _be_sure(self) -> None:
        """Waits until a node of each plan could have reported a ledger newer than this one, at most 1.5 heartbeat intervals."""
        clock = self._outside.clock
        until = clock.monotonic() + HEARD_AFTER * parse_duration(node_options(self._memory.options).heartbeat_interval)
        while self._silent() and clock.monotonic() < until:
            await clock.sleep(SURE_SECONDS)

    async def _hear(self) -> None:
        """Waits until node liveness is known (`await_live_nodes`), then makes a cycle due; only from then on statuses show that work waits
        for nodes.
        """
        outside = self._outside
        await await_live_nodes(
            outside.cluster,
            outside.clock,
            self.nodes,
            call=self.plans.call_roll,
            options=node_options(self._memory.options),
            namespace=outside.namespace,
        )
        self.pending.awaiting_nodes = False
        self.cycle_due.set()


def contract(tenant: Tenant) -> tuple[TenantSpec, ExternalBudget | None]:
    """Returns the parts of a Tenant that cycles use: its spec, and the budget that an outside source reported (None: none did)."""
    return tenant.spec, tenant.status.external_budget


async def _ensure_config(cluster: Cluster, *, fresh: bool) -> None:
    """Creates the LatticeConfig of a new cluster, empty, so that operators find it and edit it.

    Where the cluster has had work before (not `fresh`) and the object is gone, it only warns: an empty one would pass for the operators'
    will.
    """
    if not fresh:
        try:
            await cluster.get(CONFIGS, CONFIG, type=Config)
        except NotFound:
            message = "what it said last stays in force, and defaults where this process has never read it: apply it again"
            event(log, "The LatticeConfig is gone", logging.WARNING, message=message)
        return
    body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeConfig", "metadata": {"name": "lattice"}, "spec": {}}
    with contextlib.suppress(AlreadyExists):
        await cluster.create(CONFIGS, body)


async def _evidence(cluster: Cluster) -> str:
    """Returns a sentence on work that a plan or a node's report names; empty: neither names any. Raises Corrupt for a damaged report."""
    for plan in (await cluster.list(PLANS, type=Plan)).items:
        rows = len(plan.spec.text.splitlines()) - 1
        if rows > 0:
            return f"the plan {plan.metadata.name} names {rows} attempts"
    for lease in (await cluster.list(LEASES, NODE_LEASE_NAMESPACE, type=Lease)).items:
        text = lease.metadata.annotations.get(ANNOTATION)
        if text and parse_report(text).rows:
            return f"the node {lease.metadata.name} reports work"
    return ""
