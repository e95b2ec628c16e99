"""One term of leadership: `Term._build` wires everything that runs while this process leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice.accounting.answers import Unsettled
from lattice.accounting.records import Records
from lattice.accounting.settlement import is_settled
from lattice.daemon import process
from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, LatticeError
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import (
    ALLOCATIONS,
    CONFIGS,
    LEASES,
    LEDGERS,
    NODE_INDEXES,
    NODES,
    PLANS,
    RESERVATIONS,
    TENANTS,
    USAGE_RECORDS,
    VCLUSTERS,
)
from lattice.ledger.commit import Book
from lattice.ledger.plans import plan_name
from lattice.ledger.proposals import Forget, Limits, Proposal, SensitivePool
from lattice.ledger.reports import ANNOTATION, parse_report
from lattice.ledger.verify import verify
from lattice.scheduling.policies import preemption_limits
from lattice.scheduling.scene import Scene
from lattice.views import Allocation, Config, Lease, Ledger, Node, NodeIndex, Plan, Tenant, VCluster
from lattice.views.cluster import NodeOptions
from lattice.views.reservation import Reservation
from lattice.views.usage import UsageRecord
from lattice_controllers.scheduler.allocations import Allocations
from lattice_controllers.scheduler.answers import Desk
from lattice_controllers.scheduler.bounds import Bounds
from lattice_controllers.scheduler.committer import Changes, Committer, take_over
from lattice_controllers.scheduler.desk import LoopDesk
from lattice_controllers.scheduler.forecasts import Forecasts
from lattice_controllers.scheduler.gatherer import Gatherer
from lattice_controllers.scheduler.hearing import hear
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import LEASE_NAMESPACE, Nodes
from lattice_controllers.scheduler.numbers import NumberBlocks
from lattice_controllers.scheduler.plans import Plans
from lattice_controllers.scheduler.quota_status import QuotaStatus
from lattice_controllers.scheduler.quotas import Quotas
from lattice_controllers.scheduler.recorder import Recorder, options_of
from lattice_controllers.scheduler.recovery import Recovery
from lattice_controllers.scheduler.reservations import Reservations
from lattice_controllers.scheduler.revocations import Revocations

log = logging.getLogger(__name__)

CONTROLLER = "lattice.dev/scheduler"
RECORDS = Path("/var/lib/lattice/scheduler/cycles")
VERIFY_SECONDS = 30.0
SETTLE_SECONDS = 0.05
AGAIN_SECONDS = 1.0
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


class Term:
    """One term of leadership: taken over, synced, working, until deposed or cancelled."""

    def __init__(self, outside: Outside, measured: SchedulerMetrics, identity: str) -> None:
        self._outside = outside
        self._measured = measured
        self._identity = identity
        self.working = False
        self.desk: Desk | None = None
        """Answers questions, while this term works."""

    async def run(self) -> None:
        """Take over and work until deposed (raises Stale) or until an error ends the term (raises it)."""
        cluster, clock = self._outside.cluster, self._outside.clock
        book, version = await take_over(cluster, self._outside.new_id, evidence=lambda: _evidence(cluster))
        event(log, "Took over the ledger", epoch=book.head.epoch, seq=book.head.seq, rows=len(book.rows))
        self._build(cluster, clock, version, book)
        await self.nodes.load()
        await _ensure_config(cluster)
        self.informers += await self.quotas.load()
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self.committer.run, *(informer.run for informer in self.informers)):
                    group.create_task(work())
                await asyncio.gather(*(informer.synced.wait() for informer in self.informers))
                self._synced()
                for later in (
                    self.plans.queue.run, self.allocations.queue.run, self.reservations.queue.run, self.loop.run, self.forecasts.run,
                    self.recorder.run, self.bounds.run, self._hear, self._keep_nodes, self._keep_tenants, self._verify,
                    self.quotas.run, self.quota_status.run, self.revocations.run,
                ):  # fmt: skip
                    group.create_task(later())
                group.create_task(self.recovery.run(self.allocations.objects.values))
        except* LatticeError as ended:
            raise process.first_cause(ended) from None

    def _build(self, cluster: Cluster, clock: Clock, version: str, book: Book) -> None:
        """Wire the parts; each owns its state, and they speak through the callables given here."""
        measured = self._measured
        self._nodes_dirty, self._tenants_dirty = asyncio.Event(), asyncio.Event()
        self.committer = Committer(
            cluster, clock, book, version, identity=self._identity, new_id=self._outside.new_id, metrics=measured, on_change=self._changed
        )
        self.nodes = Nodes(
            cluster,
            clock,
            touched=self._touched,
            woken=lambda: self.loop.wake(),
            replan=lambda groups: self.plans.add(groups),
            newer_seen=lambda node, seq: self.recovery.newer_seen(node, seq),
        )
        self.recovery = Recovery(
            cluster, clock, self.nodes, self.committer, measured, loaded=book.head.seq - 1, sent=lambda node: self._sent(node)
        )
        self.nodes.holders = lambda index: [book.holders[index]] if index in book.holders else []
        committer = self.committer

        def stopped() -> bool:
            return bool(committer.paused)

        numbers = NumberBlocks(book.head.next_number, self.committer.propose)
        self.tenants: Informer[Tenant] = Informer(cluster, TENANTS, type=Tenant, clock=clock, on_change=lambda _change: self._contracts())
        self.vclusters: Informer[VCluster] = Informer(
            cluster, VCLUSTERS, type=VCluster, clock=clock, on_change=lambda _change: self._policies()
        )
        self.configs: Informer[Config] = Informer(cluster, CONFIGS, type=Config, clock=clock, on_change=lambda _change: self._policies())
        self.records = Records()
        self.usage: Informer[UsageRecord] = Informer(cluster, USAGE_RECORDS, type=UsageRecord, clock=clock, on_change=self._on_record)
        self.allocations = Allocations(
            cluster, clock, self.committer.stored, self.nodes, measured, propose=self.committer.propose, numbers=numbers,
            vcluster=lambda name: self.vclusters.objects.get(name), config=lambda: self.configs.objects.get("lattice"), stopped=stopped,
            settled=lambda allocation: is_settled(allocation, self.records), place=lambda allocation: self._place(allocation),
        )  # fmt: skip
        scene = Scene(self.nodes.machine)
        self.quotas = Quotas(
            cluster, clock, scene, nodes=self.nodes.nodes, config=lambda: self.configs.objects.get("lattice"),
            rebound=self._rebound, woken=lambda: self.loop.wake(),
        )  # fmt: skip
        self.reservations = Reservations(cluster, clock, self.nodes.machine, woken=lambda: self.loop.wake(), stopped=stopped)
        self.gatherer = Gatherer(
            scene, clock, self.committer.stored, self.nodes, self.reservations, allocations=self.allocations.objects,
            vclusters=self.vclusters.objects, tenants=self.tenants.objects, config=lambda: self.configs.objects.get("lattice"),
            woken=lambda: self.loop.wake(), records=self.records, leaf=self.quotas.leaf,
        )  # fmt: skip
        self.bounds = Bounds(clock, scene, measured)
        self.recorder = Recorder(
            clock, scene, measured, self._outside.records, options=lambda: options_of(self.configs.objects.get("lattice")),
            cycle=lambda: self.loop.cycles,
        )  # fmt: skip
        self.loop = Loop(
            clock, scene, measured, ready=self._ready, propose=self.committer.propose, allocation=self.allocations.get,
            explained=self._explain, placed=self.allocations.queue.add, confirmed=self._confirmed, stopped=stopped,
            judged=self.bounds.judged, look=self.recorder.look,
        )  # fmt: skip
        self.allocations.loop = self.loop
        announcer = Announcer(cluster, clock, self._identity, controller=CONTROLLER)
        self.revocations = Revocations(
            clock, self.loop, self.quotas, self.committer.stored, measured, propose=self.committer.propose,
            allocation=self.allocations.get, announcer=announcer, stopped=stopped,
        )  # fmt: skip
        self.quota_status = QuotaStatus(
            cluster, clock, scene, self.quotas, measured, over=lambda: self.revocations.over,
            over_since=self.revocations.over_since, stopped=stopped,
        )  # fmt: skip
        self.forecasts = Forecasts(
            clock, self.loop, measured, candidate=self.allocations.candidate, took=self.allocations.expectations.take, stopped=stopped
        )
        self.desk = LoopDesk(
            clock, self.loop, candidate=self.allocations.candidate, holders=lambda: scene.holders,
            expected=lambda: self.allocations.expectations.found,
            number=lambda uid: self.allocations.number(uid) or None,
            vclusters=lambda: self.vclusters.objects, tenants=lambda: self.tenants.objects, suppose=self.forecasts.suppose,
            bursts=lambda tenant: self.gatherer.scoring.shares.burst(tenant, clock.now()) > 0,
            limits=lambda: preemption_limits(self.configs.objects.get("lattice")),
            bindings=lambda: self.quotas.bindings, over_since=lambda: self.revocations.over_since(),
            unsettled=lambda: Unsettled(self.records.version, list(self.gatherer.tally.unsettled())),
        )  # fmt: skip
        self.plans = Plans(
            cluster,
            clock,
            self.committer.stored,
            self.nodes,
            measured,
            epoch=book.head.epoch,
            allocation=self.allocations.get,
            number=self.allocations.number,
            stopped=stopped,
        )
        self.leases: Informer[Lease] = Informer(
            cluster, LEASES, type=Lease, clock=clock, namespace=LEASE_NAMESPACE, on_change=self.nodes.on_lease
        )
        self.informers: list[Informer[Any]] = [
            self.tenants, self.vclusters, self.configs, self.leases, self.usage, self.quotas.ours,
            Informer(cluster, NODES, type=Node, clock=clock, on_change=self._on_node),
            Informer(cluster, PLANS, type=Plan, clock=clock, on_change=self.plans.on_plan),
            Informer(cluster, RESERVATIONS, type=Reservation, clock=clock, on_change=self.reservations.on_reservation),
            Informer(cluster, ALLOCATIONS, type=Allocation, clock=clock, on_change=self._on_allocation, freeze=True),
        ]  # fmt: skip

    def _synced(self) -> None:
        self.loop.hearing = True
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.quotas.started()
        self.quotas.ready(self._outside.clock.now())
        self.gatherer.started()
        self.reservations.started()
        self.forecasts.load(self.allocations.objects.values())
        self.nodes.leases_synced()
        self.allocations.all_rows()
        self.allocations.touch(list(self.allocations.objects))
        self.plans.add(list(self.plans.plans))
        self.plans.add(self.plans.groups())
        self._nodes_dirty.set()
        self._tenants_dirty.set()
        self.working = True

    def _ready(self, now: float) -> float | None:
        """Bring the scene up to date; when time alone changes it next, in seconds since the epoch."""
        wakes = self.gatherer.ready(now), self.quotas.ready(now)
        return min((wake for wake in wakes if wake is not None), default=None)

    def _place(self, allocation: Allocation) -> tuple[str, int | None]:
        """The leaf of an allocation in the quota tree, and the nodes that its tree divides (None: any)."""
        leaf = self.quotas.leaf(allocation)
        return leaf, self.quotas.within(leaf)

    def _rebound(self) -> None:
        """Work may belong to other groups of the quota tree, or to other nodes."""
        if not self.working:
            return  # it is looked at once everything is read
        self.gatherer.leaves_changed()
        for uid in list(self.loop.candidates):
            allocation = self.allocations.get(uid)
            if allocation is not None:
                self.loop.want(self.allocations.candidate(allocation))

    def _changed(self, changes: Changes) -> None:
        """Rows of a commit that stands: free and taken nodes, plans, allocations."""
        self.gatherer.rows_changed(changes)
        for old, new in changes:
            self.plans.changed(old, new)
            row = new or old
            if row is not None:
                self.allocations.queue.add(row.uid)
        self.loop.wake()

    def _explain(self, uid: str) -> None:
        """Why it waits is shown a moment later, after all that cannot wait: what starts at once is written once."""
        self.allocations.queue.add(uid, EXPLAIN_SECONDS, late=True)

    def _confirmed(self, uid: str) -> None:
        """The ledger holds what a cycle claimed."""
        self.gatherer.refresh(uid)
        self.forecasts.started(uid)

    def _touched(self, uids: Iterable[str]) -> None:
        """Nodes of these changed."""
        for uid in uids:
            self.gatherer.refresh(uid)
            self.allocations.queue.add(uid)

    def _on_allocation(self, change: Change[Allocation]) -> None:
        self.allocations.on_allocation(change)
        self.reservations.on_allocation(change)
        if not self.working:
            return  # the rest is counted once everything is read
        self.gatherer.on_allocation(change)
        if change.new is not None:
            self.forecasts.learn(change.new)
        elif change.old is not None:
            self.forecasts.forget(change.old.metadata.uid)

    def _on_record(self, change: Change[UsageRecord]) -> None:
        """A usage record has grown: what it holds counts from there, and allocations that waited for it may go."""
        restarts = self.records.restarts
        rows = self.records.put(change.new) if change.new is not None else []
        if change.new is None:
            self.records.drop(change.key)
        if not self.working:
            return  # everything is counted once everything is read
        if self.records.restarts != restarts:
            self.gatherer.count_again()
        self.gatherer.tally.settle(rows)
        self.allocations.touch({row.uid for row in rows})

    def _contracts(self) -> None:
        self._tenants_dirty.set()
        if self.working:
            self.gatherer.contracts_changed()

    def _sent(self, node: str) -> int:
        """The highest seq that this term has put into the plan of a node."""
        index = self.nodes.indices.get(node)
        return self.plans.sent.get(plan_name(index), 0) if index is not None else 0

    def _on_node(self, change: Change[Node]) -> None:
        self.nodes.on_node(change)
        self.quotas.node_changed(change)
        self.reservations.node_changed(change.key)
        self._nodes_dirty.set()

    def _policies(self) -> None:
        """VClusters or options changed: policies, homes, defaults of what waits."""
        self._tenants_dirty.set()
        if not self.working:
            return
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.gatherer.policies_changed()
        self.allocations.touch(list(self.loop.candidates))

    async def _hear(self) -> None:
        """What waits for nodes, and when it may start, is told once it is known which nodes are alive."""
        config = self.configs.objects.get("lattice")
        options = config.spec.nodes if config is not None else NodeOptions()
        outside = self._outside
        await hear(outside.cluster, outside.clock, self.nodes, call=self.plans.call, options=options, namespace=outside.namespace)
        self.loop.hearing = False
        self.loop.wake()

    async def _keep_nodes(self) -> None:
        """Give indices, forget nodes, keep the pool's size right."""
        while True:
            await self._nodes_dirty.wait()
            await self._outside.clock.sleep(SETTLE_SECONDS)
            self._nodes_dirty.clear()
            if await self._tried(self.nodes.settle_indices(self.committer.propose)):
                self._nodes_dirty.set()

    async def _keep_tenants(self) -> None:
        """Copy the limits of every tenant, and the size of the sensitive pool, into the ledger."""
        while True:
            await self._tenants_dirty.wait()
            self._tenants_dirty.clear()
            known = self.tenants.objects
            config = self.configs.objects.get("lattice")
            pool = SensitivePool(config.spec.scheduling.sensitive_pool_size if config is not None else 0)
            wanted = [limits_of(tenant) for tenant in known.values()]
            gone = [Forget(name) for name in self.committer.book.accounts if name not in known]
            proposals: list[Proposal] = [pool, *wanted, *gone]
            for answer in [self.committer.propose(proposal) for proposal in proposals]:
                await answer
            self.loop.wake()

    async def _verify(self) -> None:
        """Have the independent verifier look at what etcd really holds."""
        cluster = self._outside.cluster
        while True:
            await self._outside.clock.sleep(VERIFY_SECONDS)
            await self._tried(self._verify_once(cluster))

    async def _verify_once(self, cluster: Cluster) -> None:
        index = await cluster.get(NODE_INDEXES, "lattice", type=NodeIndex)
        ledger = await cluster.get(LEDGERS, "lattice", type=Ledger)
        if ledger.status is None:
            return
        faults = verify(ledger.status, {int(number): name for number, name in index.spec.names.items()})
        self._measured.faults.set(len(faults))
        for fault in faults:
            event(log, "The ledger has a fault", fault=fault)

    async def _tried(self, work: Awaitable[None]) -> bool:
        """Whether the work failed and is to be tried again."""
        try:
            await work
        except LatticeError as error:
            event(log, "Trying again", error=error)
            await self._outside.clock.sleep(AGAIN_SECONDS)
            return True
        return False


def limits_of(tenant: Tenant) -> Limits:
    """The hard limits that a tenant asks for, as the ledger keeps them."""
    quota = tenant.spec.quota
    own = quota.per_user
    return Limits(tenant.metadata.name, quota.max_nodes, quota.max_concurrent_allocations, own.max_nodes, own.max_running)


async def _ensure_config(cluster: Cluster) -> None:
    """Make the one LatticeConfig, empty: every option at its default, and there to be edited."""
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
