"""The operator's program: `build` lists everything that runs while this process leads."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import lattice.lean_aiohttp  # noqa: F401 - before everything that loads aiohttp
from lattice.clients.containers import find_container
from lattice.clients.kept_lists import KeptLists
from lattice.clients.uenv_images import opened
from lattice.daemon import process, program, settings
from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock, SystemClock
from lattice.daemon.logs import event
from lattice.daemon.node_certificates import LIFETIME_SECONDS
from lattice.daemon.process import first_cause
from lattice.daemon.scrapers import Scrapers, serve_metrics
from lattice.errors import Corrupt, LatticeError, Rejected
from lattice.kube.aiohttp import AiohttpCluster
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.leases import Elector
from lattice.kube.resources import ALLOCATIONS, CONFIGS, DAGS, RESERVATIONS, TENANTS, VCLUSTERS, Resource
from lattice.ledger.reports import UNHEARD
from lattice.units import parse_duration
from lattice.views import Allocation, Reservation
from lattice.views.sharing import SharedParts
from lattice_controllers.operator.agents import Agents
from lattice_controllers.operator.configs import Configs
from lattice_controllers.operator.dag_members import MemberIndex, MemberMaker
from lattice_controllers.operator.dags import Dags
from lattice_controllers.operator.fail_open import FailOpen
from lattice_controllers.operator.hours import Hours
from lattice_controllers.operator.kinds import Declared, Kinds, KopfKinds
from lattice_controllers.operator.ledger import LedgerMirror
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.nodes import NodeStates
from lattice_controllers.operator.profiles import Profiles
from lattice_controllers.operator.requests import BY_ANOTHER, Requests, Signing
from lattice_controllers.operator.retention import Retention
from lattice_controllers.operator.settlement import Settlement
from lattice_controllers.operator.software import FindContainer, OpenImages, SoftwareResolver
from lattice_controllers.operator.tenants import Tenants
from lattice_controllers.operator.usage import Usage
from lattice_controllers.operator.vclusters import VClusters

log = logging.getLogger(__name__)

PROGRAM = "lattice-operator"
LEDGER_SECONDS = 5.0
CAMPAIGN_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings(settings.CommonSettings):
    """Looks after tenants, vclusters, configuration and nodes: one leader at a time, any number of standbys."""

    namespace: str = field(default="lattice-system", metadata={"help": "namespace of the leader's Lease"})
    identity: str = field(default="", metadata={"help": "name of this process in the Lease; empty: host, pid and a random part"})
    lease_seconds: float = field(default=15.0, metadata={"help": "how long the Lease lasts without being renewed"})
    agents_ca_certificate: str = field(
        default="", metadata={"help": "authority of the agents, with which their certificates are renewed; empty: another signer does it"}
    )
    agents_ca_key: str = field(default="", metadata={"help": "its key"})
    node_certificate_lifetime: str = field(default="30d", metadata={"help": "how long such a certificate lives, 30d at most"})
    registry_auth: str = field(default="", metadata={"help": "file with the logins to registries, of Docker's form (auths)"})

    def __post_init__(self) -> None:
        """Raises Rejected where the settings contradict each other or the lifetime of certificates is out of range."""
        if bool(self.agents_ca_certificate) != bool(self.agents_ca_key):
            raise Rejected("--agents-ca-certificate and --agents-ca-key belong together", reason="SettingWrong")
        if not 0 < parse_duration(self.node_certificate_lifetime) <= LIFETIME_SECONDS:
            raise Rejected(
                f"--node-certificate-lifetime {self.node_certificate_lifetime}: more than nothing, 30d at most", reason="SettingWrong"
            )

    def signing(self) -> Signing:
        """Returns the files of the agents' authority and the lifetime of the certificates that it signs, in seconds."""
        return Signing(self.agents_ca_certificate, self.agents_ca_key, parse_duration(self.node_certificate_lifetime))


@dataclass(frozen=True)
class Outside:
    """Everything outside the process that the operator uses: API server, clock, the watch of declared kinds, the agents' authority."""

    cluster: Cluster
    clock: Clock
    kinds: Kinds
    server_metrics: Callable[[], Awaitable[str]] | None = None
    """Reads the API server's own metrics; None: they are not read, and requests that passed without the webhook go unnoticed."""
    signing: Signing = BY_ANOTHER
    images: OpenImages = lambda options: opened(options, "")
    """Opens the site's registry of software environments."""
    containers: FindContainer = find_container
    """Finds an OCI image in the site's registries."""


class Operator:
    """One term of leadership: builds every part of the operator and passes changes of allocations, reservations and accounts to them.

    `unheard` is called with the number of Ready nodes that this process has not heard yet.
    """

    def __init__(
        self, outside: Outside, measured: OperatorMetrics, identity: str, *, unheard: Callable[[int], None] = lambda _count: None
    ) -> None:
        cluster, clock = outside.cluster, outside.clock
        self._clock = clock
        self._kinds = outside.kinds
        announcer = Announcer(cluster, clock, identity)
        self.ledger = LedgerMirror(cluster, clock)
        self.usage = Usage()
        self.allocations: Informer[Allocation] = Informer(
            cluster, ALLOCATIONS, type=Allocation, clock=clock, on_change=self._on_allocation, freeze=True, share=SharedParts().allocation
        )
        self.reservations: Informer[Reservation] = Informer(
            cluster, RESERVATIONS, type=Reservation, clock=clock, on_change=self._on_reservation
        )
        self.tenants = Tenants(cluster, clock, self.ledger, self.usage, announcer, measured, self.reservations.objects)
        self.nodes = NodeStates(cluster, clock, self.ledger, announcer, measured, unheard=unheard)
        self.settlement = Settlement(cluster, clock, self.allocations.objects, measured, self.nodes.running)
        self.hours = Hours(cluster, clock, self.settlement.records, self.tenants.known, announcer, measured)
        self.agents = Agents(cluster, clock, self.nodes.informer.objects)
        self.requests = Requests(cluster, clock, self.nodes.informer.objects, self.agents.is_forgotten, outside.signing, measured)
        self.vclusters = VClusters(cluster, clock, self.ledger, self.usage, self.nodes.informer.objects)
        self.profiles = Profiles(cluster, clock, self.nodes.informer.objects)
        members = MemberIndex()
        maker = MemberMaker(cluster, clock, members, self.settlement.records)
        self.dags = Dags(cluster, clock, members, maker, self.vclusters.known, self.tenants.retention_of, measured)
        self.configs = Configs(cluster, clock, self.nodes, announcer)
        self.software = SoftwareResolver(cluster, clock, self.allocations.objects, outside.images, outside.containers)
        self.fail_open: FailOpen | None = None
        if outside.server_metrics is not None:
            self.fail_open = FailOpen(outside.server_metrics, clock, measured, self.configs.queue)
            self.configs.sources.append(self.fail_open)
        self.retention = Retention(cluster, clock, self.allocations, self.usage, self.configs, self.tenants, self.settlement, measured)
        self.ledger.observers.append(self)
        self.usage.observers.append(self)
        self.settlement.observers.append(self.hours)
        self.nodes.observers.append(self.vclusters)
        self.nodes.name_observers.append(self.agents)
        queues = {TENANTS: self.tenants.queue, VCLUSTERS: self.vclusters.queue, CONFIGS: self.configs.queue, DAGS: self.dags.queue}
        known: dict[Resource, Collection[str]] = {
            TENANTS: self.tenants.known, VCLUSTERS: self.vclusters.known, CONFIGS: self.configs.known, DAGS: self.dags.known,
        }  # fmt: skip
        self._declared = Declared(cluster, clock, queues, known)

    async def run(self) -> None:
        """Runs every part until cancelled, or until one fails, which ends all and is raised in an exception group.

        Tenants, VClusters and the LatticeConfig are reconciled only once all Allocations, Reservations, nodes and the ledger have been
        read; hours are counted, and allocations deleted, only once the usage records are listed.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(process.endless(self.allocations.run()))
            group.create_task(process.endless(self.settlement.informer.run()))
            group.create_task(process.endless(self.nodes.run()))
            group.create_task(self._bind_agents())
            group.create_task(self._read_ledger())
            group.create_task(self.reservations.run())
            await self.allocations.synced.wait()
            await self.reservations.synced.wait()
            await self.nodes.informer.synced.wait()  # they tell whether a Ledger must be there
            await self.ledger.read()
            group.create_task(process.endless(self.software.queue.run()))
            group.create_task(self.profiles.run())
            if self.fail_open is not None:
                group.create_task(self.fail_open.run())
            for queue in self._declared.queues.values():
                group.create_task(process.endless(queue.run()))
            group.create_task(self.settlement.run())
            await self.settlement.informer.synced.wait()
            group.create_task(self._count_hours())
            group.create_task(self.retention.run())
            group.create_task(self._declared.resync())
            group.create_task(self._kinds.run(self._declared.named))

    async def _bind_agents(self) -> None:
        """Keeps the bindings of agents' users once all nodes are listed, and answers their certificate requests once the forgotten nodes
        are listed too; never returns.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(process.endless(self.agents.forgotten.run()))
            await self.nodes.informer.synced.wait()
            group.create_task(process.endless(self.agents.run()))
            await self.agents.forgotten.synced.wait()
            group.create_task(process.endless(self.requests.informer.run()))
            group.create_task(process.endless(self.requests.queue.run()))

    async def _count_hours(self) -> None:
        """Counts the hours of all usage records and allocations read so far, then, until cancelled, mirrors them into the statuses of
        tenants and announces budget marks that are crossed.

        Errors of the API server are logged in that, not raised.
        """
        await self.hours.start(self.allocations.objects)
        await self.hours.run()

    def _on_allocation(self, change: Change[Allocation]) -> None:
        """Passes a changed Allocation to the counts of use, settlement, hours, the resolver of software, and its DAG."""
        self.usage.on_allocation(change)
        self.settlement.on_allocation(change)
        self.hours.on_allocation(change)
        self.software.on_allocation(change)
        self.dags.on_allocation(change)

    async def _read_ledger(self) -> None:
        """Reads the ledger every 5 s while there are tenants, whose status shows their accounts; never returns.

        Errors of the API server are logged; Corrupt is raised.
        """
        while True:
            if self.tenants.known:
                await self.ledger.refresh()
            await self._clock.sleep(LEDGER_SECONDS)

    def _on_reservation(self, change: Change[Reservation]) -> None:
        """Passes a changed Reservation to the reconciler of Tenants."""
        self.tenants.on_reservation(change)

    def accounts_changed(self, names: set[str]) -> None:
        """Enqueues those of these tenants, by name, that exist, since their account in the ledger has changed."""
        for name in names & self.tenants.known.keys():
            self.tenants.queue.add(name)

    def use_changed(self, kind: str, name: str) -> None:
        """Enqueues a tenant or vcluster (`kind`) whose first allocation has appeared, or whose last one has ended; one that does not exist
        is ignored.
        """
        if kind == "tenant" and name in self.tenants.known:
            self.tenants.queue.add(name)
        elif kind == "vcluster" and name in self.vclusters.known:
            self.vclusters.queue.add(name)


def build(given: Settings, outside: Outside) -> tuple[tuple[Callable[[], Awaitable[None]], ...], OperatorMetrics]:
    """Returns the coroutine functions that the caller runs at once until cancelled, and the metrics; starts none of them.

    They are the campaign for leadership, with the work of a term in it, and the server of metrics. The campaign raises only Corrupt and
    errors that are not Lattice's own, either of which ends the process.
    """
    measured = OperatorMetrics()
    identity = given.identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    elector = Elector(
        outside.cluster, outside.clock, name=PROGRAM, namespace=given.namespace, identity=identity, lease_seconds=given.lease_seconds
    )

    elector.annotations[UNHEARD] = "-"

    def unheard(count: int) -> None:
        """Shows the number of unheard Ready nodes in the annotations of the operator's Lease, with its next renewal."""
        elector.annotations[UNHEARD] = str(count)

    async def term() -> None:
        """Runs the operator while this process leads, and shows in metric and Lease that it does; raises what ends it."""
        measured.leader.set(1)
        try:
            await Operator(outside, measured, identity, unheard=unheard).run()
        finally:
            elector.annotations[UNHEARD] = "-"
            measured.leader.set(0)

    async def campaign() -> None:
        """Campaigns for leadership and runs a term each time it is won, 1 s after the last ended, until cancelled; raises Corrupt.

        A term that ends with another error of Lattice is logged.
        """
        while True:
            try:
                await elector.lead(term)
            except* LatticeError as errors:
                cause = first_cause(errors)
                if isinstance(cause, Corrupt):
                    raise
                event(log, "TermEnded", logging.WARNING, identity=identity, message=str(cause))
            await outside.clock.sleep(CAMPAIGN_AGAIN_SECONDS)

    def ready() -> tuple[bool, str]:
        """Returns True always, with a word on whether this process leads or who else does."""
        return True, "leading" if elector.leading else f"standby; {elector.holder or 'nobody'} leads"

    scrapers = Scrapers(outside.cluster, outside.clock)
    return (campaign, lambda: serve_metrics(measured.registry, given, ready, scrapers.admit)), measured


async def run(given: Settings, cluster: AiohttpCluster) -> None:
    """Runs the operator on this API server until cancelled: what `build` lists, with the system's clock and kopf's watch."""
    lists = KeptLists()
    outside = Outside(
        cluster, SystemClock(), KopfKinds(cluster), cluster.metrics, given.signing(),
        lambda options: opened(options, given.registry_auth, lists),
        partial(find_container, registry_auth=given.registry_auth),
    )  # fmt: skip
    works, _ = build(given, outside)
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(_as_coroutine(work))


async def _as_coroutine(work: Callable[[], Awaitable[None]]) -> None:
    """Awaits what a function returns, so that a task can be made of it."""
    await work()


def main() -> int:
    """Runs the operator by the settings of the command line and environment until a signal ends it; returns its exit code."""
    return program.run(PROGRAM, Settings, run)


if __name__ == "__main__":
    sys.exit(main())
