"""One term of leadership: everything that runs while this process leads, wired together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lattice.accounting.answers import Unsettled
from lattice.accounting.records import NOTHING_NEW, Records
from lattice.accounting.settlement import is_settled
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
    LEASES,
    NODES,
    PLANS,
    RESERVATIONS,
    TENANTS,
    USAGE_RECORDS,
    VCLUSTERS,
)
from lattice.ledger.commit import Book
from lattice.ledger.plans import plan_name
from lattice.ledger.reports import ANNOTATION, NodeReport, parse_report
from lattice.scheduling.conversion.policies import preemption_limits
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.state.scene import Scene
from lattice.units import parse_duration
from lattice.views import Allocation, Config, Lease, Node, Plan, Tenant, VCluster
from lattice.views.cluster import ExternalBudget, NodeOptions, TenantSpec
from lattice.views.reservation import Reservation
from lattice.views.usage import UsageRecord
from lattice_controllers.scheduler.admission import Admission
from lattice_controllers.scheduler.allocation_numbers import AllocationNumbers
from lattice_controllers.scheduler.allocations import Allocations
from lattice_controllers.scheduler.answers import Queries
from lattice_controllers.scheduler.cache_updater import CacheUpdater
from lattice_controllers.scheduler.committer import Changes, Committer, take_over
from lattice_controllers.scheduler.forecasts import Forecasts
from lattice_controllers.scheduler.index_sync import IndexSync
from lattice_controllers.scheduler.ledger_audit import LedgerAudit
from lattice_controllers.scheduler.limit_sync import LimitSync
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics, observe_seconds
from lattice_controllers.scheduler.node_liveness import HEARD_AFTER, await_live_nodes, silent_groups
from lattice_controllers.scheduler.nodes import LEASE_NAMESPACE, Nodes
from lattice_controllers.scheduler.occurrences import Occurrences
from lattice_controllers.scheduler.optimality import OptimalityMonitor
from lattice_controllers.scheduler.plans import Plans
from lattice_controllers.scheduler.query_service import QueryService
from lattice_controllers.scheduler.quota_status import QuotaStatus
from lattice_controllers.scheduler.quotas import Quotas
from lattice_controllers.scheduler.recorder import Recorder, options_of
from lattice_controllers.scheduler.recovery import Recovery
from lattice_controllers.scheduler.reservations import Reservations
from lattice_controllers.scheduler.revocations import Revocations
from lattice_controllers.scheduler.silence_sweep import sweep_silence

log = logging.getLogger(__name__)

CONTROLLER = "lattice.dev/scheduler"
CONFIG = "lattice"
RECORDS = Path("/var/lib/lattice/scheduler/cycles")
SURE_SECONDS = 0.1
EXPLAIN_SECONDS = 0.2
"""How long a reason must stand before it is shown."""


@dataclass(frozen=True)
class Outside:
    """What the scheduler needs of the world."""

    cluster: Cluster
    clock: Clock
    new_id: Callable[[], str] = lambda: secrets.token_urlsafe(12)
    namespace: str = "lattice-system"
    """Where the operator's Lease is."""
    records: Path = RECORDS
    """Where cycles are recorded, when they are."""


@dataclass
class Memory:
    """What outlives a term in this process."""

    options: LastKnown[Config] = field(default_factory=lambda: LastKnown[Config](CONFIG))
    """A LatticeConfig that somebody deletes stays in force."""
    written: NodeReport | None = None
    """The last commit of the terms before, as a node that has seen it would report it."""


class Term:
    """One term of leadership: taken over, synced, working, until deposed or cancelled."""

    def __init__(self, outside: Outside, measured: SchedulerMetrics, identity: str, memory: Memory) -> None:
        self._memory = memory
        self._outside = outside
        self._measured = measured
        self._identity = identity
        self.working = False
        self._unsure = True
        self.queries: Queries | None = None
        """Answers questions, while this term works."""

    async def run(self) -> None:
        """Take over and work until deposed (raises Stale) or until an error ends the term (raises it)."""
        cluster = self._outside.cluster
        book, version = await take_over(cluster, self._outside.new_id, evidence=lambda: _evidence(cluster))
        event(log, "Took over the ledger", epoch=book.head.epoch, seq=book.head.seq, rows=len(book.rows))
        self._build(version, book)
        try:
            async with asyncio.TaskGroup() as reading:
                reading.create_task(self.nodes.load(book.rows.values()))
                reading.create_task(self.recovery.load())
                reading.create_task(_ensure_config(cluster, fresh=book.head.next_number == 1))
                foreign = reading.create_task(self.quotas.load())
            self.informers += foreign.result()
            self.recovery.recall(self._memory.written)
            async with asyncio.TaskGroup() as group:
                for work in (self.committer.run, *(informer.run for informer in self.informers)):
                    group.create_task(process.endless(work()))
                await asyncio.gather(*(informer.synced.wait() for informer in self.informers))
                await self.updater.recount()
                self._synced()
                for later in (
                    self.plans.queue.run, self.allocations.queue.run, self.reservations.queue.run, self.loop.run, self.forecasts.run,
                    self.optimality.run, self.index_sync.run, self.limit_sync.run, self.audit.watch_ledger, self.audit.verify,
                    self.quota_status.run, self.revocations.run, self.occurrences.run, self.updater.run,
                    lambda: sweep_silence(self._outside.clock, self.nodes, self.leases, self._config),
                ):  # fmt: skip
                    group.create_task(process.endless(later()))
                for ending in (self._hear, self._be_sure, self.recorder.run, self.quotas.run):
                    group.create_task(ending())
                group.create_task(self.recovery.run(self.allocations.objects.values))
        except* LatticeError as ended:
            raise process.first_cause(ended) from None
        finally:
            head = self.committer.stored.head
            self._memory.written = NodeReport(0, head.seq, "", "", epoch=head.epoch, term=head.term)

    def _build(self, version: str, book: Book) -> None:
        """Wire the parts; each owns its state, and they speak through the callables given here."""
        self._build_state(version, book)
        self._build_decisions(book)
        self._build_tellers(book)

    def _build_state(self, version: str, book: Book) -> None:
        """What is true: the ledger, nodes, and the kinds that people declare."""
        cluster, clock, measured = self._outside.cluster, self._outside.clock, self._measured
        self.committer = Committer(
            cluster, clock, book, version, identity=self._identity, new_id=self._outside.new_id, metrics=measured, on_change=self._changed
        )
        self.nodes = Nodes(
            cluster, clock, touched=self._touched, woken=self._wake, replan=lambda groups: self.plans.enqueue(groups),
            heard=lambda node, report: self.recovery.heard(node, report),
        )  # fmt: skip
        self.nodes.holders = lambda index: [book.holders[index]] if index in book.holders else []
        self.recovery = Recovery(
            cluster, clock, self.nodes, self.committer, measured, sent=self._sent, options=self._node_options, lifted=self._lifted
        )
        self.tenants: Informer[Tenant] = Informer(cluster, TENANTS, type=Tenant, clock=clock, on_change=self._on_tenant)
        self.vclusters: Informer[VCluster] = Informer(cluster, VCLUSTERS, type=VCluster, clock=clock, on_change=self._on_policy)
        self.configs: Informer[Config] = Informer(cluster, CONFIGS, type=Config, clock=clock, on_change=self._on_config)
        self.records = Records()
        self.usage: Informer[UsageRecord] = Informer(cluster, USAGE_RECORDS, type=UsageRecord, clock=clock, on_change=self._on_record)
        self.limit_sync = LimitSync(self.committer, tenants=self.tenants.objects, config=self._config, woken=self._wake)
        self.index_sync = IndexSync(clock, self.committer, self.nodes)
        self.audit = LedgerAudit(cluster, clock, self.committer, measured)

    def _build_decisions(self, book: Book) -> None:
        """What turns that into decisions: the scene, what is gathered into it, and the loop that decides."""
        cluster, clock, measured, propose = self._outside.cluster, self._outside.clock, self._measured, self.committer.propose
        admission = Admission(
            tenants=self.tenants.objects, vclusters=self.vclusters.objects, config=self._config, layout=lambda: self.quotas.layout,
            again=lambda uids: self.allocations.touch(uids),
        )  # fmt: skip
        self.allocations = Allocations(
            cluster, clock, self.committer.stored, self.nodes, measured,
            propose=propose, numbers=AllocationNumbers(book.head.next_number, propose), stopped=self._stopped,
            vcluster=self.vclusters.objects.get, config=self._config,
            settled=lambda allocation: is_settled(allocation, self.records), place=self._place, admission=admission,
            held=self.recovery.held,
        )  # fmt: skip
        self.scene = Scene(self.nodes.machine)
        self.quotas = Quotas(
            cluster, clock, self.scene, nodes=self.nodes.nodes, config=self._config, rebound=self._rebound, woken=self._wake
        )
        self.reservations = Reservations(cluster, clock, self.nodes.machine, woken=self._wake, stopped=self._stopped)
        scoring = Scoring(policies=self.scene.policies, timed=partial(observe_seconds, clock, measured.cost_seconds))
        self.updater = CacheUpdater(
            self.scene, clock, self.committer.stored, self.nodes, self.reservations, allocations=self.allocations.objects,
            vclusters=self.vclusters.objects, tenants=self.tenants.objects, config=self._config, woken=self._wake,
            records=self.records, leaf=self.quotas.leaf, scoring=scoring,
        )  # fmt: skip
        self.optimality = OptimalityMonitor(clock, self.scene, measured)
        self.recorder = Recorder(
            clock, self.scene, measured, self._outside.records, options=lambda: options_of(self._config()), cycle=lambda: self.loop.cycles
        )
        self.loop = Loop(
            clock, self.scene, measured, ready=self._ready, propose=propose, allocation=self.allocations.get,
            explained=self._explain, placed=self.allocations.queue.add, confirmed=self._confirmed,
            stopped=lambda: self._unsure or self._stopped(),
            judged=self.optimality.judged, look=self.recorder.begin_turn, budget=self.allocations.budget,
        )  # fmt: skip
        self.allocations.loop = self.loop

    def _build_tellers(self, book: Book) -> None:
        """What carries decisions to nodes and people: revocations, plans, status, forecasts, answers."""
        cluster, clock, measured, stopped = self._outside.cluster, self._outside.clock, self._measured, self._stopped
        self.revocations = Revocations(
            clock, self.loop, self.quotas, self.committer.stored, measured, propose=self.committer.propose, stopped=stopped,
            allocation=self.allocations.get, announcer=Announcer(cluster, clock, self._identity, controller=CONTROLLER),
            published=self.quotas.over_since,
        )  # fmt: skip
        announcer = Announcer(cluster, clock, self._identity, controller=CONTROLLER)
        self.occurrences = Occurrences(clock, announcer, measured, config=self._config)
        self.quota_status = QuotaStatus(
            cluster, clock, self.scene, self.quotas, measured, over=lambda: self.revocations.over,
            over_since=self.revocations.over_since, stopped=stopped,
        )  # fmt: skip
        self.forecasts = Forecasts(
            clock,
            self.loop,
            measured,
            candidate=self.allocations.candidate,
            took=self.allocations.expectations.accept_forecast,
            stopped=stopped,
        )
        self.queries = QueryService(
            clock, self.loop, candidate=self.allocations.candidate,
            expected=lambda: self.allocations.expectations.found, number=self.allocations.shown_number,
            vclusters=lambda: self.vclusters.objects, tenants=lambda: self.tenants.objects, suppose=self.forecasts.suppose,
            bursts=lambda tenant: self.updater.scoring.shares.burst(tenant, clock.now()) > 0,
            limits=lambda: preemption_limits(self._config()),
            bindings=lambda: self.quotas.bindings, over_since=self.revocations.over_since, remarks=self.quotas.remarks,
            unsettled=lambda: Unsettled(self.records.version, list(self.updater.tally.unsettled())),
        )  # fmt: skip
        self.plans = Plans(
            cluster, clock, self.committer.stored, self.nodes, measured, since=book.head.seq,
            allocation=self.allocations.get, number=self.allocations.number, stopped=stopped,
        )  # fmt: skip
        self.leases: Informer[Lease] = Informer(
            cluster, LEASES, type=Lease, clock=clock, namespace=LEASE_NAMESPACE, on_change=self.nodes.on_lease
        )
        self.informers: list[Informer[Any]] = [
            self.leases, self.tenants, self.vclusters, self.configs, self.usage, self.quotas.ours,
            Informer(cluster, NODES, type=Node, clock=clock, on_change=self._on_node),
            Informer(cluster, PLANS, type=Plan, clock=clock, on_change=self.plans.on_plan),
            Informer(cluster, RESERVATIONS, type=Reservation, clock=clock, on_change=self.reservations.on_reservation),
            Informer(cluster, ALLOCATIONS, type=Allocation, clock=clock, on_change=self._on_allocation, freeze=True),
        ]  # fmt: skip

    def _config(self) -> Config | None:
        return self._memory.options.object

    def _stopped(self) -> bool:
        """Whether nothing may be written: the ledger waits for its recovery."""
        return bool(self.committer.paused)

    def _silent(self) -> bool:
        """Whether nodes may have seen another ledger than this one, and have not been heard."""
        interval = parse_duration(self._node_options().heartbeat_interval)
        return bool(silent_groups(self.nodes, self.leases.objects, self._outside.clock.now(), interval))

    def _node_options(self) -> NodeOptions:
        config = self._config()
        return config.spec.nodes if config is not None else NodeOptions()

    def _lifted(self) -> None:
        """What was held after a recovery is looked at again."""
        self.allocations.touch(list(self.loop.candidates))

    def _wake(self) -> None:
        self.loop.wake()

    def _synced(self) -> None:
        self.loop.awaiting_nodes = True
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.quotas.started()
        self.quotas.ready(self._outside.clock.now())
        self.updater.load()
        self.reservations.started()
        self.forecasts.load(self.allocations.objects.values())
        self.nodes.leases_synced()
        self.allocations.all_rows()
        self.allocations.touch(list(self.allocations.objects))
        self.plans.enqueue(list(self.plans.plans))
        self.plans.enqueue(self.plans.groups())
        self.index_sync.nodes_changed()
        self.limit_sync.limits_changed()
        self.working = True

    def _ready(self, now: float) -> float | None:
        """Bring the scene up to date; when time alone changes it next, in seconds since the epoch."""
        wakes = self.updater.refresh_for_cycle(now), self.quotas.ready(now)
        return min((wake for wake in wakes if wake is not None), default=None)

    def _place(self, allocation: Allocation) -> tuple[str, int | None]:
        """The leaf of an allocation in the quota tree, and the nodes that its tree divides (None: any)."""
        leaf = self.quotas.leaf(allocation)
        return leaf, self.quotas.within(leaf)

    def _rebound(self) -> None:
        """Work may belong to other groups of the quota tree, or to other nodes."""
        if not self.working:
            return  # it is looked at once everything is read
        self.updater.leaves_changed()
        for uid in list(self.loop.candidates):
            allocation = self.allocations.get(uid)
            if allocation is not None:
                self.loop.enqueue(self.allocations.candidate(allocation))

    def _changed(self, changes: Changes) -> None:
        """Rows of a commit that stands: free and taken nodes, plans, allocations."""
        self.updater.rows_changed(changes)
        for old, new in changes:
            self.plans.row_changed(old, new)
            row = new or old
            if row is not None:
                self.allocations.queue.add(row.uid)
        self.loop.wake()

    def _explain(self, uid: str) -> None:
        """Why it waits is shown a moment later, after all that cannot wait: what starts at once is written once."""
        self.allocations.queue.add(uid, EXPLAIN_SECONDS, late=True)

    def _confirmed(self, uid: str) -> None:
        """The ledger holds what a cycle claimed."""
        self.updater.refresh_holders(uid)
        self.forecasts.started(uid)

    def _touched(self, uids: Iterable[str]) -> None:
        """Nodes of these changed."""
        for uid in uids:
            self.updater.refresh_holders(uid)
            self.allocations.queue.add(uid)

    def _on_allocation(self, change: Change[Allocation]) -> None:
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
        """A usage record has grown: what it holds counts from there, and allocations that waited for it may go."""
        fresh = self.records.put(change.new) if change.new is not None else NOTHING_NEW
        if change.new is None:
            self.records.drop(change.key)
        if not self.working:
            return  # everything is counted once everything is read
        rows = fresh.rows()
        self.updater.usage_recorded(rows)
        self.allocations.touch({row.uid for row in rows})

    def _on_tenant(self, change: Change[Tenant]) -> None:
        """A contract was made, changed or ended; what the operator mirrors into the status changes nothing."""
        if change.old is not None and change.new is not None and contract(change.old) == contract(change.new):
            return
        self.limit_sync.limits_changed()
        if self.working:
            self.updater.contracts_changed()
            self.allocations.touch([one.uid for one in self.loop.candidates.values() if one.tenant == change.key])

    def _sent(self, node: str) -> int:
        """The highest seq that this term has put into the plan of a node."""
        index = self.nodes.indices.get(node)
        return self.plans.sent.get(plan_name(index), 0) if index is not None else 0

    def _on_node(self, change: Change[Node]) -> None:
        self.nodes.on_node(change)
        self.quotas.node_changed(change)
        self.reservations.node_changed(change.key)
        self.index_sync.nodes_changed()

    def _on_config(self, change: Change[Config]) -> None:
        self._memory.options.heard(change)
        self._on_policy(change)

    def _on_policy(self, change: Change[VCluster] | Change[Config]) -> None:
        """VClusters or options changed: policies, homes, defaults of what waits."""
        del change
        self.limit_sync.limits_changed()
        if not self.working:
            return
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.updater.policies_changed()
        self.allocations.touch(list(self.loop.candidates))

    async def _be_sure(self) -> None:
        """Nothing is placed before nodes of each plan could say that the ledger went back, or have been silent for long."""
        clock = self._outside.clock
        until = clock.monotonic() + HEARD_AFTER * parse_duration(self._node_options().heartbeat_interval)
        while self._silent() and clock.monotonic() < until:
            await clock.sleep(SURE_SECONDS)
        self._unsure = False
        self.loop.wake()

    async def _hear(self) -> None:
        """What waits for nodes, and when it may start, is told once it is known which nodes are alive."""
        outside = self._outside
        await await_live_nodes(
            outside.cluster, outside.clock, self.nodes, call=self.plans.call_roll, options=self._node_options(), namespace=outside.namespace
        )
        self.loop.awaiting_nodes = False
        self.loop.wake()


def contract(tenant: Tenant) -> tuple[TenantSpec, ExternalBudget | None]:
    """What was agreed with a tenant, and what an outside source told of its budget."""
    return tenant.spec, tenant.status.external_budget


async def _ensure_config(cluster: Cluster, *, fresh: bool) -> None:
    """Make the one LatticeConfig of a new cluster, empty: every option at its default, and there to be edited.

    Of a cluster that has had work it is gone, and an empty one would pass for what its operators have chosen.
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
    """Work that a plan or a report names, as a sentence; empty when there is none."""
    for plan in (await cluster.list(PLANS, type=Plan)).items:
        rows = len(plan.spec.text.splitlines()) - 1
        if rows > 0:
            return f"the plan {plan.metadata.name} names {rows} attempts"
    for lease in (await cluster.list(LEASES, LEASE_NAMESPACE, type=Lease)).items:
        text = lease.metadata.annotations.get(ANNOTATION)
        if text and parse_report(text).rows:
            return f"the node {lease.metadata.name} reports work"
    return ""
