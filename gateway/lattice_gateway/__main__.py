"""The program lattice-gateway: output, answers of the scheduler and lists for people, over HTTPS; work for nodes, over gRPC.

It keeps no state, so that any number of them may run.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import lattice.lean_aiohttp  # noqa: F401 - before everything that loads aiohttp
from lattice.daemon import https, process, program
from lattice.daemon.certificates import ServerCertificate
from lattice.daemon.clock import Clock, SystemClock
from lattice.daemon.logs import event
from lattice.daemon.mtls import Files
from lattice.daemon.scrapers import Scrapers, serve_metrics
from lattice.daemon.settings import StartSettings
from lattice.errors import LatticeError, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.resources import CONFIG_MAPS, NODES, PLANS, VCLUSTERS
from lattice.views import Node, VCluster
from lattice.views.ledger import Plan
from lattice.views.sharing import SharedParts
from lattice_gateway import nodes
from lattice_gateway.agents import AgentFiles, GrpcAgents
from lattice_gateway.metrics import Metrics
from lattice_gateway.nodes import WorkService
from lattice_gateway.scheduler import LeadingScheduler
from lattice_gateway.scripts import Scripts
from lattice_gateway.server import Server
from lattice_gateway.variables import Secrets
from lattice_gateway.works import Works

PROGRAM = "lattice-gateway"
CLIENT_CA = ("extension-apiserver-authentication", "kube-system", "client-ca-file")
CLIENT_CA_SECONDS, CLIENT_CA_UNREAD_SECONDS = 60.0, 1.0
"""Time between two readings of the client CA, and after a reading that failed."""

log = logging.getLogger("lattice_gateway")


@dataclass(frozen=True, kw_only=True)
class Settings(StartSettings):
    """Streams the output of work to the people who may read it."""

    listen: str = field(default="0.0.0.0:8443", metadata={"help": "HOST:PORT of the HTTPS server"})
    certificate: str = field(metadata={"help": "PEM file of the serving certificate; read again when it changes"})
    key: str = field(metadata={"help": "PEM file of its key"})
    agent_listen: str = field(default="0.0.0.0:8444", metadata={"help": "HOST:PORT of the gRPC server, where agents ask for their work"})
    agent_certificate: str = field(
        metadata={"help": "PEM file of the certificate shown to agents and to the scheduler (CN lattice:gateway, DNS name lattice-gateway)"}
    )
    agent_key: str = field(metadata={"help": "PEM file of its key"})
    agent_ca: str = field(metadata={"help": "PEM file of the CA that the certificates of agents and scheduler are checked against"})
    registry_auth: str = field(default="", metadata={"help": "file with the logins to registries, of Docker's form (auths)"})


@dataclass(frozen=True)
class Outside:
    """Everything outside the process that the gateway uses, except for agents and scheduler."""

    cluster: Cluster
    clock: Clock


class Gateway:
    """Everything that the gateway runs: caches, HTTPS and gRPC servers, the watch of certificates and client CA, the metrics."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self._settings = settings
        self._outside = outside
        self._metrics = Metrics()
        self._nodes = Informer(outside.cluster, NODES, type=Node, clock=outside.clock, share=SharedParts().node)
        self._certificate = ServerCertificate(settings.certificate, settings.key, client_ca="")
        self._plans = Informer(outside.cluster, PLANS, type=Plan, clock=outside.clock)
        files = AgentFiles(settings.agent_certificate, settings.agent_key, settings.agent_ca)
        agents, scheduler = GrpcAgents(self._nodes.objects, files), LeadingScheduler(outside.cluster, outside.clock, files)
        self._scheduler = scheduler
        self._vclusters = Informer(outside.cluster, VCLUSTERS, type=VCluster, clock=outside.clock)
        self._server = Server(
            outside.cluster, agents, scheduler, outside.clock, self._metrics, self._nodes, self._vclusters, self._plans.objects,
            settings.registry_auth,
        )  # fmt: skip
        works = Works(outside.cluster, outside.clock, self._nodes.objects, self._plans.objects)
        secrets = Secrets(outside.cluster, outside.clock)
        scripts = Scripts(outside.cluster, outside.clock)
        self._service = WorkService(works, secrets, scripts, self._nodes.objects, outside.clock, self._metrics)
        self.listening = https.Listening(log)

    def ready(self) -> tuple[bool, str]:
        """Tells whether requests are answered, and a sentence that says so or names what has not been read yet."""
        for informer in (self._nodes, self._plans):
            if not informer.synced.is_set():
                return False, f"not read yet: {informer.resource.plural}"
        return self.listening.address.done(), "requests are answered" if self.listening.address.done() else "not listening yet"

    async def run(self) -> None:
        """Serves people and nodes until cancelled: runs caches, HTTPS and gRPC servers, the watch of certificates, and metrics."""
        trusted = await self._trust()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                serve_metrics(
                    self._metrics.registry, self._settings, self.ready, Scrapers(self._outside.cluster, self._outside.clock).admit
                )
            )
            for work in (
                self._nodes.run(),
                self._vclusters.run(),
                self._scheduler.run(),
                self._plans.run(),
                self._server.usage.informer.run(),
                self._certificate.follow(self._outside.clock),
                self._follow_client_ca(trusted=trusted),
                self._serve(),
                self._serve_nodes(),
            ):
                group.create_task(process.endless(work))

    async def _follow_client_ca(self, *, trusted: bool) -> None:
        """Reads the CA of clients again and again, sooner while it could not be read; never returns.

        `trusted`: whether it was read the first time.
        """
        while True:
            await self._outside.clock.sleep(CLIENT_CA_SECONDS if trusted else CLIENT_CA_UNREAD_SECONDS)
            trusted = await self._trust()

    async def _trust(self) -> bool:
        """Reads the cluster's client CA and trusts its certificates from now on, and none where there is no CA; returns True.

        Returns False, and changes nothing, where it cannot be read.
        """
        name, namespace, key = CLIENT_CA
        try:
            found = await self._outside.cluster.get(CONFIG_MAPS, name, namespace)
            self._certificate.trust(str((found.get("data") or {}).get(key) or ""))
        except NotFound:
            self._certificate.trust("")
        except LatticeError as error:
            event(log, "ClientCaUnread", logging.WARNING, reason=error.reason, message=error.message)
            return False
        return True

    async def _serve(self) -> None:
        """Serves people over HTTPS once the nodes are known; never returns."""
        await self._nodes.synced.wait()
        app, context = self._server.application(), self._certificate.context
        await https.serve(app, self._settings.listen, context, on_listen=self.listening.set, cancel_abandoned=True)

    async def _serve_nodes(self) -> None:
        """Serves nodes over gRPC once nodes and plans are known; never returns."""
        await self._nodes.synced.wait()
        await self._plans.synced.wait()
        settings = self._settings
        files = Files(Path(settings.agent_certificate), Path(settings.agent_key), Path(settings.agent_ca))
        await nodes.serve(settings.agent_listen, files, self._service)


def build(settings: Settings, outside: Outside) -> Gateway:
    """Returns the gateway by these settings, not running."""
    return Gateway(settings, outside)


async def run(given: Settings, cluster: Cluster) -> None:
    """Runs the gateway on this API server until cancelled, with the system's clock."""
    await build(given, Outside(cluster, SystemClock())).run()


def main() -> int:
    """Runs the gateway by the settings of the command line and environment until a signal ends it; returns its exit code."""
    return program.run(PROGRAM, Settings, run)


if __name__ == "__main__":
    sys.exit(main())
