"""lattice-webhook: defaults and checks at submission, over HTTPS; stateless, safe to run many times."""

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
from lattice.kube.aiohttp import connect
from lattice.kube.cluster import Cluster
from lattice_webhooks.facts import Caches, Gatherer
from lattice_webhooks.metrics import Metrics
from lattice_webhooks.server import Server

PROGRAM = "lattice-webhook"

log = logging.getLogger("lattice_webhooks")


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Fills in what submissions leave out, and refuses what could never run."""

    listen: str = field(default="0.0.0.0:9443", metadata={"help": "HOST:PORT of /mutate, /validate, /readyz"})
    certificate: str = field(metadata={"help": "PEM file of the serving certificate; read again when it changes"})
    key: str = field(metadata={"help": "PEM file of its key"})


@dataclass(frozen=True)
class Outside:
    """What the webhook reaches."""

    cluster: Cluster
    clock: Clock


class Webhook:
    """Everything that runs: four caches, the server, the certificate's watcher, the metrics."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self._settings = settings
        self._clock = outside.clock
        self._caches = Caches.of(outside.cluster, outside.clock)
        self._metrics = Metrics()
        self._certificate = ServerCertificate(settings.certificate, settings.key)
        gatherer = Gatherer(outside.cluster, outside.clock, self._caches)
        self._server = Server(gatherer, self._caches, self._metrics, outside.clock)
        self.listening: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._caches.run())
            group.create_task(self._certificate.follow(self._clock))
            group.create_task(metrics.serve(self._metrics.registry, self._settings.metrics_address, self._server.ready))
            group.create_task(self._serve())

    async def _serve(self) -> None:
        await https.serve(self._server.application(), self._settings.listen, self._certificate.context, on_listen=self._listens)

    def _listens(self, host: str, port: int) -> None:
        event(log, "Listening", address=f"{host}:{port}")
        self.listening.set_result((host, port))


def build(settings: Settings, outside: Outside) -> Webhook:
    """The webhook with everything that runs in it, not yet running."""
    return Webhook(settings, outside)


def main() -> int:
    settings = load(Settings, program=PROGRAM, argv=sys.argv[1:], environ=os.environ)
    logs.setup(settings.log_format, settings.log_level)

    async def serve() -> None:
        async with connect(settings.kubeconfig, user_agent=f"{PROGRAM}/{__version__}") as cluster:
            await build(settings, Outside(cluster, SystemClock())).run()

    return process.run(serve, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
