"""The scheduler's program: `build` lists everything that runs while this process leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lattice.daemon import logs, metrics, process, settings
from lattice.daemon.clock import Clock, SystemClock
from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, LatticeError
from lattice.kube.aiohttp import connect
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.leases import Elector
from lattice.kube.resources import ALLOCATIONS, CONFIGS, LEASES, LEDGERS, NODE_INDEXES, NODES, PLANS, TENANTS, VCLUSTERS
from lattice.ledger.commit import Book
from lattice.ledger.plans import plan_name
from lattice.ledger.proposals import Forget, Limits, Proposal
from lattice.ledger.reports import ANNOTATION, parse_report
from lattice.ledger.verify import verify
from lattice.scheduling.candidates import holder_of
from lattice.scheduling.work import Holder
from lattice.units import parse_duration
from lattice.views import Allocation, Config, Lease, Ledger, Node, NodeIndex, Plan, Tenant, VCluster
from lattice_controllers.scheduler.allocations import Allocations
from lattice_controllers.scheduler.answers import ANNOTATION as ANSWERS
from lattice_controllers.scheduler.answers import AnswerServer, Desk, Files
from lattice_controllers.scheduler.committer import Changes, Committer, take_over
from lattice_controllers.scheduler.desk import LoopDesk
from lattice_controllers.scheduler.loop import Loop
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import LEASE_NAMESPACE, Nodes
from lattice_controllers.scheduler.numbers import NumberBlocks
from lattice_controllers.scheduler.plans import Plans
from lattice_controllers.scheduler.recovery import Recovery

log = logging.getLogger(__name__)

PROGRAM = "lattice-scheduler"
VERIFY_SECONDS = 30.0
SETTLE_SECONDS = 0.05
ROLL_CALL_SECONDS = 0.1
"""Between two plans of a roll call: 640 heartbeats a second."""
CAMPAIGN_AGAIN_SECONDS = 1.0
HEARTBEAT_SECONDS, HEARD_AFTER = 10.0, 1.5
"""How often nodes report where no config says it, and how many of their intervals a new leader listens before it says who is silent."""


@dataclass(frozen=True, kw_only=True)
class Settings(settings.CommonSettings):
    """Places allocations on nodes: one leader at a time, any number of standbys."""

    namespace: str = field(default="lattice-system", metadata={"help": "namespace of the leader's Lease"})
    identity: str = field(default="", metadata={"help": "name of this process in the Lease; empty: host, pid and a random part"})
    lease_seconds: float = field(default=15.0, metadata={"help": "how long the Lease lasts without being renewed"})
    answers_listen: str = field(default="", metadata={"help": "HOST:PORT at which the gateway asks why, queue and plan; empty: nowhere"})
    answers_advertise: str = field(default="", metadata={"help": "HOST:PORT by which the gateway reaches it; empty: where it listens"})
    answers_certificate: str = field(default="", metadata={"help": "PEM file of the certificate shown there (host lattice-scheduler)"})
    answers_key: str = field(default="", metadata={"help": "PEM file of its key"})
    answers_ca: str = field(default="", metadata={"help": "PEM file of the CA that the gateway's certificate is checked against"})


@dataclass(frozen=True)
class Outside:
    """What the scheduler needs of the world."""

    cluster: Cluster
    clock: Clock
    new_id: Callable[[], str] = lambda: secrets.token_urlsafe(12)


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
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self.committer.run, *(informer.run for informer in self.informers)):
                    group.create_task(work())
                await asyncio.gather(*(informer.synced.wait() for informer in self.informers))
                self._synced()
                for later in (
                    self.plans.queue.run, self.allocations.queue.run, self.loop.run, self._call_roll,
                    self._keep_nodes, self._keep_tenants, self._verify,
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
            touched=lambda uids: self.allocations.touch(uids),
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
        self.tenants: Informer[Tenant] = Informer(
            cluster, TENANTS, type=Tenant, clock=clock, on_change=lambda _change: self._tenants_dirty.set()
        )
        self.vclusters: Informer[VCluster] = Informer(
            cluster, VCLUSTERS, type=VCluster, clock=clock, on_change=lambda _change: self._requeue()
        )
        self.configs: Informer[Config] = Informer(cluster, CONFIGS, type=Config, clock=clock, on_change=lambda _change: self._configure())
        self.allocations = Allocations(
            cluster, clock, self.committer.stored, self.nodes, measured, propose=self.committer.propose, numbers=numbers,
            vcluster=lambda name: self.vclusters.objects.get(name), config=lambda: self.configs.objects.get("lattice"), stopped=stopped,
        )  # fmt: skip
        self.loop = Loop(
            clock, book, self.nodes.machine, measured, propose=self.committer.propose, allocation=self.allocations.get,
            explained=self.allocations.queue.add, placed=self.allocations.queue.add, stopped=stopped,
        )  # fmt: skip
        self.allocations.loop = self.loop
        self.desk = LoopDesk(
            clock, self.loop, candidate=self.allocations.candidate, holders=self._holders, expected=dict,
            number=lambda uid: self.allocations.number(uid) or None,
            vclusters=lambda: self.vclusters.objects, tenants=lambda: self.tenants.objects,
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
        self.nodes.machine.take(book.holders)
        self.leases: Informer[Lease] = Informer(
            cluster, LEASES, type=Lease, clock=clock, namespace=LEASE_NAMESPACE, on_change=self.nodes.on_lease
        )
        self.informers: list[Informer[Any]] = [
            self.tenants, self.vclusters, self.configs, self.leases,
            Informer(cluster, NODES, type=Node, clock=clock, on_change=self._on_node),
            Informer(cluster, PLANS, type=Plan, clock=clock, on_change=self.plans.on_plan),
            Informer(cluster, ALLOCATIONS, type=Allocation, clock=clock, on_change=self.allocations.on_allocation, freeze=True),
        ]  # fmt: skip

    def _synced(self) -> None:
        config = self.configs.objects.get("lattice")
        beat = parse_duration(config.spec.nodes.heartbeat_interval) if config is not None else HEARTBEAT_SECONDS
        self.loop.hearing_until = self._outside.clock.monotonic() + HEARD_AFTER * beat
        self.nodes.leases_synced()
        self.allocations.all_rows()
        self.allocations.touch(list(self.allocations.objects))
        self.plans.add(list(self.plans.plans))
        self.plans.add(self.plans.groups())
        self._nodes_dirty.set()
        self._tenants_dirty.set()
        self.working = True

    def _holders(self) -> dict[str, Holder]:
        """Who holds nodes by the ledger, and who was placed and is not in it yet."""
        now, found = self._outside.clock.now(), {}
        for row in self.committer.book.rows.values():
            found[row.uid] = holder_of(row, self.allocations.get(row.uid), self.vclusters.objects.get(row.vcluster), since=now)
        return {**found, **self.loop.scene.holders}

    def _changed(self, changes: Changes) -> None:
        """Rows of a commit that stands: free and taken nodes, plans, allocations."""
        for old, new in changes:
            kept = set(new.nodes) if new is not None else set()
            freed = [node for node in old.nodes if node not in kept] if old is not None else []
            if freed:
                self.nodes.machine.give(freed)
                self.loop.wake()
            if new is not None and old is None:
                self.nodes.machine.take(new.nodes)
            self.plans.changed(old, new)
            row = new or old
            if row is not None:
                self.allocations.queue.add(row.uid)

    def _sent(self, node: str) -> int:
        """The highest seq that this term has put into the plan of a node."""
        index = self.nodes.indices.get(node)
        return self.plans.sent.get(plan_name(index), 0) if index is not None else 0

    def _on_node(self, change: object) -> None:
        self.nodes.on_node(change)  # type: ignore[arg-type]
        self._nodes_dirty.set()

    def _requeue(self) -> None:
        self.nodes.on_vclusters(self.vclusters.objects.values())
        self.allocations.touch(list(self.loop.candidates))

    def _configure(self) -> None:
        config = self.configs.objects.get("lattice")
        if config is not None:
            self.loop.interval = max(0.02, parse_duration(config.spec.scheduling.cycle_interval))

    async def _call_roll(self) -> None:
        """Ask the nodes that this process has not seen alive to say so now, one plan after the other, rather than wait for their beat."""
        for group in self.nodes.unheard():
            if group in self.nodes.unheard():
                self.plans.call(group)
            await self._outside.clock.sleep(ROLL_CALL_SECONDS)

    async def _keep_nodes(self) -> None:
        """Give indices, forget nodes, keep the pool's size right."""
        while True:
            await self._nodes_dirty.wait()
            await self._outside.clock.sleep(SETTLE_SECONDS)
            self._nodes_dirty.clear()
            if await self._tried(self.nodes.settle_indices(self.committer.propose)):
                self._nodes_dirty.set()

    async def _keep_tenants(self) -> None:
        """Copy the limits of every tenant into the ledger."""
        while True:
            await self._tenants_dirty.wait()
            self._tenants_dirty.clear()
            known = self.tenants.objects
            wanted = [
                Limits(name, tenant.spec.quota.max_nodes, tenant.spec.quota.max_concurrent_allocations) for name, tenant in known.items()
            ]
            gone = [Forget(name) for name in self.committer.book.accounts if name not in known]
            proposals: list[Proposal] = [*wanted, *gone]
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
            await self._outside.clock.sleep(CAMPAIGN_AGAIN_SECONDS)
            return True
        return False


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


def build(given: Settings, outside: Outside) -> tuple[Iterable[Callable[[], Awaitable[None]]], SchedulerMetrics]:
    """Everything that runs: the campaign for leadership with the work of a term, and the metrics."""
    measured = SchedulerMetrics()
    identity = given.identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    elector = Elector(
        outside.cluster, outside.clock, name=PROGRAM, namespace=given.namespace, identity=identity, lease_seconds=given.lease_seconds
    )
    terms: list[Term] = []
    answering = asyncio.Event()
    if not given.answers_listen:
        answering.set()

    async def campaign() -> None:
        await answering.wait()  # the first write of the Lease says already where it answers
        while True:
            term = Term(outside, measured, identity)
            terms[:] = [term]
            measured.leader.labels(identity).set(0)
            try:
                await elector.lead(term.run)
            except LatticeError as error:
                event(log, "The term has ended", error=error)
            await outside.clock.sleep(CAMPAIGN_AGAIN_SECONDS)

    def ready() -> tuple[bool, str]:
        leading = bool(terms) and terms[0].working
        return True, "leading" if leading else "standby"

    works: list[Callable[[], Awaitable[None]]] = [campaign, lambda: metrics.serve(measured.registry, given.metrics_address, ready)]
    if given.answers_listen:
        works.append(_answering(given, outside, elector, answering, lambda: terms[0].desk if terms and terms[0].working else None))
    return works, measured


def _answering(
    given: Settings, outside: Outside, elector: Elector, listening: asyncio.Event, desk: Callable[[], Desk | None]
) -> Callable[[], Awaitable[None]]:
    """The server of answers, which the leader's Lease names."""
    files = Files(given.answers_certificate, given.answers_key, given.answers_ca)
    server = AnswerServer(files, outside.clock, desk=desk, leader=lambda: elector.holder)

    def listens(host: str, port: int) -> None:
        elector.annotations[ANSWERS] = f"https://{given.answers_advertise or f'{host}:{port}'}"
        listening.set()

    return lambda: server.run(given.answers_listen, listens)


async def run(given: Settings) -> None:
    """Connect and run until cancelled."""
    async with connect(given.kubeconfig, user_agent=PROGRAM) as cluster:
        works, _ = build(given, Outside(cluster, SystemClock()))
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work())  # type: ignore[arg-type]


def main() -> int:
    """The program."""
    given = settings.load(Settings, program=PROGRAM, argv=sys.argv[1:], environ=os.environ)
    logs.setup(given.log_format, given.log_level)
    return process.run(lambda: run(given), PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
