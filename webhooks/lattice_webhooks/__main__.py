"""The program lattice-webhook: defaults and checks at submission, over HTTPS; it keeps no state, so that any number may run."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import lattice.lean_aiohttp  # noqa: F401 - before everything that loads aiohttp
from lattice.daemon import https, process, program
from lattice.daemon.certificates import CHECK_SECONDS, ServerCertificate
from lattice.daemon.clock import Clock, SystemClock
from lattice.daemon.logs import event
from lattice.daemon.scrapers import Scrapers, serve_metrics
from lattice.daemon.settings import StartSettings
from lattice.errors import Rejected
from lattice.kube.cluster import Cluster
from lattice_webhooks.facts import Caches, Gatherer
from lattice_webhooks.metrics import Metrics
from lattice_webhooks.server import Server

PROGRAM = "lattice-webhook"

log = logging.getLogger("lattice_webhooks")


@dataclass(frozen=True, kw_only=True)
class Settings(StartSettings):
    """Fills in what submissions leave out, and refuses what could never run."""

    listen: str = field(default="0.0.0.0:9443", metadata={"help": "HOST:PORT of /mutate, /validate, /readyz"})
    certificate: str = field(metadata={"help": "PEM file of the serving certificate; read again when it changes"})
    key: str = field(metadata={"help": "PEM file of its key"})
    client_ca: str = field(
        default="",
        metadata={"help": "PEM file of the authority of the API server's client certificate, and of no other; read again when it changes"},
    )
    answer_everybody: bool = field(
        default=False, metadata={"help": "answer reviews without a client certificate: only where nobody else reaches the port"}
    )


@dataclass(frozen=True)
class Outside:
    """Everything outside the process that the webhook uses."""

    cluster: Cluster
    clock: Clock


class Webhook:
    """Everything that the webhook runs: its caches, the HTTPS server, the watch of its certificate and of the client CA, the metrics."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self._settings = settings
        self._clock = outside.clock
        self._scrapers = Scrapers(outside.cluster, outside.clock)
        self._caches = Caches.of_cluster(outside.cluster, outside.clock)
        self._metrics = Metrics()
        self._client_ca = settings.client_ca
        self._certificate = ServerCertificate(settings.certificate, settings.key, client_ca=_clients(settings))
        gatherer = Gatherer(outside.cluster, outside.clock, self._caches)
        self._server = Server(gatherer, self._caches, self._metrics, outside.clock, asks_certificate=bool(settings.client_ca))
        self.listening = https.Listening(log)

    async def run(self) -> None:
        """Serves reviews until cancelled: runs caches, HTTPS server, the watch of certificates, and metrics."""
        async with asyncio.TaskGroup() as group:
            group.create_task(process.endless(self._caches.run()))
            group.create_task(process.endless(self._certificate.follow(self._clock)))
            if self._client_ca:
                group.create_task(process.endless(self._follow_clients()))
            group.create_task(serve_metrics(self._metrics.registry, self._settings, self._server.ready, self._scrapers.admit))
            group.create_task(process.endless(self._serve()))

    async def _serve(self) -> None:
        """Serves reviews over HTTPS, and notes when it listens; never returns."""
        await https.serve(self._server.application(), self._settings.listen, self._certificate.context, on_listen=self.listening.set)

    async def _follow_clients(self) -> None:
        """Reads the client CA's file again every few seconds and trusts what it holds, until cancelled; an unreadable file is logged, and
        the last CA stays.
        """
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            try:
                self._certificate.trust(_read(self._client_ca))
            except Rejected as error:
                event(log, "CertificateUnusable", logging.WARNING, certificate=self._client_ca, message=error.message)


def _clients(settings: Settings) -> str | None:
    """Returns the PEM text of the clients' CA; None: reviews are answered without a client certificate (`--answer-everybody`).

    Raises Rejected where the settings choose neither.
    """
    if settings.client_ca:
        return _read(settings.client_ca)
    if settings.answer_everybody:
        event(log, "AnswersEverybody", logging.WARNING, message="reviews are answered without a client certificate (--answer-everybody)")
        return None
    raise Rejected(
        "--client-ca is not given: anybody who reaches the port could ask for reviews, and keep the API server's waiting. "
        "Hint: name the authority of the API server's client certificate (docs/howto/your-own-cluster.md), or say --answer-everybody",
        reason="ClientAuthorityMissing",
    )


def _read(path: str) -> str:
    """Returns the text of a certificate file. Raises Rejected where it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{path} cannot be read: {error}", reason="CertificateUnreadable") from error


def build(settings: Settings, outside: Outside) -> Webhook:
    """Returns the webhook by these settings, not running."""
    return Webhook(settings, outside)


async def run(given: Settings, cluster: Cluster) -> None:
    """Runs the webhook on this API server until cancelled, with the system's clock."""
    await build(given, Outside(cluster, SystemClock())).run()


def main() -> int:
    """Runs the webhook by the settings of the command line and environment until a signal ends it; returns its exit code."""
    return program.run(PROGRAM, Settings, run)


if __name__ == "__main__":
    sys.exit(main())
