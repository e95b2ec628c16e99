"""`lattice-agent`: one real node, or many hollow ones in one process; `lattice-agent replay FILE` replays what a node has kept;
`lattice-agent unit FLAGS` prints its systemd unit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lattice.lean_aiohttp  # noqa: F401 - before everything that loads aiohttp
from lattice.daemon import logs, metrics, process, starts
from lattice.daemon.certificates import ServerCertificate
from lattice.daemon.clock import SystemClock
from lattice.daemon.mtls import AGENT, Files
from lattice.daemon.node_certificates import API, GROUP, LIFETIME_SECONDS, PEER
from lattice.daemon.scrapers import Scrapers, by_certificate, serve_metrics
from lattice.daemon.settings import StartSettings, load
from lattice.errors import Denied, Rejected, Retry, UnknownOutcome
from lattice.kube import kubeconfig
from lattice.kube.aiohttp import AiohttpCluster, connect
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.kubeconfig import ClusterConfig
from lattice.lifecycle.hardware import OCI_IMAGES, PMIX
from lattice.models.conditions import LIMITS_MISSING
from lattice.units import dial_target, parse_duration, parse_ranges, quantity_bytes
from lattice_agent.cluster.capabilities import StaticCapabilities, from_node_class, read_components
from lattice_agent.cluster.certificates import Pair, Renewal, both, complete, hosts_of
from lattice_agent.cluster.registration import Flaw, NodeDescription, Registration
from lattice_agent.cluster.work_source import GatewayWorkSource, WorkCache
from lattice_agent.host.containers import Containers, ContainerTools
from lattice_agent.host.controllers import Reserves
from lattice_agent.host.facts import gather
from lattice_agent.host.hollow import HollowHost, HollowTimers
from lattice_agent.host.hooks import HookDirectories
from lattice_agent.host.interface import MachineFacts
from lattice_agent.host.linux import LinuxHost, open_host
from lattice_agent.host.lock import alone_on
from lattice_agent.host.pmix import flaw_of
from lattice_agent.host.scopes import CgroupScopes
from lattice_agent.launches.service import PROGRAMS, LaunchService, RunningAttempts, launch_directory
from lattice_agent.launches.step_desk import StepDesk
from lattice_agent.metrics import AgentMetrics
from lattice_agent.node import replay, service_unit
from lattice_agent.node.agent import Agent, Outside
from lattice_agent.node.feeds import Configuration, Feed
from lattice_agent.node.inspector import NodeInspector
from lattice_agent.node.queues import WorkQueues
from lattice_agent.node.stimulus_files import DIRECTORY, StimulusFiles
from lattice_agent.peers.client import GrpcPeers
from lattice_agent.peers.local import LocalPeers
from lattice_agent.peers.server import AgentService, serve
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from lattice_agent.state.log_store import LogStore
from lattice_agent.work.image_sources import sources_of

if TYPE_CHECKING:
    from lattice.inventory import InventoryNode

PROGRAM = "lattice-agent"
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}", re.ASCII)
HOLLOW_CPUS, HOLLOW_MEMORY = 128, 512 << 30
"""The CPUs and the memory that a hollow node reports, unless an inventory says otherwise."""
SCRATCH_HELD = "scratch_quota"
"""The feature of a node on which work can use no more scratch space than it asks for."""
STIMULUS_EVENTS = 1024
"""Events that a real node keeps in memory: those of 50 to 100 allocations, half a MiB."""
HOLLOW_GROUP = 64
"""Hollow nodes in one topology group, where `--group` names none."""
REGISTERED_AT_ONCE = 48
FIRST_RETRY_SECONDS, RETRY_SECONDS = 0.25, 1.0

log = logging.getLogger("lattice_agent")


@dataclass(frozen=True, kw_only=True)
class AgentSettings(StartSettings):
    """Holds every setting of `lattice-agent`."""

    node: str = field(default="", metadata={"help": "name of this node; default: the host name"})
    listen: str = field(default="0.0.0.0:50052", metadata={"help": "HOST:PORT of the gRPC server"})
    advertise: str = field(default="", metadata={"help": "HOST:PORT that other agents and the gateway call; default: node and port"})
    state_dir: Path = field(default=Path("/var/lib/lattice"), metadata={"help": "journals, exit records, logs"})
    run_dir: Path = field(default=Path("/run/lattice"), metadata={"help": "in memory: what was started since the boot, and its ends"})
    certificate: str = field(default="", metadata={"help": "certificate, CN lattice:agent:NODE, also for the host name NODE"})
    key: str = field(default="", metadata={"help": "its key"})
    ca: str = field(default="", metadata={"help": "authority of the other agents and the gateway"})
    gateway: tuple[str, ...] = field(
        default=(), metadata={"help": "HOST:PORT,… of the gateways' gRPC servers, where the node asks for its work; any of them will do"}
    )
    group: str = field(default="", metadata={"help": "topology group of a node that is not known yet"})
    features: tuple[str, ...] = field(default=(), metadata={"help": "features that allocations may ask for, comma-separated"})
    hollow: int = field(default=0, metadata={"help": "be so many nodes that run nothing and only wait"})
    hollow_inventory: Path | None = field(default=None, metadata={"help": "be the nodes of this inventory (YAML), which only wait"})
    node_prefix: str = field(default="hollow", metadata={"help": "hollow nodes are PREFIX-0001 …"})
    gpus: int = field(default=0, metadata={"help": "GPUs of this node; nothing is discovered"})
    gpu_type: str = field(default="", metadata={"help": "their model, such as GH200"})
    gpu_memory: str = field(default="0", metadata={"help": "memory of each GPU, such as 96Gi"})
    cxl_memory: str = field(default="0", metadata={"help": "memory behind CXL, such as 2Ti"})
    unified_memory: bool = field(default=False, metadata={"help": "CPU and GPU memory are one domain (GH200, MI300A)"})
    watts: int = field(default=0, metadata={"help": "power at full load; 0: unknown"})
    component: tuple[str, ...] = field(default=(), metadata={"help": "NAME=VERSION parts of the fingerprint, such as gpu-driver=550.54.14"})
    prologue_dir: Path | None = field(
        default=None, metadata={"help": "directory of the site's hooks that run before each allocation's work, in order of their names"}
    )
    epilogue_dir: Path | None = field(
        default=None, metadata={"help": "directory of the site's hooks that run after each allocation's work"}
    )
    cache_dir: Path = field(
        default=Path("/var/cache/lattice"), metadata={"help": "where images of software environments are kept over allocations"}
    )
    cache_percent: int = field(default=80, metadata={"help": "of its file system, what the cache may hold"})
    cache_high: int = field(default=90, metadata={"help": "percent of that beyond which images are evicted before a pull"})
    cache_low: int = field(default=70, metadata={"help": "percent down to which they are"})
    cache_free: str = field(default="50G", metadata={"help": "bytes that stay free on its file system whatever is pulled"})
    scratch_dir: Path | None = field(
        default=None, metadata={"help": "directory of a local disk in which each allocation has its scratch space; default: in memory"}
    )
    registry_auth: str = field(default="", metadata={"help": "file with the logins to registries, of Docker's form (auths)"})
    oci_runtime: str = field(default="runc", metadata={"help": "program that makes the containers of work in OCI images: runc or crun"})
    oci_stub: Path = field(
        default=Path("/usr/libexec/lattice/stub"), metadata={"help": "process 1 of containers, made of lattice_agent/standalone/stub.c"}
    )
    oci_seccomp: Path = field(
        default=Path("/usr/share/containers/seccomp.json"), metadata={"help": "profile of the system calls that containers may use"}
    )
    srun: Path = field(
        default=Path("/usr/libexec/lattice/srun"), metadata={"help": "the program srun, of which work finds a copy first on its PATH"}
    )
    rank_starter: Path = field(
        default=Path("/usr/libexec/lattice/starter"),
        metadata={"help": "program that forks ranks, made of lattice_agent/standalone/starter.c; without it launches begin later"},
    )
    pmix_host: Path = field(
        default=Path("/usr/libexec/lattice/pmix-host"),
        metadata={"help": "program that serves PMIx to the ranks of a launch, made of pmix/host.c with libpmix"},
    )
    fabric_interface: str = field(
        default="",
        metadata={"help": "network interface over which the nodes reach each other, such as hsn0: what MPI is told; default: nothing"},
    )
    scope_root: Path | None = field(default=None, metadata={"help": "cgroup directory below which scopes are made"})
    reserved_cpus: str = field(default="", metadata={"help": "processors that work may not run on, such as 0-1,64"})
    reserved_memory: str = field(
        default="", metadata={"help": "memory that work may not have, such as 8Gi; default: work.reservedMemory of the LatticeConfig"}
    )
    certificate_lifetime: str = field(
        default="30d", metadata={"help": "how long the node's certificates are asked for: renewed before a third of it is left"}
    )
    stimulus_events: int = field(
        default=-1, metadata={"help": "events that a node keeps for `lattice-agent replay`; 0: none; -1: 1024, of hollow nodes none"}
    )
    stimulus_log: Path | None = field(
        default=None, metadata={"help": "directory: every event is written there, too, in a file for each node that is rotated"}
    )
    heartbeat: float = field(default=0.0, metadata={"help": "seconds between heartbeats; 0: as the LatticeConfig says"})

    def __post_init__(self) -> None:
        """Raises Rejected for settings that are out of range, missing, or contradict each other."""
        if self.hollow < 0 or self.hollow > 16384:
            raise Rejected(f"--hollow {self.hollow}: between 0 and 16384 nodes", reason="SettingWrong")
        if not (self.certificate and self.key and self.ca):
            raise Rejected(
                "--certificate, --key and --ca are needed: agents and gateways know each other by certificate", reason="SettingMissing"
            )
        if not self.gateway:
            raise Rejected("--gateway HOST:PORT is needed: a node asks a gateway for its work", reason="SettingMissing")
        if self.advertise:
            dial_target(self.advertise)
        if not -1 <= self.stimulus_events <= 1 << 20:
            raise Rejected(f"--stimulus-events {self.stimulus_events}: between 0 and {1 << 20}, or -1", reason="SettingWrong")
        if self.stimulus_log is not None and self.stimulus_events == 0:
            raise Rejected("--stimulus-log needs events: --stimulus-events 0 keeps none", reason="SettingWrong")
        if self.heartbeat < 0:
            raise Rejected(f"--heartbeat {self.heartbeat}: not below 0", reason="SettingWrong")
        if Path(self.oci_runtime).name == "sarus":
            said = "Sarus is not driven by this release; give runc or crun, which run the same images"
            raise Rejected(f"--oci-runtime {self.oci_runtime}: {said}", reason="SettingWrong")
        if not 10 <= parse_duration(self.certificate_lifetime) <= LIFETIME_SECONDS:
            raise Rejected(f"--certificate-lifetime {self.certificate_lifetime}: between 10s and 30d", reason="SettingWrong")
        if self.fabric_interface and not _INTERFACE.fullmatch(self.fabric_interface):
            raise Rejected(
                f"--fabric-interface {self.fabric_interface}: no name of a network interface, such as hsn0", reason="SettingWrong"
            )
        self.cache_limits()
        self.declared()
        self.reserves()

    @property
    def is_hollow(self) -> bool:
        """Tells whether this process stands for hollow nodes instead of its machine."""
        return self.hollow > 0 or self.hollow_inventory is not None

    @property
    def events_kept(self) -> int:
        """Returns how many events each node keeps for a replay; 0: none."""
        if self.stimulus_events >= 0:
            return self.stimulus_events
        return STIMULUS_EVENTS if self.stimulus_log is not None or not self.is_hollow else 0

    def files(self) -> Files:
        """Returns the certificate files for talking to agents and gateways: the agent's own pair, and the authority of the others."""
        return Files(Path(self.certificate), Path(self.key), Path(self.ca))

    def pairs(self, config: ClusterConfig) -> dict[str, Pair]:
        """Returns the certificate files that this agent renews, by use: for peers, and for the API server.

        The latter is left out where the kubeconfig has a token or impersonates; both, where one file serves both uses, since no signer
        gives such a certificate.
        """
        peer = Pair(Path(self.certificate), Path(self.key))
        if not (config.cert_file and config.key_file) or config.headers:  # a token, or it acts as the node by somebody else's certificate
            return {PEER: peer}
        own = Pair(Path(config.cert_file), Path(config.key_file))
        return {} if {own.certificate, own.key} & {peer.certificate, peer.key} else {PEER: peer, API: own}

    def reserves(self) -> Reserves:
        """Returns the processors and the memory (bytes) that the settings reserve from work.

        Raises Rejected where they are malformed or leave no processor or no memory.
        """
        try:
            cpus = frozenset(parse_ranges(self.reserved_cpus))
            memory = quantity_bytes(self.reserved_memory) if self.reserved_memory else None
        except Rejected as error:
            raise Rejected(f"--reserved-cpus, --reserved-memory: {error.message}", reason="SettingWrong") from error
        if cpus and not os.sched_getaffinity(0) - cpus:
            raise Rejected(f"--reserved-cpus {self.reserved_cpus}: no processor is left for work", reason="SettingWrong")
        if memory is not None and memory >= gather().memory_bytes:
            raise Rejected(f"--reserved-memory {self.reserved_memory}: no memory is left for work", reason="SettingWrong")
        return Reserves(cpus, memory)

    def cache_limits(self) -> CacheLimits:
        """Returns the size limits of the image cache from the settings; raises Rejected where they contradict each other."""
        try:
            free = quantity_bytes(self.cache_free)
        except Rejected as error:
            raise Rejected(f"--cache-free: {error.message}", reason="SettingWrong") from error
        return CacheLimits(self.cache_percent, self.cache_high, self.cache_low, free)

    def declared(self) -> StaticCapabilities:
        """Returns the hardware and software that flags declare; raises Rejected, naming the flag that is wrong."""
        sizes = {}
        for flag, text in (("--gpu-memory", self.gpu_memory), ("--cxl-memory", self.cxl_memory)):
            try:
                sizes[flag] = quantity_bytes(text)
            except Rejected as error:
                raise Rejected(f"{flag}: {error.message}", reason="SettingWrong") from error
        return StaticCapabilities(
            self.gpus, self.gpu_type, sizes["--gpu-memory"], sizes["--cxl-memory"], self.unified_memory, self.watts,
            read_components(self.component),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """Everything needed to build the `Agent` of one node of this process: its description, and its means of reaching the world."""

    me: NodeDescription
    outside: Outside


@dataclass(frozen=True, slots=True)
class ProcessSetup:
    """Everything that all nodes of the process share: the API server with the process's own rights, the clock, and tasks to run beside
    them.

    `beside` are functions that return such a task, given the agents by node and the metrics.
    """

    cluster: Cluster
    clock: Clock
    nodes: tuple[NodeSetup, ...]
    beside: tuple[Callable[[dict[str, Agent], AgentMetrics], Coroutine[Any, Any, None]], ...] = ()


async def build(settings: AgentSettings, setup: ProcessSetup) -> None:
    """Runs the nodes of `setup` until cancelled: registers each, builds its `Agent`, and starts the tasks that they share.

    Waits for an API server that does not answer; raises Rejected for a node's name that another agent uses.
    """
    cluster, clock = setup.cluster, setup.clock
    queues = WorkQueues(clock, workers=32 if settings.is_hollow else 8)
    counted = AgentMetrics(settings.node_prefix if settings.is_hollow else setup.nodes[0].me.node)
    agents: dict[str, Agent] = {}

    def beat_all() -> None:
        """Queues a heartbeat of every node at once."""
        for agent in agents.values():
            agent.beat_now()

    configuration = Configuration(cluster, clock, heartbeat_seconds=settings.heartbeat, retimed=beat_all)
    stimuli = StimulusFiles(settings.state_dir / DIRECTORY, clock)
    async with stimuli.at_failure(agents), asyncio.TaskGroup() as group:
        group.create_task(_serve_metrics(counted, settings, setup, lambda: _ready(agents, len(setup.nodes))))
        group.create_task(configuration.run())
        group.create_task(process.endless(queues.run()))
        gate = asyncio.Semaphore(REGISTERED_AT_ONCE)

        async def enter(place: NodeSetup) -> None:
            """Registers one node, makes its `Agent`, and restores its attempts; from then on the process runs the node."""
            node = place.me.node
            registration = Registration(place.outside.cluster, clock, place.me, heartbeat_seconds=configuration.heartbeat())
            registration.flaw = Flaw("StateUnwritable", await place.outside.host.flaw())
            registration.unlimited = Flaw(LIMITS_MISSING, await place.outside.host.unenforced())
            await _registered(registration, clock, node, gate)
            agent = Agent(
                node,
                place.outside,
                queues=queues,
                group=group,
                metrics=counted,
                config=configuration.spec,
                registration=registration,
                heartbeat_seconds=_spread(configuration.heartbeat) if settings.is_hollow else configuration.heartbeat,
                hollow=place.me.hollow,
                stimulus_events=settings.events_kept,
                stimulus_files=stimuli,
            )
            await agent.restore()
            agents[node] = agent

        async with asyncio.TaskGroup() as entering:
            for place in setup.nodes:
                entering.create_task(enter(place))
        if settings.stimulus_log is not None:
            group.create_task(StimulusFiles(settings.stimulus_log, clock).follow_logs(agents))
        for start in setup.beside:
            group.create_task(start(agents, counted))
        only = "" if settings.is_hollow else setup.nodes[0].me.node
        group.create_task(Feed(cluster, clock, queues, agents, only=only).run())


async def _serve_metrics(
    counted: AgentMetrics, settings: AgentSettings, setup: ProcessSetup, ready: Callable[[], tuple[bool, str]]
) -> None:
    """Serves metrics and readiness until cancelled; with a certificate and an address, by TLS, to certificates of `lattice:metrics`."""
    if not (settings.certificate and settings.metrics_address):
        await serve_metrics(counted.registry, settings, ready, Scrapers(setup.cluster, setup.clock).admit)
        return
    authority = await asyncio.to_thread(Path(settings.ca).read_text, encoding="utf-8")
    certificate = ServerCertificate(settings.certificate, settings.key, client_ca=authority)
    async with asyncio.TaskGroup() as group:
        group.create_task(certificate.follow(setup.clock))
        group.create_task(
            metrics.serve(counted.registry, settings.metrics_address, ready, admit=by_certificate, context=certificate.context)
        )


def _spread(seconds: Callable[[], float]) -> Callable[[], float]:
    """Returns a function that gives the seconds less up to a quarter, at random: many nodes do not send their heartbeats together."""
    return lambda: seconds() * random.uniform(0.75, 1.0)  # noqa: S311 - spreads load


def _ready(agents: dict[str, Agent], wanted: int) -> tuple[bool, str]:
    """Returns whether all `wanted` nodes are registered and have renewed their Leases, and a sentence on the first that has not."""
    if len(agents) < wanted:
        return False, f"{len(agents)} of {wanted} nodes are registered"
    for agent in agents.values():
        ready, why = agent.ready()
        if not ready:
            return False, why
    return True, f"{wanted} nodes report" if wanted != 1 else "the node reports"


async def _registered(registration: Registration, clock: Clock, node: str, gate: asyncio.Semaphore) -> None:
    """Registers a node, and retries while the API server does not answer or the node has no rights yet.

    The operator gives a node its rights within moments after it has made its LatticeNode. A name that another agent uses raises Rejected,
    which ends the process.
    """
    delay, said = FIRST_RETRY_SECONDS, ""
    while True:
        try:
            async with gate:
                await registration.register()
        except (Retry, UnknownOutcome, Denied) as error:
            if error.message != said:
                said = error.message
                logs.event(log, "RegistrationWaits", logging.WARNING, node=node, reason=error.reason, message=error.message)
            await clock.sleep(delay)
            delay = min(RETRY_SECONDS, 2 * delay)
        else:
            return


@asynccontextmanager
async def real_node(settings: AgentSettings, cluster: AiohttpCluster, clock: Clock) -> AsyncIterator[ProcessSetup]:
    """Opens this machine as one node (state directory, host, connection to gateways) and yields its setup; closes it at the end.

    Raises Rejected for wrong settings, and where another agent works on the state directory.
    """
    node = settings.node or os.uname().nodename
    files = settings.files()
    files.read()
    async with (
        alone_on(settings.state_dir, clock),
        open_host(
            settings.state_dir,
            settings.run_dir,
            node=node,
            clock=clock,
            scope_root=settings.scope_root,
            reserves=settings.reserves(),
            hooks=HookDirectories(settings.prologue_dir, settings.epilogue_dir),
            cache=ImageCache(settings.cache_dir, settings.cache_limits()),
            registry_auth=settings.registry_auth,
            scratch_dir=settings.scratch_dir,
            tools=ContainerTools(settings.oci_runtime, settings.oci_stub, settings.oci_seccomp),
        ) as host,
    ):
        if host.keepers is not None:
            host.launcher.programs = str(launch_directory(settings.state_dir) / PROGRAMS)
            host.launcher.fabric_interface = settings.fabric_interface
            host.launcher.gpus = settings.gpus
            host.keepers.starter = str(settings.rank_starter)
            host.containers.launches = str(launch_directory(settings.state_dir))
            host.keepers.pmix_host = await _usable_host(settings.pmix_host)
        address = settings.advertise or f"{node}:{settings.listen.rpartition(':')[2]}"
        offered = (*((SCRATCH_HELD,) if host.scratch.is_limited else ()), *_offered(host.containers), *_offers_pmix(host))
        me = NodeDescription(
            node, host.facts(), host.instance(), address, settings.group, tuple(dict.fromkeys((*settings.features, *offered))),
            declared=settings.declared(), scratch_bytes=host.scratch.most_bytes,
        )  # fmt: skip

        def server(agents: dict[str, Agent], counted: AgentMetrics) -> Coroutine[Any, Any, None]:
            """Makes the task that serves launches and this node's gRPC: reporters, logs, steps, the image cache, its report to people."""
            agent = agents[node]
            host.measure(counted)
            kept = LogStore(settings.state_dir, agent.ended)
            launches = _launches(settings, agent, host, peers, cluster, clock, counted)
            agent.work_cpus = host.launcher.count_cpus
            book = _step_desk(launches, agent, host, clock)
            if book is not None:
                agent.launch_totals = book.launch_totals
            service = AgentService(
                agent.reporter, kept, clock, host.images, lambda: sources_of(agent.options().software), host.launcher.prologue,
                NodeInspector(agent, host, clock), launches, book,
            )  # fmt: skip
            return _serve_all(serve(settings.listen, files, service), launches, agent)

        works, peers = GatewayWorkSource(settings.gateway, files), GrpcPeers(files, clock)
        place = NodeSetup(me, Outside(cluster, clock, host, peers, works))
        try:
            yield ProcessSetup(
                cluster, clock, (place,), (server, lambda agents, counted: _renewed(settings, cluster, clock, me, agents, counted))
            )
        finally:
            await works.close()


def _launches(
    settings: AgentSettings, agent: Agent, host: LinuxHost, peers: GrpcPeers, cluster: Cluster, clock: Clock, counted: AgentMetrics
) -> LaunchService | None:
    """Makes what serves the launches of this node; None: it has no cgroups, without which nobody could tell whose process asks."""
    if host.keepers is None or not isinstance(host.scopes, CgroupScopes):
        return None
    journal = host.journal
    attempts = RunningAttempts(cluster, agent.runs, lambda key: entry.work if (entry := journal.entry(key)) else None, journal.place)
    return LaunchService(
        agent.node, directory=launch_directory(settings.state_dir), srun=settings.srun,
        root=host.scopes.controllers.below_mount(host.scopes.root), run_directory=host.journal.run_directory, keepers=host.keepers,
        attempts=attempts, peers=peers, clock=clock, reserved_cpus=settings.reserves().cpus, gpus=settings.gpus,
        pmix=bool(host.keepers.pmix_host),
        log_directory=journal.directory, metrics=counted, mpi=lambda: agent.options().mpi,
    )  # fmt: skip


def _step_desk(launches: LaunchService | None, agent: Agent, host: LinuxHost, clock: Clock) -> StepDesk | None:
    """Makes what tells people of launches, also of attempts that have ended; None: this node runs none."""
    if launches is None:
        return None
    journal = host.journal
    return StepDesk(
        launches.node, launches.find_head, journal.directory, journal.run_directory, agent.ended,
        lambda key: entry.work if (entry := journal.entry(key)) else None, clock,
    )  # fmt: skip


async def _serve_all(serving: Coroutine[Any, Any, None], launches: LaunchService | None, agent: Agent) -> None:
    """Serves gRPC and launches until cancelled; goes on with the launches of the attempts that the agent has found running."""
    async with asyncio.TaskGroup() as group:
        group.create_task(serving)
        if launches is not None:
            group.create_task(launches.run([key for key in agent.machine.attempts if agent.runs(key)]))


def _offered(containers: Containers) -> tuple[str, ...]:
    """Returns the features that the node offers by what is installed; logs why it does not run OCI images where it does not."""
    flaw = containers.flaw()
    if flaw:
        logs.event(log, "ContainersNotOffered", reason="NotInstalled", message=f"this node runs no work in OCI images: {flaw}")
    return () if flaw else (OCI_IMAGES,)


async def _usable_host(program: Path) -> str:
    """Returns the path of the PMIx host where it runs with the libpmix of this node; empty: it does not, which is logged."""
    flaw = await asyncio.to_thread(flaw_of, program)
    if flaw:
        logs.event(log, "PmixNotOffered", reason="NotInstalled", message=f"this node serves no PMIx: {flaw}")
    return "" if flaw else str(program)


def _offers_pmix(host: LinuxHost) -> tuple[str, ...]:
    """Returns the feature of nodes that serve PMIx, where this one does."""
    return (PMIX,) if host.keepers is not None and host.keepers.pmix_host else ()


async def _renewed(
    settings: AgentSettings, cluster: AiohttpCluster, clock: Clock, me: NodeDescription, agents: dict[str, Agent], counted: AgentMetrics
) -> None:
    """Renews the node's certificates before their end, until cancelled; certificates of somebody else's name are left alone."""
    on_flaw = both(agents[me.node].expiring)
    async with asyncio.TaskGroup() as group:
        for use, pair in settings.pairs(cluster.config).items():
            hosts = hosts_of(me.node, me.address) if use == PEER else ()
            renewal = Renewal(
                use, pair, me.node, hosts, cluster=cluster, clock=clock, lifetime=parse_duration(settings.certificate_lifetime),
                metrics=counted, on_flaw=on_flaw[use], early=random.random(),  # noqa: S311 - spreads load
            )  # fmt: skip
            group.create_task(renewal.run())


@asynccontextmanager
async def hollow_nodes(settings: AgentSettings, cluster: AiohttpCluster, clock: Clock) -> AsyncIterator[ProcessSetup]:
    """Makes the hollow nodes of the settings, which only wait, and yields their setup; each writes to the API server as its own user."""
    files = settings.files()
    files.read()
    asked = GatewayWorkSource(settings.gateway, files)
    timers, peers, works = HollowTimers(clock), LocalPeers(clock), WorkCache(asked)
    machine = gather()
    boot = f"hollow-{secrets.token_hex(8)}"
    facts = MachineFacts(HOLLOW_CPUS, HOLLOW_MEMORY, machine.kernel, machine.architecture, boot)
    instance = await asyncio.to_thread(_hollow_instance, settings.state_dir)
    listed = await asyncio.to_thread(_inventory, settings.hollow_inventory) if settings.hollow_inventory is not None else ()
    places = []
    for me in (*_counted(settings, facts), *(_listed(settings, facts, node) for node in listed)):
        host = HollowHost(me.node, clock=clock, timers=timers, facts=me.facts, instance=f"{instance}-{me.node}")
        own = cluster.impersonate(AGENT + me.node, (GROUP,))
        places.append(NodeSetup(replace(me, instance=host.instance()), Outside(own, clock, host, peers, works)))

    def join(agents: dict[str, Agent], _metrics: AgentMetrics) -> Coroutine[Any, Any, None]:
        """Makes the reporters of all nodes reachable for each other, and returns the task of the timers that end work."""
        for node, agent in agents.items():
            peers.join(node, agent.reporter)
        return timers.run()

    try:
        yield ProcessSetup(cluster, clock, tuple(places), (join,))
    finally:
        await asked.close()


def _counted(settings: AgentSettings, facts: MachineFacts) -> Iterator[NodeDescription]:
    """Yields the descriptions of the hollow nodes of `--hollow N`, which are all alike."""
    declared = settings.declared()
    for number in range(1, settings.hollow + 1):
        node = f"{settings.node_prefix}-{number:04d}"
        group = settings.group or f"{settings.node_prefix}-g{(number - 1) // HOLLOW_GROUP:03d}"
        yield NodeDescription(node, facts, "", "", group, settings.features, hollow=True, declared=declared)


def _listed(settings: AgentSettings, facts: MachineFacts, node: InventoryNode) -> NodeDescription:
    """Returns the description of one hollow node of an inventory."""
    had = node.node_class
    features = (*settings.features, *had.features)
    own = replace(facts, cpus=had.cpus, memory_bytes=had.memory)
    declared = from_node_class(had, node.fingerprint)
    return NodeDescription(node.name, own, "", "", node.group, features, hollow=True, switch=node.switch, declared=declared)


def _inventory(path: Path) -> tuple[InventoryNode, ...]:
    """Reads the nodes of an inventory file (YAML); raises Rejected, naming the flag, where it cannot be read or does not parse."""
    from lattice.inventory import read_inventory  # which loads YAML, for hollow nodes alone

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Rejected(f"--hollow-inventory {path} cannot be read: {error}", reason="SettingWrong") from error
    return read_inventory(text, str(path)).nodes


def _hollow_instance(state_dir: Path) -> str:
    """Returns the random id that the process's hollow nodes share, kept in the state directory.

    Where that cannot be written, each start has a new id.
    """
    path = state_dir / "instance"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(secrets.token_hex(12), encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return secrets.token_hex(12)  # every start is then a new set of nodes


def _at_signals(settings: AgentSettings, clock: Clock) -> Callable[[dict[str, Agent], AgentMetrics], Coroutine[Any, Any, None]]:
    """Returns the function that makes the task of writing all nodes' stimulus logs to files at each SIGUSR1."""
    return lambda agents, _metrics: StimulusFiles(settings.state_dir / DIRECTORY, clock).write_at_signals(agents)


async def run(settings: AgentSettings) -> None:
    """Finishes interrupted renewals of certificates, then runs the agent, real or hollow, with these settings until cancelled."""
    if not settings.is_hollow:
        for pair in settings.pairs(kubeconfig.load(settings.kubeconfig)).values():
            with suppress(OSError, ValueError):  # what cannot be read is told by who needs it
                complete(pair)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(connect(settings.kubeconfig, user_agent=PROGRAM))
        clock = SystemClock()
        if settings.is_hollow:
            setup = await stack.enter_async_context(hollow_nodes(settings, cluster, clock))
        else:
            setup = await stack.enter_async_context(real_node(settings, cluster, clock))
        await build(settings, replace(setup, beside=(*setup.beside, _at_signals(settings, clock))))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `lattice-agent replay` or `unit` where the first word names one, else the agent by its settings until a signal ends it; returns
    the exit code.

    Words are those of the command line unless `argv` gives them.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["replay"]:
        return replay.main(words[1:])
    if words[:1] == ["unit"]:
        load(AgentSettings, program=PROGRAM, argv=words[1:], environ=os.environ)  # ends here where a flag is wrong
        return service_unit.main(words[1:])
    settings = load(AgentSettings, program=PROGRAM, argv=words, environ=os.environ)
    logs.setup(settings.log_format, settings.log_level)
    starts.trace(on=settings.trace_starts)
    return process.run(lambda: run(settings), PROGRAM)


if __name__ == "__main__":
    raise SystemExit(main())
