"""The scheduler's program: `build` lists everything that runs while this process leads."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import lattice.lean_aiohttp  # noqa: F401 - before everything that loads aiohttp
from lattice.daemon import program, settings
from lattice.daemon.clock import SystemClock
from lattice.daemon.logs import event
from lattice.daemon.scrapers import Scrapers, serve_metrics
from lattice.errors import LatticeError, Stale
from lattice.kube.aiohttp import AiohttpCluster
from lattice.kube.leases import Elector
from lattice_controllers.scheduler.answers import ANNOTATION as ANSWERS
from lattice_controllers.scheduler.answers import AnswerServer, CycleRecords, Queries, ServerFiles
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.term import RECORDS, Memory, Outside, Term

log = logging.getLogger(__name__)

PROGRAM = "lattice-scheduler"
CAMPAIGN_AGAIN_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 8.0
"""Pause before the next campaign for leadership; it doubles up to the longest while terms keep ending for the same reason."""


@dataclass(frozen=True, kw_only=True)
class Settings(settings.StartSettings):
    """Places allocations on nodes: one leader at a time, any number of standbys."""

    namespace: str = field(default="lattice-system", metadata={"help": "namespace of the leader's Lease"})
    identity: str = field(default="", metadata={"help": "name of this process in the Lease; empty: host, pid and a random part"})
    lease_seconds: float = field(default=15.0, metadata={"help": "how long the Lease lasts without being renewed"})
    record_dir: str = field(default=str(RECORDS), metadata={"help": "folder of the log of cycles, where recording is on (LatticeConfig)"})
    answers_listen: str = field(default="", metadata={"help": "HOST:PORT at which the gateway asks why, queue and plan; empty: nowhere"})
    answers_advertise: str = field(default="", metadata={"help": "HOST:PORT by which the gateway reaches it; empty: where it listens"})
    answers_certificate: str = field(default="", metadata={"help": "PEM file of the certificate shown there (host lattice-scheduler)"})
    answers_key: str = field(default="", metadata={"help": "PEM file of its key"})
    answers_ca: str = field(default="", metadata={"help": "PEM file of the CA that the gateway's certificate is checked against"})


def build(given: Settings, outside: Outside) -> tuple[Iterable[Callable[[], Awaitable[None]]], SchedulerMetrics]:
    """Returns the coroutine functions that the caller runs at once until cancelled, and the metrics; starts none of them.

    They are the campaign for leadership, with the work of a term in it, the server of metrics, and the server of answers where
    `given.answers_listen` names an address. With the latter, the campaign begins only once that server listens.
    """
    measured = SchedulerMetrics()
    identity = given.identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    elector = Elector(
        outside.cluster, outside.clock, name=PROGRAM, namespace=given.namespace, identity=identity, lease_seconds=given.lease_seconds
    )
    terms: list[Term] = []
    memory = Memory()
    answering = asyncio.Event()
    if not given.answers_listen:
        answering.set()

    async def campaign() -> None:
        """Campaigns for leadership and runs a term each time it is won, until cancelled; begins once the server of answers listens, if
        there is one.

        After a term, whose error of Lattice it logs, it pauses: 1 s, doubled up to 8 s while one after another ends as Stale with the same
        sentence.
        """
        await answering.wait()  # the first write of the Lease says already where it answers
        said, pause = "", CAMPAIGN_AGAIN_SECONDS
        while True:
            term = Term(outside, measured, identity, memory)
            terms[:] = [term]
            try:
                await elector.lead(term.run)
                said, pause = "", CAMPAIGN_AGAIN_SECONDS
            except Stale as error:  # expected, and its sentence says all
                measured.went_back.set(float(error.reason == "LedgerWentBack"))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if error.message == said else CAMPAIGN_AGAIN_SECONDS
                if error.message != said:
                    event(log, "The term has ended", reason=error.reason, message=error.message)
                said = error.message
            except LatticeError as error:
                said, pause = "", CAMPAIGN_AGAIN_SECONDS
                event(log, "The term has ended", reason=error.reason, message=error.message)
            await outside.clock.sleep(pause)

    def ready() -> tuple[bool, str]:
        """Returns True always, with "leading" while a term works in this process, else "standby"."""
        leading = bool(terms) and terms[0].working
        return True, "leading" if leading else "standby"

    def current() -> Term | None:
        """Returns the term that leads and works now; None: this process is a standby."""
        return terms[0] if terms and terms[0].working else None

    measured.leader.labels(identity).set_function(lambda: float(current() is not None))
    scrapers = Scrapers(outside.cluster, outside.clock)
    works: list[Callable[[], Awaitable[None]]] = [campaign, lambda: serve_metrics(measured.registry, given, ready, scrapers.admit)]
    if given.answers_listen:
        works.append(_answering(given, outside, elector, answering, current))
    return works, measured


def _answering(
    given: Settings, outside: Outside, elector: Elector, listening: asyncio.Event, term: Callable[[], Term | None]
) -> Callable[[], Awaitable[None]]:
    """Returns the coroutine function that serves answers until cancelled.

    Once the server listens, it writes its URL into the annotations of the elector's Lease and sets `listening`. `term` returns the term
    that leads now; None: this process is a standby, and every question is refused.
    """
    files = ServerFiles(given.answers_certificate, given.answers_key, given.answers_ca)

    def queries() -> Queries | None:
        """Returns the query service of the term that leads now; None while this process is a standby."""
        leading = term()
        return leading.queries if leading is not None else None

    def records() -> CycleRecords | None:
        """Returns the recorder of the term that leads now; None while this process is a standby."""
        leading = term()
        return leading.recorder if leading is not None else None

    server = AnswerServer(files, outside.clock, queries=queries, leader=lambda: elector.holder, records=records)

    def listens(host: str, port: int) -> None:
        """Writes the URL of this server into the annotations of the leader's Lease, and lets the campaign begin."""
        elector.annotations[ANSWERS] = f"https://{given.answers_advertise or f'{host}:{port}'}"
        listening.set()

    return lambda: server.run(given.answers_listen, listens)


async def run(given: Settings, cluster: AiohttpCluster) -> None:
    """Runs the scheduler on this API server until cancelled: what `build` lists, with the system's clock."""
    works, _ = build(given, Outside(cluster, SystemClock(), namespace=given.namespace, records=Path(given.record_dir)))
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work())  # type: ignore[arg-type]


def main() -> int:
    """Runs the scheduler by the settings of the command line and environment until a signal ends it; returns its exit code."""
    return program.run(PROGRAM, Settings, run)


if __name__ == "__main__":
    sys.exit(main())
