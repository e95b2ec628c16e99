"""lattice-gateway: what people read from nodes and ask of the scheduler, over HTTPS; stateless, safe to run many times."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass, field

from lattice import __version__
from lattice.daemon import https, logs, metrics, process
from lattice.daemon.certificates import ServerCertificate
from lattice.daemon.clock import Clock, SystemClock
from lattice.daemon.logs import event
from lattice.daemon.settings import CommonSettings, load
from lattice.errors import LatticeError, NotFound
from lattice.kube.aiohttp import connect
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.resources import CONFIG_MAPS, NODES
from lattice.views import Node
from lattice_gateway.agents import AgentFiles, GrpcAgents
from lattice_gateway.metrics import Metrics
from lattice_gateway.scheduler import LeadingScheduler
from lattice_gateway.server import Server

PROGRAM = "lattice-gateway"
CLIENT_CA = ("extension-apiserver-authentication", "kube-system", "client-ca-file")
CLIENT_CA_SECONDS = 60.0

log = logging.getLogger("lattice_gateway")


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Streams the output of work to the people who may read it."""

    listen: str = field(default="0.0.0.0:8443", metadata={"help": "HOST:PORT of the HTTPS server"})
    certificate: str = field(metadata={"help": "PEM file of the serving certificate; read again when it changes"})
    key: str = field(metadata={"help": "PEM file of its key"})
    agent_certificate: str = field(
        metadata={"help": "PEM file of the certificate that is shown to agents and to the scheduler (CN lattice:gateway)"}
    )
    agent_key: str = field(metadata={"help": "PEM file of its key"})
    agent_ca: str = field(metadata={"help": "PEM file of the CA that the certificates of agents and scheduler are checked against"})


@dataclass(frozen=True)
class Outside:
    """What the gateway reaches, agents and scheduler apart."""

    cluster: Cluster
    clock: Clock


class Gateway:
    """Everything that runs: the cache of nodes, the server, the watchers of certificates and client CA, the metrics."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self._settings = settings
        self._outside = outside
        self._metrics = Metrics()
        self._nodes = Informer(outside.cluster, NODES, type=Node, clock=outside.clock)
        self._certificate = ServerCertificate(settings.certificate, settings.key, client_ca="")
        files = AgentFiles(settings.agent_certificate, settings.agent_key, settings.agent_ca)
        agents, scheduler = GrpcAgents(self._nodes.objects, files), LeadingScheduler(outside.cluster, files)
        self._server = Server(outside.cluster, agents, scheduler, outside.clock, self._metrics)
        self.listening: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

    def ready(self) -> tuple[bool, str]:
        """Whether requests are answered, and the sentence that says so."""
        if not self._nodes.synced.is_set():
            return False, "not read yet: latticenodes"
        return self.listening.done(), "requests are answered" if self.listening.done() else "not listening yet"

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._trust()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._server.usage.informer.run())
            group.create_task(self._certificate.follow(self._outside.clock))
            group.create_task(self._follow_client_ca())
            group.create_task(metrics.serve(self._metrics.registry, self._settings.metrics_address, self.ready))
            group.create_task(self._serve())

    async def _follow_client_ca(self) -> None:
        while True:
            await self._outside.clock.sleep(CLIENT_CA_SECONDS)
            await self._trust()

    async def _trust(self) -> None:
        """Take the cluster's client CA as it is now; without it, only tokens tell who asks."""
        name, namespace, key = CLIENT_CA
        try:
            found = await self._outside.cluster.get(CONFIG_MAPS, name, namespace)
            self._certificate.trust(str((found.get("data") or {}).get(key) or ""))
        except NotFound:
            self._certificate.trust("")
        except LatticeError as error:
            event(log, "ClientCaUnread", logging.WARNING, reason=error.reason, message=error.message)

    async def _serve(self) -> None:
        await self._nodes.synced.wait()
        app, context = self._server.application(), self._certificate.context
        await https.serve(app, self._settings.listen, context, on_listen=self._listens, cancel_abandoned=True)

    def _listens(self, host: str, port: int) -> None:
        event(log, "Listening", address=f"{host}:{port}")
        self.listening.set_result((host, port))


def build(settings: Settings, outside: Outside) -> Gateway:
    """The gateway with everything that runs in it, not yet running."""
    return Gateway(settings, outside)


def main() -> int:
    settings = load(Settings, program=PROGRAM, argv=sys.argv[1:], environ=os.environ)
    logs.setup(settings.log_format, settings.log_level)

    async def serve() -> None:
        async with connect(settings.kubeconfig, user_agent=f"{PROGRAM}/{__version__}") as cluster:
            await build(settings, Outside(cluster, SystemClock())).run()

    return process.run(serve, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
