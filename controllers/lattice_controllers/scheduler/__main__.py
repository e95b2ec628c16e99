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

from lattice.daemon import logs, metrics, process, settings
from lattice.daemon.clock import SystemClock
from lattice.daemon.logs import event
from lattice.errors import LatticeError
from lattice.kube.aiohttp import connect
from lattice.kube.leases import Elector
from lattice_controllers.scheduler.answers import ANNOTATION as ANSWERS
from lattice_controllers.scheduler.answers import AnswerServer, Desk, Files, Records
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.term import RECORDS, Outside, Term

log = logging.getLogger(__name__)

PROGRAM = "lattice-scheduler"
CAMPAIGN_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings(settings.CommonSettings):
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
            try:
                await elector.lead(term.run)
            except LatticeError as error:
                event(log, "The term has ended", error=error)
            await outside.clock.sleep(CAMPAIGN_AGAIN_SECONDS)

    def ready() -> tuple[bool, str]:
        leading = bool(terms) and terms[0].working
        return True, "leading" if leading else "standby"

    def current() -> Term | None:
        return terms[0] if terms and terms[0].working else None

    measured.leader.labels(identity).set_function(lambda: float(current() is not None))
    works: list[Callable[[], Awaitable[None]]] = [campaign, lambda: metrics.serve(measured.registry, given.metrics_address, ready)]
    if given.answers_listen:
        works.append(_answering(given, outside, elector, answering, current))
    return works, measured


def _answering(
    given: Settings, outside: Outside, elector: Elector, listening: asyncio.Event, term: Callable[[], Term | None]
) -> Callable[[], Awaitable[None]]:
    """The server of answers, which the leader's Lease names."""
    files = Files(given.answers_certificate, given.answers_key, given.answers_ca)

    def desk() -> Desk | None:
        leading = term()
        return leading.desk if leading is not None else None

    def records() -> Records | None:
        leading = term()
        return leading.recorder if leading is not None else None

    server = AnswerServer(files, outside.clock, desk=desk, leader=lambda: elector.holder, records=records)

    def listens(host: str, port: int) -> None:
        elector.annotations[ANSWERS] = f"https://{given.answers_advertise or f'{host}:{port}'}"
        listening.set()

    return lambda: server.run(given.answers_listen, listens)


async def run(given: Settings) -> None:
    """Connect and run until cancelled."""
    async with connect(given.kubeconfig, user_agent=PROGRAM) as cluster:
        works, _ = build(given, Outside(cluster, SystemClock(), namespace=given.namespace, records=Path(given.record_dir)))
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
